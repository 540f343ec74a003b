package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// claimSQL claims from a queue as SQL does, and returns the ids.
func (b env) claimSQL(t *testing.T, q string) []int64 {
	t.Helper()
	return pgtest.Query[[]int64](t, b.sql, `select coalesce(array_agg(e.id), '{}') from agent.claim_events($1, 100) e`, q)
}

// wantClaimed fails the test unless a claim gets these events.
func (b env) wantClaimed(t *testing.T, q, when string, want ...int64) {
	t.Helper()
	if got := b.claimSQL(t, q); !slices.Equal(got, want) {
		t.Errorf("%s: claimed %v, want %v", when, got, want)
	}
}

// limit sets the limits of a queue.
func (b env) limit(t *testing.T, q, flow string) {
	t.Helper()
	b.exec(t, `select agent.put_queue($1, jsonb_build_object('flow', $2::jsonb))`, q, flow)
}

// insertGrouped inserts an event of each of these groups into a queue as SQL does, and returns the ids; "" stands for none.
func (b env) insertGrouped(t *testing.T, q string, groups ...string) (ids []int64) {
	t.Helper()
	for _, group := range groups {
		ids = append(ids, pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', $1, _group => nullif($2, ''))`, q, group))
	}
	return ids
}

func TestEventsOfAGroupWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"concurrency": 2}`)
	ids := b.insertGrouped(t, "q", "a", "a", "a", "b", "", "a")
	b.wantClaimed(t, "q", "at first", ids[0], ids[1], ids[3], ids[4])
	b.wantClaimed(t, "q", "while the slots of a are taken")
	if state := pgtest.Query[string](t, b.sql, `select state from agent.get_event($1)`, ids[2]); state != "waiting" {
		t.Errorf("the third event of the group is %s", state)
	}
	if listed := pgtest.Query[[]int64](t, b.sql, `select array_agg(id order by id) from agent.list_events('q', 'waiting')`); !slices.Equal(listed, []int64{ids[2], ids[5]}) {
		t.Errorf("waiting are %v", listed)
	}
	b.exec(t, `select agent.delete_event($1)`, ids[1])
	b.wantClaimed(t, "q", "after an ack", ids[2])
	b.exec(t, `select agent.nack_event($1, null, '1 hour')`, ids[0])
	b.wantClaimed(t, "q", "after a nack", ids[5])
	b.exec(t, `select agent.run_event($1)`, ids[0])
	b.wantClaimed(t, "q", "when the nacked event is due, and has no slot")
	b.exec(t, `select agent.delete_event($1)`, ids[5])
	b.wantClaimed(t, "q", "with a slot for the nacked event", ids[0])
	b.endLease(t, ids[0])
	b.wantClaimed(t, "q", "when a lease is lost", ids[0])
	b.exec(t, `select agent.delete_events(array_agg(id)) from agent.event`)
	if left := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event_hist where (group_key is null) <> (id = $1) or vt > now() + interval '1 day'`, ids[4]); left != 0 {
		t.Errorf("history has %d events with another group, or the vt of an event that waits", left)
	}
}

func TestLimitsOfAQueueChangeAtOnceForWhatWaits(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertGrouped(t, "q", "a", "a", "a", "a", "b")
	b.exec(t, `update agent.event set vt = now() + interval '1 day' where id = $1`, ids[0]) // scheduled, before there were limits
	b.limit(t, "q", `{"concurrency": 1}`)
	b.wantClaimed(t, "q", "limited to one", ids[1], ids[4])
	b.limit(t, "q", `{"concurrency": 2}`)
	b.wantClaimed(t, "q", "limited to two", ids[2])
	b.limit(t, "q", `{"concurrency": 1}`)
	b.exec(t, `select agent.delete_event($1)`, ids[1])
	b.wantClaimed(t, "q", "limited to one again, with one leased")
	b.limit(t, "q", `null`)
	b.wantClaimed(t, "q", "without limits", ids[3])
	b.exec(t, `update agent.event set turn_vt = now() where id = $1; `, ids[0])
	b.exec(t, `update agent_private.group_wake set at = now()`)
	b.wantClaimed(t, "q", "when the scheduled one is due", ids[0])
	b.exec(t, `select agent.delete_events(array_agg(id)) from agent.event`)
	b.exec(t, `update agent_private.group_wake set at = now()`) // when the leases would have ended
	b.exec(t, `select agent_service.prune_groups('', '')`)
	if isLimited := pgtest.Query[bool](t, b.sql, `select exists (select from agent.queue_group) or exists (select from agent.queue where flow_version is not null)`); isLimited {
		t.Error("groups are looked at still, when none has anything")
	}
}

func TestAPausedOrHeldGroupIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertGrouped(t, "q", "a", "b", "a")
	b.exec(t, `select agent.put_group('q', 'a', '{"paused": true}')`)
	b.wantClaimed(t, "q", "while a is paused", ids[1])
	if why := pgtest.Query[string](t, b.sql, `select blocked_by ->> 'reason' from agent.list_groups('q', _blocked => true)`); why != "paused" {
		t.Errorf("the group is blocked by %s", why)
	}
	b.exec(t, `select agent.put_group('q', 'a', '{"concurrency": 1}')`)
	b.wantClaimed(t, "q", "while a has a limit", ids[0])
	b.exec(t, `select agent.put_group('q', 'a', jsonb_build_object('held_until', now() + interval '1 hour'))`)
	b.endLease(t, ids[0])
	b.wantClaimed(t, "q", "while a is held, and its lease is lost")
	b.exec(t, `select agent.delete_group('q', 'a')`)
	b.wantClaimed(t, "q", "at the end of the hold", ids[2], ids[0])
	for _, settings := range []string{`{"concurrency": 0}`, `{"concurrency": 1.5}`, `{"limit": 1}`, `[]`, `{"held_until": "infinity"}`} {
		_, err := b.sql.Exec(t.Context(), `select agent.put_group('q', 'a', $1)`, settings)
		if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); !isAnswer || pgErr.Code != "QD003" {
			t.Errorf("%s: %v", settings, err)
		}
	}
}

func TestTheLimitOfAQueueCountsEveryLease(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertGrouped(t, "q", "", "a", "", "", "")
	if n := pgtest.Query[int64](t, b.sql, `select count(*) from agent.claim_events('q', 1)`); n != 1 {
		t.Fatalf("claimed %d", n)
	}
	b.limit(t, "q", `{"total": 3}`)
	b.wantClaimed(t, "q", "with one leased before", ids[1], ids[2])
	b.wantClaimed(t, "q", "at the limit")
	b.endLease(t, ids[1])
	if _, err := b.Extend(t.Context(), queue.Lease{ID: ids[1]}, 0); !errors.Is(err, queue.ErrLeaseLost) {
		t.Errorf("extending a lease that has ended: %v", err)
	}
	b.wantClaimed(t, "q", "when a lease has ended", ids[3])
	b.exec(t, `select agent.nack_event($1, null, '1 hour')`, ids[2])
	b.wantClaimed(t, "q", "after a nack", ids[4])
}

func TestEventsKeepTheirGroupWhereverTheyGo(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "from", `{"concurrency": 1}`)
	b.limit(t, "to", `{"concurrency": 1}`)
	ids := b.insertGrouped(t, "from", "a", "a", "a")
	b.wantClaimed(t, "from", "at first", ids[0])
	if n := pgtest.Query[int64](t, b.sql, `select agent.move_events('from', 'to')`); n != 2 {
		t.Fatalf("moved %d", n)
	}
	b.wantClaimed(t, "to", "moved", ids[1])
	b.exec(t, `select agent.delete_event($1)`, ids[1])
	copied := pgtest.Query[int64](t, b.sql, `select id from agent.requeue_event($1)`, ids[1])
	b.wantClaimed(t, "to", "after the end of the one before", ids[2])
	b.exec(t, `select agent.put_queue('to', '{"max_attempts": 1, "dead_letter": {"queue": "dead"}, "flow": {"concurrency": 1}}')`)
	b.exec(t, `select agent.nack_event($1, null)`, ids[2])
	b.wantClaimed(t, "to", "after the failure of the one before", copied)
	if group := pgtest.Query[string](t, b.sql, `select group_key from agent.event where queue = 'dead'`); group != "a" {
		t.Errorf("the dead letter is of the group %s", group)
	}
	b.exec(t, `insert into agent.event (event, queue, group_key) values ('{}', 'from', 'a')`)
	b.wantClaimed(t, "from", "with the slot taken, and a row written by hand")
	b.exec(t, `select agent.delete_event($1)`, ids[0])
	if n := len(b.claimSQL(t, "from")); n != 1 {
		t.Errorf("claimed %d events, want the row that was written by hand", n)
	}
}

func TestAGroupIsPartOfARequestUnderAKey(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	first := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', _key => 'k', _group => 'a')`)
	if again := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', _key => 'k', _group => 'a')`); again != first {
		t.Errorf("the repeated request inserted %d, the first %d", again, first)
	}
	_, err := b.sql.Exec(t.Context(), `select agent.insert_event('{}', 'q', _key => 'k', _group => 'b')`)
	if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); !isAnswer || pgErr.Code != "QD005" {
		t.Errorf("the request with another group: %v", err)
	}
	_, err = b.sql.Exec(t.Context(), `select agent.insert_event('{}', 'q', _group => repeat('é', 128))`)
	if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); !isAnswer || pgErr.Code != "QD003" || pgErr.ColumnName != "group" {
		t.Errorf("a group of 256 bytes: %v", err)
	}
}

func TestAnAckHandsASlotOverToAClaimThatWaits(t *testing.T) {
	t.Parallel()
	patient := func(cfg *queue.Config) { cfg.PollInterval = time.Hour } // who is not told waits for ever
	b := setup(t, patient)
	runService(t, b.Service)
	other := anotherService(t, b.url, patient)
	runService(t, other)
	if _, err := b.PutPolicy(t.Context(), queue.Policy{Queue: "q", Flow: &queue.Flow{Concurrency: new(1)}}, queue.Precondition{}); err != nil {
		t.Fatal(err)
	}
	grouped := queue.InsertParams{Event: json.RawMessage(`{}`), Queue: "q", Group: "g"}
	inserted, err := b.Insert(t.Context(), []queue.InsertParams{grouped, grouped, grouped})
	if err != nil {
		t.Fatal(err)
	}
	first := b.claim(t, queue.ClaimParams{Queue: "q", Limit: 10}, 1)[0]
	if first.ID != inserted[0].ID || first.Group != "g" {
		t.Fatalf("claimed %+v", first)
	}
	for i, waits := range []*queue.Service{other, b.Service} {
		got := make(chan []queue.Event, 1)
		go func() {
			events, _ := waits.Claim(t.Context(), queue.ClaimParams{Queue: "q", Wait: time.Minute})
			got <- events
		}()
		eventually(t, "the claim waits", func() bool { return queue.Offers(waits, "q") && queue.IsTold(waits) })
		if e := b.get(t, inserted[i+1].ID); e.State != queue.AwaitingTurn || e.Group != "g" || e.VT.After(now(t, b.sql)) {
			t.Errorf("while the slot is taken the event is %+v", e)
		}
		b.ack(t, lease(first))
		events := <-got
		if len(events) != 1 || events[0].ID != inserted[i+1].ID {
			t.Fatalf("the waiting claim got %+v", events)
		}
		first = events[0]
	}
}

// The event that stands in the way of others is moved: they have their turn, and a claim that waits for it gets it.
func TestAClaimThatWaitsGetsWhatIsBehindAnEventThatIsMoved(t *testing.T) {
	t.Parallel()
	patient := func(cfg *queue.Config) { cfg.PollInterval = time.Hour } // who is not told waits for ever
	b := setup(t, patient)
	runService(t, b.Service)
	b.limit(t, "q", `{"order": true}`)
	ids := b.insertGrouped(t, "q", "a", "a")
	b.exec(t, `select agent.nack_event(e.id, agent.receipt(e), '1 hour') from agent.claim_events('q') e`)
	got := make(chan []queue.Event, 1)
	go func() {
		events, _ := b.Claim(t.Context(), queue.ClaimParams{Queue: "q", Wait: 20 * time.Second})
		got <- events
	}()
	eventually(t, "the claim waits", func() bool { return queue.Offers(b.Service, "q") && queue.IsTold(b.Service) })
	b.exec(t, `select agent.move_events('q', 'other', 1)`)
	if events := <-got; len(events) != 1 || events[0].ID != ids[1] {
		t.Errorf("the waiting claim got %+v", events)
	}
}

// A claim that waits in the process of the ack gets the next event in the transaction of the ack, once it is known that acks free slots in its queue.
func TestAnAckTakesTheClaimThatWaitsForItsSlotAlong(t *testing.T) {
	t.Parallel()
	b := setup(t, func(cfg *queue.Config) { cfg.PollInterval = time.Hour })
	runService(t, b.Service)
	b.limit(t, "q", `{"order": true}`)
	ids := b.insertGrouped(t, "q", "g", "g", "g", "g", "g", "g", "g", "g")
	together := 0
	b.insertGrouped(t, "elsewhere", "")
	elsewhere := b.claim(t, queue.ClaimParams{Queue: "elsewhere"}, 1)[0]
	leased := b.claim(t, queue.ClaimParams{Queue: "q", Wait: time.Minute}, 1)[0] // upkeep may look at the group just now
	for i, id := range ids[1:] {
		got := make(chan []queue.Event, 1)
		go func() {
			events, _ := b.Claim(t.Context(), queue.ClaimParams{Queue: "q", Wait: time.Minute})
			got <- events
		}()
		eventually(t, "the claim waits", func() bool { return queue.Offers(b.Service, "q") && queue.IsTold(b.Service) })
		if i == 2 { // an ack elsewhere takes it along in vain, and it waits on
			b.ack(t, lease(elsewhere))
			eventually(t, "the claim waits again", func() bool { return queue.Offers(b.Service, "q") })
		}
		b.ack(t, lease(leased))
		events := <-got
		if len(events) != 1 || events[0].ID != id {
			t.Fatalf("after ack %d, the claim got %+v, want event %d", i+1, events, id)
		}
		if pgtest.Query[bool](t, b.sql, `select h.xmin = e.xmin from agent.event_hist h, agent.event e where h.id = $1 and e.id = $2`, leased.ID, id) {
			together++
		}
		leased = events[0]
	}
	if together == 0 { // not each one, as upkeep may look at the group just then
		t.Error("no event was claimed in the transaction of the ack before it")
	}
}

func TestAnEventOfAGroupGoesToAClaimThatWaitsIfThereIsASlot(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	runService(t, b.Service)
	b.limit(t, "q", `{"concurrency": 1}`)
	for _, want := range []int{1, 0} { // how many of the events the claim gets at once
		got := make(chan []queue.Event, 1)
		go func() {
			events, _ := b.Claim(t.Context(), queue.ClaimParams{Queue: "q", Limit: 2, Wait: time.Minute, Worker: "w"})
			got <- events
		}()
		eventually(t, "the claim waits", func() bool { return queue.Offers(b.Service, "q") })
		ids := b.insertEvents(t, queue.InsertParams{Queue: "q", Group: "g"}, queue.InsertParams{Queue: "q", Group: "g"})
		if want == 0 {
			b.insertEvents(t, queue.InsertParams{Queue: "q"})
		}
		events := <-got
		if len(events) != 1 || (events[0].ID == ids[0]) != (want == 1) || events[0].Attempts != 1 {
			t.Errorf("the claim got %+v of %v", events, ids)
		}
	}
}

func TestThePolicyOfAQueueHasItsLimits(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, flow := range []*queue.Flow{{Concurrency: new(3)}, {Total: new(7)}, {Concurrency: new(2), Total: new(5)}, nil} {
		put, err := b.PutPolicy(t.Context(), queue.Policy{Queue: "q", Flow: flow}, queue.Precondition{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.GetPolicy(t.Context(), "q")
		if err != nil || !reflect.DeepEqual(got, put) || !reflect.DeepEqual(got.Flow, flow) {
			t.Errorf("put %+v, got %+v, %v", put, got, err)
		}
	}
	var invalid *queue.InvalidError
	if _, err := b.PutPolicy(t.Context(), queue.Policy{Queue: "q", Flow: &queue.Flow{Total: new(0)}}, queue.Precondition{}); !errors.As(err, &invalid) || invalid.Field != "flow/total" {
		t.Errorf("a total of zero: %v", err)
	}
}

func TestEventsUnderKeysGetTheirTurnsAsTheyAreInserted(t *testing.T) {
	t.Parallel()
	for name, flow := range map[string]string{
		"none": `null`, "concurrency": `{"concurrency": 2}`, "order": `{"order": true}`, "rate": `{"rate": {"limit": 1, "period": "1 h", "burst": 2}}`,
		"fair": `{"fair": true}`, "order in turns": `{"fair": true, "order": true}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			var states [2]string
			for i, q := range []string{"without", "with"} {
				b.limit(t, q, flow)
				var events []queue.InsertParams
				for j, group := range []string{"a", "a", "b", "a", ""} {
					events = append(events, queue.InsertParams{Queue: q, Group: group})
					if q == "with" && j != 1 { // one has none
						events[j].IdempotencyKey = fmt.Sprint(j)
					}
				}
				b.insertEvents(t, events...)
				states[i] = pgtest.Query[string](t, b.sql, `
					select string_agg(concat_ws(' ', agent_private.event_state(e, clock_timestamp()), e.flow, (e.flow_version is not null)::text), ', ' order by e.id) from agent.event e where e.queue = $1`, q)
				if wakes := pgtest.Query[int64](t, b.sql, `select count(*) from agent_private.group_wake where queue = $1 and key <> ''`, q); wakes > 0 {
					t.Errorf("%s keys, %d wakes of groups are left", q, wakes)
				}
				if q == "with" { // the second time, nothing comes
					before := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event`)
					b.insertEvents(t, events[0], events[2])
					if after := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event`); after != before {
						t.Errorf("%d events after a repetition, before %d", after, before)
					}
				}
			}
			if states[0] != states[1] || !strings.Contains(states[1], "ready") {
				t.Errorf("with keys they are %s, without %s", states[1], states[0])
			}
		})
	}
}

// The database remembers times that are an hour later than it is, as after its server's clock was set back.
func TestTurnsComeWhenTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	for name, flow := range map[string]string{
		"concurrency": `{"concurrency": 1}`, "order": `{"order": true}`, "fair": `{"fair": true, "concurrency": 1}`, "rate": `{"concurrency": 1, "rate": {"limit": 1000, "period": "1 s", "burst": 2}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", flow)
			ids := b.insertGrouped(t, "q", "a", "a", "a", "a", "a")
			for _, id := range ids[:2] { // so that it is known when the group was served
				b.wantClaimed(t, "q", "before", id)
				b.exec(t, `select agent.delete_event($1)`, id)
			}
			b.exec(t, `
				update agent.event set turn_vt = turn_vt + interval '1 hour' where turn_vt is not null;
				update agent.event set vt = vt + interval '1 hour' where vt < agent_private.no_turn();
				update agent.queue_group set served_at = served_at + interval '1 hour', tat = tat + interval '1 hour', last_claim = last_claim + interval '1 hour';
				update agent.server set clock = clock_timestamp() + interval '1 hour 1 minute'`)
			b.exec(t, `select agent_service.record_server()`)
			for _, id := range ids[2:] {
				claimed := b.claimSQL(t, "q")
				for limit := time.Now().Add(10 * time.Second); len(claimed) == 0 && time.Now().Before(limit); claimed = b.claimSQL(t, "q") { // a rate takes its time
					time.Sleep(time.Millisecond) //nolint:forbidigo // until the group has its turn
				}
				if !slices.Equal(claimed, []int64{id}) {
					t.Fatalf("claimed %v, want %d: %s", claimed, id, pgtest.Query[string](t, b.sql, `select json_agg(to_jsonb(e))::text from agent.event e`))
				}
				b.exec(t, `select agent.delete_event($1)`, id)
			}
		})
	}
}

// What the rate of a group has put off comes when the rate allows it by the clock that was set back, also if that was an hour before the highest time known.
func TestARatePutsOffNoLongerWhenTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	for name, flow := range map[string]string{"a rate": `{"rate": {"limit": 10, "period": "1 minute"}}`, "and order": `{"rate": {"limit": 10, "period": "1 minute"}, "order": true}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", flow)
			ids := b.insertGrouped(t, "q", "a", "a")
			b.wantClaimed(t, "q", "before", ids[0])
			b.exec(t, `select agent.delete_event($1)`, ids[0])
			b.exec(t, `
				update agent.event set vt = vt + interval '1 hour', admitted_at = admitted_at + interval '1 hour', enqueued_at = enqueued_at + interval '1 hour';
				update agent.queue_group set tat = tat + interval '1 hour', last_claim = last_claim + interval '1 hour';
				update agent.server set clock = clock_timestamp() + interval '1 hour'`)
			b.exec(t, `select agent_service.record_server()`)
			b.wantNext(t, "q", "afterwards", 6*time.Second, ids[1])
		})
	}
}

func TestAClaimOfSomeTypesDoesNotStandStillForOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"concurrency": 1}`)
	var ids []int64
	for _, typ := range []string{"b", "b", "a", "a"} {
		ids = append(ids, b.insertEvents(t, queue.InsertParams{Queue: "q", Group: "g", Type: typ})...)
	}
	want := func(when string, p queue.ClaimParams, want ...int64) {
		t.Helper()
		p.Queue, p.Limit = "q", 10
		events, err := b.Claim(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for i := range events {
			got = append(got, events[i].ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: claimed %v, want %v", when, got, want)
		}
	}
	want("of the type that waits", queue.ClaimParams{Types: []string{"a"}}, ids[2])
	want("while it is leased", queue.ClaimParams{Types: []string{"b"}})
	want("while it is leased", queue.ClaimParams{ExcludeIDs: []int64{ids[2]}})
	b.exec(t, `select agent.delete_event($1)`, ids[2])
	want("without the first of the line", queue.ClaimParams{ExcludeIDs: []int64{ids[0]}}, ids[1])
	b.exec(t, `select agent.delete_event($1)`, ids[1])
	want("of both types", queue.ClaimParams{Types: []string{"a", "b"}}, ids[0])
	b.exec(t, `select agent.delete_event($1)`, ids[0])
	want("of the last one's type", queue.ClaimParams{Types: []string{"a"}}, ids[3])
}

func TestEventsThatWaitForTheirTurnAreListedPageByPage(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"concurrency": 1}`)
	ids := b.insertGrouped(t, "q", "a", "a", "", "a", "a")
	b.wantClaimed(t, "q", "at first", ids[0], ids[2])
	for state, want := range map[queue.State][]int64{queue.AwaitingTurn: {ids[1], ids[3], ids[4]}, queue.Leased: {ids[0], ids[2]}, "": {ids[0], ids[2], ids[1], ids[3], ids[4]}} {
		var got []int64
		p := queue.ListParams{Queue: "q", State: state, Limit: 1}
		for range 10 {
			page, err := b.List(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			for i := range page.Events {
				got = append(got, page.Events[i].ID)
			}
			if p.Cursor = page.Next; p.Cursor == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("in the state %q are %v, want %v", state, got, want)
		}
	}
}

// keysOf returns the keys of groups, with what blocks each.
func keysOf(groups []queue.Group) (keys []string) {
	for _, g := range groups {
		key := g.Key
		if g.BlockedBy != nil {
			key += ":" + string(g.BlockedBy.Reason)
		}
		keys = append(keys, key)
	}
	return keys
}

func TestSettingsOfAGroupHoldAtOnceAndWakeClaims(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx := t.Context()
	ids := b.insertGrouped(t, "q", "a/b", "a/b")
	set, err := b.PutGroup(ctx, "q", "a/b", queue.GroupSettings{Paused: true}, nil, queue.Precondition{Absent: true})
	if err != nil || !set.Paused || set.Waiting != 2 || set.BlockedBy == nil || set.BlockedBy.Reason != queue.BlockedByPause || set.Version == nil {
		t.Fatalf("set %+v: %v", set, err)
	}
	if _, err := b.PutGroup(ctx, "q", "a/b", queue.GroupSettings{}, nil, queue.Precondition{Absent: true}); !errors.Is(err, queue.ErrStale) {
		t.Errorf("setting what is set: %v", err)
	}
	if _, err := b.PutGroup(ctx, "q", "a/b", queue.GroupSettings{}, nil, queue.Precondition{Versions: []int64{*set.Version + 1}}); !errors.Is(err, queue.ErrStale) {
		t.Errorf("setting another version: %v", err)
	}
	if err := b.DeleteGroup(ctx, "q", "a/b", []int64{*set.Version + 1}); !errors.Is(err, queue.ErrStale) {
		t.Errorf("ending another version: %v", err)
	}
	if _, err := b.PutGroup(ctx, "q", "none", queue.GroupSettings{}, nil, queue.Precondition{Exists: true}); !errors.Is(err, queue.ErrStale) {
		t.Errorf("setting what is not set: %v", err)
	}
	claimed := make(chan []queue.Event, 1)
	go func() {
		events, _ := b.Claim(ctx, queue.ClaimParams{Queue: "q", Limit: 1, Wait: time.Minute})
		claimed <- events
	}()
	eventually(t, "a claim waits", func() bool { return queue.Waiting(b.Service) == 1 })
	hour := time.Hour
	held, err := b.PutGroup(ctx, "q", "a/b", queue.GroupSettings{Concurrency: new(1)}, &hour, queue.Precondition{Versions: []int64{*set.Version}})
	if err != nil || held.BlockedBy == nil || held.BlockedBy.Reason != queue.BlockedByHold || held.BlockedBy.Until == nil || !held.BlockedBy.Until.Equal(*held.HeldUntil) {
		t.Fatalf("held %+v: %v", held, err)
	}
	limited, err := b.PutGroup(ctx, "q", "a/b", queue.GroupSettings{Concurrency: new(1)}, nil, queue.Precondition{Exists: true})
	if err != nil || limited.HeldUntil != nil || limited.Concurrency == nil || *limited.Concurrency != 1 {
		t.Fatalf("limited %+v: %v", limited, err)
	}
	if events := <-claimed; len(events) != 1 || events[0].ID != ids[0] {
		t.Fatalf("at the end of the hold, claimed %+v", events)
	}
	full, err := b.GetGroup(ctx, "q", "a/b")
	if err != nil || full.Leased != 1 || full.Waiting != 1 || full.BlockedBy == nil || full.BlockedBy.Reason != queue.BlockedByConcurrency || *full.BlockedBy.Limit != 1 || full.Oldest == nil {
		t.Fatalf("full %+v: %v", full, err)
	}
	if err := b.DeleteGroup(ctx, "q", "a/b", nil); err != nil {
		t.Fatal(err)
	}
	b.wantClaimed(t, "q", "without a limit", ids[1])
	if g, err := b.GetGroup(ctx, "q", "a/b"); err != nil || g.Version != nil || g.UpdatedAt != nil || g.Concurrency != nil {
		t.Errorf("with nothing set %+v: %v", g, err)
	}
	for _, settings := range []queue.GroupSettings{{Concurrency: new(0)}, {Concurrency: new(10_001)}} {
		if _, err := b.PutGroup(ctx, "q", "a", settings, nil, queue.Precondition{}); !isInvalid(err, "concurrency") {
			t.Errorf("%+v: %v", settings, err)
		}
	}
}

func isInvalid(err error, field string) bool {
	invalid, ok := errors.AsType[*queue.InvalidError](err)
	return ok && invalid.Field == field
}

func TestGroupsAreListedByKeyAndByTheLengthOfTheirLines(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx := t.Context()
	b.limit(t, "q", `{"concurrency": 1}`)
	// Groups whose lines have 0, 1, 2, 3 events.
	b.insertGrouped(t, "q", "c", "c", "c", "c", "a", "b", "b", "d", "d", "d", "")
	if _, err := b.PutGroup(ctx, "q", "z", queue.GroupSettings{Paused: true}, nil, queue.Precondition{}); err != nil {
		t.Fatal(err)
	}
	b.claimSQL(t, "q")
	var keys []string
	cursor := ""
	for range 10 {
		page, err := b.Groups(ctx, queue.GroupsParams{Queue: "q", Limit: 2, Cursor: cursor})
		if err != nil {
			t.Fatal(page, err)
		}
		keys = append(keys, keysOf(page.Groups)...)
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if want := []string{"a", "b:concurrency", "c:concurrency", "d:concurrency", "z"}; !slices.Equal(keys, want) {
		t.Errorf("by key %v", keys)
	}
	blocked, err := b.Groups(ctx, queue.GroupsParams{Queue: "q", Limit: 2, Blocked: true})
	if err != nil || !slices.Equal(keysOf(blocked.Groups), []string{"b:concurrency", "c:concurrency"}) || blocked.Next == "" {
		t.Errorf("blocked are %v: %v", keysOf(blocked.Groups), err)
	}
	longest, err := b.Groups(ctx, queue.GroupsParams{Queue: "q", Limit: 3, ByWaiting: true})
	if err != nil || !slices.Equal(keysOf(longest.Groups), []string{"c:concurrency", "d:concurrency", "b:concurrency"}) || longest.Next != "" {
		t.Errorf("by their lines %v: %v", keysOf(longest.Groups), err)
	}
	if longest.Groups[0].Waiting != 3 {
		t.Errorf("the longest line has %d", longest.Groups[0].Waiting)
	}
	if _, err := b.Groups(ctx, queue.GroupsParams{Queue: "q", Cursor: "x"}); !errors.Is(err, queue.ErrBadCursor) {
		t.Errorf("a bad cursor: %v", err)
	}
}

func TestTheLongestLinesAreFoundAmongThousandsOfGroups(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx := t.Context()
	b.limit(t, "q", `{"concurrency": 1}`)
	b.exec(t, `
		select agent.insert_events(array_agg('{}'::jsonb), array_agg('q'::text), _options => array_agg(jsonb_build_object('group', case n % 3 when 0 then 'long' else 'g' || n end, 'priority', n % 5)))
		from generate_series(1, 6000) n`)
	longest, err := b.Groups(ctx, queue.GroupsParams{Queue: "q", Limit: 2, ByWaiting: true, Blocked: true})
	if err != nil || len(longest.Groups) == 0 || longest.Groups[0].Key != "long" || longest.Groups[0].Waiting != 1999 {
		t.Errorf("the longest lines are %+v: %v", longest.Groups, err)
	}
	// What is blocked is found behind a thousand groups that are not.
	var keys []string
	pages := 0
	for cursor := ""; pages == 0 || cursor != "" && pages < 20; pages++ {
		page, err := b.Groups(ctx, queue.GroupsParams{Queue: "q", Blocked: true, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		keys, cursor = append(keys, keysOf(page.Groups)...), page.Next
	}
	if !slices.Equal(keys, []string{"long:concurrency"}) || pages != 5 {
		t.Errorf("in %d pages, blocked are %v", pages, keys)
	}
}

func TestAGroupInOrderHandsOutItsFirstUnfinishedEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"order": true}`)
	ids := b.insertGrouped(t, "q", "a", "a", "b", "", "a")
	first := b.insertEvents(t, queue.InsertParams{Queue: "q", Group: "a", Priority: -5}, queue.InsertParams{Queue: "q", Group: "c", Priority: 3}, queue.InsertParams{Queue: "q", Group: "c"})
	b.wantClaimed(t, "q", "at first", ids[0], ids[2], ids[3], first[1])
	b.exec(t, `select agent.nack_event($1, null, '1 hour')`, ids[0])
	b.wantClaimed(t, "q", "while the first one backs off")
	if blocked := pgtest.Query[string](t, b.sql, `select format('%s %s', blocked_by ->> 'reason', blocked_by ->> 'event_id') from agent.list_groups('q', _group => 'a')`); blocked != fmt.Sprintf("order %d", ids[0]) {
		t.Errorf("the group is blocked by %s", blocked)
	}
	b.exec(t, `select agent.run_event($1)`, ids[0])
	b.wantClaimed(t, "q", "when its retry is due", ids[0])
	b.exec(t, `update agent.event set receipt_hash = agent_private.token_hash('0123456789abcdef') where id = $1`, ids[0])
	b.exec(t, `select agent.release_event($1::int8, $1::int8 || '.2.0123456789abcdef', '1 hour')`, ids[0])
	b.wantClaimed(t, "q", "while it is released for later")
	b.exec(t, `update agent.event set vt = now() where id = $1`, ids[0])
	b.wantClaimed(t, "q", "when it is due", ids[0])
	b.endLease(t, ids[0])
	b.wantClaimed(t, "q", "when its lease is lost", ids[0])
	b.exec(t, `select agent.delete_event($1)`, ids[0])
	b.wantClaimed(t, "q", "after its ack", ids[1])
	for _, want := range []int64{ids[4], first[0]} { // whatever the priority
		b.exec(t, `select agent.delete_events(array_agg(id)) from agent.event where queue = 'q' and group_key = 'a' and attempts > 0`)
		b.wantClaimed(t, "q", "after the one before", want)
	}
	b.exec(t, `select agent.delete_event($1)`, first[1])
	b.wantClaimed(t, "q", "after the one of another priority", first[2])
}

func TestAnEventOfAGroupInOrderIsNotDelayed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"order": true}`)
	for field, sql := range map[string]string{
		"delay":          `select agent.insert_event('{}', 'q', '1 hour', _group => 'a')`,
		"vt":             `select agent.insert_events(array['{}'::jsonb], array['q'], _vts => array[now() + interval '1 hour'], _options => array['{"group": "a"}'::jsonb])`,
		"1/delay":        `select agent.insert_events(array['{}', '{}', '{}']::jsonb[], array['other', 'q', 'q'], array['1 s', '1 s', '1 s']::interval[], _options => array['{"group": "a"}', '{"group": "a"}', '{"group": "a"}']::jsonb[])`,
		"flow/order":     `select agent.put_queue('q', '{"delay": "1 s", "flow": {"order": true}}')`,
		"flow/on_failed": `select agent.put_queue('q', '{"flow": {"concurrency": 1, "on_failed": "block"}}')`,
	} {
		_, err := b.sql.Exec(t.Context(), sql)
		if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); !isAnswer || pgErr.Code != "QD003" || pgErr.ColumnName != field {
			t.Errorf("%s: %v, want QD003 about %s", sql, err, field)
		}
	}
	b.exec(t, `select agent.insert_event('{}', 'q', '0 s', _group => 'a')`)
	b.exec(t, `select agent.insert_event('{}', 'q', '1 hour')`)
	// A row that nobody has checked keeps its place while it is not due.
	b.exec(t, `insert into agent.event (event, queue, group_key, vt) values ('{}', 'q', 'b', now() + interval '1 hour')`)
	late := pgtest.Query[int64](t, b.sql, `select max(id) from agent.event`)
	next := b.insertGrouped(t, "q", "b")
	if n := len(b.claimSQL(t, "q")); n != 1 {
		t.Errorf("claimed %d, want the event of a alone", n)
	}
	b.exec(t, `select agent.run_event($1)`, late)
	b.wantClaimed(t, "q", "when it is due", late)
	b.exec(t, `select agent.delete_event($1)`, late)
	b.wantClaimed(t, "q", "after it", next[0])
}

func TestOrderHoldsAtOnceForWhatWaits(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"concurrency": 3}`)
	ids := b.insertGrouped(t, "q", "a", "a", "a", "a", "a")
	b.exec(t, `select agent.claim_events('q', 2)`)
	b.exec(t, `select agent.nack_event($1, null, '1 hour')`, ids[0])
	b.limit(t, "q", `{"order": true}`)
	b.wantClaimed(t, "q", "with one leased")
	b.exec(t, `select agent.delete_event($1)`, ids[1])
	b.wantClaimed(t, "q", "while the first one backs off")
	b.exec(t, `select agent.run_event($1)`, ids[0])
	b.wantClaimed(t, "q", "when it is due", ids[0])
	b.limit(t, "q", `{"concurrency": 3}`)
	b.wantClaimed(t, "q", "without order", ids[2], ids[3])
	b.limit(t, "q", `{"order": true}`)
	b.endLease(t, ids[3])
	b.exec(t, `select agent.delete_events(array[$1, $2]::int8[])`, ids[0], ids[2])
	b.wantClaimed(t, "q", "when a lease is lost that was given without order", ids[3])
}

func TestADelayOutlastsChangesOfTheLimits(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]string{
		"written by hand": `update agent.event set vt = now() + '1 hour', group_key = 'a' where id = $1`,
		"nacked":          `select agent.nack_event(e.id, null, '1 hour') from agent.claim_events('q') e where e.id = $1`,
		"released":        `select agent.release_event(e.id, agent.receipt(e), '1 hour') from agent.claim_events('q') e where e.id = $1`,
	} {
		for _, first := range []string{`null`, `{"order": true}`} {
			t.Run(name+" with limits "+first, func(t *testing.T) {
				t.Parallel()
				b := setup(t, nil)
				b.limit(t, "q", first)
				group := "a"
				if name == "written by hand" {
					group = "" // in which it is due
				}
				b.exec(t, delay, b.insertGrouped(t, "q", group)[0])
				for _, flow := range []string{`{"order": true}`, `{"fair": true, "order": true}`, `{"concurrency": 1}`, `{"order": true}`, `{"rate": {"limit": 1, "period": "1 s"}}`, `{"order": true}`, `null`} {
					b.limit(t, "q", flow)
					b.wantClaimed(t, "q", "before the delay is over, with limits "+flow)
				}
				b.exec(t, `select agent.run_event(e.id) from agent.event e`)
				if got := b.claimGroups(t, 10, false); !slices.Equal(got, []string{"a"}) {
					t.Errorf("when it was due, %v were claimed", got)
				}
			})
		}
	}
}

func TestAFailedEventBlocksItsGroup(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `select agent.put_queue('q', '{"max_attempts": 1, "dead_letter": {"queue": "dead"}, "flow": {"order": true, "on_failed": "block"}}')`)
	ids := b.insertGrouped(t, "q", "a", "a", "a", "b", "b")
	b.wantClaimed(t, "q", "at first", ids[0], ids[3])
	b.exec(t, `select agent.nack_event($1, null)`, ids[0]) // it fails
	b.exec(t, `select agent.delete_event($1)`, ids[3])
	b.wantClaimed(t, "q", "when the first one of a has failed", ids[4])
	b.insertEvents(t, queue.InsertParams{Queue: "q", Group: "a"})
	b.wantClaimed(t, "q", "with one more in a")
	blocked := func() string {
		return pgtest.Query[string](t, b.sql, `select coalesce(string_agg(format('%s %s %s', key, blocked_by ->> 'reason', blocked_by ->> 'event_id'), ', '), 'none') from agent.list_groups('q', _blocked => true)`)
	}
	if got := blocked(); got != fmt.Sprintf("a order %d", ids[0]) {
		t.Errorf("blocked is %s", got)
	}
	copied := pgtest.Query[int64](t, b.sql, `select id from agent.requeue_event($1)`, ids[0])
	b.wantClaimed(t, "q", "when it is requeued into its place", copied)
	if got := blocked(); got != fmt.Sprintf("a order %d", copied) {
		t.Errorf("while its copy is leased, blocked is %s", got)
	}
	b.exec(t, `select agent.nack_event($1, null)`, copied)
	b.wantClaimed(t, "q", "when the copy has failed")
	// The dead letter of the copy goes back to where it came from.
	b.exec(t, `select agent.move_events('dead', 'q')`)
	back := b.claimSQL(t, "q")
	if from := pgtest.Query[int64](t, b.sql, `select dead_letter_of from agent.event where id = $1`, back[0]); len(back) != 1 || from != copied {
		t.Fatalf("with the dead letter back, claimed %v, the dead letter of %d", back, from)
	}
	b.exec(t, `select agent.delete_event($1)`, back[0])
	b.wantClaimed(t, "q", "when that is done", ids[1])

	// One that was claimed and expires blocks, until it is acked after all.
	receipt := pgtest.Query[string](t, b.sql, `select id || '.' || attempts || '.' from agent.event where id = $1`, ids[1])
	b.exec(t, `update agent.event set receipt_hash = agent_private.token_hash('0123456789abcdef') where id = $1`, ids[1])
	b.endLease(t, ids[1])
	b.exec(t, `select agent.put_queue('q', '{"max_attempts": 1, "flow": {"order": true, "on_failed": "block"}}')`)
	b.exec(t, `select agent.delete_expired_events(1, null)`)
	b.wantClaimed(t, "q", "when it has expired")
	if got := blocked(); got != fmt.Sprintf("a order %d", ids[1]) {
		t.Errorf("blocked is %s", got)
	}
	b.exec(t, `select agent.delete_event($1, $2)`, ids[1], receipt+"0123456789abcdef")
	b.wantClaimed(t, "q", "when it is acked after all", ids[2])

	// What is inserted once nothing is left is the next one, although nobody has removed yet what stood for the failures.
	b.exec(t, `select agent.delete_events(array_agg(id)) from agent.event where queue = 'q'`)
	b.wantClaimed(t, "q", "of an empty queue")
	ids = b.insertEvents(t, queue.InsertParams{Queue: "q", Group: "a"}, queue.InsertParams{Queue: "q", Group: "a"})
	b.wantClaimed(t, "q", "after all failures were made good", ids[0])

	// Cancelled events block nothing, nor do those that expire before anybody has claimed them.
	b.exec(t, `select agent.delete_events(array_agg(id)) from agent.event where queue = 'q'`)
	ids = b.insertGrouped(t, "q", "c", "c", "c", "c")
	b.exec(t, `select agent.delete_event($1)`, ids[0])
	b.exec(t, `update agent.event set expires_at = now() where id = $1`, ids[1])
	b.exec(t, `select agent.delete_expired_events(1, null)`)
	b.wantClaimed(t, "q", "after one that was cancelled and one that has expired", ids[2])
	b.exec(t, `select agent.nack_event($1, null)`, ids[2])
	b.wantClaimed(t, "q", "when the next one has failed")
	for _, want := range []bool{true, false} {
		if was := pgtest.Query[bool](t, b.sql, `select agent.unblock_group('q', 'c')`); was != want {
			t.Errorf("unblocked: %v", was)
		}
	}
	b.wantClaimed(t, "q", "unblocked", ids[3])
	b.exec(t, `select agent.nack_event($1, null)`, ids[3])
	ids = b.insertGrouped(t, "q", "c")
	b.limit(t, "q", `{"order": true}`)
	b.wantClaimed(t, "q", "when failures block no more", ids[0])
	if left := pgtest.Query[int64](t, b.sql, `select count(*) from agent_private.group_block`); left != 0 {
		t.Errorf("%d blocks are left", left)
	}

	// The same while an event is inserted: who ends the block does not see it.
	b.limit(t, "q", `{"order": true, "on_failed": "block"}`)
	b.exec(t, `select agent.nack_event($1, null, _final => true)`, ids[0])
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var last int64
	if err := tx.QueryRow(t.Context(), `select id from agent.insert_events(array['{}']::jsonb[], array['q'], _options => array['{"group": "c"}']::jsonb[])`).Scan(&last); err != nil {
		t.Fatal(err)
	}
	b.limit(t, "q", `{"order": true}`)
	b.wantClaimed(t, "q", "before the insert is committed")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.wantClaimed(t, "q", "when the failures that block no more were while it was inserted", last)
}

// Upkeep ends the turns of a queue in which nothing is limited any more; what others have just set counts, although nobody else sees it yet.
func TestUpkeepEndsNoTurnsThatAreNeededAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set    string
		events int
		want   []int64
	}{
		"a pause": {`select agent.put_group('q', 'a', '{"paused": true}')`, 1, nil},
		"a hold":  {`select agent_private.hold_group('q', 'a', now() + interval '1 hour')`, 1, nil},
		"a rate":  {`select agent.put_group('q', 'a', '{"rate": {"limit": 1, "period": "1 h"}}')`, 2, []int64{1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.exec(t, `insert into agent.queue (name, flow_version, flow_paced) values ('q', 7, true), ('other', 7, true)`) // as limits that are gone have left them
			tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), c.set); err != nil {
				t.Fatal(err)
			}
			b.exec(t, `select agent_service.prune_groups('', '')`)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range c.events {
				b.insertGrouped(t, "q", "a")
			}
			b.wantClaimed(t, "q", "after the commit", c.want...)
			if left := pgtest.Query[string](t, b.sql, `select string_agg(name, ' ') from agent.queue where flow_version is not null or flow_paced`); left != "q" {
				t.Errorf("turns are needed in %s", left)
			}
		})
	}
}

// A hold of a group counts, and a rate, whatever becomes of a policy that is set at the same time, which says nothing of them.
func TestPoliciesThatAreSetBesideForgetNoGroup(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  string
		want []int64
	}{
		"a hold": {`select agent_private.hold_group('q', 'a', now() + interval '1 hour')`, nil},
		"a rate": {`select agent.put_group('q', 'a', '{"rate": {"limit": 1, "period": "1 h"}}')`, []int64{1}},
	} {
		for _, isFirst := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", policy first: ", isFirst), func(t *testing.T) {
				t.Parallel()
				b := setup(t, nil)
				b.exec(t, `select agent.put_queue('q', '{}')`)
				statements := []string{`select agent.put_queue('q', '{"max_attempts": 7}')`, c.set}
				if !isFirst {
					slices.Reverse(statements)
				}
				first, err := pgtest.Connect(t, b.url).Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := first.Exec(t.Context(), statements[0]); err != nil {
					t.Fatal(err)
				}
				second := pgtest.Connect(t, b.url)
				pid := second.PgConn().PID()
				ended := make(chan error, 1)
				go func() {
					_, err := second.Exec(t.Context(), statements[1])
					ended <- err
				}()
				isOver := false
				for !isOver && !pgtest.Query[bool](t, b.sql, `select exists (select from pg_locks where pid = $1 and not granted)`, int64(pid)) {
					select {
					case err = <-ended:
						isOver = true
					default:
					}
				}
				if err := first.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if !isOver {
					err = <-ended
				}
				if err != nil {
					t.Fatal(err)
				}
				b.insertGrouped(t, "q", "a", "a")
				b.wantClaimed(t, "q", "after both", c.want...)
			})
		}
	}
}

// holdsUntil returns until when a group is held, as its row has it, or a wake.
func (b env) holdsUntil(t *testing.T, group string) (until *time.Time) {
	t.Helper()
	g, err := b.GetGroup(t.Context(), "q", group)
	if err != nil {
		t.Fatal(err)
	}
	return g.HeldUntil
}

func TestANackHoldsTheGroupOfItsEvent(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]string{"with limits": `{"concurrency": 2}`, "without limits": `null`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", limits)
			ids := b.insertGrouped(t, "q", "a", "a", "b", "a", "", "a")
			events, err := b.Claim(t.Context(), queue.ClaimParams{Queue: "q", Limit: 2})
			if err != nil || len(events) != 2 {
				t.Fatalf("claimed %+v: %v", events, err)
			}
			hour := time.Hour
			if _, err := b.Nack(t.Context(), queue.NackParams{Lease: queue.Lease{ID: ids[0], Receipt: events[0].Receipt}, HoldGroup: &hour}); err != nil {
				t.Fatal(err)
			}
			b.wantClaimed(t, "q", "while the group is held", ids[2], ids[4])
			until := b.holdsUntil(t, "a")
			if until == nil || time.Until(*until) < 50*time.Minute {
				t.Fatalf("the group is held until %v", until)
			}
			// A shorter hold changes nothing; a final nack holds, too.
			minute := time.Minute
			nack := queue.NackParams{Lease: queue.Lease{ID: ids[1], Receipt: events[1].Receipt}, HoldGroup: &minute, Final: true}
			for range 2 {
				if result, err := b.Nack(t.Context(), nack); err != nil || result.Outcome != queue.Failed {
					t.Fatal(result, err)
				}
			}
			if again := b.holdsUntil(t, "a"); !again.Equal(*until) {
				t.Errorf("after a shorter hold the group is held until %v, not %v", again, until)
			}
			b.insertGrouped(t, "q", "a")
			b.wantClaimed(t, "q", "after an insert and a final nack")
			b.exec(t, `update agent.queue_group set held_until = now()`)
			b.exec(t, `update agent_private.group_wake set at = now()`)
			if got := b.claimSQL(t, "q"); len(got) < 2 || !slices.Contains(got, ids[0]) {
				t.Errorf("when the hold is over, claimed %v", got)
			}
		})
	}
	b := setup(t, nil)
	id := b.insertGrouped(t, "q", "")[0]
	e := b.claim(t, queue.ClaimParams{Queue: "q"}, 1)[0]
	hold := time.Hour
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: queue.Lease{ID: id, Receipt: e.Receipt}, HoldGroup: &hold}); err != nil {
		t.Errorf("without a group: %v", err)
	}
	b.wantClaimed(t, "q", "without a group", id)
	hold = -time.Second
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: queue.Lease{ID: id, Receipt: e.Receipt}, HoldGroup: &hold}); !isInvalid(err, "hold_group") {
		t.Errorf("a hold that is negative: %v", err)
	}
}

// A transaction that has the group locked, for as long as it likes, keeps no nack waiting, and nobody from holding the group.
func TestANackHoldsAGroupThatIsLocked(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"concurrency": 3}`)
	ids := b.insertGrouped(t, "q", "a", "a")
	e := b.claim(t, queue.ClaimParams{Queue: "q", Limit: 1}, 1)[0]
	other := pgtest.Connect(t, b.url)
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var third int64 // admitted before the nack, and visible after it
	if err := tx.QueryRow(t.Context(), `select id from agent_service.insert_and_claim_events(array['{}'::jsonb], array['q'], null, null, _options => array['{"group": "a", "type": "t"}'::jsonb])`).Scan(&third); err != nil {
		t.Fatal(err)
	}
	hour := time.Hour
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: queue.Lease{ID: ids[0], Receipt: e.Receipt}, HoldGroup: &hour}); err != nil {
		t.Fatal(err)
	}
	if until := b.holdsUntil(t, "a"); until == nil {
		t.Error("the group is not held while it is locked")
	}
	b.wantClaimed(t, "q", "while the group is locked")
	if written := pgtest.Query[bool](t, b.sql, `select exists (select from agent.queue_group where held_until > now())`); written {
		t.Error("the hold was written to a group that somebody has locked")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if tx, err = other.Begin(t.Context()); err != nil { // another claim is about to write the hold to the group
		t.Fatal(err)
	}
	for _, lock := range []string{`select from agent.queue_group for update`, `select from agent_private.group_wake for update`} {
		if _, err := tx.Exec(t.Context(), lock); err != nil {
			t.Fatal(err)
		}
	}
	b.wantClaimed(t, "q", "while somebody else has the hold locked")
	if n := pgtest.Query[int64](t, b.sql, `select count(*) from agent.claim_events('q', 10, _types => array['t'])`); n != 0 {
		t.Errorf("while somebody else has the hold locked, claimed %d events of the type", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.insertGrouped(t, "q", "a")
	b.wantClaimed(t, "q", "when the group is locked no more")
	if waiting := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event where vt > '9999-01-01'`); waiting != 4 {
		t.Errorf("%d events wait, want 4", waiting)
	}
	if written := pgtest.Query[bool](t, b.sql, `select exists (select from agent.queue_group where held_until > now())`); !written {
		t.Error("the hold was not written to the group")
	}
	if err := b.DeleteGroup(t.Context(), "q", "a", nil); err != nil {
		t.Fatal(err)
	}
	if got := b.claimSQL(t, "q"); len(got) != 3 || !slices.Contains(got, ids[0]) || !slices.Contains(got, ids[1]) || !slices.Contains(got, third) {
		t.Errorf("at the end of the hold, claimed %v, want %v and %d", got, ids, third)
	}
}

// claimedAt returns when the events of a group were claimed, in order, as those in the queue and history have it.
func (b env) claimedAt(t *testing.T, group string) []time.Time {
	t.Helper()
	return pgtest.Query[[]time.Time](t, b.sql, `
		select coalesce(array_agg(c order by c), '{}') from
		(select unnest(claimed) as c from agent.event where group_key = $1 union all select unnest(claimed) from agent.event_hist where group_key = $1) as c`, group)
}

// wantNext fails the test unless a claim gets nothing now, and these events when the next of a group can be claimed, which is in about so long.
func (b env) wantNext(t *testing.T, q, when string, in time.Duration, want ...int64) {
	t.Helper()
	b.wantClaimed(t, q, when+", at once")
	due := pgtest.Query[time.Duration](t, b.sql, `select agent_service.next_vt($1)`, q)
	if due > in || due < in-10*time.Second {
		t.Errorf("%s: the next one can be claimed in %s, want %s", when, due, in)
	}
	b.exec(t, `update agent.event set vt = vt - $2::interval where queue = $1 and flow = 1 and vt > clock_timestamp()`, q, due+time.Millisecond)
	b.exec(t, `update agent.queue_group set tat = tat - $2::interval, last_claim = last_claim - $2::interval where queue = $1`, q, due+time.Millisecond)
	b.wantClaimed(t, q, when+", when it is due", want...)
}

func TestAGroupIsClaimedNoFasterThanItsRate(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"rate": {"limit": 1, "period": "1 minute", "burst": 2}}`)
	ids := b.insertGrouped(t, "q", "a", "a", "a", "b", "")
	b.wantClaimed(t, "q", "at first", ids[0], ids[1], ids[3], ids[4])
	b.wantClaimed(t, "q", "after the burst")
	if why := pgtest.Query[string](t, b.sql, `select blocked_by ->> 'reason' from agent.list_groups('q', _group => 'a')`); why != "rate" {
		t.Errorf("the group is blocked by %s", why)
	}
	b.wantNext(t, "q", "after the burst", time.Minute, ids[2])
	// Retries count, lost leases, too.
	b.exec(t, `select agent.nack_event($1, null)`, ids[0])
	b.wantNext(t, "q", "after a nack", time.Minute, ids[0])
	b.endLease(t, ids[1])
	b.wantNext(t, "q", "after a lost lease", time.Minute, ids[1])
	// What is released does not count, as it was claimed last.
	b.exec(t, `update agent.event set receipt_hash = agent_private.token_hash('0123456789abcdef') where id = any ($1)`, ids[:3])
	b.exec(t, `select agent.release_event($1::int8, $1::int8 || '.2.0123456789abcdef')`, ids[1])
	b.wantClaimed(t, "q", "after a release", ids[1])
	b.exec(t, `select agent.release_event($1::int8, $1::int8 || '.1.0123456789abcdef')`, ids[2])
	b.wantNext(t, "q", "after a release of what was claimed before others", time.Minute, ids[2])
	b.exec(t, `select agent.delete_events(array_agg(id)) from agent.event`)
	ids = b.insertGrouped(t, "q", "a", "a")
	b.wantClaimed(t, "q", "after acks")
	b.limit(t, "q", `null`)
	b.wantClaimed(t, "q", "without a rate", ids...)

	b.limit(t, "one", `{"concurrency": 10}`)
	b.exec(t, `select agent.put_group('one', 'a', '{"rate": {"limit": 2, "period": "4 minutes"}}')`)
	ids = b.insertGrouped(t, "one", "a", "b", "a", "b", "a")
	b.wantClaimed(t, "one", "with a rate of one group", ids[0], ids[1], ids[3])
	b.wantNext(t, "one", "of it", 2*time.Minute, ids[2])
	b.exec(t, `select agent.delete_group('one', 'a')`)
	b.wantClaimed(t, "one", "without it", ids[4])
	for _, flow := range []string{`{"rate": 1}`, `{"rate": {"limit": 1}}`, `{"rate": {"period": "1 s"}}`, `{"rate": {"limit": 0, "period": "1 s"}}`, `{"rate": {"limit": 1, "period": "1 ms"}}`, `{"rate": {"limit": 1, "period": "1 s", "burst": 0}}`, `{"rate": {"limit": 1, "period": "1 s", "at": 0}}`} {
		_, err := b.sql.Exec(t.Context(), `select agent.put_queue('q', jsonb_build_object('flow', $1::jsonb))`, flow)
		if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); !isAnswer || pgErr.Code != "QD003" {
			t.Errorf("%s: %v", flow, err)
		}
	}
}

// To run an event makes it due. One that its rate has put off is due already.
func TestToRunEventsKeepsTheRate(t *testing.T) {
	t.Parallel()
	for name, flow := range map[string]string{
		"a rate": `{"rate": {"limit": 1, "period": "1 h"}}`, "and order": `{"rate": {"limit": 1, "period": "1 h"}, "order": true}`, "and turns": `{"rate": {"limit": 1, "period": "1 h"}, "fair": true}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", flow)
			ids := b.insertGrouped(t, "q", "a", "a")
			b.wantClaimed(t, "q", "at first", ids[0])
			b.exec(t, `select agent.delete_event($1)`, ids[0])
			if n := pgtest.Query[int64](t, b.sql, `select agent.run_queue('q')`); n != 0 {
				t.Errorf("%d events were run", n)
			}
			b.wantClaimed(t, "q", "when the queue was run")
			b.exec(t, `select agent.run_event($1)`, ids[1])
			b.wantClaimed(t, "q", "when the event was run")
		})
	}
}

// What is released has its token back, and comes before what was admitted ahead for later.
func TestAReleasedEventIsClaimedAgainBeforeWhatTheRateHasPutOff(t *testing.T) {
	t.Parallel()
	for name, burst := range map[string]int{"a burst of one": 1, "a burst of three": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", fmt.Sprintf(`{"rate": {"limit": 1, "period": "1 hour", "burst": %d}}`, burst))
			ids := b.insertGrouped(t, "q", "a", "a", "a", "a", "a")
			for range 2 {
				events := b.claim(t, queue.ClaimParams{Queue: "q", Limit: 5}, burst)
				leases := make([]queue.Lease, burst)
				for i, e := range events {
					if e.ID != ids[i] {
						t.Errorf("claimed %d as number %d, want %d", e.ID, i, ids[i])
					}
					leases[i] = lease(e)
				}
				if err := b.Release(t.Context(), leases); err != nil {
					t.Fatal(err)
				}
			}
			b.wantClaimed(t, "q", "after releases", ids[:burst]...)
			b.wantClaimed(t, "q", "after the burst")
		})
	}
}

// An event with a lower id that is moved into a group in order comes first, unless the admitted one was claimed.
func TestAnEventThatIsMovedIntoAGroupInOrderTakesItsPlace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		delay  string
		nacked bool
	}{"due": {}, "delayed": {delay: "1 hour"}, "behind one that was claimed": {nacked: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", `{"order": true}`)
			first := b.insertGrouped(t, "source", "a")[0]
			second := b.insertGrouped(t, "q", "a")[0]
			if test.delay != "" {
				b.exec(t, `update agent.event set vt = now() + $2::interval where id = $1`, first, test.delay)
			}
			if test.nacked {
				b.wantClaimed(t, "q", "before the move", second)
				b.exec(t, `select agent.nack_event($1, null)`, second)
			}
			b.exec(t, `select agent.move_events('source', 'q')`)
			switch {
			case test.nacked:
				b.wantClaimed(t, "q", "after the move", second)
			case test.delay != "":
				b.wantClaimed(t, "q", "while the first one is delayed")
			default:
				b.wantClaimed(t, "q", "after the move", first)
				b.exec(t, `select agent.delete_event($1)`, first)
				b.wantClaimed(t, "q", "after the first one", second)
			}
		})
	}
}

func TestAGroupInOrderKeepsItsOrderAtItsRate(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"order": true, "rate": {"limit": 1, "period": "1 minute"}}`)
	ids := b.insertGrouped(t, "q", "a", "a", "a")
	b.wantClaimed(t, "q", "at first", ids[0])
	b.exec(t, `select agent.nack_event($1, null)`, ids[0])
	b.wantNext(t, "q", "after a nack", time.Minute, ids[0])
	b.exec(t, `select agent.delete_event($1)`, ids[0])
	b.wantNext(t, "q", "after an ack", time.Minute, ids[1])
}

func TestAClaimThatWaitsIsWokenWhenTheRateLetsTheNextOneThrough(t *testing.T) {
	t.Parallel()
	patient := func(cfg *queue.Config) { cfg.PollInterval = time.Hour } // who is not told waits for ever
	b := setup(t, patient)
	runService(t, b.Service)
	other := anotherService(t, b.url, patient)
	runService(t, other)
	b.limit(t, "q", `{"rate": {"limit": 10, "period": "1 s"}}`)
	for range 6 {
		b.insertEvents(t, queue.InsertParams{Queue: "q", Group: "g"})
	}
	for i := range 6 {
		waits := []*queue.Service{b.Service, other}[i%2]
		events, err := waits.Claim(t.Context(), queue.ClaimParams{Queue: "q", Limit: 10, Wait: time.Minute})
		if err != nil || len(events) != 1 {
			t.Fatalf("claim %d got %d events, %v", i, len(events), err)
		}
	}
	claimed := b.claimedAt(t, "g")
	for i := 1; i < len(claimed); i++ {
		if d := claimed[i].Sub(claimed[i-1]); d < 100*time.Millisecond {
			t.Errorf("claim %d came %s after the one before", i, d)
		}
	}
	if took := claimed[5].Sub(claimed[0]); took > 20*time.Second {
		t.Errorf("six claims took %s", took)
	}
}

func TestEventsOfAGroupAreListedInTheOrderOfAll(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"concurrency": 5}`)
	for i := range 60 {
		b.exec(t, `select agent.insert_event(jsonb_build_object('n', $1::int % 2), 'q', _delay => make_interval(secs => $1 % 4 * 100), _priority => $1 % 3, _group => (array['a', 'b', null])[$1 % 5 % 3 + 1])`, i)
	}
	b.insertGrouped(t, "other", "a", "a")
	b.exec(t, `select agent.claim_events('q', 6)`)
	for _, state := range []queue.State{"", queue.Ready, queue.Scheduled, queue.Leased, queue.AwaitingTurn} {
		for _, contains := range []string{"", `{"n": 1}`} {
			p := queue.ListParams{Queue: "q", State: state, Limit: 1000}
			if contains != "" {
				p.Contains = json.RawMessage(contains)
			}
			all, err := b.List(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			var want, got []int64
			for _, e := range all.Events {
				if e.Group == "a" {
					want = append(want, e.ID)
				}
			}
			p.Group, p.Limit = "a", 4
			for {
				page, err := b.List(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range page.Events {
					got = append(got, e.ID)
				}
				if p.Cursor = page.Next; p.Cursor == "" {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("state %q, containing %q: listed %v, want %v", state, contains, got, want)
			}
			if state != "" && state != queue.Leased && contains == "" && len(want) == 0 {
				t.Errorf("no event of the group is %s", state)
			}
		}
	}
	if page, err := b.List(t.Context(), queue.ListParams{Queue: "q", Group: "a", Queues: []string{"other"}}); err != nil || len(page.Events) > 0 {
		t.Errorf("who may not use the queue gets %v: %v", page.Events, err)
	}
}

func TestSettingsOfAGroupThatAreRefusedAreNamed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for settings, field := range map[string]string{
		`{"paused": 1}`:                                   "paused",
		`{"paused": "yes"}`:                               "paused",
		`{"hold": "a while"}`:                             "hold",
		`{"hold": 30}`:                                    "hold",
		`{"hold": "1e30 s"}`:                              "hold",
		`{"held_until": "soon enough"}`:                   "held_until",
		`{"held_until": true}`:                            "held_until",
		`{"held_until": "2027-13-01"}`:                    "held_until",
		`{"held_until": "infinity"}`:                      "held_until",
		`{"concurrency": "2"}`:                            "concurrency",
		`{"rate": {"limit": 1}}`:                          "rate/period",
		`{"rate": 10}`:                                    "rate",
		`{"limit": 1}`:                                    "limit",
		`{"rate": {"period": "1 s"}}`:                     "rate/limit",
		`{"hold": {}}`:                                    "hold",
		`{"hold": "1 s", "held_until": "2027-01-01"}`:     "hold",
		`{"rate": {"limit": 1, "period": "soon"}}`:        "rate/period",
		`{"rate": {"limit": 1, "period": 1}}`:             "rate/period",
		`{"rate": {"limit": 1, "period": "1 s", "x": 1}}`: "rate",
	} {
		_, err := b.sql.Exec(t.Context(), `select agent.put_group('q', 'a', $1)`, settings)
		if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); !isAnswer || pgErr.Code != "QD003" || pgErr.ColumnName != field {
			t.Errorf("%s: %v, want QD003 about %s", settings, err, field)
		}
	}
	b.exec(t, `select agent.put_group('q', 'a', '{"paused": null, "hold": null, "held_until": null, "rate": null, "concurrency": null}')`)
}
