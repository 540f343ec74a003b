package topic_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/topic"
)

// sqlRow is a row of agent.read_subscription.
type sqlRow struct {
	Position    *int64
	Topic       *string
	PublishedAt *time.Time
	Key         *string
	Meta, Event json.RawMessage
	Matched     []string
	Cursor      string
}

// querier is a session, or a transaction in it.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readSQL reads the subscription s with these further arguments.
func readSQL(t *testing.T, q querier, arguments string, args ...any) ([]sqlRow, error) {
	t.Helper()
	if arguments != "" {
		arguments = ", " + arguments
	}
	rows, err := q.Query(t.Context(), `select position, topic, published_at, key, meta, event, matched, cursor from agent.read_subscription('s'`+arguments+`)`, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[sqlRow])
}

func (env environment) nextSQL(t *testing.T, arguments string, args ...any) []sqlRow {
	t.Helper()
	rows, err := readSQL(t, env.sql, arguments, args...)
	if err != nil {
		t.Fatalf("%s: %v", arguments, err)
	}
	for i := range rows {
		if rows[i].Cursor != rows[0].Cursor {
			t.Errorf("row %d has another cursor than the first", i)
		}
	}
	return rows
}

func (env environment) commitSQL(t *testing.T, cursor string) int64 {
	t.Helper()
	return value[int64](t, env, `select agent.commit_cursor('s', $1)`, cursor)
}

func (env environment) wantLostSQL(t *testing.T, doing, cursor string) {
	t.Helper()
	_, err := env.sql.Exec(t.Context(), `select agent.commit_cursor('s', $1)`, cursor)
	wantState(t, doing, err, "QD021")
}

// wantState has err be one of PostgreSQL with a SQLSTATE.
func wantState(t *testing.T, doing string, err error, state string) {
	t.Helper()
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != state {
		t.Errorf("%s: %v, want SQLSTATE %s", doing, err, state)
	}
}

// sqlPositions are the positions of rows, 0 for one without.
func sqlPositions(rows []sqlRow) []int64 {
	all := make([]int64, len(rows))
	for i, r := range rows {
		if r.Position != nil {
			all[i] = *r.Position
		}
	}
	return all
}

// sameRows has rows of SQL and events of the service be the same.
func sameRows(t *testing.T, rows []sqlRow, events []topic.MatchedEvent) {
	t.Helper()
	if !slices.Equal(sqlPositions(rows), matched(events)) {
		t.Fatalf("SQL has read %d, the service %d", sqlPositions(rows), matched(events))
	}
	for i := range rows {
		row, e := &rows[i], &events[i]
		key := ""
		if row.Key != nil {
			key = *row.Key
		}
		if *row.Topic != e.Topic || !row.PublishedAt.Equal(e.PublishedAt) || key != e.Key || string(row.Event) != string(e.Event.Event) ||
			string(row.Meta) != string(e.Meta) || !slices.Equal(row.Matched, e.Matched) {
			t.Errorf("SQL has read %+v, the service %+v", row, e)
		}
	}
}

func TestReadersInSQLAndOverHTTPGetTheSameEvents(t *testing.T) {
	t.Parallel()
	many := make([]string, 250)
	for i := range many {
		many[i] = fmt.Sprintf("never.published.%d.**", i)
	}
	for name, never := range map[string][]string{"with few patterns": {"never"}, "with many patterns": many} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := setup(t)
			env.subscribe(t, wants(t, "orders", []string{"order.*", "order.placed"}, ""), wants(t, "two", []string{"*.*", "user.**"}, ""), wants(t, "own", []string{"queued.**"}, ""),
				wants(t, "never", never, ""))
			env.readInTurns(t)
		})
	}
}

// readInTurns publishes to the subscription s, and reads all of it in SQL and over HTTP.
func (env environment) readInTurns(t *testing.T) {
	t.Helper()
	names := []string{"order", "order.placed", "order.placed.late", "user", "user.a.b", "queued", "a.b", "a.b.c", "queuedx.a"}
	for range 40 {
		env.publish(t, names...)
	}
	env.exec(t, `select agent_private.publish_own('queued.push.opened', '{"queue": "q"}')`)
	env.exec(t, `select agent.publish('order.placed', '{"a": 1}', _key => 'k', _meta => '{"traceparent": "x"}')`)
	env.exec(t, `select agent.publish('x', '{}', _subscription => 's'), agent.publish('order.placed', '{}', _subscription => 's'), agent.publish('order.placed', '{}', _subscription => 'other')`)
	env.publish(t, "none", "order.last")

	pages := 0
	for isOver := false; !isOver; pages++ {
		limit := 7 + pages
		over := env.next(t, topic.SubscribedParams{Limit: limit})
		rows := env.nextSQL(t, `$1`, limit)
		sameRows(t, rows, over.Events)
		if isOver = len(rows) < limit; isOver {
			if last := rows[len(rows)-1]; *last.Topic != "order.last" {
				t.Errorf("the last is %+v", last)
			}
		}
		if pages%2 == 0 { // who commits first wins
			position := env.commitSQL(t, rows[0].Cursor)
			env.wantLost(t, "a late commit over HTTP", over.Cursor)
			if again := env.commit(t, rows[0].Cursor); again != position {
				t.Errorf("the cursor of SQL was committed again: %d, want %d", again, position)
			}
		} else {
			position := env.commit(t, over.Cursor)
			env.wantLostSQL(t, "a late commit in SQL", rows[0].Cursor)
			if again := env.commitSQL(t, over.Cursor); again != position {
				t.Errorf("the cursor of the service was committed again: %d, want %d", again, position)
			}
		}
	}
	if pages < 5 {
		t.Errorf("there were %d pages", pages)
	}
	if rows := env.nextSQL(t, ""); len(rows) != 0 {
		t.Errorf("at the end: %+v", rows)
	}
	if sub := env.get(t); sub.LagEvents != 0 || sub.Gaps != 0 {
		t.Errorf("the subscription is %+v", sub)
	}
}

// TestTopicsMeanTheSameInSQL holds agent_private.topic_patterns against the matcher.
func TestTopicsMeanTheSameInSQL(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	topics := []string{"queued"}
	for _, first := range []string{"a", "queued", "b"} {
		topics = append(topics, first, first+".a", first+".b.a", first+".a.a.b")
	}
	topics = append(topics, "a.b.c.d.e.f.g.h", "queued.b.c.d.e.f.g.h", "a.b.c.d.e.f.g.h.i", "queuedx.a", "Queued.a")
	words := []string{"a", "queued", "*"}
	patterns := []string{"**", "a.b.c.d.e.f.g.h", "a.b.c.d.e.f.g.*", "a.b.c.d.e.f.g.**", "*.*.*.*.*.*.*.*", "*.*.*.*.*.*.*.**", "queued.*.*.*.*.*.*.*", "a.b.c.d.**"}
	for _, first := range words {
		patterns = append(patterns, first, first+".**")
		for _, second := range words {
			patterns = append(patterns, first+"."+second, first+"."+second+".**", first+"."+second+".a")
		}
	}
	taken := 0
	for _, pattern := range patterns {
		f := filter(t, []string{pattern}, "")
		for _, name := range topics {
			want := f.Matches(name, []byte(`{}`))
			if got := value[bool](t, env, `select $1 in (select agent_private.topic_patterns($2))`, pattern, name); got != want {
				t.Errorf("%s for %s: %t in SQL, %t for the service", pattern, name, got, want)
			}
			if want {
				taken++
			}
		}
	}
	if taken < 50 {
		t.Errorf("%d pairs match", taken)
	}
	if err := match.CheckTopicPattern("a.b.c.d.e.f.g.h.i"); err == nil {
		t.Error("topics may have nine words: the bound in agent_private.topic_patterns is wrong")
	}
}

func TestReadersInSQLMoveOverWhatNobodyWants(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, wants(t, "b", []string{"b"}, ""))
	env.exec(t, `insert into agent.log (position, published_at, topic, event, text_size)
		select nextval('agent.log_position_seq'), clock_timestamp(), 'a', '{}', 2 from generate_series(1, 60000)`)
	want := env.publish(t, "b")
	first := env.get(t).Position
	if rows := env.nextSQL(t, ""); len(rows) != 0 {
		t.Fatalf("the first call has read %d", sqlPositions(rows))
	}
	passed := env.get(t).Position
	if passed <= first || passed >= want[0] {
		t.Errorf("the first call has moved from %d to %d", first, passed)
	}
	var rows []sqlRow
	for calls := 1; len(rows) == 0 && calls < 1000; calls++ { // on a busy machine a call ends before it has looked through 50,000 events
		rows = env.nextSQL(t, "")
	}
	if !slices.Equal(sqlPositions(rows), want) {
		t.Fatalf("read %d, want %d", sqlPositions(rows), want)
	}

	// Reading ahead, the cursor moves.
	env.exec(t, `insert into agent.log (position, published_at, topic, event, text_size)
		select nextval('agent.log_position_seq'), clock_timestamp(), 'a', '{}', 2 from generate_series(1, 60000)`)
	more := env.publish(t, "b", "a")
	var ahead []sqlRow
	for cursor, calls := rows[0].Cursor, 0; calls < 1000; calls++ {
		ahead = env.nextSQL(t, `_after => $1`, cursor)
		if len(ahead) != 1 || ahead[0].Cursor == cursor {
			t.Fatalf("read ahead: %+v", ahead)
		}
		if ahead[0].Position != nil {
			break
		}
		if ahead[0].Topic != nil || ahead[0].Event != nil {
			t.Fatalf("a row without an event: %+v", ahead[0])
		}
		cursor = ahead[0].Cursor
		rows[0].Cursor = cursor // it stands for the same page
	}
	if !slices.Equal(sqlPositions(ahead), more[:1]) {
		t.Fatalf("read ahead %d, want %d", sqlPositions(ahead), more[:1])
	}
	env.wantLostSQL(t, "the second before the first", ahead[0].Cursor)
	env.commitSQL(t, rows[0].Cursor)
	if got := env.commitSQL(t, ahead[0].Cursor); got != more[1] {
		t.Errorf("committed %d, want %d: nothing else is wanted up to there", got, more[1])
	}
}

func TestReadersInSQLAreToldGaps(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{100, 1} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			env := setupIdle(t)
			env.subscribe(t, wants(t, "b", []string{"b"}, ""))
			old := env.publish(t, "a", "b")
			env.closeSegment(t)
			all := env.publish(t, "b")
			env.maintain(t)
			if env.drop(t) != 1 {
				t.Fatal("no segment was dropped")
			}
			over := env.next(t, topic.SubscribedParams{Limit: limit})
			rows := env.nextSQL(t, `$1`, limit)
			if over.Gap == nil || *rows[0].Topic != "queued.gap" || *rows[0].Position != over.Gap.Until || *rows[0].Position != old[1] {
				t.Fatalf("read %+v, over HTTP the gap %+v", rows[0], over.Gap)
			}
			var told struct {
				After, Until int64
				Reason       string
			}
			if err := json.Unmarshal(rows[0].Event, &told); err != nil || told.After != over.Gap.After || told.Until != over.Gap.Until || told.Reason != "retention" {
				t.Errorf("the gap is %s, over HTTP %+v; %v", rows[0].Event, over.Gap, err)
			}
			env.commitSQL(t, rows[0].Cursor)
			if limit == 1 {
				rows = append(rows, env.nextSQL(t, "")...)
				env.commitSQL(t, rows[1].Cursor)
			}
			if !slices.Equal(sqlPositions(rows[1:]), all) {
				t.Errorf("after the gap: %d, want %d", sqlPositions(rows[1:]), all)
			}
			if sub := env.get(t); sub.Gaps != 1 || sub.Position != all[0] {
				t.Errorf("the subscription is %+v", sub)
			}
		})
	}
}

// A position, or a cursor, of the original of a restored database.
func TestReadersInSQLBeyondTheHeadGoOnFromIt(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, everything(t))
	all := env.publish(t, "a", "b")
	page := env.nextSQL(t, "")
	env.exec(t, `select setval('agent.log_position_seq', last_value - 1) from agent.log_position_seq`)
	_, err := readSQL(t, env.sql, `_after => $1`, page[0].Cursor)
	wantState(t, "reading after it", err, "QD021")
	env.wantLostSQL(t, "committing it", page[0].Cursor)
	env.exec(t, `update agent.subscription_position set position = $1 where reader <> 0`, all[1]+1000)
	rows := env.nextSQL(t, "")
	if len(rows) != 1 || *rows[0].Topic != "queued.gap" || *rows[0].Position != all[0] || !strings.Contains(string(rows[0].Event), "beyond_head") {
		t.Fatalf("beyond the head: %+v", rows)
	}
	if got := env.commitSQL(t, rows[0].Cursor); got != all[0] {
		t.Errorf("committed %d, want %d", got, all[0])
	}
	env.exec(t, `select setval('agent.log_position_seq', last_value + 1) from agent.log_position_seq`)
	if rows := env.nextSQL(t, ""); !slices.Equal(sqlPositions(rows), all[1:]) {
		t.Errorf("after the gap: %d, want %d", sqlPositions(rows), all[1:])
	}
}

func TestSQLRefusesFiltersThatItCannotEvaluate(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, wants(t, "all", nil, ""), wants(t, "large", []string{"a"}, `{"n":[{"numeric":[">",1]}]}`))
	env.publish(t, "a")
	_, err := readSQL(t, env.sql, "")
	wantState(t, "a filter with match", err, "0A000")
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || !strings.Contains(pgErr.Message, "filter large") || !strings.Contains(pgErr.Hint, "POST /subscriptions/s/read") {
		t.Errorf("the error is %+v", err)
	}
	if err := env.DeleteFilter(t.Context(), "s", "large"); err != nil {
		t.Fatal(err)
	}
	if rows := env.nextSQL(t, ""); len(rows) != 1 {
		t.Errorf("without it: %+v", rows)
	}
}

// The read has begun with filters that change before it ends.
func TestReadInSQLBeginsAnewWhenFiltersChange(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, wants(t, "none", []string{"none"}, ""))
	want := env.publish(t, "b")
	reader := pgtest.Connect(t, env.url)
	tx, err := env.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table only agent.log in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	type result struct {
		rows []sqlRow
		err  error
	}
	got := make(chan result, 1)
	go func() {
		rows, err := readSQL(t, reader, "")
		got <- result{rows, err}
	}()
	await(t, "the read to wait for the log", func() bool {
		return value[bool](t, env, `select exists (select from pg_locks l where l.relation = 'agent.log'::regclass and not l.granted)`)
	})
	if err := env.PutFilter(t.Context(), "s", wants(t, "b", []string{"b"}, "")); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	page := <-got
	if page.err != nil || !slices.Equal(sqlPositions(page.rows), want) || !slices.Equal(page.rows[0].Matched, []string{"b"}) {
		t.Fatalf("read %+v, %v, want %d", page.rows, page.err, want)
	}
	if position := env.commitSQL(t, page.rows[0].Cursor); position != want[0] {
		t.Errorf("committed %d, want %d", position, want[0])
	}
}

func TestLeaseInSQLKeepsOthersAwayUntilItEnds(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	all := env.publish(t, slices.Repeat([]string{"a"}, 6)...)
	before := env.nextSQL(t, "")
	mine := env.nextSQL(t, `2, interval '1 hour'`)
	if !slices.Equal(sqlPositions(mine), all[:2]) {
		t.Fatalf("under the lease: %d", sqlPositions(mine))
	}
	for _, arguments := range []string{"", `_lease => interval '1 second'`} {
		if rows := env.nextSQL(t, arguments); len(rows) != 0 {
			t.Errorf("another one got %d", sqlPositions(rows))
		}
	}
	if page := env.next(t, topic.SubscribedParams{}); len(page.Events) != 0 || page.HeldUntil == nil {
		t.Errorf("another one got %+v over HTTP", page)
	}
	env.wantLostSQL(t, "what was read before the lease", before[0].Cursor)
	ahead := env.nextSQL(t, `2, _after => $1`, mine[0].Cursor)
	env.commitSQL(t, mine[0].Cursor)
	if rows := env.nextSQL(t, ""); len(rows) != 0 {
		t.Errorf("read ahead, and the lease ended with the first commit: %d", sqlPositions(rows))
	}
	env.commitSQL(t, ahead[0].Cursor)
	theirs := env.next(t, topic.SubscribedParams{Lease: time.Hour})
	if !slices.Equal(matched(theirs.Events), all[4:]) {
		t.Errorf("after the lease another one gets %+v", theirs)
	}
	if rows := env.nextSQL(t, ""); len(rows) != 0 {
		t.Errorf("under the lease of the service: %d", sqlPositions(rows))
	}
	env.exec(t, `update agent.subscription_position set leased_until = now() where reader <> 0`)
	env.wantLostSQL(t, "a late commit", theirs.Cursor)
	_, err := readSQL(t, env.sql, `_after => $1`, theirs.Cursor)
	wantState(t, "reading ahead under a lease that has ended", err, "QD021")
	if rows := env.nextSQL(t, ""); !slices.Equal(sqlPositions(rows), all[4:]) {
		t.Errorf("after the lease: %d", sqlPositions(rows))
	}
}

// The commit is part of the transaction that does the work.
func TestCommitInSQLIsUndoneWithItsTransaction(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, everything(t))
	all := env.publish(t, "a", "b")
	tx, err := env.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rows, err := readSQL(t, tx, `1, interval '1 hour'`)
	if err != nil {
		t.Fatal(err)
	}
	other := pgtest.Connect(t, env.url)
	if _, err := other.Exec(t.Context(), `set lock_timeout = '1ms'`); err != nil { // it waits for no lock
		t.Fatal(err)
	}
	if theirs, err := readSQL(t, other, `_lease => interval '1 hour'`); err != nil || len(theirs) != 0 {
		t.Errorf("another one got %d, %v", sqlPositions(theirs), err)
	}
	theirs, err := readSQL(t, other, "")
	if err != nil || !slices.Equal(sqlPositions(theirs), all) {
		t.Fatalf("without a lease another one got %d, %v", sqlPositions(theirs), err)
	}
	var position int64
	if err := tx.QueryRow(t.Context(), `select agent.commit_cursor('s', $1)`, rows[0].Cursor).Scan(&position); err != nil || position != all[0] {
		t.Errorf("committed %d, %v", position, err)
	}
	_, err = other.Exec(t.Context(), `select agent.commit_cursor('s', $1)`, theirs[0].Cursor)
	wantState(t, "before it is known who was first", err, "55P03")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	env.wantLostSQL(t, "the cursor of a lease that was undone", rows[0].Cursor)
	again := env.nextSQL(t, "")
	if !slices.Equal(sqlPositions(again), all) {
		t.Errorf("after the rollback: %d, want %d", sqlPositions(again), all)
	}
	if got := env.commitSQL(t, theirs[0].Cursor); got != all[1] {
		t.Errorf("who has read beside it has committed %d, want %d", got, all[1])
	}
}

// TestExampleOfReadingInSQLHandlesEachEventOnce runs what docs/publish.md and docs/sql.md show, several times.
func TestExampleOfReadingInSQLHandlesEachEventOnce(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.put(t, topic.PutSubscriptionParams{Name: "mailer", Filters: []topic.SubscriptionFilter{wants(t, "orders", []string{"order.*"}, "")}})
	env.exec(t, `set search_path to public; create table mail (order_id int8)`)
	for n := range 25 {
		env.exec(t, `select agent.publish('order.placed', jsonb_build_object('order', $1::int4)), agent.publish('order.paid', '{}'), agent.publish('other', '{}')`, n)
	}
	for _, path := range []string{"../../docs/publish.md", "../../docs/sql.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, example, isThere := strings.Cut(string(text), "```sql\nbegin;\ncreate temporary table page")
		example, _, isWhole := strings.Cut(example, "```")
		if !isThere || !isWhole {
			t.Fatalf("%s has no such example", path)
		}
		for range 3 {
			env.exec(t, "begin;\ncreate temporary table page"+example)
		}
	}
	if got := value[string](t, env, `select format('%s, %s different', count(*), count(distinct order_id)) from mail`); got != "25, 25 different" {
		t.Errorf("handled were %s", got)
	}
}

func TestFiltersWithoutPatternsInSQLWantAllTopicsOrNone(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t)
	env.publish(t, "a")
	env.exec(t, `select agent.publish('x', '{}', _subscription => 's'), agent_private.publish_own('queued.push.opened', '{}')`)
	over := env.next(t, topic.SubscribedParams{})
	rows := env.nextSQL(t, "")
	sameRows(t, rows, over.Events)
	if len(rows) != 1 || len(rows[0].Matched) != 0 || rows[0].Matched == nil {
		t.Errorf("without filters: %+v", rows)
	}
	env.subscribe(t, everything(t))
	over = env.next(t, topic.SubscribedParams{})
	rows = env.nextSQL(t, "")
	sameRows(t, rows, over.Events)
	if len(rows) != 3 {
		t.Errorf("with a filter without topics: %+v", rows)
	}
}

func TestReadersInSQLAreAnsweredAsOverHTTP(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	_, err := readSQL(t, env.sql, "")
	wantState(t, "no subscription", err, "QD020")
	_, err = readSQL(t, env.sql, `_lease => interval '1 minute'`)
	wantState(t, "no subscription to lease", err, "QD020")
	_, err = env.sql.Exec(t.Context(), `select agent.commit_cursor('s', 'x')`)
	wantState(t, "a commit of no subscription", err, "QD020")

	env.put(t, topic.PutSubscriptionParams{Name: "s", Filters: []topic.SubscriptionFilter{everything(t)}, ExpiresAfter: new(time.Hour)})
	env.put(t, topic.PutSubscriptionParams{Name: "other", Filters: []topic.SubscriptionFilter{everything(t)}})
	env.publish(t, "a")
	env.exec(t, `update agent.subscription set expires_at = clock_timestamp() + interval '1 minute' where name = 's'`)
	good := env.nextSQL(t, "")[0].Cursor
	if !value[bool](t, env, `select expires_at > clock_timestamp() + interval '50 minutes' from agent.subscription where name = 's'`) {
		t.Error("a read has not renewed the subscription")
	}
	elsewhere := value[string](t, env, `select cursor from agent.read_subscription('other')`)
	bad := []string{"", "x", "AAAA", good + "A", good[:len(good)-1], elsewhere, strings.Repeat("A", 1000), "é", good + "=", " " + good}
	for i := range good {
		changed := []byte(good)
		changed[i] ^= 1
		bad = append(bad, string(changed))
	}
	for _, text := range bad {
		_, err := readSQL(t, env.sql, `_after => $1`, text)
		wantState(t, "reading after "+text, err, "QD003")
		_, err = env.sql.Exec(t.Context(), `select agent.commit_cursor('s', $1)`, text)
		wantState(t, "committing "+text, err, "QD003")
	}
	for _, arguments := range []string{`0`, `1001`, `null`, `_lease => interval '0'`, `_lease => interval '25 hours'`, `_lease => interval '1 minute', _after => '` + good + `'`} {
		_, err := readSQL(t, env.sql, arguments)
		wantState(t, arguments, err, "QD003")
	}
	_, err = env.sql.Exec(t.Context(), `select agent.commit_cursor('s', null)`)
	wantState(t, "committing null", err, "QD003")

	if err := env.PauseSubscription(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if rows := env.nextSQL(t, ""); len(rows) != 0 {
		t.Errorf("of a paused subscription SQL has read %d", sqlPositions(rows))
	}
	env.deliver(t, "delivered", everything(t))
	_, err = env.sql.Exec(t.Context(), `select agent.read_subscription('delivered')`)
	wantState(t, "one that is delivered", err, "QD023")
	tx, err := env.sql.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	env.resume(t)
	_, err = readSQL(t, tx, "")
	wantState(t, "a repeatable read", err, "0A000")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (env environment) resume(t *testing.T) {
	t.Helper()
	if err := env.ResumeSubscription(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
}

func TestPageInSQLIsBoundedByWhatItHasAsText(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, everything(t))
	var all []int64
	for range 5 { // of about 1.3 MB each
		all = append(all, env.append(t, numbers(10)))
	}
	var got []int64
	for len(got) < len(all) {
		rows := env.nextSQL(t, "")
		if len(rows) == 0 || len(rows) > 3 {
			t.Fatalf("a page has %d events", len(rows))
		}
		got = append(got, sqlPositions(rows)...)
		env.commitSQL(t, rows[0].Cursor)
	}
	large := env.append(t, numbers(40)) // more than a page
	env.publish(t, "b")
	if rows := env.nextSQL(t, ""); !slices.Equal(got, all) || !slices.Equal(sqlPositions(rows), []int64{large}) {
		t.Errorf("read %d, want %d; then %d, want %d", got, all, sqlPositions(rows), large)
	}
}

func TestReadingSubscriptionsInSQLHasToBeGranted(t *testing.T) {
	t.Parallel()
	env, admin := withUsers(t)
	env.subscribe(t, everything(t))
	all := env.publish(t, "a")
	role := roleName(env, "reader")
	execAll(t, admin, `create role "`+role+`" login`)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		conn, err := pgx.Connect(ctx, admin.Config().ConnString())
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close(ctx) }()
		if _, err := conn.Exec(ctx, `drop owned by "`+role+`"; drop role "`+role+`"`); err != nil {
			t.Error(err)
		}
	})
	env.exec(t, `grant usage on schema agent to "`+role+`"`)
	as := pgtest.Connect(t, admin.Config().ConnString())
	execAll(t, as, `set session authorization "`+role+`"`)
	run := func(sql string, args ...any) error {
		_, err := as.Exec(t.Context(), sql, args...)
		return err
	}
	wantState(t, "reading", run(`select agent.read_subscription('s')`), "42501")
	wantState(t, "committing", run(`select agent.commit_cursor('s', 'x')`), "42501")
	env.exec(t, `grant execute on function agent.read_subscription, agent.commit_cursor(text, text) to "`+role+`"`) // as docs/sql.md says
	rows, err := readSQL(t, as, `_lease => interval '1 minute'`)
	if err != nil || !slices.Equal(sqlPositions(rows), all) {
		t.Fatalf("read %+v, %v", rows, err)
	}
	if err := run(`select agent.commit_cursor('s', $1)`, rows[0].Cursor); err != nil {
		t.Error(err)
	}
	wantState(t, "what the service calls", run(`select agent_service.commit_cursor('s', 1, 1, 1, 1, 1, false, false)`), "42501")
	wantState(t, "reading the table", run(`select from agent.log`), "42501")
}
