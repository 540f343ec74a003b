package client

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxAcks is how many acks a batch can have, and maxAckBytes how large their results may be together. Servers take 8 MiB unless told
	// otherwise.
	maxAcks     = 1000
	maxAckBytes = 4 << 20
)

// A lease is an event that the worker holds.
type lease struct {
	event  Event
	length time.Duration
	ctx    context.Context // of the handler; its end says that the lease is lost
	end    context.CancelCauseFunc
	result json.RawMessage

	isSettled atomic.Bool // an ack, a nack or a release is on its way
	isBegun   bool        // the handler was called
	unacked   error       // the cell of the event, behind a gateway, was away when it was acked

	mu     sync.Mutex
	until  time.Time   // it lasts at least until then, unless somebody else ended it
	timer  *time.Timer // ends ctx then
	isOver bool
}

// newLease returns the lease on an event whose claim was sent at asked. The server has claimed it when it answered, which it did when the
// wait was over at the latest: should this process have been stopped since, that time counts.
func (r *workerRun) newLease(e Event, asked time.Time) *lease {
	claimed := time.Now()
	if latest := asked.Add(r.cfg.Wait); latest.Before(claimed) {
		claimed = latest
	}
	l := &lease{event: e, length: r.cfg.Lease}
	l.ctx, l.end = context.WithCancelCause(r.handling)
	l.timer = time.AfterFunc(time.Until(claimed.Add(l.length)), func() { l.end(ErrLeaseLost) })
	l.until = claimed.Add(l.length)
	return l
}

// age returns how long ago the lease began, or was extended.
func (l *lease) age() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.length - time.Until(l.until)
}

// isStale reports whether the lease should have been extended by now.
func (l *lease) isStale() bool { return l.age() > l.length/3 }

// settle reports whether the caller is the first to end the attempt.
func (l *lease) settle() bool { return l.isSettled.CompareAndSwap(false, true) }

// extended notes that the lease was extended by a call that was sent at sent.
func (l *lease) extended(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = sent.Add(l.length)
	if !l.isOver {
		l.timer.Reset(time.Until(l.until))
	}
}

// close ends the handler's context.
func (l *lease) close(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isOver = true
	l.timer.Stop()
	l.end(cause)
}

// drop forgets a lease that is over.
func (r *workerRun) drop(l *lease) {
	l.close(ErrLeaseLost)
	r.mu.Lock()
	if r.held[l.event.ID] == l { // else the event was claimed again
		delete(r.held, l.event.ID)
	}
	r.mu.Unlock()
	wake(r.freed)
}

// heartbeat extends every lease that is held, at each third of its length, until settling ends.
func (r *workerRun) heartbeat() {
	beat := time.NewTicker(max(r.cfg.Lease/3, time.Millisecond))
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			r.extendAll()
		case <-r.settling.Done():
			return
		}
	}
}

// extendAll extends the leases that are due, as many with one call as one can have.
func (r *workerRun) extendAll() {
	r.mu.Lock()
	held := slices.Collect(maps.Values(r.held))
	r.mu.Unlock()
	held = slices.DeleteFunc(held, func(l *lease) bool { return l.age() < l.length/6 }) // the next beat is early enough, and most work is done by then
	for batch := range slices.Chunk(held, maxAcks) {
		if len(batch) == 1 {
			r.extend(batch[0])
		} else {
			r.extendBatch(batch)
		}
	}
}

// extendBatch extends leases with one call.
func (r *workerRun) extendBatch(batch []*lease) {
	sent := time.Now()
	ctx, cancel := context.WithTimeout(r.settling, r.cfg.Lease/3)
	defer cancel()
	held := make([]Held, len(batch))
	for i, l := range batch {
		held[i] = Held{l.event.ID, l.event.Receipt}
	}
	results, err := r.client.ExtendBatch(ctx, held, r.cfg.Lease)
	for i, l := range batch {
		if err == nil {
			r.noteExtended(l, sent, results[i].Err())
		} else {
			r.noteExtended(l, sent, err)
		}
	}
}

// extend extends a lease.
func (r *workerRun) extend(l *lease) {
	sent := time.Now()
	ctx, cancel := context.WithTimeout(r.settling, l.length/3)
	defer cancel()
	_, err := r.client.Extend(ctx, l.event.ID, l.event.Receipt, l.length)
	r.noteExtended(l, sent, err)
}

// noteExtended notes the result of an extend that was sent at sent. It ends the handler's context if the lease is lost; after another error the next beat tries
// again.
func (r *workerRun) noteExtended(l *lease, sent time.Time, err error) {
	switch {
	case err == nil:
		l.extended(sent)
	case errors.Is(err, ErrLeaseLost), errors.Is(err, ErrNotFound):
		if !l.isSettled.Load() { // else it is done, or was given back
			l.close(ErrLeaseLost)
			r.log(l, slog.LevelWarn, "the lease is lost", err)
		}
	case r.settling.Err() == nil:
		r.log(l, slog.LevelWarn, "extending failed", err)
	}
}

func (r *workerRun) log(l *lease, level slog.Level, message string, err error) {
	r.cfg.Logger.Log(l.ctx, level, message, "queue", l.event.Queue, "id", l.event.ID, "type", l.event.Type, "attempt", l.event.Attempts, "error", err)
}

// nack nacks an event with the error of its handler. Where the event is on a cell behind a gateway that is away, it is nacked in the background, so that the slot of the handler
// is free for events of others.
func (r *workerRun) nack(l *lease, failure error) {
	r.log(l, slog.LevelInfo, "the handler failed", failure)
	params := nackOf(l.event.Receipt, failure)
	nacked, err := r.client.nack(r.settling, l.event.ID, params, true)
	if isOfCellAway(err) {
		r.goApart(1, func() {
			nacked, err := r.client.Nack(r.settling, l.event.ID, params)
			r.noteNacked(l, failure, nacked, err)
		})
		return
	}
	r.noteNacked(l, failure, nacked, err)
}

// noteNacked notes the answer to a nack.
func (r *workerRun) noteNacked(l *lease, failure error, nacked Nacked, err error) {
	if err != nil {
		r.log(l, slog.LevelWarn, "nacking failed", err)
		r.noteRefusal(err)
	}
	r.ended(l, r.endOf(l, nacked, failure), failure, err)
	r.drop(l)
}

// isOfCellAway reports whether err is of a cell behind a gateway, and the call can succeed later.
func isOfCellAway(err error) bool { return cellOf(err) != nil && doubtOf(err) != refused }

// goApart has calls about n events made in the background. They count until they have returned, as acks that are pending do.
func (r *workerRun) goApart(n int, calls func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settling.Err() != nil { // nobody waits for goroutines any more, and the calls end at once
		go calls()
		return
	}
	r.apart += n
	r.background.Go(func() {
		calls()
		r.mu.Lock()
		r.apart -= n
		r.mu.Unlock()
		wake(r.freed)
	})
}

// release gives events back whose work has not begun, without using up their attempts. It takes a bounded time, as what
// claims waits for it: where there is no answer by then, the leases have to end.
func (r *workerRun) release(leases []*lease) {
	ctx, cancel := context.WithTimeout(r.settling, stopLimit)
	defer cancel()
	for batch := range slices.Chunk(leases, maxAcks) {
		held := make([]Held, len(batch))
		for i, l := range batch {
			held[i] = Held{l.event.ID, l.event.Receipt}
		}
		_, err := r.client.ReleaseBatch(ctx, held, 0)
		for _, l := range batch {
			if err != nil {
				r.log(l, slog.LevelWarn, "releasing failed", err)
			}
			r.ended(l, EndGivenBack, nil, err)
			r.drop(l)
		}
	}
}

// noteRefusal stops the worker if the server refuses it. Refusals of one event are none.
func (r *workerRun) noteRefusal(err error) {
	if errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrForbidden) {
		r.refuse(err)
	}
}

// ack has an event acked with the next batch.
func (r *workerRun) ack(l *lease) {
	r.mu.Lock()
	r.pending = append(r.pending, l)
	r.mu.Unlock()
	wake(r.ackable)
}

// sendAcks sends the acks that wait, one batch at a time: an ack that is alone is sent at once, and those that come while a batch is on its
// way go with the next. So acks gather when there are many, and none waits for a timer.
func (r *workerRun) sendAcks() {
	for {
		if batch := r.nextAcks(); len(batch) > 0 {
			r.ackBatch(batch)
			r.mu.Lock()
			r.pending = slices.Delete(r.pending, 0, len(batch)) // not before: it counts as pending until it is acked
			r.mu.Unlock()
			wake(r.freed)
			continue
		}
		select {
		case <-r.ackable:
		case <-r.noMoreAcks:
			if r.nextAcks() == nil {
				return
			}
		case <-r.settling.Done():
			return
		}
	}
}

// nextAcks returns the leases of the next batch.
func (r *workerRun) nextAcks() []*lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, size := 0, 0
	for ; n < len(r.pending) && n < maxAcks; n++ {
		if size += len(r.pending[n].result); n > 0 && size > maxAckBytes {
			break
		}
	}
	return slices.Clone(r.pending[:n])
}

// ackBatch acks events. When the server refuses the batch because of one of them, each is sent alone. Those of a cell behind a gateway that is away are sent in the background
// until it answers, so that they hold up no others.
func (r *workerRun) ackBatch(batch []*lease) {
	away := map[int][]*lease{} // by their cells
	results, err := r.client.ackBatch(r.settling, acksOf(batch), true)
	if isOfCellAway(err) {
		away[*cellOf(err)] = batch
	} else {
		for _, l := range r.noteAcks(batch, results, err) {
			cell := *cellOf(l.unacked)
			away[cell] = append(away[cell], l)
		}
	}
	for _, leases := range away {
		r.goApart(len(leases), func() { r.ackApart(leases) })
	}
}

// ackApart acks events of one cell until it answers.
func (r *workerRun) ackApart(batch []*lease) {
	for try := 1; len(batch) > 0; try++ {
		results, err := r.client.AckBatch(r.settling, acksOf(batch))
		if batch = r.noteAcks(batch, results, err); len(batch) > 0 && sleep(r.settling, pauseBefore(try, nil)) != nil {
			r.noteAcks(batch, nil, context.Cause(r.settling))
			return
		}
	}
}

func acksOf(batch []*lease) []Ack {
	acks := make([]Ack, len(batch))
	for i, l := range batch {
		acks[i] = Ack{ID: l.event.ID, Receipt: l.event.Receipt, Result: l.result}
	}
	return acks
}

// noteAcks notes the answer to acks, and returns those of cells that are away.
func (r *workerRun) noteAcks(batch []*lease, results []AckResult, err error) (away []*lease) {
	var e *Error
	if errors.As(err, &e) && isOfTheBody(e.Status) {
		if len(batch) == 1 {
			r.nack(batch[0], Final(&refusedResult{e}))
			return nil
		}
		for _, l := range batch {
			r.ackBatch([]*lease{l})
		}
		return nil
	}
	if err != nil {
		r.noteRefusal(err)
	}
	for i, l := range batch {
		if err != nil {
			r.log(l, slog.LevelError, "acking failed", err)
			r.ended(l, EndUnknown, nil, err)
			r.drop(l)
			continue
		}
		lost := results[i].Err()
		if isOfCellAway(lost) {
			l.unacked = lost
			away = append(away, l)
			continue
		}
		if lost != nil {
			r.log(l, slog.LevelWarn, "the work is done, but somebody else has the event", lost)
		}
		r.ended(l, EndDone, nil, lost)
		r.drop(l)
	}
	return away
}

// isOfTheBody reports whether a status says that something in the body is wrong.
func isOfTheBody(status int) bool {
	return status == http.StatusUnprocessableEntity || status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge
}

// A refusedResult is the error of an event whose work is done, and whose result the server cannot store.
type refusedResult struct{ err error }

// Error implements error.
func (e *refusedResult) Error() string {
	return "the work is done, but the server refused its result: " + e.err.Error()
}
