package pg_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/puddle/v2"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

func TestPoolsCloseAlthoughAConnectionOfAnotherStaysInUse(t *testing.T) {
	t.Parallel()
	db, err := pg.Open(t.Context(), pg.Config{URL: pgtest.Empty(t).URL})
	if err != nil {
		t.Fatal(err)
	}
	var first, second *pg.Pool
	pools, err := db.OpenPools(t.Context(), pg.PoolSpec{To: &first}, pg.PoolSpec{To: &second})
	if err != nil {
		t.Fatal(err)
	}
	used, err := first.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pools.CloseBy(over); !errors.Is(err, context.Canceled) {
		t.Errorf("closed by a deadline that is over, with a connection in use: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		_, err := second.Exec(t.Context(), `select 1`)
		if errors.Is(err, puddle.ErrClosedPool) {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("the second pool does not close: %v", err)
			break
		}
	}
	_ = used.Rollback(t.Context()) // the server has ended the session where the test took long
	if err := pools.CloseBy(t.Context()); err != nil {
		t.Errorf("closed once nothing is in use: %v", err)
	}
}
