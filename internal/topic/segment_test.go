package topic_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/topic"
)

// maintain takes all steps of upkeep that are due.
func (env environment) maintain(t *testing.T) {
	t.Helper()
	for range 20 {
		if !env.upkeepStep(t, `select agent_service.maintain_log() is not null`) {
			return
		}
	}
	t.Fatal("the upkeep of segments does not come to an end")
}

// upkeepStep takes a step of upkeep, as soon as no service is taking one, and returns what it returns.
func (env environment) upkeepStep(t *testing.T, sql string) (isDone bool) {
	t.Helper()
	for deadline := time.Now().Add(busyTimeout); ; {
		err := env.sql.QueryRow(t.Context(), sql).Scan(&isDone)
		switch {
		case err == nil:
			return isDone
		case errorOf(err).Code != "55P03" || time.Now().After(deadline):
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// closeSegment closes the open segment, as if it were old.
func (env environment) closeSegment(t *testing.T) {
	t.Helper()
	env.exec(t, `update agent.log_segment set opened_at = now() - interval '2 hours' where state = 'open'`)
	env.maintain(t)
}

// drop drops all segments that are closed, as if they had been for long, and returns how many are gone: the service may have dropped some of them.
func (env environment) drop(t *testing.T) int {
	t.Helper()
	const closed = `select count(*) from agent.log_segment where state = 'closed'`
	before := value[int](t, env, closed)
	env.exec(t, `update agent.log_segment set closed_at = now() - interval '200 hours' where state = 'closed'`)
	for env.upkeepStep(t, `select agent_service.drop_log_segment() is not null`) {
		continue
	}
	return before - value[int](t, env, closed)
}

func segmentOf(position int64) int64 { return position >> 32 }

func TestSegmentsAreClosedAndDroppedInTimeAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	first := env.publish(t, "a")[0]
	env.closeSegment(t)
	second := env.publish(t, "a")[0]
	env.exec(t, `update agent.log_segment set opened_at = opened_at + interval '30 days', closed_at = closed_at + interval '30 days'`)
	env.maintain(t)
	env.exec(t, `update agent.log_segment set opened_at = opened_at - interval '2 hours', closed_at = closed_at - interval '200 hours'`) // so much time passes
	env.maintain(t)
	if !env.upkeepStep(t, `select agent_service.drop_log_segment() is not null`) {
		t.Errorf("the segment of %d was not dropped", first)
	}
	if third := env.publish(t, "a")[0]; segmentOf(third) == segmentOf(second) {
		t.Error("the open segment was not closed")
	}
}

func TestSegmentsThatWereDroppedAreForgottenAndTheGapIsTold(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	first := env.publish(t, "a")[0]
	env.closeSegment(t)
	env.publish(t, "a")
	env.closeSegment(t)
	last := env.publish(t, "a")[0]
	env.closeSegment(t)
	if n := env.drop(t); n != 3 {
		t.Errorf("%d segments were dropped, want 3", n)
	}
	if n := value[int](t, env, `select count(*) from agent.log_segment where state = 'dropped'`); n != 1 {
		t.Errorf("%d segments that were dropped are remembered, want 1", n)
	}
	if until := value[int64](t, env, `select coalesce(agent_private.log_gap($1, agent_private.log_head()), 0)`, first); until != last {
		t.Errorf("the gap after %d ends at %d, want %d", first, until, last)
	}
}

func TestSegmentIsClosedWhenItIsOldOrLarge(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	first := env.publish(t, "a")[0]
	env.maintain(t)
	if second := env.publish(t, "a")[0]; segmentOf(second) != segmentOf(first) {
		t.Error("a young and small segment was closed")
	}
	env.closeSegment(t)
	third := env.publish(t, "a")[0]
	if segmentOf(third) != segmentOf(first)+1 {
		t.Errorf("after an old segment the next event is in segment %d, want %d", segmentOf(third), segmentOf(first)+1)
	}
	if _, err := env.PutSettings(t.Context(), topic.SettingsChange{SegmentSize: new(int64(1000))}, nil); err != nil {
		t.Fatal(err)
	}
	env.publish(t, slices.Repeat([]string{"a"}, 1000)...)
	env.maintain(t)
	fourth := env.publish(t, "a")[0]
	if segmentOf(fourth) != segmentOf(third)+1 {
		t.Errorf("after a large segment the next event is in segment %d, want %d", segmentOf(fourth), segmentOf(third)+1)
	}
	if page := env.read(t, topic.ReadParams{Limit: 1000}); len(page.Events) != 1000 || page.Gap != nil {
		t.Errorf("%d events are read across segments, gap %v", len(page.Events), page.Gap)
	}
	if got := value[string](t, env, `select string_agg(state || ' ' || coalesce(events::text, '-'), ', ' order by number) from agent.log_segment where number < $1 + 4`, segmentOf(first)); got != "closed 2, closed 1001, open -, ahead -" {
		t.Errorf("the segments are %q", got)
	}
}

func TestEmptySegmentStaysOpen(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.closeSegment(t)
	env.closeSegment(t)
	if n := value[int](t, env, `select count(*) from agent.log_segment where state = 'closed'`); n != 0 {
		t.Errorf("%d segments without events were closed", n)
	}
}

func TestDroppedEventsAreAGapExactlyOnce(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	first := env.publish(t, "a", "a", "a")
	env.closeSegment(t)
	second := env.publish(t, "b", "b")
	env.closeSegment(t)
	third := env.publish(t, "c")
	if n := env.drop(t); n != 2 {
		t.Fatalf("%d segments were dropped, want 2", n)
	}
	for _, test := range []struct {
		after int64
		gap   *topic.Gap
	}{
		{0, &topic.Gap{After: 0, Until: second[1], Reason: topic.GapRetention}},
		{first[1], &topic.Gap{After: first[1], Until: second[1], Reason: topic.GapRetention}},
		{first[2], &topic.Gap{After: first[2], Until: second[1], Reason: topic.GapRetention}},
		{second[0], &topic.Gap{After: second[0], Until: second[1], Reason: topic.GapRetention}},
		{second[1], nil}, // who had read all of it has missed nothing
	} {
		page := env.read(t, topic.ReadParams{After: test.after})
		if (page.Gap == nil) != (test.gap == nil) || page.Gap != nil && *page.Gap != *test.gap || !slices.Equal(positions(page.Events), third) {
			t.Errorf("after %d: the gap is %v and %d follow; want %v and %d", test.after, page.Gap, positions(page.Events), test.gap, third)
		}
		if again := env.read(t, topic.ReadParams{After: page.Next}); again.Gap != nil || len(again.Events) != 0 {
			t.Errorf("after %d: the next page is %+v", test.after, again)
		}
	}
	if bounds, _, err := env.Bounds(t.Context()); err != nil || segmentOf(bounds) != segmentOf(third[0]) {
		t.Errorf("the first position is %d, %v", bounds, err)
	}
	if n := value[int](t, env, `select count(*) from pg_class where relname in ('log_1', 'log_2')`); n != 0 {
		t.Errorf("%d partitions are left", n)
	}
}

func TestRetentionKeepsWhatIsYoung(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.publish(t, "a")
	env.closeSegment(t)
	if n := value[int](t, env, `select count(agent_service.drop_log_segment())`); n != 0 {
		t.Error("a segment was dropped within retention")
	}
	env.exec(t, `update agent.log_segment set closed_at = now() - interval '25 hours' where state = 'closed'`)
	if _, err := env.PutSettings(t.Context(), topic.SettingsChange{Retention: new(30 * time.Hour)}, nil); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, env, `select count(agent_service.drop_log_segment())`); n != 0 {
		t.Error("a segment was dropped within the retention that was set")
	}
	if _, err := env.PutSettings(t.Context(), topic.SettingsChange{Retention: new(24 * time.Hour)}, nil); err != nil {
		t.Fatal(err)
	}
	if n := value[int](t, env, `select count(agent_service.drop_log_segment())`); n != 1 {
		t.Error("a segment was not dropped after retention")
	}
}

func TestDroppingDoesNotWaitInFrontOfPublishers(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.publish(t, "a")
	env.closeSegment(t)
	env.exec(t, `update agent.log_segment set closed_at = now() - interval '200 hours' where state = 'closed'`)
	tx, err := env.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent_service.append_log('{held}', '{"{}"}')`); err != nil {
		t.Fatal(err)
	}
	other := environmentOn(t, env.url)
	_, err = other.sql.Exec(t.Context(), `select agent_service.drop_log_segment()`)
	if errorOf(err).Code != "55P03" {
		t.Errorf("beside a publisher: %v, want lock_not_available", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := env.drop(t); n != 1 {
		t.Errorf("%d segments were dropped afterwards, want 1", n)
	}
}

func TestPublishersAndReadersGoOnWhileSegmentsChange(t *testing.T) {
	t.Parallel()
	env := setup(t)
	var isDone atomic.Bool
	var publishing sync.WaitGroup
	var mu sync.Mutex
	var published []int64
	for range 4 {
		publishing.Go(func() {
			for !isDone.Load() {
				one, err := env.Publish(t.Context(), []topic.Publication{{Topic: "a", Event: []byte(`{}`)}})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				published = append(published, one[0].Position)
				mu.Unlock()
			}
		})
	}
	var seen []int64
	after := int64(0)
	for range 8 {
		for range 10 {
			page := env.read(t, topic.ReadParams{After: after, Wait: busyTimeout})
			seen, after = append(seen, positions(page.Events)...), page.Next
		}
		env.exec(t, `update agent.log_segment set opened_at = now() - interval '2 hours' where state = 'open'`)
		env.upkeepStep(t, `select agent_service.maintain_log() is not null`)
	}
	isDone.Store(true)
	publishing.Wait()
	for {
		page := env.read(t, topic.ReadParams{After: after})
		if len(page.Events) == 0 {
			break
		}
		seen, after = append(seen, positions(page.Events)...), page.Next
	}
	slices.Sort(published)
	if !slices.Equal(seen, published) {
		lost, twice := differences(seen, published)
		t.Errorf("of %d events %d were lost and %d seen twice", len(published), lost, twice)
	}
	if n := segmentOf(seen[len(seen)-1]) - segmentOf(seen[0]); n < 3 {
		t.Errorf("the segment changed %d times only", n)
	}
}

func TestNewTimelineBeginsANewSegment(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	before := env.publish(t, "a")[0]
	// As a promoted standby finds it.
	env.exec(t, `delete from agent.log_server`)
	env.exec(t, `select agent.publish('b', '{}')`)
	page := env.read(t, topic.ReadParams{After: before})
	if len(page.Events) != 1 || page.Gap != nil {
		t.Fatalf("after a change of the timeline %+v follows %d, gap %v", page.Events, before, page.Gap)
	}
	began := segmentOf(page.Events[0].Position)
	if clock := value[int64](t, env, `select agent_private.position_of(clock_timestamp() + '14 minutes')`); page.Events[0].Position < clock {
		t.Errorf("the log goes on at %d, before the place of the clock, %d", page.Events[0].Position, clock)
	}
	env.maintain(t)
	if n := value[int](t, env, `select count(*) from agent.log_segment where number > $1 and state = 'ahead'`, began); n != 4 {
		t.Errorf("%d segments are ahead, want 4", n)
	}
}

// A process manager may start a server that fails again and again.
func TestStartsInALoopDoNotUseUpSegments(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	before := env.publish(t, "a")[0]
	env.exec(t, `delete from agent.log_server; select agent.publish('a', '{}')`)
	first := value[int64](t, env, `select last_value from agent.log_position_seq`)
	env.exec(t, `do $$
		declare
			_last int8 = (select last_value from agent.log_position_seq);
		begin
			for _i in 1 .. 1000 loop
				perform pg_sleep(0.0001); -- a start takes longer
				delete from agent.log_server;
				perform agent_private.advance_log();
				if (select last_value from agent.log_position_seq) <= _last then
					raise exception 'start % goes on at % after %', _i, (select last_value from agent.log_position_seq), _last;
				end if;
				_last = (select last_value from agent.log_position_seq);
			end loop;
		end $$`)
	last := value[int64](t, env, `select last_value from agent.log_position_seq`)
	if n := segmentOf(last) - segmentOf(first); n > 3 { // the test may take minutes on a busy machine
		t.Errorf("1,000 starts used up %d segments", n)
	}
	env.exec(t, `select agent.publish('a', '{}')`)
	if page := env.read(t, topic.ReadParams{After: before}); len(page.Events) != 2 || page.Gap != nil {
		t.Errorf("%d events follow, gap %v; want 2", len(page.Events), page.Gap)
	}
}

func TestLogGoesOnWhenTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `select setval('agent.log_position_seq', agent_private.position_of(clock_timestamp() + interval '30 days'))`)
	before := env.publish(t, "a")[0]
	env.exec(t, `delete from agent.log_server`)
	if after := env.publish(t, "a")[0]; segmentOf(after) != segmentOf(before)+2 {
		t.Errorf("the log goes on in segment %d after %d, want the one after the next", segmentOf(after), segmentOf(before))
	}
}

// As many segments as there is time for can be closed, so that a copy, which goes on by the clock, is beyond all of them.
func TestSegmentsAreNotClosedFasterThanTheClock(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `delete from agent.log_server`)
	if _, err := env.PutSettings(t.Context(), topic.SettingsChange{SegmentSize: new(int64(1000)), SegmentInterval: new(time.Minute)}, nil); err != nil {
		t.Fatal(err)
	}
	env.publish(t, slices.Repeat([]string{"a"}, 1000)...)
	open := func() int64 { return segmentOf(env.publish(t, "a")[0]) }
	first := open()
	env.exec(t, `update agent.log_segment set opened_at = opened_at - interval '2 minutes'`)
	env.maintain(t)
	if now := open(); now != first {
		t.Errorf("segment %d, which is ahead of the clock, was closed after two minutes", first)
	}
	env.exec(t, `update agent.log_segment set opened_at = opened_at - interval '13 minutes'`)
	env.maintain(t)
	if now := open(); now != first+1 {
		t.Errorf("after a quarter of an hour the log is in segment %d, want %d", now, first+1)
	}
}

func TestPositionsOfTheClockFitIntoNumbers(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	for at, want := range map[string]int64{
		"2025-12-31 23:59:59Z": 0,
		"2026-01-01 00:00:00Z": 0,
		"2026-01-01 00:22:30Z": 1<<32 + 1<<30,
		"2082-01-01 00:00:00Z": 1963584 << 32,
		"2100-01-01 00:00:00Z": 0,
	} {
		if got := value[int64](t, env, `select agent_private.position_of($1::text::timestamptz)`, at); got != want || got >= 1<<53 {
			t.Errorf("the position of %s is %d, want %d", at, got, want)
		}
	}
}

// A reader who comes first has seen positions that a crashed or lost server had given out.
func TestPositionsFromBeforeARestartAreBelowTheHead(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.publish(t, "a")
	env.exec(t, `delete from agent.log_server`)
	env.exec(t, `select setval('agent.log_position_seq', last_value - 1) from agent.log_position_seq`)
	_, head, err := env.Bounds(t.Context())
	if err != nil || segmentOf(head) < 1000 {
		t.Errorf("the head is %d in segment %d, %v; want the segment of the clock", head, segmentOf(head), err)
	}
	env.exec(t, `set default_transaction_read_only = on`)
	env.exec(t, `select agent.log_bounds()`)
}

func TestMissingSegmentIsMadeByThePublisher(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	before := env.publish(t, "a")[0]
	env.exec(t, `select setval('agent.log_position_seq', ($1::int8 >> 32) + 40 << 32)`, before)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := env.Publish(t.Context(), []topic.Publication{{Topic: "b", Event: []byte(`{}`)}}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	env.exec(t, `select agent.publish('c', '{}')`)
	if page := env.read(t, topic.ReadParams{After: before}); len(page.Events) != 9 {
		t.Errorf("%d events follow, want 9", len(page.Events))
	}
}

func TestSettingsOfTheLogAreChecked(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	was, err := env.Settings(t.Context())
	if err != nil || was.Retention != 24*time.Hour || was.Hold != 168*time.Hour || was.SegmentInterval != time.Hour || was.SegmentSize != 10_000_000 || was.Version != 1 {
		t.Fatalf("the settings are %+v, %v", was, err)
	}
	for field, change := range map[string]topic.SettingsChange{
		"retention":        {Retention: new(time.Second)},
		"hold":             {Hold: new(time.Hour)},
		"segment_interval": {SegmentInterval: new(time.Duration(0))},
		"segment_size":     {SegmentSize: new(int64(1))},
	} {
		_, err := env.PutSettings(t.Context(), change, nil)
		var invalid *topic.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v, want an InvalidError of it", field, err)
		}
	}
	if _, err := env.PutSettings(t.Context(), topic.SettingsChange{}, []int64{7}); !errors.Is(err, topic.ErrStale) {
		t.Errorf("with another version: %v, want ErrStale", err)
	}
	if is, err := env.PutSettings(t.Context(), topic.SettingsChange{Retention: new(48 * time.Hour)}, []int64{7, 1}); err != nil || is.Retention != 48*time.Hour || is.Version != 2 || is.Hold != was.Hold {
		t.Errorf("changed to %+v, %v", is, err)
	}
}

// TestSegmentDroppedUnderAReaderIsToldAsAGap has a read begin while its segment is being dropped.
func TestSegmentDroppedUnderAReaderIsToldAsAGap(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	first := env.publish(t, "a", "a")
	env.closeSegment(t)
	want := env.publish(t, "b")
	env.exec(t, `update agent.log_segment set closed_at = now() - interval '200 hours' where state = 'closed'`)
	dropping, err := env.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dropping.Rollback(t.Context()) }()
	if n := value[*int64](t, env, `select agent_service.drop_log_segment()`); n == nil {
		t.Fatal("nothing was dropped")
	}
	read := make(chan topic.Page, 1)
	go func() {
		page, err := env.Read(t.Context(), topic.ReadParams{After: first[0]})
		if err != nil {
			t.Error(err)
		}
		read <- page
	}()
	for deadline := time.Now().Add(busyTimeout); value[int](t, env, `select count(*) from pg_locks where not granted and relation = 'agent.log'::regclass`) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the read does not wait for the segment")
		}
	}
	if err := dropping.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	page := <-read
	if page.Gap == nil || *page.Gap != (topic.Gap{After: first[0], Until: first[1], Reason: topic.GapRetention}) || !slices.Equal(positions(page.Events), want) {
		t.Errorf("read %d with the gap %+v, want %d and one from %d until %d", positions(page.Events), page.Gap, want, first[0], first[1])
	}
}

// TestWhoFollowsAProcessThatWasCutOffIsToldTheGap has the log go on, and lose a segment, while a process cannot read it.
func TestWhoFollowsAProcessThatWasCutOffIsToldTheGap(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	env.put(t, topic.PutSubscriptionParams{Name: "s", Filters: []topic.SubscriptionFilter{everything(t)}, ExpiresAfter: new(time.Hour)})
	stream, subscribed := env.follow(t, topic.FollowParams{}), env.stream(t)
	last := env.publish(t, "a")[0]
	next(t, stream, 1) // the newest events are in memory
	streamed(t, subscribed, 1)
	env.exec(t, `alter function agent_service.read_log_page rename to out_of_reach`)
	lost := other.publish(t, "lost", "lost")
	env.closeSegment(t)
	want := other.publish(t, "b")
	if n := env.drop(t); n != 1 {
		t.Fatalf("%d segments were dropped, want 1", n)
	}
	env.exec(t, `alter function agent_service.out_of_reach rename to read_log_page`)
	for name, next := range map[string]func(context.Context, time.Duration) (topic.Batch, error){"stream": stream.Next, "stream of a subscription": subscribed.Next} {
		var got []int64
		var gap *topic.Gap
		for len(got) < len(want) {
			batch, err := next(t.Context(), busyTimeout)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if batch.Gap != nil {
				gap = batch.Gap
			}
			got = append(got, positionsOf(batch.Entries)...)
		}
		if gap == nil || *gap != (topic.Gap{After: last, Until: lost[1], Reason: topic.GapRetention}) || !slices.Equal(got, want) {
			t.Errorf("%s: got %d with the gap %+v, want %d and one from %d until %d", name, got, gap, want, last, lost[1])
		}
	}
}

// Their snapshots do not show that another session has moved the log on.
func TestTransactionsWithOldSnapshotsDoNotMoveTheLogOnAgain(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			env := setupIdle(t)
			before := env.publish(t, "a")[0]
			env.exec(t, `delete from agent.log_server`) // as after a restart
			old := make([]*pgx.Conn, 3)
			for i := range old {
				old[i] = pgtest.Connect(t, env.url)
				for _, statement := range []string{`begin isolation level ` + isolation, `select count(*) from agent.log_settings`, `select agent.publish('old', '{}')`} {
					if _, err := old[i].Exec(t.Context(), statement); err != nil {
						t.Fatal(err)
					}
				}
			}
			first := env.publish(t, "a")[0]
			want := []int64{first}
			for i, conn := range old {
				_, err := conn.Exec(t.Context(), `commit`)
				switch {
				case err == nil && isolation == "repeatable read":
					want = append(want, first+int64(len(want)))
				case isolation == "serializable" && errorOf(err).Code == "40001":
					if _, err := conn.Exec(t.Context(), `begin isolation level serializable; select agent.publish('old', '{}'); commit`); err != nil {
						t.Errorf("serializable transaction %d, tried again: %v", i, err)
					}
					want = append(want, first+int64(len(want)))
				default:
					t.Errorf("transaction %d: %v", i, err)
				}
				want = append(want, env.publish(t, "a")[0])
			}
			page := env.read(t, topic.ReadParams{After: before})
			got := make([]int64, len(page.Events))
			for i, e := range page.Events {
				got[i] = e.Position
			}
			if !slices.Equal(got, want) {
				t.Errorf("the log has %d, want %d", got, want)
			}
			if n := value[int](t, env, `select count(*) from agent.log_skip`); n != 1 {
				t.Errorf("the log was moved on %d times, want once", n)
			}
		})
	}
}
