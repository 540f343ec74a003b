package timelimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/queued/queued/internal/timelimit"
)

// An embedding is a context as a server has them.
type embedding struct {
	timelimit.Context
}

func limited(parent context.Context, limit time.Duration) *embedding {
	c := &embedding{timelimit.Context{Context: parent}}
	c.SetLimit(limit)
	return c
}

func TestLimitEndsTheContextHoweverItIsLookedAt(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(ctx *embedding) error{
		"Receive": func(ctx *embedding) error { _, err := timelimit.Receive(ctx, make(chan int)); return err },
		"Done":    func(ctx *embedding) error { <-ctx.Done(); return ctx.Err() },
		"Receive from Done": func(ctx *embedding) error {
			_ = ctx.Done()
			_, err := timelimit.Receive(ctx, make(chan int))
			return err
		},
		"Err": func(ctx *embedding) error {
			for deadline, _ := ctx.Deadline(); time.Now().Before(deadline); <-time.After(time.Until(deadline)) {
			}
			return ctx.Err()
		},
		"a context made of it": func(ctx *embedding) error {
			of, cancel := context.WithCancel(ctx)
			defer cancel()
			<-of.Done()
			return of.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// With the clock of the system: timers are used again, and one of a bubble of synctest would never end outside of it.
			const limit = 20 * time.Millisecond
			ctx, began := limited(t.Context(), limit), time.Now()
			defer ctx.End()
			if err := wait(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(ctx.Err(), context.DeadlineExceeded) || time.Since(began) < limit {
				t.Errorf("it ended after %v with %v, and has the error %v", time.Since(began), err, ctx.Err())
			}
		})
	}
}

func TestEndOfTheParentEndsTheContext(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(ctx *embedding) error{
		"Receive": func(ctx *embedding) error { _, err := timelimit.Receive(ctx, make(chan int)); return err },
		"Done":    func(ctx *embedding) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent, cancel := context.WithCancel(t.Context())
			ctx := limited(parent, time.Hour)
			defer ctx.End()
			time.AfterFunc(time.Millisecond, cancel)
			if err := wait(ctx); !errors.Is(err, context.Canceled) || !errors.Is(ctx.Err(), context.Canceled) {
				t.Errorf("it ended with %v, and has the error %v", err, ctx.Err())
			}
		})
	}
}

func TestContextEndsOnceItIsEnded(t *testing.T) {
	t.Parallel()
	for _, isDerived := range []bool{false, true} {
		ctx := limited(t.Context(), time.Hour)
		if isDerived {
			_ = ctx.Done()
		}
		of, cancel := context.WithCancel(ctx)
		defer cancel()
		if ctx.Err() != nil {
			t.Errorf("it has the error %v from the beginning", ctx.Err())
		}
		ctx.End()
		ctx.End()
		<-ctx.Done()
		<-of.Done()
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("it has the error %v", ctx.Err())
		}
	}
}

func TestWhatIsReceivedInTimeIsReturned(t *testing.T) {
	t.Parallel()
	ctx := limited(t.Context(), time.Hour)
	defer ctx.End()
	for _, ctx := range []context.Context{ctx, t.Context()} {
		from := make(chan int, 1)
		from <- 7
		if got, err := timelimit.Receive(ctx, from); got != 7 || err != nil {
			t.Errorf("received %d, %v", got, err)
		}
	}
}

func TestDeadlineIsTheEarlierOfLimitAndParent(t *testing.T) {
	t.Parallel()
	parent, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ofParent, _ := parent.Deadline()
	for _, limit := range []time.Duration{time.Second, time.Hour} {
		ctx := limited(parent, limit)
		got, ok := ctx.Deadline()
		if !ok || got.After(ofParent) || (limit > time.Minute) != got.Equal(ofParent) {
			t.Errorf("with a limit of %v: %v, %v", limit, got, ok)
		}
		ctx.End()
	}
	var none embedding
	none.Context.Context = t.Context()
	if _, ok := none.Deadline(); ok || none.Err() != nil {
		t.Error("a context without a limit has one")
	}
}

// A waiter that needs no timer of its own is the point of the package.
//
//nolint:paralleltest // it counts allocations
func TestLimitThatIsNotReachedCostsNoAllocation(t *testing.T) {
	from := make(chan int, 1)
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	_ = parent.Done()
	ctx := new(embedding)
	if n := testing.AllocsPerRun(100, func() {
		from <- 1
		ctx.Context.Context = parent
		ctx.SetLimit(time.Hour)
		_, _ = timelimit.Receive(ctx, from) //nolint:contextcheck // its parent is that of the test
	}); n > 1 { // with the race detector a pool forgets what it has at times
		t.Errorf("%v allocations", n)
	}
	ctx.End()
}
