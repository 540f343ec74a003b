package pg

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/rounds"
)

// A Loop runs a pass again and again. It logs an error of a pass unless the pass before failed with the same, and when passes succeed
// again. A loop whose passes follow each other at once, because Next is short or Wakes receives each time, is held up unless its passes
// call Worked: see package rounds.
type Loop struct {
	Doing string // what a pass does, for the log: "firing schedules"
	Pass  func(context.Context) error
	Pause time.Duration // between two passes, give or take a quarter
	Retry time.Duration // the same after a pass that failed; zero: Pause
	// DelayFirst has the first pass come after a pause, too.
	DelayFirst bool
	// IsUpkeep has the first pass come after firstUpkeep, or a pause that is shorter: nobody waits for it, and a process that starts has more urgent work.
	IsUpkeep bool
	// Completes has a pass that has begun come to its end when ctx ends, within limits of its own: a write that is cut off may be committed all the same, and then what it has
	// written is written twice by whoever puts it back, or is lost by whoever does not.
	Completes bool
	// Next returns the pause after a pass that succeeded, exactly; nil: it is Pause.
	Next func(context.Context) time.Duration
	// Wakes is called before each pass. The pause after it ends when the channel is closed or receives. Nil: nothing ends it.
	Wakes func() <-chan struct{}

	rounds *rounds.Loop // set by RunLoops; nil: passes are not counted
}

// firstUpkeep is when a process that has started does upkeep for the first time.
const firstUpkeep = 3 * time.Second

type workedKey struct{}

// Worked tells the Loop that called a pass with ctx that the pass has got something done, or had nothing to ask the database.
func Worked(ctx context.Context) {
	if worked, ok := ctx.Value(workedKey{}).(*atomic.Bool); ok {
		worked.Store(true)
	}
}

// Run runs passes until ctx ends.
func (l Loop) Run(ctx context.Context, log zerolog.Logger) {
	passContext := ctx
	if l.Completes {
		passContext = context.WithoutCancel(ctx)
	}
	var worked atomic.Bool
	passContext = context.WithValue(passContext, workedKey{}, &worked)
	limiter, waited := l.rounds.Limiter(), rounds.MinWait
	reported, passes := "", 0 // the error of the last pass, and how many have failed since one succeeded
	if l.IsUpkeep && !pauseUntil(ctx, min(firstUpkeep, l.Pause), nil) {
		return
	}
	for isDue := !l.DelayFirst; ; isDue = true {
		pause := Jittered(l.Pause)
		var wakes <-chan struct{}
		if l.Wakes != nil {
			wakes = l.Wakes()
		}
		if isDue {
			worked.Store(false)
			err := l.Pass(passContext)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				passes++
				if err.Error() != reported {
					log.Error().Func(failure.Of(err)).Msg(l.Doing + " failed; it is tried again")
				}
				reported = err.Error()
				pause = Jittered(cmp.Or(l.Retry, l.Pause))
			default:
				if passes > 0 {
					log.Info().Int("failed_passes", passes).Msg(l.Doing + " works again")
				}
				reported, passes = "", 0
				if l.Next != nil {
					pause = l.Next(ctx)
				}
			}
		}
		if isDue && limiter.Pause(ctx, waited < rounds.MinWait && !worked.Load()) != nil {
			return
		}
		began := time.Now()
		if !pauseUntil(ctx, pause, wakes) {
			return
		}
		waited = time.Since(began)
	}
}

// RunLoops runs loops, and tells subscribers of the notifications of their channels, until ctx ends.
func (db *Database) RunLoops(ctx context.Context, log zerolog.Logger, subscribers []Subscriber, loops ...Loop) {
	var running sync.WaitGroup
	for _, s := range subscribers {
		running.Go(func() { db.Listen(ctx, s) })
	}
	for _, l := range loops {
		l.rounds = db.Rounds.Loop(l.Doing)
		running.Go(func() { l.Run(ctx, log) })
	}
	running.Wait()
}

// A Signal wakes the one who receives from it. Those that gather meanwhile count as one.
type Signal chan struct{}

// NewSignal returns a Signal.
func NewSignal() Signal { return make(Signal, 1) }

// Send wakes the receiver, now or when it next receives. It never blocks.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Received returns the channel to receive from.
func (s Signal) Received() <-chan struct{} { return s }

// Pause waits for d and reports whether it passed before ctx ended.
func Pause(ctx context.Context, d time.Duration) bool { return pauseUntil(ctx, d, nil) }

// pauseUntil is Pause that ends when wakes is closed or receives, too.
func pauseUntil(ctx context.Context, d time.Duration, wakes <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-wakes:
	}
	return true
}

// phase is when this process began to count time in Jittered: another one in each process.
var phase = time.Now().Add(-rand.N(time.Hour)) //nolint:gosec // jitter, no secret

// Jittered returns d, give or take a quarter, so that the loops of many processes do not ask at the same time. Those of one process that
// pause for the same time do: an idle process wakes up less often then, which is most of what it costs.
func Jittered(d time.Duration) time.Duration {
	earliest, step := d*3/4, max(d/2, 1)
	return earliest + step - (time.Since(phase)+earliest)%step
}
