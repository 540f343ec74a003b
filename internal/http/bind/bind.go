// Package bind reads requests into structs: from the path, the query, the header and the JSON body, as the struct's tags say.
package bind

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/http/problem"
)

// Limits bound what one request may hold.
type Limits struct {
	Body  int64 // bytes of the body
	Event int64 // bytes of a json.RawMessage
	Items int   // elements of a list of objects
	Depth int   // nesting of a json.RawMessage or a Value, itself included
}

// A Value is any JSON value as it was sent, which jsonb can hold as it is, of MaxValue bytes at most. Nil is none.
type Value []byte

// A Binding says how requests are read into structs of one type. It is made of the struct's tags:
//
//	path:"id"          the field is the {id} of the route
//	query:"limit"      … a query parameter
//	header:"If-Match"  … a header field
//	json:"limit"       … a member of the body, which is then a JSON object
//	body:"event"       … the body itself, a json.RawMessage
//	validate:"min=1"   rules of the validator, for a value that is given; "required" means that it must be; those after "dive" are
//	                   for each element of a list
//	null:"true"        null is a value, too
//
// A json.RawMessage is a JSON object as it was sent, which jsonb can hold as it is. A pointer is nil when the field is not given; a
// pointer to a pointer also tells that from null, which is a pointer to nil.
//
// The fields of an embedded struct with the tag in:"query" or in:"json" have their names as name:"…". The tag require:"event" of an
// embedded struct makes its field of that name required.
type Binding struct {
	Params []Field // of the path, the query and the header
	Body   []Field // the members of the body

	query  []Field // those of Params
	object *Field  // the body itself
	limits Limits
}

// A Field is one field of a request.
type Field struct {
	Name     string
	In       string // path, query, header, json or body
	Index    []int  // as reflect.Value.FieldByIndex takes it
	Rules    string
	Required bool
	Element  *Field  // what each element of a list is, else nil
	Members  []Field // of the struct that it is, else nil

	kind     jsontext.Kind // of the JSON value; 0: any
	wants    string        // what it takes, as in "must be …"
	nullable bool
	isSlice  bool // several lines of a header are one list
}

// A Defaulter is a request, or a part of one, that sets its fields to what they are when not given.
type Defaulter interface{ SetDefaults() }

// A Checker is a request, or a part of one, whose fields depend on each other. Check is called when each by itself is valid, and
// calls report for each that does not fit the others.
type Checker interface {
	Check(report func(field, detail string))
}

// New returns the Binding of Req. It panics on tags that make no sense.
func New[Req any](lim Limits) *Binding {
	b := &Binding{limits: lim}
	b.add(reflect.TypeFor[Req](), nil, "")
	if len(b.Body) > 64 {
		panic("a request has at most 64 fields in its body") // a decoder has a bit for each
	}
	return b
}

// add adds the fields of t, a struct that is embedded with the tag outer.
func (b *Binding) add(t reflect.Type, index []int, outer reflect.StructTag) {
	for i := range t.NumField() {
		sf := t.Field(i)
		at := append(slices.Clone(index), i)
		if sf.Anonymous {
			b.add(sf.Type, at, sf.Tag)
			continue
		}
		f := newField(sf.Type, sf.Tag.Get("validate"))
		f.Name, f.In, f.Index = sf.Tag.Get("name"), outer.Get("in"), at
		for _, place := range []string{"path", "query", "header", "json", "body"} {
			if tag, ok := sf.Tag.Lookup(place); ok {
				f.Name, _, _ = strings.Cut(tag, ",")
				f.In = place
			}
		}
		f.nullable = f.nullable || sf.Tag.Get("null") == "true"
		f.Required = f.Required || f.Name == outer.Get("require")
		switch f.In {
		case "json":
			b.Body = append(b.Body, f)
		case "body":
			b.object = &f
		case "path", "header":
			b.Params = append(b.Params, f)
		case "query":
			b.Params, b.query = append(b.Params, f), append(b.query, f)
		default:
			panic(fmt.Sprintf("%s.%s is nowhere in a request", t, sf.Name))
		}
	}
}

var (
	objectType          = reflect.TypeFor[json.RawMessage]()
	valueType           = reflect.TypeFor[Value]()
	durationType        = reflect.TypeFor[time.Duration]()
	timeType            = reflect.TypeFor[time.Time]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func newField(t reflect.Type, rules string) Field {
	var f Field
	for depth := 1; t.Kind() == reflect.Pointer; depth++ {
		t, f.nullable = t.Elem(), depth == 2
	}
	f.isSlice = t.Kind() == reflect.Slice
	rules, each, _ := strings.Cut(rules, "dive,")
	own := strings.FieldsFunc(rules, func(r rune) bool { return r == ',' })
	f.Required = slices.Contains(own, "required")
	f.Rules = strings.Join(slices.DeleteFunc(own, func(rule string) bool { return rule == "required" }), ",")
	switch kind := t.Kind(); {
	case t == objectType:
		f.kind, f.wants = '{', "a JSON object"
	case t == valueType:
	case t == durationType:
		f.kind, f.wants = '"', `a duration such as "90s" or "10m"`
	case t == timeType:
		f.kind, f.wants = '"', `an RFC 3339 time such as "2026-02-03T04:05:06Z"`
	case kind == reflect.String, reflect.PointerTo(t).Implements(textUnmarshalerType):
		f.kind, f.wants = '"', "a string"
	case kind == reflect.Slice:
		element := newField(t.Elem(), each)
		f.kind, f.wants, f.Element = '[', "an array", &element
	case kind == reflect.Struct:
		members := new(Binding)
		members.add(t, nil, "")
		f.kind, f.wants, f.Members = '{', "a JSON object", members.Body
	case kind == reflect.Bool:
		f.kind, f.wants = 't', "true or false"
	case kind == reflect.Float64:
		f.kind, f.wants = '0', "a number"
	default:
		f.kind, f.wants = '0', "an integer"
	}
	return f
}

// Decode reads r into req, a pointer to the struct that b was made of. It fails with a *problem.Problem, which names every bad
// parameter, or else every bad field of the body.
func (b *Binding) Decode(w http.ResponseWriter, r *http.Request, req any) error {
	if d, ok := req.(Defaulter); ok {
		d.SetDefaults()
	}
	v := reflect.ValueOf(req).Elem()
	if err := b.decodeParams(r, v); err != nil {
		return err
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil // a body has no meaning there
	}
	body, err := readBody(w, r, b.limits.Body)
	if err != nil {
		return err
	}
	return b.decodeBody(body, v)
}

func (b *Binding) decodeParams(r *http.Request, v reflect.Value) error {
	query, err := b.parseQuery(r)
	if err != nil {
		return err
	}
	var bad []problem.FieldError
	for i := range b.Params {
		f := &b.Params[i]
		values, pointer, wrong := query[f.Name], "?"+f.Name, ""
		switch f.In {
		case "path":
			value := r.PathValue(f.Name)
			if r.URL.RawPath != "" { // then chi matches that, and its values are escaped
				value, _ = url.PathUnescape(value) // it was valid when it was parsed
			}
			values, pointer = []string{value}, "{"+f.Name+"}"
		case "header":
			values, pointer = r.Header.Values(f.Name), f.Name
			if len(values) > 1 && f.isSlice { // RFC 9110, section 5.3
				values = []string{strings.Join(values, ", ")}
			}
		}
		switch {
		case len(values) > 1:
			wrong = "must be given once"
		case len(values) == 0 && f.Required:
			wrong = "is required"
		case len(values) == 0:
		case f.kind == '{':
			if err := b.decodeObject(v, f, values[0]); err != nil {
				return err
			}
		default:
			wrong = f.setParam(v.FieldByIndex(f.Index), values[0])
		}
		if wrong != "" {
			bad = append(bad, problem.FieldError{Pointer: pointer, Detail: wrong})
		}
	}
	if c, ok := v.Addr().Interface().(Checker); ok && b.Body == nil && bad == nil {
		c.Check(func(field, detail string) {
			bad = append(bad, problem.FieldError{Pointer: "?" + field, Detail: detail})
		})
	}
	return inFields(problem.InvalidParameter, bad)
}

// parseQuery returns the query of r. An unknown parameter is an error: a misspelt filter must not become none.
func (b *Binding) parseQuery(r *http.Request) (url.Values, error) {
	if r.URL.RawQuery == "" {
		return nil, nil //nolint:nilnil // a nil map is an empty query
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, problem.New(problem.InvalidParameter, "The query string is malformed: "+err.Error()+".")
	}
	var bad []problem.FieldError
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if find(b.query, name) < 0 {
			bad = append(bad, problem.FieldError{Pointer: "?" + clip(name), Detail: "unknown parameter; expected " + oneOf(b.query)})
		}
	}
	return query, inFields(problem.UnknownParameter, bad)
}

// inFields returns the problem with bad fields, or nil when there are none.
func inFields(t problem.Type, bad []problem.FieldError) error {
	if len(bad) == 0 {
		return nil
	}
	return problem.InFields(t, bad...)
}

func find(fields []Field, name string) int {
	for i := range fields { // not slices.IndexFunc, which copies each
		if fields[i].Name == name {
			return i
		}
	}
	return -1
}

// oneOf lists the names of fields for a detail.
func oneOf(fields []Field) string {
	if len(fields) == 0 {
		return "none"
	}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return "one of " + strings.Join(names, ", ")
}
