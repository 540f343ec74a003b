package topic

import (
	"context"
	"sync"
	"time"

	"github.com/queued/queued/internal/pg"
)

// A subscriptionState is what differs when those who wait for a subscription have to look at it again. Zero: there is no such subscription.
type subscriptionState struct {
	ID, Version    int64
	FiltersVersion int64
	Token, Epoch   int64
	IsLeased       bool
}

// watches are the subscriptions that somebody waits for or streams in this process. One statement at a time asks for all of them, however many there
// are, and keeps those from expiring that can.
type watches struct {
	wake pg.Signal // somebody has asked for a state

	mu        sync.Mutex
	byName    map[string]*watch
	isRunning bool
	passedAt  time.Time     // when the state of all was last asked for
	pause     time.Duration // until the next time
}

// A watch is one of them.
type watch struct {
	name    string
	users   int
	isKnown bool
	state   subscriptionState
	changed chan struct{} // closed when the state is another one, or may be
	asked   *answer       // for those who have asked since the last statement began; nil: nobody has
}

// An answer is a state that was read after it was asked for.
type answer struct {
	done  chan struct{}
	state subscriptionState
	err   error
}

func newWatches(pause time.Duration) *watches {
	return &watches{wake: pg.NewSignal(), byName: make(map[string]*watch), pause: pause}
}

func (ws *watches) join(name string) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.byName[name]
	if w == nil {
		w = &watch{name: name, changed: make(chan struct{})}
		ws.byName[name] = w
	}
	w.users++
	return w
}

func (ws *watches) leave(w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.users--; w.users == 0 {
		delete(ws.byName, w.name)
	}
}

// changes returns a channel that is closed when the subscription is not as it is now.
func (ws *watches) changes(w *watch) <-chan struct{} {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.changed
}

// signal makes those look again who wait for the subscription of a name.
func (ws *watches) signal(name string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byName[name]; w != nil {
		w.signal()
	}
}

// signal wakes those who wait. The caller holds the lock.
func (w *watch) signal() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// setRunning says whether Run asks for states. When it does no more, nobody is left waiting for an answer.
func (ws *watches) setRunning(isRunning bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.isRunning = isRunning
	for _, w := range ws.byName {
		w.signal()
		if w.asked != nil && !isRunning {
			w.asked.err = ErrDraining
			close(w.asked.done)
			w.asked = nil
		}
	}
}

// ask returns the answer to come, or nil if Run does not run.
func (ws *watches) ask(w *watch) *answer {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !ws.isRunning {
		return nil
	}
	if w.asked == nil {
		w.asked = &answer{done: make(chan struct{})}
		ws.wake.Send()
	}
	return w.asked
}

// lookAt returns the state of a subscription as it is now or later.
func (s *Service) lookAt(ctx context.Context, w *watch) (subscriptionState, error) {
	a := s.watches.ask(w)
	if a == nil {
		states, _, err := s.subscriptionStates(ctx, []string{w.name})
		return states[w.name], err
	}
	select {
	case <-a.done:
		return a.state, a.err
	case <-ctx.Done():
		return subscriptionState{}, ctx.Err()
	}
}

// watchSubscriptions asks for the states of subscriptions that somebody has asked for, and from time to time for those of all that are watched.
func (s *Service) watchSubscriptions(ctx context.Context) error {
	answers, names := s.watches.begin(time.Now())
	if len(names) == 0 {
		return nil
	}
	states, expiresAfter, err := s.subscriptionStates(ctx, names)
	pause := s.cfg.watchInterval()
	if expiresAfter > 0 {
		pause = min(pause, expiresAfter/4)
	}
	s.watches.end(answers, states, pause, err)
	return err
}

// watchInterval is how long a change of another process goes unnoticed by those who wait.
func (c Config) watchInterval() time.Duration { return c.PollInterval / 2 }

// untilWatch is the time until the states of all subscriptions that are watched have to be asked for.
func (s *Service) untilWatch(context.Context) time.Duration {
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	return time.Until(s.watches.passedAt.Add(s.watches.pause))
}

// begin returns which subscriptions to ask for, each with the answer that somebody waits for, or nil.
func (ws *watches) begin(now time.Time) (answers map[*watch]*answer, names []string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	isDue := now.Sub(ws.passedAt) >= ws.pause
	if isDue {
		ws.passedAt = now
	}
	answers = make(map[*watch]*answer)
	for name, w := range ws.byName {
		if isDue || w.asked != nil {
			answers[w], w.asked = w.asked, nil
			names = append(names, name)
		}
	}
	return answers, names
}

// end gives the answers, and wakes those whose subscription has changed.
func (ws *watches) end(answers map[*watch]*answer, states map[string]subscriptionState, pause time.Duration, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(answers) >= len(ws.byName) || pause < ws.pause {
		ws.pause = pause
	}
	for w, a := range answers {
		if err == nil && (!w.isKnown || w.state != states[w.name]) {
			w.isKnown, w.state = true, states[w.name]
			w.signal()
		}
		if a != nil {
			a.state, a.err = states[w.name], err
			close(a.done)
		}
	}
}

// subscriptionStates returns the states of the subscriptions that there are, by their names, keeps those from expiring that can, and returns the
// shortest time after which one would.
func (s *Service) subscriptionStates(ctx context.Context, names []string) (states map[string]subscriptionState, expiresAfter time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	rows, _ := s.reads.Query(ctx, `select name, id, version, filters_version, token, epoch, is_leased, expires_after from agent.watch_subscriptions($1)`, names)
	all, err := pg.Collect[struct {
		Name string
		subscriptionState
		ExpiresAfter *time.Duration
	}](rows)
	if err != nil {
		return nil, 0, wrap("watching subscriptions", err)
	}
	states = make(map[string]subscriptionState, len(all))
	for i := range all {
		row := &all[i]
		states[row.Name] = row.subscriptionState
		if row.ExpiresAfter != nil && (expiresAfter == 0 || *row.ExpiresAfter < expiresAfter) {
			expiresAfter = *row.ExpiresAfter
		}
	}
	return states, expiresAfter, nil
}
