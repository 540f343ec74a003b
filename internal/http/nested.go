package http

import (
	"fmt"
	"reflect"
	"strings"
)

// maxElements bounds every list of plain values.
const maxElements = 1000

// nest notes what is inside of a field of type t: the members of a struct, or the elements of a list of plain values, for which
// the rules after "dive" are.
func (f *field) nest(t reflect.Type) {
	switch inner := indirect(t); {
	case isText(t), f.changing:
	case inner.Kind() == reflect.Struct:
		members := new(plan)
		members.add(inner, nil, "")
		f.members = members.json
	case t.Kind() == reflect.Slice && (t.Elem().Kind() == reflect.String || t.Elem().Kind() == reflect.Int64):
		list, each, _ := strings.Cut(f.rules, "dive,")
		f.rules = strings.TrimSuffix(list, ",")
		f.element = &field{rules: each, text: isText(t.Elem())}
	}
}

// nested reads an object into v, a struct or a pointer to one.
func (d *decoder) nested(v reflect.Value, f *field) error {
	if d.json.PeekKind() == 'n' && f.nullable {
		if _, err := d.json.ReadToken(); err != nil {
			return d.broken(err)
		}
		v.SetZero()
		return nil
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	initialize(v, f.members)
	return d.object(v, f.members, "")
}

// elements reads an array of plain values into the slice v.
func (d *decoder) elements(v reflect.Value, f *field) error {
	if ok, err := d.opens('[', "", "an array"); !ok {
		return err
	}
	at := d.pointer()
	for n := 0; d.json.PeekKind() != ']'; n++ {
		if n == maxElements {
			return inFields(validationFailed, fieldError{at, fmt.Sprintf("must be at most %d elements long", n)})
		}
		v.Grow(1)
		v.SetLen(n + 1)
		if err := d.value(v.Index(n), f.element); err != nil {
			return err
		}
	}
	if _, err := d.json.ReadToken(); err != nil {
		return d.broken(err)
	}
	d.judge(v, f)
	return nil
}
