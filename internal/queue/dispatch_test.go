package queue_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/queued/queued/internal/queue"
)

// checkOnTime fails the test unless an event was claimed after its delay, and not much later.
func checkOnTime(t *testing.T, e queue.Event, delay time.Duration) {
	t.Helper()
	if late := e.Claimed[0].Sub(e.EnqueuedAt) - delay; late < 0 || late > 5*time.Second {
		t.Errorf("event %d was claimed %v after its vt", e.ID, late)
	}
}

func TestScheduledEventsAreClaimedOnTimeWhileAClaimWaits(t *testing.T) {
	t.Parallel()
	for name, lookAheadTime := range map[string]time.Duration{"that waits for looks ahead": time.Hour, "that does not": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(c *queue.Config) {
				neverPolls(c)
				c.LookAheadTime = lookAheadTime
			})
			delays := []time.Duration{300 * time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond}
			var in []queue.Inserted
			got := whileWaiting(t, b, queue.ClaimParams{}, func() {
				params := make([]queue.InsertParams, len(delays))
				for i, d := range delays {
					params[i] = queue.InsertParams{Event: json.RawMessage(`{}`), Delay: d}
				}
				var err error
				if in, err = b.Insert(t.Context(), params); err != nil {
					t.Error(err)
				}
			})
			if len(got) != 1 || len(in) != 3 {
				t.Fatalf("inserted %+v, claimed %+v", in, got)
			}
			for range 2 {
				got = append(got, b.claim(t, queue.ClaimParams{Wait: queue.MaxWait}, 1)...)
			}
			checkIDs(t, got, []int64{in[1].ID, in[2].ID, in[0].ID})
			for i, d := range []time.Duration{delays[1], delays[2], delays[0]} {
				checkOnTime(t, got[i], d)
			}
		})
	}
}

func TestEventScheduledBySQLIsClaimedOnTime(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	runService(t, b.Service)
	awaitListening(t, b)
	got := whileWaiting(t, b, queue.ClaimParams{}, func() {
		b.exec(t, `select agent.insert_event('{}', _delay => '100 ms')`)
	})
	if len(got) != 1 {
		t.Fatalf("claimed %+v", got)
	}
	checkOnTime(t, got[0], 100*time.Millisecond)
}
