//go:build unix

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The broken builds of this file.
var (
	headNotHeld = build{name: "publishers that do not hold the head of the log", sql: []edit{{
		"hold_head", "while not pg_try_advisory_xact_lock_shared(agent_private.head_lock() << 53 | _last) loop", "while false loop",
	}}}
	logNotAdvanced = build{name: "a log that goes on where it was after a restart", sql: []edit{{
		"advance_log", "perform setval('agent.log_position_seq', _next);", "null;",
	}}}
	publishedBeforeCommit = build{name: "places in the log that are taken before the commit", sql: []edit{{
		"publish_at_commit", "insert into agent.outgoing (publications) values (_publications);", "perform agent_private.append_to_log(_publications);",
	}}}
)

// logLoad publishes over HTTP and by SQL, and reads the log through each of the servers. What readers get and publishers are told goes into the
// ledger, events by the field n of their payload.
type logLoad struct {
	t       *testing.T
	ledger  *ledger
	sqlURL  string
	seed    uint64
	readers []*logReader
	stop    context.CancelFunc // of the publishers
	end     context.CancelFunc // of the readers

	publishing, reading sync.WaitGroup
	gate                sync.RWMutex // held to publish, and by who keeps others from that

	mu       sync.Mutex
	acked    map[string]time.Time // the publications that succeeded, also those by SQL
	sources  map[int64]string     // the n of each position that anybody was told
	latency  []time.Duration      // of what was published over HTTP, until the first reader had it
	sqlAcked int

	drewInVain atomic.Bool // readers are past positions that a crash or a failover takes back: they may be told of a gap where nothing is lost
}

// logReader reads the log through one server.
type logReader struct {
	*client
	load *logLoad

	mu     sync.Mutex
	after  int64
	seen   []published
	isTold bool // that what it may have seen was lost
}

type published struct {
	Position int64 `json:"position"`
	Event    struct {
		N string `json:"n"`
	} `json:"event"`
}

// A gap is what a reader is told of events that are missing.
type gap struct {
	After  int64  `json:"after"`
	Until  int64  `json:"until"`
	Reason string `json:"reason"`
}

// startLogLoad starts the clients; publishers by SQL use sqlURL. They end with the test, or with finish.
func startLogLoad(t *testing.T, l *ledger, sqlURL string, servers ...*queued) *logLoad {
	t.Helper()
	d := &logLoad{t: t, ledger: l, sqlURL: sqlURL, seed: uint64(time.Now().UnixNano()), acked: map[string]time.Time{}, sources: map[int64]string{}}
	t.Logf("seed %d", d.seed)
	publishing, stop := context.WithCancel(t.Context())
	reading, end := context.WithCancel(t.Context())
	d.stop, d.end = stop, end
	transport := &http.Transport{MaxIdleConnsPerHost: 8}
	all := &load{t: t, ledger: l, client: &http.Client{Transport: transport}, seed: d.seed}
	for i, q := range servers {
		all.addrs = append(all.addrs, q.addr)
		own := &load{t: t, ledger: l, client: all.client, seed: d.seed, addrs: []string{q.addr}}
		r := &logReader{client: own.newClient(uint64(100 + i)), load: d}
		d.readers = append(d.readers, r)
		d.reading.Go(func() { r.run(reading) })
	}
	d.subscribe(publishing, all.newClient(200))
	for i := range uint64(3) {
		c := all.newClient(i)
		d.publishing.Go(func() { d.publish(publishing, c) })
	}
	for i := range uint64(4) {
		random := rand.New(rand.NewPCG(d.seed, 10+i))
		d.publishing.Go(func() { d.publishSQL(publishing, all, random) })
	}
	t.Cleanup(func() {
		stop()
		end()
		d.publishing.Wait()
		d.reading.Wait()
		transport.CloseIdleConnections()
	})
	return d
}

// tell records that somebody was told what is at a position.
func (d *logLoad) tell(position int64, n string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if other, known := d.sources[position]; known && other != n {
		d.ledger.violated("the position %d was that of %s and that of %s", position, other, n)
	}
	d.sources[position] = n
}

// succeeded records that a publication was acknowledged, at a position if that is known.
func (d *logLoad) succeeded(n string, position int64) {
	if position != 0 {
		d.ledger.inserted(n, position)
		d.tell(position, n)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.acked[n] = time.Now()
	if position == 0 {
		d.sqlAcked++
	}
}

func (d *logLoad) publish(ctx context.Context, c *client) {
	calls := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		status := 0
		d.gate.RLock()
		switch chance := c.rand.IntN(10); {
		case chance < 5:
			n := c.name()
			var answer published
			if status = c.call(calls, http.MethodPost, "/topics/a.b", map[string]any{"n": n}, &answer); status == http.StatusCreated {
				d.succeeded(n, answer.Position)
			}
		case chance < 7: // with a key, repeated until the result is known
			n := c.name()
			for range 200 {
				var answer published
				status = c.call(calls, http.MethodPost, "/topics/a.c", map[string]any{"n": n}, &answer, "Idempotency-Key: "+n)
				if status == http.StatusCreated || status == http.StatusOK {
					d.succeeded(n, answer.Position)
					break
				}
				c.pause(ctx, status)
			}
		default:
			events := make([]map[string]any, 1+c.rand.IntN(10))
			names := make([]string, len(events))
			for i := range events {
				names[i] = c.name()
				events[i] = map[string]any{"topic": "a.d", "event": map[string]any{"n": names[i]}}
			}
			var answer struct{ Positions []int64 }
			if status = c.call(calls, http.MethodPost, "/publish", map[string]any{"events": events}, &answer); status == http.StatusCreated {
				for i, position := range answer.Positions {
					d.succeeded(names[i], position)
				}
			}
		}
		d.gate.RUnlock()
		c.pause(ctx, status)
	}
}

// publishSQL publishes in transactions of its own, some of which are rolled back, and some of which take their place at once, as the service does.
func (d *logLoad) publishSQL(ctx context.Context, names *load, random *rand.Rand) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for ctx.Err() == nil {
		n := fmt.Sprintf("%d-%d", d.seed, names.next.Add(1))
		if err := func() error {
			d.gate.RLock()
			defer d.gate.RUnlock()
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			if conn == nil || conn.IsClosed() {
				var err error
				if conn, err = pgx.Connect(limited, d.sqlURL+"&default_query_exec_mode=exec&target_session_attrs=read-write&connect_timeout=2"); err != nil {
					return err
				}
			}
			tx, err := conn.Begin(limited)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(limited) }()
			publish := `select agent.publish('sql', jsonb_build_object('n', $1::text))`
			takesPlace := random.IntN(2) == 0
			if takesPlace {
				publish = `select count(*) from agent_service.append_log('{sql}', array[jsonb_build_object('n', $1::text)])`
			}
			if _, err = tx.Exec(limited, publish, n); err != nil {
				return err
			}
			pause(time.Duration(random.IntN(10)) * time.Millisecond)
			if random.IntN(6) == 0 {
				return tx.Rollback(limited)
			}
			if err := tx.Commit(limited); err != nil {
				return err
			}
			d.succeeded(n, 0)
			return nil
		}(); err != nil {
			if conn != nil {
				_ = conn.Close(context.WithoutCancel(ctx))
			}
			pause(50 * time.Millisecond)
		}
		pause(time.Duration(random.IntN(20)) * time.Millisecond)
	}
}

func (r *logReader) run(ctx context.Context) {
	for ctx.Err() == nil {
		var page struct {
			Events []published
			Next   int64
			Gap    *gap
		}
		after := r.position()
		path := fmt.Sprintf("/log?after=%d&limit=%d&wait=200ms", after, 1+r.rand.IntN(200))
		if status := r.call(ctx, http.MethodGet, path, nil, &page); status == http.StatusOK {
			r.got(after, page.Events, page.Next, page.Gap)
		} else {
			r.pause(ctx, status)
		}
	}
}

func (r *logReader) position() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.after
}

// got records what a reader got after a position, unless the reader is somewhere else by now.
func (r *logReader) got(after int64, events []published, next int64, g *gap) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.after != after {
		return
	}
	if g != nil {
		mayBeTold := r.load.ledger.lossy || r.load.drewInVain.Load()
		if !mayBeTold || g.Reason != "lost" || g.After != after || g.Until <= after || g.Until > next {
			r.load.ledger.violated("a reader was told of the gap %+v after %d", *g, after)
		}
		r.isTold = true
		r.after = g.Until
	}
	for _, e := range events {
		if e.Position <= r.after {
			r.load.ledger.violated("a reader got the position %d after %d", e.Position, r.after)
		}
		r.after = e.Position
		r.load.tell(e.Position, e.Event.N)
		r.load.mu.Lock()
		if at, known := r.load.acked[e.Event.N]; known {
			r.load.latency = append(r.load.latency, now.Sub(at))
		}
		r.load.mu.Unlock()
	}
	if next < r.after {
		r.load.ledger.violated("a reader is to go on from %d after %d", next, r.after)
	}
	r.after = next
	r.seen = append(r.seen, events...)
}

// await waits until something is so, and fails the test if that takes very long.
func (d *logLoad) await(what string, is func() bool) {
	d.t.Helper()
	for began := time.Now(); !is(); pause(10 * time.Millisecond) {
		if time.Since(began) > startLimit {
			d.t.Fatalf("%s took more than %v", what, startLimit)
		}
	}
}

// counts returns how many publications over HTTP and by SQL have succeeded.
func (d *logLoad) counts() (overHTTP, bySQL int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.acked) - d.sqlAcked, d.sqlAcked
}

// awaitPublished waits until n more publications of each kind have succeeded.
func (d *logLoad) awaitPublished(n int) {
	d.t.Helper()
	overHTTP, bySQL := d.counts()
	d.await("publishing", func() bool {
		isHTTP, isSQL := d.counts()
		return isHTTP >= overHTTP+n && isSQL >= bySQL+n
	})
}

// awaitReaders waits until all readers have read up to a position, but not for long once a violation is known.
func (d *logLoad) awaitReaders(position int64) {
	d.t.Helper()
	began := time.Now()
	d.await("reading", func() bool {
		return !slices.ContainsFunc(d.readers, func(r *logReader) bool { return r.position() < position }) ||
			!d.ledger.clean() && time.Since(began) > 5*time.Second
	})
}

// finish stops the clients and compares what the readers got with the log in the database at url.
func (d *logLoad) finish(url string) {
	d.t.Helper()
	d.stop()
	d.publishing.Wait()
	rows := loggedEvents(d.t, url)
	if len(rows) > 0 {
		d.awaitReaders(rows[len(rows)-1].Position)
	}
	d.end()
	d.reading.Wait()
	places := map[string]int64{}
	for _, e := range rows {
		if other, known := places[e.Event.N]; known {
			d.ledger.violated("the event %s is at the positions %d and %d", e.Event.N, other, e.Position)
		}
		places[e.Event.N] = e.Position
		d.tell(e.Position, e.Event.N)
	}
	if !d.ledger.lossy {
		for n := range d.acked {
			if places[n] == 0 {
				d.ledger.violated("the event %s was acknowledged and is lost", n)
			}
		}
	}
	for i, r := range d.readers {
		inLog := r.seen
		if d.ledger.lossy { // what was lost may have been seen
			inLog = slices.DeleteFunc(slices.Clone(r.seen), func(e published) bool { return places[e.Event.N] != e.Position })
			if len(inLog) < len(r.seen) && !r.isTold {
				d.ledger.violated("the reader %d got %d events that were lost, and was told of no gap", i, len(r.seen)-len(inLog))
			}
		}
		if !slices.Equal(inLog, rows) {
			missed := slices.DeleteFunc(slices.Clone(rows), func(e published) bool { return slices.Contains(inLog, e) })
			d.ledger.violated("the reader %d got %d events of %d, missed %d, such as %v", i, len(inLog), len(rows), len(missed), missed[:min(2, len(missed))])
		}
	}
	d.compareDelivered(url, rows)
	overHTTP, bySQL := d.counts()
	d.t.Logf("%d published over HTTP and %d by SQL, %d in the log", overHTTP, bySQL, len(rows))
	if n := len(d.latency); n > 0 {
		slices.Sort(d.latency)
		d.t.Logf("from the answer to a reader: p50 %v, p99 %v", d.latency[n/2], d.latency[n*99/100])
	}
}

// loggedEvents are the events of the log in the database at url, in order.
func loggedEvents(t *testing.T, url string) []published {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	return collectPublished(ctx, t, conn, `select position, event ->> 'n' from agent.log order by position`)
}

// collectPublished returns the positions and the sources of events.
func collectPublished(ctx context.Context, t *testing.T, conn *pgx.Conn, statement string, args ...any) []published {
	t.Helper()
	rows, _ := conn.Query(ctx, statement, args...)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e published, err error) {
		return e, row.Scan(&e.Position, &e.Event.N)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// drawInVain has a transaction draw positions and end without a commit, and waits until readers have come past them.
func (d *logLoad) drawInVain(server *Server) {
	d.t.Helper()
	d.drewInVain.Store(true)
	server.Exec(ordinary, `begin; select count(*) from agent_service.append_log(array_fill('a'::text, array[200]), array_fill('{}'::jsonb, array[200])); rollback`)
	d.awaitReaders(query[int64](d.t, server.AdminURL(), `select last_value from agent.log_position_seq`))
}

// logWhile runs publishers and readers on one server while fault is injected.
func logWhile(settings map[string]string, fault func(d *logLoad, server *Server, servers []*queued, round int)) scenario {
	return func(t *testing.T, b build, l *ledger, rounds int) {
		t.Helper()
		server := Start(t, Config{Settings: settings})
		servers := []*queued{startQueued(t, b, server.URL()), startQueued(t, b, server.URL())}
		b.breakDatabase(t, server)
		d := startLogLoad(t, l, server.URL(), servers...)
		for i := range rounds {
			d.awaitPublished(20)
			fault(d, server, servers, i)
		}
		d.awaitPublished(20)
		d.finish(server.AdminURL())
	}
}

var (
	logQueuedKilled = logWhile(nil, func(_ *logLoad, _ *Server, servers []*queued, round int) {
		victim := servers[round%2]
		victim.kill()
		victim.start()
		victim.awaitReady(startLimit)
	})
	// The WAL writer must not write to disk what no commit has waited for.
	logPostgresKilled = logWhile(map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "0"}, func(d *logLoad, server *Server, servers []*queued, _ int) {
		d.gate.Lock() // a commit would write them to disk
		d.drawInVain(server)
		server.Kill()
		d.gate.Unlock()
		server.Start()
		for _, q := range servers {
			q.awaitReady(startLimit)
		}
	})
	// One of the processes ends without those of the server being started anew.
	logBackendKilled = logWhile(nil, func(d *logLoad, server *Server, servers []*queued, _ int) {
		server.killBackend()
		server.AwaitReady()
		for _, q := range servers {
			q.awaitReady(startLimit)
		}
		d.awaitPublished(20)
	})
)

func TestReadersOfTheLogMissNothingWhenQueuedIsKilled(t *testing.T) {
	t.Parallel()
	runScenario(t, logQueuedKilled, 4, 100)
}

func TestBrokenBuildWithoutHeldHeadIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, logQueuedKilled, headNotHeld, 10)
}

func TestReadersOfTheLogMissNothingWhenPostgresIsKilled(t *testing.T) {
	t.Parallel()
	runScenario(t, logPostgresKilled, 2, 50)
}

func TestBrokenBuildWithoutLogAdvanceIsCaughtByPostgresKill(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, logPostgresKilled, logNotAdvanced, 3)
}

func TestReadersOfTheLogMissNothingWhenASessionCrashes(t *testing.T) {
	t.Parallel()
	runScenario(t, logBackendKilled, 1, 20)
}

// logFailOver fails a pair over while the log is published to and read.
func logFailOver(replication Replication, fault func(p *Pair, d *logLoad)) scenario {
	return func(t *testing.T, b build, l *ledger, rounds int) {
		t.Helper()
		l.lossy = replication == Asynchronous
		pair := StartPair(t, replication, Config{})
		servers := []*queued{startQueued(t, b, pair.URL()), startQueued(t, b, pair.URL())}
		b.breakDatabase(t, pair.Primary)
		d := startLogLoad(t, l, pair.URL(), servers...)
		for i := range rounds {
			d.awaitPublished(20)
			fault(pair, d)
			pair.Failover()
			d.awaitPublished(20)
			if i+1 < rounds {
				pair.Rejoin()
			}
		}
		d.finish(pair.Primary.AdminURL())
	}
}

func TestReadersOfTheLogMissNothingInSynchronousFailover(t *testing.T) {
	t.Parallel()
	runScenario(t, logFailOver(Synchronous, func(p *Pair, d *logLoad) {
		d.drawInVain(p.Primary)
		p.Primary.Kill()
	}), 1, 20)
}

// The standby never gets what the readers have seen last.
var logFailOverWithLoss = logFailOver(Asynchronous, func(p *Pair, d *logLoad) {
	p.Primary.PauseReplication()
	d.awaitPublished(20)
	d.drawInVain(p.Primary)
	p.Primary.Kill()
})

func TestNoPositionIsReusedAfterAsynchronousFailover(t *testing.T) {
	t.Parallel()
	runScenario(t, logFailOverWithLoss, 1, 20)
}

func TestBrokenBuildWithoutLogAdvanceIsCaughtByFailover(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, logFailOverWithLoss, logNotAdvanced, 1)
}

// logPartition separates one of two processes from the server.
func logPartition(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	wire := newLink(t, server)
	servers := []*queued{startQueued(t, b, server.URL()), startQueued(t, b, wire.databaseURL(server))}
	b.breakDatabase(t, server)
	d := startLogLoad(t, l, wire.databaseURL(server), servers...)
	for i := range rounds {
		d.awaitPublished(20)
		repair := linkFaults[i%len(linkFaults)].do(wire)
		pause(500 * time.Millisecond) // the duration of the partition
		repair()
		servers[1].awaitReady(recoveryLimit)
	}
	d.awaitPublished(20)
	d.finish(server.AdminURL())
}

func TestReadersOfTheLogMissNothingDuringPartitions(t *testing.T) {
	t.Parallel()
	runScenario(t, logPartition, 5, 50)
}

// logThroughPooler has all connections go through a PgBouncer in transaction mode.
func logThroughPooler(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	pooler := StartPooler(t, server, "transaction", "default_pool_size = 40")
	environ := []string{"QUEUED_LISTEN_URL=" + server.URL()}
	servers := []*queued{startQueued(t, b, pooler.URL(), environ...), startQueued(t, b, pooler.URL(), environ...)}
	b.breakDatabase(t, server)
	d := startLogLoad(t, l, pooler.URL(), servers...)
	d.awaitPublished(100 * rounds)
	d.finish(server.AdminURL())
}

func TestReadersOfTheLogMissNothingThroughPgBouncer(t *testing.T) {
	t.Parallel()
	runScenario(t, logThroughPooler, 1, 10)
}

// logBesideOpenTransactions keeps a transaction that has published, and a snapshot, open until readers have got what others published after that.
func logBesideOpenTransactions(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	q := startQueued(t, b, server.URL())
	b.breakDatabase(t, server)
	d := startLogLoad(t, l, server.URL(), q)
	d.awaitPublished(20)
	open := func(iso pgx.TxIsoLevel, statement string) pgx.Tx {
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
		tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: iso})
		if err == nil {
			_, err = tx.Exec(t.Context(), statement)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	const late = "published long before its commit"
	publisher := open(pgx.ReadCommitted, `select agent.publish('a', '{"n": "`+late+`"}')`)
	snapshot := open(pgx.RepeatableRead, `select count(*) from pg_class`)
	for range rounds {
		d.awaitPublished(100)
		last := loggedEvents(t, server.AdminURL())
		read := func() bool { return d.readers[0].position() >= last[len(last)-1].Position }
		for began := time.Now(); !read() && l.clean(); pause(10 * time.Millisecond) {
			if time.Since(began) > 20*time.Second { // far more than an undisturbed reader takes
				l.violated("readers wait for a transaction that has not ended")
			}
		}
		if !l.clean() {
			break
		}
	}
	for _, tx := range []pgx.Tx{publisher, snapshot} {
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	d.succeeded(late, 0)
	d.finish(server.AdminURL())
}

func TestOpenTransactionsDelayNoReaderOfTheLog(t *testing.T) {
	t.Parallel()
	runScenario(t, logBesideOpenTransactions, 3, 200)
}

func TestBrokenBuildThatPublishesBeforeCommitIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, logBesideOpenTransactions, publishedBeforeCommit, 1)
}
