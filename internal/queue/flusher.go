package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// flushTimeout bounds one shared statement. It is the flusher's own: a caller that gives up
// does not take its neighbours along.
const flushTimeout = 30 * time.Second

// maxFlushBytes bounds the payloads that calls share a statement with, as a batch over HTTP is
// bounded unless configured otherwise. A call that is larger has a statement to itself.
const maxFlushBytes = 8 << 20

// flusher lets concurrent calls of one kind share statements and commits. A flush starts
// whenever none is under way and takes what has gathered since the last one began, so that a lone call
// waits for nobody and a crowd pays for one commit. A caller is answered when its part is committed.
//
// There is one flush at a time: what gathers meanwhile makes the next one larger.
type flusher[In, Out any] struct {
	write func(context.Context, []In) ([]Out, error) // one statement, all or nothing, results in order
	size  func(In) int                               // bytes of an item's payload
	work  *sync.WaitGroup                            // counts the goroutine that flushes

	mu      sync.Mutex
	waiting []*flushCall[In, Out] // in order of arrival
	running bool
}

// flushCall is one caller's part: its items go into the same statement.
type flushCall[In, Out any] struct {
	items  []In
	bytes  int
	result chan flushResult[Out] // of capacity one: answering never blocks
}

type flushResult[Out any] struct {
	items []Out
	err   error
}

// do writes items and returns their results in order, or the error that kept all of them from being written.
// When ctx ends first the items may be written or not.
func (f *flusher[In, Out]) do(ctx context.Context, items []In) ([]Out, error) {
	if len(items) == 0 {
		return nil, nil
	}
	call := &flushCall[In, Out]{items: items, result: make(chan flushResult[Out], 1)}
	for _, item := range items {
		call.bytes += f.size(item)
	}
	f.mu.Lock()
	f.waiting = append(f.waiting, call)
	if !f.running {
		f.running = true
		f.work.Add(1)
		go f.run()
	}
	f.mu.Unlock()
	select {
	case r := <-call.result:
		return r.items, r.err
	case <-ctx.Done():
		f.forget(call)
		return nil, ctx.Err()
	}
}

// forget takes back a call that is not being written yet.
func (f *flusher[In, Out]) forget(call *flushCall[In, Out]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i := slices.Index(f.waiting, call); i >= 0 {
		f.waiting = slices.Delete(f.waiting, i, i+1)
	}
}

// run flushes until nothing waits any more.
func (f *flusher[In, Out]) run() {
	defer f.work.Done()
	for {
		calls := f.next()
		if len(calls) == 0 {
			return
		}
		f.flush(calls)
	}
}

// next takes the calls of the next flush: those that have waited longest, as far as the limits go.
func (f *flusher[In, Out]) next() []*flushCall[In, Out] {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, items, bytes := 0, 0, 0
	for _, c := range f.waiting {
		items, bytes = items+len(c.items), bytes+c.bytes
		if n > 0 && (items > MaxBatch || bytes > maxFlushBytes) {
			break
		}
		n++
	}
	calls := slices.Clone(f.waiting[:n])
	f.waiting = slices.Delete(f.waiting, 0, n)
	f.running = n > 0
	return calls
}

// flush writes the calls in one statement and answers them. When the database refuses the
// statement for what an item is, nothing of it was written, and the halves are tried by themselves, so that in the
// end the bad call fails alone. When it is unknown what was written, all of them hear so.
func (f *flusher[In, Out]) flush(calls []*flushCall[In, Out]) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	items := calls[0].items
	if len(calls) > 1 {
		items = slices.Clone(items)
		for _, c := range calls[1:] {
			items = append(items, c.items...)
		}
	}
	results, err := f.write(ctx, items)
	switch {
	case err == nil:
		for _, c := range calls {
			n := len(c.items)
			c.result <- flushResult[Out]{items: results[:n:n]}
			results = results[n:]
		}
	case len(calls) > 1 && (errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnrepresentable)):
		half := len(calls) / 2
		f.flush(calls[:half])
		f.flush(calls[half:])
	default:
		for _, c := range calls {
			c.result <- flushResult[Out]{err: err}
		}
	}
}
