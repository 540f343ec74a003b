package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/sql"
)

const (
	nextVersion = "1.1.0"
	upgradeKey  = "the-key-of-the-test-of-upgrades"
)

// nextScripts are the scripts of the repository and those that the next version adds.
func nextScripts(t *testing.T) fs.FS {
	t.Helper()
	scripts := fstest.MapFS{
		"idempotent/034-label.sql": {Data: []byte(`
			create or replace function agent.list_labels() returns setof text language sql stable
			set search_path to pg_catalog, pg_temp as 'select l.name from agent.label l';
			create or replace function agent_service.oldest_beside() returns text language sql immutable security definer
			set search_path to pg_catalog, pg_temp as 'select ''` + sql.Version() + `''::text';`)},
	}
	names, err := fs.Glob(sql.FS, "*/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	incremental := 0
	for _, name := range names {
		body, err := fs.ReadFile(sql.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		scripts[name] = &fstest.MapFile{Data: body}
		if strings.HasPrefix(name, "incremental/") {
			incremental++
		}
	}
	scripts[fmt.Sprintf("incremental/%03d-label.sql", incremental+1)] = &fstest.MapFile{Data: []byte(`
		create table agent.label (name text primary key);
		alter table agent.owner add labels text[] not null default '{}';
		insert into agent.label select 'of ' || o.id from agent.owner o;`)}
	return scripts
}

// neverFilled are tables that have no row between transactions.
var neverFilled = []string{"agent.server_change", "agent.outgoing"}

// working are tables whose rows the process changes while it works, or that a migration changes.
var working = []string{
	"agent.version", "agent.process_metric", "agent.execution", "agent.server", "agent.upkeep", "agent.queue_latest", "agent_private.group_sample",
	"agent.queue_sampling", "agent.queue_outcome", "agent.log_count", "agent.log_topic",
}

// fillTables has every table of the schema have a row that stays while nobody works on the queue "kept".
func fillTables(t *testing.T, p *program, conn *pgx.Conn) {
	t.Helper()
	const put, post = http.MethodPut, http.MethodPost
	for _, c := range []struct {
		status             int
		method, path, body string
	}{
		{200, put, "/queues/dead", `{"max_attempts":3}`},
		{200, put, "/queues/kept", `{"dead_letter":{"queue":"dead"},"flow":{"concurrency":1}}`},
		{201, post, "/events?queue=kept&delay=240h&key=k&group=g", `{"n":1}`},
		{200, put, "/queues/kept/groups/g", `{"concurrency":1}`},
		{201, post, "/events?queue=done", `{"n":2}`},
		{200, post, "/claim", `{"queue":"done"}`},
		{204, http.MethodDelete, "/events/2", ``},
		{201, put, "/owners/paul", `{"timezone":"Europe/Berlin"}`},
		{201, post, "/schedules", `{"cron":"@yearly","owner":"paul","queue":"kept","event":{}}`},
		{201, post, "/schedules/1/run", ``},
		{201, put, "/subscriptions/s", `{"filters":[{"topics":["a.*"]}],"deliver":{"queue":"kept"}}`},
		{201, put, "/sources/shop", `{"kind":"token","header":"X-Token","queue":"kept","secrets":["s"]}`},
		{201, put, "/queues/kept/push", `{"url":"https://example.com/"}`},
		{201, post, "/keys", `{"name":"worker","scopes":["claim"]}`},
		{200, put, "/cells/7", `{"takes_new":true}`},
		{200, post, "/queues/kept/placement", `{"cell":0}`},
		{202, post, "/redrives", `{"queue":"kept"}`},
	} {
		p.want(c.status, c.method, c.path, c.body, "Authorization: Bearer "+upgradeKey)
	}
	for _, statement := range []string{
		`insert into agent.minimum_retention values ('1 day')`,
		`insert into agent.raw_body (event_id, body, kept_until) values (1, 'raw', now() + interval '1 day')`,
		`insert into agent_private.group_wake (queue, key, at) values ('kept', 'h', now() + interval '1 day')`,
		`insert into agent_private.group_block (queue, key, place, event_id) values ('kept', 'g', 1, 1)`,
		`insert into agent_private.group_claim (queue, key, at, claims) values ('kept', 'g', now(), 1)`,
		`insert into agent_private.group_sample values ('kept', now(), 0, 1, 0, 0, 0, 1)`,
		`insert into agent_private.lane_watermark values ('kept', 0, now(), now(), now(), now())`,
		`select agent.publish('a.b', '{"n": 3}', _idempotency_key => 'k')`,
		`insert into agent.subscription_replay (id, subscription, until) select 99, s.id, s.start_position from agent.subscription s`,
		`insert into agent.log_skip (until, after, last) values (2, 1, 0)`,
		`insert into agent.log_topic values ('a.b', 1, 1, 4294967297, now())`,
		`insert into agent_private.session (token_hash, proof, key_id, place, expires_at)
			values (sha256('a'), sha256('b'), '', agent_private.session_place(), now() + interval '1 hour')`,
		`insert into agent_private.deleted_api_key values ('aaaaaaaa', 1)`,
		`insert into agent.execution values ('t', 'w', '', 1, '1s', '1s', '1s', '1s', now())`,
		`insert into agent.source_count (name) values ('shop')`,
		`insert into agent.source_delivery_log (source, class) values ('shop', 0)`,
		`insert into agent.source_delivery (source, class, number, at, result, status, ms) values ('shop', 0, 1, now(), 'received', 200, 1)`,
		`insert into agent.push_delivery_log (queue, class) values ('kept', 0)`,
		`insert into agent.push_delivery (queue, class, number, at, outcome, event_id, attempt, ms) values ('kept', 0, 1, now(), 'delivered', 1, 1, 1)`,
		`insert into agent.queue_sampling (at, is_settled) values (date_trunc('minute', now()), true)`,
		`insert into agent.queue_sample (queue, at, ready, scheduled, leased, is_estimate) values ('kept', date_trunc('minute', now()), 0, 1, 0, false)`,
		`insert into agent.queue_latest (queue, at, ready, scheduled, leased, is_estimate) values ('kept', now(), 0, 1, 0, false)`,
		`insert into agent.queue_outcome (queue, at, done, failed, expired, cancelled) values ('kept', date_trunc('minute', now()), 1, 0, 0, 0)`,
		`insert into agent.queue_outcome_hour (queue, at, done, failed, expired, cancelled) values ('kept', date_trunc('hour', now()), 1, 0, 0, 0)`,
		`insert into agent.former_cell values ('kept', 3, now())`,
	} {
		if strings.HasPrefix(statement, "insert") {
			statement += " on conflict do nothing" // the program may have added the row
		}
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// rowsOf returns the rows of each table but those in working, as JSON.
func rowsOf(t *testing.T, conn *pgx.Conn) map[string][]string {
	t.Helper()
	read := func(query string) []string {
		t.Helper()
		rows, _ := conn.Query(t.Context(), query)
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		return all
	}
	all := make(map[string][]string)
	for _, table := range read(`select c.oid::regclass::text from pg_class c
		where c.relnamespace in ('agent'::regnamespace, 'agent_private'::regnamespace) and c.relkind in ('r', 'p') and not c.relispartition`) {
		all[table] = read(`select to_jsonb(t)::text from ` + table + ` t`)
	}
	return all
}

// A load inserts events, claims and acks them, and publishes, until it is stopped.
type load struct {
	p    *program
	stop context.CancelFunc
	all  sync.WaitGroup

	mu              sync.Mutex
	inserted, acked []int64
	published       int
	failed          error
}

func startLoad(t *testing.T, p *program) *load {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &load{p: p, stop: stop}
	for _, step := range []func() error{l.insert, l.work, l.publish} {
		l.all.Go(func() {
			for ctx.Err() == nil {
				if err := step(); err != nil {
					l.mu.Lock()
					l.failed = errors.Join(l.failed, err)
					l.mu.Unlock()
					return
				}
			}
		})
	}
	return l
}

// post makes a POST that has to be answered with a status below 300, and decodes the answer.
func (l *load) post(path, body string) (map[string]any, error) {
	got, err := l.p.send(http.MethodPost, path, body, "Authorization: Bearer "+upgradeKey)
	if err != nil {
		return nil, err
	}
	if got.status >= 300 {
		return nil, fmt.Errorf("POST %s: %d %s", path, got.status, got.body)
	}
	var out map[string]any
	return out, json.Unmarshal([]byte(got.body), &out)
}

func (l *load) insert() error {
	got, err := l.post("/events?queue=load", `{"some":"work"}`)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.inserted = append(l.inserted, int64(got["id"].(float64)))
	}
	return err
}

func (l *load) work() error {
	got, err := l.post("/claim", `{"queue":"load","limit":5}`)
	if err != nil {
		return err
	}
	for _, e := range got["events"].([]any) {
		id, receipt := int64(e.(map[string]any)["id"].(float64)), e.(map[string]any)["receipt"]
		acked, err := l.post("/ack", fmt.Sprintf(`{"events":[{"id":%d,"receipt":%q}]}`, id, receipt))
		if err != nil {
			return err
		}
		if !strings.Contains(fmt.Sprint(acked["results"]), "status:204") {
			return fmt.Errorf("the ack of event %d: %v", id, acked)
		}
		l.mu.Lock()
		l.acked = append(l.acked, id)
		l.mu.Unlock()
	}
	return nil
}

func (l *load) publish() error {
	_, err := l.post("/topics/load", `{"some":"news"}`)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.published++
	}
	return err
}

// awaitMore waits until each kind of call was answered ten times more.
func (l *load) awaitMore(t *testing.T) {
	t.Helper()
	counts := func() (int, int, int, bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.inserted), len(l.acked), l.published, l.failed != nil
	}
	inserted, acked, published, _ := counts()
	until(t, "the process goes on", func() bool {
		i, a, p, hasFailed := counts()
		return hasFailed || i >= inserted+10 && a >= acked+10 && p >= published+10
	})
}

func TestUpgradeUnderAWorkingProcessLosesNothing(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.New(t)
	conn := connect(t, db.URL)
	p := serve(t, nil, "QUEUED_DATABASE_URL="+db.ServiceURL, "QUEUED_API_KEY="+upgradeKey, "QUEUED_SECRET_KEY=a-key-that-seals-secrets", "QUEUED_BACKGROUND=off")
	fillTables(t, p, conn)
	before := rowsOf(t, conn)
	for table, rows := range before {
		if len(rows) == 0 && !slices.Contains(neverFilled, table) {
			t.Errorf("%s has no row: have fillTables add one", table)
		}
	}

	l := startLoad(t, p)
	defer l.stop()
	l.awaitMore(t)
	status, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db.URL, Scripts: nextScripts(t), Version: nextVersion, Oldest: sql.OldestBeside})
	if err != nil || status.Database != sql.Version() || !status.Due() {
		t.Fatalf("the migration: %+v, %v", status, err)
	}
	l.awaitMore(t)
	l.stop()
	l.all.Wait()
	if l.failed != nil {
		t.Error(l.failed)
	}

	for table, rows := range before {
		if slices.Contains(working, table) {
			continue
		}
		missing, err := conn.Query(t.Context(), `select b.row::text from unnest($1::jsonb[]) as b (row)
			where not exists (select from `+table+` t where to_jsonb(t) @> b.row)`, rows)
		if err != nil {
			t.Fatal(err)
		}
		lost, err := pgx.CollectRows(missing, pgx.RowTo[string])
		if err != nil || len(lost) > 0 {
			t.Errorf("%s has lost %q, %v", table, lost, err)
		}
	}
	for what, ids := range map[string][]int64{
		`select e.id from agent.event e where e.queue = 'load' union all select h.id from agent.event_hist h where h.queue = 'load'`: l.inserted,
		`select h.id from agent.event_hist h where h.queue = 'load' and h.outcome = 'done'`:                                          l.acked,
	} {
		rows, _ := conn.Query(t.Context(), what)
		found, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(found)
		slices.Sort(ids)
		if !slices.Equal(found, ids) {
			t.Errorf("%s: %d events, want %d", what, len(found), len(ids))
		}
	}
	if n := pgtest.Query[int](t, conn, `select count(*) from agent.log where topic = 'load'`); n != l.published {
		t.Errorf("the log has %d events, %d were published", n, l.published)
	}
	if labels := pgtest.Query[string](t, conn, `select string_agg(l, ',') from agent.list_labels() l`); labels != "of paul" {
		t.Errorf("the next version has made the labels %q", labels)
	}
	if version := schemaVersion(t, db.URL); version != nextVersion {
		t.Errorf("the database is at %s", version)
	}
}
