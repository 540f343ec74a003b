//go:build unix

package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/faults"
	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// pooled opens a database through a pooler.
func pooled(t *testing.T, pooler *faults.Pooler, listenURL string) *pg.Database {
	t.Helper()
	db, err := pg.Open(t.Context(), pg.Config{URL: pooler.URL(), ListenURL: listenURL, Logger: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestServiceWorksBehindAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	server := faults.Start(t, quick)
	// Each transaction can get another session, with the settings that the previous one left.
	pooler := faults.StartPooler(t, server, "transaction", "default_pool_size = 3")
	if _, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: pooler.URL()}); err != nil {
		t.Fatal(err)
	}
	db := pooled(t, pooler, server.URL())
	if !db.IsPooled() {
		t.Fatal("the pooler was not found")
	}
	s, err := queue.Open(t.Context(), queue.Config{Database: db})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	runService(t, s)

	ctx := t.Context()
	errs := make(chan error)
	const callers = 8
	for caller := range callers {
		go func() {
			errs <- func() error {
				q := fmt.Sprintf("q%d", caller)
				for range 20 {
					in, err := s.Insert(ctx, []queue.InsertParams{{Event: []byte(`{"a":[1,"ü"]}`), Queue: q, Type: "t", Priority: 3, IdempotencyKey: "", Source: "s"}})
					if err != nil {
						return fmt.Errorf("insert: %w", err)
					}
					claimed, err := s.Claim(ctx, queue.ClaimParams{Queue: q, Limit: 5, Types: []string{"t"}, ExcludeIDs: []int64{1 << 40}, InvisibleFor: time.Minute, Worker: "w"})
					if err != nil || len(claimed) != 1 || claimed[0].ID != in[0].ID {
						return fmt.Errorf("claim: %v, %w", claimed, err)
					}
					lease := queue.Lease{ID: claimed[0].ID, Receipt: claimed[0].Receipt}
					if _, err := s.Extend(ctx, lease, time.Hour); err != nil {
						return fmt.Errorf("extend: %w", err)
					}
					results, err := s.Ack(ctx, []queue.Ack{{Lease: lease, Result: []byte(`{"ok":true}`)}})
					if err != nil || results[0].Err != nil {
						return fmt.Errorf("ack: %v, %w", results, err)
					}
					if page, err := s.History(ctx, queue.HistoryParams{HistoryFilter: queue.HistoryFilter{Queue: q, Contains: []byte(`{"a":[1]}`)}}); err != nil || len(page.Events) == 0 {
						return fmt.Errorf("history: %d events, %w", len(page.Events), err)
					}
				}
				return nil
			}()
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}

	// The service must leave no settings behind in the pooler's sessions.
	conn := pgtest.Connect(t, pooler.URL()+"&default_query_exec_mode=exec")
	for range 50 {
		if got := pgtest.Query[string](t, conn, `select current_setting('lock_timeout') || ' ' || current_setting('statement_timeout')`); got != "0 0" {
			t.Fatalf("a session of the pooler has the timeouts %s", got)
		}
	}

	deadline := time.Now().Add(30 * time.Second)
	for !s.Server().IsListening {
		if time.Now().After(deadline) {
			t.Fatal("the listener receives nothing through the direct connection")
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // there is no event to wait for
	}
}

func TestListenerReportsMissingNotificationsBehindAPooler(t *testing.T) {
	t.Parallel()
	server := faults.Start(t, quick)
	pooler := faults.StartPooler(t, server, "transaction")
	db := pooled(t, pooler, "")
	failed := make(chan error, 10)
	subscriber := pg.Subscriber{Channel: "agent_event", Started: func() {}, Received: func(string) {}, Failed: func(err error) { failed <- err }}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		db.Listen(ctx, subscriber)
	}()
	if err := <-failed; !strings.Contains(err.Error(), "QUEUED_LISTEN_URL") {
		t.Errorf("the listener reports %v", err)
	}
	if db.IsListening() {
		t.Error("the listener reports that it receives notifications")
	}
	stop()
	<-done
}

func TestPoolerWithoutAFreeConnectionFailsWithAClearError(t *testing.T) {
	t.Parallel()
	server := faults.Start(t, quick)
	pooler := faults.StartPooler(t, server, "session", "default_pool_size = 1", "reserve_pool_size = 0")
	holder := pgtest.Connect(t, pooler.URL())
	if _, err := holder.Exec(t.Context(), `select 1`); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err := pg.Open(t.Context(), pg.Config{URL: pooler.URL()})
	if !errors.Is(err, pg.ErrUnavailable) || !strings.Contains(err.Error(), "pooler") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("after %s", took)
	}
}
