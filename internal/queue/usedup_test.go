package queue_test

import (
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// useUp has the first event of the queue q be claimed three times, each time nacked, or its lease lost.
func (b env) useUp(t *testing.T, isNacked bool) {
	t.Helper()
	for range queue.DefaultMaxAttempts {
		claimed := pgtest.Query[[]int64](t, b.sql, `select coalesce(array_agg(e.id), '{}') from agent.claim_events('q') e`)
		if len(claimed) != 1 {
			t.Fatalf("claimed %v, want one", claimed)
		}
		if isNacked {
			b.exec(t, `select agent.nack_event($1, null, _error => 'no luck')`, claimed[0])
		} else {
			b.endLease(t, claimed[0])
		}
	}
}

// outcomeOf returns the outcome and the last error of an event in history; empty: it is not there.
func (b env) outcomeOf(t *testing.T, id int64) string {
	t.Helper()
	return pgtest.Query[string](t, b.sql, `
		select coalesce((select concat_ws(' ', h.outcome, h.last_error) from agent.event_hist h where h.id = $1), '')`, id)
}

func TestAnEventThatUsedUpItsAttemptsGivesItsTurnToTheNextOne(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flow    string
		isFinal bool // nothing of the group is claimed then
	}{
		"concurrency":              {`{"concurrency": 1}`, false},
		"rate":                     {`{"concurrency": 1, "rate": {"limit": 1000, "period": "10 ms", "burst": 2}}`, false},
		"order":                    {`{"order": true}`, false},
		"order that stops":         {`{"order": true, "on_failed": "block"}`, true},
		"turns":                    {`{"fair": true}`, false},
		"turns and concurrency":    {`{"fair": true, "concurrency": 1}`, false},
		"turns, order and a total": {`{"fair": true, "order": true, "total": 10}`, false},
	} {
		for _, how := range []string{"nacked", "lost", "lost to a claim of types"} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				b := setup(t, nil)
				b.limit(t, "q", c.flow)
				insert := func() int64 {
					return pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', _type => 't', _group => 'a')`)
				}
				first := insert()
				want, claim := "failed no luck", queue.ClaimParams{Queue: "q", Limit: 1}
				if how != "nacked" {
					want = "expired"
				}
				if how == "lost to a claim of types" {
					claim.Limit, claim.Types = 10, []string{"t"}
				}
				b.useUp(t, how == "nacked")
				wanted := []int64{insert()}
				if c.isFinal {
					wanted = nil
				}
				checkIDs(t, b.claim(t, claim, len(wanted)), wanted)
				if got := b.outcomeOf(t, first); got != want {
					t.Errorf("the outcome is %q, want %q", got, want)
				}
			})
		}
	}
}

// Where groups take turns, a claim that finds enough in other groups looks, too.
func TestAGroupKeepsItsTurnWhenItsEventHasUsedUpItsAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"fair": true}`)
	b.insertGrouped(t, "q", "a")
	b.useUp(t, true)
	b.insertGrouped(t, "q", "a", "a", "a", "b", "b", "b")
	var claimed []string
	for range 6 {
		for _, e := range b.claim(t, queue.ClaimParams{Queue: "q"}, 1) {
			claimed = append(claimed, e.Group)
		}
	}
	wantTurns(t, claimed)
	if len(claimed) != 6 {
		t.Errorf("claimed of %v, want 6", claimed)
	}
}

// What has expired gives its turn to the next one, too.
func TestAnEventThatHasExpiredGivesItsTurnToTheNextOne(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"order": true}`)
	ids := b.insertGrouped(t, "q", "a", "a")
	b.exec(t, `update agent.event set expires_at = now() where id = $1`, ids[0])
	b.wantClaimed(t, "q", "when the first one has expired", ids[1])
	if got := b.outcomeOf(t, ids[0]); got != "expired" {
		t.Errorf("the outcome is %q", got)
	}
}

// A claim ends only what a sweep would end: what it leaves alone by its own lower limit, others may claim. One by a higher limit is served.
func TestAClaimEndsNoEventThatOthersMayClaim(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.MaxAttempts = 5 })
	b.limit(t, "q", `{"concurrency": 1}`)
	ids := b.insertGrouped(t, "q", "a", "a")
	b.useUp(t, true)
	claim := func(maxAttempts int) []queue.Event {
		t.Helper()
		events, err := b.Claim(t.Context(), queue.ClaimParams{Queue: "q", MaxAttempts: maxAttempts})
		if err != nil {
			t.Fatal(err)
		}
		return events
	}
	checkIDs(t, claim(1), nil)
	checkIDs(t, claim(3), nil)
	for range 2 {
		checkIDs(t, claim(0), ids[:1])
		b.exec(t, `select agent.nack_event($1, null)`, ids[0])
	}
	checkIDs(t, claim(7), ids[:1])
	b.exec(t, `select agent.nack_event($1, null)`, ids[0])
	checkIDs(t, claim(0), ids[1:])
	if got := b.outcomeOf(t, ids[0]); got != "failed no luck" {
		t.Errorf("the outcome is %q", got)
	}
}

// The limit of the event, or else of its queue, counts in any case.
func TestAClaimEndsEventsByTheirOwnLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ofEvent *int
		policy  string
		ends    bool
	}{
		"fewer by the event":  {new(2), `{"max_attempts": 9, "flow": {"concurrency": 1}}`, true},
		"fewer by the policy": {nil, `{"max_attempts": 2, "flow": {"concurrency": 1}}`, true},
		"more by the event":   {new(9), `{"max_attempts": 2, "flow": {"concurrency": 1}}`, false},
		"more by the policy":  {nil, `{"max_attempts": 9, "flow": {"concurrency": 1}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.exec(t, `select agent.put_queue('q', $1::jsonb)`, c.policy)
			used := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', _group => 'a', _max_attempts => $1)`, c.ofEvent)
			next := b.insertGrouped(t, "q", "a")[0]
			for range 2 {
				b.wantClaimed(t, "q", "before", used)
				b.endLease(t, used)
			}
			want := map[bool]int64{true: next, false: used}[c.ends]
			b.wantClaimed(t, "q", "after two attempts", want)
		})
	}
}
