package http

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/request"
)

// A precondition is an If-Match: the versions of which the thing must have one, or none for any version there is.
type precondition []int64

// maxVersions bounds how many versions a precondition names.
const maxVersions = 16

// entityTag is one tag of a list, and whether others follow.
var entityTag = regexp.MustCompile(`^[ \t]*(?:W/)?"([^"]*)"[ \t]*(,|$)`)

// UnmarshalText takes a list of entity tags or *. A weak tag counts like a strong one: versions here tell exactly what callers have set. A tag that is
// no version of anything matches nothing, and so does a list of nothing but such tags.
func (p *precondition) UnmarshalText(text []byte) error {
	rest := strings.TrimSpace(string(text))
	if rest == "*" {
		*p = nil
		return nil
	}
	*p = precondition{}
	for more := true; more; {
		tag := entityTag.FindStringSubmatch(rest)
		if tag == nil {
			return errors.New(`must be * or a list of entity tags, each in double quotes as the ETag has it, such as "3"`)
		}
		if n, err := strconv.ParseInt(tag[1], 10, 64); err == nil && strconv.FormatInt(n, 10) == tag[1] {
			*p = append(*p, n)
		}
		if len(*p) > maxVersions {
			return fmt.Errorf("must name at most %d versions", maxVersions)
		}
		rest, more = rest[len(tag[0]):], tag[2] == ","
	}
	return nil
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

// An absence is an If-None-Match of *: there must not be such a thing yet.
type absence struct{}

// UnmarshalText takes *, as a list of versions would say nothing that If-Match does not.
func (*absence) UnmarshalText(text []byte) error {
	if strings.TrimSpace(string(text)) != "*" {
		return fmt.Errorf(`must be *, which is for what does not exist yet, not %s; for a version send If-Match`, bind.Quote(string(text)))
	}
	return nil
}

// An idempotencyKey is a key that makes a call safe to repeat, as a header has it: a structured field's string, in quotes, or the
// same without them.
type idempotencyKey string

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *idempotencyKey) UnmarshalText(text []byte) error {
	plain, isWell := request.IdempotencyKey(string(text))
	if !isWell {
		return fmt.Errorf("must be a string in quotes or without any, not %s", bind.Quote(string(text)))
	}
	if strings.ContainsFunc(plain, func(c rune) bool { return c < ' ' || c > '~' }) {
		return errors.New("must be printable ASCII characters")
	}
	*k = idempotencyKey(plain)
	return nil
}
