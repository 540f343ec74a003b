package queue_test

import (
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// Whether claims begin at watermarks, whatever scans take: how busy this machine is must not decide.
const (
	always = -1
	never  = time.Hour
)

// withWatermarks returns an env whose service runs, never polls, and scans below its watermarks often. They are active when scans take longer than scanTime.
func withWatermarks(t *testing.T, scanTime time.Duration) env {
	t.Helper()
	b := setup(t, func(c *queue.Config) {
		neverPolls(c)
		c.WatermarkInterval, c.WatermarkScanTime = 50*time.Millisecond, scanTime
	})
	running(t, b.Service)
	return b
}

// raiseWatermark posts and claims until claims of the default queue begin at a watermark beyond a time of the database.
func raiseWatermark(t *testing.T, b env, beyond time.Time) {
	t.Helper()
	eventually(t, "claims begin at a watermark", func() bool {
		b.post(t, "", `{"raises":"the watermark"}`)
		for _, e := range b.take(t, queue.ClaimParams{}, 1) {
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
	e := b.take(t, queue.ClaimParams{Wait: queue.MaxWait}, 1)[0]
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
	listening(t, b)
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
	b.post(t, "", `{}`)
	e := b.take(t, queue.ClaimParams{}, 1)[0]
	raiseWatermark(t, b, now(t, b.sql))
	b.exec(t, `update agent.event set vt = now() - interval '1 hour' where id = $1`, e.ID)
	if again := claimedSoon(t, b, e.ID); again.Attempts != 2 {
		t.Errorf("claimed as attempt %d", again.Attempts)
	}
}

func TestWhatTheServicePutsBelowItsWatermarkIsClaimedAtOnce(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, always)
	b.post(t, "", `{}`)
	released := b.take(t, queue.ClaimParams{}, 1)[0]
	raiseWatermark(t, b, now(t, b.sql))
	if err := b.Release(t.Context(), []queue.Lease{lease(released)}); err != nil {
		t.Fatal(err)
	}
	if e := b.take(t, queue.ClaimParams{}, 1)[0]; e.ID != released.ID || e.Attempts != 1 {
		t.Errorf("claimed %+v, want what was released", e)
	}

	past := time.Now().Add(-time.Hour)
	in, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`), VT: &past}})
	if err != nil {
		t.Fatal(err)
	}
	if e := b.take(t, queue.ClaimParams{}, 1)[0]; e.ID != in[0].ID {
		t.Errorf("claimed event %d, want %d", e.ID, in[0].ID)
	}
}

func TestClaimUnderWayDoesNotRaiseAWatermarkThatWasLowered(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, always)
	raiseWatermark(t, b, now(t, b.sql))
	b.post(t, "", `{}`)
	g := withGates(t, b)
	first := g.shut(t)
	var all sync.WaitGroup
	all.Go(func() {
		if events, err := b.Claim(t.Context(), queue.ClaimParams{}); err != nil || len(events) != 1 {
			t.Errorf("a claim beside the insert got %+v, %v", events, err)
		}
	})
	past := time.Now().Add(-time.Hour)
	all.Go(func() {
		if _, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{"past":true}`), VT: &past}}); err != nil {
			t.Error(err)
		}
	})
	gathered(t, b, 2)
	g.open(t, 1)
	all.Wait()
	if err := <-first; err != nil {
		t.Error(err)
	}
	if e := b.take(t, queue.ClaimParams{}, 1)[0]; string(e.Payload) != `{"past": true}` {
		t.Errorf("claimed %s", e.Payload)
	}
}

func TestShortScansLeaveWatermarksInactive(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, never)
	b.post(t, "", `{}`)
	e := b.take(t, queue.ClaimParams{}, 1)[0]
	eventually(t, "a scan has been made", func() bool {
		b.post(t, "", `{}`)
		b.ack(t, lease(b.take(t, queue.ClaimParams{}, 1)[0]))
		_, knowsLanes := queue.Watermark(b.Service, queue.Default)
		return knowsLanes
	})
	b.exec(t, `update agent.event set vt = now() - interval '1 hour' where id = $1`, e.ID)
	if again := b.take(t, queue.ClaimParams{}, 1)[0]; again.ID != e.ID {
		t.Errorf("claimed event %d, want %d", again.ID, e.ID)
	}
}

func TestWatermarksAreActiveBesideAnOldSnapshot(t *testing.T) {
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

func TestLaneThatIsNewIsFound(t *testing.T) {
	t.Parallel()
	for name, insert := range map[string]string{
		"by SQL that notifies": `select agent.insert_event('{}', _priority => -5)`,
		"by SQL that does not": `insert into agent.event (event, priority) values ('{}', -5) returning id`,
	} {
		for use, scanTime := range map[string]time.Duration{"watermarks are active": always, "watermarks are not active": never} {
			t.Run(name+", "+use, func(t *testing.T) {
				t.Parallel()
				b := withWatermarks(t, scanTime)
				listening(t, b)
				eventually(t, "the lanes are known", func() bool {
					b.post(t, "", `{}`)
					b.ack(t, lease(b.take(t, queue.ClaimParams{}, 1)[0]))
					_, known := queue.Watermark(b.Service, queue.Default)
					return known
				})
				claimedSoon(t, b, pgtest.Query[int64](t, b.sql, insert))
				ids := b.put(t, queue.InsertParams{}, queue.InsertParams{Priority: -9}, queue.InsertParams{Priority: 3})
				sameIDs(t, b.take(t, queue.ClaimParams{Limit: 3}, 3), []int64{ids[1], ids[0], ids[2]})
			})
		}
	}
}
