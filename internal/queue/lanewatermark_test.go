package queue_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
)

// leaveDeadEntries leaves the entries of n events in front of the queues, each of which nobody can remove before the test ends.
func leaveDeadEntries(t *testing.T, b env, n int, queues ...string) {
	t.Helper()
	b.exec(t, `alter table agent.event set (autovacuum_enabled = off)`)
	for _, q := range queues {
		b.exec(t, `select agent.insert_events(array_fill('{}'::jsonb, array[$1::int]), array_fill($2::text, array[$1::int]))`, n, q)
	}
	tx, err := pgtest.Connect(t, b.url).BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from agent.event limit 1`); err != nil {
		t.Fatal(err)
	}
	b.exec(t, `select agent.delete_events(array_agg(e.id)) from (select id from agent.event order by id) e`)
}

// blocksOf returns how many blocks of the database a statement looks at.
func blocksOf(t *testing.T, conn *pgx.Conn, sql string) int {
	t.Helper()
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal([]byte(pgtest.Query[string](t, conn, `explain (analyze, buffers, format json) `+sql)), &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

func TestClaimsBySQLPassOverDeadEntriesOnceInAWhile(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const dead = 10_000
	leaveDeadEntries(t, b, dead, "default")
	b.insertN(t, "", 20)
	var blocks []int
	for range 7 {
		blocks = append(blocks, blocksOf(t, b.sql, `select from agent.claim_event()`))
	}
	slices.Sort(blocks)
	if least, most := blocks[0], blocks[len(blocks)-1]; least > 100 || most < 1000 || most > 2000 {
		t.Errorf("claims looked at %d blocks, want one to pass over the entries of %d events once, which is some 1,100 blocks, and another one not to", blocks, dead)
	}
}

// noteLane has claims of the default queue begin at a vt for the given time from now on.
func noteLane(t *testing.T, b env, vt, from, until string) {
	t.Helper()
	b.exec(t, `insert into agent_private.lane_watermark values ('default', 0, now() + $1::interval, now() + $2::interval, now() + $3::interval, now() + $3::interval)
		on conflict (queue) do update set vt = excluded.vt, seen_at = excluded.seen_at, look_at = excluded.look_at, until = excluded.until`, vt, from, until)
}

func TestClaimAtRandomMissesNothingBelowTheWatermarkOfItsLane(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	noteLane(t, b, "-1 hour", "-1 minute", "1 hour")
	insert := func(priority int, vt string) (id int64) {
		return pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', _priority => $1, _vt => now() + $2::interval)`, priority, vt)
	}
	claim := func() []int64 {
		return pgtest.Query[[]int64](t, b.sql, `select coalesce(array_agg(e.id), '{}') from agent.claim_event() e`)
	}
	below := insert(0, "-1 day")
	late := insert(1, "-1 day")
	above := insert(0, "-1 minute")
	first := insert(-1, "-1 day")
	for i, want := range []int64{first, above, below, late} {
		if got := claim(); len(got) != 1 || got[0] != want {
			t.Errorf("claim %d is of %d, want %d", i+1, got, want)
		}
	}
	if got := claim(); len(got) > 0 {
		t.Errorf("claimed %d", got)
	}

	// Several at once, and the oldest first, which looks at everything.
	noteLane(t, b, "-1 hour", "-1 minute", "1 hour")
	want := []int64{insert(0, "-1 day"), insert(0, "-1 minute")}
	got := pgtest.Query[[]int64](t, b.sql, `with c as (select * from agent.claim_events(_limit => 10, _order => 'random')) select array_agg(c.id order by c.id) from c`)
	if !slices.Equal(got, want) {
		t.Errorf("claimed %d, want %d", got, want)
	}
	want = []int64{insert(0, "-1 day"), insert(0, "-1 minute")}
	for i := range want {
		if got := pgtest.Query[int64](t, b.sql, `select id from agent.claim_events()`); got != want[i] {
			t.Errorf("the oldest is %d, want %d", got, want[i])
		}
	}
}

func TestWatermarkOfALaneHoldsForItsTimeOnly(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `select agent.insert_event('{}', _vt => now() - vt) from unnest(array[interval '3 days', interval '1 day']) vt`)
	above := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', _vt => now() - interval '1 minute')`)
	// isDrawn says whether one of many claims gets an event below. Two of three do.
	isDrawn := func() bool {
		for range 60 {
			tx, err := b.sql.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var id int64
			err = tx.QueryRow(t.Context(), `select id from agent.claim_event()`).Scan(&id)
			if err := errors.Join(err, tx.Rollback(t.Context())); err != nil {
				t.Fatal(err)
			}
			if id != above {
				return true
			}
		}
		return false
	}
	for _, c := range []struct {
		about, from, until string
		want               bool
	}{
		{"now", "-1 minute", "1 hour", false},
		{"in the past, as after a restore", "-2 hours", "-1 hour", true},
		{"in the future, as after the clock was set back", "1 hour", "2 hours", true},
	} {
		noteLane(t, b, "-1 hour", c.from, c.until)
		if got := isDrawn(); got != c.want {
			t.Errorf("with a watermark that holds %s, an event below is drawn: %t, want %t", c.about, got, c.want)
		}
	}
}

// Workers in SQL insert at the past, claim, nack, release, requeue and ack at the same time, in front of so many dead entries that each look for the first event is noted. Claims must not come up empty while more can be
// claimed than all others can take meanwhile, but for a few, and all must be claimable in the end.
func TestClaimsAtRandomGetAllThatIsClaimable(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	leaveDeadEntries(t, b, 3_000, "default")
	const workers, claimable = 4, 100 // more than all claim while one does
	b.exec(t, `select agent.insert_event('{}', _vt => now() - random() * interval '10 s', _max_attempts => 1000) from generate_series(1, $1)`, claimable)
	var claims, empty atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(3 * time.Second)
	for range workers {
		conn := pgtest.Connect(t, b.url)
		all.Go(func() {
			for time.Now().Before(end) {
				var n int
				err := conn.QueryRow(t.Context(), `select count(*) from agent.event where vt <= now() and attempts < 1000`).Scan(&n)
				if err == nil && n < claimable {
					_, err = conn.Exec(t.Context(), `select agent.insert_event('{}', _vt => now() - random() * interval '10 s', _max_attempts => 1000) from generate_series(1, 5)`)
				}
				statements := []string{
					`select agent.delete_event(c.id, agent.receipt(c)) from agent.claim_event() c`,
					`select agent.nack_event(c.id, agent.receipt(c), _delay => interval '0') from agent.claim_event() c`,
					`select agent.nack_event(c.id, agent.receipt(c), _delay => interval '20 ms') from agent.claim_event() c`,
					`select agent.release_events(array[c.id], array[agent.receipt(c)]) from agent.claim_event() c`,
					`select agent.requeue_event(c.id) from agent.claim_event() c, agent.nack_event(c.id, agent.receipt(c), _final => true) n`,
				}
				claims.Add(1)
				tag, errClaim := conn.Exec(t.Context(), statements[rand.IntN(len(statements))])
				if err != nil || errClaim != nil {
					t.Error(err, errClaim)
					return
				}
				if tag.RowsAffected() == 0 && n >= claimable/2 {
					empty.Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := empty.Load(); n > 1+claims.Load()/50 { // one that chooses an event which is released at that moment does
		t.Errorf("%d of %d claims came up empty", n, claims.Load())
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent_private.lane_watermark`); n != 1 || claims.Load() < 50 {
		t.Fatalf("%d claims have left %d watermarks", claims.Load(), n)
	}
	b.exec(t, `update agent.event set vt = now() where vt > now()`)
	for left := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); left > 0; left-- {
		if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.claim_event(_max_attempts => 1000, _invisible_for => '1 hour')`); n != 1 {
			t.Fatalf("a claim came up empty, %d events are left", left)
		}
	}
}

func TestWatermarksOfLanesAreForgotten(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	noteLane(t, b, "-9 days", "-9 days", "-8 days")
	b.exec(t, `insert into agent_private.lane_watermark values ('late', 0, now(), now(), now(), now())`)
	if n := pgtest.Query[int](t, b.sql, `select agent.prune_queue_samples()`); n != 1 {
		t.Errorf("%d rows were deleted, want that of a queue in which nothing was claimed for long", n)
	}
}
