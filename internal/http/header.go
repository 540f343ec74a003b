package http

import (
	"net/http"
	"reflect"
	"strings"
)

// decodeHeader sets the fields of v that are in the header.
func (p *plan) decodeHeader(h http.Header, v reflect.Value) error {
	var bad []fieldError
	for _, f := range p.header {
		target := v.FieldByIndex(f.index)
		lines := h.Values(f.name)
		if len(lines) > 1 && f.isList { // RFC 9110, section 5.3
			lines = []string{strings.Join(lines, ", ")}
		}
		wrong := ""
		switch {
		case len(lines) > 1:
			wrong = "is given more than once"
		case len(lines) == 1:
			wrong = setChecked(&f, target, lines[0])
		case f.required:
			wrong = "is required"
		}
		if wrong != "" {
			bad = append(bad, fieldError{f.name, wrong})
		}
	}
	if len(bad) > 0 {
		return inFields(invalidParameter, bad...)
	}
	return nil
}

// An idempotencyKey is a key that makes a call safe to repeat, as a header has it: a structured field's string, in quotes, or the
// same without them.
type idempotencyKey string

func (k *idempotencyKey) setText(text string) string {
	plain := strings.TrimSpace(text)
	if strings.HasPrefix(plain, `"`) {
		var ok bool
		if plain, ok = unquote(plain); !ok {
			return quote(text) + " begins with a quote but is no quoted string"
		}
	}
	for _, c := range []byte(plain) {
		if c < ' ' || c > '~' {
			return "must be of printable ASCII characters"
		}
	}
	*k = idempotencyKey(plain)
	return ""
}

func (*idempotencyKey) wanted() string { return "a string" }

// unquote reads a string of RFC 8941, section 3.3.3.
func unquote(text string) (plain string, ok bool) {
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return b.String(), i == len(text)-1
		case c != '\\':
			b.WriteByte(c)
		case i+1 < len(text) && (text[i+1] == '"' || text[i+1] == '\\'):
			i++
			b.WriteByte(text[i])
		default:
			return "", false
		}
	}
	return "", false
}
