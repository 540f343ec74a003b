package topic_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/topic"
)

// filter returns a filter of topics and a match, which may be empty.
func filter(t *testing.T, topics []string, pattern string) *match.Filter {
	t.Helper()
	f, err := match.Parse(topics, []byte(pattern))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestReadingGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	want := env.publish(t, slices.Repeat([]string{"a", "b", "c"}, 10)...)
	var got []int64
	for after := int64(0); ; {
		page := env.read(t, topic.ReadParams{After: after, Limit: 7})
		if len(page.Events) == 0 {
			break
		}
		got, after = append(got, positions(page.Events)...), page.Next
	}
	if !slices.Equal(got, want) {
		t.Errorf("read %d, want %d", got, want)
	}
}

func TestOnlyWhatMatchesIsRead(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	all := env.publish(t, slices.Repeat([]string{"a", "b", "c"}, 700)...)
	for name, p := range map[string]topic.ReadParams{
		"a topic":           {Filter: filter(t, []string{"b"}, ""), Limit: 300},
		"a topic, by index": {Filter: filter(t, []string{"b"}, ""), Topics: []string{"b"}, Limit: 300},
		"a match":           {Filter: filter(t, nil, `{"n": [{"numeric": [">=", 0]}]}`), Limit: 300},
	} {
		var got []int64
		for {
			page := env.read(t, p)
			got = append(got, positions(page.Events)...)
			if page.Next == p.After {
				break
			}
			p.After = page.Next
		}
		want := all
		if name != "a match" {
			want = nil
			for i := 1; i < len(all); i += 3 {
				want = append(want, all[i])
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: read %d events, want %d", name, len(got), len(want))
		}
	}
}

func TestLastEventsAreThoseThatMatch(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	if page, isComplete, err := env.ReadLast(t.Context(), topic.LastParams{N: 5}); err != nil || !isComplete || len(page.Events) != 0 {
		t.Fatalf("the end of an empty log is %+v, %t, %v", page, isComplete, err)
	}
	all := env.publish(t, slices.Repeat([]string{"a", "b", "c"}, 700)...)
	for name, c := range map[string]struct {
		params topic.LastParams
		want   func(i int) bool
	}{
		"all":                {topic.LastParams{N: 1000}, func(int) bool { return true }},
		"one":                {topic.LastParams{N: 1}, func(int) bool { return true }},
		"a topic":            {topic.LastParams{N: 300, Filter: filter(t, []string{"b"}, "")}, func(i int) bool { return i%3 == 1 }},
		"a topic, by index":  {topic.LastParams{N: 300, Filter: filter(t, []string{"b"}, ""), Topics: []string{"b"}}, func(i int) bool { return i%3 == 1 }},
		"topics, by index":   {topic.LastParams{N: 7, Filter: filter(t, []string{"c", "b"}, ""), Topics: []string{"c", "b"}}, func(i int) bool { return i%3 != 0 }},
		"more than there is": {topic.LastParams{N: 1000, Filter: filter(t, []string{"b"}, ""), Topics: []string{"b"}}, func(i int) bool { return i%3 == 1 }},
		"a match":            {topic.LastParams{N: 10, Filter: filter(t, nil, `{"n": [{"numeric": ["<", 100]}]}`)}, func(i int) bool { return i < 100 }},
		"a match of a topic": {topic.LastParams{N: 10, Filter: filter(t, []string{"a"}, `{"n": [{"numeric": ["<", 100]}]}`), Topics: []string{"a"}}, func(i int) bool { return i < 100 && i%3 == 0 }},
	} {
		page, isComplete, err := env.ReadLast(t.Context(), c.params)
		if err != nil || !isComplete || page.Head != all[len(all)-1] || page.Next != page.Head {
			t.Fatalf("%s: %+v, %t, %v", name, page, isComplete, err)
		}
		var want []int64
		for i, position := range all {
			if c.want(i) {
				want = append(want, position)
			}
		}
		if want = want[max(0, len(want)-c.params.N):]; !slices.Equal(positions(page.Events), want) {
			t.Errorf("%s: read %d, want %d", name, positions(page.Events), want)
		}
	}
	env.exec(t, `select agent.publish('a', '{}', _subscription => 'some')`)
	if page, _, err := env.ReadLast(t.Context(), topic.LastParams{N: 1}); err != nil || page.Events[0].Position != all[len(all)-1] {
		t.Errorf("the last event is %+v, %v", page.Events, err)
	}
}

func TestSearchForLastEventsIsBounded(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.publish(t, "rare")
	env.exec(t, `select agent.publish_events(array_fill('common'::text, array[10000]), array_fill('{}'::jsonb, array[10000])) from generate_series(1, 6)`)
	env.exec(t, `select agent.publish('large', jsonb_build_object('text', repeat('x', 1000000))) from generate_series(1, 20)`)
	for name, c := range map[string]struct {
		params     topic.LastParams
		events     int
		isComplete bool
	}{
		"rare, by index": {topic.LastParams{N: 2, Filter: filter(t, []string{"rare"}, ""), Topics: []string{"rare"}}, 1, true},
		"rare":           {topic.LastParams{N: 2, Filter: filter(t, []string{"*", "*.a"}, `{"n": [0]}`)}, 0, false},
		"large":          {topic.LastParams{N: 20}, 8, false},
	} {
		page, isComplete, err := env.ReadLast(t.Context(), c.params)
		if err != nil || len(page.Events) != c.events || isComplete != c.isComplete {
			t.Errorf("%s: %d events, %t, %v; want %d, %t", name, len(page.Events), isComplete, err, c.events, c.isComplete)
		}
	}
	env.exec(t, `analyze agent.log`)
	env.exec(t, `begin`)
	if n := value[int](t, env, `select count(position) from agent_service.read_log_back(null, 1000, 1000000, '{rare,none}')`); n != 1 {
		t.Errorf("%d events are read, want 1", n)
	}
	read := value[int](t, env, `select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int4 from pg_stat_xact_user_tables where relname ~ '^log_[0-9]+$'`)
	env.exec(t, `commit`)
	if read > 100 {
		t.Errorf("%d rows were looked at for one", read)
	}
}

func TestSQLPatternsTakeTheTopicsThatTheyName(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.publish(t, "order.placed", "order.paid.late", "order", "user.added", "orders.placed")
	for pattern, want := range map[string]string{
		"order.*": "order.placed", "order.**": "order.placed,order.paid.late", "*": "order", "*.*": "order.placed,user.added,orders.placed",
		"**": "order.placed,order.paid.late,order,user.added,orders.placed", "order": "order", "*.placed": "order.placed,orders.placed",
	} {
		got := value[string](t, env, `select coalesce(string_agg(topic, ',' order by position), '') from agent.read_log(0, 100, array[$1])`, pattern)
		if got != want {
			t.Errorf("%s takes %q, want %q", pattern, got, want)
		}
	}
	env.exec(t, `select agent_private.publish_own('queued.test', '{}')`)
	for pattern, want := range map[string]string{"**": "", "*.*": "", "*.test": "", "queued.*": "queued.test", "queued.**": "queued.test"} {
		got := value[string](t, env, `select coalesce(string_agg(topic, ',' order by position), '') from agent.read_log(0, 100, array[$1]) where topic like 'queued.%'`, pattern)
		if got != want {
			t.Errorf("of the service's own topics %s takes %q, want %q", pattern, got, want)
		}
	}
	for _, pattern := range []string{"", "a..b", "**.a", "a.**.b", "a*", "a b", "(", ".", strings.Repeat("a.", 8) + "a"} {
		if _, err := env.sql.Exec(t.Context(), `select agent.read_log(0, 100, array[$1])`, pattern); errorOf(err).Code != "QD003" {
			t.Errorf("the pattern %q: %v, want QD003", pattern, err)
		}
	}
}

func TestWaitingReadersGetWhatIsPublished(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	other.run(t)
	for name, publish := range map[string]func(*testing.T, string){
		"here":              func(t *testing.T, name string) { t.Helper(); env.publish(t, name) },
		"by another server": func(t *testing.T, name string) { t.Helper(); other.publish(t, name) },
		"from SQL":          func(t *testing.T, name string) { t.Helper(); env.exec(t, `select agent.publish($1, '{}')`, name) },
	} {
		head := env.read(t, topic.ReadParams{}).Head
		for i := range 3 {
			got := make(chan topic.Page, 1)
			go func() {
				page, err := env.Read(t.Context(), topic.ReadParams{After: head, Wait: busyTimeout})
				if err != nil {
					t.Error(err)
				}
				got <- page
			}()
			want := fmt.Sprintf("t.%d", i)
			publish(t, want)
			page := <-got
			if len(page.Events) == 0 || page.Events[0].Topic != want {
				t.Errorf("published %s: the reader got %+v, want %s", name, page.Events, want)
			}
			head = page.Next
		}
	}
}

func TestReaderWithoutARunningServicePolls(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	got := make(chan topic.Page, 1)
	go func() {
		page, err := env.Read(t.Context(), topic.ReadParams{Wait: busyTimeout})
		if err != nil {
			t.Error(err)
		}
		got <- page
	}()
	env.publish(t, "a")
	if page := <-got; len(page.Events) != 1 {
		t.Errorf("read %+v", page)
	}
}

func TestReaderThatWaitsInVainGetsAnEmptyPage(t *testing.T) {
	t.Parallel()
	env := setup(t)
	head := env.publish(t, "a")[0]
	if page := env.read(t, topic.ReadParams{After: head, Wait: time.Millisecond}); len(page.Events) != 0 || page.Next != head {
		t.Errorf("read %+v", page)
	}
}

func TestDrainEndsWaiting(t *testing.T) {
	t.Parallel()
	env := setup(t)
	done := make(chan topic.Page, 1)
	go func() {
		page, err := env.Read(t.Context(), topic.ReadParams{Wait: busyTimeout})
		if err != nil {
			t.Error(err)
		}
		done <- page
	}()
	env.Drain()
	if page := <-done; len(page.Events) != 0 {
		t.Errorf("read %+v", page)
	}
}

func TestEventsOfOneSubscriptionAreForNobodyElse(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `select agent.publish('a', '{}', _subscription => 'billing')`)
	want := env.publish(t, "b")
	page := env.read(t, topic.ReadParams{})
	if !slices.Equal(positions(page.Events), want) {
		t.Errorf("read %+v", page.Events)
	}
	if _, err := env.Get(t.Context(), want[0]-1); !errors.Is(err, topic.ErrPositionNotFound) {
		t.Errorf("getting it: %v, want ErrPositionNotFound", err)
	}
}

func TestPagesAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	// Compressed they take hardly any room.
	env.exec(t, `select agent.publish('a', jsonb_build_object('text', repeat('x', 1000000))) from generate_series(1, 20)`)
	page := env.read(t, topic.ReadParams{Limit: 3})
	if len(page.Events) != 3 {
		t.Errorf("a page of 3 has %d events", len(page.Events))
	}
	n := value[int](t, env, `select count(*) from agent_service.read_log_page(0, 1000, 4000000)`)
	if n < 2 || n > 5 {
		t.Errorf("4 MB are %d events of 1 MB", n)
	}
	all, pages := 0, 0
	for after := int64(0); ; pages++ {
		page := env.read(t, topic.ReadParams{After: after, Limit: 1000})
		if len(page.Events) == 0 {
			break
		}
		if all, after = all+len(page.Events), page.Next; len(page.Events) > 9 || len(page.Events) < 8 && all < 20 {
			t.Errorf("a page has %d events of 1 MB", len(page.Events))
		}
	}
	if all != 20 {
		t.Errorf("%d pages have %d events, want 20", pages, all)
	}
}

// A segment whose statistics say nothing yet is what every reader of new events meets.
func TestPageCostsWhatItHoldsBeforeTheLogIsAnalyzed(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	const published, limit = 20_000, 1000
	if _, err := env.sql.Exec(t.Context(), `
		select from agent_service.append_log(array_fill('a'::text, array[$1::int]), array_fill('{"a": 1}'::jsonb, array[$1::int]))`, published); err != nil {
		t.Fatal(err)
	}
	fetched := func() (n int) {
		t.Helper()
		if err := env.sql.QueryRow(t.Context(), `
			select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_user_tables where relname ~ '^log_[0-9]+$'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if _, err := env.sql.Exec(t.Context(), `begin`); err != nil { // only then the counts of the session are all there
		t.Fatal(err)
	}
	for _, read := range []string{
		`select from agent.read_log(0, $1)`, `select from agent_service.read_log_page(0, $1, 1000000)`, `select from agent_service.read_log_page(0, $1, 1000000, array['a'])`,
		`select from agent_service.read_log_back(null, $1, 1000000)`, `select from agent_service.read_log_back(null, $1, 1000000, array['a'])`,
	} {
		before := fetched()
		tag, err := env.sql.Exec(t.Context(), read, limit)
		if err != nil || tag.RowsAffected() != limit {
			t.Errorf("%s: %s, %v", read, tag, err)
		}
		if n := fetched() - before; n < limit || n > 2*limit {
			t.Errorf("%s: %d rows were fetched for a page of %d", read, n, limit)
		}
	}
}

func TestBytesOfPagesAreCountedBeforeCompression(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	// Each fits into its row once it is compressed.
	env.exec(t, `select agent.publish('a', jsonb_build_object('text', repeat('x', 135000)), _meta => jsonb_build_object('text', repeat('x', 15000)))
		from generate_series(1, 100)`)
	if stored := value[int](t, env, `select max(pg_column_size(event)) from agent.log`); stored > 1900 {
		t.Fatalf("an event takes %d bytes, which shows nothing", stored)
	}
	for name, topics := range map[string][]string{"all": nil, "by topic": {"a"}} {
		if n := value[int](t, env, `select count(*) from agent_service.read_log_page(0, 1000, 1500000, $1)`, topics); n < 9 || n > 11 {
			t.Errorf("%s: 1.5 MB are %d events of 150 KB", name, n)
		}
	}
}

func TestRareTopicIsReadWithoutSearchingTheLog(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `select agent.publish_events(array_fill('common'::text, array[20000]), array_fill('{}'::jsonb, array[20000]))`)
	env.exec(t, `analyze agent.log`) // which knows one topic
	env.publish(t, "rare")
	env.exec(t, `begin`)
	if n := value[int](t, env, `select count(position) from agent_service.read_log_page(0, 1000, 1000000, '{rare,none}')`); n != 1 {
		t.Errorf("%d events are read, want 1", n)
	}
	read := value[int](t, env, `select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::int4 from pg_stat_xact_user_tables where relname ~ '^log_[0-9]+$'`)
	env.exec(t, `commit`)
	if read > 100 {
		t.Errorf("%d rows were looked at for one", read)
	}
}

func TestReadersAfterWhatIsNoPositionAreRefused(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	for _, after := range []int64{-1, 1 << 53, 1<<63 - 1, -1 << 63} {
		_, err := env.Read(t.Context(), topic.ReadParams{After: after})
		var invalid *topic.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "after" {
			t.Errorf("reading after %d: %v, want an InvalidError of after", after, err)
		}
	}
}

func TestOneEventIsReadByItsPosition(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	want := env.publish(t, "a", "b")
	if e, err := env.Get(t.Context(), want[1]); err != nil || e.Topic != "b" || e.Position != want[1] {
		t.Errorf("got %+v, %v", e, err)
	}
	for _, position := range []int64{0, -1, want[1] + 1, 1 << 60} {
		if _, err := env.Get(t.Context(), position); !errors.Is(err, topic.ErrPositionNotFound) {
			t.Errorf("position %d: %v, want ErrPositionNotFound", position, err)
		}
	}
}

func TestPositionOfATimeHasAllThatCameLater(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	all := env.publish(t, slices.Repeat([]string{"a"}, 100)...)
	env.exec(t, `update agent.log set published_at = timestamptz '2026-01-01 00:00Z' + (position - $1) * interval '10 s'`, all[0])
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for offset, want := range map[time.Duration]int64{
		-time.Hour: all[0] - 1, 0: all[0] - 1, 5 * time.Second: all[0], 10 * time.Second: all[0], 500 * time.Second: all[49], 990 * time.Second: all[98],
	} {
		if got, err := env.PositionAt(t.Context(), start.Add(offset)); err != nil || got != want {
			t.Errorf("%s after the first: %d, %v; want %d", offset, got-all[0], err, want-all[0])
		}
	}
	_, head, err := env.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := env.PositionAt(t.Context(), start.Add(time.Hour)); err != nil || got != head {
		t.Errorf("after the last: %d, %v; want the head, %d", got, err, head)
	}
}

func TestTopicsAreCountedExactly(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.publish(t, slices.Repeat([]string{"a", "b", "b"}, 10)...)
	env.exec(t, `select agent_service.count_topics(7)`)
	last := env.publish(t, "c", "a")
	page, err := env.Topics(t.Context(), 2, "", nil)
	if err != nil || len(page.Topics) != 2 || page.Next == "" || page.Topics[0].Name != "a" || page.Topics[0].Events != 11 || page.Topics[0].LastPosition != last[1] ||
		page.Topics[1].Name != "b" || page.Topics[1].Events != 20 {
		t.Fatalf("the first page is %+v, %v", page, err)
	}
	if page, err = env.Topics(t.Context(), 2, page.Next, nil); err != nil || len(page.Topics) != 1 || page.Topics[0].Name != "c" || page.Next != "" {
		t.Errorf("the last page is %+v, %v", page, err)
	}
	if _, err := env.Topics(t.Context(), 2, "x", nil); !errors.Is(err, pg.ErrBadCursor) {
		t.Errorf("a cursor of nothing: %v", err)
	}
	for value[int](t, env, `select agent_service.count_topics(7)`) > 0 {
	}
	if counted, err := env.Topics(t.Context(), 0, "", nil); err != nil || len(counted.Topics) != 3 || counted.Topics[0].Events != 11 || counted.Topics[1].Events != 20 {
		t.Errorf("when all are counted: %+v, %v", counted, err)
	}
}

// TestReaderJustBeforeTheOldestEventInMemoryGetsIt reads from every position while the newest events, and not all of them, are in memory: it does so
// also from the one just before the first that is.
func TestReaderJustBeforeTheOldestEventInMemoryGetsIt(t *testing.T) {
	t.Parallel()
	env := setup(t, func(c *topic.Config) { c.TailBytes = 20_000 })
	stream := env.follow(t, topic.FollowParams{}) // so that there are events in memory
	all := env.publish(t, slices.Repeat([]string{"a"}, 200)...)
	next(t, stream, len(all))
	if n := env.StreamStats().TailBytes; n == 0 || n > 20_000 {
		t.Fatalf("%d bytes of the log are in memory", n)
	}
	for i, position := range all {
		want := all[i:min(i+2, len(all))]
		if got := positions(env.read(t, topic.ReadParams{After: position - 1, Limit: 2}).Events); !slices.Equal(got, want) {
			t.Errorf("after %d there are %d, want %d", position-1, got, want)
		}
	}
}
