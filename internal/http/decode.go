package http

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"sync"

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

// readers are decoders of tokens that nobody uses just now: a new one takes more memory than most bodies.
var readers = sync.Pool{New: func() any { return new(jsontext.Decoder) }}

func newDecoder(body []byte, lim limits) *decoder {
	d := &decoder{
		body:   body,
		limits: lim,
		json:   readers.Get().(*jsontext.Decoder),
		spare:  lim.body - int64(len(body)),
	}
	d.json.Reset(bytes.NewBuffer(body))
	return d
}

// free gives back what others can use. What was decoded stays.
func (d *decoder) free() {
	d.json.Reset(nothingMore)
	readers.Put(d.json)
}

// nothingMore keeps a decoder that is not in use from holding on to a body.
var nothingMore = strings.NewReader("")

// decodeEvent sets v to body, which must be an event.
func decodeEvent(body []byte, lim limits, v reflect.Value) error {
	if body == nil {
		return &problem{kind: invalidJSON, detail: "The body is empty: it must be the event, a JSON object."}
	}
	d := newDecoder(body, lim)
	defer d.free()
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
	defer d.free()
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
	for i := range fields {
		if f := &fields[i]; f.required && !given[i] {
			d.reject(join(d.pointer(), f.name), "is required")
		}
	}
	if c, ok := v.Addr().Interface().(checked); ok && len(d.bad) == before {
		c.check(func(field, detail string) { d.reject(join(d.pointer(), field), detail) })
	}
	return nil
}

// list reads an array into v, a slice of structs.
func (d *decoder) list(v reflect.Value, f *field) error {
	if ok, err := d.opens('[', "", "an array"); !ok {
		return err
	}
	at := d.pointer()
	start := d.json.InputOffset()
	for n := 0; ; n++ {
		if d.json.PeekKind() == ']' {
			break
		}
		if n == d.limits.items {
			return inFields(batchTooLarge, fieldError{at, fmt.Sprintf("must have at most %d elements", n)})
		}
		if n == 1 { // the others may be like the first
			left := int64(len(d.body)) - d.json.InputOffset()
			v.Grow(min(d.limits.items, 1+int(left/(d.json.InputOffset()-start))))
		}
		v.Grow(1)
		v.SetLen(n + 1)
		item := v.Index(n)
		initialize(item, f.items)
		if err := d.object(item, f.items, ""); err != nil {
			return err
		}
	}
	if _, err := d.json.ReadToken(); err != nil {
		return d.broken(err)
	}
	d.judge(v, f)
	return nil
}

// value reads the next value into v, the place of f.
func (d *decoder) value(v reflect.Value, f *field) error {
	if f.changing {
		v = v.Addr().Interface().(changing).place()
	}
	switch {
	case f.items != nil:
		return d.list(v, f)
	case v.Type() == payloadType:
		return d.event(v)
	case v.Type() == resultType:
		return d.result(v)
	case f.element != nil:
		return d.elements(v, f)
	case f.members != nil:
		return d.nested(v, f)
	}
	switch d.json.PeekKind() {
	case '{', '[':
		if err := d.json.SkipValue(); err != nil {
			return d.broken(err)
		}
		d.reject(d.pointer(), "must be "+wanted(v.Type()))
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
	wrong := ""
	switch kind := token.Kind(); {
	case kind == 'n' && f.nullable:
		v.SetZero()
		return nil
	case kind == '"' && f.text:
		text := token.String()
		if strings.Contains(text, "\x00") {
			return d.unfit(unrepresentable, `holds \u0000, which PostgreSQL's text cannot`)
		}
		wrong = setText(target, text)
	case kind == '0' && target.CanInt() && !f.text:
		wrong = setInt(target, token.String())
	case kind == '0' && target.Kind() == reflect.Float64:
		n, _ := token.Float() // infinite when it is too large, which its rules refuse
		target.SetFloat(n)
	case (kind == 't' || kind == 'f') && target.Kind() == reflect.Bool:
		target.SetBool(token.Bool())
	default:
		sent := bytes.TrimLeft(d.body[start:d.json.InputOffset()], blanks+":,")
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

func indexOf(fields []field, name string) int {
	for i := range fields {
		if fields[i].name == name {
			return i
		}
	}
	return -1
}
