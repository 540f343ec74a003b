package groupcommit_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queued/queued/internal/groupcommit"
)

type operation struct {
	groupcommit.Ticket
	items, bytes int
	bad          bool // its commits are rejected
	contended    bool // its commits lose a race, unless it is committed apart
}

func newOperation(items, bytes int) *operation {
	return &operation{Ticket: groupcommit.NewTicket(items, bytes), items: items, bytes: bytes}
}

var (
	errRejected    = errors.New("rejected")
	errLostRace    = errors.New("lost a race")
	errUnavailable = errors.New("unavailable")
	errOverloaded  = errors.New("overloaded")
	errClosed      = errors.New("closed")
	errBehind      = errors.New("behind a commit that hung")
)

// env is a committer whose commits take a second each and are recorded.
type env struct {
	*groupcommit.Committer[*operation]

	mu      sync.Mutex
	commits [][]*operation // that succeeded
	down    bool           // the next commits hang until their time is up
	busy    int            // running commits
	most    int            // commits that ran at the same time
}

func setup(t *testing.T, change func(*groupcommit.Config[*operation])) *env {
	t.Helper()
	e := &env{}
	cfg := groupcommit.Config[*operation]{
		Writers: 1, WriterItems: 10, MaxItems: 100, MaxBytes: 1000, MaxPending: 1000, MaxPendingBytes: 100_000,
		Timeout: 10 * time.Second, HangThreshold: 2 * time.Second,
		Commit:      e.commit,
		CommitApart: func(ctx context.Context, op *operation) error { return e.succeed(ctx, []*operation{op}) },
		Contended: func(_ context.Context, ops []*operation) []*operation {
			return slices.DeleteFunc(slices.Clone(ops), func(op *operation) bool { return !op.contended })
		},
		Judge: func(err error) groupcommit.Verdict {
			switch {
			case errors.Is(err, errRejected):
				return groupcommit.Rejected
			case errors.Is(err, errLostRace):
				return groupcommit.LostRace
			case errors.Is(err, errUnavailable):
				return groupcommit.Unavailable
			}
			return groupcommit.Failed
		},
		Overloaded: errOverloaded, Closed: errClosed, BehindUnavailable: errBehind,
	}
	if change != nil {
		change(&cfg)
	}
	e.Committer = groupcommit.New(cfg)
	return e
}

func (e *env) commit(ctx context.Context, ops []*operation) error {
	e.mu.Lock()
	down := e.down
	e.busy++
	e.most = max(e.most, e.busy)
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		e.busy--
		e.mu.Unlock()
	}()
	switch {
	case down:
		<-ctx.Done()
		return errUnavailable
	case slices.ContainsFunc(ops, func(op *operation) bool { return op.bad }):
		return errRejected
	case slices.ContainsFunc(ops, func(op *operation) bool { return op.contended }):
		return errLostRace
	}
	return e.succeed(ctx, ops)
}

func (e *env) succeed(_ context.Context, ops []*operation) error {
	<-time.After(time.Second)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.commits = append(e.commits, slices.Clone(ops))
	return nil
}

// count returns how often an operation was committed.
func (e *env) count(op *operation) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ops := range e.commits {
		for _, o := range ops {
			if o == op {
				n++
			}
		}
	}
	return n
}

// sizes returns how many operations each commit had.
func (e *env) sizes() (sizes []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ops := range e.commits {
		sizes = append(sizes, len(ops))
	}
	return sizes
}

// begin starts operations one after the other, each by a caller of its own, and returns their answers.
func (e *env) begin(ctx context.Context, ops ...*operation) []<-chan error {
	answers := make([]<-chan error, len(ops))
	for i, op := range ops {
		answer := make(chan error, 1)
		answers[i] = answer
		go func() { answer <- e.Do(ctx, op) }()
		synctest.Wait()
	}
	return answers
}

func many(n int) []*operation { return made(slices.Repeat([]size{{1, 1}}, n)) }

// size is that of an operation. The operations themselves are made in the bubble of the test.
type size struct{ items, bytes int }

func made(sizes []size) []*operation {
	ops := make([]*operation, len(sizes))
	for i, s := range sizes {
		ops[i] = newOperation(s.items, s.bytes)
	}
	return ops
}

func succeeded(t *testing.T, answers ...<-chan error) {
	t.Helper()
	for i, answer := range answers {
		if err := <-answer; err != nil {
			t.Errorf("operation %d failed: %v", i, err)
		}
	}
}

func TestOperationsThatGatherShareACommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ops  []size
		want []int // operations of each commit after the first
	}{
		"all of them":                   {slices.Repeat([]size{{1, 1}}, 9), []int{9}},
		"up to MaxItems":                {slices.Repeat([]size{{40, 1}}, 5), []int{2, 2, 1}},
		"up to MaxBytes":                {slices.Repeat([]size{{1, 400}}, 4), []int{2, 2}},
		"but a larger one by itself":    {[]size{{1, 1}, {1, 5000}, {1, 1}}, []int{1, 1, 1}},
		"and one of many items as well": {[]size{{500, 1}, {1, 1}}, []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := setup(t, nil)
				start := time.Now()
				succeeded(t, e.begin(t.Context(), newOperation(1, 1))...)
				if took := time.Since(start); took != time.Second {
					t.Errorf("a lone operation took %v, want the second of its own commit", took)
				}
				answers := e.begin(t.Context(), append(many(1), made(c.ops)...)...)
				succeeded(t, answers...)
				if sizes := e.sizes(); !slices.Equal(sizes[2:], c.want) {
					t.Errorf("the commits had %v operations, want %v", sizes[2:], c.want)
				}
			})
		})
	}
}

func TestSecondWriterStartsWhenEnoughWaits(t *testing.T) {
	t.Parallel()
	for waiting, want := range map[int]int{9: 1, 10: 2} {
		synctest.Test(t, func(t *testing.T) {
			e := setup(t, func(c *groupcommit.Config[*operation]) { c.Writers = 3 })
			succeeded(t, e.begin(t.Context(), many(1+waiting)...)...)
			if e.most != want {
				t.Errorf("with %d waiting there were %d commits at once, want %d", waiting, e.most, want)
			}
		})
	}
}

func TestRejectedOperationFailsAlone(t *testing.T) {
	t.Parallel()
	for bad := range 9 {
		synctest.Test(t, func(t *testing.T) {
			e := setup(t, nil)
			ops := many(10)
			ops[bad+1].bad = true
			for i, answer := range e.begin(t.Context(), ops...) {
				if err := <-answer; errors.Is(err, errRejected) != ops[i].bad {
					t.Errorf("operation %d of those beside bad operation %d answered %v", i, bad+1, err)
				}
			}
		})
	}
}

func TestContendedOperationHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"when it is known": true, "when none is known": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				lock := make(chan struct{})
				var e *env
				e = setup(t, func(c *groupcommit.Config[*operation]) {
					c.CommitApart = func(ctx context.Context, op *operation) error {
						if op.contended {
							<-lock
						}
						return e.succeed(ctx, []*operation{op})
					}
					if !known {
						c.Contended = func(context.Context, []*operation) []*operation { return nil }
					}
				})
				ops := many(6)
				ops[3].contended = true
				answers := e.begin(t.Context(), ops...)
				succeeded(t, answers[:3]...)
				succeeded(t, answers[4:]...)
				select {
				case err := <-answers[3]:
					t.Errorf("the contended operation answered %v before it had its lock", err)
				default:
				}
				close(lock)
				succeeded(t, answers[3])
			})
		})
	}
}

func TestOperationsBehindACommitThatHungFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := setup(t, nil)
		e.down = true
		answers := e.begin(t.Context(), many(5)...)
		if err := <-answers[0]; !errors.Is(err, errUnavailable) {
			t.Errorf("the operation that hung answered %v", err)
		}
		for _, answer := range answers[1:] {
			if err := <-answer; !errors.Is(err, errBehind) {
				t.Errorf("an operation behind it answered %v", err)
			}
		}
		e.down = false
		succeeded(t, e.begin(t.Context(), newOperation(1, 1))...)
	})
}

func TestOperationsBehindOneRefusedAtOnceAreTried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused := make(chan struct{})
		var e *env
		e = setup(t, func(c *groupcommit.Config[*operation]) {
			c.Commit = func(ctx context.Context, ops []*operation) error {
				if ops[0].bad {
					<-refused
					return errUnavailable
				}
				return e.succeed(ctx, ops)
			}
		})
		ops := many(3)
		ops[0].bad = true
		answers := e.begin(t.Context(), ops...)
		close(refused)
		if err := <-answers[0]; !errors.Is(err, errUnavailable) {
			t.Errorf("the refused operation answered %v", err)
		}
		succeeded(t, answers[1:]...)
	})
}

func TestPendingOperationsAreBounded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ops     []size
		refused int // of them
	}{
		"by their number":               {slices.Repeat([]size{{1, 1}}, 1005), 5},
		"by their bytes":                {slices.Repeat([]size{{1, 30_000}}, 5), 2},
		"but a lone one of any size":    {[]size{{1, 200_000}}, 0},
		"and not beside a large one":    {[]size{{1, 200_000}, {1, 1}}, 1},
		"nor a large one beside others": {[]size{{1, 1}, {1, 100_000}}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := setup(t, nil)
				answers := e.begin(t.Context(), made(c.ops)...)
				urgent := newOperation(1, 1)
				if err := e.Start(urgent); err != nil {
					t.Errorf("an operation of Start: %v", err)
				}
				taken := len(c.ops) - c.refused
				for _, answer := range answers[taken:] {
					if err := <-answer; !errors.Is(err, errOverloaded) {
						t.Errorf("an operation beyond the bound answered %v", err)
					}
				}
				succeeded(t, answers[:taken]...)
				if err := urgent.Wait(); err != nil {
					t.Errorf("an operation of Start failed: %v", err)
				}
				succeeded(t, e.begin(t.Context(), newOperation(1, 100_000))...) // nothing is pending any more
			})
		})
	}
}

func TestOperationIsForgottenWhenItsCallerLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := setup(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ops := many(4)
		gone := e.begin(ctx, ops[0], ops[1]) // the first is being committed, the second waits
		stays := e.begin(t.Context(), ops[2], ops[3])
		cancel()
		for _, answer := range gone {
			if err := <-answer; !errors.Is(err, context.Canceled) {
				t.Errorf("the caller who left got %v", err)
			}
		}
		succeeded(t, stays...)
		for i, want := range []int{1, 0, 1, 1} {
			if n := e.count(ops[i]); n != want {
				t.Errorf("operation %d was committed %d times, want %d", i, n, want)
			}
		}
	})
}

func TestOperationsThatJoinShareTheCommitAndTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		joins := newOperation(1, 10)
		offered := []*operation{joins}
		e := setup(t, func(c *groupcommit.Config[*operation]) {
			c.Join = func([]*operation) (ops []*operation) {
				ops, offered = offered, nil
				return ops
			}
		})
		succeeded(t, e.begin(t.Context(), newOperation(1, 1))...)
		if err := joins.Wait(); err != nil || !slices.Equal(e.sizes(), []int{2}) {
			t.Errorf("it answered %v, in commits of %v operations", err, e.sizes())
		}
	})
}

func TestCloseWaitsForWhatIsPendingAndRefusesMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := setup(t, nil)
		answers := e.begin(t.Context(), many(5)...)
		e.Close()
		synctest.Wait() // until the callers have taken note of their answers
		for i, answer := range answers {
			select {
			case err := <-answer:
				if err != nil {
					t.Errorf("operation %d failed: %v", i, err)
				}
			default:
				t.Errorf("operation %d had no answer when Close returned", i)
			}
		}
		if err := e.Do(t.Context(), newOperation(1, 1)); !errors.Is(err, errClosed) {
			t.Errorf("an operation after Close: %v", err)
		}
		if err := e.Start(newOperation(1, 1)); !errors.Is(err, errClosed) {
			t.Errorf("an operation of Start after Close: %v", err)
		}
	})
}

// TestEachOperationIsAnsweredOnceAfterItsCommit makes many operations at random: good, bad, contended, and such whose callers leave.
func TestEachOperationIsAnsweredOnceAfterItsCommit(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		var e *env
		e = setup(t, func(c *groupcommit.Config[*operation]) {
			c.Writers, c.MaxItems, c.MaxBytes = 4, 50, 500
			c.Commit = func(ctx context.Context, ops []*operation) error {
				items, bytes := 0, 0
				for _, op := range ops {
					items, bytes = items+op.items, bytes+op.bytes
				}
				if len(ops) > 1 && (items > 50 || bytes > 500) {
					t.Errorf("a commit of %d operations has %d items and %d bytes", len(ops), items, bytes)
				}
				return e.commit(ctx, ops)
			}
		})
		var callers sync.WaitGroup
		for i := range 500 {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			op := newOperation(1+rng.IntN(20), rng.IntN(200))
			op.bad, op.contended = rng.IntN(20) == 0, rng.IntN(10) == 0
			leaves := rng.IntN(10) == 0
			starts, stays := time.Duration(rng.Int64N(int64(10*time.Second))), time.Duration(rng.Int64N(int64(5*time.Second)))
			callers.Go(func() {
				<-time.After(starts)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if leaves {
					ctx, cancel = context.WithTimeout(ctx, stays)
					defer cancel()
				}
				err := e.Do(ctx, op)
				n := e.count(op)
				switch {
				case errors.Is(err, context.DeadlineExceeded):
					if n > 1 {
						t.Errorf("operation %d, whose caller has left, was committed %d times", i, n)
					}
				case errors.Is(err, errRejected):
					if !op.bad || n != 0 {
						t.Errorf("operation %d was rejected, though it is bad: %v, and was committed %d times", i, op.bad, n)
					}
				case err != nil || n != 1:
					t.Errorf("operation %d answered %v, and had been committed %d times", i, err, n)
				}
			})
		}
		callers.Wait()
		e.Close()
		if waiting, writers := e.Waiting(); waiting != 0 || writers != 0 {
			t.Errorf("in the end %d operations wait, and %d writers are at work", waiting, writers)
		}
		if e.most > 4 {
			t.Errorf("%d commits ran at once", e.most)
		}
	})
}
