package topic_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/topic"
)

// follow returns a stream that is closed with the test.
func (env environment) follow(t *testing.T, p topic.FollowParams) *topic.Stream {
	t.Helper()
	stream, err := env.Follow(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stream.Close)
	return stream
}

// next returns the positions of the next n events of a stream.
func next(t *testing.T, stream *topic.Stream, n int) (got []int64) {
	t.Helper()
	for len(got) < n {
		batch, err := stream.Next(t.Context(), busyTimeout)
		if err != nil {
			t.Fatal(err)
		}
		if len(batch.Entries) == 0 {
			t.Fatalf("got %d events, want %d", len(got), n)
		}
		for _, e := range batch.Entries {
			got = append(got, e.Position)
		}
	}
	return got
}

func TestStreamGetsWhatComesAfterItsPosition(t *testing.T) {
	t.Parallel()
	env := setup(t)
	want := env.publish(t, slices.Repeat([]string{"a"}, 10)...)
	stream := env.follow(t, topic.FollowParams{After: want[3]})
	want = append(want[4:], env.publish(t, "b", "c")...)
	if got := next(t, stream, len(want)); !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
	want = env.publish(t, "d")
	if got := next(t, stream, 1); !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
}

// TestStreamHasAtOnceWhatItsProcessPublishes has somebody hold the head, so that nothing can be read: what this process has appended right after the
// events that the stream has is known without.
func TestStreamHasAtOnceWhatItsProcessPublishes(t *testing.T) {
	t.Parallel()
	env := setup(t)
	stream := env.follow(t, topic.FollowParams{})
	last := env.publish(t, "a")
	next(t, stream, 1)
	env.exec(t, `begin`)
	env.exec(t, `select agent_private.hold_head()`)
	want := append(env.publish(t, "a", "b"), env.publish(t, "c")...)
	if got := next(t, stream, len(want)); !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
	if page := env.read(t, topic.ReadParams{After: last[0], Limit: 1}); !slices.Equal(positions(page.Events), want[:1]) {
		t.Errorf("a reader beside the stream gets %d, want %d", positions(page.Events), want[0])
	}
	env.exec(t, `rollback`)
}

func TestStreamPassesOverNoPlaceThatOthersHaveTaken(t *testing.T) {
	t.Parallel()
	env := setup(t)
	stream := env.follow(t, topic.FollowParams{})
	env.publish(t, "a")
	next(t, stream, 1)
	var want []int64
	for range 10 {
		env.exec(t, `begin`)
		earlier := value[int64](t, env, `select position from agent_service.append_log('{b}', '{"{}"}')`)
		want = append(want, earlier, env.publish(t, "c")[0], env.publish(t, "d")[0])
		env.exec(t, `commit`)
		want = append(want, env.publish(t, "e")[0])
	}
	if got := next(t, stream, len(want)); !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
}

func TestStreamGetsEventsAsTheyAreRead(t *testing.T) {
	t.Parallel()
	env := setup(t)
	stream := env.follow(t, topic.FollowParams{})
	env.publish(t, "a")
	next(t, stream, 1)
	publications := []topic.Publication{
		{Topic: "a", Event: json.RawMessage(`{"b":1.50,  "a":"\u00e9\n", "b":2.0}`)},
		{Topic: "a.b", Event: json.RawMessage(`{}`), Meta: json.RawMessage(`{"y":[1,2],"x":null}`), Key: "k", IdempotencyKey: "i"},
		{Topic: "a.b", Event: json.RawMessage(`{}`), Meta: json.RawMessage(`{"y":[1,2],"x":null}`), Key: "k", IdempotencyKey: "i"},
		{Topic: "a", Event: json.RawMessage(`{"n":3}`)},
	}
	published, err := env.Publish(t.Context(), publications)
	if err != nil || !published[2].Deduplicated {
		t.Fatalf("published %+v, %v", published, err)
	}
	again, err := env.Publish(t.Context(), publications[1:2])
	if err != nil || !again[0].Deduplicated {
		t.Fatalf("published %+v, %v", again, err)
	}
	last := env.publish(t, "end")[0]
	var got []topic.Event
	for len(got) == 0 || got[len(got)-1].Position < last {
		batch, err := stream.Next(t.Context(), busyTimeout)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.Entries {
			got = append(got, e.Event)
		}
	}
	want := environmentOn(t, env.url).read(t, topic.ReadParams{After: published[0].Position - 1}).Events
	for i := range want {
		want[i].PublishedAt = want[i].PublishedAt.UTC()
	}
	for i := range got {
		got[i].PublishedAt = got[i].PublishedAt.UTC()
	}
	if !reflect.DeepEqual(got, want) || len(want) != 4 {
		t.Errorf("the stream has\n%+v\na reader has\n%+v", got, want)
	}
}

func TestStreamWithoutEventsSaysHowFarItHasCome(t *testing.T) {
	t.Parallel()
	env := setup(t)
	stream := env.follow(t, topic.FollowParams{Filter: filter(t, []string{"a"}, "")})
	all := env.follow(t, topic.FollowParams{})
	last := env.publish(t, "b")[0]
	next(t, all, 1) // the tail has it
	batch, err := stream.Next(t.Context(), 0)
	if err != nil || len(batch.Entries) != 0 || batch.Next != last {
		t.Errorf("got %+v, %v, want that there is nothing up to %d", batch, err, last)
	}
}

// TestManyStreamsGetExactlyWhatMatches has streams with different filters come and go while events are published, here and elsewhere.
func TestManyStreamsGetExactlyWhatMatches(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	filters := []*match.Filter{
		nil, filter(t, []string{"a.*"}, ""), filter(t, []string{"*.x"}, ""), filter(t, nil, `{"n":[1]}`), filter(t, []string{"b.**"}, `{"n":[{"numeric":[">",1]}]}`),
	}
	const rounds = 60
	var published sync.WaitGroup
	for _, publisher := range []environment{env, other} {
		published.Go(func() {
			for i := range rounds {
				publisher.publish(t, "a.x", "b.y", "b.x", fmt.Sprintf("a.%d", i))
			}
		})
	}
	type seen struct {
		filter    *match.Filter
		after     int64
		positions []int64
		next      int64
	}
	var mu sync.Mutex
	var all []seen
	var streams sync.WaitGroup
	for range 40 {
		f := filters[random.IntN(len(filters))]
		streamsInTurn, stays := 1+random.IntN(5), 1+random.IntN(5)
		streams.Go(func() {
			_, head, err := env.Bounds(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			s := seen{filter: f, after: head, next: head}
			for range streamsInTurn { // one goes on where the other one ended
				stream, err := env.Follow(t.Context(), topic.FollowParams{After: s.next, Filter: f})
				if err != nil {
					t.Error(err)
					return
				}
				for range stays {
					var batch topic.Batch
					if batch, err = stream.Next(t.Context(), 200*time.Millisecond); err != nil {
						break
					}
					for _, e := range batch.Entries {
						s.positions = append(s.positions, e.Position)
					}
					s.next = batch.Next
				}
				stream.Close()
				if err != nil {
					t.Error(err)
					return
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, s)
		})
	}
	streams.Wait()
	published.Wait()
	var log []topic.Event
	for after := int64(0); ; {
		page := env.read(t, topic.ReadParams{After: after, Limit: 1000})
		if len(page.Events) == 0 {
			break
		}
		log, after = append(log, page.Events...), page.Next
	}
	for _, s := range all {
		var want []int64
		for _, e := range log {
			if e.Position > s.after && e.Position <= s.next && (s.filter == nil || s.filter.Matches(e.Topic, e.Event)) {
				want = append(want, e.Position)
			}
		}
		if !slices.Equal(s.positions, want) {
			t.Errorf("the stream after %d got %d, want %d", s.after, s.positions, want)
		}
	}
}

func TestStreamSlowerThanTheLogMissesNothing(t *testing.T) {
	t.Parallel()
	env := setup(t, func(c *topic.Config) { c.TailBytes = 20_000 })
	_, head, err := env.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slow, fast := env.follow(t, topic.FollowParams{After: head}), env.follow(t, topic.FollowParams{After: head})
	var want []int64
	for range 20 {
		positions := env.publish(t, slices.Repeat([]string{"a"}, 30)...)
		want = append(want, positions...)
		if got := next(t, fast, len(positions)); !slices.Equal(got, positions) {
			t.Fatalf("got %d, want %d", got, positions)
		}
	}
	if size := env.StreamStats().TailBytes; size > 20_000 {
		t.Errorf("the tail takes %d bytes", size)
	}
	if got := next(t, slow, len(want)); !slices.Equal(got, want) {
		t.Errorf("the slow stream got %d events, want %d", len(got), len(want))
	}
}

func TestBatchesOfStreamsAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	env := setup(t)
	stream := env.follow(t, topic.FollowParams{})
	var all []topic.Publication
	for _, size := range []int{40_000, 40_000, 40_000, 400_000, 40_000, 40_000} {
		all = append(all, topic.Publication{Topic: "a", Event: json.RawMessage(`{"text":"` + strings.Repeat("x", size) + `"}`)})
	}
	if _, err := env.Publish(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	for name, stream := range map[string]*topic.Stream{
		"of the tail":                  stream,
		"of the database":              env.follow(t, topic.FollowParams{}),
		"of the database, by a filter": env.follow(t, topic.FollowParams{Filter: filter(t, []string{"*"}, "")}),
	} {
		for total := 0; total < len(all); {
			batch, err := stream.Next(t.Context(), busyTimeout)
			if err != nil {
				t.Fatal(err)
			}
			bytes := 0
			for _, e := range batch.Entries {
				bytes += len(e.Event.Event)
			}
			if bytes > 96<<10 && len(batch.Entries) > 1 || len(batch.Entries) == 0 {
				t.Errorf("a batch %s has %d events of %d bytes", name, len(batch.Entries), bytes)
			}
			total += len(batch.Entries)
		}
	}
}

func TestEventIsEncodedOnceForAllStreams(t *testing.T) {
	t.Parallel()
	env := setup(t)
	streams := []*topic.Stream{env.follow(t, topic.FollowParams{}), env.follow(t, topic.FollowParams{Filter: filter(t, []string{"a"}, "")})}
	env.publish(t, "a")
	calls := 0
	for _, stream := range streams {
		batch, err := stream.Next(t.Context(), busyTimeout)
		if err != nil {
			t.Fatal(err)
		}
		got := batch.Entries[0].Encoded(func(e *topic.Entry) []byte { calls++; return []byte(e.Topic) })
		if string(got) != "a" {
			t.Errorf("got %s", got)
		}
	}
	if calls != 1 {
		t.Errorf("it was encoded %d times", calls)
	}
}

func TestStreamTellsAGapOnce(t *testing.T) {
	t.Parallel()
	env := setup(t)
	first := env.publish(t, "a", "a")
	env.closeSegment(t)
	want := env.publish(t, "b")
	if n := env.drop(t); n != 1 {
		t.Fatalf("%d segments were dropped, want 1", n)
	}
	stream := env.follow(t, topic.FollowParams{After: first[0]})
	batch, err := stream.Next(t.Context(), busyTimeout)
	if err != nil {
		t.Fatal(err)
	}
	if batch.Gap == nil || *batch.Gap != (topic.Gap{After: first[0], Until: first[1], Reason: topic.GapRetention}) {
		t.Errorf("got the gap %+v, want from %d until %d", batch.Gap, first[0], first[1])
	}
	if len(batch.Entries) == 0 {
		if batch, err = stream.Next(t.Context(), busyTimeout); err != nil || batch.Gap != nil {
			t.Fatalf("got %+v, %v", batch, err)
		}
	}
	if batch.Entries[0].Position != want[0] {
		t.Errorf("got %d, want %d", batch.Entries[0].Position, want)
	}
}

func TestDrainEndsStreams(t *testing.T) {
	t.Parallel()
	env := setup(t)
	stream := env.follow(t, topic.FollowParams{})
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Next(t.Context(), busyTimeout)
		ended <- err
	}()
	env.Drain()
	if err := <-ended; !errors.Is(err, topic.ErrDraining) {
		t.Errorf("got %v", err)
	}
}

func TestStreamAfterWhatIsNoPositionIsRefused(t *testing.T) {
	t.Parallel()
	env := setup(t)
	stream := env.follow(t, topic.FollowParams{})
	for range 2 { // by then the newest events are in memory
		env.publish(t, "a")
		next(t, stream, 1)
	}
	for _, after := range []int64{-1, 1 << 53} {
		_, err := env.Follow(t.Context(), topic.FollowParams{After: after})
		var invalid *topic.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "after" {
			t.Errorf("following after %d: %v, want an InvalidError of after", after, err)
		}
	}
	if open := env.StreamStats().Open; open != 1 {
		t.Errorf("%d streams are open, want 1", open)
	}
}

func TestStreamsReadFromTheDatabaseAFewAtATime(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.publish(t, "a")
	tx, err := env.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table agent.log in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	for range 10 {
		following.Go(func() {
			if stream, err := env.Follow(ctx, topic.FollowParams{}); err == nil {
				stream.Close()
			}
		})
	}
	await(t, "10 streams to be behind", func() bool { return env.StreamStats().Behind == 10 })
	timely, stop := context.WithTimeout(t.Context(), busyTimeout)
	defer stop()
	for range 100 { // others still get a connection
		if _, _, err := env.Bounds(timely); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	following.Wait()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestEventsThatTheLogHasLostAreServedNoMore has the log be as on a standby that lacks the latest transactions, and that is the primary now.
func TestEventsThatTheLogHasLostAreServedNoMore(t *testing.T) {
	t.Parallel()
	env := setup(t)
	stream := env.follow(t, topic.FollowParams{})
	kept := env.publish(t, "a", "a")
	lost := env.publish(t, "b", "b", "b")
	next(t, stream, 5)
	env.exec(t, `delete from agent.log where position >= $1`, lost[0])
	env.exec(t, `delete from agent.log_server`)
	want := []int64{value[int64](t, env, `select position from agent_service.append_log('{c}', '{"{}"}')`)}
	if got := next(t, stream, 1); !slices.Equal(got, want) {
		t.Fatalf("the stream gets %d, want %d", got, want)
	}
	want = append(want, env.publish(t, "d")...)
	next(t, stream, 1)
	if got := positions(env.read(t, topic.ReadParams{After: kept[0]}).Events); !slices.Equal(got, append(kept[1:], want...)) {
		t.Errorf("a reader gets %d, want %d", got, append(kept[1:], want...))
	}
	if got := next(t, env.follow(t, topic.FollowParams{After: kept[0]}), 3); !slices.Equal(got, append(kept[1:], want...)) {
		t.Errorf("a stream from earlier on gets %d, want %d", got, append(kept[1:], want...))
	}
}
