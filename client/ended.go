package client

import "errors"

// An End is how the work on an event has ended.
type End string

const (
	// EndDone means that the event was acked.
	EndDone End = "done"
	// EndFailed means that the event was nacked for good: it is in history.
	EndFailed End = "failed"
	// EndExhausted means that the event was nacked and has no attempts left: see [Nacked].
	EndExhausted End = "failed, no attempts left"
	// EndRetried means that the event was nacked, and waits for its next attempt.
	EndRetried End = "retried"
	// EndGivenBack means that the worker stopped before the handler had ended, or begun; or that the event was claimed ahead, and no slot was free in time.
	EndGivenBack End = "given back"
	// EndLost means that somebody else has the event: its lease was lost.
	EndLost End = "lost"
	// EndUnknown means that the server has not answered, or has refused the call.
	EndUnknown End = "unknown"
)

// An Ended is an event that a worker no longer works on.
type Ended struct {
	Event Event
	End   End
	// Err is the error of the handler, or of the call that told the server; nil: it is done, or was given
	// back before its handler had begun.
	Err error
}

// ended tells OnEnd how the work on an event has ended. failure is the handler's error, and err that of the call.
func (r *workerRun) ended(l *lease, end End, failure, err error) {
	if r.cfg.OnEnd == nil {
		return
	}
	e := Ended{Event: l.event, End: end, Err: failure}
	switch {
	case errors.Is(err, ErrLeaseLost), errors.Is(err, ErrNotFound):
		e.End, e.Err = EndLost, err
	case err != nil:
		e.End, e.Err = EndUnknown, err
	}
	r.cfg.OnEnd(e)
}

// endOf returns how the work on an event has ended that was nacked because of failure.
func (r *workerRun) endOf(l *lease, n Nacked, failure error) End {
	switch {
	case n.Outcome != "":
		return EndFailed
	case n.Exhausted && l.event.Attempts >= r.cfg.MaxAttempts: // else this worker claims it again
		return EndExhausted
	case errors.Is(failure, ErrStopping):
		return EndGivenBack
	}
	return EndRetried
}
