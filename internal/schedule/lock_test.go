package schedule_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/schedule"
)

func TestLockedScheduleDelaysNoReader(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t).URL
	env := environment{Service: serviceWith(t, schedule.Config{DatabaseURL: url, QueryTimeout: 4 * time.Second}), url: url, sql: pgtest.Connect(t, url)}
	locked, err := env.Create(t.Context(), schedule.CreateParams{Spec: schedule.Spec{Queue: "q", Event: []byte(`{}`), Cron: "0 9 * * *", Timezone: "UTC"}})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := env.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent.pause_schedule($1)`, locked.ID); err != nil {
		t.Fatal(err)
	}
	const calls = 12
	var waiting sync.WaitGroup
	answers := make(chan error, calls)
	for range calls {
		waiting.Go(func() {
			_, err := env.Pause(t.Context(), locked.ID)
			answers <- err
		})
	}
	watcher := pgtest.Connect(t, url)
	for len(answers) < calls && pgtest.Query[int](t, watcher, `select count(*)::int4 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) < 2 {
		if t.Context().Err() != nil {
			t.Fatal("no call waits for the lock")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := env.Get(ctx, locked.ID); err != nil {
		t.Errorf("getting the locked schedule: %v", err)
	}
	waiting.Wait()
	for range calls {
		if err := <-answers; !errors.Is(err, pg.ErrLocked) {
			t.Errorf("pausing the locked schedule: %v, want ErrLocked", err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
