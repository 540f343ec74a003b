package http

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// What is wrong with a body, in words for the caller, and where.

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
	t = indirect(t)
	if isTextual(t) {
		return reflect.New(t).Interface().(textual).wanted()
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
	case t.Kind() == reflect.Float64:
		return "a number"
	default:
		return "an integer"
	}
}
