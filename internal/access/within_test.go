package access

import (
	"testing"

	"github.com/queued/queued/internal/pgtest"
)

// TestPatternsMeanTheSameInSQL compares what Go and SQL take for allowed.
func TestPatternsMeanTheSameInSQL(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.New(t).URL)
	words := []string{"a", "queued", "*"}
	topics := []string{"**"}
	for _, first := range words {
		topics = append(topics, first, first+".**")
		for _, second := range words {
			topics = append(topics, first+"."+second, first+"."+second+".**", first+"."+second+".a-1")
		}
	}
	for _, pattern := range topics {
		for _, allowed := range topics {
			g := &Grant{queues: []string{}, topics: []string{"x", allowed}}
			if got := pgtest.Query[bool](t, conn, `select agent_private.are_topics_allowed(array[$1], $2)`, pattern, g.topics); got != g.AllowsTopics([]string{pattern}) {
				t.Errorf("%q within %q: SQL says %t", pattern, allowed, got)
			}
		}
	}
	for _, allowed := range [][]string{{"a"}, {"a*"}, {"a.*"}, {"*"}, {}, {"queue*"}, {"b", "a.b"}} {
		for _, name := range []string{"a", "ab", "a.b", "b", "queued.publish", "queue", "A"} {
			g := &Grant{queues: allowed, topics: []string{}}
			if got := pgtest.Query[bool](t, conn, `select agent_private.is_queue_allowed($1, $2)`, name, allowed); got != g.AllowsQueue(name) {
				t.Errorf("%q of %q: SQL says %t", name, allowed, got)
			}
		}
	}
}
