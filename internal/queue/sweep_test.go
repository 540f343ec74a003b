package queue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func TestSweepSkipsRunningLeases(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{}`)
	e := b.claim(t, queue.ClaimParams{MaxAttempts: 1}, 1)[0]
	b.exec(t, `update agent.event set enqueued_at = now() - interval '1 year', claimed = array[now() - interval '1 year']`)
	age := time.Duration(0)
	sweep := queue.SweepParams{MaxAttempts: 1, MaxVTAge: &age}
	if n, err := b.Sweep(t.Context(), sweep); n != 0 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	b.endLease(t, e.ID)
	if n, err := b.Sweep(t.Context(), sweep); n != 1 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if h := b.get(t, e.ID); h.Outcome != queue.Expired {
		t.Errorf("history has %+v", h)
	}
}

func TestSweepExpiresByAttemptsAndByAge(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertN(t, "", 5)
	b.exec(t, `update agent.event set attempts = 3 where id = $1`, ids[0])
	b.exec(t, `update agent.event set vt = now() - interval '2 hours' where id = $1`, ids[1])
	b.exec(t, `update agent.event set vt = now() + interval '2 hours', attempts = 9 where id = $1`, ids[2])
	b.exec(t, `update agent.event set vt = now() - interval '2 hours', queue = 'other' where id = $1`, ids[3])

	hour := time.Hour
	for _, step := range []struct {
		what string
		p    queue.SweepParams
		want int64
	}{
		{"by attempts alone", queue.SweepParams{}, 1},
		{"another queue by age", queue.SweepParams{MaxVTAge: &hour, Queue: "other"}, 1},
		{"by age", queue.SweepParams{MaxVTAge: &hour}, 1},
		{"again", queue.SweepParams{MaxVTAge: &hour}, 0},
	} {
		if n, err := b.Sweep(t.Context(), step.p); n != step.want || err != nil {
			t.Errorf("%s: swept %d, %v; want %d", step.what, n, err, step.want)
		}
	}
	for _, i := range []int{0, 1, 3} {
		if e := b.get(t, ids[i]); e.Outcome != queue.Expired {
			t.Errorf("event %d ended as %q", i, e.Outcome)
		}
	}
	for _, i := range []int{2, 4} {
		if e := b.get(t, ids[i]); e.Outcome != "" {
			t.Errorf("event %d ended as %q", i, e.Outcome)
		}
	}
}

func TestEventsThatWaitForTheTotalOfTheirQueueAreNotOverAge(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	if _, err := b.PutPolicy(t.Context(), queue.Policy{Queue: "q", Flow: &queue.Flow{Total: new(1)}}, queue.Precondition{}); err != nil {
		t.Fatal(err)
	}
	b.insertN(t, "q", 2)
	first := b.claim(t, queue.ClaimParams{Queue: "q"}, 1)[0]
	b.exec(t, `update agent.event set vt = now() - interval '2 hours' where id <> $1`, first.ID)
	b.exec(t, `update agent.queue set resumed_at = now() - interval '2 hours'`) // when it was created
	hour := time.Hour
	for _, name := range []string{"q", ""} {
		if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxVTAge: &hour, Queue: name}); n != 0 || err != nil {
			t.Errorf("in %q: swept %d, %v", name, n, err)
		}
	}
	b.endLease(t, first.ID)
	if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxVTAge: &hour, Queue: "q"}); n != 1 || err != nil {
		t.Errorf("with a free place: swept %d, %v", n, err)
	}
}

func TestSweepExpiresEveryExhaustedEvent(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `insert into agent.event (event, attempts) select '{}', 5 from generate_series(1, 2500)`)
	if n, err := b.Sweep(t.Context(), queue.SweepParams{}); n != 2500 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
}

func TestRunningServiceSweepsByAttemptsOnly(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.SweepInterval = 10 * time.Millisecond })
	ids := b.insertN(t, "", 2)
	b.exec(t, `update agent.event set vt = now() - interval '1 year'`)
	b.exec(t, `update agent.event set attempts = 3 where id = $1`, ids[0])
	runService(t, b.Service)
	deadline := time.Now().Add(20 * time.Second)
	for b.get(t, ids[0]).Outcome != queue.Expired {
		if time.Now().After(deadline) {
			t.Fatal("nothing was swept")
		}
	}
	if e := b.get(t, ids[1]); e.State != queue.Ready {
		t.Errorf("an old event that was never claimed is %+v", e)
	}
}

func TestRunningServiceSweepsByAgeWhenConfigured(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.SweepInterval, c.MaxVTAge = 10*time.Millisecond, time.Hour })
	ids := b.insertN(t, "", 2)
	b.exec(t, `update agent.event set vt = now() - interval '2 hours' where id = $1`, ids[0])
	runService(t, b.Service)
	deadline := time.Now().Add(20 * time.Second)
	for b.get(t, ids[0]).Outcome != queue.Expired {
		if time.Now().After(deadline) {
			t.Fatal("nothing was swept")
		}
	}
	if e := b.get(t, ids[1]); e.State != queue.Ready {
		t.Errorf("a young event is %+v", e)
	}
}

func TestEventsOfAPausedQueueDoNotAge(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 3)
	b.insertN(t, "busy", 1)
	b.exec(t, `update agent.event set vt = now() - interval '2 hours'`)
	hour := time.Hour
	sweep := func(what string, p queue.SweepParams, want int64) {
		t.Helper()
		p.MaxVTAge = &hour
		if n, err := b.Sweep(t.Context(), p); n != want || err != nil {
			t.Errorf("%s: swept %d, %v, want %d", what, n, err, want)
		}
	}
	if err := b.Pause(t.Context(), queue.Default); err != nil {
		t.Fatal(err)
	}
	sweep("while it is paused", queue.SweepParams{Queue: queue.Default}, 0)
	sweep("all queues", queue.SweepParams{}, 1) // the other one
	for _, resume := range []func() error{
		func() error { return b.Resume(t.Context(), queue.Default) },
		func() error {
			_, err := b.PutPolicy(t.Context(), queue.Policy{Queue: queue.Default}, queue.Precondition{})
			return err
		},
	} {
		if err := b.Pause(t.Context(), queue.Default); err != nil {
			t.Fatal(err)
		}
		b.exec(t, `update agent.queue set resumed_at = now() - interval '2 hours'`)
		if err := resume(); err != nil {
			t.Fatal(err)
		}
		sweep("when it is resumed", queue.SweepParams{}, 0)
	}
	b.exec(t, `update agent.queue set resumed_at = now() - interval '61 minutes'`)
	b.policy(t, queue.Policy{MaxAttempts: new(6)}) // which does not resume the queue
	b.exec(t, `update agent.event set vt = now() where id in (select id from agent.event limit 1)`)
	sweep("an hour later", queue.SweepParams{}, 2)
}

func TestEventRefusedByHistoryDoesNotStopTheSweep(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	var log logBuffer
	b := setup(t, func(c *queue.Config) { c.Logger = zerolog.New(&log) })
	ids := b.insertN(t, "", 1000)
	ids = append(ids, b.insertN(t, "", 200)...)
	b.exec(t, `update agent.event set attempts = 3, vt = now() - interval '1 minute'`)
	bad := []int64{ids[3], ids[1100]}
	b.exec(t, `create table public.bad (id int8)`)
	b.exec(t, `insert into public.bad select unnest($1::int8[])`, bad)
	b.exec(t, `
		create function public.refuse() returns trigger language plpgsql as $$ begin
			if exists (select from public.bad b where b.id = new.id) then raise exception 'no room for this one'; end if;
			return new;
		end $$`)
	b.exec(t, `create trigger refuse before insert on agent.event_hist for each row execute function public.refuse()`)
	for try, want := range []int64{1198, 0} {
		if n, err := b.Sweep(t.Context(), queue.SweepParams{}); n != want || err != nil {
			t.Errorf("sweep %d: swept %d, %v, want %d", try, n, err, want)
		}
	}
	for _, id := range bad {
		if e := b.get(t, id); e.State == "" || e.VT.Before(time.Now().Add(30*time.Minute)) {
			t.Errorf("the event is %+v", e)
		}
		if reason := fmt.Sprintf("event %d: no room for this one", id); !strings.Contains(log.String(), reason) {
			t.Errorf("the log does not have %q", reason)
		}
	}
}

// An event whose last attempt ended by a nack has failed, whoever says how many attempts there are; one that was too old, or whose lease lapsed, has expired.
func TestSweepSaysWhetherTheLastAttemptFailed(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 3)
	claimed := b.claim(t, queue.ClaimParams{Limit: 3, MaxAttempts: 1}, 3)
	b.nackAnHourAgo(t, claimed[:2], 0)
	b.exec(t, `update agent.event set expires_at = now() - interval '1 s' where id = $1`, claimed[1].ID)
	b.endLease(t, claimed[2].ID)
	if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxAttempts: 1}); n != 3 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	for i, want := range []queue.Outcome{queue.Failed, queue.Expired, queue.Expired} {
		b.wantEnded(t, claimed[i].ID, want, want == queue.Failed)
	}
	if counts := b.countersOf("default"); counts.Failed != 1 || counts.Expired != 2 {
		t.Errorf("counted %+v", counts)
	}
}

// nackAnHourAgo fails the events, which are leased; the database then says that they were claimed and failed an hour ago.
func (b env) nackAnHourAgo(t *testing.T, events []queue.Event, delay time.Duration) {
	t.Helper()
	for _, e := range events {
		if _, err := b.Nack(t.Context(), queue.NackParams{Lease: queue.Lease{ID: e.ID, Receipt: e.Receipt}, Error: "no", Delay: &delay}); err != nil {
			t.Fatal(err)
		}
	}
	b.exec(t, `update agent.event set claimed = array[claimed[1] - interval '1 hour'], nacked_at = nacked_at - interval '1 hour' where nacked_at is not null`)
}

// wantEnded checks an event in the history: its outcome, and that it has a processing time, of less than a minute, if hasProcessing.
func (b env) wantEnded(t *testing.T, id int64, want queue.Outcome, hasProcessing bool) {
	t.Helper()
	if h := b.get(t, id); h.Outcome != want || h.Processing != nil && *h.Processing > time.Minute || (h.Processing != nil) != hasProcessing {
		t.Errorf("event %d: history has %s after %v, want %s", id, h.Outcome, h.Processing, want)
	}
}

// An event that waits for its retry, and is deleted by somebody who does not work on it, is cancelled, and its wait is no work.
func TestDeletionOfAnEventThatWaitsForItsRetryCancelsIt(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 2)
	claimed := b.claim(t, queue.ClaimParams{Limit: 2}, 2)
	b.nackAnHourAgo(t, claimed, time.Hour)
	for i, c := range []struct {
		receipt string
		want    queue.Outcome
	}{{"", queue.Cancelled}, {claimed[1].Receipt, queue.Done}} {
		if _, err := b.Ack(t.Context(), []queue.Ack{{Lease: queue.Lease{ID: claimed[i].ID, Receipt: c.receipt}}}); err != nil {
			t.Fatal(err)
		}
		b.wantEnded(t, claimed[i].ID, c.want, c.want == queue.Done)
	}
}
