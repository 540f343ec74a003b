package topic

import (
	"context"
	"math"
	"time"

	"github.com/queued/queued/internal/rounds"
)

// A SubscribedStream follows the events of a subscription. It does not move the position of the subscription. While it is open the subscription does
// not expire. It is for one goroutine.
type SubscribedStream struct {
	subscribedReader
	name     string
	state    subscriptionState // of which ID and Version are those that set and isPaused belong to
	isPaused bool
	reached  int64 // the end of the batches that Next has returned
}

// FollowSubscription returns a SubscribedStream of the events after a position; nil: after that of the subscription. Close it. It fails with
// ErrSubscriptionNotFound, and with an *InvalidError if that is no position.
func (s *Service) FollowSubscription(ctx context.Context, name string, after *int64) (*SubscribedStream, error) {
	if after != nil {
		if _, err := s.readPage(ctx, *after, 1, 1, nil); err != nil {
			return nil, err
		}
	}
	st := &SubscribedStream{name: name}
	st.subscribedReader = subscribedReader{svc: s, maxBytes: streamBytes, takesTurns: true, watch: s.watches.join(name)}
	s.streams.Add(1)
	begun, err := st.begin(ctx)
	if err != nil {
		st.Close()
		return nil, err
	}
	st.reached = begun.Position
	if after != nil {
		st.reached = *after
	}
	st.position = st.reached
	return st, nil
}

// Close ends the stream.
func (st *SubscribedStream) Close() {
	st.svc.streams.Add(-1)
	st.close()
}

// Position returns up to where the stream has come, as that of a Stream.
func (st *SubscribedStream) Position() int64 {
	return st.reached
}

// Next returns the next events, as that of a Stream. Each event was compared with filters that were in force after it was published. There is nothing
// while the subscription is paused. It fails with ErrSubscriptionNotFound when it was deleted, even if there is another one of its name.
func (st *SubscribedStream) Next(ctx context.Context, wait time.Duration) (Batch, error) {
	limiter, atPosition, atWaited := st.svc.calls.Limiter(), int64(-1), time.Duration(0)
	for deadline := time.Now().Add(wait); ; {
		if err := limiter.Pause(ctx, st.position == atPosition && st.waited-atWaited < rounds.MinWait); err != nil {
			return Batch{}, err
		}
		atPosition, atWaited = st.position, st.waited
		if err := ctx.Err(); err != nil {
			return Batch{}, err
		}
		if st.svc.tail.isDraining() {
			return Batch{}, ErrDraining
		}
		var (
			events []MatchedEvent
			gap    *Gap
			err    error
		)
		until := st.look(deadline)
		if st.isPaused {
			st.pause(ctx, until)
		} else if events, gap, err = st.next(ctx, readEvents, until); err != nil {
			return Batch{}, err
		}
		// The events that were read are returned only if the subscription is the same afterwards: see end_read, which does so for reads.
		// Where there is nothing, it is enough to have asked a moment ago, and the stream has come as far as the log had then.
		latest, confirmed, isLatest := st.svc.watches.latest(st.watch)
		state := latest.subscriptionState
		if len(events) > 0 || gap != nil || !isLatest {
			confirmed = math.MaxInt64
			if state, err = st.svc.lookAt(ctx, st.watch); err != nil {
				return Batch{}, err
			}
		}
		if state.ID != st.state.ID || state.Version != st.state.Version || state.FiltersVersion != st.set.version {
			if _, err := st.begin(ctx); err != nil {
				return Batch{}, err
			}
			st.position = st.reached
			continue
		}
		st.reached = max(st.reached, min(st.position, confirmed))
		if gap != nil && gap.Reason == GapBeyondHead { // it leads back
			st.reached = st.position
		}
		if len(events) > 0 || gap != nil || !time.Now().Before(deadline) {
			batch := Batch{Entries: make([]*Entry, len(events)), Next: st.reached, Gap: gap}
			for i := range events {
				batch.Entries[i] = &Entry{Event: events[i].Event, Matched: append([]string{}, events[i].Matched...)}
			}
			return batch, nil
		}
	}
}

// begin finds out how the subscription is now, and gets its filters.
func (st *SubscribedStream) begin(ctx context.Context) (readState, error) {
	// A change after that makes the version another one, so that it is noticed.
	state, err := st.svc.lookAt(ctx, st.watch)
	if err != nil {
		return readState{}, err
	}
	begun, err := st.svc.beginRead(ctx, st.name)
	if err != nil {
		return readState{}, err
	}
	if st.state.ID != 0 && st.state.ID != begun.ID {
		return readState{}, ErrSubscriptionNotFound
	}
	set, err := st.svc.filterSet(ctx, st.name, begun.ID, begun.FiltersVersion)
	if err != nil {
		return readState{}, err
	}
	if set == nil {
		return readState{}, ErrSubscriptionNotFound
	}
	state.ID = begun.ID
	st.state, st.isPaused, st.set = state, begun.IsPaused, set
	return begun, nil
}
