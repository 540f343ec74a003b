package http

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// decodeURL sets the fields of v that are in the path and in the query.
func (p *plan) decodeURL(r *http.Request, lim limits, v reflect.Value) error {
	query, err := parseQuery(r, p.query)
	if err != nil {
		return err
	}
	var bad []fieldError
	for _, f := range p.path {
		text := r.PathValue(f.name)
		if plain, err := url.PathUnescape(text); err == nil && r.URL.RawPath != "" { // the router then matched the path as it was sent
			text = plain
		}
		if wrong := setChecked(&f, v.FieldByIndex(f.index), text); wrong != "" {
			bad = append(bad, fieldError{"{" + f.name + "}", wrong})
		}
	}
	for _, f := range p.query {
		switch values := query[f.name]; {
		case len(values) > 1:
			bad = append(bad, fieldError{"?" + f.name, "is given more than once"})
		case len(values) == 1:
			target := v.FieldByIndex(f.index)
			if target.Type() == payloadType {
				if err := setPayload(target, values[0], lim); err != nil {
					return inParameter(err, f.name)
				}
			} else if wrong := setChecked(&f, target, values[0]); wrong != "" {
				bad = append(bad, fieldError{"?" + f.name, wrong})
			}
		case f.required:
			bad = append(bad, fieldError{"?" + f.name, "is required"})
		}
	}
	if c, ok := v.Addr().Interface().(checked); ok && len(bad) == 0 && len(p.query) > 0 {
		c.check(func(field, detail string) { bad = append(bad, fieldError{"?" + field, detail}) })
	}
	if len(bad) > 0 {
		return inFields(invalidParameter, bad...)
	}
	return nil
}

// parseQuery refuses parameters that are not known: a misspelt filter must not become none.
func parseQuery(r *http.Request, known []field) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &problem{kind: invalidParameter, detail: "The query string is malformed: " + err.Error() + "."}
	}
	var bad []fieldError
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if indexOf(known, name) < 0 {
			bad = append(bad, fieldError{"?" + clip(name), "is no parameter here; known are " + names(known)})
		}
	}
	if len(bad) > 0 {
		return nil, inFields(unknownParameter, bad...)
	}
	return query, nil
}

// setChecked sets v, the place of f, to text. It returns what is wrong with that, or "".
func setChecked(f *field, v reflect.Value, text string) string {
	if strings.Contains(text, "\x00") {
		return "holds a NUL character"
	}
	if !utf8.ValidString(text) {
		return "is not valid UTF-8"
	}
	if wrong := setText(v, text); wrong != "" {
		return wrong
	}
	return f.breaks(v)
}

// setPayload sets v to text, which must be a JSON object like an event.
func setPayload(v reflect.Value, text string, lim limits) error {
	d := newDecoder([]byte(text), lim)
	defer d.free()
	if err := d.event(v); err != nil {
		return err
	}
	return d.end()
}

// inParameter says of a problem with JSON that it is one with the parameter that holds it.
func inParameter(err error, name string) error {
	var p *problem
	if !errors.As(err, &p) {
		return err
	}
	detail := p.detail
	if len(p.errors) > 0 {
		detail = p.errors[0].Detail
	}
	switch p.kind {
	case invalidJSON:
		return inFields(invalidParameter, fieldError{"?" + name, "is not valid JSON: " + strings.TrimSuffix(detail, ".")})
	case validationFailed:
		return inFields(invalidParameter, fieldError{"?" + name, detail})
	default:
		return inFields(p.kind, fieldError{"?" + name, detail})
	}
}
