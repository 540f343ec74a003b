package queue_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func executions(t *testing.T, s *queue.Service) []queue.Execution {
	t.Helper()
	all, err := s.Executions(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestAcksUpdateTheExecutionStatistics(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	other := anotherService(t, b.url, nil)
	b.insertEvents(t, queue.InsertParams{Type: "a"}, queue.InsertParams{Type: "a"}, queue.InsertParams{Type: "a"}, queue.InsertParams{}, queue.InsertParams{Type: "a"})
	for i, s := range []*queue.Service{b.Service, other, b.Service, b.Service} {
		events, err := s.Claim(t.Context(), queue.ClaimParams{Worker: "w"})
		if err != nil {
			t.Fatal(err)
		}
		// As if the event had been claimed this many seconds ago.
		b.exec(t, `update agent.event set claimed = array[clock_timestamp() - make_interval(secs => $2)] where id = $1`, events[0].ID, 10*(i+1))
		if r, err := s.Ack(t.Context(), acks(queue.Lease{ID: events[0].ID})); err != nil || r[0].Err != nil {
			t.Fatal(r, err)
		}
	}
	b.exec(t, `select agent.delete_event(e.id) from agent.claim_event(_worker => 'sql') e`)

	executions(t, other) // writes what the other service has counted
	got := executions(t, b.Service)
	if len(got) != 3 {
		t.Fatalf("got %+v", got)
	}
	unnamed, sql, w := got[0], got[1], got[2]
	if unnamed.Type != "" || unnamed.Worker != "w" || unnamed.Cycles != 1 || sql.Type != "a" || sql.Worker != "sql" || sql.Cycles != 1 {
		t.Errorf("got %+v, %+v", unnamed, sql)
	}
	if w.Type != "a" || w.Worker != "w" || w.Cycles != 3 || w.Fastest.Round(time.Second) != 10*time.Second || w.Longest.Round(time.Second) != 30*time.Second ||
		w.Total.Round(time.Second) != 60*time.Second || w.Average.Round(time.Second) != 20*time.Second || w.Latest.Round(time.Second) != 30*time.Second {
		t.Errorf("got %+v", w)
	}
	checkNear(t, "the time of the latest", w.LatestAt, now(t, b.sql))

	// Rows of ended processes and transactions are folded.
	if n := pgtest.Query[int](t, b.sql, `select agent.prune_executions()`); n != 4 {
		t.Errorf("%d rows were folded", n)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.execution`); n != 3 {
		t.Errorf("%d rows are left", n)
	}
	folded := executions(t, b.Service)
	for i := range got {
		if got[i].Cycles != folded[i].Cycles || got[i].Total != folded[i].Total || got[i].Latest != folded[i].Latest || !got[i].LatestAt.Equal(folded[i].LatestAt) {
			t.Errorf("before folding %+v, after %+v", got[i], folded[i])
		}
	}
	b.exec(t, `update agent.execution set latest_at = now() - interval '31 days' where worker = 'w'`)
	b.exec(t, `select agent.prune_executions()`)
	if left := executions(t, b.Service); len(left) != 1 || left[0].Worker != "sql" {
		t.Errorf("the remaining rows are %+v", left)
	}
}

func TestStatisticsAreWrittenWithoutFurtherAcks(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	runService(t, b.Service)
	b.insertEvents(t, queue.InsertParams{Type: "a"})
	b.ack(t, lease(b.claimOne(t)))
	eventually(t, "the database has the statistics", func() bool {
		return pgtest.Query[int](t, b.sql, `select count(*) from agent.execution`) == 1
	})
}

func TestCloseWritesTheStatistics(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	s := anotherService(t, b.url, nil)
	b.insertEvents(t, queue.InsertParams{Type: "a"}, queue.InsertParams{Type: "a"})
	for range 2 {
		events, err := s.Claim(t.Context(), queue.ClaimParams{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Ack(t.Context(), acks(lease(events[0]))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, b.sql, `select sum(cycles) from agent.execution`); n != 2 {
		t.Errorf("%d executions are on record", n)
	}
}

func TestRunningProcessesAreListedWithTheirMetrics(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.SchemaVersion = "0.0.1" })
	other := anotherService(t, b.url, nil)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- other.Run(ctx) }()
	b.insertEvents(t, queue.InsertParams{}, queue.InsertParams{})
	b.ack(t, lease(b.claimOne(t)))
	processes := func() []queue.Process {
		t.Helper()
		all, err := b.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	eventually(t, "both are listed", func() bool { return len(processes()) == 2 })
	found := false
	for _, p := range processes() {
		if p.Metrics[queue.MetricVersion] != "0.0.1" {
			continue
		}
		found = true
		for category, want := range map[string]int{queue.MetricInserted: 2, queue.MetricClaimed: 1, queue.MetricAcked: 1, queue.MetricFailed: 0, queue.MetricWaiting: 0} {
			if p.Metrics[category] != strconv.Itoa(want) {
				t.Errorf("%s is %q, want %d", category, p.Metrics[category], want)
			}
		}
		started, err := time.Parse(time.RFC3339Nano, p.Metrics[queue.MetricStarted])
		if err != nil || time.Since(started) > time.Minute {
			t.Errorf("started at %v, %v", started, err)
		}
	}
	if !found {
		t.Errorf("the processes are %+v", processes())
	}
	b.exec(t, `select agent_service.report_process('dead', 'host:1', array['posted'], array['7'])`)
	b.exec(t, `update agent.process_metric set updated_at = now() - interval '1 hour' where id = 'dead'`)
	if n := len(processes()); n != 2 {
		t.Errorf("%d processes are listed with a dead one", n)
	}
	stop()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if n := len(processes()); n != 1 {
		t.Errorf("%d processes are listed after one has ended", n)
	}
}

// A caller who gives up while what was gathered is written must not have it written again.
func TestExecutionsAreCountedOnceWhenACallerGivesUpDuringTheWrite(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertEvents(t, queue.InsertParams{Type: "a"})
	events, err := b.Claim(t.Context(), queue.ClaimParams{Worker: "w"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := b.Ack(t.Context(), acks(queue.Lease{ID: events[0].ID})); err != nil || r[0].Err != nil {
		t.Fatal(r, err)
	}
	held := pgtest.HoldWrites(t, b.url, "agent.execution", true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := b.Executions(ctx, nil, nil)
		ended <- err
	}()
	held.Await()
	cancel()
	held.Release()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller who gave up got %v", err)
	}
	if all := executions(t, b.Service); len(all) != 1 || all[0].Cycles != 1 {
		t.Errorf("got %+v, want one execution", all)
	}
}
