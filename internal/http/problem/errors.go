package problem

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/push"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/internal/topic"
	"github.com/queued/queued/internal/webhook"
)

// serviceErrors is the one table from the errors of the services to problems. Errors that queue and schedule have in common are the same.
var serviceErrors = []struct {
	err    error
	typ    Type
	detail string
}{
	{queue.ErrNotFound, EventNotFound, "No event has this id: it never existed, has already left its queue, or its history was dropped."},
	{queue.ErrNoRawBody, RawBodyNotFound, "No raw body is kept of this event: none was asked for with keep_raw when it came in, or its time is over."},
	{queue.ErrLeaseLost, LeaseLost, "The receipt is not that of a current lease: the event was claimed again, was given back, or has left its queue. Stop working on it."},
	{queue.ErrLeased, EventLeased, "A worker has the event under a lease, and ends it by an ack or a nack. Call again when the lease has ended."},
	{queue.ErrEnded, EventEnded, "The event has left its queue: GET /events/{id} says with which outcome. POST /history/{id}/requeue inserts it again."},
	{queue.ErrRequeued, EventRequeued, "The event was requeued before, and its copy is in a queue, or done."},

	{queue.ErrStale, PreconditionFailed, "The current version is none of those in If-Match, or If-None-Match is sent and something is set. Get it again, and send its ETag."},

	{queue.ErrQueueNotFound, QueueNotFound, "The queue has neither a policy nor a push nor an event; history that it may have stays as long as it is kept."},
	{queue.ErrNotDeclared, QueueNotDeclared, "Nobody has made the queue, and this server takes events for declared queues alone (QUEUED_QUEUES). Make it with PUT /queues/{name}."},
	{queue.ErrQueueNotEmpty, QueueNotEmpty, "The queue has events."},
	{queue.ErrQueueInUse, QueueInUse, "Schedules, sources, subscriptions or policies of other queues name the queue."},
	{queue.ErrQueueLeased, QueueLeased, "Events of the queue are under a lease."},
	{queue.ErrDeadLetterChain, DeadLetterChain, "A dead-letter queue can have no dead letters of its own: the one that is named has some, or is this queue, or this queue is one. Name another queue."},

	{queue.ErrRedriveNotFound, RedriveNotFound, "No redrive has this id: it never existed, or ended more than 30 days ago."},
	{queue.ErrRedriveEnded, RedriveEnded, "The redrive is done, was cancelled, or has failed: GET /redrives/{id} says which. One that has failed can be resumed or cancelled; else create a new one."},
	{queue.ErrTooManyRedrives, TooManyRedrives, "100 redrives of the caller's key run, are paused or have failed. Wait until some are done, or cancel some: GET /redrives lists them."},

	{schedule.ErrNotFound, ScheduleNotFound, "No schedule has this id."},
	{schedule.ErrOwnerNotFound, OwnerNotFound, "No owner has this id."},
	{schedule.ErrEnded, ScheduleEnded, "The schedule was cancelled or is completed. Create a new one."},
	{schedule.ErrStale, PreconditionFailed, "The current version is none of those in If-Match. Get it again, and send its ETag."},

	{topic.ErrPositionNotFound, PositionNotFound, "No event that can be read has this position: it was never given out, cannot be read yet, or was dropped by retention."},
	{topic.ErrSubscriptionNotFound, SubscriptionNotFound, "No subscription has this name: it was never made, was deleted, or has expired."},
	{topic.ErrFilterNotFound, FilterNotFound, "The subscription has no filter of this name: it was never put, was deleted, or has expired."},
	{topic.ErrCursorLost, CursorLost, "Another cursor was committed in its place, a seek or a lease came in between, its lease has ended, or the subscription was made anew. Read again."},
	{topic.ErrWrongDelivery, WrongDelivery, "Reads, commits and streams are for subscriptions without `deliver`; a replay is for those that have it. What exists cannot change between the two: delete it first."},
	{topic.ErrStale, PreconditionFailed, "The current version is none of those in If-Match. Get it again, and send its ETag."},

	{push.ErrNotFound, PushNotFound, "The queue has no push: it was never put, or was deleted."},
	{push.ErrStale, PreconditionFailed, "The current version is none of those in If-Match. Get it again, and send its ETag."},
	{push.ErrNoSealer, SealingUnavailable, "The server has no key to seal secrets with. Set QUEUED_SECRET_KEY, of at least 16 bytes, the same for all processes on the database."},
	{push.ErrSealed, SealingUnavailable, "A secret was sealed under a key that this server does not have. Add that key to QUEUED_SECRET_KEY."},

	{access.ErrUnauthorized, Unauthorized, "Send a key as Authorization: Bearer KEY."},
	{access.ErrExpired, KeyExpired, "The key, or its text before the latest rotation, or the token has expired. Use another one."},
	{access.ErrRevoked, KeyRevoked, "The key was revoked. Use another one."},
	{access.ErrRateLimited, RateLimited, "The key has logged in too often, or has made more requests than its rate limit allows in this process. Retry in some seconds."},
	{access.ErrChanged, Unauthorized, "The key was changed while the call waited. Call again."},
	{access.ErrNotFirst, Unauthorized, "There is a key by now. Send one as Authorization: Bearer KEY."},
	{access.ErrNotFound, KeyNotFound, "No key has this id: it never existed, or was revoked or has expired more than 90 days ago."},
	{access.ErrLastAdmin, LastAdminKey, "It is the last admin key that is live. Create another one first."},
	{access.ErrInactive, KeyEnded, "The key was revoked, or has expired. Create a new one."},
	{access.ErrStale, PreconditionFailed, "The current version is none of those in If-Match. Get it again, and send its ETag."},
	{access.ErrLookUps, Overloaded, "So many unknown keys or sessions were sent that this one could not be looked up. Retry."},

	{cell.ErrNotHome, NotHome, "The call is for cell 0, which is home, and this is another cell: GET /cell says which. Call home."},
	{cell.ErrNotPlaced, PlacementNotFound, "The queue is not placed: it was never used through a gateway, or its placement was deleted."},
	{cell.ErrNotListed, CellNotFound, "The cell is not on home's list: gateways have it from their settings (QUEUED_CELLS), if they have it, and it is taken out there."},
	{cell.ErrInUse, CellInUse, "Queues are placed on the cell, or were and may have events or idempotency keys there still: GET /cells says how many. Drain it first."},
	{cell.ErrStale, PreconditionFailed, "The current version is none of those in If-Match, or If-None-Match is sent and the queue is placed. Get its placement again, and send its ETag."},

	{webhook.ErrNotFound, SourceNotFound, "No source has this name."},
	{webhook.ErrStale, PreconditionFailed, "The current version is none of those in If-Match. Get it again, and send its ETag."},
	{webhook.ErrPaused, SourcePaused, "The source is paused. Deliver again later."},
	{webhook.ErrSealing, SealingUnavailable, "Secrets cannot be sealed or opened: set QUEUED_SECRET_KEY to the keys under which they were sealed, or to a new one, and put the source's secrets again."},
	{webhook.ErrLookUps, Overloaded, "So many unknown sources were asked for that this one could not be looked up. Retry."},

	{queue.ErrKeyLeft, KeyLeft, "The queue was placed on another cell, and the key is used there. Nothing was done; retry."},
	{queue.ErrKeyReused, KeyReused, "The idempotency key was used for a different request. Use a new key for a new request."},
	{queue.ErrUnrepresentable, Unrepresentable, "PostgreSQL cannot store a value of the request."},
	{queue.ErrInvalid, ValidationFailed, "The database refused a value."},
	{queue.ErrBadCursor, InvalidCursor, "Send `next` of a page of the same listing with the same filters, unchanged, or no cursor for the first page."},
	{queue.ErrIDsExhausted, IDsExhausted, "The database has given out all ids of its cell, and nothing was written. Place the queue on another cell; a single database gets more by agent.widen_ids, as docs/operations.md says."},
	{queue.ErrQueryTimeout, QueryTimeout, "The query reached its time limit. Narrow `from` and `to`, or filter by `queue`."},
	{queue.ErrOverloaded, Overloaded, "Too many calls wait for the database. Nothing was written; retry with growing pauses."},
	{queue.ErrLocked, Locked, "Another transaction holds a lock and did not end in time. Nothing was written; retry."},
	{queue.ErrUnavailable, DatabaseUnavailable, "The database cannot be reached, or is out of space. A write may have taken effect; reads and claims can be retried safely."},
	{context.DeadlineExceeded, DatabaseUnavailable, "The database did not answer within QUEUED_REQUEST_TIMEOUT. A write may have taken effect; reads and claims can be retried safely."},
}

// retryAfter is after how many seconds to try again a call for which somebody has to change something first. Other problems with status 503 may be over after one.
var retryAfter = map[Type]string{SourcePaused: "60"}

// Of returns the problem that err is answered with. An error outside the table is an internal error, whose text is in the log only.
func Of(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	for _, known := range serviceErrors {
		if !errors.Is(err, known.err) {
			continue
		}
		var invalid *queue.InvalidError
		if errors.As(err, &invalid) && invalid.Field != "" {
			return InFields(known.typ, FieldError{"#/" + invalid.Field, invalid.Detail})
		}
		p := New(known.typ, known.detail)
		if invalid != nil && invalid.Detail != "" {
			p.Detail = invalid.Detail
		}
		if known.typ.Status == http.StatusServiceUnavailable && known.typ != QueryTimeout && known.typ != SealingUnavailable && known.typ != IDsExhausted {
			p = p.With("Retry-After", cmp.Or(retryAfter[known.typ], "1"))
		}
		return p
	}
	return New(Internal, "The server's log has the cause, under this request_id or that of a call that failed alike within a second.")
}
