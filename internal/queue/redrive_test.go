package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// setupHistory is setup with n events of the queue "a" in history, which failed, a second of event_ts apart.
func setupHistory(t *testing.T, n int, change func(*queue.Config)) env {
	t.Helper()
	b := setup(t, change)
	b.addHistory(t, "a", "failed", n)
	return b
}

// addHistory adds n events of a queue to history, the last of which has happened a minute ago.
func (b env) addHistory(t *testing.T, q, outcome string, n int) {
	t.Helper()
	b.exec(t, `select agent.prepare_history()`)
	b.exec(t, `
		insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
		select nextval(pg_get_serial_sequence('agent.event', 'id')), now() - make_interval(secs => 60 + $3 - i), 1, now(), array[now()], jsonb_build_object('n', i), $1, now(), $2, now()
		from generate_series(1, $3::int) i`, q, outcome, n)
}

func (b env) redrive(t *testing.T, p queue.RedriveParams) queue.Redrive {
	t.Helper()
	made, _, err := b.CreateRedrive(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

var failedOfA = queue.HistoryFilter{Queue: "a", Outcome: queue.Failed}

// awaitRedrive waits until a redrive has a state.
func (b env) awaitRedrive(t *testing.T, id int64, state queue.RedriveState) (r queue.Redrive) {
	t.Helper()
	eventually(t, "the redrive is "+string(state), func() (is bool) {
		var err error
		if r, err = b.GetRedrive(t.Context(), id, nil); err != nil {
			t.Fatal(err)
		}
		return r.State == state
	})
	return r
}

// checkRedriven checks that n events of history have exactly one copy each, which it names, and that there are no others.
func (b env) checkRedriven(t *testing.T, n int) {
	t.Helper()
	once := pgtest.Query[int](t, b.sql, `
		select count(*) from agent.event_hist h
		where h.requeued_as = (select e.id from (select id, requeued_from from agent.event union all select id, requeued_from from agent.event_hist) e where e.requeued_from = h.id)`)
	if all := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where requeued_from is not null`); once != n || all != n {
		t.Errorf("%d events of history have one copy each, and %d copies wait; want %d", once, all, n)
	}
}

func TestRedriveRequeuesWhatItsFilterMatches(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 2500, nil)
	b.addHistory(t, "b", "failed", 10)
	b.addHistory(t, "a", "done", 10)
	before := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA})
	if before.Matched != 2500 || before.IsEstimate || before.State != queue.RedriveRunning || before.CreatedBy == "" {
		t.Errorf("created was %+v", before)
	}
	b.addHistory(t, "a", "failed", 10) // too late
	runService(t, b.Service)
	r := b.awaitRedrive(t, before.ID, queue.RedriveDone)
	if r.Requeued != 2500 || r.Skipped != 0 || r.FinishedAt == nil || r.Reason != "" {
		t.Errorf("done was %+v", r)
	}
	b.checkRedriven(t, 2500)
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue = 'a' and attempts = 0 and vt <= clock_timestamp()`); n != 2500 {
		t.Errorf("%d events can be claimed from their queue, want 2500", n)
	}
	for _, c := range b.Counters() {
		if c.Queue == "a" && (c.Redriven != 2500 || c.Requeued != 2500) {
			t.Errorf("counted were %+v", c)
		}
	}
	again := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA})
	if again.Matched != 10 {
		t.Errorf("the next one matches %d events, want the 10 that have no copy", again.Matched)
	}
	b.awaitRedrive(t, again.ID, queue.RedriveDone)
	b.checkRedriven(t, 2510)
}

func TestRedriveFiltersAsHistoryDoes(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	done, failed, expired, cancelled := finish(t, b, "x", time.Now().Add(-time.Hour))
	b.addHistory(t, "a", "failed", 20)
	b.exec(t, `update agent.event_hist set type = 't', source = 's', worker = 'w', last_error = 'status 503 from 10.0.3.17:25 after 30ms', meta = '{"m": 1}', claimed = array[now() - interval '2 minutes'] where queue = 'a' and event @> '{"n": 7}'`)
	at := func(d time.Duration) *time.Time { v := time.Now().Add(d); return &v }
	minute := time.Minute
	runService(t, b.Service)
	for i, f := range []struct {
		filter queue.HistoryFilter
		want   int64
	}{
		{queue.HistoryFilter{Queue: "a", Cause: "status 404 from <address> after <duration>"}, 0},
		{queue.HistoryFilter{Queue: "a", Cause: "status 503 from <address> after <duration>", Source: "s", Worker: "w", Meta: json.RawMessage(`{"m": 1}`), Contains: json.RawMessage(`{"n": 7}`), MinDuration: &minute}, 1},
		{queue.HistoryFilter{Type: "t"}, 0}, // again
		{queue.HistoryFilter{Queue: "x"}, 4},
		{queue.HistoryFilter{Outcome: queue.Failed, To: at(-75 * time.Second)}, 4},
		{queue.HistoryFilter{From: at(-75 * time.Second)}, 15},
		{queue.HistoryFilter{Queue: "nowhere"}, 0},
	} {
		r := b.awaitRedrive(t, b.redrive(t, queue.RedriveParams{HistoryFilter: f.filter}).ID, queue.RedriveDone)
		if r.Matched != r.Requeued || r.Requeued < f.want-1 || r.Requeued > f.want+1 || f.filter.To == nil && f.filter.From == nil && r.Requeued != f.want {
			t.Errorf("redrive %d of %+v: matched %d, requeued %d, want %d", i, f.filter, r.Matched, r.Requeued, f.want)
		}
	}
	for _, id := range []int64{done, failed, expired, cancelled} {
		if b.get(t, id).RequeuedAs == nil {
			t.Errorf("event %d was not requeued", id)
		}
	}
	b.checkRedriven(t, 24)
}

func TestRedriveIntoAnotherQueue(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 5, nil)
	waiting := make(chan []queue.Event, 1)
	runService(t, b.Service)
	go func() {
		events, _ := b.Claim(t.Context(), queue.ClaimParams{Queue: "b", Limit: 1, Wait: time.Minute})
		waiting <- events
	}()
	eventually(t, "a claim waits", func() bool { return queue.Waiting(b.Service) == 1 })
	r := b.awaitRedrive(t, b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA, ToQueue: "b"}).ID, queue.RedriveDone)
	if r.Requeued != 5 || r.ToQueue != "b" {
		t.Errorf("the redrive is %+v", r)
	}
	if events := <-waiting; len(events) != 1 || events[0].RequeuedFrom == nil {
		t.Errorf("the claim that waited has %+v", events)
	}
	b.checkRedriven(t, 5)
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue = 'b'`); n != 5 {
		t.Errorf("%d events are in the queue, want 5", n)
	}
}

// TestRedriveRequeuesEachEventOnceWhateverDies kills the sessions of two services while they make steps, and stops the one and the other.
func TestRedriveRequeuesEachEventOnceWhateverDies(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	const n = 3000
	b := setupHistory(t, n, nil)
	b.addHistory(t, "a", "expired", 500)
	r := b.redrive(t, queue.RedriveParams{HistoryFilter: queue.HistoryFilter{Queue: "a"}, Rate: 1000})
	// Stops the services in turn: the other one goes on when the lease has ended.
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer running.Wait()
	defer cancel()
	for range 2 {
		running.Go(func() {
			for ctx.Err() == nil {
				s := anotherService(t, b.url, nil) //nolint:contextcheck // it is closed at the end of the test
				life, end := context.WithTimeout(ctx, 3*time.Second)
				_ = s.Run(life)
				end()
			}
		})
	}
	killed := 0
	eventually(t, "the redrive is done", func() bool {
		if killed < 10 {
			killed += pgtest.Query[int](t, b.sql, `
				select count(pg_terminate_backend(a.pid)) from pg_stat_activity a
				where a.datname = current_database() and a.pid <> pg_backend_pid() and a.query like '%redrive_step%' and a.state <> 'idle'`)
		}
		got, err := b.GetRedrive(t.Context(), r.ID, nil)
		return err == nil && got.State == queue.RedriveDone
	})
	cancel()
	running.Wait()
	t.Logf("%d sessions were killed", killed)
	got, err := b.GetRedrive(t.Context(), r.ID, nil)
	if err != nil || got.Requeued != n+500 || got.Skipped != 0 {
		t.Errorf("done was %+v, %v", got, err)
	}
	b.checkRedriven(t, n+500)
}

func TestRedriveBesideRequeuesOfTheSameEvents(t *testing.T) {
	t.Parallel()
	const n = 2000
	b := setupHistory(t, n, nil)
	r := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA, Rate: 5000})
	runService(t, b.Service)
	var byHand int64
	for {
		got, err := b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: failedOfA, Limit: 50})
		if err != nil {
			t.Fatal(err)
		}
		if byHand += got.Requeued; got.Requeued == 0 {
			break
		}
	}
	done := b.awaitRedrive(t, r.ID, queue.RedriveDone)
	if byHand+done.Requeued != n {
		t.Errorf("%d events were requeued by calls and %d by the redrive, want %d in all", byHand, done.Requeued, n)
	}
	if done.Requeued+done.Skipped != done.Matched {
		t.Errorf("of %d events that matched %d were requeued and %d skipped", done.Matched, done.Requeued, done.Skipped)
	}
	b.checkRedriven(t, n)
}

func TestPausedAndCancelledRedrivesRequeueNothing(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 2000, nil)
	r := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA, Rate: 500})
	runService(t, b.Service)
	runService(t, anotherService(t, b.url, nil))
	some := func(least int64) {
		eventually(t, fmt.Sprintf("%d events are requeued", least), func() bool {
			got, err := b.GetRedrive(t.Context(), r.ID, nil)
			return err == nil && got.Requeued >= least
		})
	}
	for round := range int64(3) {
		some(1 + 100*round)
		paused, err := b.PauseRedrive(t.Context(), r.ID, nil)
		if err != nil || paused.State != queue.RedrivePaused {
			t.Fatalf("the pause returned %+v, %v", paused, err)
		}
		b.checkRedriven(t, int(paused.Requeued))
		b.exec(t, `select agent_service.redrive_step('another')`) // a process that does not know of the pause
		b.checkRedriven(t, int(paused.Requeued))
		if again, err := b.PauseRedrive(t.Context(), r.ID, nil); err != nil || again.Requeued != paused.Requeued {
			t.Errorf("the second pause returned %+v, %v", again, err)
		}
		if resumed, err := b.ResumeRedrive(t.Context(), r.ID, nil); err != nil || resumed.State != queue.RedriveRunning {
			t.Fatalf("the redrive was resumed as %+v, %v", resumed, err)
		}
	}
	some(400)
	cancelled, err := b.CancelRedrive(t.Context(), r.ID, nil)
	if err != nil || cancelled.State != queue.RedriveCancelled || cancelled.FinishedAt == nil {
		t.Fatalf("the redrive was cancelled as %+v, %v", cancelled, err)
	}
	b.exec(t, `select agent_service.redrive_step('another')`)
	b.checkRedriven(t, int(cancelled.Requeued))
	for name, call := range map[string]func(context.Context, int64, []string) (queue.Redrive, error){"pause": b.PauseRedrive, "resume": b.ResumeRedrive} {
		if _, err := call(t.Context(), r.ID, nil); !errors.Is(err, queue.ErrRedriveEnded) {
			t.Errorf("%s of a cancelled redrive failed with %v, want ErrRedriveEnded", name, err)
		}
	}
	if again, err := b.CancelRedrive(t.Context(), r.ID, nil); err != nil || again.State != queue.RedriveCancelled {
		t.Errorf("the second cancellation returned %+v, %v", again, err)
	}
	if _, err := b.GetRedrive(t.Context(), r.ID+1, nil); !errors.Is(err, queue.ErrRedriveNotFound) {
		t.Errorf("a redrive that there is not was read with %v", err)
	}
}

func TestRedriveKeepsItsRateAmongProcesses(t *testing.T) {
	t.Parallel()
	const n, rate = 900, 300
	b := setupHistory(t, n, nil)
	r := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA, Rate: rate})
	runService(t, b.Service)
	runService(t, anotherService(t, b.url, nil))
	b.awaitRedrive(t, r.ID, queue.RedriveDone)
	// A machine that is slow may make it slower, never faster: the first step comes at once, and up to a second is made good for.
	took := pgtest.Query[float64](t, b.sql, `select extract(epoch from max(e.enqueued_at) - min(e.enqueued_at))::float8 from agent.event e`)
	if least := float64(n)/rate*0.9 - 0.2; took < least {
		t.Errorf("%d events went within %.2f s, want at least %.2f at %d a second", n, took, least, rate)
	}
	most := pgtest.Query[int](t, b.sql, `select max(n) from (select count(*) as n from agent.event group by enqueued_at) x`)
	if most > rate/10 {
		t.Errorf("one step requeued %d events, want at most a tenth of a second's", most)
	}
}

func TestRedriveOfFewAmongManyHasShortSteps(t *testing.T) {
	t.Parallel()
	const n = 30000
	b := setupHistory(t, n, nil)
	b.exec(t, `update agent.event_hist set type = 'rare' where event @> $1`, fmt.Sprintf(`{"n": %d}`, n-1))
	b.exec(t, `vacuum analyze agent.event_hist`)
	r := b.redrive(t, queue.RedriveParams{HistoryFilter: queue.HistoryFilter{Type: "rare"}})
	steps := 0
	for {
		state := pgtest.Query[string](t, b.sql, `select state from agent_service.redrive_step('p')`)
		steps++
		if state == "done" {
			break
		}
	}
	if steps < n/5000 {
		t.Errorf("the redrive is done after %d steps, want at least %d: a step looks at 5,000 events at most", steps, n/5000)
	}
	if got, err := b.GetRedrive(t.Context(), r.ID, nil); err != nil || got.Requeued != 1 || got.Matched != 1 {
		t.Errorf("the redrive is %+v, %v", got, err)
	}
}

func TestRedrivePageReadsARangeOfAnIndex(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 20000, nil)
	b.addHistory(t, "b", "done", 20000)
	b.exec(t, `vacuum analyze agent.event_hist`)
	b.exec(t, `
		create function public.page_plan(id int8) returns setof text language plpgsql
		set enable_seqscan to off set enable_bitmapscan to off set enable_sort to off as $$
		begin
			return query execute 'explain (analyze, timing off) ' || (select agent_private.redrive_scan(r, 100) from agent.redrive r where r.id = $1);
		end $$`)
	for _, filter := range []queue.HistoryFilter{failedOfA, {Queue: "a"}, {Outcome: queue.Failed}, {Contains: json.RawMessage(`{"n": 1}`)}} {
		r := b.redrive(t, queue.RedriveParams{HistoryFilter: filter})
		b.exec(t, `update agent.redrive set cursor_ts = now() - interval '10000 seconds', cursor_id = 10 where id = $1`, r.ID) // in the middle
		plan := pgtest.Query[string](t, b.sql, `select string_agg(l, e'\n') from public.page_plan($1) l`, r.ID)
		if strings.Contains(plan, "Sort Key") && strings.Contains(plan, "Sort Method") || strings.Contains(plan, "Seq Scan on _") || strings.Contains(plan, "Rows Removed by Filter") {
			t.Errorf("a page with the filter %+v is read by\n%s", filter, plan)
		}
	}
}

func TestDeadLettersAreRedrivenWhereTheyCameFrom(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	b.put(t, queue.Policy{Queue: "post", DeadLetter: &queue.DeadLetter{Queue: deadQueue}})
	b.insert(t, "mail", `{"n":1}`, `{"n":2}`, `{"n":3}`)
	b.insert(t, "post", `{"n":4}`)
	var failed []int64
	for range 3 {
		failed = append(failed, b.nackFinally(t))
	}
	fromPost := b.claim(t, queue.ClaimParams{Queue: "post"}, 1)[0]
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(fromPost), Final: true}); err != nil {
		t.Fatal(err)
	}
	inserted := b.insert(t, deadQueue, `{"n":5}`)[0] // no dead letter
	leased := b.claim(t, queue.ClaimParams{Queue: deadQueue}, 1)[0]

	p := queue.RedriveParams{DeadLetterQueue: deadQueue}
	if n, isEstimate, err := b.CountRedrive(t.Context(), p); err != nil || n != 3 || isEstimate {
		t.Errorf("a dry run counts %d, %t, %v; want 3", n, isEstimate, err)
	}
	made := b.redrive(t, p)
	if made.ToQueue != queue.Origin || made.Matched != 3 {
		t.Errorf("created was %+v", made)
	}
	runService(t, b.Service)
	if r := b.awaitRedrive(t, made.ID, queue.RedriveDone); r.Requeued != 3 || r.Skipped != 0 {
		t.Errorf("done was %+v", r)
	}
	if e := b.get(t, leased.ID); e.State != queue.Leased || e.Queue != deadQueue {
		t.Errorf("the dead letter under a lease is %s", describe(e))
	}
	if e := b.get(t, inserted); e.State != queue.Ready || e.Queue != deadQueue {
		t.Errorf("the event that is no dead letter is %s", describe(e))
	}
	for _, id := range append(failed, fromPost.ID) {
		original := b.get(t, id)
		dead := b.get(t, *original.DeadLetteredAs)
		if dead.ID == leased.ID {
			continue
		}
		if dead.Outcome != queue.Cancelled || dead.RequeuedAs == nil {
			t.Fatalf("the dead letter is %s", describe(dead))
		}
		back := b.get(t, *dead.RequeuedAs)
		if back.Queue != original.Queue || back.State != queue.Ready || back.Attempts != 0 || back.Meta != nil || back.DeadLetterOf != nil ||
			*back.RequeuedFrom != dead.ID || string(back.Payload) != string(original.Payload) {
			t.Errorf("back came %s", describe(back))
		}
		if original.RequeuedAs == nil || *original.RequeuedAs != back.ID {
			t.Errorf("the original, which has come back, is %s", describe(original))
		}
	}
	// So none of these is requeued beside what it has come back as.
	again, err := b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: queue.HistoryFilter{Outcome: queue.Failed}, DryRun: true})
	if err != nil || again.Matched != 1 {
		t.Errorf("a filter matches %+v, %v; want the original of the dead letter under a lease alone", again, err)
	}
	b.put(t, queue.Policy{Queue: "elsewhere"})
	if err := b.Release(t.Context(), []queue.Lease{lease(leased)}); err != nil {
		t.Fatal(err)
	}
	r := b.awaitRedrive(t, b.redrive(t, queue.RedriveParams{DeadLetterQueue: deadQueue, ToQueue: "elsewhere"}).ID, queue.RedriveDone)
	if n := len(b.claim(t, queue.ClaimParams{Queue: "elsewhere", Limit: 10}, 1)); r.Requeued != 1 || n != 1 {
		t.Errorf("%d events are elsewhere, and the redrive is %+v", n, r)
	}
}

func TestDeadLettersAreRedrivenBesideClaims(t *testing.T) {
	t.Parallel()
	const n = 400
	b := setupDead(t, queue.Policy{}, nil)
	b.insertN(t, "mail", n)
	claimed := b.claim(t, queue.ClaimParams{Queue: "mail", Limit: n}, n)
	for _, e := range claimed {
		if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(e), Final: true}); err != nil {
			t.Fatal(err)
		}
	}
	made := b.redrive(t, queue.RedriveParams{DeadLetterQueue: deadQueue, Rate: 1000})
	runService(t, b.Service)
	acked := 0
	for {
		events, err := b.Claim(t.Context(), queue.ClaimParams{Queue: deadQueue, Limit: 5})
		if err != nil {
			t.Fatal(err)
		}
		results, err := b.Ack(t.Context(), acks(leases(idsOf(events))...))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Outcome == queue.Done {
				acked++
			} else {
				t.Errorf("the ack of a claimed dead letter is %+v", r)
			}
		}
		if r, err := b.GetRedrive(t.Context(), made.ID, nil); err != nil || r.State == queue.RedriveDone && len(events) == 0 {
			break
		}
	}
	back := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue = 'mail'`)
	once := pgtest.Query[int](t, b.sql, `select count(distinct requeued_from) from agent.event where queue = 'mail'`)
	if acked+back != n || once != back {
		t.Errorf("%d dead letters were acked and %d events came back, of %d different ones; want %d in all", acked, back, once, n)
	}
}

func TestRedriveFailsWhenItsTargetIsNotDeclaredAndCanBeResumed(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 50, func(cfg *queue.Config) { cfg.DeclaredOnly = true })
	if _, _, err := b.CreateRedrive(t.Context(), queue.RedriveParams{HistoryFilter: failedOfA, ToQueue: "b"}); !errors.Is(err, queue.ErrNotDeclared) {
		t.Fatalf("a redrive into a queue that is not declared was created with %v", err)
	}
	b.put(t, queue.Policy{Queue: "b"})
	made := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA, ToQueue: "b"})
	if _, err := b.Delete(t.Context(), "b", true, nil); err != nil {
		t.Fatal(err)
	}
	runService(t, b.Service)
	r := b.awaitRedrive(t, made.ID, queue.RedriveFailed)
	if r.Requeued != 0 || !strings.Contains(r.Reason, "the queue b is not declared") || r.FinishedAt == nil {
		t.Errorf("the redrive has failed as %+v", r)
	}
	b.checkRedriven(t, 0)
	b.put(t, queue.Policy{Queue: "b"})
	if r, err := b.ResumeRedrive(t.Context(), made.ID, nil); err != nil || r.Reason != "" || r.FinishedAt != nil {
		t.Fatalf("the redrive was resumed as %+v, %v", r, err)
	}
	b.awaitRedrive(t, made.ID, queue.RedriveDone)
	b.checkRedriven(t, 50)
}

func TestRedriveSkipsAnEventThatCannotBeInserted(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 30, nil)
	b.exec(t, `
		create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'not this one'; end $$;
		create trigger refuse before insert on agent.event for each row when (new.event @> '{"n": 7}') execute function public.refuse()`)
	made := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA})
	runService(t, b.Service)
	r := b.awaitRedrive(t, made.ID, queue.RedriveDone)
	if r.Requeued != 29 || r.Skipped != 1 || !strings.Contains(r.Reason, "not this one") {
		t.Errorf("done was %+v", r)
	}
	b.checkRedriven(t, 29)
}

func TestRedriveIsCreatedOnceUnderAKey(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 3, nil)
	p := queue.RedriveParams{HistoryFilter: failedOfA, IdempotencyKey: "k", Rate: 5}
	first := b.redrive(t, p)
	again, isDeduplicated, err := b.CreateRedrive(t.Context(), p)
	if err != nil || !isDeduplicated || again.ID != first.ID {
		t.Errorf("the second call returned %+v, %t, %v", again, isDeduplicated, err)
	}
	p.Rate = 6
	if _, _, err := b.CreateRedrive(t.Context(), p); !errors.Is(err, queue.ErrKeyReused) {
		t.Errorf("another request under the key failed with %v", err)
	}
	p.IdempotencyKey = ""
	b.redrive(t, p)
	page, err := b.Redrives(t.Context(), queue.RedrivesParams{Limit: 1})
	if err != nil || len(page.Redrives) != 1 || page.Redrives[0].ID == first.ID || page.Next == "" {
		t.Fatalf("the first page is %+v, %v", page, err)
	}
	page, err = b.Redrives(t.Context(), queue.RedrivesParams{Limit: 1, Cursor: page.Next})
	if err != nil || len(page.Redrives) != 1 || page.Redrives[0].ID != first.ID || page.Next != "" {
		t.Errorf("the second page is %+v, %v", page, err)
	}
}

// as is the context of calls in the name of a key.
func as(t *testing.T, key string) context.Context {
	t.Helper()
	return pg.WithActor(t.Context(), "key:"+key)
}

// redriveSteps has n steps made, and returns the callers whose turns they were; empty: no step was due.
func (b env) redriveSteps(t *testing.T, n int) (callers []string) {
	t.Helper()
	for range n {
		callers = append(callers, pgtest.Query[string](t, b.sql, `
			select coalesce((select r.caller from agent.redrive r where r.id = s.id), '') from agent_service.redrive_step('p') s`))
	}
	return callers
}

func TestRedrivesOfCallersTakeTurns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events int // that each redrive looks at
		of     map[string]int
		want   string
	}{
		"redrives of one step":    {9, map[string]int{"a": 50, "b": 3}, "a b a b a b a a"},
		"redrives of many steps":  {12000, map[string]int{"a": 3, "b": 1}, "a b a b a b"},
		"three callers":           {12000, map[string]int{"a": 2, "b": 1, "c": 2}, "a b c a b c"},
		"redrives of one another": {9, map[string]int{"a": 2}, "a a "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupHistory(t, c.events, nil)
			for _, key := range slices.Sorted(maps.Keys(c.of)) {
				for range c.of[key] {
					if _, _, err := b.CreateRedrive(as(t, key), queue.RedriveParams{HistoryFilter: queue.HistoryFilter{Type: "none"}}); err != nil {
						t.Fatal(err)
					}
				}
			}
			want := strings.Split(c.want, " ")
			for i := range want {
				if want[i] != "" {
					want[i] = "key:" + want[i]
				}
			}
			if got := b.redriveSteps(t, len(want)); !slices.Equal(got, want) {
				t.Errorf("the steps were of %q, want %q", got, want)
			}
		})
	}
}

func TestRedrivesWaitForNoTransactionThatCreatesOne(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 1, nil)
	b.exec(t, `select agent.create_redrive('a', _rate => i) from generate_series(1, 2) i`)
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `select agent.create_redrive('a')`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent.prune_redrives()`); err != nil {
		t.Fatal(err)
	}
	b.exec(t, `set lock_timeout to '1 s'`)
	if got := b.redriveSteps(t, 2); slices.Contains(got, "") {
		t.Errorf("the steps were of %q", got)
	}
}

func TestTurnsOfRedrivesOutliveAClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 12000, nil)
	for _, key := range []string{"a", "b"} {
		if _, _, err := b.CreateRedrive(as(t, key), queue.RedriveParams{HistoryFilter: queue.HistoryFilter{Type: "none"}}); err != nil {
			t.Fatal(err)
		}
	}
	b.redriveSteps(t, 1)
	b.exec(t, `update agent_private.redrive_turn set at = at + interval '1 hour'`)
	b.exec(t, `insert into agent_private.redrive_turn values ('gone', now() - interval '2 hours')`)
	if got, want := b.redriveSteps(t, 4), []string{"key:b", "key:a", "key:b", "key:a"}; !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("the steps were of %q, want %q", got, want)
	}
	for !slices.Contains(b.redriveSteps(t, 1), "") {
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent_private.redrive_turn`); n != 2 {
		t.Errorf("there are %d turns, want those of two callers", n)
	}
}

func TestUnfinishedRedrivesOfACallerAreBounded(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 1, nil)
	p := queue.RedriveParams{HistoryFilter: failedOfA, IdempotencyKey: "first"}
	create := func(key string) error {
		_, _, err := b.CreateRedrive(as(t, key), p)
		return err
	}
	if err := create("a"); err != nil {
		t.Fatal(err)
	}
	p.IdempotencyKey = ""
	b.exec(t, `begin; set local agent.actor = 'key:a'; select from generate_series(1, 94) i, agent.create_redrive('a', _rate => i); commit`)
	b.exec(t, `update agent.redrive set state = case id % 3 when 0 then 'running' when 1 then 'paused' else 'failed' end`)

	var created, refused atomic.Int32
	var calls sync.WaitGroup
	for range 20 {
		calls.Go(func() {
			switch err := create("a"); {
			case err == nil:
				created.Add(1)
			case errors.Is(err, queue.ErrTooManyRedrives):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if created.Load() != 5 || refused.Load() != 15 {
		t.Errorf("beside 95 redrives, %d were created at once and %d refused, want 5 and 15", created.Load(), refused.Load())
	}
	if err := create("b"); err != nil {
		t.Errorf("a redrive of another key failed with %v", err)
	}
	p.IdempotencyKey = "first"
	if _, isDeduplicated, err := b.CreateRedrive(as(t, "a"), p); err != nil || !isDeduplicated {
		t.Errorf("a redrive that was created before returned %t, %v", isDeduplicated, err)
	}
	p.IdempotencyKey = ""
	if _, _, err := b.CountRedrive(as(t, "a"), p); err != nil {
		t.Errorf("a count failed with %v", err)
	}
	b.exec(t, `select agent.cancel_redrive(max(id)) from agent.redrive where caller = 'key:a'`)
	if err := create("a"); err != nil {
		t.Errorf("after one was cancelled, another failed with %v", err)
	}
	if err := create("a"); !errors.Is(err, queue.ErrTooManyRedrives) {
		t.Errorf("one more failed with %v", err)
	}
}

// TestRedrivesOfASQLRoleAreItsOwn has a role that may not run the service say that it acts for keys.
func TestRedrivesOfASQLRoleAreItsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	b := env{Service: anotherService(t, db.URL, nil), url: db.URL, sql: pgtest.Connect(t, db.URL)}
	role := pgtest.Connect(t, insertingRole(t, db, "agent.create_redrive"))
	create := func(actor string) (id int64, isReplayed bool, err error) {
		tx, err := role.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
		err = tx.QueryRow(t.Context(), `
			select (c.redrive).id, c.is_replayed from set_config('agent.actor', $1, true) cross join lateral agent.create_redrive('a', _key => 'k') c`, actor).Scan(&id, &isReplayed)
		return id, isReplayed, errors.Join(err, tx.Commit(t.Context()))
	}
	of := b.redriveOf(t, "a")
	first, isReplayed, err := create("key:a")
	if err != nil || isReplayed || first == of.ID {
		t.Fatalf("the role created %d, replayed: %t, %v; the key has %d", first, isReplayed, err, of.ID)
	}
	if again, isReplayed, err := create("key:b"); err != nil || !isReplayed || again != first {
		t.Errorf("the role repeated it as %d, %t, %v", again, isReplayed, err)
	}
	if _, err := role.Exec(t.Context(), `select from generate_series(1, 100) i, set_config('agent.actor', 'key:' || i, false), agent.create_redrive('a', _rate => i)`); !strings.Contains(fmt.Sprint(err), "QD068") {
		t.Errorf("a hundred more redrives of the role failed with %v, want QD068", err)
	}
}

// redriveOf creates a redrive under the idempotency key "k" in the name of a key.
func (b env) redriveOf(t *testing.T, key string) queue.Redrive {
	t.Helper()
	made, isDeduplicated, err := b.CreateRedrive(as(t, key), queue.RedriveParams{HistoryFilter: queue.HistoryFilter{Queue: "a"}, IdempotencyKey: "k"})
	if err != nil || isDeduplicated {
		t.Fatalf("a redrive of the key %s was created with %t, %v", key, isDeduplicated, err)
	}
	return made
}

func TestIdempotencyKeysOfRedrivesAreOfTheirCaller(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 1, nil)
	of := map[string]int64{"a": b.redriveOf(t, "a").ID, "b": b.redriveOf(t, "b").ID}
	for key, id := range of {
		p := queue.RedriveParams{HistoryFilter: queue.HistoryFilter{Queue: "a"}, IdempotencyKey: "k"}
		if again, isDeduplicated, err := b.CreateRedrive(as(t, key), p); err != nil || !isDeduplicated || again.ID != id {
			t.Errorf("the key %s repeats its redrive %d as %d, %t, %v", key, id, again.ID, isDeduplicated, err)
		}
		p.Rate = 7
		if _, _, err := b.CreateRedrive(as(t, key), p); !errors.Is(err, queue.ErrKeyReused) {
			t.Errorf("another redrive of the key %s failed with %v", key, err)
		}
	}
}

func TestRedriveOfACallerWithFewQueues(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 3, nil)
	b.addHistory(t, "b.1", "failed", 4)
	own := b.redrive(t, queue.RedriveParams{HistoryFilter: queue.HistoryFilter{Outcome: queue.Failed, Queues: []string{"b.*"}}})
	other := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA})
	all := b.redrive(t, queue.RedriveParams{HistoryFilter: queue.HistoryFilter{Outcome: queue.Done}})
	if own.Matched != 4 {
		t.Errorf("%d events match, want those of the queues alone", own.Matched)
	}
	for queues, want := range map[string][]int64{"b.*": {own.ID}, "b.1": nil, "a": {other.ID}, "*": {other.ID, own.ID}} {
		page, err := b.Redrives(t.Context(), queue.RedrivesParams{Queues: []string{queues}})
		var ids []int64
		for i := range page.Redrives {
			ids = append(ids, page.Redrives[i].ID)
		}
		if err != nil || fmt.Sprint(ids) != fmt.Sprint(want) {
			t.Errorf("who may use %s sees %v, want %v", queues, ids, want)
		}
		for _, id := range []int64{own.ID, other.ID, all.ID} {
			_, err := b.PauseRedrive(t.Context(), id, []string{queues})
			if isOwn := slices.Contains(want, id); isOwn != (err == nil) || !isOwn && !errors.Is(err, queue.ErrRedriveNotFound) {
				t.Errorf("a pause of %d by who may use %s failed with %v", id, queues, err)
			}
		}
	}
	if _, err := b.ResumeRedrive(t.Context(), own.ID, nil); err != nil {
		t.Fatal(err)
	}
	runService(t, b.Service)
	b.awaitRedrive(t, own.ID, queue.RedriveDone)
	b.checkRedriven(t, 4)
}

func TestOldRedrivesArePruned(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 1, nil)
	kept, old := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA}), b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA})
	for _, r := range []queue.Redrive{kept, old} {
		if _, err := b.CancelRedrive(t.Context(), r.ID, nil); err != nil {
			t.Fatal(err)
		}
	}
	running := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA})
	b.exec(t, `update agent.redrive set created_at = now() - interval '1 year', finished_at = finished_at - interval '30 days' where id <> $1`, kept.ID)
	if n := pgtest.Query[int](t, b.sql, `select agent.prune_redrives()`); n != 1 {
		t.Errorf("%d redrives were pruned, want 1", n)
	}
	for _, id := range []int64{kept.ID, running.ID} {
		if _, err := b.GetRedrive(t.Context(), id, nil); err != nil {
			t.Errorf("redrive %d is gone: %v", id, err)
		}
	}
}

func TestAnotherProcessGoesOnWithARedrive(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 45, nil)
	made := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA, Rate: 100})
	step := func(process string) (isMade bool) {
		return pgtest.Query[bool](t, b.sql, `select id is not null from agent_service.redrive_step($1)`, process)
	}
	b.exec(t, `update agent.redrive set next_at = now() - interval '1 minute'`)
	if !step("first") {
		t.Fatal("no step was made of a redrive that is due")
	}
	b.exec(t, `update agent.redrive set next_at = now() - interval '1 minute'`)
	if step("second") {
		t.Error("a step was made in spite of the lease of another process")
	}
	if wait := pgtest.Query[float64](t, b.sql, `select extract(epoch from wait)::float8 from agent_service.redrive_step('second')`); wait < 0.5 || wait > 3 {
		t.Errorf("the other process asks again after %v s, want when the lease of 2 s ends", wait)
	}
	b.exec(t, `update agent.redrive set leased_until = now()`)
	if !step("second") {
		t.Error("no step was made after the lease had ended")
	}
	for clock, change := range map[string]string{"lease": "leased_until = now() + interval '1 hour'", "step": "next_at = now() + interval '1 hour'"} {
		b.exec(t, `update agent.redrive set next_at = now() - interval '1 minute', leased_by = 'third', leased_until = now()`)
		b.exec(t, `update agent.redrive set `+change)
		if !step("second") {
			t.Errorf("no step was made after the clock was set back before the end of a %s", clock)
		}
	}
	if r, err := b.GetRedrive(t.Context(), made.ID, nil); err != nil || r.Requeued != 40 {
		t.Errorf("the redrive is %+v, %v", r, err)
	}
}

func TestRedriveThatStoodStillMakesGoodForNothing(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 500, nil)
	b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA, Rate: 100})
	const standing = 0.1 // seconds from a step to the next one
	for name, c := range map[string]struct {
		set         string
		least, most float64
	}{
		"never begun":             {`leased_by = null, leased_until = null, next_at = clock_timestamp() - interval '15 s'`, standing, standing},
		"its process has died":    {`leased_by = 'gone', leased_until = clock_timestamp() - interval '1 s', next_at = clock_timestamp() - interval '3 s'`, standing, standing},
		"its process stood still": {`leased_by = 'p', leased_until = clock_timestamp() - interval '1 s', next_at = clock_timestamp() - interval '3 s'`, standing, standing},
		"a step is late, no more": {`leased_by = 'p', leased_until = clock_timestamp() + interval '1 min', next_at = clock_timestamp() - interval '500 ms'`, standing - 1, standing - 0.5},
	} {
		b.exec(t, `update agent.redrive set `+c.set)
		b.redriveSteps(t, 1)
		if next := pgtest.Query[float64](t, b.sql, `select extract(epoch from next_at - updated_at)::float8 from agent.redrive`); next < c.least-1e-6 || next > c.most+1e-6 {
			t.Errorf("%s: the next step is due %v s after this one, want %v to %v", name, next, c.least, c.most)
		}
	}
}

func TestNothingIsAskedWhileThereIsNoRedrive(t *testing.T) {
	t.Parallel()
	b := setupHistory(t, 1, nil)
	runService(t, b.Service)
	awaitTold(t, b)
	made := b.redrive(t, queue.RedriveParams{HistoryFilter: failedOfA})
	b.awaitRedrive(t, made.ID, queue.RedriveDone)
	eventually(t, "the loop rests", func() bool { return queue.RestsFromRedrives(b.Service) })
}
