// Package timelimit has contexts with a time limit that cost nothing until somebody needs more than the limit itself. A server gives one to each request, and
// nearly all requests end within it. It knows nothing else.
package timelimit

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A Context is a context with a limit, as context.WithDeadline makes them. It makes its timer, and is registered with its parent, when Done is called first: Receive does
// without. The zero value has no limit; its parent has to be set before anything else. It is safe for concurrent use, but for SetLimit.
type Context struct {
	context.Context // the parent

	deadline time.Time // zero: there is no limit
	within   atomic.Pointer[derived]

	mu      sync.Mutex
	isEnded bool
}

// A derived context is that of the standard library that a Context stands for.
type derived struct {
	context.Context
	cancel context.CancelFunc
}

// SetLimit sets the limit, once, before others than the caller use the Context. End it.
func (c *Context) SetLimit(limit time.Duration) { c.deadline = time.Now().Add(limit) }

// End ends the Context. It may be repeated.
func (c *Context) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isEnded = true
	if d := c.within.Load(); d != nil {
		d.cancel()
	}
}

// Deadline implements context.Context.
func (c *Context) Deadline() (time.Time, bool) {
	deadline, ok := c.Context.Deadline()
	if !c.deadline.IsZero() && (!ok || c.deadline.Before(deadline)) {
		return c.deadline, true
	}
	return deadline, ok
}

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	if c.deadline.IsZero() {
		return c.Context.Done()
	}
	d := c.within.Load()
	if d == nil {
		d = c.derive()
	}
	return d.Done()
}

func (c *Context) derive() *derived {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.within.Load()
	if d == nil {
		ctx, cancel := context.WithDeadline(c.Context, c.deadline)
		if c.isEnded {
			cancel()
		}
		d = &derived{ctx, cancel}
		c.within.Store(d)
	}
	return d
}

// Err implements context.Context.
func (c *Context) Err() error {
	if c.deadline.IsZero() {
		return c.Context.Err()
	}
	if d := c.within.Load(); d != nil {
		return d.Err()
	}
	if err := c.Context.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.isEnded:
		return context.Canceled
	case !time.Now().Before(c.deadline):
		return context.DeadlineExceeded
	}
	return nil
}

// Value implements context.Context.
func (c *Context) Value(key any) any {
	if d := c.within.Load(); d != nil { // contexts that were made of it find by a value what to register with
		return d.Value(key)
	}
	return c.Context.Value(key)
}

// bounds returns a channel that is closed when the parent ends, and the limit. It reports false when there is none, or when that has a timer of its own already.
func (c *Context) bounds() (parent <-chan struct{}, deadline time.Time, ok bool) {
	if c.deadline.IsZero() || c.within.Load() != nil {
		return nil, time.Time{}, false
	}
	return c.Context.Done(), c.deadline, true
}

// timers are stopped. They are used again by whoever comes: not by a test in a bubble of synctest, whose timers end in it alone.
var timers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}

// Receive receives from a channel. It fails with ctx's error when ctx ends first. For a Context, and what embeds one, that takes neither a timer nor a registration that
// have to be made.
func Receive[T any](ctx context.Context, from <-chan T) (received T, err error) {
	if limited, ok := ctx.(interface {
		bounds() (<-chan struct{}, time.Time, bool)
	}); ok {
		if parent, deadline, ok := limited.bounds(); ok {
			timer := timers.Get().(*time.Timer)
			defer timers.Put(timer)
			timer.Reset(time.Until(deadline))
			defer timer.Stop()
			select {
			case received = <-from:
				return received, nil
			case <-parent:
				return received, cmp.Or(ctx.Err(), context.Canceled)
			case <-timer.C:
			}
			return received, cmp.Or(ctx.Err(), context.DeadlineExceeded) // never nil, which would say that something was received
		}
	}
	select {
	case received = <-from:
		return received, nil
	case <-ctx.Done():
		return received, ctx.Err()
	}
}
