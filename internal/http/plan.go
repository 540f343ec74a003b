package http

import (
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
)

// limits bound what one request may hold.
type limits struct {
	body  int64 // bytes
	event int64 // bytes of one event
	items int   // elements of a list
	depth int   // nesting of an event, itself included
}

// A plan says how a request is decoded into a struct. It is made of the struct's tags:
//
//	path:"id"          the field is the {id} of the route
//	query:"limit"      … a query parameter
//	header:"If-Match"  … a header field
//	json:"limit"       … a member of the body, which is then a JSON object
//	body:"event"       … the body itself, which is then an event
//	default:"100"      what the field is when it is not given
//	validate:"min=1"   rules of the validator, for a value that is given; "required" means it must be; those
//	                   after "dive" are for each element of a list
//	null:"true"        null is a value, too
//
// An embedded struct is tagged in:"query" or in:"json"; its fields have their names as name:"…". A field whose type
// is a slice takes all lines of its header, any other field one. A field whose type implements textual reads itself
// from its text, and one whose type is a change tells what is not given from what is null.
//
// A request with rules across its fields implements checked.
type plan struct {
	path, query, header, json []field
	event                     *field
}

// A field is one field of a request.
type field struct {
	name     string
	index    []int // as reflect.Value.FieldByIndex takes it
	rules    string
	required bool
	nullable bool
	changing bool          // it is a change
	text     bool          // it is a string in JSON
	isList   bool          // it is a slice: a header may give it in several lines
	initial  reflect.Value // what it is when not given; invalid: zero
	items    []field       // of the structs in a list, else nil
	element  *field        // what each element of a list of plain values is, else nil
	members  []field       // of the struct that it is, else nil
}

// checked is implemented by requests whose fields depend on each other. check calls report
// for each field that does not fit the others.
type checked interface {
	check(report func(field, detail string))
}

// planOf makes the plan of Req. It panics on tags that make no sense, at start.
func planOf[Req any]() *plan {
	p := new(plan)
	p.add(reflect.TypeFor[Req](), nil, "")
	return p
}

func (p *plan) add(t reflect.Type, index []int, in string) {
	for i := range t.NumField() {
		sf := t.Field(i)
		at := append(slices.Clone(index), i)
		if sf.Anonymous {
			p.add(sf.Type, at, sf.Tag.Get("in"))
			continue
		}
		f, place := fieldOf(sf, at), in
		for _, tag := range []string{"path", "query", "header", "json", "body"} {
			if name, ok := sf.Tag.Lookup(tag); ok {
				f.name, place = name, tag
			}
		}
		switch place {
		case "path":
			p.path = append(p.path, f)
		case "query":
			p.query = append(p.query, f)
		case "header":
			p.header = append(p.header, f)
		case "json":
			p.json = append(p.json, f)
		case "body":
			p.event = &f
		default:
			panic(fmt.Sprintf("%s.%s is nowhere in a request", t, sf.Name))
		}
	}
}

func fieldOf(sf reflect.StructField, index []int) field {
	f := field{
		name:     sf.Tag.Get("name"),
		index:    index,
		nullable: sf.Tag.Get("null") == "true",
		changing: reflect.PointerTo(sf.Type).Implements(changingType),
		text:     isText(sf.Type),
		isList:   indirect(sf.Type).Kind() == reflect.Slice,
	}
	for rule := range strings.SplitSeq(sf.Tag.Get("validate"), ",") {
		switch {
		case rule == "required":
			f.required = true
		case f.rules == "":
			f.rules = rule
		default:
			f.rules += "," + rule
		}
	}
	if text, ok := sf.Tag.Lookup("default"); ok {
		f.initial = reflect.New(sf.Type).Elem()
		if wrong := setText(f.initial, text); wrong != "" {
			panic(sf.Name + ": " + wrong)
		}
	}
	if t := sf.Type; t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
		items := new(plan)
		items.add(t.Elem(), nil, "")
		f.items = items.json
	}
	f.nest(sf.Type)
	return f
}

// initialize sets what is not given to its default.
func initialize(v reflect.Value, fields []field) {
	for i := range fields {
		if f := &fields[i]; f.initial.IsValid() {
			v.FieldByIndex(f.index).Set(f.initial)
		}
	}
}

// decode reads r into req, a pointer to the struct the plan was made of.
func (p *plan) decode(w http.ResponseWriter, r *http.Request, lim limits, req any) error {
	v := reflect.ValueOf(req).Elem()
	initialize(v, p.path)
	initialize(v, p.query)
	initialize(v, p.header)
	initialize(v, p.json)
	if err := p.decodeHeader(r.Header, v); err != nil {
		return err
	}
	if err := p.decodeURL(r, lim, v); err != nil { // checks the fields of a query, which may depend on the header's
		return err
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil // a body has no meaning there
	}
	body, err := readBody(w, r, lim.body)
	if err != nil {
		return err
	}
	if p.event != nil {
		return decodeEvent(body, lim, v.FieldByIndex(p.event.index))
	}
	return decodeObject(body, lim, v, p.json)
}
