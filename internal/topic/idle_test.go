package topic_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/internal/topic"
)

// subscribeAtHead creates the subscription s, of the topic quiet, at the head of the log, and waits until its state and its filters are known here.
func (env environment) subscribeAtHead(t *testing.T) (head int64) {
	t.Helper()
	env.RelyOnStates()
	_, head, err := env.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	env.put(t, topic.PutSubscriptionParams{Name: "s", Start: head, Filters: []topic.SubscriptionFilter{wants(t, "quiet", []string{"quiet"}, "")}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := env.ReadSubscription(ctx, "s", topic.SubscribedParams{Wait: busyTimeout})
		ended <- err
	}()
	await(t, "the state of the subscription to be known", func() bool {
		position, isKnown := env.KnowsState("s")
		return isKnown && position == head && env.KnowsFilters(1)
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return head
}

// TestIdleReadOfASubscriptionAsksTheDatabaseForNothing takes away what reads ask for. Nothing is published, so they have nothing to ask.
func TestIdleReadOfASubscriptionAsksTheDatabaseForNothing(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.busyTopic(t) // somebody follows the log
	env.subscribeAtHead(t)
	functions := []string{"begin_read", "end_read", "read_filters", "read_log_page"}
	for _, name := range functions {
		env.exec(t, `alter function agent_service.`+name+` rename to `+name+`_no_more`)
	}
	first := env.next(t, topic.SubscribedParams{Wait: time.Millisecond})
	ahead := env.next(t, topic.SubscribedParams{Wait: time.Millisecond, After: first.Cursor})
	for _, name := range functions {
		env.exec(t, `alter function agent_service.`+name+`_no_more rename to `+name)
	}
	for _, page := range []topic.SubscribedPage{first, ahead} {
		if len(page.Events) > 0 || page.Cursor == "" || page.Lag != (topic.Lag{}) {
			t.Errorf("got %+v", page)
		}
	}
	env.commit(t, ahead.Cursor)
	want := env.publish(t, "quiet")
	if got := env.next(t, topic.SubscribedParams{Wait: busyTimeout}); !slices.Equal(matched(got.Events), want) {
		t.Errorf("got %d, want %d", matched(got.Events), want)
	}
}

// TestIdleStreamOfASubscriptionAsksTheDatabaseForNothing takes away what streams ask for before they say that there is nothing. How far they have come
// is what was asked for before that: filters may have changed since.
func TestIdleStreamOfASubscriptionAsksTheDatabaseForNothing(t *testing.T) {
	t.Parallel()
	env := setup(t)
	busy := env.busyTopic(t)
	head := env.subscribeAtHead(t)
	stream := env.stream(t)
	env.exec(t, `alter function agent_service.watch_subscriptions rename to watch_subscriptions_no_more`)
	await(t, "the last statement to end", func() bool { // of those that were under way
		return value[int64](t, env, `select count(*) from pg_stat_activity a where a.datname = current_database() and a.state = 'active' and a.query like '%watch_subscriptions(%' and a.pid <> pg_backend_pid()`) == 0
	})
	last := busy.publish(t, "busy")[0]
	batch, err := stream.Next(t.Context(), time.Millisecond)
	if err != nil || len(batch.Entries) > 0 || batch.Next != head {
		t.Errorf("got %+v, %v, want nothing up to %d", batch, err, head)
	}
	env.exec(t, `alter function agent_service.watch_subscriptions_no_more rename to watch_subscriptions`)
	await(t, "the stream to come to the head of the log", func() bool {
		batch, err := stream.Next(t.Context(), time.Millisecond)
		if err != nil || len(batch.Entries) > 0 {
			t.Fatalf("got %+v, %v", batch, err)
		}
		return batch.Next == last
	})
}

// TestCursorsOfIdleReadsFollowWhatWasCommitted commits the cursor of each page, also of those without events, which were not asked for.
func TestCursorsOfIdleReadsFollowWhatWasCommitted(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.busyTopic(t)
	env.subscribeAtHead(t)
	for range 30 {
		want := env.publish(t, "quiet")
		page := env.next(t, topic.SubscribedParams{Wait: busyTimeout})
		if !slices.Equal(matched(page.Events), want) {
			t.Fatalf("got %d, want %d", matched(page.Events), want)
		}
		env.commit(t, page.Cursor)
		for range 2 {
			env.commit(t, env.next(t, topic.SubscribedParams{Wait: time.Millisecond}).Cursor)
		}
	}
}
