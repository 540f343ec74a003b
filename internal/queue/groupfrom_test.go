package queue_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func TestAPointerFindsTheGroupOfAPayload(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	long := strings.Repeat("é", 128)
	for _, c := range []struct{ event, pointer, want string }{
		{`{"tenant": "a"}`, "/tenant", "a"},
		{`{"tenant": 7}`, "/tenant", "7"},
		{`{"tenant": 7.50}`, "/tenant", "7.5"}, // as the same number written otherwise
		{`{"tenant": 75e-1}`, "/tenant", "7.5"},
		{`{"tenant": false}`, "/tenant", "false"},
		{`{"tenant": {"id": "a"}}`, "/tenant/id", "a"},
		{`{"items": [{"id": "x"}, {"id": "y"}]}`, "/items/1/id", "y"},
		{`{"a/b": {"c~d": "e"}}`, "/a~1b/c~0d", "e"},
		{`{"~1": "e"}`, "/~01", "e"},
		{`{"": {"": "e"}}`, "//", "e"},
		{`{"01": "e"}`, "/01", "e"},
		{`{"tenant": "` + long[2:] + `"}`, "/tenant", long[2:]},
		{`{"tenant": "` + long + `"}`, "/tenant", ""},
		{`{"tenant": ""}`, "/tenant", ""},
		{`{"tenant": null}`, "/tenant", ""},
		{`{"tenant": {"id": "a"}}`, "/tenant", ""},
		{`{"tenant": ["a"]}`, "/tenant", ""},
		{`{"tenant": "a"}`, "/tenant/id", ""},
		{`{}`, "/tenant", ""},
		{`{"items": ["x", "y"]}`, "/items/-1", ""}, // neither is an index of RFC 6901
		{`{"items": ["x", "y"]}`, "/items/01", ""},
		{`{"items": ["x", "y"]}`, "/items/2", ""},
		{`{"tenant": 1e131000}`, "/tenant", ""},
	} {
		if got := pgtest.Query[string](t, b.sql, `select coalesce(agent_private.group_at($1::text::jsonb, $2), '')`, c.event, c.pointer); got != c.want {
			t.Errorf("%s has the group %q at %s, want %q", c.event, got, c.pointer, c.want)
		}
	}
}

func TestAPolicyGivesAGroupToEventsThatComeWithoutOne(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	runService(t, b.Service)
	if _, err := b.PutPolicy(t.Context(), queue.Policy{Queue: "q", GroupFrom: new("/tenant"), Flow: &queue.Flow{Concurrency: new(1)}}, queue.Precondition{}); err != nil {
		t.Fatal(err)
	}
	tenant := func(p queue.InsertParams) queue.InsertParams {
		p.Event, p.Queue = json.RawMessage(`{"tenant": "a"}`), "q"
		return p
	}
	// A claim that waits gets the first one as it is inserted, and no more: not of those with a key either.
	for _, insert := range [][]queue.InsertParams{
		{tenant(queue.InsertParams{}), tenant(queue.InsertParams{}), tenant(queue.InsertParams{Type: "t"})},
		{tenant(queue.InsertParams{IdempotencyKey: "k1"}), tenant(queue.InsertParams{IdempotencyKey: "k2"}), tenant(queue.InsertParams{})},
	} {
		got := make(chan []queue.Event, 1)
		go func() {
			events, _ := b.Claim(t.Context(), queue.ClaimParams{Queue: "q", Limit: 5, Wait: time.Minute})
			got <- events
		}()
		eventually(t, "the claim waits", func() bool { return queue.Offers(b.Service, "q") })
		b.insertEvents(t, insert...)
		events := <-got
		if len(events) != 1 || events[0].Group != "a" {
			t.Fatalf("claimed %+v", events)
		}
		b.wantClaimed(t, "q", "while the slot is taken")
		for id := events[0].ID; id != 0; {
			b.exec(t, `select agent.delete_event($1)`, id)
			var next []int64
			eventually(t, "the next one is claimed", func() bool { // the service may have the group locked for a moment
				next = b.claimSQL(t, "q")
				return len(next) > 0 || pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue = 'q'`) == 0
			})
			if len(next) > 1 {
				t.Fatalf("%d were claimed at once", len(next))
			}
			id = 0
			if len(next) == 1 {
				id = next[0]
			}
		}
	}

	// The group that an event says itself counts, and the request under a key is the same whatever the policy says.
	b.exec(t, `select agent.insert_event('{"tenant": "a"}', 'q', _group => 'own'), agent.insert_event('{"tenant": "b"}', 'q', _key => 'k'), agent.insert_event('{"tenant": ["c"]}', 'q')`)
	if groups := pgtest.Query[[]string](t, b.sql, `select array_agg(coalesce(group_key, 'none') order by id) from agent.event where queue = 'q'`); !slices.Equal(groups, []string{"own", "b", "none"}) {
		t.Errorf("the groups are %v", groups)
	}
	b.exec(t, `select agent.put_queue('q', '{"group_from": "/other"}')`)
	b.exec(t, `select agent.insert_event('{"tenant": "b"}', 'q', _key => 'k')`)
	if n := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event where queue = 'q'`); n != 3 {
		t.Errorf("the queue has %d events, want 3: the last request was repeated", n)
	}
	b.exec(t, `select agent.put_queue('to', '{"group_from": "/tenant"}')`)
	b.exec(t, `select agent.move_events('q', 'to')`)
	b.exec(t, `select agent.insert_event('{"tenant": "b"}', 'from'), agent.move_events('from', 'to')`)
	if groups := pgtest.Query[[]string](t, b.sql, `select array_agg(coalesce(group_key, 'none') order by id) from agent.event where queue = 'to'`); !slices.Equal(groups, []string{"own", "b", "none", "b"}) {
		t.Errorf("after the move, the groups are %v", groups)
	}

	for _, wrong := range []string{"tenant", "/a~2", "/a~", "/" + strings.Repeat("x", 1024), ""} {
		_, err := b.PutPolicy(t.Context(), queue.Policy{Queue: "q", GroupFrom: &wrong}, queue.Precondition{})
		if invalid, ok := errors.AsType[*queue.InvalidError](err); !ok || invalid.Field != "group_from" {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
