//go:build unix

package faults

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// leftBehind is a broken build for the scenarios of the log, all of which deliver the log into queues, too.
var leftBehind = build{name: "subscriptions that leave those in step without their position", sql: []edit{{
	"leave_router", "_own.position = _router.position;", "null;",
}}}

// deliveredQueues are the queues into which all of the log is delivered. The subscription of the first one is paused and resumed all the time.
var deliveredQueues = []string{"restless", "steady"}

// subscribe has the log delivered into the queues, from its beginning on, and goes on pausing and resuming one of the subscriptions.
func (d *logLoad) subscribe(ctx context.Context, c *client) {
	calls := context.WithoutCancel(ctx)
	for _, queue := range deliveredQueues {
		body := map[string]any{"filters": []map[string]any{{}}, "start": "earliest", "deliver": map[string]any{"queue": queue}, "max_waiting": 1_000_000}
		d.insist(calls, c, http.MethodPut, "/subscriptions/"+queue, body)
	}
	d.publishing.Go(func() {
		for ctx.Err() == nil {
			pause(time.Duration(c.rand.IntN(300)) * time.Millisecond)
			d.gate.RLock()
			d.insist(calls, c, http.MethodPost, "/subscriptions/"+deliveredQueues[0]+"/pause", nil)
			pause(time.Duration(c.rand.IntN(200)) * time.Millisecond) // until something was published
			d.insist(calls, c, http.MethodPost, "/subscriptions/"+deliveredQueues[0]+"/resume", nil)
			d.gate.RUnlock()
		}
	})
}

// insist repeats a call until it succeeds.
func (d *logLoad) insist(ctx context.Context, c *client, method, path string, body any) {
	for began := time.Now(); ; pause(20 * time.Millisecond) {
		status := c.call(ctx, method, path, body, nil)
		if status == http.StatusOK || status == http.StatusCreated {
			return
		}
		if time.Since(began) > startLimit {
			d.t.Errorf("%s %s: status %d for %v", method, path, status, startLimit)
			return
		}
	}
}

// compareDelivered compares what has been delivered into each queue with the log.
func (d *logLoad) compareDelivered(url string, log []published) {
	d.t.Helper()
	for _, queue := range deliveredQueues {
		var got []published
		d.await("delivering into "+queue, func() bool {
			got = deliveredEvents(d.t, url, queue)
			return len(got) >= len(log) || !d.ledger.clean()
		})
		if !slices.Equal(got, log) {
			d.ledger.violated("%d events of %d were delivered into the queue %s, or not in order", len(got), len(log), queue)
		}
	}
}

// deliveredEvents are the events in a queue, in the order in which they were delivered.
func deliveredEvents(t *testing.T, url, queue string) []published {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	return collectPublished(ctx, t, conn, `select (e.publication ->> 'position')::int8, e.event ->> 'n' from agent.event e where e.queue = $1 order by e.id`, queue)
}

func TestBrokenBuildThatLeavesSubscriptionsBehindIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, logBesideOpenTransactions, leftBehind, 3)
}
