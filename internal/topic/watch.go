package topic

import (
	"context"
	"sync"
	"time"

	"github.com/queued/queued/internal/pg"
)

// A subscriptionState differs when those who wait for a subscription have to look at it again. Zero: there is no such subscription.
type subscriptionState struct {
	ID, Version    int64
	FiltersVersion int64
	Token, Epoch   int64
	IsLeased       bool
}

// A watchedState also has the fields that reads need.
type watchedState struct {
	subscriptionState
	IsPaused, IsDelivered bool
	Position              int64
	canLinger             bool // see lingeringExpiry
}

const (
	// watchLinger is how long a subscription is watched when nobody waits for it any more: who reads again and again finds its state here.
	watchLinger = 10 * time.Second
	// lingeringExpiry is the shortest time to live of a subscription that is watched for a while longer, as that keeps it from expiring.
	lingeringExpiry = 20 * watchLinger
	// stateAge bounds the age of a state that is relied on. While the database answers, states are read far more often.
	stateAge = 5 * time.Second
)

// watches are the subscriptions that somebody waits for or streams in this process. One statement at a time asks for all of them, however many there
// are, and keeps those from expiring that can.
type watches struct {
	wake pg.Signal // somebody has asked for a state

	mu        sync.Mutex
	byName    map[string]*watch
	isRunning bool
	passedAt  time.Time     // when the state of all was last asked for
	pause     time.Duration // until the next time
	stateAge  time.Duration // see the constant
}

// A watch is one of them.
type watch struct {
	name    string
	users   int
	leftAt  time.Time // when the last of them left
	isKnown bool
	state   watchedState
	head    int64         // the log had come up to here before the state was read
	readAt  time.Time     // when the state was read; zero: this process may have changed the subscription since
	changes int           // by this process
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
	return &watches{wake: pg.NewSignal(), byName: make(map[string]*watch), pause: pause, stateAge: stateAge}
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
	if w.users--; w.users > 0 {
		return
	}
	w.leftAt = time.Now()
	if !w.state.canLinger || !ws.isRunning {
		delete(ws.byName, w.name)
	}
}

// changes returns a channel that is closed when the subscription is not as it is now.
func (ws *watches) changes(w *watch) <-chan struct{} {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.changed
}

// signal makes those look again who wait for the subscription of a name, after a change by this process.
func (ws *watches) signal(name string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byName[name]; w != nil {
		w.forget()
		w.signal()
	}
}

// forget has the state of the subscription of a name be asked for before it is relied on.
func (ws *watches) forget(name string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.byName[name]; w != nil {
		w.forget()
	}
}

// forget is that of watches. The caller holds the lock.
func (w *watch) forget() {
	w.readAt = time.Time{}
	w.changes++
}

// latest returns the state that was read last, and up to where the log had come before that. It reports whether that was a moment ago and this process has
// changed nothing since. Other processes may have: that is found by the next statement.
func (ws *watches) latest(w *watch) (state watchedState, head int64, isLatest bool) {
	if w == nil {
		return state, 0, false
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.state, w.head, ws.isRunning && time.Since(w.readAt) < ws.stateAge
}

// advance notes that a read has moved the position of a subscription over events that no filter wants.
func (ws *watches) advance(w *watch, st *readState, position int64) {
	if w == nil {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.state.ID == st.ID && w.state.Epoch == st.Epoch && w.state.Token == st.Token {
		w.state.Position = max(w.state.Position, position)
	}
}

// readState returns the state that a read begins with, from the latest one, if there is one and it lets the read wait for events.
func (ws *watches) readState(w *watch) (readState, bool) {
	st, _, isLatest := ws.latest(w)
	isLatest = isLatest && st.ID != 0 && !st.IsPaused && !st.IsDelivered && !st.IsLeased
	return readState{ID: st.ID, FiltersVersion: st.FiltersVersion, Position: st.Position, Token: st.Token, Epoch: st.Epoch}, isLatest
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
		return states[w.name].subscriptionState, err
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
	inquiries, names := s.watches.begin(time.Now())
	if len(names) == 0 {
		return nil
	}
	pg.Worked(ctx)
	head := s.tail.reach()
	states, expiresAfter, err := s.subscriptionStates(ctx, names)
	pause := pg.Jittered(s.cfg.PollInterval)
	if expiresAfter > 0 {
		pause = min(pause, expiresAfter/4)
	}
	s.watches.end(inquiries, states, head, pause, err)
	return err
}

// untilWatch is the time until the states of all subscriptions that are watched have to be asked for.
func (s *Service) untilWatch(context.Context) time.Duration {
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	return time.Until(s.watches.passedAt.Add(s.watches.pause))
}

// An inquiry is a statement's question about a subscription.
type inquiry struct {
	answer  *answer // nil: nobody waits for it
	changes int     // of the watch, before the statement
}

// begin returns which subscriptions to ask for.
func (ws *watches) begin(now time.Time) (inquiries map[*watch]inquiry, names []string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	isDue := now.Sub(ws.passedAt) >= ws.pause
	if isDue {
		ws.passedAt = now
	}
	inquiries = make(map[*watch]inquiry)
	for name, w := range ws.byName {
		if isDue && w.users == 0 && now.Sub(w.leftAt) >= watchLinger {
			delete(ws.byName, name)
		} else if isDue || w.asked != nil {
			inquiries[w] = inquiry{w.asked, w.changes}
			w.asked = nil
			names = append(names, name)
		}
	}
	return inquiries, names
}

// end gives the answers, and wakes those whose subscription has changed.
func (ws *watches) end(inquiries map[*watch]inquiry, states map[string]watchedState, head int64, pause time.Duration, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(inquiries) >= len(ws.byName) || pause < ws.pause {
		ws.pause = pause
	}
	now := time.Now()
	for w, asked := range inquiries {
		state := states[w.name]
		if err == nil {
			isOther := !w.isKnown || w.state.subscriptionState != state.subscriptionState
			w.isKnown, w.state, w.head = true, state, head
			if w.changes == asked.changes { // else it may have been read before the change
				w.readAt = now
			}
			if isOther {
				w.signal()
			}
		}
		if a := asked.answer; a != nil {
			a.state, a.err = state.subscriptionState, err
			close(a.done)
		}
	}
}

// subscriptionStates returns the states of the subscriptions that there are, by their names, keeps those from expiring that can, and returns the
// shortest time after which one would.
func (s *Service) subscriptionStates(ctx context.Context, names []string) (states map[string]watchedState, expiresAfter time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	rows, _ := s.reads.Query(ctx, `select name, id, version, filters_version, is_paused, is_delivered, position, token, epoch, is_leased, expires_after
		from agent_service.watch_subscriptions($1)`, names)
	all, err := pg.Collect[struct {
		Name string
		watchedState
		ExpiresAfter *time.Duration
	}](rows)
	if err != nil {
		return nil, 0, wrap("watching subscriptions", err)
	}
	states = make(map[string]watchedState, len(all))
	for i := range all {
		row := &all[i]
		row.canLinger = row.ExpiresAfter == nil || *row.ExpiresAfter >= lingeringExpiry
		states[row.Name] = row.watchedState
		if row.ExpiresAfter != nil && (expiresAfter == 0 || *row.ExpiresAfter < expiresAfter) {
			expiresAfter = *row.ExpiresAfter
		}
	}
	return states, expiresAfter, nil
}
