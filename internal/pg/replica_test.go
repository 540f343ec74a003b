package pg_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

// copied are rows that a replica of a test has, as texts.
type copied map[string]bool

// openReplica returns a replica of the first column of a query, which was read once.
func openReplica(t *testing.T, db *pg.Database, name, query string) (r *pg.Replica[copied], reads *atomic.Int32) {
	t.Helper()
	pool, err := db.NewPool(t.Context(), pg.PoolConfig{Name: name, MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	reads = new(atomic.Int32)
	read := func(ctx context.Context) (*copied, error) {
		rows, _ := pool.Query(ctx, query)
		found, err := pg.Collect[struct{ Name string }](rows)
		all := make(copied)
		for _, f := range found {
			all[f.Name] = true
		}
		return &all, err
	}
	r = &pg.Replica[copied]{
		Database: db, Pool: pool, Names: []string{name}, Doing: "reading " + name, Timeout: time.Minute, Poll: time.Hour,
		Read: func(ctx context.Context, _ *copied) (*copied, error) {
			reads.Add(1)
			return read(ctx)
		},
		Differs: func(ctx context.Context, current *copied, keys []string) (bool, error) {
			now, err := read(ctx)
			for _, key := range keys {
				if err == nil && (*now)[key] && !(*current)[key] {
					return true, nil
				}
			}
			return false, err
		},
	}
	if err := r.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r, reads
}

const (
	sourceNames = `select name from agent.source`
	keyIDs      = `select id as name from agent.api_key`
	addSource   = `insert into agent.source (name, kind, queue, secrets, dedup_for, tolerance) values ($1, 'github', 'q', array['\x01'::bytea], '1 day', '1 day')`
)

// openTest returns a database and how to change it as others do.
func openTest(t *testing.T) (db *pg.Database, exec func(query string, args ...any)) {
	t.Helper()
	test := pgtest.New(t)
	db, err := pg.Open(t.Context(), pg.Config{URL: test.URL})
	if err != nil {
		t.Fatal(err)
	}
	conn := pgtest.Connect(t, test.URL)
	return db, func(query string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), query, args...); err != nil {
			t.Fatal(err)
		}
	}
}

// runReplica runs a replica until the test ends.
func runReplica(t *testing.T, r *pg.Replica[copied]) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx, zerolog.Nop())
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// wantCopied waits until a replica has a row.
func wantCopied(t *testing.T, r *pg.Replica[copied], name string) {
	t.Helper()
	for until := time.Now().Add(time.Minute); !(*r.Load())[name]; pg.Pause(t.Context(), 5*time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("the replica does not have %q: %v", name, *r.Load())
		}
	}
}

func TestLooksAndLostNotificationsKeepToWhatIsPromised(t *testing.T) {
	t.Parallel()
	const longest = 4 * time.Second // and a statement: a revocation holds everywhere within 5 s
	if pg.DefaultReplicaPoll*5/4 > longest {
		t.Errorf("a process without notifications learns of changes after %s", pg.DefaultReplicaPoll*5/4)
	}
	if pg.LostListenerAfter > longest {
		t.Errorf("a process whose notifications get lost learns of changes after %s", pg.LostListenerAfter)
	}
}

func TestReplicaIsReadWhenItsVersionIsAnotherOne(t *testing.T) {
	t.Parallel()
	db, exec := openTest(t)
	r, reads := openReplica(t, db, "source", sourceNames)
	for range 3 {
		if err := r.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	exec(`insert into agent.api_key (id, name, scopes, hash, verifier) values ('aaaaaaaa', 'n', '{admin}', sha256('a'), sha256('b'))`)
	if err := r.Renew(t.Context()); err != nil || reads.Load() != 1 {
		t.Errorf("it was read %d times, %v, want once: nothing of it has changed", reads.Load(), err)
	}
	exec(addSource, "a")
	for _, change := range []string{`update agent.source set paused = true`, `delete from agent.source where name = 'a'`, `truncate agent.source cascade`} {
		if err := r.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := reads.Load()
		exec(change)
		if err := r.Renew(t.Context()); err != nil || reads.Load() != before+1 {
			t.Errorf("%s: it was read %d times, %v, want once", change, reads.Load()-before, err)
		}
	}
}

func TestReplicaIsReadWhenTheDatabaseIsAnotherOne(t *testing.T) {
	t.Parallel()
	db, exec := openTest(t)
	r, reads := openReplica(t, db, "source", sourceNames)
	exec(`alter sequence agent.server_mark restart`) // it has other files then, as that of a copy has, whose versions are the same
	if err := r.Renew(t.Context()); err != nil || reads.Load() != 2 {
		t.Errorf("it was read %d times, %v, want twice", reads.Load(), err)
	}
}

func TestReplicaOfTheSameVersionIsReadOnceAfterADoubtAndAfterAMinute(t *testing.T) {
	t.Parallel()
	db, _ := openTest(t)
	r, reads := openReplica(t, db, "source", sourceNames)
	for name, change := range map[string]func(){"a doubt": r.Doubt, "a minute": func() { r.Age(pg.RereadInterval) }} {
		before := reads.Load()
		change()
		for range 2 {
			if err := r.Renew(t.Context()); err != nil || reads.Load() != before+1 {
				t.Errorf("after %s it was read %d times, %v, want once", name, reads.Load()-before, err)
			}
		}
	}
}

func TestChangeOfThisProcessIsSeenThoughItCouldNotBeReadAtOnce(t *testing.T) {
	t.Parallel()
	db, exec := openTest(t)
	r, _ := openReplica(t, db, "source", sourceNames)
	runReplica(t, r)
	exec(addSource, "a")
	wantCopied(t, r, "a")
	exec(`alter table agent.source disable trigger user`) // nobody is told
	exec(addSource, "b")
	exec(`update agent_private.replica_version set version = version + 1 where name = 'source'`)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	r.RenewNow(ended)
	wantCopied(t, r, "b")
}

func TestReplicaIsReadWhenItsVersionGoesBack(t *testing.T) {
	t.Parallel()
	db, exec := openTest(t)
	exec(addSource, "a")
	r, _ := openReplica(t, db, "source", sourceNames)
	exec(`create temporary table kept as select * from agent_private.replica_version where name = 'source'`)
	exec(addSource, "b")
	if err := r.Renew(t.Context()); err != nil || len(*r.Load()) != 2 {
		t.Fatalf("got %v, %v", *r.Load(), err)
	}
	exec(`delete from agent.source where name = 'b'; update agent_private.replica_version v set version = k.version from kept k where v.name = k.name`) // as a failover that has lost a change
	if err := r.Renew(t.Context()); err != nil || len(*r.Load()) != 1 {
		t.Errorf("got %v, %v, want what there was before", *r.Load(), err)
	}
}

func TestNotificationHasAReplicaRead(t *testing.T) {
	t.Parallel()
	db, exec := openTest(t)
	r, _ := openReplica(t, db, "source", sourceNames)
	runReplica(t, r)
	exec(addSource, "a")
	wantCopied(t, r, "a")
	exec(`select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()`)
	exec(addSource, "b")
	wantCopied(t, r, "b")
}

func TestNotificationWhoseLookFailsIsNotForgotten(t *testing.T) {
	t.Parallel()
	db, exec := openTest(t)
	r, _ := openReplica(t, db, "source", sourceNames)
	read, failures := r.Read, atomic.Int32{}
	r.Read = func(ctx context.Context, before *copied) (*copied, error) {
		if failures.Add(1) <= 2 {
			return nil, errors.New("a fault")
		}
		return read(ctx, before)
	}
	runReplica(t, r)
	exec(addSource, "a")
	wantCopied(t, r, "a")
}

// The server behind a pooler may become another one while notifications go on to be those of the one before.
func TestLooksBehindAPoolerAreFrequentWhateverNotificationsDo(t *testing.T) {
	t.Parallel()
	for _, isPooled := range []bool{false, true} {
		db, _ := openTest(t)
		if isPooled {
			db.BehindPooler()
		}
		r, _ := openReplica(t, db, "source", sourceNames)
		runReplica(t, r)
		for until := time.Now().Add(time.Minute); !db.IsListening(); pg.Pause(t.Context(), 5*time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal("the process does not listen")
			}
		}
		if db.MissesNothing() == isPooled {
			t.Errorf("pooled: %t, nothing is missed: %t", isPooled, db.MissesNothing())
		}
	}
}

func TestOneLookIsForAllReplicasOfAProcess(t *testing.T) {
	t.Parallel()
	db, exec := openTest(t)
	keys, keyReads := openReplica(t, db, "access", keyIDs)
	sources, _ := openReplica(t, db, "source", sourceNames)
	runReplica(t, keys)
	runReplica(t, sources)
	for until := time.Now().Add(time.Minute); !db.IsListening(); pg.Pause(t.Context(), 5*time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the process does not listen")
		}
	}
	before := keyReads.Load()
	exec(`update agent_private.replica_version set version = version + 1 where name = 'access'`) // which notifies nobody
	if err := sources.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(time.Minute); keyReads.Load() == before; pg.Pause(t.Context(), 5*time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("what the look for one replica has seen of another one had no effect")
		}
	}
}

func TestReplicaThatSeesAVersionSeesItsChange(t *testing.T) {
	t.Parallel()
	db, _ := openTest(t)
	r, _ := openReplica(t, db, "source", sourceNames)
	pool, err := db.NewPool(t.Context(), pg.PoolConfig{Name: "change", MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	first, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := first.Exec(t.Context(), addSource, "first"); err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() { // which has to wait for the first, so that no version covers a change that is not there
		_, err := pool.Exec(t.Context(), addSource, "second")
		second <- err
	}()
	if err := r.Renew(t.Context()); err != nil || len(*r.Load()) != 0 {
		t.Errorf("got %v, %v, want nothing that is not committed", *r.Load(), err)
	}
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Renew(t.Context()); err != nil || !(*r.Load())["first"] {
		t.Errorf("got %v, %v, want the first", *r.Load(), err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	if err := r.Renew(t.Context()); err != nil || len(*r.Load()) != 2 {
		t.Errorf("got %v, %v, want both", *r.Load(), err)
	}
}

func TestLookUpFindsWhatHasNoOtherVersion(t *testing.T) {
	t.Parallel()
	db, exec := openTest(t)
	r, reads := openReplica(t, db, "source", sourceNames)
	if err := r.LookUp(t.Context(), "a"); err != nil || reads.Load() != 1 {
		t.Errorf("what there is not: %v, read %d times", err, reads.Load())
	}
	exec(`alter table agent.source disable trigger user`) // as pg_restore --data-only --disable-triggers does
	exec(addSource, "a")
	if err := r.LookUp(t.Context(), "a"); err != nil || !(*r.Load())["a"] {
		t.Errorf("got %v, %v", *r.Load(), err)
	}
	r.Limiter.SetLimit(0)
	for range 2 * r.Limiter.Burst() {
		if err := r.LookUp(t.Context(), "b"); err != nil {
			if !errors.Is(err, pg.ErrLookUps) || !errors.Is(err, pg.ErrUnavailable) {
				t.Error(err)
			}
			r.Limiter.SetLimit(rate.Inf)
			r.Pool.Close()
			if err := r.LookUp(t.Context(), "b"); !errors.Is(err, pg.ErrUnavailable) || errors.Is(err, pg.ErrLookUps) {
				t.Errorf("without the database: %v", err)
			}
			return
		}
	}
	t.Error("any number of look-ups is made")
}

func TestRenewalWaitsNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	db, exec := openTest(t)
	r, _ := openReplica(t, db, "source", sourceNames)
	read, isReading, proceed := r.Read, make(chan struct{}, 1), make(chan struct{})
	r.Read = func(ctx context.Context, before *copied) (*copied, error) {
		isReading <- struct{}{}
		<-proceed
		return read(ctx, before)
	}
	exec(addSource, "a")
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- r.Renew(t.Context()) }()
	<-isReading
	ctx, cancel := context.WithCancel(t.Context())
	go func() { second <- r.Renew(ctx) }()
	cancel()
	select {
	case err := <-second:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that the context has ended", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("it waits for another renewal after its context has ended")
	}
	close(proceed)
	if err := <-first; err != nil || !(*r.Load())["a"] {
		t.Errorf("got %v, %v", *r.Load(), err)
	}
}

func TestTimeOfTheDatabaseIsKnown(t *testing.T) {
	t.Parallel()
	db, _ := openTest(t)
	openReplica(t, db, "source", sourceNames)
	if off := time.Until(db.Now()).Abs(); off > time.Minute { // the server of tests has this machine's clock
		t.Errorf("it is taken to be off by %s", off)
	}
}
