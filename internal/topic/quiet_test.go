package topic_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/queued/queued/internal/topic"
)

// A busyTopic fills the memory of the log, beside those who wait for something else.
type busyTopic struct {
	env    environment
	stream *topic.Stream // of all events: it gets one when it is in memory
}

// smallTail is so little memory that a hundred events push out all before them.
func smallTail(c *topic.Config) { c.TailBytes = 20_000 }

func (env environment) busyTopic(t *testing.T) busyTopic {
	t.Helper()
	_, head, err := env.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return busyTopic{env, env.follow(t, topic.FollowParams{After: head})}
}

// publish publishes, waits until the events are in memory, and returns their positions.
func (b busyTopic) publish(t *testing.T, topics ...string) []int64 {
	t.Helper()
	positions := b.env.publish(t, topics...)
	if got := next(t, b.stream, len(positions)); !slices.Equal(got, positions) {
		t.Fatalf("got %d, want %d", got, positions)
	}
	return positions
}

// flood pushes out what is in memory.
func (b busyTopic) flood(t *testing.T) (last int64) {
	t.Helper()
	for range 5 {
		last = b.publish(t, slices.Repeat([]string{"busy"}, 30)...)[29]
	}
	return last
}

// waiting is a quiet reader, which has begun to wait.
type waiting struct {
	name string
	got  chan []int64
	err  chan error
}

// outcome returns what one of them got.
func (w waiting) outcome(t *testing.T) []int64 {
	t.Helper()
	select {
	case got := <-w.got:
		return got
	case err := <-w.err:
		t.Errorf("%s: %v", w.name, err)
		return nil
	}
}

// waitQuietly starts one of each kind of those who wait for the topic quiet, at the head of the log. They return what they get first.
func (env environment) waitQuietly(t *testing.T) (all []waiting) {
	t.Helper()
	_, head, err := env.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	quiet := filter(t, []string{"quiet"}, "")
	env.put(t, topic.PutSubscriptionParams{Name: "s", Start: head, Filters: []topic.SubscriptionFilter{wants(t, "quiet", []string{"quiet"}, "")}})
	stream, subscribed := env.follow(t, topic.FollowParams{After: head, Filter: quiet}), env.stream(t)
	start := func(name string, wait func() ([]int64, error)) {
		w := waiting{name, make(chan []int64, 1), make(chan error, 1)}
		all = append(all, w)
		go func() {
			if got, err := wait(); err != nil {
				w.err <- err
			} else {
				w.got <- got
			}
		}()
	}
	start("a stream", func() ([]int64, error) {
		batch, err := stream.Next(t.Context(), busyTimeout)
		return positionsOf(batch.Entries), err
	})
	start("a stream of a subscription", func() ([]int64, error) {
		batch, err := subscribed.Next(t.Context(), busyTimeout)
		return positionsOf(batch.Entries), err
	})
	start("a read of the log", func() ([]int64, error) {
		page, err := env.Read(t.Context(), topic.ReadParams{After: head, Filter: quiet, Wait: busyTimeout})
		if len(page.Events) == 0 {
			return []int64{page.Next}, err
		}
		return positions(page.Events), err
	})
	start("a read of a subscription", func() ([]int64, error) {
		page, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{Wait: busyTimeout})
		return matched(page.Events), err
	})
	return all
}

// TestQuietReadersAreServedFromMemoryBesideABusyTopic has events of others push out all that was in memory when they began to wait. They get what they
// wait for all the same when the log cannot be read from the database.
func TestQuietReadersAreServedFromMemoryBesideABusyTopic(t *testing.T) {
	t.Parallel()
	env := setup(t, smallTail)
	busy := env.busyTopic(t)
	all := env.waitQuietly(t)
	await(t, "all to wait", func() bool { return env.Followers() == 1+len(all) })
	busy.flood(t)
	env.exec(t, `alter function agent_service.read_log_page rename to read_log_page_no_more`)
	want := busy.publish(t, "quiet")
	for _, w := range all {
		if got := w.outcome(t); !slices.Equal(got, want) {
			t.Errorf("%s got %d, want %d", w.name, got, want)
		}
	}
}

// TestReadThatWaitsInVainPassesOverWhatOthersPublish has a read end after others have published: the next one need not pass over that.
func TestReadThatWaitsInVainPassesOverWhatOthersPublish(t *testing.T) {
	t.Parallel()
	env := setup(t, smallTail)
	busy := env.busyTopic(t)
	all := env.waitQuietly(t)
	await(t, "all to wait", func() bool { return env.Followers() == 1+len(all) })
	last := busy.flood(t)
	env.Drain()
	for _, w := range all[:2] { // streams
		if err := <-w.err; !errors.Is(err, topic.ErrDraining) {
			t.Errorf("%s: %v", w.name, err)
		}
	}
	if got := all[2].outcome(t); !slices.Equal(got, []int64{last}) {
		t.Errorf("%s goes on after %d, want %d", all[2].name, got, last)
	}
	if got := all[3].outcome(t); len(got) > 0 {
		t.Errorf("%s got %d", all[3].name, got)
	}
	if position := env.get(t).Position; position != last {
		t.Errorf("the subscription has come to %d, want %d", position, last)
	}
}

// TestStreamsOfSubscriptionsAreWokenForWhatTheyWantAlone counts the wakes of streams, each of a subscription of its own.
func TestStreamsOfSubscriptionsAreWokenForWhatTheyWantAlone(t *testing.T) {
	t.Parallel()
	env := setup(t)
	busy := env.busyTopic(t)
	const n = 20
	got := make(chan []int64, n)
	for i := range n {
		name, wanted := fmt.Sprintf("s%d", i), fmt.Sprintf("wanted.%d", i)
		env.put(t, topic.PutSubscriptionParams{Name: name, Filters: []topic.SubscriptionFilter{
			wants(t, "one", []string{wanted}, ""), wants(t, "same", []string{wanted, "none"}, ""),
		}})
		stream, err := env.FollowSubscription(t.Context(), name, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stream.Close)
		go func() {
			for range 2 {
				batch, err := stream.Next(t.Context(), busyTimeout)
				if err != nil {
					t.Error(err)
				}
				got <- positionsOf(batch.Entries)
			}
		}()
	}
	await(t, "all to wait", func() bool { return env.Followers() == 1+n })
	for range 10 {
		busy.publish(t, "busy")
	}
	if wakes := env.Wakes(); wakes != 10 { // those of the stream of everything
		t.Errorf("streams were woken %d times, want 10", wakes)
	}
	for i := range n {
		want := busy.publish(t, fmt.Sprintf("wanted.%d", i))
		if got := <-got; !slices.Equal(got, want) {
			t.Errorf("got %d, want %d", got, want)
		}
		alone, err := env.Publish(t.Context(), []topic.Publication{{Topic: "alone", Event: []byte("{}"), Subscription: fmt.Sprintf("s%d", i)}})
		if err != nil {
			t.Fatal(err)
		}
		if got := <-got; !slices.Equal(got, []int64{alone[0].Position}) {
			t.Errorf("got %d, want what is for the subscription alone", got)
		}
	}
}

// TestStreamBehindTheLastEventThatWasDroppedGetsIt begins streams before each of the events that they want, of which some are in memory and some
// are no more.
func TestStreamBehindTheLastEventThatWasDroppedGetsIt(t *testing.T) {
	t.Parallel()
	env := setup(t, smallTail)
	busy := env.busyTopic(t)
	quiet := filter(t, []string{"quiet"}, "")
	env.follow(t, topic.FollowParams{After: busy.stream.Position(), Filter: quiet})
	await(t, "both to follow", func() bool { return env.Followers() == 2 })
	var wanted []int64
	for range 40 {
		wanted = append(wanted, busy.publish(t, "busy", "quiet", "busy")[1])
	}
	for i, position := range wanted {
		for _, after := range []int64{position - 1, position} {
			want := wanted[i:]
			if after == position {
				want = wanted[i+1:]
			}
			if got := next(t, env.follow(t, topic.FollowParams{After: after, Filter: quiet}), min(1, len(want))); len(want) > 0 && got[0] != want[0] {
				t.Errorf("after %d there is %d, want %d", after, got, want[0])
			}
		}
	}
}

// TestWhoAsksAgainHasMissedNothing has a reader wait twice. Between the two others push out all that was in memory.
func TestWhoAsksAgainHasMissedNothing(t *testing.T) {
	t.Parallel()
	env := setup(t, smallTail)
	busy := env.busyTopic(t)
	p := topic.ReadParams{After: busy.stream.Position(), Filter: filter(t, []string{"quiet"}, ""), Wait: busyTimeout}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := env.Read(ctx, p)
		ended <- err
	}()
	await(t, "it to wait", func() bool { return env.Followers() == 2 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	busy.flood(t)
	env.exec(t, `alter function agent_service.read_log_page rename to read_log_page_no_more`)
	want := busy.publish(t, "quiet")
	if page := env.read(t, p); !slices.Equal(positions(page.Events), want) {
		t.Errorf("got %d, want %d", positions(page.Events), want)
	}
	env.SetGroupLinger(false)
	busy.publish(t, "busy")
	await(t, "the group to go", func() bool { return env.Groups() == 1 })
}

// TestGroupsThatNobodyFollowsAreBounded opens and closes streams with large filters, each another one.
func TestGroupsThatNobodyFollowsAreBounded(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.busyTopic(t)
	const size, bound = 32 << 10, 2 << 20
	for i := range 4 * bound / size {
		stream, err := env.Follow(t.Context(), topic.FollowParams{Filter: filter(t, nil, fmt.Sprintf(`{"a":["%d%s"]}`, i, strings.Repeat("x", size)))})
		if err != nil {
			t.Fatal(err)
		}
		stream.Close()
	}
	if n := env.Groups(); n > 1+bound/size {
		t.Errorf("there are %d groups", n)
	}
}
