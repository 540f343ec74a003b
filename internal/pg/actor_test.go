package pg_test

import (
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

func TestActorIsOfItsTransactionsAlone(t *testing.T) {
	t.Parallel()
	db, err := pg.Open(t.Context(), pg.Config{URL: pgtest.Empty(t).URL})
	if err != nil {
		t.Fatal(err)
	}
	for name, cfg := range map[string]pg.PoolConfig{"plain": {MaxConns: 1}, "with a lock timeout": {MaxConns: 1, LockTimeout: time.Second}} {
		var pool *pg.Pool
		pools, err := db.OpenPools(t.Context(), pg.PoolSpec{To: &pool, Config: cfg})
		if err != nil {
			t.Fatal(err)
		}
		actor := func(ctxActor string) (got string) {
			ctx := t.Context()
			if ctxActor != "" {
				ctx = pg.WithActor(ctx, ctxActor)
			}
			if err := pool.QueryRow(ctx, `select coalesce(current_setting('agent.actor', true), '')`).Scan(&got); err != nil {
				t.Fatal(err)
			}
			return got
		}
		for _, c := range [][2]string{{"key:a", "key:a"}, {"", ""}, {"it's; drop ü", "itsdrop"}, {"", ""}} {
			if got := actor(c[0]); got != c[1] {
				t.Errorf("%s: the actor of %q is %q", name, c[0], got)
			}
		}
		tx, err := pool.Begin(pg.WithActor(t.Context(), "key:b"))
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if err := tx.QueryRow(t.Context(), `select current_setting('agent.actor')`).Scan(&got); err != nil || got != "key:b" {
			t.Errorf("in a transaction: %q, %v", got, err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := pools.CloseBy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
