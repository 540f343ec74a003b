package access

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

func TestLockedKeysCanBeLookedUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db, func(c *Config) { c.QueryTimeout = 4 * time.Second })
	_, text := create(t, openOn(t, db), CreateParams{Scopes: []Scope{Admin}})
	tx, err := pgtest.Connect(t, db.URL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from agent.access for update`); err != nil {
		t.Fatal(err)
	}
	const calls = 8
	var waiting sync.WaitGroup
	answers := make(chan error, calls)
	for range calls {
		waiting.Go(func() {
			_, _, err := s.Create(t.Context(), CreateParams{Name: "test", Scopes: []Scope{Admin}})
			answers <- err
		})
	}
	watcher := pgtest.Connect(t, db.URL)
	for !pgtest.Query[bool](t, watcher, `select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`) {
		if t.Context().Err() != nil {
			t.Fatal("no call waits for the lock")
		}
	}
	if _, err := s.Authenticate(t.Context(), text); err != nil {
		t.Errorf("looking up a key that this service does not know: %v", err)
	}
	if n := len(answers); n == calls {
		t.Error("the calls did not wait for the lock")
	}
	waiting.Wait()
	for range calls {
		if err := <-answers; !errors.Is(err, pg.ErrLocked) {
			t.Errorf("creating a key: %v, want ErrLocked", err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
