package queue_test

import (
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
)

// A step that does not come out even is rounded up: with 33,333 µs there would be 301 claims in less than 10 s.
func TestNoWindowHasOneClaimMoreThanTheRateByRounding(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for flow, want := range map[string]time.Duration{
		`{"rate": {"limit": 300, "period": "10 s"}}`:   33_334 * time.Microsecond,
		`{"rate": {"limit": 7, "period": "24 h"}}`:     12_342_857_143 * time.Microsecond,
		`{"rate": {"limit": 100, "period": "1 s"}}`:    10 * time.Millisecond,
		`{"rate": {"limit": 3000, "period": "10 ms"}}`: 4 * time.Microsecond,
	} {
		b.exec(t, `delete from agent.event`)
		b.exec(t, `delete from agent.queue_group`)
		b.limit(t, "q", flow)
		b.insertGrouped(t, "q", "a", "a")
		if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.claim_events('q', 1)`); n != 1 {
			t.Fatalf("%s: %d were claimed", flow, n)
		}
		got := pgtest.Query[time.Duration](t, b.sql, `select n.vt - c.claimed[1] from agent.event c, agent.event n where c.attempts = 1 and n.attempts = 0`)
		if got != want {
			t.Errorf("%s: the next one can be claimed after %v, want %v", flow, got, want)
		}
	}
}

// Whoever compares the times of events in history sees no overlap where there was none: a claim that has begun before the event before it ended, and is served after that, has the later time.
func TestTheNextOfAGroupIsClaimedAfterTheOneBeforeHasFinished(t *testing.T) {
	t.Parallel()
	for name, flow := range map[string]string{"concurrency": `{"concurrency": 1}`, "order": `{"order": true}`, "turns": `{"fair": true, "concurrency": 1}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", flow)
			ids := b.insertGrouped(t, "q", "a", "a", "b")
			b.wantClaimed(t, "q", "first", ids[0], ids[2])
			b.insertGrouped(t, "q", "c") // what the claim is sure to get
			// The claim stops after it has taken its time, and before it looks for events.
			b.exec(t, `create or replace function agent_private.bounded_lease(_lease interval) returns interval language plpgsql set search_path to pg_catalog as $$
				begin
					perform pg_advisory_xact_lock_shared(1);
					return _lease;
				end $$`)
			gate := pgtest.Connect(t, b.url)
			if _, err := gate.Exec(t.Context(), `select pg_advisory_lock(1)`); err != nil {
				t.Fatal(err)
			}
			claimed := make(chan error)
			conn := pgtest.Connect(t, b.url)
			go func() {
				_, err := conn.Exec(t.Context(), `select from agent.claim_events('q', 10, _invisible_for => null)`)
				claimed <- err
			}()
			eventually(t, "the claim has begun", func() bool {
				return pgtest.Query[bool](t, b.sql, `select exists (select from pg_locks l join pg_stat_activity a using (pid) where not l.granted and a.datname = current_database())`)
			})
			b.exec(t, `select agent.delete_event($1)`, ids[0])
			if _, err := gate.Exec(t.Context(), `select pg_advisory_unlock(1)`); err != nil {
				t.Fatal(err)
			}
			if err := <-claimed; err != nil {
				t.Fatal(err)
			}
			b.exec(t, `select from agent.claim_events('q', 10)`) // if that claim has not seen it
			between := pgtest.Query[time.Duration](t, b.sql, `select e.claimed[1] - h.finished_at from agent.event e, agent.event_hist h where e.id = $1 and h.id = $2`, ids[1], ids[0])
			if between < 0 {
				t.Errorf("the next one was claimed %v before the first one had finished", -between)
			}
		})
	}
}
