package bind

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// restrictions has each kind of the tag restrict, with the options that it takes.
var restrictions = map[string][]string{
	"queue":          {"any", "default", "unless="},
	"topic":          {"optional"},
	"topics":         {"narrow", "own"},
	"filters":        nil,
	"event":          nil,
	"schedule":       nil,
	"source":         {"new"},
	"subscription":   {"new", "publish"},
	"position":       nil,
	"statement":      nil,
	"method":         nil,
	"-":              nil,
	"allowed_queues": nil,
	"allowed_topics": nil,
}

// restrictedTypes has the type of the fields with each kind of the tag; other kinds are for fields of any type.
var restrictedTypes = map[string]reflect.Kind{
	"queue": reflect.String, "topic": reflect.String, "source": reflect.String, "subscription": reflect.String,
	"topics": reflect.Slice, "filters": reflect.Slice, "allowed_queues": reflect.Slice, "allowed_topics": reflect.Slice,
	"event": reflect.Int64, "schedule": reflect.Int64, "position": reflect.Int64,
}

// A Restriction is the tag restrict of a field: which queue, topic or other thing the field names, for callers that may use only some. Package http
// says what each kind means.
type Restriction struct {
	Kind    string // empty: the field has no such tag
	Options []string

	unless []int // the index of the field that stands for this one when it is given; nil: none
}

// Has reports whether the tag has an option.
func (r *Restriction) Has(option string) bool { return slices.Contains(r.Options, option) }

// parseRestriction returns what the tag restrict of a field of the struct t, which is at index, says. It panics on a tag that is not known, or that is not for
// the type of the field.
func parseRestriction(t reflect.Type, index []int, sf *reflect.StructField) (r Restriction) {
	tag, ok := sf.Tag.Lookup("restrict")
	if !ok {
		return r
	}
	kind, rest, _ := strings.Cut(tag, ",")
	known, ok := restrictions[kind]
	if !ok {
		panic(fmt.Sprintf("%s has the unknown tag restrict:%q", t, tag))
	}
	if want := restrictedTypes[kind]; want != reflect.Invalid && sf.Type.Kind() != want && (sf.Type.Kind() != reflect.Pointer || sf.Type.Elem().Kind() != want) {
		panic(fmt.Sprintf("%s.%s must be of the kind %s for the tag restrict:%q", t, sf.Name, want, tag))
	}
	r.Kind = kind
	if rest == "" {
		return r
	}
	r.Options = strings.Split(rest, ",")
	for _, option := range r.Options {
		name, isUnless := strings.CutPrefix(option, "unless=")
		if !slices.Contains(known, option) && (!isUnless || !slices.Contains(known, "unless=")) {
			panic(fmt.Sprintf("%s has the unknown option %s in the tag restrict:%q", t, option, tag))
		}
		if isUnless {
			other, ok := t.FieldByName(name)
			if !ok || len(other.Index) != 1 || !strings.HasPrefix(other.Tag.Get("restrict"), "topic") {
				panic(fmt.Sprintf("%s has no field %s with a tag restrict of its own", t, name))
			}
			r.unless = append(slices.Clone(index), other.Index...)
		}
	}
	return r
}

// overrideRestrictions has the tag of a struct count instead of the tags of its fields. It panics on a tag that is for a single field.
func overrideRestrictions(fields []Field, by Restriction) {
	if !slices.Contains([]string{"statement", "method", "-"}, by.Kind) {
		panic("the tag restrict:" + strconv.Quote(by.Kind) + " is not for a struct")
	}
	for i := range fields {
		f := &fields[i]
		if f.Restrict.Kind != "" {
			f.Restrict = by
		}
		overrideRestrictions(f.Members, by)
		if f.Element != nil {
			overrideRestrictions(f.Element.Members, by)
		}
	}
}

// markRestricted notes for each field whether it, or any within it, has the tag restrict, and reports whether one says what is used.
func markRestricted(fields []Field) (isDeclared bool) {
	for i := range fields {
		f := &fields[i]
		members := f.Members
		if f.Element != nil {
			members = f.Element.Members
		}
		if f.Restrict.Kind != "" && f.Restrict.Kind != "filters" && members != nil {
			overrideRestrictions(members, f.Restrict)
		}
		within := markRestricted(members)
		isOwn := f.Restrict.Kind != "" && f.Restrict.Kind != "-"
		f.hasRestrictions = isOwn || within
		isDeclared = isDeclared || isOwn || within
	}
	return isDeclared
}

// IsText reports whether the field is a string, or a list of them.
func (f *Field) IsText() bool {
	if f.Element != nil {
		return f.Element.IsText()
	}
	return f.kind == '"' && f.isString
}

// A Use is a field of a request with the tag restrict.
type Use struct {
	*Restriction
	Value reflect.Value

	at    string
	field *Field
}

// Pointer says where the field is, as problems do.
func (u *Use) Pointer() string {
	if u.field.In == "json" {
		return u.at + "/" + u.field.Name
	}
	return u.field.pointer
}

// Text returns the string that the field is or points to; empty when it is not given.
func (u *Use) Text() string {
	if v := reflect.Indirect(u.Value); v.IsValid() {
		return v.String()
	}
	return ""
}

// IsRestrictable reports whether the tags of the request say what it uses.
func (b *Binding) IsRestrictable() bool { return b.isRestrictable }

// Tags calls visit for each tag restrict within the request.
func (b *Binding) Tags(visit func(r *Restriction)) {
	visitTags(b.Fields, visit)
	visitTags(b.allowed, visit)
}

func visitTags(fields []Field, visit func(r *Restriction)) {
	for i := range fields {
		if r := &fields[i].Restrict; r.Kind != "" {
			visit(r)
		}
		visitTags(fields[i].Members, visit)
		if element := fields[i].Element; element != nil {
			visitTags(element.Members, visit)
		}
	}
}

// Uses calls visit for each field of req, which was decoded, that has the tag restrict, those of each element of a list among them, in the order of the
// fields. It ends with the first error.
func (b *Binding) Uses(req any, visit func(u *Use) error) error {
	v := reflect.ValueOf(req).Elem()
	var u Use
	if err := visitUses(v, b.Fields, "#", &u, visit); err != nil {
		return err
	}
	return visitUses(v, b.allowed, "#", &u, visit)
}

// visitUses visits the fields of the struct v, which is at a JSON pointer. It sets u for each.
func visitUses(v reflect.Value, fields []Field, at string, u *Use, visit func(*Use) error) error {
	for i := range fields {
		f := &fields[i]
		if !f.hasRestrictions {
			continue
		}
		place := v.FieldByIndex(f.Index)
		if r := &f.Restrict; r.Kind != "" && (r.unless == nil || v.FieldByIndex(r.unless).IsZero()) {
			*u = Use{r, place, at, f}
			if err := visit(u); err != nil {
				return err
			}
		}
		for place.Kind() == reflect.Pointer && !place.IsNil() {
			place = place.Elem()
		}
		switch {
		case place.Kind() == reflect.Struct && f.Members != nil:
			if err := visitUses(place, f.Members, at+"/"+f.Name, u, visit); err != nil {
				return err
			}
		case place.Kind() == reflect.Slice && f.Element != nil && f.Element.Members != nil:
			for n := range place.Len() {
				if err := visitUses(place.Index(n), f.Element.Members, at+"/"+f.Name+"/"+strconv.Itoa(n), u, visit); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
