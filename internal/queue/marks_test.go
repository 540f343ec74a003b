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

// walks makes every look behind a mark report that it took so long, whatever it took: how busy this machine is must not
// decide whether marks are heeded.
func walks(t *testing.T, b bench, took string) {
	t.Helper()
	b.exec(t, `create sequence public.looks`)
	b.exec(t, `alter function agent.check_watermarks rename to looks_behind`)
	b.exec(t, `
		create function agent.check_watermarks(_queue text, _max_attempts int4, _types text[], _lanes int4[], _lane_types text[], _marks timestamptz[])
		returns table (type text, priority int4, vt timestamptz, took interval)
		language sql security definer
		begin atomic
			select o.type, o.priority, o.vt, interval '`+took+`'
			from agent.looks_behind(_queue, _max_attempts, _types, _lanes, _lane_types, _marks) o
			where pg_catalog.nextval('public.looks'::regclass) > 0;
		end`)
}

// looking opens a bench whose service runs, never polls, and looks behind its marks often; looks take as long as took says, unless that is empty.
func looking(t *testing.T, took string) bench {
	t.Helper()
	b := open(t, func(c *queue.Config) {
		neverPolls(c)
		c.WatermarkInterval = 50 * time.Millisecond
	})
	if took != "" {
		walks(t, b, took)
	}
	running(t, b.Service)
	return b
}

// marked posts and claims until the default queue has a mark that is heeded and lies beyond a time of the database.
func marked(t *testing.T, b bench, beyond time.Time) {
	t.Helper()
	eventually(t, "claims begin at a mark", func() bool {
		b.post(t, "", `{"pushes":"the mark"}`)
		for _, e := range b.take(t, queue.ClaimParams{}, 1) {
			b.ack(t, lease(e))
		}
		mark, _ := queue.Watermark(b.Service, queue.Default)
		return mark.After(beyond)
	})
}

// soon fails the test unless a waiting claim gets the event within seconds.
func soon(t *testing.T, b bench, id int64) queue.Event {
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

func TestEventCommittedBehindTheMarkIsClaimedSoon(t *testing.T) {
	t.Parallel()
	b := looking(t, "1 s")
	listening(t, b)
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var late int64
	if err := tx.QueryRow(t.Context(), `select agent.insert_event('{"late":true}')`).Scan(&late); err != nil {
		t.Fatal(err)
	}
	marked(t, b, now(t, b.sql))
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	soon(t, b, late)
}

func TestVTSetBehindTheMarkBySQLIsClaimedSoon(t *testing.T) {
	t.Parallel()
	b := looking(t, "1 s")
	b.post(t, "", `{}`)
	e := b.take(t, queue.ClaimParams{}, 1)[0]
	marked(t, b, now(t, b.sql))
	b.exec(t, `update agent.event set vt = now() - interval '1 hour' where id = $1`, e.ID)
	if again := soon(t, b, e.ID); again.Attempts != 2 {
		t.Errorf("claimed as attempt %d", again.Attempts)
	}
}

func TestWhatTheServicePutsBehindItsMarkIsClaimedAtOnce(t *testing.T) {
	t.Parallel()
	b := looking(t, "1 s")
	b.post(t, "", `{}`)
	released := b.take(t, queue.ClaimParams{}, 1)[0]
	marked(t, b, now(t, b.sql))
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

func TestClaimUnderWayDoesNotRaiseAMarkThatWasLowered(t *testing.T) {
	t.Parallel()
	b := looking(t, "1 s")
	marked(t, b, now(t, b.sql))
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

func TestShortWalksLeaveNothingToAMark(t *testing.T) {
	t.Parallel()
	b := looking(t, "0 s")
	b.post(t, "", `{}`)
	e := b.take(t, queue.ClaimParams{}, 1)[0]
	eventually(t, "what came of the first look behind the mark is known", func() bool {
		b.post(t, "", `{}`)
		b.ack(t, lease(b.take(t, queue.ClaimParams{}, 1)[0]))
		return pgtest.Query[int](t, b.sql, `select last_value from public.looks`) > 1
	})
	b.exec(t, `update agent.event set vt = now() - interval '1 hour' where id = $1`, e.ID)
	if again := b.take(t, queue.ClaimParams{}, 1)[0]; again.ID != e.ID {
		t.Errorf("claimed event %d, want %d", again.ID, e.ID)
	}
}

func TestMarksAreHeededBesideAnOldSnapshot(t *testing.T) {
	t.Parallel()
	b := looking(t, "")
	tx, err := pgtest.Connect(t, b.url).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select 1 from agent.event`); err != nil {
		t.Fatal(err)
	}
	b.exec(t, `insert into agent.event (event, vt) select '{}', now() - interval '1 minute' from generate_series(1, 30000)`)
	b.exec(t, `select count(*) from agent.delete_events(array(select e.id from agent.event e order by e.id))`)
	marked(t, b, time.Time{})
	b.exec(t, `insert into agent.event (event, vt) values ('{}', now() - interval '2 minutes')`)
	soon(t, b, pgtest.Query[int64](t, b.sql, `select max(id) from agent.event`))
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
		for _, took := range []string{"0 s", "1 s"} { // marks are not heeded, and are
			t.Run(name+", looks take "+took, func(t *testing.T) {
				t.Parallel()
				b := looking(t, took)
				listening(t, b)
				eventually(t, "the lanes are known", func() bool {
					b.post(t, "", `{}`)
					b.ack(t, lease(b.take(t, queue.ClaimParams{}, 1)[0]))
					_, known := queue.Watermark(b.Service, queue.Default)
					return known
				})
				soon(t, b, pgtest.Query[int64](t, b.sql, insert))
				ids := b.put(t, queue.InsertParams{}, queue.InsertParams{Priority: -9}, queue.InsertParams{Priority: 3})
				sameIDs(t, b.take(t, queue.ClaimParams{Limit: 3}, 3), []int64{ids[1], ids[0], ids[2]})
			})
		}
	}
}
