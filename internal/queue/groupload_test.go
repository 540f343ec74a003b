package queue_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/grouptest"
	"github.com/queued/queued/internal/pgtest"
)

// The limits and the order of groups hold at every instant, and nothing is left behind, whatever callers do at once: they insert, claim, ack, nack, release, extend and
// forget events, in short and long transactions, some of which are rolled back, and lose their connections; limits change, groups are paused and held, events are moved.
//
// A trigger records each change of agent.event with the database's clock. The promises are checked from that record, from the outside.

// groupLoadLease is the length of the leases: short, so that many are lost.
const groupLoadLease = 300 * time.Millisecond

// limitedQueue is a queue of the load, with its limits.
type limitedQueue struct {
	name, flow         string
	groups             int // how many there are; 0: its events have none
	concurrency, total int // 0: none, or others from time to time
	order, blocks      bool
	rate, burst        int // claims of a group in a second; 0: any number
}

var limitedQueues = []limitedQueue{
	{name: "few", flow: `{"concurrency": 3}`, groups: 3, concurrency: 3},
	{name: "many", flow: `{"concurrency": 2}`, groups: 100, concurrency: 2},
	{name: "total", flow: `{"concurrency": 4, "total": 7}`, groups: 5, concurrency: 4, total: 7},
	{name: "whole", flow: `{"total": 3}`, groups: 0, total: 3},
	{name: "changing", flow: `{"concurrency": 4}`, groups: 4},
	{name: "held", flow: `{"concurrency": 2}`, groups: 3, concurrency: 2},
	{name: "once", flow: `{"concurrency": 1}`, groups: 1 << 40, concurrency: 1}, // nothing else ever happens to a group
	{name: "free", flow: `null`, groups: 3},
	{name: "ordered", flow: `{"order": true}`, groups: 5, concurrency: 1, order: true},
	{name: "strict", flow: `{"order": true, "on_failed": "block"}`, groups: 5, concurrency: 1, order: true, blocks: true},
	{name: "rated", flow: `{"rate": {"limit": 10, "period": "1 s", "burst": 2}, "concurrency": 4}`, groups: 5, concurrency: 4, rate: 10, burst: 2},
	{name: "paced", flow: `{"rate": {"limit": 20, "period": "1 s"}, "order": true}`, groups: 5, concurrency: 1, order: true, rate: 20, burst: 1},
	{name: "turns", flow: `{"fair": true}`, groups: 5},
	{name: "slots", flow: `{"fair": true, "concurrency": 2}`, groups: 5, concurrency: 2},
	{name: "steps", flow: `{"fair": true, "order": true, "rate": {"limit": 20, "period": "1 s"}}`, groups: 5, concurrency: 1, order: true, rate: 20, burst: 1},
}

// groupRecorder adds to the record what becomes of groups that stop, and what the load knows.
const groupRecorder = `
create table group_check.posted (tx int8, at timestamptz); -- transactions that a poster knows to be committed
create table group_check.block (seq int8 generated always as identity, at timestamptz, queue text, key text, copy int8, is_gone boolean);
create table group_check.change (at timestamptz, queue text, key text, what text, value text);
create table group_check.hold (queue text, key text, since timestamptz, until timestamptz); -- holds that a worker knows to be committed, and how long they last at least
create function group_check.record_block() returns trigger language plpgsql set search_path to pg_catalog as $$
declare
  r agent_private.group_block = case when tg_op = 'DELETE' then old else new end;
begin
  insert into group_check.block (at, queue, key, copy, is_gone) values (clock_timestamp(), r.queue, r.key, r.requeued_as, tg_op = 'DELETE');
  return null;
end $$;
create trigger record after insert or update or delete on agent_private.group_block for each row execute function group_check.record_block();
`

// groupLoad is a load on limited queues.
type groupLoad struct {
	t      *testing.T
	url    string
	sql    *pgx.Conn // of the test
	seed   uint64
	stop   chan struct{} // no more is inserted and changed
	end    chan struct{} // no more is claimed
	posts  sync.WaitGroup
	claims sync.WaitGroup

	mu     sync.Mutex
	faults []string // broken promises that a caller has seen
}

func (l *groupLoad) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// session runs one session after the other until stop is closed. An error other than that of a terminated connection is a fault.
func (l *groupLoad) session(name string, stop chan struct{}, run func(ctx context.Context, db *pgx.Conn) error) {
	ctx := l.t.Context()
	for {
		select {
		case <-stop:
			return
		default:
		}
		config, err := pgx.ParseConfig(l.url)
		if err != nil {
			l.fault("%s: %v", name, err)
			return
		}
		config.RuntimeParams["application_name"] = "group load " + name
		config.RuntimeParams["lock_timeout"] = "20s"
		db, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			l.fault("%s: %v", name, err)
			return
		}
		err = run(ctx, db)
		_ = db.Close(ctx)
		pgErr, isAnswer := errors.AsType[*pgconn.PgError](err)
		switch {
		case err == nil, !isAnswer, pgErr.Code == "57P01": // terminated
		case pgErr.Code == "QD003" && strings.HasSuffix(pgErr.ColumnName, "delay"): // its groups are in order just now
		case pgErr.Code == "40P01":
			l.fault("%s: deadlock: %s (%s)", name, pgErr.Detail, pgErr.Where)
		default:
			l.fault("%s: %s %s (%s)", name, pgErr.Code, pgErr.Message, pgErr.Where)
		}
	}
}

// sleep takes up to most.
func sleep(random *rand.Rand, most time.Duration) {
	time.Sleep(time.Duration(random.Int64N(int64(most)))) //nolint:forbidigo // it is the load: nothing waits for it
}

// post inserts events, directly as the service does, or in long transactions.
func (l *groupLoad) post(random *rand.Rand) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, db *pgx.Conn) error {
		for {
			select {
			case <-l.stop:
				return nil
			default:
			}
			q := limitedQueues[random.IntN(len(limitedQueues))]
			tx, err := db.Begin(ctx)
			if err != nil {
				return err
			}
			statements := 1
			if random.IntN(12) == 0 {
				statements += random.IntN(3)
			}
			for range statements {
				n := 1
				if random.IntN(3) == 0 {
					n += random.IntN(15)
				}
				isDirect := random.IntN(3) > 0
				once := random.Int64()
				hasKeys := random.IntN(3) == 0
				var events, options []string
				var delays []*string
				for range n {
					group := fmt.Sprintf(`"g%d"`, random.Int64N(max(1, int64(q.groups))))
					if q.name == "once" {
						group = fmt.Sprintf(`"g%d"`, once)
					}
					if q.groups == 0 || random.IntN(30) == 0 {
						group = "null"
					}
					var delay *string
					if random.IntN(20) == 0 && !q.order {
						delay = new(fmt.Sprintf("%d ms", random.IntN(500)))
					}
					key := ""
					if hasKeys {
						key = fmt.Sprintf(`, "key": "k%d"`, random.Int64())
					}
					events, options, delays = append(events, `{}`), append(options, fmt.Sprintf(`{"group": %s, "type": "t%d"%s}`, group, random.IntN(3), key)), append(delays, delay)
				}
				insert := `select count(*) from agent_service.insert_and_claim_events($1::jsonb[], array_fill($2::text, array[$3::int4]), $4::interval[], null, _options => $5::jsonb[])`
				if !isDirect { // each leaves a wake
					insert = `
						select count(agent.insert_event(n.event, $2, n.delay, _group => n.option ->> 'group', _type => n.option ->> 'type'))
						from unnest($1::jsonb[], $4::interval[], $5::jsonb[]) as n (event, delay, option) where $3::int4 > 0`
				}
				if _, err := tx.Exec(ctx, insert, events, q.name, n, delays, options); err != nil {
					_ = tx.Rollback(ctx)
					return err
				}
				if statements > 1 {
					sleep(random, 200*time.Millisecond)
				}
			}
			if random.IntN(25) == 0 {
				err = tx.Rollback(ctx)
			} else {
				var id int64
				if err = tx.QueryRow(ctx, `select txid_current()`).Scan(&id); err == nil {
					err = tx.Commit(ctx)
				}
				if err == nil && q.order {
					_, err = db.Exec(ctx, `insert into group_check.posted values ($1, clock_timestamp())`, id)
				}
			}
			if err != nil {
				return err
			}
			sleep(random, 30*time.Millisecond)
		}
	}
}

// change changes limits, pauses and holds groups, moves events, sweeps, and removes groups that have nothing.
func (l *groupLoad) change(random *rand.Rand) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, db *pgx.Conn) error {
		for {
			select {
			case <-l.stop:
				return nil
			case <-time.After(rand.N(200 * time.Millisecond)):
			}
			var statements []string
			switch random.IntN(7) {
			case 0:
				flow := fmt.Sprintf(`{"concurrency": %d}`, 1+random.IntN(5))
				switch random.IntN(5) {
				case 0:
					flow = "null"
				case 1:
					flow = `{"concurrency": 1, "order": true}`
				}
				statements = []string{
					`insert into group_check.change values (clock_timestamp(), 'changing', null, 'before', '` + flow + `')`,
					`select agent.put_queue('changing', '{"max_attempts": 1000, "flow": ` + flow + `}')`,
					`insert into group_check.change values (clock_timestamp(), 'changing', null, 'after', '` + flow + `')`,
				}
			case 1:
				key := fmt.Sprintf("g%d", random.IntN(3))
				statements = []string{
					`select agent.put_group('held', '` + key + `', '{"paused": true}')`,
					`insert into group_check.change values (clock_timestamp(), 'held', '` + key + `', 'pause', null)`,
					`select pg_sleep(` + fmt.Sprint(random.Float64()/2) + `)`,
					`insert into group_check.change values (clock_timestamp(), 'held', '` + key + `', 'resume', null)`,
					`select agent.delete_group('held', '` + key + `')`,
				}
			case 2:
				key := fmt.Sprintf("g%d", random.IntN(3))
				var until string
				if err := db.QueryRow(ctx, `select (clock_timestamp() + interval '300 ms')::text`).Scan(&until); err != nil {
					return err
				}
				statements = []string{
					`select agent.put_group('held', '` + key + `', jsonb_build_object('held_until', '` + until + `'))`,
					// A hold that is over already is none.
					`insert into group_check.change select clock_timestamp(), 'held', '` + key + `', 'pause', null where clock_timestamp() < '` + until + `'::timestamptz - interval '5 ms'`,
					`insert into group_check.change values ('` + until + `'::timestamptz - interval '1 ms', 'held', '` + key + `', 'resume', null)`,
				}
			case 3:
				statements = []string{`select agent.move_events('few', 'many', 5)`, `select agent.move_events('many', 'few', 5)`}
			case 4:
				statements = []string{`select * from agent_service.prune_groups('', '')`, `select agent.purge_queue('once', 3)`}
			case 5:
				statements = []string{`select agent.delete_expired_events(_max_attempts => 1000, _max_vt_age => null)`, `select agent.run_queue('few', 10)`}
			case 6: // stopped groups go on
				statements = []string{`select agent.requeue_event(event_id) from agent_private.group_block where requeued_as is null order by random() limit 1`}
				if random.IntN(3) == 0 {
					statements = []string{unblockAll}
				}
			}
			for _, statement := range statements {
				if _, err := db.Exec(ctx, statement); err != nil {
					return err
				}
			}
		}
	}
}

// unblockAll has all groups go on that have stopped for an event that failed.
const unblockAll = `select agent.unblock_group(b.queue, b.key) from (select distinct queue, key from agent_private.group_block) b`

// groupClaim is a claim of the load.
type groupClaim struct {
	id      int64
	receipt string
	queue   string
	group   *string
}

func (l *groupLoad) take(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, queue string, n int,
) ([]groupClaim, error) {
	var types []string // mostly whatever the type
	if n%3 == 0 {
		types = []string{fmt.Sprintf("t%d", rand.IntN(3))}
	}
	rows, err := db.Query(ctx, `select e.id, agent.receipt(e), e.queue, e.group_key from agent.claim_events($1, $2, _invisible_for => $3, _types => $4) e`, queue, n, groupLoadLease, types)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (c groupClaim, err error) {
		return c, r.Scan(&c.id, &c.receipt, &c.queue, &c.group)
	})
}

func acked(ctx context.Context, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, claims ...groupClaim,
) error {
	slices.SortFunc(claims, func(a, b groupClaim) int { return cmp.Compare(a.id, b.id) })
	var ids []int64
	var receipts []string
	for _, c := range claims {
		ids, receipts = append(ids, c.id), append(receipts, c.receipt)
	}
	_, err := db.Exec(ctx, `select * from agent_service.ack_events($1, $2)`, ids, receipts)
	return err
}

// nackAndHold nacks an event and has its group left alone for some time.
func nackAndHold(ctx context.Context, db *pgx.Conn, c groupClaim, hold time.Duration) error {
	var before time.Time
	if err := db.QueryRow(ctx, `select clock_timestamp()`).Scan(&before); err != nil {
		return err
	}
	var queue string // it may have been moved meanwhile
	var isRepeated bool
	if err := db.QueryRow(ctx, `select queue, repeated from agent.nack_event($1, $2, _hold_group => $3)`, c.id, c.receipt, hold).Scan(&queue, &isRepeated); err != nil {
		return err
	}
	if isRepeated { // it has its turn to wait for since its lease ended, as if it was nacked: nothing is held
		return nil
	}
	_, err := db.Exec(ctx, `insert into group_check.hold values ($1, $2, clock_timestamp(), $3)`, queue, c.group, before.Add(hold))
	return err
}

// consume claims events, and ends them in all the ways there are.
func (l *groupLoad) consume(random *rand.Rand) func(context.Context, *pgx.Conn) error {
	return func(ctx context.Context, db *pgx.Conn) error {
		unlessLost := func(err error) error { // a lost lease is no error of the load
			if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); isAnswer && (pgErr.Code == "QD001" || pgErr.Code == "QD002") {
				return nil
			}
			return err
		}
		exec := func(sql string, args ...any) error {
			_, err := db.Exec(ctx, sql, args...)
			return unlessLost(err)
		}
		for {
			select {
			case <-l.end:
				return nil
			default:
			}
			claims, err := l.take(ctx, db, limitedQueues[random.IntN(len(limitedQueues))].name, 1+random.IntN(10))
			if err != nil {
				return err
			}
			if len(claims) == 0 {
				sleep(random, 10*time.Millisecond)
				continue
			}
			sleep(random, 30*time.Millisecond)
			if random.IntN(4) == 0 { // many acks and a claim in one transaction
				tx, err := db.Begin(ctx)
				if err != nil {
					return err
				}
				if err := acked(ctx, tx, claims...); err != nil {
					return err
				}
				if claims, err = l.take(ctx, tx, limitedQueues[random.IntN(len(limitedQueues))].name, 1+random.IntN(5)); err != nil {
					return err
				}
				if random.IntN(5) == 0 {
					sleep(random, 200*time.Millisecond)
				}
				if random.IntN(20) == 0 {
					claims, err = nil, tx.Rollback(ctx)
				} else {
					err = tx.Commit(ctx)
				}
				if err != nil {
					return err
				}
			}
			for len(claims) > 0 {
				c := claims[0]
				claims = claims[1:]
				switch random.IntN(19) {
				case 0:
					err = exec(`select agent.nack_event($1, $2, $3)`, c.id, c.receipt, time.Duration(random.IntN(400))*time.Millisecond)
				case 1:
					err = exec(`select agent.nack_event($1, $2)`, c.id, c.receipt)
				case 2:
					err = exec(`select agent.release_event($1, $2, $3)`, c.id, c.receipt, time.Duration(random.IntN(2))*100*time.Millisecond)
				case 3:
					if err = exec(`select agent.extend_event($1, $2, $3)`, c.id, c.receipt, groupLoadLease); err == nil {
						sleep(random, groupLoadLease*3/2)
						err = acked(ctx, db, c)
					}
				case 4: // forgotten
				case 5: // at about its end
					sleep(random, groupLoadLease*4/3) // at its end, or not
					if random.IntN(2) == 0 {
						err = exec(`select agent.extend_event($1, $2, $3)`, c.id, c.receipt, groupLoadLease)
					} else {
						err = acked(ctx, db, c)
					}
				case 6:
					err = exec(`select agent.delete_event($1, $2)`, c.id, c.receipt)
				case 7: // it fails
					if c.queue == "strict" {
						err = exec(`select agent.nack_event($1, $2, _final => true)`, c.id, c.receipt)
					} else {
						err = acked(ctx, db, c)
					}
				case 8, 9, 10: // its group is left alone
					// In the queue held, the load ends holds. In one without limits, a hold holds with the first commit that has its groups need turns, which may be another one.
					if c.group != nil && c.queue != "held" && c.queue != "changing" && c.queue != "free" {
						err = unlessLost(nackAndHold(ctx, db, c, time.Duration(1+random.IntN(200))*time.Millisecond))
					} else {
						err = acked(ctx, db, c)
					}
				default:
					err = acked(ctx, db, append(claims, c)...)
					claims = nil
				}
				if err != nil {
					return err
				}
			}
		}
	}
}

// newGroupLoad returns a load on a database of its own, whose record has begun, with these statements run on it.
func newGroupLoad(t *testing.T, breakage ...string) *groupLoad {
	t.Helper()
	url := pgtest.New(t).URL
	l := &groupLoad{t: t, url: url, sql: pgtest.Connect(t, url), seed: uint64(time.Now().UnixNano()), stop: make(chan struct{}), end: make(chan struct{})}
	t.Logf("seed %d", l.seed)
	for _, statement := range append([]string{grouptest.Record, groupRecorder}, breakage...) {
		if _, err := l.sql.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%v: %s", err, statement)
		}
	}
	return l
}

// runGroupLoad runs a load until so many events have ended, and returns the promises that it has broken.
func runGroupLoad(t *testing.T, events int, breakage ...string) []string {
	t.Helper()
	l := newGroupLoad(t, breakage...)
	for _, q := range limitedQueues {
		if _, err := l.sql.Exec(t.Context(), `select agent.put_queue($1, $2)`, q.name, `{"max_attempts": 1000, "flow": `+q.flow+`}`); err != nil {
			t.Fatal(err)
		}
	}
	deadlocks := pgtest.Query[int64](t, l.sql, `select deadlocks from pg_stat_database where datname = current_database()`)
	random := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(l.seed, n)) }
	for i := range uint64(4) {
		l.posts.Go(func() { l.session("poster", l.stop, l.post(random(i))) })
	}
	l.posts.Go(func() { l.session("changes", l.stop, l.change(random(100))) })
	for i := range uint64(24) {
		l.claims.Go(func() { l.session("worker", l.end, l.consume(random(200+i))) })
	}

	chaos := random(300)
	ended, limit := int64(0), time.Now().Add(90*time.Second)
	for ended < int64(events) && time.Now().Before(limit) {
		sleep(chaos, 300*time.Millisecond)
		if _, err := l.sql.Exec(t.Context(), `
			select pg_terminate_backend(pid) from
			(select pid from pg_stat_activity where application_name like 'group load %' and application_name <> 'group load changes' and datname = current_database() order by random() limit $1) w`,
			chaos.IntN(3)); err != nil {
			t.Fatal(err)
		}
		ended = pgtest.Query[int64](t, l.sql, `select count(*) from agent.event_hist`)
	}
	close(l.stop)
	l.posts.Wait()
	for _, statement := range []string{ // each in a transaction of its own: each waits for events that others have locked
		`insert into group_check.change select clock_timestamp(), queue, key, 'resume', null from agent.queue_group where queue = 'held' and (paused or held_until is not null)`,
		`select agent.delete_group('held', 'g0')`,
		`select agent.delete_group('held', 'g1')`,
		`select agent.delete_group('held', 'g2')`,
		`insert into group_check.change values (clock_timestamp(), 'changing', null, 'before', '{"concurrency": 4}')`,
		`select agent.put_queue('changing', '{"max_attempts": 1000, "flow": {"concurrency": 4}}')`,
	} {
		if _, err := l.sql.Exec(t.Context(), statement); err != nil {
			l.fault("ending the pauses: %v", err)
		}
	}
	left, before, since := int64(-1), int64(-1), time.Now()
	for left != 0 && time.Since(since) < 20*time.Second {
		sleep(chaos, 100*time.Millisecond)
		if _, err := l.sql.Exec(t.Context(), unblockAll); err != nil {
			l.fault("ending the blocks: %v", err)
		}
		if left = pgtest.Query[int64](t, l.sql, `select count(*) from agent.event`); left != before {
			before, since = left, time.Now()
		}
	}
	close(l.end)
	l.claims.Wait()
	if left != 0 {
		l.fault("%d events are left: %s", left, pgtest.Query[string](t, l.sql, `
			select coalesce(string_agg(format('%s in state %s of %s, due since %s', n, coalesce(flow::text, 'null'), queue, due), '; ' order by queue), 'none now') from
			(select queue, flow, count(*) as n, min(coalesce(turn_vt, vt)) as due from agent.event group by 1, 2) as e`))
		t.Log("what there is of them: ", pgtest.Query[string](t, l.sql, `
			select json_build_object('at', clock_timestamp()
			, 'events', (select json_agg(to_jsonb(e) - 'event') from (select * from agent.event order by id limit 20) e)
			, 'groups', (select json_agg(g) from agent.queue_group g where (g.queue, g.key) in (select e.queue, e.group_key from agent.event e))
			, 'blocks', (select json_agg(b) from agent_private.group_block b), 'wakes', (select json_agg(w) from agent_private.group_wake w)
			, 'sessions', (select json_agg(json_build_object('state', a.state, 'xact', a.xact_start, 'query', left(a.query, 200))) from pg_stat_activity a where a.datname = current_database()))::text`))
	}
	if _, err := l.sql.Exec(t.Context(), `select pg_stat_clear_snapshot()`); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int64](t, l.sql, `select deadlocks from pg_stat_database where datname = current_database()`); n > deadlocks {
		l.fault("%d deadlocks", n-deadlocks)
	}
	l.verify()
	return l.faults
}

// verify checks the record.
func (l *groupLoad) verify() {
	leases, err := grouptest.Leases(l.t.Context(), l.sql)
	if err != nil {
		l.t.Fatal(err)
	}
	byGroup, byQueue := map[[2]string][]*grouptest.Lease{}, map[string][]*grouptest.Lease{}
	for _, lease := range leases {
		byGroup[[2]string{lease.Queue, lease.Group}] = append(byGroup[[2]string{lease.Queue, lease.Group}], lease)
		byQueue[lease.Queue] = append(byQueue[lease.Queue], lease)
	}
	for _, q := range limitedQueues {
		if most, when := grouptest.MostAtOnce(byQueue[q.name]); q.total > 0 && most > q.total {
			l.fault("%d leases of the queue %s at once at %s, the limit is %d", most, q.name, when, q.total)
		}
		l.t.Logf("%s: %d claims", q.name, len(byQueue[q.name]))
	}
	l.checkOrder()
	limits := l.limitsOfChanging()
	paused := append(l.pauses(), l.holds()...)
	for of, spans := range byGroup {
		i := slices.IndexFunc(limitedQueues, func(q limitedQueue) bool { return q.name == of[0] })
		q := limitedQueues[i]
		if of[1] == "" {
			continue
		}
		if most, when := grouptest.MostAtOnce(spans); q.concurrency > 0 && most > q.concurrency {
			l.fault("%d leases of the group %s of %s at once at %s, the limit is %d", most, of[1], q.name, when.Format(time.RFC3339Nano), q.concurrency)
		}
		if q.rate > 0 {
			if lease, early := grouptest.FirstTooEarly(spans, q.burst, time.Second/time.Duration(q.rate)); lease != nil {
				l.fault("the group %s of %s was claimed at %s, %s before its rate allows it", of[1], q.name, lease.Claimed.Format(time.RFC3339Nano), early)
			}
		}
		for _, s := range spans {
			if q.name == "changing" {
				l.checkChanged(of[1], s, spans, limits)
			}
			for _, p := range paused {
				if p.queue == q.name && p.key == of[1] && s.Began.After(p.from) && s.From.Before(p.to) {
					l.fault("the group %s of %s was claimed at %s, %s before its %s ended", of[1], q.name, s.From.Format(time.RFC3339Nano), p.to.Sub(s.From), p.kind)
				}
			}
		}
	}
}

// checkOrder checks that of each group in order the events were claimed one after the other: none while one was unfinished that has a lower id and whose insert had returned
// before that of the other began, none while the group was stopped, and none before the copy of the event that it was stopped for.
func (l *groupLoad) checkOrder() {
	rows, err := l.sql.Query(l.t.Context(), `
		with event as
		( select l.id, l.queue, l.key, min(l.began) filter (where l.op = 'INSERT') as began, min(p.at) as posted, max(l.at) filter (where l.op = 'DELETE') as ended
		  from group_check.log l
		  left join group_check.posted p on p.tx = l.tx and l.op = 'INSERT'
		  where l.queue in ('ordered', 'strict', 'paced') and l.key <> ''
		  group by 1, 2, 3
		)
		, claimed as
		( select c.id, c.queue, c.key, c.at
		  from (select l.*, lag(l.attempts) over (partition by l.id order by l.seq) as before from group_check.log l where l.op <> 'DELETE') c
		  where c.attempts > c.before and c.queue in ('ordered', 'strict', 'paced') and c.key <> ''
		)
		, block as
		( select b.*, coalesce(lead(b.at) over (partition by b.queue, b.key order by b.seq), 'infinity') as until from group_check.block b
		)
		select format('the event %s of the group %s of %s was claimed at %s, before the event %s was finished', c.id, c.key, c.queue, c.at, x.id)
		from claimed c
		join event y on y.id = c.id
		join event x on x.queue = y.queue and x.key = y.key and x.id < y.id and x.posted < y.began and coalesce(x.ended, 'infinity') > c.at
		where not exists (select from agent.event_hist h where h.id = y.id and h.requeued_from is not null) -- it took the place of another one
		union all
		select format('the event %s of the group %s of %s was claimed at %s, while the group was stopped', c.id, c.key, c.queue, c.at)
		from claimed c
		join block b on b.queue = c.queue and b.key = c.key and c.at > b.at and c.at < b.until and not b.is_gone and b.copy is null
		union all
		select format('the event %s of the group %s of %s was claimed at %s, before the copy %s of one that had failed', c.id, c.key, c.queue, c.at, b.copy)
		from claimed c
		join block b on b.queue = c.queue and b.key = c.key and c.at > b.at and c.at < b.until and not b.is_gone
		join event x on x.id = b.copy and coalesce(x.ended, 'infinity') > c.at and x.id <> c.id`)
	if err != nil {
		l.t.Fatal(err)
	}
	faults, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		l.t.Fatal(err)
	}
	for i, fault := range faults {
		if i < 5 {
			l.fault("%s", fault)
		}
	}
	l.t.Logf("%d times a group has stopped", pgtest.Query[int64](l.t, l.sql, `select count(*) from group_check.block where not is_gone and copy is null`))
}

// limitInForce is a limit of the queue that changes: it came into force between from and to.
type limitInForce struct {
	from, to time.Time
	most     int
}

func (l *groupLoad) limitsOfChanging() []limitInForce {
	rows, err := l.sql.Query(l.t.Context(), `select at, what, coalesce((value::jsonb ->> 'concurrency')::int4, 1000000) from group_check.change where queue = 'changing' order by at`)
	if err != nil {
		l.t.Fatal(err)
	}
	limits := []limitInForce{{most: 4}}
	var at time.Time
	var what string
	var most int
	if _, err := pgx.ForEachRow(rows, []any{&at, &what, &most}, func() error {
		if what == "before" {
			limits = append(limits, limitInForce{from: at, to: at, most: most})
		} else {
			limits[len(limits)-1].to = at
		}
		return nil
	}); err != nil {
		l.t.Fatal(err)
	}
	return limits
}

// checkChanged checks a claim against the limits that were in force while it may have been made: it was made within a second.
func (l *groupLoad) checkChanged(key string, s *grouptest.Lease, spans []*grouptest.Lease, limits []limitInForce) {
	most := 0
	for i, limit := range limits {
		until := time.Now()
		if i+1 < len(limits) {
			until = limits[i+1].to
		}
		if !limit.from.After(s.From) && until.After(s.From.Add(-time.Second)) {
			most = max(most, limit.most)
		}
	}
	live := 0
	for _, o := range spans {
		if !o.From.After(s.From) && o.To.After(s.From) {
			live++
		}
	}
	if live > most {
		l.fault("%d leases of the group %s of changing at once at %s, the limit was %d", live, key, s.From.Format(time.RFC3339Nano), most)
	}
}

// A pause is when a group was paused, or held by a nack: what was in force from some time on.
type pause struct {
	kind, queue, key string
	from, to         time.Time
}

// holds returns the holds by nacks.
func (l *groupLoad) holds() []pause {
	rows, err := l.sql.Query(l.t.Context(), `select queue, key, since, until from group_check.hold where since < until`)
	if err != nil {
		l.t.Fatal(err)
	}
	held, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (p pause, err error) {
		p.kind = "hold"
		return p, r.Scan(&p.queue, &p.key, &p.from, &p.to)
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Logf("%d holds by nacks", len(held))
	return held
}

// pauses returns when groups were paused.
func (l *groupLoad) pauses() (paused []pause) {
	rows, err := l.sql.Query(l.t.Context(), `select at, key, what from group_check.change where queue = 'held' order by at`)
	if err != nil {
		l.t.Fatal(err)
	}
	since := map[string]time.Time{}
	var at time.Time
	var key, what string
	if _, err := pgx.ForEachRow(rows, []any{&at, &key, &what}, func() error {
		if from, isPaused := since[key]; what == "resume" && isPaused {
			paused = append(paused, pause{"pause", "held", key, from, at})
			delete(since, key)
		} else if what == "pause" {
			since[key] = at
		}
		return nil
	}); err != nil {
		l.t.Fatal(err)
	}
	return paused
}

func TestLimitsOfGroupsHoldAtEveryInstantAndNothingIsLeftBehind(t *testing.T) {
	t.Parallel()
	events := 500
	if pgtest.IsNightly() {
		events = 1500
	}
	for _, fault := range runGroupLoad(t, events) {
		t.Error(fault)
	}
}

// brokenFunction is a statement that makes a function anew with a text in its body replaced.
func brokenFunction(name, old, replacement string) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	return `do $$
		declare
		  _before text = pg_get_functiondef((select p.oid from pg_proc p where p.pronamespace in ('agent_private'::regnamespace, 'agent_service'::regnamespace) and p.proname = '` + name + `'));
		  _after text = replace(_before, ` + quote(old) + `, ` + quote(replacement) + `);
		begin
		  if _before = _after then raise exception 'the text is not there'; end if;
		  execute _after;
		end $$`
}

// Each load takes both processors of a small machine for ten seconds.
func TestBrokenLimitsOfGroupsAreCaught(t *testing.T) {
	t.Parallel()
	breakages := map[string]struct {
		statements []string
		want       string
	}{
		"the lock and the count in one statement": {
			[]string{
				`create or replace function agent_private.lock_groups(_queue text, _keys text[]) returns text[] language plpgsql as $$ begin
					insert into agent.queue_group (queue, key) select _queue, k from unnest(_keys) k order by k on conflict do nothing;
					return _keys; end $$`,
				brokenFunction("admit_events", `where g.queue = _queue and g.key = k.key limit 1) as g`, `where g.queue = _queue and g.key = k.key limit 1 for no key update) as g`),
				brokenFunction("admit_new_events", `where g.queue = l.queue and g.key = l.key limit 1) as g`, `where g.queue = l.queue and g.key = l.key limit 1 for no key update) as g`),
			}, "leases of the group|deadlock",
		},
		"no wake": {
			[]string{
				`
				create function group_check.no_wake() returns trigger language plpgsql as $$ begin
				  return case when new.key = '' or new.event_id is not null then new end;
				end $$`,
				`create trigger no_wake before insert on agent_private.group_wake for each row execute function group_check.no_wake()`,
			}, "events are left",
		},
		"an event inserted into a group in order while another one is unfinished": {
			[]string{brokenFunction("admit_new_events", `when q.flow_order then case`, `when false then case`)}, "was finished",
		},
		"a place lost by a retry": {
			[]string{
				brokenFunction("return_slot", `and not (q.flow_order and not q.flow_paced and e.flow_version is not distinct from q.flow_version)`, ``),
				brokenFunction("first_in_order", `least(_first, _id)`, `coalesce(_first, _id)`),
			}, "was finished",
		},
		"a group that does not stop": {
			[]string{brokenFunction("first_in_order", `if _copy is null then`, `if false then`)}, "was stopped",
		},
		"a rate of claims that are not counted": {
			[]string{brokenFunction("admit_paced_events", `where k.claims > 0`, `where false`)}, "before its rate allows it",
		},
		"a hold that leaves what was admitted before": {
			[]string{brokenFunction("revoke_turns", `and e.flow_version is not null`, `and false`), brokenFunction("claim_from_watermarks", `w.hold_until > _now`, `false`)},
			"before its hold ended",
		},
		"the total counted before its lock": {
			[]string{brokenFunction("begin_limited_claim", `for no key update;`, `;`)}, "leases of the queue",
		},
	}
	for name, breakage := range breakages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !pgtest.IsNightly() {
				newGroupLoad(t, breakage.statements...) // they can be run
				return
			}
			var faults []string
			for events := 600; events <= 4800; events *= 2 { // by chance, a short load meets nothing
				faults = runGroupLoad(t, events, breakage.statements...)
				if slices.ContainsFunc(faults, regexp.MustCompile(breakage.want).MatchString) {
					return
				}
			}
			t.Errorf("the broken function has broken %d promises: %.300q; want one about %q", len(faults), faults[:min(3, len(faults))], breakage.want)
		})
	}
}
