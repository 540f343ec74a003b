//go:build unix

package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/faults"
	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// quick configures servers without durability: their data need not survive the machine.
var quick = faults.Config{Settings: map[string]string{"fsync": "off"}}

// servePair migrates a pair and runs a service on it.
func servePair(t *testing.T, pair *faults.Pair, cfg queue.Config) *queue.Service {
	t.Helper()
	if cfg.DatabaseURL == "" {
		cfg.DatabaseURL = pair.URL()
	}
	if _, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: cfg.DatabaseURL}); err != nil {
		t.Fatal(err)
	}
	pair.Primary.AwaitStandby(pair.Standby)
	cfg.Logger = zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
	s, err := queue.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = s.Close(ctx) // the server may be gone
	})
	return s
}

// insertUntil inserts until it succeeds, and returns the id and how long that took.
func insertUntil(t *testing.T, s *queue.Service, limit time.Duration) (int64, time.Duration) {
	t.Helper()
	start := time.Now()
	for {
		in, err := s.Insert(t.Context(), []queue.InsertParams{{Event: []byte(`{}`)}})
		if err == nil {
			return in[0].ID, time.Since(start)
		}
		if time.Since(start) > limit {
			t.Fatalf("no insert within %s: %v", limit, err)
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // the database is down
	}
}

func TestIDsMoveOnAfterAFailover(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"service", "sql"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			pair := faults.StartPair(t, faults.Asynchronous, quick)
			s := servePair(t, pair, queue.Config{})
			insertUntil(t, s, time.Minute)
			pair.Primary.AwaitStandby(pair.Standby)
			pair.Primary.PauseReplication()
			given := make(map[int64]bool)
			for range 200 {
				id, _ := insertUntil(t, s, time.Minute)
				given[id] = true
			}
			pair.Primary.Kill()
			pair.Failover()
			if way == "sql" {
				conn := pgtest.Connect(t, pair.Primary.URL())
				for range 300 {
					id := pgtest.Query[int64](t, conn, `select agent.insert_event('{}')`)
					if given[id] {
						t.Fatalf("the id %d was used twice", id)
					}
				}
			}
			for range 300 {
				if id, _ := insertUntil(t, s, time.Minute); given[id] {
					t.Fatalf("the id %d was used twice", id)
				}
			}
		})
	}
}

func TestServiceRecoversSoonAfterPrimaryIsFrozen(t *testing.T) {
	t.Parallel()
	pair := faults.StartPair(t, faults.Synchronous, quick)
	s := servePair(t, pair, queue.Config{})
	insertUntil(t, s, time.Minute)
	if _, err := s.Insert(t.Context(), make([]queue.InsertParams, 0)); err != nil {
		t.Fatal(err)
	}
	inserted := make(chan error, 1)
	pair.Primary.Freeze()
	go func() { // a call that is running during the freeze must not delay others
		_, err := s.Insert(context.Background(), []queue.InsertParams{{Event: []byte(`{}`)}})
		inserted <- err
	}()
	time.Sleep(time.Second) //nolint:forbidigo // as long as a failover manager may take
	pair.Failover()
	_, took := insertUntil(t, s, waitLimit)
	t.Logf("back after %s", took)
	if took > waitLimit/2 { // some seconds, on a machine that is not busy
		t.Errorf("back %s after the promotion", took)
	}
	if err := <-inserted; err != nil && !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("the call that was running: %v", err)
	}
	start := time.Now()
	for !s.Server().IsListening {
		if time.Since(start) > waitLimit {
			t.Fatal("the listener has not reconnected")
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // as above
	}
}

func TestServiceReconnectsWhenPrimaryBecomesReadOnly(t *testing.T) {
	t.Parallel()
	pair := faults.StartPair(t, faults.Synchronous, quick)
	s := servePair(t, pair, queue.Config{})
	insertUntil(t, s, time.Minute)
	old := pair.Primary
	pair.Failover()
	old.Set("default_transaction_read_only", "on") // its sessions stay open
	_, took := insertUntil(t, s, time.Minute)
	t.Logf("back after %s", took)
	if took > waitLimit/2 { // as above
		t.Errorf("back after %s", took)
	}
	if err := s.CheckReady(t.Context()); err != nil {
		t.Errorf("not ready: %v", err)
	}
}

func TestReadinessRequiresAWritableServer(t *testing.T) {
	t.Parallel()
	server := faults.Start(t, quick)
	if _, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: server.URL()}); err != nil {
		t.Fatal(err)
	}
	s, err := queue.Open(t.Context(), queue.Config{DatabaseURL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	if err := s.CheckReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	server.Set("default_transaction_read_only", "on")
	if err := s.CheckReady(t.Context()); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	server.Set("default_transaction_read_only", "off")
	if err := s.CheckReady(t.Context()); err != nil {
		t.Errorf("still not ready: %v", err)
	}
}

func TestStandbyNamedFirstInURLIsSkipped(t *testing.T) {
	t.Parallel()
	pair := faults.StartPair(t, faults.Asynchronous, quick)
	s := servePair(t, pair, queue.Config{DatabaseURL: pair.Standby.URL(pair.Primary)})
	insertUntil(t, s, 5*time.Second)
}

func TestCommitWithoutStandbyConfirmationIsUnavailable(t *testing.T) {
	t.Parallel()
	pair := faults.StartPair(t, faults.Synchronous, quick)
	s := servePair(t, pair, queue.Config{MaxAttempts: 5})
	ctx := t.Context()
	first, _ := insertUntil(t, s, time.Minute)
	second, _ := insertUntil(t, s, time.Minute)
	claimed, err := s.Claim(ctx, queue.ClaimParams{Limit: 2})
	if err != nil || len(claimed) != 2 {
		t.Fatalf("%v, %v", claimed, err)
	}
	receipts := map[int64]string{claimed[0].ID: claimed[0].Receipt, claimed[1].ID: claimed[1].Receipt}

	// As when an operator cancels the waits for a standby that is gone.
	pair.Standby.Kill()
	admin := pgtest.Connect(t, pair.Primary.AdminURL())
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_, _ = admin.Exec(context.Background(), `select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'`)
		}
	}()
	defer func() { close(stop); <-stopped }()

	keyed := queue.InsertParams{Event: []byte(`{"n":1}`), IdempotencyKey: "k"}
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"insert", func() error { _, err := s.Insert(ctx, []queue.InsertParams{{Event: []byte(`{}`)}}); return err }},
		{"keyed insert", func() error { _, err := s.Insert(ctx, []queue.InsertParams{keyed}); return err }},
		{"known key", func() error { _, err := s.Insert(ctx, []queue.InsertParams{keyed}); return err }},
		{"ack", func() error {
			_, err := s.Ack(ctx, []queue.Ack{{Lease: queue.Lease{ID: first, Receipt: receipts[first]}}})
			return err
		}},
		{"repeated ack", func() error {
			_, err := s.Ack(ctx, []queue.Ack{{Lease: queue.Lease{ID: first, Receipt: receipts[first]}}})
			return err
		}},
		{"extend", func() error {
			_, err := s.Extend(ctx, queue.Lease{ID: second, Receipt: receipts[second]}, time.Hour)
			return err
		}},
		{"nack", func() error {
			_, err := s.Nack(ctx, queue.NackParams{Lease: queue.Lease{ID: second, Receipt: receipts[second]}, Final: true})
			return err
		}},
		{"repeated nack", func() error {
			_, err := s.Nack(ctx, queue.NackParams{Lease: queue.Lease{ID: second, Receipt: receipts[second]}, Final: true})
			return err
		}},
		{"requeue", func() error { _, err := s.Requeue(ctx, first, nil); return err }},
		{"requeue by filter", func() error {
			_, err := s.RequeueMatching(ctx, queue.RequeueParams{HistoryFilter: queue.HistoryFilter{Outcome: queue.Failed}})
			return err
		}},
		{"repeated requeue by filter", func() error {
			_, err := s.RequeueMatching(ctx, queue.RequeueParams{HistoryFilter: queue.HistoryFilter{Outcome: queue.Failed}})
			return err
		}},
		{"pause", func() error { return s.Pause(ctx, "other") }},
		{"repeated pause", func() error { return s.Pause(ctx, "other") }},
		{"policy", func() error {
			_, err := s.PutPolicy(ctx, queue.Policy{Queue: "third"}, queue.Precondition{})
			return err
		}},
	} {
		if err := c.call(); !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnavailable", c.name, err)
		}
	}
	if events, err := s.Claim(ctx, queue.ClaimParams{Limit: 1}); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("a claim returned %v, %v; if it were lost with the primary, the event would get two leases", events, err)
	}
	if _, err := s.Get(ctx, first); err != nil {
		t.Errorf("a read-only call: %v", err)
	}
}

func TestReadyEventsStayReadyWhenNewPrimaryClockIsBehind(t *testing.T) {
	t.Parallel()
	pair := faults.StartPair(t, faults.Synchronous, quick)
	s := servePair(t, pair, queue.Config{})
	ready, _ := insertUntil(t, s, time.Minute)
	in, err := s.Insert(t.Context(), []queue.InsertParams{{Event: []byte(`{}`), Delay: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	// As if the clock of this server had always been a minute ahead.
	pair.Primary.Exec("queued", fmt.Sprintf(`
		update agent.event set vt = vt + interval '1 minute', enqueued_at = enqueued_at + interval '1 minute' where id = %d;
		update agent.server set clock = clock + interval '1 minute'`, ready))
	pair.Primary.Kill()
	pair.Failover()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		claimed, err := s.Claim(ctx, queue.ClaimParams{Limit: 10, Wait: time.Second})
		if err == nil && len(claimed) > 0 {
			if len(claimed) != 1 || claimed[0].ID != ready {
				t.Errorf("claimed %v, want only %d", claimed, ready)
			}
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("not claimed: %v", err)
		}
	}
	if e, err := s.Get(t.Context(), in[0].ID); err != nil || e.State != queue.Scheduled {
		t.Errorf("the delayed event is %v, %v", e.State, err)
	}
}

func TestIDsMoveAheadWhereTheServerMayBeAnother(t *testing.T) {
	t.Parallel()
	const started = `select pg_catalog.setval('agent.server_mark', 1)` // by another server, or as a copy
	for name, c := range map[string]struct {
		setup []string // by an administrator
		moves bool
	}{
		"the same server is started again":          {[]string{started}, false},
		"the database is a copy":                    {[]string{`select pg_catalog.setval('agent.server_identity', 7)`, started}, true},
		"the timeline is another one":               {[]string{`select pg_catalog.setval('agent.server_timeline', 77)`, started}, true},
		"the server does not show its timeline":     {[]string{`revoke execute on function pg_catalog.pg_walfile_name(pg_lsn) from public`, started}, true},
		"the server no longer shows its identifier": {[]string{`revoke execute on function pg_catalog.pg_control_system() from public`, started}, true},
		"the server shows its identifier to nobody": {[]string{
			`revoke execute on function pg_catalog.pg_control_system() from public`, started, `insert into agent.event (event) values ('{}')`, started,
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			conn, admin := pgtest.Connect(t, db.URL), pgtest.Connect(t, db.AdminURL)
			for _, statement := range append([]string{`update agent.server set clock = clock_timestamp() - interval '100 seconds'`}, c.setup...) {
				if _, err := admin.Exec(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			before := pgtest.Query[int64](t, conn, `select last_value from agent.event_id_seq`)
			after := pgtest.Query[int64](t, conn, `select agent.insert_event('{}')`)
			if moved := after - before; c.moves && moved < 1<<20+100<<18 || !c.moves && moved > 2 {
				t.Errorf("the first id is %d after %d", after, before)
			}
			if next := pgtest.Query[int64](t, conn, `select agent.insert_event('{}')`); next != after+1 {
				t.Errorf("the id %d follows %d", next, after)
			}
		})
	}
}

// Inserts with keys, and of events that another cell has forwarded, draw ids before they insert anything into agent.event.
func TestIDsMoveAheadBeforeAKeyedInsertDrawsItsOwn(t *testing.T) {
	t.Parallel()
	for name, insert := range map[string]string{
		"with a key": `select agent.insert_event('{}', _key => 'second')`,
		"forwarded": `
			select f.id
			from agent_service.insert_forwarded_events('[{"id": 1, "event": {}, "event_ts": "2026-01-01T00:00:00Z", "priority": 0, "publication": {"forward": {"queue": "q"}}}]') f`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := pgtest.Connect(t, pgtest.New(t).URL)
			before := pgtest.Query[int64](t, conn, `select agent.insert_event('{}', _key => 'first')`)
			pgtest.Query[string](t, conn, `select setval('agent.server_timeline', 77)::text || setval('agent.server_mark', 1)`)
			if after := pgtest.Query[int64](t, conn, insert); after-before < 1<<20 {
				t.Errorf("the first id is %d after %d", after, before)
			}
		})
	}
}

// TestReadyEventsAreClaimableWhenTheClockWasSetBack has the database remember a later time than it is, as after its server's clock was set back.
// internal/faults sets a clock back while processes run.
func TestReadyEventsAreClaimableWhenTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := pgtest.Connect(t, db.URL)
	exec := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec(`select agent_service.record_server()`)
	exec(`insert into agent.event (event, queue, vt) values ('{}', 'ready', clock_timestamp() + interval '5 minutes'), ('{}', 'later', clock_timestamp() + interval '20 minutes')`)
	exec(`update agent.server set clock = clock_timestamp() + interval '10 minutes'`)
	var log logBuffer
	s, err := queue.Open(t.Context(), queue.Config{DatabaseURL: db.URL, Logger: zerolog.New(&log)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-done, s.Close(context.Background())); err != nil {
			t.Error(err)
		}
	})
	events, err := s.Claim(t.Context(), queue.ClaimParams{Queue: "ready", Limit: 1, Wait: time.Minute})
	if err != nil || len(events) != 1 {
		t.Fatalf("claimed %d events, %v; want the one that was ready by the clock before", len(events), err)
	}
	for s.Server().SetBack == 0 {
		if ctx.Err() != nil || t.Context().Err() != nil {
			t.Fatal("the service does not tell that the clock was set back")
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // until the check has ended
	}
	if back := s.Server().SetBack; back < 9*time.Minute || back > 10*time.Minute {
		t.Errorf("the clock was set back by %s, want about ten minutes", back)
	}
	if !strings.Contains(log.String(), "was set back") {
		t.Errorf("the log does not tell of it: %s", log.String())
	}
	if pgtest.Query[bool](t, conn, `select behind is not null or made_claimable > 0 from agent_service.record_server()`) {
		t.Error("the clock counts as set back once more")
	}
	if n := pgtest.Query[int](t, conn, `select count(*)::int from agent.event where queue = 'later' and vt > clock_timestamp() + interval '19 minutes'`); n != 1 {
		t.Error("an event that was not ready by the clock before has moved")
	}
}
