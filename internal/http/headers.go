package http

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/queued/queued/internal/http/bind"
)

// A precondition is an If-Match: the versions of which the thing must have one, or none for any version there is.
type precondition []int64

// maxVersions bounds how many versions a precondition names.
const maxVersions = 16

// UnmarshalText takes a list of entity tags or *. A weak tag counts like a strong one: versions here tell exactly what callers have set. A tag that is
// no version of anything matches nothing, and so does a list of nothing but such tags.
func (p *precondition) UnmarshalText(text []byte) error {
	wrong := fmt.Errorf(`must be * or a list of entity tags such as "3", not %s`, bind.Quote(string(text)))
	rest := strings.TrimSpace(string(text))
	if rest == "*" {
		*p = nil
		return nil
	}
	*p = precondition{}
	for {
		rest = strings.TrimPrefix(strings.TrimLeft(rest, " \t"), "W/")
		if !strings.HasPrefix(rest, `"`) {
			return wrong
		}
		tag, after, closed := strings.Cut(rest[1:], `"`)
		if !closed {
			return wrong
		}
		if n, err := strconv.ParseInt(tag, 10, 64); err == nil && strconv.FormatInt(n, 10) == tag {
			*p = append(*p, n)
		}
		if len(*p) > maxVersions {
			return fmt.Errorf("must name at most %d versions", maxVersions)
		}
		after = strings.TrimLeft(after, " \t")
		if after == "" {
			return nil
		}
		var more bool
		if rest, more = strings.CutPrefix(after, ","); !more {
			return wrong
		}
	}
}

// isAny reports whether p is *, which any version meets.
func (p *precondition) isAny() bool { return p != nil && *p == nil }

// versions returns those that p names; nil: any, or there is no precondition.
func (p *precondition) versions() []int64 {
	if p == nil {
		return nil
	}
	return *p
}

// An idempotencyKey is a key that makes a call safe to repeat, as a header has it: a structured field's string, in quotes, or the
// same without them.
type idempotencyKey string

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *idempotencyKey) UnmarshalText(text []byte) error {
	plain := strings.TrimSpace(string(text))
	if strings.HasPrefix(plain, `"`) {
		var ok bool
		if plain, ok = unquote(plain); !ok {
			return fmt.Errorf("must be a string in quotes or without any, not %s", bind.Quote(string(text)))
		}
	}
	for _, c := range []byte(plain) {
		if c < ' ' || c > '~' {
			return errors.New("must be printable ASCII characters")
		}
	}
	*k = idempotencyKey(plain)
	return nil
}

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
