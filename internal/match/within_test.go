package match_test

import (
	"testing"

	"github.com/queued/queued/internal/match"
)

func TestTopicWithin(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, allowed string
		want             bool
	}{
		{"a", "a", true},
		{"a.b", "a.*", true},
		{"a.*", "a.*", true},
		{"a.*", "a.**", true},
		{"a.**", "a.**", true},
		{"a.b.**", "a.**", true},
		{"**", "**", true},
		{"*.**", "**", true},
		{"a.b", "*.*", true},
		{"*.b", "*.*", true},
		{"a", "**", true},
		{"a", "b", false},
		{"a.**", "a.*", false},
		{"**", "a.**", false},
		{"*", "a", false},
		{"*.b", "a.*", false},
		{"a", "a.**", false},
		{"a.b.c", "a.*", false},
		{"a", "a.*", false},
		{"**", "*.**", false},
		{"**", "*", false},
		{"a.b", "a", false},
		{"", "**", false},
		{"queued", "**", true},
		{"queueds.a", "**", true},
		{"queued.a", "**", false},
		{"queued.**", "**", false},
		{"queued.*", "*.*", false},
		{"queued.a", "*.a", false},
		{"queued.a", "queued.*", true},
		{"queued.**", "queued.**", true},
		{"*.a", "queued.**", false},
		{"", "", false},
		{"ab", "a*", false},
	} {
		if got := match.TopicWithin(c.pattern, c.allowed); got != c.want {
			t.Errorf("%q within %q: %t", c.pattern, c.allowed, got)
		}
	}
}
