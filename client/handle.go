package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// A Job is an event that a handler works on. Payload is the event's payload as a T; Event.Payload is its JSON.
type Job[T any] struct {
	Event
	Payload T
}

// Handle makes fn the handler of a type of events. An empty type is for all events whose type has no handler of its own, and for those that
// have no type. The payload is decoded into T, which can be [json.RawMessage]; numbers in values of type any become a [json.Number].
//
// When fn returns nil, the event is acked, and the result, unless it is nil, is stored in history: anything that encodes to at most 64 KiB of
// JSON. When it returns an error, or panics, the event is nacked with the error, or the panic and its stack: it waits for its queue's backoff
// and is claimed again until its attempts are used up. See [Final], [RetryIn] and [HoldGroup] for other ends. A payload that does not fit T is an error,
// too: a newer build of the worker may understand it.
//
// fn must be safe to run twice for one event: it is not known how far it came when it was cut off. Its context ends when the lease is lost, with the
// cause [ErrLeaseLost], or when the worker stops and its grace is over, with [ErrStopping].
//
// Handle panics if the type has a handler, or the worker runs.
func Handle[T any](w *Worker, eventType string, fn func(ctx context.Context, j Job[T]) (any, error)) {
	w.handle(eventType, func(ctx context.Context, e Event) (any, error) {
		j := Job[T]{Event: e}
		if err := e.Decode(&j.Payload); err != nil {
			return nil, fmt.Errorf("the payload does not fit %T: %w", j.Payload, err)
		}
		return fn(ctx, j)
	})
}

// Final returns an error that fails the event for good, whatever attempts are left. It wraps err.
func Final(err error) error { return &verdict{err: err, isFinal: true} }

// RetryIn returns an error after which the event waits for d, up to ten years, whatever its queue's backoff says. It wraps err.
func RetryIn(d time.Duration, err error) error { return &verdict{err: err, delay: &d} }

// HoldGroup returns an error after which nothing of the group of the event is handed out for d, up to ten years: what stands behind the group, such as the endpoint of a tenant, has asked for a pause. The
// event itself can be claimed again when the hold is over, and its queue's backoff, or the delay of a [RetryIn] that err wraps or that wraps this. It wraps err.
func HoldGroup(d time.Duration, err error) error { return &verdict{err: err, hold: d} }

// A verdict is an error of a handler that decides whether and when the event is tried again, and its group.
type verdict struct {
	err     error
	isFinal bool
	delay   *time.Duration
	hold    time.Duration // of the group
}

// Error implements error.
func (v *verdict) Error() string {
	if v.err == nil {
		return "failed"
	}
	return v.err.Error()
}

// Unwrap returns the error that the handler gave.
func (v *verdict) Unwrap() error { return v.err }

// Limits of the server: of a result and of the text of an error, in bytes, and of a delay.
const (
	maxResult    = 64 << 10
	maxErrorText = 64 << 10
	maxDelay     = 87600 * time.Hour
)

// A handler works on an event and returns its result.
type handler func(ctx context.Context, e Event) (any, error)

// An outcome is the result and the error of a handler.
type outcome struct {
	result json.RawMessage
	err    error
}

// errGoexit is the outcome of a handler that has not returned.
var errGoexit = errors.New("the handler ended its goroutine by runtime.Goexit")

// call calls the handler and sets its outcome, with the result encoded. A panic is an error.
func (h handler) call(ctx context.Context, e Event, out *outcome) {
	defer func() {
		if cause := recover(); cause != nil {
			out.err = fmt.Errorf("panic: %v\n\n%s", cause, debug.Stack())
		}
	}()
	out.err = errGoexit
	value, err := h(ctx, e)
	*out = outcomeOf(value, err)
}

func outcomeOf(value any, err error) outcome {
	if err != nil || value == nil {
		return outcome{err: err}
	}
	result, err := encodeJSON(value)
	switch {
	case err != nil:
		return outcome{err: Final(fmt.Errorf("the work is done, but its result cannot be encoded: %w", err))}
	case len(result) > maxResult:
		return outcome{err: Final(fmt.Errorf("the work is done, but its result of %d bytes is larger than %d", len(result), maxResult))}
	}
	return outcome{result: result}
}

// nackOf returns the nack for an error of a handler.
func nackOf(receipt string, err error) NackParams {
	text := strings.ToValidUTF8(strings.ReplaceAll(err.Error(), "\x00", "\uFFFD"), "\uFFFD") // the database takes nothing else
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") // a rune may have been cut
	}
	p := NackParams{Receipt: receipt, Error: text}
	isDecided := false
	var v *verdict
	for ; errors.As(err, &v); err = v.err { // the outermost that says when the event is tried again counts, and the outermost that holds
		if p.HoldGroup == 0 {
			p.HoldGroup = min(max(v.hold, 0), maxDelay)
		}
		if isDecided || !v.isFinal && v.delay == nil {
			continue
		}
		isDecided, p.Final = true, v.isFinal
		if v.delay != nil {
			delay := min(max(*v.delay, 0), maxDelay)
			p.Delay = &delay
		}
		if v.isFinal {
			p.Retryable = new(bool)
		}
	}
	return p
}
