package http

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/queued/queued/internal/schedule"
)

// A precondition is an If-Match: the versions of which the thing must have one, or none for any version there is.
type precondition []int64

// maxVersions bounds how many versions a precondition names: each may have to be tried.
const maxVersions = 16

// setText takes a list of entity tags or *. A weak tag counts like a strong one: versions here tell exactly what callers have set. A tag that is
// no version of anything matches nothing, and so does a list of nothing but such tags.
func (p *precondition) setText(text string) string {
	const wrong = ` is neither * nor a list of entity tags such as "3"`
	rest := strings.TrimSpace(text)
	if rest == "*" {
		*p = nil
		return ""
	}
	*p = precondition{}
	for {
		rest = strings.TrimPrefix(strings.TrimLeft(rest, " \t"), "W/")
		if !strings.HasPrefix(rest, `"`) {
			return quote(text) + wrong
		}
		tag, after, closed := strings.Cut(rest[1:], `"`)
		if !closed {
			return quote(text) + wrong
		}
		if n, err := strconv.ParseInt(tag, 10, 64); err == nil && strconv.FormatInt(n, 10) == tag {
			*p = append(*p, n)
		}
		if len(*p) > maxVersions {
			return fmt.Sprintf("names more than %d versions", maxVersions)
		}
		after = strings.TrimLeft(after, " \t")
		if after == "" {
			return ""
		}
		var more bool
		if rest, more = strings.CutPrefix(after, ","); !more {
			return quote(text) + wrong
		}
	}
}

func (*precondition) wanted() string { return "a list of entity tags" }

// isAny reports whether p is *: met by whatever is there.
func (p *precondition) isAny() bool { return p != nil && *p == nil }

// try makes attempt with each version that p names until one is not refused as stale; with nil, which stands for any, when there
// is no precondition, or one that any version meets.
func (p *precondition) try(attempt func(version *int64) error) error {
	if p == nil || p.isAny() {
		return attempt(nil)
	}
	err := schedule.ErrStale
	for _, version := range *p {
		if err = attempt(&version); !errors.Is(err, schedule.ErrStale) {
			break
		}
	}
	return err
}

// entityTag is the ETag of a version.
func entityTag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }
