package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/duration"
)

// endWait is a flag that says whether to wait until an event has ended, and for how long at most: "--wait", "--wait=30s" or "--wait 30s".
type endWait struct {
	isSet bool
	limit time.Duration // 0: none
}

// IsBool has kong accept the flag without a value.
func (*endWait) IsBool() bool { return true }

// Decode implements [kong.MapperValue]. Of the words after the flag it takes one that is a duration, which is neither an event nor an id.
func (w *endWait) Decode(ctx *kong.DecodeContext) error {
	token := ctx.Scan.Peek()
	text, _ := token.Value.(string)
	limit, err := duration.Parse(text)
	switch {
	case err == nil && limit > 0:
		ctx.Scan.Pop()
	case token.Type == kong.FlagValueToken || err == nil || errors.Is(err, duration.ErrRange):
		return errNotDuration(text, err, ", or nothing")
	default:
		limit = 0
	}
	w.isSet, w.limit = true, limit
	return nil
}

// notEndedError is the error of a wait that is over before the event has ended.
type notEndedError struct{ id int64 }

func (e *notEndedError) Error() string { return fmt.Sprintf("event %d has not ended", e.id) }

// endedBadlyError is the error of an event that has ended with another outcome than done.
type endedBadlyError struct{ event client.Event }

func (e *endedBadlyError) Error() string {
	verb := "has"
	if e.event.Outcome == client.OutcomeCancelled {
		verb = "was"
	}
	text := fmt.Sprintf("event %d %s %s", e.event.ID, verb, e.event.Outcome)
	if e.event.LastError != "" {
		text += ": " + e.event.LastError
	}
	return text
}

// await returns an event that has ended, or as it is when the wait is over.
func (w *endWait) await(ctx context.Context, conn *client.Client, id int64) (client.Event, error) {
	waiting := ctx
	if w.limit > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, w.limit)
		defer cancel()
	}
	e, err := conn.WaitEvent(waiting, id)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		return conn.GetEvent(ctx, id)
	}
	return e, err
}

// errorOfEnd is the error that an event which was waited for makes the command fail with; nil if it is done.
func errorOfEnd(e client.Event) error {
	switch e.Outcome {
	case client.OutcomeDone:
		return nil
	case "":
		return &notEndedError{e.ID}
	}
	return &endedBadlyError{e}
}

// showEnd waits for the end of an event, and shows the event.
func showEnd(ctx context.Context, env *Env, conn *client.Client, output string, id int64, w endWait) error {
	event, err := w.await(ctx, conn, id)
	if err != nil {
		return err
	}
	if err := showEvent(ctx, env, conn, output, event); err != nil {
		return err
	}
	return errorOfEnd(event)
}
