package http

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// A decoder reads one body. Faults of the JSON itself end it; fields that do not fit are
// gathered, so that a client hears of all of them at once.
type decoder struct {
	body   []byte
	limits limits
	json   *jsontext.Decoder // strict: no duplicate names, no invalid UTF-8
	spare  int64             // bytes by which the numbers of the body may still grow in the database
	bad    []fieldError
}

func newDecoder(body []byte, lim limits) *decoder {
	return &decoder{
		body:   body,
		limits: lim,
		json:   jsontext.NewDecoder(bytes.NewBuffer(body)),
		spare:  lim.body - int64(len(body)),
	}
}

// decodeEvent sets v to body, which must be an event.
func decodeEvent(body []byte, lim limits, v reflect.Value) error {
	if body == nil {
		return &problem{kind: invalidJSON, detail: "The body is empty: it must be the event, a JSON object."}
	}
	d := newDecoder(body, lim)
	if err := d.event(v); err != nil {
		return err
	}
	return d.end()
}

// decodeObject sets the fields of the struct v from body, a JSON object. An empty body is an
// object without members.
func decodeObject(body []byte, lim limits, v reflect.Value, fields []field) error {
	if body == nil {
		for _, f := range fields {
			if f.required {
				return &problem{kind: invalidJSON, detail: "The body is empty: it must be a JSON object with " + names(fields) + "."}
			}
		}
		body = []byte("{}")
	}
	d := newDecoder(body, lim)
	if err := d.object(v, fields, "the body"); err != nil {
		return err
	}
	return d.end()
}

const blanks = " \t\r\n"

// end makes sure that nothing follows, and reports the fields that did not fit.
func (d *decoder) end() error {
	at := len(d.body) - len(bytes.TrimLeft(d.body[d.json.InputOffset():], blanks))
	if at < len(d.body) {
		return &problem{kind: invalidJSON, detail: fmt.Sprintf("There must be one JSON value: more follows at byte %d.", at)}
	}
	if len(d.bad) > 0 {
		return inFields(validationFailed, d.bad...)
	}
	return nil
}

// object reads an object into the struct v.
func (d *decoder) object(v reflect.Value, fields []field, what string) error {
	if ok, err := d.opens('{', what, "a JSON object"); !ok {
		return err
	}
	given := make([]bool, len(fields))
	before := len(d.bad)
	at := d.pointer()
	for {
		token, err := d.json.ReadToken()
		if err != nil {
			return d.broken(err)
		}
		if token.Kind() == '}' {
			break
		}
		i := indexOf(fields, token.String())
		if i < 0 {
			d.reject(d.pointer(), "is no field here; known are "+names(fields))
			if err := d.json.SkipValue(); err != nil {
				return d.broken(err)
			}
			continue
		}
		given[i] = true
		if err := d.value(v.FieldByIndex(fields[i].index), &fields[i]); err != nil {
			return err
		}
	}
	for i, f := range fields {
		if f.required && !given[i] {
			d.reject(join(at, f.name), "is required")
		}
	}
	if c, ok := v.Addr().Interface().(checked); ok && len(d.bad) == before {
		c.check(func(field, detail string) { d.reject(join(at, field), detail) })
	}
	return nil
}

// list reads an array into v, a slice of structs.
func (d *decoder) list(v reflect.Value, f *field) error {
	if ok, err := d.opens('[', "", "an array"); !ok {
		return err
	}
	at := d.pointer()
	for n := 0; ; n++ {
		if d.json.PeekKind() == ']' {
			break
		}
		if n == d.limits.items {
			return inFields(batchTooLarge, fieldError{at, fmt.Sprintf("must have at most %d elements", n)})
		}
		item := reflect.New(v.Type().Elem()).Elem()
		initialize(item, f.items)
		if err := d.object(item, f.items, ""); err != nil {
			return err
		}
		v.Set(reflect.Append(v, item))
	}
	if _, err := d.json.ReadToken(); err != nil {
		return d.broken(err)
	}
	d.judge(v, f)
	return nil
}

// value reads the next value into v, the place of f.
func (d *decoder) value(v reflect.Value, f *field) error {
	switch {
	case f.items != nil:
		return d.list(v, f)
	case v.Type() == payloadType:
		return d.event(v)
	}
	switch d.json.PeekKind() {
	case '{', '[':
		d.reject(d.pointer(), "must be "+wanted(v.Type()))
		if err := d.json.SkipValue(); err != nil {
			return d.broken(err)
		}
		return nil
	}
	start := d.json.InputOffset()
	token, err := d.json.ReadToken()
	if err != nil {
		return d.broken(err)
	}
	target := v
	if v.Kind() == reflect.Pointer && token.Kind() != 'n' {
		v.Set(reflect.New(v.Type().Elem()))
		target = v.Elem()
	}
	isText := target.Kind() == reflect.String || target.Type() == durationType || target.Type() == timeType
	wrong := ""
	switch kind := token.Kind(); {
	case kind == 'n' && f.nullable:
		v.SetZero()
		return nil
	case kind == '"' && isText:
		text := token.String()
		if strings.Contains(text, "\x00") {
			return d.unfit(unrepresentable, `holds \u0000, which PostgreSQL's text cannot`)
		}
		wrong = setText(target, text)
	case kind == '0' && target.CanInt() && !isText:
		wrong = setInt(target, token.String())
	case (kind == 't' || kind == 'f') && target.Kind() == reflect.Bool:
		target.SetBool(token.Bool())
	default:
		sent := bytes.TrimLeft(d.body[start:d.json.InputOffset()], blanks+":")
		wrong = "must be " + wanted(target.Type()) + ", not " + clip(string(sent))
	}
	if wrong != "" {
		d.reject(d.pointer(), wrong)
		return nil
	}
	d.judge(v, f)
	return nil
}

// opens reads the token that opens an object or array. When something else comes, which is
// then skipped, it reports false.
func (d *decoder) opens(kind jsontext.Kind, what, want string) (bool, error) {
	if next := d.json.PeekKind(); next != kind {
		if next != '}' && next != ']' { // else the syntax is broken, as reading shows
			err := d.json.SkipValue()
			if err == nil {
				d.reject(d.pointer(), strings.TrimLeft(what+" must be "+want, " "))
				return false, nil
			}
			return false, d.broken(err)
		}
	}
	if _, err := d.json.ReadToken(); err != nil {
		return false, d.broken(err)
	}
	return true, nil
}

// judge holds the value v of f against its rules.
func (d *decoder) judge(v reflect.Value, f *field) {
	if wrong := f.breaks(v); wrong != "" {
		d.reject(d.pointer(), wrong)
	}
}

func (d *decoder) reject(pointer, detail string) {
	if len(d.bad) < maxFieldErrors {
		d.bad = append(d.bad, fieldError{pointer, detail})
	}
}

// unfit is the problem with the value read last that ends the decoding.
func (d *decoder) unfit(k kind, detail string) error {
	return inFields(k, fieldError{d.pointer(), detail})
}

// broken is the problem with JSON that err found.
func (d *decoder) broken(err error) error {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) { // the input is all in memory: it can only have ended
		return &problem{kind: invalidJSON, detail: "The JSON ends in the middle."}
	}
	at := fragment(syntax.JSONPointer)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &problem{kind: invalidJSON, detail: "The JSON ends in the middle."}
	case isEscape(d.body[syntax.ByteOffset:]):
		return inFields(unrepresentable, fieldError{at, "holds a lone surrogate, which no UTF-8 text can"})
	case errors.Is(err, jsontext.ErrDuplicateName):
		return inFields(invalidJSON, fieldError{at, "appears twice in its object"})
	default:
		return &problem{kind: invalidJSON, detail: fmt.Sprintf("At byte %d: %s.", syntax.ByteOffset, syntax.Err)}
	}
}

// isEscape reports whether b begins with a well-formed \u escape. The JSON decoder objects to
// one of those only when it is half of a surrogate pair.
func isEscape(b []byte) bool {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return false
	}
	return strings.Trim(string(b[2:6]), "0123456789abcdefABCDEF") == ""
}

// pointer says where the value or name is that was read last.
func (d *decoder) pointer() string { return fragment(d.json.StackPointer()) }

// maxPointer bounds the pointers in a problem: names are the caller's, and may be long.
const maxPointer = 256

// fragment writes a JSON pointer as the fragment of a URI (RFC 6901, section 6).
func fragment(p jsontext.Pointer) string {
	if len(p) > maxPointer {
		p = jsontext.Pointer(strings.ToValidUTF8(string(p[:maxPointer]), "") + "…")
	}
	return "#" + (&url.URL{Fragment: string(p)}).EscapedFragment()
}

func join(pointer, name string) string {
	if name == "" {
		return pointer
	}
	return pointer + "/" + name
}

func indexOf(fields []field, name string) int {
	for i := range fields {
		if fields[i].name == name {
			return i
		}
	}
	return -1
}

// names lists what a call takes.
func names(fields []field) string {
	if len(fields) == 0 {
		return "none"
	}
	var all []string
	for _, f := range fields {
		all = append(all, f.name)
	}
	return strings.Join(all, ", ")
}

// wanted names a type in words for the caller.
func wanted(t reflect.Type) string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == durationType:
		return `a duration in a string, such as "90s" or "10m"`
	case t == timeType:
		return `a time in a string, such as "2026-02-03T04:05:06Z"`
	case t.Kind() == reflect.String:
		return "a string"
	case t.Kind() == reflect.Bool:
		return "true or false"
	default:
		return "an integer"
	}
}
