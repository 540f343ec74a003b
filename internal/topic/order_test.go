package topic_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestEveryReaderSeesEachEventOnceInOneOrder(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	for limit, seen := range interleave(t, env, 60) {
		if all := allPositions(t, env); !slices.Equal(seen, all) {
			lost, twice := differences(seen, all)
			t.Errorf("a reader of %d at a time saw %d of %d events: %d lost, %d twice", limit, len(seen), len(all), lost, twice)
		}
	}
}

// Readers miss events without the lock on the head: so the test above can fail.
func TestReadersWithoutTheHeadMissEvents(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `create or replace function agent_private.hold_head() returns void language sql as ''`)
	missed := 0
	for _, seen := range interleave(t, env, 60) {
		lost, _ := differences(seen, allPositions(t, env))
		missed += lost
	}
	if missed == 0 {
		t.Error("readers missed nothing though publishers did not hold the head: the load does not show what it is to show")
	}
}

// interleave has twelve publishers publish rounds of events each, among them slow ones, some whose transactions are rolled back and some whose sessions
// are ended, beside a foreign transaction that stays open, while two readers follow. It returns what each reader saw, by its limit.
func interleave(t *testing.T, env environment, rounds int) map[int][]int64 {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	pool, err := pgxpool.New(t.Context(), env.url+"&pool_max_conns=20")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	env.exec(t, `create table public.foreign_writes (n int4)`)
	foreign, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := foreign.Exec(t.Context(), `insert into public.foreign_writes values (1)`); err != nil {
		t.Fatal(err)
	}

	var publishing, reading sync.WaitGroup
	var isDone atomic.Bool
	for i := range 12 {
		publishing.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for round := range rounds {
				publishRound(t, pool, i, round, random)
			}
		})
	}
	var mu sync.Mutex
	seen := make(map[int][]int64)
	for _, limit := range []int{7, 500} {
		reading.Go(func() {
			var all []int64
			for after := int64(0); ; {
				last := isDone.Load()
				rows, _ := pool.Query(t.Context(), `select position from agent_service.read_log_page($1, $2, 1000000) where position is not null`, after, limit)
				page, err := pgx.CollectRows(rows, pgx.RowTo[int64])
				if err != nil {
					t.Error(err)
					return
				}
				all = append(all, page...)
				if len(page) > 0 {
					after = page[len(page)-1]
				} else if last {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			seen[limit] = all
		})
	}
	publishing.Wait()
	isDone.Store(true)
	reading.Wait()
	return seen
}

// publishRound publishes one to five events in a transaction, as publisher i does.
func publishRound(t *testing.T, pool *pgxpool.Pool, i, round int, random *rand.Rand) {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Release()
	n := 1 + random.IntN(5)
	topics, events := make([]string, n), make([]string, n)
	for k := range n {
		topics[k], events[k] = fmt.Sprintf("publisher.%d", i), fmt.Sprintf(`{"round": %d, "k": %d}`, round, k)
	}
	pause := time.Duration(random.IntN(4000)) * time.Microsecond
	publish := `select agent.publish_events($1, $2::text[]::jsonb[])`
	if i%2 == 0 { // as the service does, but with a pause between the drawing of positions and the commit
		publish = `select agent_service.append_log($1, $2::text[]::jsonb[])`
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Error(err)
		return
	}
	if _, err := tx.Exec(t.Context(), publish, topics, events); err != nil {
		t.Error(err)
	}
	if _, err := tx.Exec(t.Context(), `select pg_sleep($1)`, pause.Seconds()); err != nil {
		t.Error(err)
	}
	switch random.IntN(10) {
	case 0:
		_ = tx.Rollback(t.Context())
	case 1:
		_, _ = tx.Exec(t.Context(), `select pg_terminate_backend(pg_backend_pid())`)
		_ = tx.Rollback(t.Context())
	default:
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// allPositions are the positions of all events of the log.
func allPositions(t *testing.T, env environment) []int64 {
	t.Helper()
	rows, _ := env.sql.Query(t.Context(), `select position from agent.log order by position`)
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// differences counts what of all is not in seen, and what is in seen more than once.
func differences(seen, all []int64) (lost, twice int) {
	times := make(map[int64]int)
	for _, position := range seen {
		if times[position]++; times[position] == 2 {
			twice++
		}
	}
	for _, position := range all {
		if times[position] == 0 {
			lost++
		}
	}
	return lost, twice
}
