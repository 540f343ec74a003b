package topic_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/topic"
)

// stream returns a stream of the subscription s that is closed with the test.
func (env environment) stream(t *testing.T, after ...int64) *topic.SubscribedStream {
	t.Helper()
	var from *int64
	if len(after) > 0 {
		from = &after[0]
	}
	stream, err := env.FollowSubscription(t.Context(), "s", from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stream.Close)
	return stream
}

// streamed returns the next n entries of a stream.
func streamed(t *testing.T, stream *topic.SubscribedStream, n int) (got []*topic.Entry) {
	t.Helper()
	for len(got) < n {
		batch, err := stream.Next(t.Context(), busyTimeout)
		if err != nil {
			t.Fatal(err)
		}
		if len(batch.Entries) == 0 {
			t.Fatalf("got %d events, want %d", len(got), n)
		}
		got = append(got, batch.Entries...)
	}
	return got
}

func positionsOf(entries []*topic.Entry) []int64 {
	var all []int64
	for _, e := range entries {
		all = append(all, e.Position)
	}
	return all
}

func TestStreamOfASubscriptionGetsWhatTheSubscriptionGets(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, wants(t, "orders", []string{"order.*"}, ""), wants(t, "even", nil, `{"n":[0,2]}`))
	env.publish(t, "order.placed", "user.added", "user.gone")
	page := env.next(t, topic.SubscribedParams{Limit: 1})
	committed := env.commit(t, page.Cursor)
	stream, other := env.stream(t), env.stream(t, committed-1)
	if stream.Position() != committed || other.Position() != committed-1 {
		t.Errorf("the streams begin after %d and %d, committed is %d", stream.Position(), other.Position(), committed)
	}
	env.exec(t, `select agent.publish('x', '{}', _subscription => 's'), agent.publish('order.placed', '{}', _subscription => 'other')`)
	env.publish(t, "order.paid", "none", "user.moved")
	want := []string{"user.gone even", "x ", "order.paid even,orders", "user.moved even"}
	for stream, want := range map[*topic.SubscribedStream][]string{stream: want, other: append([]string{"order.placed even,orders"}, want...)} {
		var got []string
		for _, e := range streamed(t, stream, len(want)) {
			if e.Matched == nil {
				t.Errorf("%s is as if it were of no subscription", e.Topic)
			}
			got = append(got, e.Topic+" "+strings.Join(e.Matched, ","))
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if sub := env.get(t); sub.Position != committed {
		t.Errorf("streams have moved the position from %d to %d", committed, sub.Position)
	}
}

// TestFilterAddedWhileAStreamIsOpenMissesNothing is the promise of TestFilterAddedWhileSomebodyWaitsMissesNothing.
func TestFilterAddedWhileAStreamIsOpenMissesNothing(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	other.run(t)
	env.subscribe(t, wants(t, "none", []string{"none"}, ""))
	stream := env.stream(t)
	for i := range 20 {
		name := fmt.Sprintf("b%d", i)
		got := make(chan topic.Batch, 1)
		go func() {
			batch, err := stream.Next(t.Context(), busyTimeout)
			if err != nil {
				t.Error(err)
			}
			got <- batch
		}()
		env.publish(t, "unwanted")
		if err := other.PutFilter(t.Context(), "s", wants(t, name, []string{name}, "")); err != nil {
			t.Fatal(err)
		}
		want := other.publish(t, name)
		batch := <-got
		if !slices.Equal(positionsOf(batch.Entries), want) || !slices.Equal(batch.Entries[0].Matched, []string{name}) {
			t.Fatalf("round %d: got %+v, want %d", i, batch, want)
		}
	}
}

// TestFilterDeletedWhileAStreamIsOpenWantsNothingMore has what a deleted filter wanted follow it at once.
func TestFilterDeletedWhileAStreamIsOpenWantsNothingMore(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	env.subscribe(t, wants(t, "a", []string{"a"}, ""), wants(t, "b", []string{"b"}, ""))
	stream := env.stream(t)
	want := env.publish(t, "a", "b")
	if got := positionsOf(streamed(t, stream, 2)); !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
	if err := other.DeleteFilter(t.Context(), "s", "a"); err != nil {
		t.Fatal(err)
	}
	want = env.publish(t, "a", "b")[1:]
	if got := positionsOf(streamed(t, stream, 1)); !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
}

func TestStreamOfAPausedSubscriptionIsSilentUntilItIsResumed(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	env.subscribe(t, everything(t))
	stream, early := env.stream(t), env.get(t).Position
	if err := other.PauseSubscription(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	want := env.publish(t, "a")
	for _, stream := range []*topic.SubscribedStream{stream, env.stream(t)} {
		if batch, err := stream.Next(t.Context(), 10*time.Millisecond); err != nil || len(batch.Entries) != 0 || batch.Next != early {
			t.Errorf("paused: got %+v, %v", batch, err)
		}
	}
	got := make(chan []int64, 1)
	go func() { got <- positionsOf(streamed(t, stream, 1)) }()
	if err := other.ResumeSubscription(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if got := <-got; !slices.Equal(got, want) {
		t.Errorf("resumed: got %d, want %d", got, want)
	}
}

func TestStreamEndsWithItsSubscription(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	for _, isMadeAnew := range []bool{false, true} {
		env.subscribe(t, everything(t))
		stream := env.stream(t)
		ended := make(chan error, 1)
		if err := other.DeleteSubscription(t.Context(), "s", nil); err != nil {
			t.Fatal(err)
		}
		if isMadeAnew {
			other.subscribe(t, everything(t))
			env.publish(t, "a")
		}
		go func() {
			_, err := stream.Next(t.Context(), busyTimeout)
			ended <- err
		}()
		if err := <-ended; !errors.Is(err, topic.ErrSubscriptionNotFound) {
			t.Errorf("made anew %t: the stream ended with %v", isMadeAnew, err)
		}
	}
	if err := env.DeleteSubscription(t.Context(), "s", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := env.FollowSubscription(t.Context(), "s", nil); !errors.Is(err, topic.ErrSubscriptionNotFound) {
		t.Errorf("a new stream: %v", err)
	}
	open := env.StreamStats().Open
	for _, after := range []int64{-1, 1 << 53} {
		var invalid *topic.InvalidError
		if _, err := env.FollowSubscription(t.Context(), "s", &after); !errors.As(err, &invalid) || invalid.Field != "after" {
			t.Errorf("a stream after %d: %v", after, err)
		}
	}
	if now := env.StreamStats().Open; now != open {
		t.Errorf("%d streams are open, want %d", now, open)
	}
}

// awaitRenewal waits until the subscription s expires in more than 50 minutes.
func (env environment) awaitRenewal(t *testing.T) {
	t.Helper()
	await(t, "the subscription to be renewed", func() bool { return time.Until(*env.get(t).ExpiresAt) > 50*time.Minute })
}

func TestIdleStreamAndWaitingReadKeepTheirSubscriptionFromExpiring(t *testing.T) {
	t.Parallel()
	env := setup(t)
	hour := new(time.Hour)
	env.put(t, topic.PutSubscriptionParams{Name: "s", Filters: []topic.SubscriptionFilter{everything(t)}, ExpiresAfter: hour})
	age := func() {
		env.exec(t, `update agent.subscription set expires_at = now() + interval '1 minute'`)
	}
	stream := env.stream(t)
	age()
	env.awaitRenewal(t)
	stream.Close()

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = env.ReadSubscription(ctx, "s", topic.SubscribedParams{Wait: busyTimeout})
	}()
	env.awaitRenewal(t)
	for range 3 { // the read's own first look may have been one of them
		age()
		env.awaitRenewal(t)
	}
	cancel()
	<-done
}

// TestShortLivedSubscriptionLivesWhileItIsStreamed prunes as often as it can.
func TestShortLivedSubscriptionLivesWhileItIsStreamed(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.put(t, topic.PutSubscriptionParams{Name: "s", Filters: []topic.SubscriptionFilter{everything(t)}, ExpiresAfter: new(2 * time.Second)})
	stream := env.stream(t)
	first := *env.get(t).ExpiresAt
	for renewals := 0; renewals < 5; {
		if n := value[int](t, env, `select agent_service.prune_subscriptions()`); n != 0 {
			t.Fatal("it has expired")
		}
		if at := *env.get(t).ExpiresAt; at.After(first) {
			first = at
			renewals++
		}
	}
	want := env.publish(t, "a")
	if got := positionsOf(streamed(t, stream, 1)); !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
}

func TestWaitingReadNoticesWhatAnotherProcessChanges(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	env.subscribe(t, wants(t, "a", []string{"a"}, ""))
	want := env.publish(t, "a", "b")
	env.commit(t, env.next(t, topic.SubscribedParams{}).Cursor)
	for _, change := range []struct {
		doing string
		do    func(context.Context) error
		want  []int64
	}{
		{"seek", func(ctx context.Context) error { return other.seek(ctx, want[0]-1) }, want[:1]},
		{"filter", func(ctx context.Context) error { return other.PutFilter(ctx, "s", wants(t, "b", []string{"b"}, "")) }, nil},
		{"pause", func(ctx context.Context) error { return other.PauseSubscription(ctx, "s") }, nil},
		{"seek while it is paused", func(ctx context.Context) error { return other.seek(ctx, want[0]) }, nil},
		{"resume", func(ctx context.Context) error { return other.ResumeSubscription(ctx, "s") }, want[1:]},
	} {
		if len(change.want) == 0 {
			if err := change.do(t.Context()); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got := make(chan topic.SubscribedPage, 1)
		go func() {
			page, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{Wait: busyTimeout})
			if err != nil {
				t.Error(err)
			}
			got <- page
		}()
		if err := change.do(t.Context()); err != nil {
			t.Fatal(err)
		}
		page := <-got
		if !slices.Equal(matched(page.Events), change.want) {
			t.Errorf("%s: read %+v, want %d", change.doing, page, change.want)
		}
		if page.Cursor != "" {
			env.commit(t, page.Cursor)
		}
	}
}

func TestSlowStreamOfASubscriptionMissesNothingAndIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	env := setup(t, func(c *topic.Config) { c.TailBytes = 20_000 })
	env.subscribe(t, wants(t, "a", []string{"a"}, ""))
	stream := env.stream(t)
	var want []int64
	for i := range 12 {
		text := strings.Repeat("x", 20_000*(1+i%3)*(1+i%5))
		published, err := env.Publish(t.Context(), []topic.Publication{
			{Topic: "a", Event: json.RawMessage(`{"text":"` + text + `"}`)}, {Topic: "b", Event: json.RawMessage(`{"text":"` + text + `"}`)},
		})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, published[0].Position)
	}
	var got []int64
	for len(got) < len(want) {
		batch, err := stream.Next(t.Context(), busyTimeout)
		if err != nil {
			t.Fatal(err)
		}
		bytes := 0
		for _, e := range batch.Entries {
			bytes += len(e.Event.Event)
		}
		if bytes > 96<<10 && len(batch.Entries) > 1 || len(batch.Entries) == 0 {
			t.Errorf("a batch has %d events of %d bytes", len(batch.Entries), bytes)
		}
		got = append(got, positionsOf(batch.Entries)...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
}

func TestStreamsOfSubscriptionsReadFromTheDatabaseAFewAtATime(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, everything(t))
	env.publish(t, "a")
	tx, err := env.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	streams := make([]*topic.SubscribedStream, 10)
	for i := range streams {
		streams[i] = env.stream(t)
	}
	if _, err := tx.Exec(t.Context(), `lock table agent.log in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	var following sync.WaitGroup
	for _, stream := range streams {
		following.Go(func() { _, _ = stream.Next(ctx, busyTimeout) })
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

func TestStreamOfASubscriptionTellsAGapOnceAndDrains(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.subscribe(t, everything(t))
	first := env.publish(t, "a", "a")
	env.closeSegment(t)
	want := env.publish(t, "b")
	env.exec(t, `update agent.subscription set expires_after = '1 hour', expires_at = now() + interval '1 hour'`) // so it holds no segment
	if n := env.drop(t); n != 1 {
		t.Fatalf("%d segments were dropped, want 1", n)
	}
	stream := env.stream(t, first[0])
	batch, err := stream.Next(t.Context(), busyTimeout)
	if err != nil || batch.Gap == nil || *batch.Gap != (topic.Gap{After: first[0], Until: first[1], Reason: topic.GapRetention}) {
		t.Fatalf("got the gap %+v, %v, want from %d until %d", batch.Gap, err, first[0], first[1])
	}
	if len(batch.Entries) == 0 {
		if batch, err = stream.Next(t.Context(), busyTimeout); err != nil || batch.Gap != nil {
			t.Fatalf("got %+v, %v", batch, err)
		}
	}
	if batch.Entries[0].Position != want[0] {
		t.Errorf("got %d, want %d", batch.Entries[0].Position, want)
	}
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

// The matches of one filter come exactly once, in order, while another filter comes and goes, and streams go on where others ended.
func TestStreamsMissNothingWhileFiltersChange(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	other.run(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	env.subscribe(t, wants(t, "always", []string{"always"}, ""))
	const rounds = 40
	start := env.get(t).Position
	var want []int64
	var publishing, streaming sync.WaitGroup
	publishing.Go(func() {
		for range 3 * rounds {
			want = append(want, other.publish(t, "always")...)
		}
	})
	publishing.Go(func() {
		for i := range rounds {
			changer, publisher := env, other
			if i%2 == 0 {
				changer, publisher = other, env
			}
			if err := changer.PutFilter(t.Context(), "s", wants(t, "now", []string{"now"}, "")); err != nil {
				t.Error(err)
				return
			}
			publisher.publish(t, "now", "never")
			if err := changer.DeleteFilter(t.Context(), "s", "now"); err != nil {
				t.Error(err)
				return
			}
			publisher.publish(t, "now")
		}
	})
	all := make([][]int64, 6)
	for i := range all {
		env, stays := env, 1+random.IntN(20)
		if i%2 == 1 {
			env = other
		}
		streaming.Go(func() {
			for after, isOver := start, false; !isOver; {
				stream, err := env.FollowSubscription(t.Context(), "s", &after)
				if err != nil {
					t.Error(err)
					return
				}
				for n := 0; n < stays && !isOver; n++ {
					var batch topic.Batch
					if batch, err = stream.Next(t.Context(), busyTimeout); err != nil {
						t.Error(err)
						break
					}
					for _, e := range batch.Entries {
						switch e.Topic {
						case "always":
							all[i] = append(all[i], e.Position)
						case "end":
							isOver = true
						case "never":
							t.Errorf("stream %d got what no filter ever wanted", i)
						}
					}
				}
				after = stream.Position()
				stream.Close()
				if isOver = isOver || err != nil; isOver {
					return
				}
			}
		})
	}
	publishing.Wait()
	env.exec(t, `select agent.publish('end', '{}', _subscription => 's')`)
	streaming.Wait()
	for i, got := range all {
		if !slices.Equal(got, want) {
			t.Errorf("stream %d got %d, want %d", i, got, want)
		}
	}
}

// TestFiltersAreLoadedOnceForAllWhoNeedThem holds the first who loads them.
func TestFiltersAreLoadedOnceForAllWhoNeedThem(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.subscribe(t, wants(t, "a", []string{"a"}, ""))
	env.publish(t, "a", "b")
	tx, err := env.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table agent.subscription_filter in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	const waiting = `select count(*) from pg_locks l where not l.granted and l.relation = 'agent.subscription_filter'::regclass
		and l.database = (select d.oid from pg_database d where d.datname = current_database())`
	pages := make(chan topic.SubscribedPage)
	const readers = 20
	for range readers {
		go func() {
			page, err := env.ReadSubscription(t.Context(), "s", topic.SubscribedParams{})
			if err != nil {
				t.Error(err)
			}
			pages <- page
		}()
	}
	for deadline := time.Now().Add(busyTimeout); value[int](t, env, waiting) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("nobody loads filters")
		}
	}
	timely, stop := context.WithTimeout(t.Context(), busyTimeout)
	defer stop()
	for range 100 { // others still get a connection
		if _, _, err := env.Bounds(timely); err != nil {
			t.Fatal(err)
		}
	}
	if n := value[int](t, env, waiting); n != 1 {
		t.Errorf("%d load the filters, want 1", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range readers {
		if page := <-pages; len(page.Events) != 1 {
			t.Errorf("read %+v", page)
		}
	}
}
