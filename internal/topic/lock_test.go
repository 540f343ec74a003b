package topic_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/topic"
)

// waitForLocks makes a call several times at once, more often than there are connections, and returns when one of them waits for a lock, with
// a function that returns the errors of all.
func (env environment) waitForLocks(t *testing.T, call func(context.Context) error) (errs func() []error) {
	t.Helper()
	const calls = 12
	all := make([]error, calls)
	var calling sync.WaitGroup
	for i := range all {
		calling.Go(func() { all[i] = call(t.Context()) })
	}
	watcher := pgtest.Connect(t, env.url)
	await(t, "calls wait for a lock", func() bool {
		return pgtest.Query[int](t, watcher, `select count(*)::int4 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) >= 1
	})
	return func() []error {
		calling.Wait()
		return all
	}
}

// wantReads makes the calls that read, in much less time than those that wait for locks may take.
func (env environment) wantReads(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), busyTimeout/4)
	defer cancel()
	for doing, call := range map[string]func() error{
		"the log":        func() error { _, err := env.Read(ctx, topic.ReadParams{}); return err },
		"topics":         func() error { _, err := env.Topics(ctx, 10, "", nil); return err },
		"bounds":         func() error { _, _, err := env.Bounds(ctx); return err },
		"subscriptions":  func() error { _, err := env.Subscriptions(ctx, 10, "", nil, nil); return err },
		"a subscription": func() error { _, err := env.ReadSubscription(ctx, "s", topic.SubscribedParams{}); return err },
		"one that expires": func() error {
			_, err := env.ReadSubscription(ctx, "expiring", topic.SubscribedParams{})
			return err
		},
		"settings": func() error { _, err := env.Settings(ctx); return err },
	} {
		if err := call(); err != nil {
			t.Errorf("reading %s: %v", doing, err)
		}
	}
	other, err := env.ReadSubscription(ctx, "other", topic.SubscribedParams{Lease: time.Hour})
	if err == nil {
		_, err = env.Commit(ctx, "other", other.Cursor)
	}
	if err != nil {
		t.Errorf("reading and committing another subscription: %v", err)
	}
}

func TestReadersWaitForNoTransactionThatWrites(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql  string
		call func(environment, context.Context) error
	}{
		"an idempotency key": {`select agent.publish('a', '{}', _idempotency_key => 'k')`, func(env environment, ctx context.Context) error {
			_, err := env.PublishLater(ctx, topic.Publication{Topic: "a", Event: json.RawMessage(`{}`), IdempotencyKey: "k"}, time.Hour, nil)
			return err
		}},
		"a lease": {`select agent.pause_subscription('s'), agent.pause_subscription('expiring')`, func(env environment, ctx context.Context) error {
			_, err := env.ReadSubscription(ctx, "s", topic.SubscribedParams{Lease: time.Hour})
			return err
		}},
		"a commit": {`select agent.pause_subscription('s'), agent.pause_subscription('expiring')`, func(env environment, ctx context.Context) error {
			_, err := env.Commit(ctx, "s", env.cursor)
			return err
		}},
		"settings": {`select agent.put_log_settings(_retention => '1 day')`, func(env environment, ctx context.Context) error {
			_, err := env.PutSettings(ctx, topic.SettingsChange{}, nil)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := setup(t)
			for _, name := range []string{"s", "other", "expiring"} {
				p := topic.PutSubscriptionParams{Name: name, Filters: []topic.SubscriptionFilter{everything(t)}}
				if name == "expiring" {
					p.ExpiresAfter = new(24 * time.Hour)
				}
				env.put(t, p)
			}
			env.publish(t, "a", "b")
			env.cursor = env.next(t, topic.SubscribedParams{}).Cursor
			env.exec(t, `update agent.subscription set expires_at = now() + interval '10 minutes' where name = 'expiring'`) // so that reading renews it
			tx, err := pgtest.Connect(t, env.url).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), c.sql); err != nil {
				t.Fatal(err)
			}
			errs := env.waitForLocks(t, func(ctx context.Context) error { return c.call(env, ctx) })
			env.wantReads(t)
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, err := range errs() {
				if err != nil {
					t.Errorf("a call that waited for the lock: %v", err)
				}
			}
		})
	}
}

func TestWaitsForLocksHaveALimit(t *testing.T) {
	t.Parallel()
	env := environmentOn(t, pgtest.New(t).URL, func(c *topic.Config) { c.QueryTimeout = time.Second })
	tx, err := pgtest.Connect(t, env.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent.publish('a', '{}', _idempotency_key => 'k')`); err != nil {
		t.Fatal(err)
	}
	for _, err := range env.waitForLocks(t, func(ctx context.Context) error {
		_, err := env.PublishLater(ctx, topic.Publication{Topic: "a", Event: json.RawMessage(`{}`), IdempotencyKey: "k"}, time.Hour, nil)
		return err
	})() {
		if !errors.Is(err, pg.ErrLocked) {
			t.Errorf("a call that waits for a lock that nobody releases: %v, want ErrLocked", err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
