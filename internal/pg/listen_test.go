package pg_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

// listening is a subscriber whose calls are recorded.
type listening struct {
	calls chan string
	stop  func()
}

// listen subscribes to a channel until the test ends, or stop is called.
func listen(t *testing.T, db *pg.Database, channel string) listening {
	t.Helper()
	l := listening{calls: make(chan string, 10_000)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		db.Listen(ctx, pg.Subscriber{
			Channel: channel, Started: func() { l.calls <- "started" }, Received: func(payload string) { l.calls <- payload }, Failed: func(error) { l.calls <- "failed" },
		})
	}()
	l.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(l.stop)
	return l
}

func (l listening) want(t *testing.T, calls ...string) {
	t.Helper()
	for _, want := range calls {
		select {
		case got := <-l.calls:
			if got != want {
				t.Fatalf("the subscriber was told %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the subscriber was not told %q", want)
		}
	}
}

const countListeners = `select count(*) from pg_stat_activity where datname = current_database() and query ~* '^listen|^-- ping'`

func TestSubscribersShareOneConnection(t *testing.T) {
	t.Parallel()
	test := pgtest.Empty(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: test.URL})
	if err != nil {
		t.Fatal(err)
	}
	sql := pgtest.Connect(t, test.URL)
	notify := func(channel, payload string) {
		t.Helper()
		if _, err := sql.Exec(t.Context(), `select pg_notify($1, $2)`, channel, payload); err != nil {
			t.Fatal(err)
		}
	}
	first := listen(t, db, "one")
	first.want(t, "started")
	second, third := listen(t, db, "two"), listen(t, db, "one") // while the connection waits for notifications
	second.want(t, "started")
	third.want(t, "started")
	notify("two", "a")
	notify("one", "b")
	first.want(t, "b")
	second.want(t, "a")
	third.want(t, "b")
	if n := pgtest.Query[int](t, sql, countListeners); n != 1 {
		t.Errorf("%d connections listen, want 1", n)
	}
	first.stop()
	notify("one", "c")
	third.want(t, "c")
	if len(first.calls) > 0 {
		t.Errorf("a subscriber that has left was told %q", <-first.calls)
	}
	for until := time.Now().Add(time.Minute); !db.IsListening(); {
		if time.Now().After(until) {
			t.Fatal("the self-test does not arrive")
		}
	}
	for _, pool := range db.PoolStats() {
		if pool.Name == "listener" && (pool.InUse != 1 || pool.Max != 1) {
			t.Errorf("the listener has %d connections in use, of %d", pool.InUse, pool.Max)
		}
	}
	second.stop()
	third.stop()
	if db.IsListening() {
		t.Error("it listens without subscribers")
	}
	listen(t, db, "one").want(t, "started") // anew
}

func TestSubscribersAreToldWhenTheConnectionFails(t *testing.T) {
	t.Parallel()
	test := pgtest.Empty(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: test.URL})
	if err != nil {
		t.Fatal(err)
	}
	first, second := listen(t, db, "one"), listen(t, db, "two")
	first.want(t, "started")
	second.want(t, "started")
	sql := pgtest.Connect(t, test.URL)
	if n := pgtest.Query[int](t, sql, `select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and query ~* '^listen|^-- ping'`); n != 1 {
		t.Fatalf("%d connections listened, want 1", n)
	}
	first.want(t, "failed", "started")
	second.want(t, "failed", "started")
	if _, err := sql.Exec(t.Context(), `notify two, 'after'`); err != nil {
		t.Fatal(err)
	}
	second.want(t, "after")
	db.Reset() // the next connection may take a while
	first.want(t, "failed", "started")
	second.want(t, "failed", "started")
}

func TestSlowSubscriberHoldsNobodyBack(t *testing.T) {
	t.Parallel()
	test := pgtest.Empty(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: test.URL})
	if err != nil {
		t.Fatal(err)
	}
	started, goOn, received := make(chan struct{}, 10), make(chan struct{}), 0
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		db.Listen(ctx, pg.Subscriber{
			Channel: "everything", Started: func() { started <- struct{}{} }, Received: func(string) {
				<-goOn
				received++
			},
		})
	}()
	quick := listen(t, db, "everything")
	quick.want(t, "started")
	<-started
	const n = 3000 // more than a subscriber may be behind
	if _, err := pgtest.Connect(t, test.URL).Exec(t.Context(), `select pg_notify('everything', i::text) from generate_series(1, 3000) i`); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= n; i++ { // it may be too slow as well
		select {
		case got := <-quick.calls:
			if got == "started" {
				i = n
			} else if got != fmt.Sprint(i) {
				t.Fatalf("received %s, want %d", got, i)
			}
		case <-time.After(time.Minute):
			t.Fatalf("notification %d does not arrive beside a subscriber that hangs", i)
		}
	}
	close(goOn)
	select {
	case <-started: // notifications were dropped, so it has to begin again
	case <-time.After(time.Minute):
		t.Error("a subscriber whose notifications were dropped is not told")
	}
	stop()
	<-done
	if received >= n {
		t.Errorf("%d notifications were kept for a subscriber that hangs", received)
	}
}

func TestSharedPoolsHaveOneSetOfConnections(t *testing.T) {
	t.Parallel()
	db, err := pg.Open(t.Context(), pg.Config{URL: pgtest.Empty(t).URL})
	if err != nil {
		t.Fatal(err)
	}
	config := pg.PoolConfig{Name: "together", MaxConns: 1, IsShared: true}
	patient, hasty := config, config
	hasty.LockTimeout = 7 * time.Millisecond
	var first, second *pg.Pool
	one, err := db.OpenPools(t.Context(), pg.PoolSpec{To: &first, Config: patient})
	if err != nil {
		t.Fatal(err)
	}
	other, err := db.OpenPools(t.Context(), pg.PoolSpec{To: &second, Config: hasty})
	if err != nil {
		t.Fatal(err)
	}
	timeout := func(pool *pg.Pool) (pid int, limit string) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `select pg_backend_pid(), current_setting('lock_timeout')`).Scan(&pid, &limit); err != nil {
			t.Fatal(err)
		}
		return pid, limit
	}
	pid, limit := timeout(first)
	for range 2 {
		if again, own := timeout(second); again != pid || own != "7ms" || limit != "5s" {
			t.Errorf("sessions %d and %d with lock timeouts %s and %s, want one with 5s and 7ms", pid, again, limit, own)
		}
		pid, limit = timeout(first)
	}
	if err := one.CloseBy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Exec(t.Context(), `select 1`); err == nil {
		t.Error("a closed pool makes calls")
	}
	timeout(second)
	for range 2 { // it may be repeated
		if err := other.CloseBy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(db.Pools()) != 0 {
		t.Error("a pool is open that nobody uses")
	}
}
