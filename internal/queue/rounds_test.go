package queue_test

import (
	"testing"
	"time"

	"github.com/queued/queued/internal/queue"
)

// TestClaimWaitsWhileWhatIsDueCannotBeClaimed has a claim wait in a queue where something is due that no claim gets, and no loop is held up.
func TestClaimWaitsWhileWhatIsDueCannotBeClaimed(t *testing.T) {
	t.Parallel()
	for name, block := range map[string]func(t *testing.T, b env){
		"the queue is paused": func(t *testing.T, b env) {
			t.Helper()
			if err := b.Pause(t.Context(), "q"); err != nil {
				t.Fatal(err)
			}
		},
		"the event is locked": func(t *testing.T, b env) {
			t.Helper()
			b.exec(t, `begin; select from agent.event for update; select from agent_private.group_wake for update`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Longer than a round takes on a busy machine: after a look that ends during a round, the next round follows at once
			b := setup(t, func(cfg *queue.Config) { cfg.PollInterval = 250 * time.Millisecond })
			runService(t, b.Service)
			awaitTold(t, b)
			b.put(t, queue.Policy{Queue: "q", Flow: &queue.Flow{Concurrency: new(1)}})
			b.exec(t, `select agent.insert_event('{}', 'q', _group => 'a'), agent.insert_event('{}', 'q', _group => 'a'), agent.insert_event('{}', 'q', _group => 'b', _delay => '10ms')`)
			block(t, b)
			answers := startWaiting(t, b, []string{"q"})
			looks := b.Rounds().Loop("looking for what becomes claimable")
			before := looks.Total()
			eventually(t, "some looks", func() bool { return looks.Total() >= before+5 })
			if heldUp := b.Rounds().HeldUp(); len(heldUp) > 0 {
				t.Errorf("%v rounds were held up", heldUp)
			}
			if name == "the queue is paused" {
				if err := b.Resume(t.Context(), "q"); err != nil {
					t.Fatal(err)
				}
			} else {
				b.exec(t, `commit`)
			}
			if got := <-answers; len(got) != 1 {
				t.Errorf("claimed %+v, want one event", got)
			}
		})
	}
}
