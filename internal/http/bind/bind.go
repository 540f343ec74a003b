// Package bind reads requests into structs: from the path, the query, the header and the JSON body, as the struct's tags say.
package bind

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/http/problem"
)

// Limits bound what one request may hold.
type Limits struct {
	Body  int64 // bytes of the body
	Event int64 // bytes of a json.RawMessage
	Items int   // elements of a list of objects
	Depth int   // nesting of a json.RawMessage or a Value, itself included

	Bodies *body.Budget // what bodies of all requests may take together; nil: a budget of the binding's own
}

// A Value is any JSON value as it was sent, which jsonb can hold as it is, of MaxValue bytes at most. Nil is none.
type Value []byte

// A Binding says how requests are read into structs of one type. It is made of the struct's tags:
//
//	path:"id"          the field is the {id} of the route
//	query:"limit"      … a query parameter; a list is one that repeats
//	header:"If-Match"  … a header field
//	json:"limit"       … a member of the body, which is then a JSON object
//	body:"event"       … the body itself, a json.RawMessage
//	sent:"body"        … all bytes of the body, a []byte
//	bytes:"body"       … the same, of any media type, and nothing else is read of the body
//	default:"100"      what the field is set to when it is not given
//	validate:"min=1"   rules of the validator, for a value that is given; "required" stands first, and means that it must be; those
//	                   after "dive" are for each element of a list
//	null:"nil"         null is a value, too: the field is nil then; null:"zero": it points to a zero value
//	log:"queue"        Log has the field, under this name
//	restrict:"queue"   Uses visits the field: it names a queue, or something else, that not all callers may use. The tag of a struct counts for each field
//	                   within that has one; restrict:"-" says that the field names nothing that is used
//
// A field with a tag restrict that begins with allowed_, and with none that says where it is, is not read from the request.
//
// A json.RawMessage is a JSON object as it was sent, which jsonb can hold as it is. A pointer is nil when the field is not given.
//
// The members of an embedded struct with the tag in:"query" are query parameters. The tag require:"event" of an embedded struct makes its
// field of that name required.
type Binding struct {
	Fields []Field

	sent    []int  // the index of the field for the bytes of the body; nil: none
	isBytes bool   // the body is not JSON that is read here
	body    *Field // the field that is the body itself, else the request, whose members are those of the body
	members bool   // the body has members
	needs   string // what the body must be; empty: there may be none
	limits  Limits

	allowed        []Field // that are set to what the caller may use
	isRestrictable bool
}

// A Field is one field of a request.
type Field struct {
	Name     string
	In       string // path, query, header, json or body
	Index    []int  // as reflect.Value.FieldByIndex takes it
	Default  string
	Rules    string
	Required bool
	Element  *Field  // what each element of a list is, else nil
	Members  []Field // of the struct that it is, else nil
	Restrict Restriction

	isString        bool // not a time or a duration, which are strings in JSON
	hasRestrictions bool // it, or a field within it, names what is used

	pointer string        // of a parameter
	header  string        // its name as http.Header has it
	kind    jsontext.Kind // of the JSON value; 0: any
	wants   string        // what it takes, as in "must be …"
	null    string
	log     string
	initial reflect.Value // Default
	joined  bool          // several lines of a header are one list (RFC 9110, section 5.3)
}

// A Checker is a request, or a part of one, whose fields depend on each other. Check is called when each by itself is valid, and
// calls report for each that does not fit the others.
type Checker interface {
	Check(report func(field, detail string))
}

// A Separator is a request that takes the elements of a list each on its own. If IsSeparate, what the database cannot hold, or is beyond a limit of one
// element, refuses that element alone, which is a Refusable then.
type Separator interface{ IsSeparate() bool }

// A Refusable is an element of a list that can be refused by itself, with a *problem.Problem. Its fields are set as far as they are valid.
type Refusable interface{ Refuse(err error) }

// New returns the Binding of Req. It panics on a default that is not valid.
func New[Req any](lim Limits) *Binding {
	if lim.Bodies == nil {
		lim.Bodies = body.NewBudget(body.Config{Largest: lim.Body})
	}
	request := newField(reflect.TypeFor[Req](), "")
	b := &Binding{Fields: request.Members, body: &request, limits: lim}
	b.isRestrictable = markRestricted(b.Fields)
	isAllowed := func(f Field) bool { return f.In == "" }
	for _, f := range b.Fields {
		if isAllowed(f) {
			b.allowed = append(b.allowed, f)
		}
	}
	b.Fields = slices.DeleteFunc(b.Fields, isAllowed)
	if at := slices.IndexFunc(b.Fields, func(f Field) bool { return f.In == "sent" || f.In == "bytes" }); at >= 0 {
		b.sent, b.isBytes = b.Fields[at].Index, b.Fields[at].In == "bytes"
		b.Fields = slices.Delete(b.Fields, at, at+1)
	}
	for i, f := range b.Fields {
		switch f.In {
		case "body":
			b.body, b.needs = &b.Fields[i], "a JSON object"
		case "json":
			b.members = true
			if f.Required && b.needs == "" {
				b.needs = "a JSON object with " + f.Name
			}
		}
	}
	return b
}

// fieldsOf returns the fields of t, a struct at index that is embedded with the tag outer.
func fieldsOf(t reflect.Type, index []int, outer reflect.StructTag) (fields []Field) {
	for i := range t.NumField() {
		sf := t.Field(i)
		at := append(slices.Clone(index), i)
		if sf.Anonymous {
			within := fieldsOf(sf.Type, at, sf.Tag)
			if by := parseRestriction(t, index, &sf); by.Kind != "" {
				overrideRestrictions(within, by)
			}
			fields = append(fields, within...)
			continue
		}
		f := newField(sf.Type, sf.Tag.Get("validate"))
		for _, place := range []string{"path", "query", "header", "body", "sent", "bytes", "json"} {
			if tag, ok := sf.Tag.Lookup(place); ok {
				f.Name, _, _ = strings.Cut(tag, ",")
				f.In = cmp.Or(outer.Get("in"), place)
			}
		}
		f.Restrict = parseRestriction(t, index, &sf)
		isAllowed := strings.HasPrefix(f.Restrict.Kind, "allowed_")
		switch {
		case f.In == "" && f.Restrict.Kind == "":
			continue
		case (f.In == "") != isAllowed || !sf.IsExported():
			panic(fmt.Sprintf("%s.%s must be exported, and read from the request unless it is set to what is allowed", t, sf.Name))
		}
		f.Index, f.Default, f.null, f.log = at, sf.Tag.Get("default"), sf.Tag.Get("null"), sf.Tag.Get("log")
		f.pointer = map[string]string{"path": "{" + f.Name + "}", "query": "?" + f.Name, "header": f.Name}[f.In]
		f.header = http.CanonicalHeaderKey(f.Name)
		f.Required = f.Required || f.Name == outer.Get("require")
		if f.Default != "" {
			f.initial = reflect.New(sf.Type).Elem()
			if wrong := f.set(f.initial, f.Default, Quote); wrong != "" {
				panic(fmt.Sprintf("the default of %s.%s %s", t, sf.Name, wrong))
			}
		}
		fields = append(fields, f)
	}
	return fields
}

var (
	objectType          = reflect.TypeFor[json.RawMessage]()
	valueType           = reflect.TypeFor[Value]()
	durationType        = reflect.TypeFor[time.Duration]()
	timeType            = reflect.TypeFor[time.Time]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// newField returns a field of type t, without its name and its place.
func newField(t reflect.Type, rules string) (f Field) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	own, each, _ := strings.Cut(","+rules, ",dive,")
	own, f.Required = strings.CutPrefix(own, ",required")
	f.Rules = strings.TrimPrefix(own, ",")
	switch kind := t.Kind(); {
	case t == objectType:
		f.kind, f.wants = '{', "a JSON object"
	case t == valueType:
	case t == durationType:
		f.kind, f.wants = '"', `a duration such as "90s", "10m" or "7d"`
	case t == timeType:
		f.kind, f.wants = '"', `an RFC 3339 time such as "2026-02-03T04:05:06Z"`
	case kind == reflect.String, reflect.PointerTo(t).Implements(textUnmarshalerType):
		f.kind, f.wants, f.joined, f.isString = '"', "a string", kind == reflect.Slice, kind == reflect.String
	case kind == reflect.Slice:
		element := newField(t.Elem(), each)
		f.kind, f.wants, f.Element = '[', "an array", &element
	case kind == reflect.Struct:
		f.kind, f.wants, f.Members = '{', "a JSON object", fieldsOf(t, nil, "")
	case kind == reflect.Bool:
		f.kind, f.wants = 't', "true or false"
	case kind == reflect.Float64:
		f.kind, f.wants = '0', "a number"
	default:
		f.kind, f.wants = '0', "an integer"
	}
	return f
}

// Decode reads r into req, a pointer to the struct that b was made of, and whose fields refer to the bytes that hold has of the body. It fails with a
// *problem.Problem, which names every bad parameter, or else every bad field of the body.
func (b *Binding) Decode(w http.ResponseWriter, r *http.Request, hold *body.Hold, req any) error {
	v := reflect.ValueOf(req).Elem()
	if err := b.decodeParams(r, v); err != nil {
		return err
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil // a body has no meaning there
	}
	if b.isBytes {
		sent, err := b.readBytes(w, r, hold)
		v.FieldByIndex(b.sent).SetBytes(sent)
		return err
	}
	sent, err := b.readBody(w, r, hold)
	if err != nil {
		return err
	}
	if b.sent != nil {
		v.FieldByIndex(b.sent).SetBytes(sent)
	}
	switch {
	case sent == nil && b.needs != "":
		return problem.New(problem.InvalidJSON, "The body is empty; expected "+b.needs+".")
	case sent == nil:
		sent = []byte("{}")
	}
	return decode(sent, v.FieldByIndex(b.body.Index), b.body, b.limits)
}

// Merge changes req, a pointer to the struct that b was made of, by a JSON object (RFC 7396, JSON Merge Patch): a member sets a field, or takes its value away if it is null, and changes
// a field that is an object member by member. It fails with a *problem.Problem that names every bad field.
func (b *Binding) Merge(changes []byte, req any) error {
	d := decoder{Limits: b.limits, text: changes, field: b.body, into: reflect.ValueOf(req).Elem(), spare: b.limits.Body - int64(len(changes)), isMerge: true}
	return d.run()
}

// Log calls add with the name and the value of each field of req, which was decoded, that has the tag log.
func (b *Binding) Log(req any, add func(name string, value any)) {
	for i := range b.Fields {
		if f := &b.Fields[i]; f.log != "" {
			add(f.log, reflect.ValueOf(req).Elem().FieldByIndex(f.Index).Interface())
		}
	}
}

// find returns the index of the field in a place that has name, or -1.
func find(fields []Field, in, name string) int {
	for i := range fields { // not slices.IndexFunc, which copies each
		if fields[i].Name == name && fields[i].In == in {
			return i
		}
	}
	return -1
}

// oneOf lists the names of the fields in a place for a detail.
func oneOf(fields []Field, in string) string {
	list := "none"
	for _, f := range fields {
		if f.In == in {
			list += ", " + f.Name
		}
	}
	return strings.Replace(list, "none, ", "one of ", 1)
}
