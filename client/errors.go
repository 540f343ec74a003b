package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// An Error is a response of the server that refuses a call: a problem document (RFC 9457), or the answer of a proxy in its place. Compare it
// with [errors.Is] to the errors of this package, such as [ErrLeaseLost], or branch on its Code, which is stable.
type Error struct {
	// Status is the HTTP status, 400 to 599.
	Status int `json:"status"`
	// Code is the kind of error, such as "lease_lost"; api/openapi.yaml lists all. It is empty if the response is not a problem document.
	Code string `json:"code"`
	// Title is the meaning of Code, in words.
	Title string `json:"title"`
	// Detail is the reason of this error, in words.
	Detail string `json:"detail"`
	// RequestID names the request in the server's log.
	RequestID string `json:"request_id"`
	// Required is the right that the key lacks, if the call was forbidden; nil otherwise.
	Required *Requirement `json:"required,omitempty"`
	// Cell is the cell that the error is with, if a gateway has answered; nil otherwise.
	Cell *int `json:"cell,omitempty"`
	// Cells are those that have a part of what the call is about, with [ErrSeveralCells].
	Cells []int `json:"cells,omitempty"`
	// Errors lists the invalid fields of the request, at most 20.
	Errors []FieldError `json:"errors,omitempty"`
	// Type is the URI of the problem type, "urn:queued:problem:" followed by the code.
	Type string `json:"type"`

	// RetryAfter is how long the server asks callers to wait before a retry; 0: it does not say.
	RetryAfter time.Duration `json:"-"`
	// Method and Path are of the request.
	Method string `json:"-"`
	Path   string `json:"-"`
}

// A Requirement is a right that a key needs for a call.
type Requirement struct {
	Scope string `json:"scope,omitempty"`
	// Queue and Topic are those that the key may not use; "*" and "**" are all.
	Queue string `json:"queue,omitempty"`
	Topic string `json:"topic,omitempty"`
}

// A FieldError says why one field is invalid.
type FieldError struct {
	// Pointer is where the field is: "#/a/b" in the body, "?name" in the query, "{name}" in the path, and the plain name of a header.
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

// Error implements error: method, path, status, code, detail, the fields, and the id of the request.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %d %s", e.Method, e.Path, e.Status, e.Code)
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	for _, field := range e.Errors {
		fmt.Fprintf(&b, "; %s %s", field.Pointer, field.Detail)
	}
	if e.RequestID != "" {
		fmt.Fprintf(&b, " (request %s)", e.RequestID)
	}
	return b.String()
}

// Is reports whether target is the error of this package that names e's code or status. [errors.Is] calls it.
func (e *Error) Is(target error) bool {
	kind, ok := target.(*errorKind)
	if !ok {
		return false
	}
	return kind.code != "" && kind.code == e.Code || kind.status != 0 && kind.status == e.Status ||
		target == ErrInvalid && e.Status == http.StatusBadRequest
}

// An errorKind matches the errors with its code, or with its status.
type errorKind struct {
	code   string
	status int
	text   string
}

func (k *errorKind) Error() string { return "client: " + k.text }

// Errors that [errors.Is] finds in an [*Error].
var (
	// ErrLeaseLost: the event was claimed again, was given back, or has left its queue. Stop working on it. It is also the cause of the
	// end of a handler's context, see [context.Cause].
	ErrLeaseLost error = &errorKind{code: "lease_lost", text: "the lease is lost"}
	// ErrNotFound: nothing has this id, name or path; Code says which.
	ErrNotFound error = &errorKind{status: http.StatusNotFound, text: "not found"}
	// ErrQueueNotDeclared: nobody has made the queue, and the server takes declared queues alone. It is ErrNotFound, too.
	ErrQueueNotDeclared error = &errorKind{code: "queue_not_declared", text: "the queue is not declared"}
	// ErrLeased: a worker has the event under a lease, and the call is for events that wait.
	ErrLeased error = &errorKind{code: "event_leased", text: "the event is leased"}
	// ErrEnded: the event has left its queue, and the call is for events that wait.
	ErrEnded error = &errorKind{code: "event_ended", text: "the event has ended"}
	// ErrRequeued: a copy of the event is in a queue, or done; Detail names it.
	ErrRequeued error = &errorKind{code: "event_requeued", text: "the event was requeued"}
	// ErrCursorLost: the subscription was moved, leased or made anew by somebody else since the cursor was read.
	ErrCursorLost error = &errorKind{code: "cursor_lost", text: "the cursor is lost"}
	// ErrWrongDelivery: the call is for subscriptions that are delivered into queues, or for those that are not.
	ErrWrongDelivery error = &errorKind{code: "wrong_delivery", text: "wrong kind of subscription for this call"}
	// ErrScheduleEnded: the schedule is cancelled or completed.
	ErrScheduleEnded error = &errorKind{code: "schedule_ended", text: "the schedule has ended"}
	// ErrRedriveEnded: the redrive is done, was cancelled, or has failed.
	ErrRedriveEnded error = &errorKind{code: "redrive_ended", text: "the redrive has ended"}
	// ErrTooManyRedrives: 100 redrives of the caller's key run, are paused or have failed.
	ErrTooManyRedrives error = &errorKind{code: "too_many_redrives", text: "too many redrives"}
	// ErrQueueNotEmpty: the queue has events; ErrQueueLeased: some are under a lease; ErrQueueInUse: schedules, sources, subscriptions or the
	// policies of other queues name it. See
	// [Client.DeleteQueue].
	ErrQueueNotEmpty error = &errorKind{code: "queue_not_empty", text: "the queue has events"}
	ErrQueueLeased   error = &errorKind{code: "queue_leased", text: "events of the queue are under a lease"}
	ErrQueueInUse    error = &errorKind{code: "queue_in_use", text: "the queue is in use"}
	// ErrSeveralCells: several cells behind a gateway, which Cells lists, have a part of what the call is about. See [Client.Cell].
	ErrSeveralCells error = &errorKind{code: "several_cells", text: "several cells have a part"}
	// ErrBatchNotAtomic: the events of a batch go to several cells behind a gateway, where they cannot be inserted all or none. See [Client.InsertEach].
	ErrBatchNotAtomic error = &errorKind{code: "batch_not_atomic", text: "the batch goes to several cells"}
	// ErrDeadLetterChain: a dead-letter queue would have dead letters of its own. See [Client.PutQueue].
	ErrDeadLetterChain error = &errorKind{code: "dead_letter_chain", text: "a dead-letter queue would have dead letters of its own"}
	// ErrPreconditionFailed: somebody else has changed it: the version is no longer the one that the call names.
	ErrPreconditionFailed error = &errorKind{status: http.StatusPreconditionFailed, text: "changed by somebody else"}
	// ErrKeyReused: the idempotency key was used for a different request.
	ErrKeyReused error = &errorKind{code: "idempotency_key_reused", text: "idempotency key used for another request"}
	// ErrUnauthorized: the API key is missing or wrong.
	ErrUnauthorized error = &errorKind{status: http.StatusUnauthorized, text: "unauthorized"}
	// ErrForbidden: the API key does not allow the call.
	ErrForbidden error = &errorKind{status: http.StatusForbidden, text: "forbidden"}
	// ErrInvalid: the server cannot carry out the request as it is; Errors says which fields are wrong.
	ErrInvalid error = &errorKind{status: http.StatusUnprocessableEntity, text: "invalid request"}
	// ErrTooLarge: the body, or one event in it, is larger than the server takes.
	ErrTooLarge error = &errorKind{status: http.StatusRequestEntityTooLarge, text: "body too large"}
	// ErrRateLimited: too many calls; RetryAfter says when to come back.
	ErrRateLimited error = &errorKind{status: http.StatusTooManyRequests, text: "rate limited"}
	// ErrUnavailable: the server, or its database, could not answer in time. Whether the call was carried out may be open.
	ErrUnavailable error = &errorKind{status: http.StatusServiceUnavailable, text: "unavailable"}
)

// ErrResponseTooLarge is returned when a response, or one event of a stream, is larger than [Config.MaxResponse].
var ErrResponseTooLarge = errors.New("client: the response is larger than MaxResponse")

// errNoAnswer is the cause when a try ends without a response in [Config.Timeout].
var errNoAnswer = fmt.Errorf("client: no answer in time: %w", context.DeadlineExceeded)

// maxPlainDetail is how much of a response that is no problem document goes into the error's Detail, in bytes.
const maxPlainDetail = 1 << 10

// errorOf returns the error that a response says.
func errorOf(method, path string, resp *http.Response, body []byte) *Error {
	e := new(Error)
	if err := json.Unmarshal(body, e); err != nil || e.Code == "" {
		*e = Error{Title: http.StatusText(resp.StatusCode), Detail: strings.TrimSpace(string(body[:min(len(body), maxPlainDetail)]))}
	}
	e.Status, e.Method, e.Path = resp.StatusCode, method, path
	e.RetryAfter = retryAfter(resp.Header)
	if e.RequestID == "" {
		e.RequestID = resp.Header.Get("X-Request-Id")
	}
	return e
}

// retryAfter returns the time of a Retry-After, which is in seconds or a date; 0 without one.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}

// cellOf returns the number of the cell behind a gateway that err is with; nil: of none.
func cellOf(err error) *int {
	var e *Error
	if errors.As(err, &e) {
		return e.Cell
	}
	return nil
}

// A doubt is whether a call that failed was carried out, as far as that is known.
type doubt int

const (
	refused   doubt = iota // a repetition would fail, too: the server has answered so, or nothing can reach it
	notDone                // it was not carried out; a repetition can succeed
	uncertain              // it may have been carried out
)

// doubtOf returns the doubt about a call that failed with err.
func doubtOf(err error) doubt {
	var e *Error
	if errors.As(err, &e) {
		switch {
		case e.Status == http.StatusTooManyRequests, e.Code == "overloaded", e.Code == "locked", e.Code == "not_ready", e.Code == "cell_unavailable":
			return notDone
		case e.Code == "query_timeout":
			return refused // it would take as long the next time
		case e.Status == http.StatusServiceUnavailable, e.Status == http.StatusBadGateway, e.Status == http.StatusGatewayTimeout:
			return uncertain
		}
		return refused
	}
	var invalid *tls.CertificateVerificationError
	if errors.As(err, &invalid) {
		return refused
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return refused // the server has no TLS
	}
	var permanent interface{ Permanent() bool }
	if errors.As(err, &permanent) && permanent.Permanent() {
		return refused // says the transport of Config.HTTPClient
	}
	var op *net.OpError
	switch errors.As(err, &op); {
	case op == nil:
	case op.Op == "dial":
		return notDone
	case op.Op == "remote error": // of TLS: the server wants another certificate, or none of these protocols
		return refused
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrResponseTooLarge) || errors.Is(err, errNotJSON) {
		return refused
	}
	return uncertain
}
