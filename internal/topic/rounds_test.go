package topic_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/topic"
)

// A follower waits for events in one of the ways that there are, and returns the positions of those that it got.
type follower struct {
	name string
	next func(ctx context.Context) ([]int64, error)
}

// followers returns a follower of each kind, after a position. The subscription s wants everything.
func (env environment) followers(t *testing.T, after int64) []follower {
	t.Helper()
	stream := env.follow(t, topic.FollowParams{After: after})
	subscribed := env.stream(t, after)
	ofBatch := func(batch topic.Batch, err error) ([]int64, error) {
		all := make([]int64, len(batch.Entries))
		for i, e := range batch.Entries {
			all[i] = e.Position
		}
		return all, err
	}
	return []follower{
		{"a stream", func(ctx context.Context) ([]int64, error) { return ofBatch(stream.Next(ctx, busyTimeout)) }},
		{"a stream of a subscription", func(ctx context.Context) ([]int64, error) { return ofBatch(subscribed.Next(ctx, busyTimeout)) }},
		{"a read that waits", func(ctx context.Context) ([]int64, error) {
			page, err := env.Read(ctx, topic.ReadParams{After: after, Wait: busyTimeout})
			return positions(page.Events), err
		}},
		{"a read of a subscription that waits", func(ctx context.Context) ([]int64, error) {
			page, err := env.ReadSubscription(ctx, "s", topic.SubscribedParams{Wait: busyTimeout})
			return matched(page.Events), err
		}},
	}
}

// TestFollowersWaitWhenTheLogHasMovedOn has each kind of follower wait beside a gap in the log. Whatever they do at first, they ask the database for
// nothing in the end, no loop is held up, and then they get what is published.
func TestFollowersWaitWhenTheLogHasMovedOn(t *testing.T) {
	t.Parallel()
	for name, moveOn := range map[string]func(t *testing.T, env environment){
		"after a restart of the server": func(t *testing.T, env environment) {
			t.Helper()
			env.exec(t, `update agent.log_server set started_at = started_at - interval '1 day'`)
		},
		"after a crash, or in a restored database": func(t *testing.T, env environment) {
			t.Helper()
			env.exec(t, `delete from agent.log_server`)
		},
		"after retention": func(t *testing.T, env environment) {
			t.Helper()
			env.closeSegment(t)
			env.publish(t, "a")
			env.maintain(t)
			if env.drop(t) == 0 {
				t.Fatal("no segment was dropped")
			}
		},
	} {
		for when, publishes := range map[string]int{"before anything is published": 0, "after some publications": 3} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				env := environmentOn(t, pgtest.New(t).URL, func(cfg *topic.Config) { cfg.PollInterval = 50 * time.Millisecond })
				env.subscribe(t, everything(t))
				env.publish(t, "a", "b", "c")
				moveOn(t, env)
				env.run(t)
				for range publishes {
					env.publish(t, "a")
				}
				_, head, err := env.Bounds(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := env.Seek(t.Context(), "s", head); err != nil {
					t.Fatal(err)
				}
				all := env.followers(t, head)
				got := make([]chan []int64, len(all))
				ctx, cancel := context.WithTimeout(t.Context(), busyTimeout)
				defer cancel()
				for i, f := range all {
					got[i] = make(chan []int64, 1)
					go func() {
						events, err := f.next(ctx)
						for err == nil && len(events) == 0 {
							events, err = f.next(ctx)
						}
						got[i] <- events
					}()
				}
				env.awaitRest(t, len(all))
				if heldUp := env.database.Rounds.HeldUp(); len(heldUp) > 0 {
					t.Errorf("%v rounds were held up", heldUp)
				}
				want := env.publish(t, "a")
				for i, f := range all {
					if events := <-got[i]; !slices.Equal(events, want) {
						t.Errorf("%s got %d, want %d", f.name, events, want)
					}
				}
			})
		}
	}
}

// awaitRest waits until a number of followers have joined the tail, and the log was then read on a few times, which takes longer than loops race with signals.
func (env environment) awaitRest(t *testing.T, followers int) {
	t.Helper()
	await(t, "the followers to join", func() bool { return env.Followers() >= followers })
	passes := env.database.Rounds.Loop("following the log")
	before := passes.Total()
	await(t, "some passes", func() bool { return passes.Total() >= before+10 })
}
