package topic_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/topic"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// busyTimeout is what a busy machine may take for what should happen at once.
const busyTimeout = time.Minute

// environment is a log on a database of its own, the queue that publishes into it, and a session of the schema's owner.
type environment struct {
	*topic.Service
	queue *queue.Service
	url   string
	sql   *pgx.Conn

	database *pg.Database
	cursor   string // of a page that a test has read
}

// setup returns an environment whose service is running.
func setup(t *testing.T, changes ...func(*topic.Config)) environment {
	t.Helper()
	env := environmentOn(t, pgtest.New(t).URL, changes...)
	env.run(t)
	return env
}

// setupIdle returns an environment whose service is not running.
func setupIdle(t *testing.T) environment {
	t.Helper()
	url := pgtest.New(t).URL
	return environmentOn(t, url)
}

// environmentOn returns an environment on a database that another one may use, too.
func environmentOn(t *testing.T, url string, changes ...func(*topic.Config)) environment {
	t.Helper()
	return environmentWith(t, pg.Config{URL: pgtest.AsService(url)}, url, changes...)
}

// environmentWith returns an environment that reaches its database as a configuration says.
func environmentWith(t *testing.T, database pg.Config, url string, changes ...func(*topic.Config)) environment {
	t.Helper()
	log := zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
	database.Logger = log
	db, err := pg.Open(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(t.Context(), queue.Config{Database: db, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSoon(t, q.Close) })
	cfg := topic.Config{Database: db, Queue: q, QueryTimeout: busyTimeout, Logger: log}
	for _, change := range changes {
		change(&cfg)
	}
	s, err := topic.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSoon(t, s.Close) })
	t.Cleanup(func() {
		if stuck := db.Rounds.Stuck(); len(stuck) > 0 {
			t.Errorf("loops went round without getting anything done: %v idle rounds in a row", stuck)
		}
	})
	return environment{Service: s, queue: q, url: url, sql: pgtest.Connect(t, url), database: db}
}

func closeSoon(t *testing.T, closeService func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), busyTimeout)
	defer cancel()
	if err := closeService(ctx); err != nil {
		t.Error(err)
	}
}

// run runs the service until the test ends.
func (env environment) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- env.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// exec runs a statement as the owner of the schema.
func (env environment) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := env.sql.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value returns the one value of a query, as the owner of the schema.
func value[T any](t *testing.T, env environment, sql string, args ...any) T {
	t.Helper()
	return pgtest.Query[T](t, env.sql, sql, args...)
}

// publish publishes numbered events to topics, and returns their positions.
func (env environment) publish(t *testing.T, topics ...string) []int64 {
	t.Helper()
	publications := make([]topic.Publication, len(topics))
	for i, name := range topics {
		publications[i] = topic.Publication{Topic: name, Event: json.RawMessage(fmt.Sprintf(`{"n": %d}`, i))}
	}
	published, err := env.Publish(t.Context(), publications)
	if err != nil {
		t.Fatal(err)
	}
	positions := make([]int64, len(published))
	for i, p := range published {
		positions[i] = p.Position
	}
	return positions
}

// read reads a page of the log.
func (env environment) read(t *testing.T, p topic.ReadParams) topic.Page {
	t.Helper()
	page, err := env.Read(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// positions are the positions of events.
func positions(events []topic.Event) []int64 {
	all := make([]int64, len(events))
	for i, e := range events {
		all[i] = e.Position
	}
	return all
}
