package bind

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/queued/queued/internal/http/problem"
)

// decodeParams sets the fields of v that are in the path, the query and the header of r.
func (b *Binding) decodeParams(r *http.Request, v reflect.Value) error {
	query, err := b.parseQuery(r.URL.RawQuery)
	if err != nil {
		return err
	}
	var bad problem.Fields
	for i := range b.Fields {
		f := &b.Fields[i]
		if f.In == "json" || f.In == "body" {
			continue
		}
		place := v.FieldByIndex(f.Index)
		texts, pointer := f.texts(r, query)
		switch {
		case len(texts) == 0 && f.Required:
			bad.Add(pointer, "is required")
		case len(texts) == 0:
			f.setDefault(place)
		case f.Element != nil:
			place.Set(reflect.MakeSlice(place.Type(), len(texts), len(texts)))
			for i, text := range texts {
				bad.Add(pointer, f.Element.setParam(place.Index(i), text))
			}
			bad.Add(pointer, f.violation(place))
		case len(texts) > 1:
			bad.Add(pointer, "must be given once")
		case f.kind == '{':
			if err := f.setObject(place, texts[0], b.limits); err != nil {
				return err
			}
		default:
			bad.Add(pointer, f.setParam(place, texts[0]))
		}
	}
	if c, ok := v.Addr().Interface().(Checker); ok && !b.members && bad == nil {
		c.Check(func(field, detail string) { bad.Add("?"+field, detail) })
	}
	return bad.Err(problem.InvalidParameter)
}

// parseQuery parses a query. An unknown parameter is an error: a misspelt filter must not become none.
func (b *Binding) parseQuery(text string) (url.Values, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // a nil map is an empty query
	}
	query, err := url.ParseQuery(text)
	if err != nil {
		return nil, problem.New(problem.InvalidParameter, "The query string is malformed: "+err.Error()+".")
	}
	var bad problem.Fields
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if find(b.Fields, "query", name) < 0 {
			bad.Add("?"+clip(name), "unknown parameter; expected "+oneOf(b.Fields, "query"))
		}
	}
	return query, bad.Err(problem.UnknownParameter)
}

// texts returns what r has for the parameter f, and the pointer to it.
func (f *Field) texts(r *http.Request, query url.Values) (texts []string, pointer string) {
	switch f.In {
	case "path":
		text := r.PathValue(f.Name)
		if r.URL.RawPath != "" { // then chi matches that, and its values are escaped
			text, _ = url.PathUnescape(text) // it was valid when it was parsed
		}
		return []string{text}, "{" + f.Name + "}"
	case "header":
		texts = r.Header.Values(f.Name)
		if f.joined && len(texts) > 1 {
			texts = []string{strings.Join(texts, ", ")}
		}
		return texts, f.Name
	default:
		return query[f.Name], "?" + f.Name
	}
}

// setParam sets v, the place of f, to text. It returns what is wrong with text, or "".
func (f *Field) setParam(v reflect.Value, text string) string {
	switch {
	case strings.Contains(text, "\x00"):
		return "must not contain a NUL character"
	case !utf8.ValidString(text):
		return "must be valid UTF-8"
	}
	return f.set(v, text, Quote)
}

// setObject sets v, the place of the query parameter f, to text, which must be a JSON object.
func (f *Field) setObject(v reflect.Value, text string, lim Limits) error {
	p, failed := errors.AsType[*problem.Problem](decode([]byte(text), v, f, lim))
	if !failed {
		return nil
	}
	t, detail := p.Type, "must be a JSON object: "+strings.TrimSuffix(p.Detail, ".")
	if len(p.Errors) > 0 {
		detail = p.Errors[0].Detail
	}
	if t == problem.InvalidJSON || t == problem.ValidationFailed {
		t = problem.InvalidParameter
	}
	return problem.InField(t, "?"+f.Name, detail)
}
