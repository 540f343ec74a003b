package http

import (
	"context"

	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
)

// A kind is one sort of problem. Its code is part of the API: clients branch on it, so it
// never changes; title and status belong to it.
type kind struct {
	status int
	code   string
	title  string
}

// Every problem this API answers with. api/openapi.yaml lists the same codes.
var (
	invalidJSON          = kind{400, "invalid_json", "The body is not valid JSON"}
	invalidParameter     = kind{400, "invalid_parameter", "A parameter has a value that this call does not take"}
	unknownParameter     = kind{400, "unknown_parameter", "This call has no such parameter"}
	invalidCursor        = kind{400, "invalid_cursor", "The cursor is not one that this listing returned"}
	unauthorized         = kind{401, "unauthorized", "The API key is missing or wrong"}
	crossOrigin          = kind{403, "cross_origin", "A web page of another origin may not make this call"}
	notFound             = kind{404, "not_found", "There is no such path"}
	eventNotFound        = kind{404, "event_not_found", "There is no such event"}
	scheduleNotFound     = kind{404, "schedule_not_found", "There is no such schedule"}
	ownerNotFound        = kind{404, "owner_not_found", "There is no such owner"}
	methodNotAllowed     = kind{405, "method_not_allowed", "This path does not take this method"}
	leaseLost            = kind{409, "lease_lost", "The lease was lost"}
	scheduleEnded        = kind{409, "schedule_ended", "The schedule has ended"}
	preconditionFailed   = kind{412, "precondition_failed", "It is not at the version that the call is for"}
	bodyTooLarge         = kind{413, "body_too_large", "The body is too large"}
	unsupportedMediaType = kind{415, "unsupported_media_type", "The body is not sent as JSON"}
	hostNotAllowed       = kind{421, "host_not_allowed", "This server does not answer for that host"}
	validationFailed     = kind{422, "validation_failed", "The body has fields that this call does not take as they are"}
	unrepresentable      = kind{422, "unrepresentable", "PostgreSQL cannot hold a value of the body as it is"}
	tooDeep              = kind{422, "too_deep", "The JSON is nested too deeply"}
	batchTooLarge        = kind{422, "batch_too_large", "The batch has too many elements"}
	keyReused            = kind{422, "idempotency_key_reused", "The idempotency key was used for another request"}
	clientGone           = kind{499, "client_gone", "The client has gone"} // in the log only: nobody is there to read it
	internalError        = kind{500, "internal", "Something went wrong in the server"}
	queryTimeout         = kind{503, "query_timeout", "The query took too long"}
	databaseUnavailable  = kind{503, "database_unavailable", "The database is unavailable"}
	overloaded           = kind{503, "overloaded", "Overloaded"}
	locked               = kind{503, "locked", "Locked by another transaction"}
	notReady             = kind{503, "not_ready", "The server is not ready"}
)

// The one table from what the services can fail with to what the client is told.
var sentinels = []struct {
	err    error
	kind   kind
	detail string
}{
	{queue.ErrNotFound, eventNotFound, "No event has this id here: it never existed, has already left, or its history was dropped."},
	{queue.ErrLeaseLost, leaseLost, "The receipt proves no lease any more: the event was claimed again, was given back, or has left its queue. Or it is another event's receipt."},

	{schedule.ErrNotFound, scheduleNotFound, "No schedule has this id."},
	{schedule.ErrOwnerNotFound, ownerNotFound, "No owner has this id."},
	{schedule.ErrEnded, scheduleEnded, "It was cancelled, or it is completed and nothing more will come of it."},
	{schedule.ErrStale, preconditionFailed, "It was changed since, or never had this version. Get it again, and decide anew."},

	// What both can fail with is the same error.
	{queue.ErrKeyReused, keyReused, "Another request was made under this idempotency key. Use a new key for a new request."},
	{queue.ErrUnrepresentable, unrepresentable, "PostgreSQL cannot hold a value as it is."},
	{queue.ErrInvalid, validationFailed, "The database refused a value."},
	{queue.ErrBadCursor, invalidCursor, "Pass the `next` of an earlier page of the same listing with the same filters, unchanged, or none for the first page."},
	{queue.ErrQueryTimeout, queryTimeout, "The query ran into its time limit. Ask for less: narrow `from` and `to`, or filter by `queue`."},
	{queue.ErrOverloaded, overloaded, "More calls wait for the database than this server takes in. Nothing was written; try again later, waiting longer each time."},
	{queue.ErrLocked, locked, "Another transaction holds what this call needs, and did not end in time. Nothing was written; the same call may be made again."},
	{queue.ErrUnavailable, databaseUnavailable, "The database cannot be reached, or has no room, at the moment. Whether a write took effect may be unknown; reading and claiming may be retried safely."},
	{context.DeadlineExceeded, databaseUnavailable, "The database did not answer within QUEUED_REQUEST_TIMEOUT. Whether a write took effect may be unknown; reading and claiming may be retried safely."},
}
