package topic_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/internal/topic"
)

func TestReadersBeyondTheHeadGoOnFromItAfterAGap(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	all := env.publish(t, "a", "b")
	beyond := all[1] + 1000
	want := topic.Gap{After: beyond, Until: all[1], Reason: topic.GapBeyondHead}

	page := env.read(t, topic.ReadParams{After: beyond})
	if page.Gap == nil || *page.Gap != want || page.Next != all[1] || len(page.Events) > 0 {
		t.Errorf("read %+v, want the gap %+v", page, want)
	}
	stream := env.follow(t, topic.FollowParams{After: beyond})
	subscribed := env.stream(t, beyond)
	for name, next := range map[string]func() (topic.Batch, error){
		"a stream":                   func() (topic.Batch, error) { return stream.Next(t.Context(), busyTimeout) },
		"a stream of a subscription": func() (topic.Batch, error) { return subscribed.Next(t.Context(), busyTimeout) },
	} {
		batch, err := next()
		if err != nil || batch.Gap == nil || *batch.Gap != want || batch.Next != all[1] || len(batch.Entries) > 0 {
			t.Errorf("%s got %+v, %v; want the gap %+v", name, batch, err, want)
		}
	}
	position, gap, err := env.Seek(t.Context(), "s", beyond)
	if err != nil || position != all[1] || gap == nil || *gap != want {
		t.Errorf("the seek led to %d, gap %+v, %v", position, gap, err)
	}

	more := env.publish(t, "c")
	if page := env.read(t, topic.ReadParams{After: page.Next, Wait: busyTimeout}); page.Gap != nil || !slices.Equal(positions(page.Events), more) {
		t.Errorf("after the gap: %+v, want %d", page, more)
	}
	for name, next := range map[string]func(time.Duration) (topic.Batch, error){
		"a stream":                   func(wait time.Duration) (topic.Batch, error) { return stream.Next(t.Context(), wait) },
		"a stream of a subscription": func(wait time.Duration) (topic.Batch, error) { return subscribed.Next(t.Context(), wait) },
	} {
		if batch, err := next(busyTimeout); err != nil || batch.Gap != nil || len(batch.Entries) != 1 || batch.Entries[0].Position != more[0] {
			t.Errorf("%s got %+v, %v after the gap; want %d", name, batch, err, more)
		}
	}
	if page := env.next(t, topic.SubscribedParams{}); page.Gap != nil || !slices.Equal(matched(page.Events), more) {
		t.Errorf("the subscription reads %+v after the seek, want %d", page, more)
	}
}

// A cursor of the original of a restored database.
func TestCursorsBeyondTheHeadAreLost(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	env.publish(t, "a", "b")
	page := env.next(t, topic.SubscribedParams{Limit: 2})
	env.exec(t, `select setval('agent.log_position_seq', last_value - 1) from agent.log_position_seq`)
	if _, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{After: page.Cursor}); !errors.Is(err, topic.ErrCursorLost) {
		t.Errorf("read on: %v, want ErrCursorLost", err)
	}
	env.wantLost(t, "committed", page.Cursor)
}

func TestReadersOfWhatWasLostAreToldOnce(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, everything(t))
	known := env.publish(t, "a", "b")
	lost := known[1] + 7                        // given out by the original of this database, after it was dumped
	env.exec(t, `delete from agent.log_server`) // as in a restored database
	more := env.publish(t, "c")
	page := env.read(t, topic.ReadParams{After: lost})
	if g := page.Gap; g == nil || g.After != lost || g.Until <= lost || g.Until >= more[0] || g.Reason != topic.GapLost || !slices.Equal(positions(page.Events), more) {
		t.Fatalf("read %+v after %d, want a gap and %d", page, lost, more)
	}
	for name, after := range map[string]int64{"the page with the gap": page.Next, "its last event": more[0], "the end of the gap": page.Gap.Until, "what is known": known[1]} {
		if page := env.read(t, topic.ReadParams{After: after}); page.Gap != nil {
			t.Errorf("after %s: the gap %+v", name, page.Gap)
		}
	}
	if page := env.next(t, topic.SubscribedParams{}); page.Gap != nil || len(page.Events) != 3 {
		t.Errorf("the subscription, which was restored as well, read %+v", page)
	}

	// It is told also when the segment in which the log went on is gone.
	env.closeSegment(t)
	if env.drop(t) == 0 {
		t.Fatal("no segment was dropped")
	}
	if page := env.read(t, topic.ReadParams{After: lost}); page.Gap == nil || page.Gap.Until != more[0] {
		t.Errorf("read %+v after the segment was dropped, want a gap up to %d", page, more[0])
	}
}

func TestRestartsMakeNoGaps(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]string{
		"in good order": `update agent.log_server set started_at = started_at - interval '1 day'`,
		"after a crash": `delete from agent.log_server`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := setupIdle(t)
			env.subscribe(t, everything(t))
			env.publish(t, "a")
			// Readers go past positions whose publisher was rolled back.
			env.exec(t, `select nextval('agent.log_position_seq') from generate_series(1, 5)`)
			_, head, err := env.Bounds(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			env.commit(t, env.next(t, topic.SubscribedParams{}).Cursor)
			env.exec(t, `select agent_service.count_topics()`) // by the upkeep, or a reader has committed so far
			env.exec(t, restart)
			more := env.publish(t, "b")
			if page := env.read(t, topic.ReadParams{After: head}); page.Gap != nil || !slices.Equal(positions(page.Events), more) {
				t.Errorf("read %+v after %d, want %d", page, head, more)
			}
			if page := env.next(t, topic.SubscribedParams{}); page.Gap != nil || !slices.Equal(matched(page.Events), more) {
				t.Errorf("the subscription read %+v, want %d", page, more)
			}
			if sub := env.get(t); sub.Gaps != 0 {
				t.Errorf("the subscription counts %d gaps", sub.Gaps)
			}
		})
	}
}

func TestReadersFromTheBeginningAreToldOfNoGap(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]string{
		"after a restart in good order": `update agent.log_server set started_at = started_at - interval '1 day'`,
		"after a crash":                 `delete from agent.log_server`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := setupIdle(t)
			env.publish(t, "a")
			env.exec(t, restart)
			kept := env.publish(t, "b")
			env.maintain(t)
			if env.drop(t) == 0 {
				t.Fatal("no segment was dropped")
			}
			first, _, err := env.Bounds(t.Context())
			if err != nil || first != kept[0] {
				t.Errorf("the first position is %d, %v; want %d", first, err, kept[0])
			}
			if page := env.read(t, topic.ReadParams{After: first - 1}); page.Gap != nil || !slices.Equal(positions(page.Events), kept) {
				t.Errorf("read %+v from the beginning, want %d without a gap", page, kept)
			}
			env.put(t, topic.PutSubscriptionParams{Name: "s", Filters: []topic.SubscriptionFilter{everything(t)}, Start: first - 1})
			if page := env.next(t, topic.SubscribedParams{}); page.Gap != nil || !slices.Equal(matched(page.Events), kept) {
				t.Errorf("the subscription read %+v, want %d without a gap", page, kept)
			}
		})
	}
}

func TestReadLogTellsGaps(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	type row struct {
		position      int64
		topic, reason string
	}
	read := func(after int64, limit int) (rows []row) {
		t.Helper()
		found, err := env.sql.Query(t.Context(), `select position, topic, coalesce(event ->> 'reason', '') from agent.read_log($1, $2, '{b,c}')`, after, limit)
		if err != nil {
			t.Fatal(err)
		}
		defer found.Close()
		for found.Next() {
			var r row
			if err := found.Scan(&r.position, &r.topic, &r.reason); err != nil {
				t.Fatal(err)
			}
			rows = append(rows, r)
		}
		if err := found.Err(); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	first := env.publish(t, "a", "a")
	env.closeSegment(t)
	second := env.publish(t, "b")
	if got, want := read(0, 10), []row{{second[0], "b", ""}}; !slices.Equal(got, want) {
		t.Errorf("without a gap: %v, want %v", got, want)
	}
	env.maintain(t)
	if env.drop(t) != 1 {
		t.Fatal("no segment was dropped")
	}
	gap := row{first[1], "queued.gap", "retention"}
	for limit, want := range map[int][]row{10: {gap, {second[0], "b", ""}}, 1: {gap}} {
		if got := read(first[0], limit); !slices.Equal(got, want) {
			t.Errorf("after retention, up to %d: %v, want %v", limit, got, want)
		}
	}
	if got, want := read(gap.position, 10), []row{{second[0], "b", ""}}; !slices.Equal(got, want) {
		t.Errorf("from the gap on: %v, want %v", got, want)
	}
	if got, want := read(second[0]+1000, 10), []row{{second[0], "queued.gap", "beyond_head"}}; !slices.Equal(got, want) {
		t.Errorf("beyond the head: %v, want %v", got, want)
	}
	env.exec(t, `delete from agent.log_server`) // as in a restored database
	third := env.publish(t, "c")
	if got := read(second[0]+1000, 10); len(got) != 2 || got[0].topic != "queued.gap" || got[0].reason != "lost" || got[1] != (row{third[0], "c", ""}) {
		t.Errorf("after what was lost: %v, want a gap and %d", got, third[0])
	}
	if got, want := read(second[0], 10), []row{{third[0], "c", ""}}; !slices.Equal(got, want) {
		t.Errorf("after what is known: %v, want %v", got, want)
	}
}

// A dump that is restored into a database in use ends by setting the sequence back to what it was, when a session has moved the log on already.
func TestLogGoesOnAfterARestoreThatSetsItsSequenceBack(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	env.publish(t, "a")
	dumped := value[int64](t, env, `select last_value from agent.log_position_seq`)
	env.exec(t, `delete from agent.log_server`) // as the restored tables are
	env.publish(t, "b")
	env.exec(t, `select setval('agent.log_position_seq', $1)`, dumped)
	_, head, err := env.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if until := value[int64](t, env, `select max(until) from agent.log_skip`); head < until {
		t.Errorf("the head of the log is %d, within what is passed over up to %d", head, until)
	}
	more := env.publish(t, "c")
	if page := env.read(t, topic.ReadParams{After: head}); page.Gap != nil || !slices.Equal(positions(page.Events), more) {
		t.Errorf("read %+v after %d, want %d", page, head, more)
	}
	if page := env.read(t, topic.ReadParams{After: dumped}); page.Gap != nil && page.Next < page.Gap.Until {
		t.Errorf("reading goes on from %d, before the end of the gap %+v", page.Next, page.Gap)
	}
}

// The same where nobody reads before the next publication.
func TestPublishersGoOnAfterARestoreThatSetsTheSequenceBack(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.publish(t, "a")
	dumped := value[int64](t, env, `select last_value from agent.log_position_seq`)
	env.exec(t, `delete from agent.log_server`)
	env.publish(t, "b")
	env.exec(t, `select setval('agent.log_position_seq', $1)`, dumped)
	more := env.publish(t, "c")
	if until := value[int64](t, env, `select max(until) from agent.log_skip`); more[0] <= until {
		t.Errorf("the position %d is within what is passed over up to %d", more[0], until)
	}
}
