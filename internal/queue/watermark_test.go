package queue_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// Scan times that make watermarks always or never active, however busy the machine is.
const (
	always = -1
	never  = time.Hour
)

// withWatermarks returns an env whose service never polls, and often scans below its watermarks. These are active when scans take longer than scanTime.
func withWatermarks(t *testing.T, scanTime time.Duration) env {
	t.Helper()
	b := setup(t, func(c *queue.Config) {
		neverPolls(c)
		c.WatermarkInterval, c.WatermarkScanTime = 50*time.Millisecond, scanTime
	})
	runService(t, b.Service)
	return b
}

// raiseWatermark inserts and claims until the watermark of the default queue is later than a time.
func raiseWatermark(t *testing.T, b env, beyond time.Time) {
	t.Helper()
	eventually(t, "claims start at a watermark", func() bool {
		b.insert(t, "", `{"raises":"the watermark"}`)
		for _, e := range b.claim(t, queue.ClaimParams{}, 1) {
			b.ack(t, lease(e))
		}
		mark, _ := queue.Watermark(b.Service, queue.Default)
		return mark.After(beyond)
	})
}

// claimedSoon fails the test unless a waiting claim gets the event within seconds.
func claimedSoon(t *testing.T, b env, id int64) queue.Event {
	t.Helper()
	start := time.Now()
	e := b.claim(t, queue.ClaimParams{Wait: queue.MaxWait}, 1)[0]
	if e.ID != id {
		t.Errorf("claimed event %d, want %d", e.ID, id)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("event %d was claimed after %v", id, d)
	}
	return e
}

func now(t *testing.T, conn *pgx.Conn) time.Time {
	t.Helper()
	return pgtest.Query[time.Time](t, conn, `select clock_timestamp()`)
}

func TestEventCommittedBelowTheWatermarkIsClaimedSoon(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, always)
	awaitListening(t, b)
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var late int64
	if err := tx.QueryRow(t.Context(), `select agent.insert_event('{"late":true}')`).Scan(&late); err != nil {
		t.Fatal(err)
	}
	raiseWatermark(t, b, now(t, b.sql))
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	claimedSoon(t, b, late)
}

func TestVTSetBelowTheWatermarkBySQLIsClaimedSoon(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, always)
	b.insert(t, "", `{}`)
	e := b.claim(t, queue.ClaimParams{}, 1)[0]
	raiseWatermark(t, b, now(t, b.sql))
	b.exec(t, `update agent.event set vt = now() - interval '1 hour' where id = $1`, e.ID)
	if again := claimedSoon(t, b, e.ID); again.Attempts != 2 {
		t.Errorf("claimed as attempt %d", again.Attempts)
	}
}

func TestEventReturnedBelowTheWatermarkByTheServiceIsClaimedAtOnce(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, always)
	b.insert(t, "", `{}`)
	released := b.claim(t, queue.ClaimParams{}, 1)[0]
	for name, release := range map[string]func(l queue.Lease) error{
		"what never reached its client": func(l queue.Lease) error { return b.Release(t.Context(), []queue.Lease{l}) },
		"what its client gives back": func(l queue.Lease) error {
			results, err := b.ReleaseEach(t.Context(), []queue.Lease{l}, 0, nil)
			return errors.Join(err, results[0].Err)
		},
	} {
		raiseWatermark(t, b, now(t, b.sql))
		if err := release(lease(released)); err != nil {
			t.Fatal(name, err)
		}
		e := b.claim(t, queue.ClaimParams{}, 1)[0]
		if e.ID != released.ID || e.Attempts != 1 {
			t.Fatalf("%s: claimed %+v, want the released event", name, e)
		}
		released = e
	}

	past := time.Now().Add(-time.Hour)
	in, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`), VT: &past}})
	if err != nil {
		t.Fatal(err)
	}
	if e := b.claim(t, queue.ClaimParams{}, 1)[0]; e.ID != in[0].ID {
		t.Errorf("claimed event %d, want %d", e.ID, in[0].ID)
	}
}

func TestRunningClaimDoesNotRaiseALoweredWatermark(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, always)
	raiseWatermark(t, b, now(t, b.sql))
	b.insert(t, "", `{}`)
	g := blockCommits(t, b)
	first := g.blockFirst(t)
	var all sync.WaitGroup
	all.Go(func() {
		if events, err := b.Claim(t.Context(), queue.ClaimParams{}); err != nil || len(events) != 1 {
			t.Errorf("a claim during the insert returned %+v, %v", events, err)
		}
	})
	past := time.Now().Add(-time.Hour)
	all.Go(func() {
		if _, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{"past":true}`), VT: &past}}); err != nil {
			t.Error(err)
		}
	})
	awaitPending(t, b, 2)
	g.unblock(t, 1)
	all.Wait()
	if err := <-first; err != nil {
		t.Error(err)
	}
	if e := b.claim(t, queue.ClaimParams{}, 1)[0]; string(e.Payload) != `{"past": true}` {
		t.Errorf("claimed %s", e.Payload)
	}
}

func TestShortScansLeaveWatermarksInactive(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, never)
	b.insert(t, "", `{}`)
	e := b.claim(t, queue.ClaimParams{}, 1)[0]
	eventually(t, "a scan is done", func() bool {
		b.insert(t, "", `{}`)
		b.ack(t, lease(b.claim(t, queue.ClaimParams{}, 1)[0]))
		_, knowsLanes := queue.Watermark(b.Service, queue.Default)
		return knowsLanes
	})
	b.exec(t, `update agent.event set vt = now() - interval '1 hour' where id = $1`, e.ID)
	if again := b.claim(t, queue.ClaimParams{}, 1)[0]; again.ID != e.ID {
		t.Errorf("claimed event %d, want %d", again.ID, e.ID)
	}
}

func TestWatermarksAreActiveWhileAnOldSnapshotIsOpen(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, 0)
	tx, err := pgtest.Connect(t, b.url).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select 1 from agent.event`); err != nil {
		t.Fatal(err)
	}
	b.exec(t, `insert into agent.event (event, vt) select '{}', now() - interval '1 minute' from generate_series(1, 30000)`)
	b.exec(t, `select count(*) from agent.delete_events(array(select e.id from agent.event e order by e.id))`)
	raiseWatermark(t, b, time.Time{})
	b.exec(t, `insert into agent.event (event, vt) values ('{}', now() - interval '2 minutes')`)
	claimedSoon(t, b, pgtest.Query[int64](t, b.sql, `select max(id) from agent.event`))
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestNewLaneIsClaimed(t *testing.T) {
	t.Parallel()
	for name, insert := range map[string]string{
		"by SQL that notifies": `select agent.insert_event('{}', _priority => -5)`,
		"by SQL that does not": `insert into agent.event (event, priority) values ('{}', -5) returning id`,
	} {
		for use, scanTime := range map[string]time.Duration{"watermarks are active": always, "watermarks are not active": never} {
			t.Run(name+", "+use, func(t *testing.T) {
				t.Parallel()
				b := withWatermarks(t, scanTime)
				awaitListening(t, b)
				eventually(t, "the lanes are known", func() bool {
					b.insert(t, "", `{}`)
					b.ack(t, lease(b.claim(t, queue.ClaimParams{}, 1)[0]))
					_, known := queue.Watermark(b.Service, queue.Default)
					return known
				})
				claimedSoon(t, b, pgtest.Query[int64](t, b.sql, insert))
				ids := b.insertEvents(t, queue.InsertParams{}, queue.InsertParams{Priority: -9}, queue.InsertParams{Priority: 3})
				checkIDs(t, b.claim(t, queue.ClaimParams{Limit: 3}, 3), []int64{ids[1], ids[0], ids[2]})
			})
		}
	}
}

func TestClaimsThatAreWokenLookForLanes(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, never)
	var acked int64
	for name, wake := range map[string]func() error{
		"by a delivery":   func() error { b.Wake([]string{queue.Default}); return nil },
		"by a requeueing": func() error { _, err := b.Requeue(t.Context(), acked, nil); return err },
	} {
		eventually(t, "the lanes are known", func() bool {
			b.insert(t, "", `{}`)
			e := b.claim(t, queue.ClaimParams{}, 1)[0]
			b.ack(t, lease(e))
			acked = e.ID
			_, known := queue.Watermark(b.Service, queue.Default)
			return known
		})
		if err := wake(); err != nil {
			t.Fatal(err)
		}
		if _, known := queue.Watermark(b.Service, queue.Default); known {
			t.Errorf("%s: claims begin in the lanes that were known before", name)
		}
	}
}

// writerFunc is an io.Writer.
type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func TestThereAreNoWatermarksOnceNothingScansBelowThem(t *testing.T) {
	t.Parallel()
	var b env
	left := make(chan bool, 1) // whether there are watermarks as Run takes leave of the other processes
	b = setup(t, func(c *queue.Config) {
		neverPolls(c)
		c.WatermarkInterval, c.WatermarkScanTime = 50*time.Millisecond, always
		c.Logger = zerolog.New(writerFunc(func(line []byte) {
			if bytes.Contains(line, []byte("could not remove this process")) {
				mark, _ := queue.Watermark(b.Service, queue.Default)
				left <- !mark.IsZero()
			}
		}))
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	raiseWatermark(t, b, now(t, b.sql))
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table agent.process_metric`); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	select {
	case hasMarks := <-left:
		if hasMarks {
			t.Error("there are watermarks although the scans have ended")
		}
	default:
		t.Error("the last statement of the service did not fail")
	}
}

func TestEventAdmittedBelowTheWatermarkByAnAckIsClaimedAtOnce(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, always)
	b.limit(t, queue.Default, `{"concurrency": 1}`)
	old := now(t, b.sql).Add(-time.Hour)
	ids := b.insertEvents(t, queue.InsertParams{Group: "g", VT: &old}, queue.InsertParams{Group: "g", VT: &old})
	first := b.claim(t, queue.ClaimParams{}, 1)[0]
	raiseWatermark(t, b, now(t, b.sql))
	b.ack(t, lease(first))
	if e := b.claim(t, queue.ClaimParams{}, 1)[0]; e.ID != ids[1] {
		t.Errorf("claimed event %d, want %d", e.ID, ids[1])
	}
}
