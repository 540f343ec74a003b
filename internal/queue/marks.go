package queue

import (
	"context"
	"sync"
	"time"
)

// A low-water mark is a time before which a queue has nothing claimable. Claims begin their scan there: while
// some session holds an old snapshot, PostgreSQL keeps the index entries of every event that was claimed since, and a scan
// from the beginning walks over all of them each time.
//
// Marks follow the claims at a distance, and are heeded only while walking there takes long. What turns up behind one
// nevertheless (a long transaction commits an event late, or SQL sets a vt in the past) is found by looking there now
// and then, outside of any claim.

const (
	// markGrace is how far a mark stays behind the latest claim: longer than it takes from an
	// insert's beginning, which is its vt, to its commit.
	markGrace = 500 * time.Millisecond
	// lookBehindInterval is the time between two looks behind a mark.
	lookBehindInterval = time.Second
	// longWalk is how long the database may look behind a mark before claims begin at the mark: as long as a small claim takes
	// in all. It is reached when some 50,000 events have been claimed since the last vacuum.
	longWalk = 250 * time.Microsecond
	// lookShare bounds the time spent looking behind marks and ahead for the next vt: a look that took 1 s is followed
	// by a pause of at least this many seconds. Beside an old snapshot a look grows long.
	lookShare = 20
	// markLife is how long the mark of a queue that nobody claims from is kept.
	markLife = 30 * time.Second
)

// markKey names a mark: what one claim may not take, because it was claimed too often, another may.
type markKey struct {
	queue       string
	maxAttempts int
}

// mark is one low-water mark.
type mark struct {
	at       time.Time // by the database's clock; zero: unknown
	limit    time.Time // the claim under way must not raise it beyond, for it may not have seen what is there; zero: none
	heeded   bool
	used     time.Time
	nextLook time.Time
}

// marks are the low-water marks of a service.
type marks struct {
	mu    sync.Mutex
	byKey map[markKey]*mark
	off   bool          // nobody looks behind them
	every time.Duration // time between two looks
}

// begin returns where a claim of a queue begins, zero for at its beginning. There is one claim of a queue at a time.
func (m *marks) begin(key markKey) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.byKey[key]
	if k == nil {
		return time.Time{}
	}
	k.used = time.Now()
	k.limit = time.Time{}
	if !k.heeded {
		return time.Time{}
	}
	return k.at
}

// advance notes that everything up to vt was claimed.
func (m *marks) advance(key markKey, vt time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.off {
		return
	}
	now := time.Now()
	if m.byKey[key] == nil {
		m.byKey[key] = &mark{nextLook: now.Add(m.every)}
	}
	k := m.byKey[key]
	k.used = now
	at := vt.Add(-markGrace)
	if !k.limit.IsZero() && k.limit.Before(at) {
		at = k.limit
	}
	if at.After(k.at) {
		k.at = at
	}
}

// lower notes that something of the queue is claimable from vt on.
func (m *marks) lower(queue string, vt time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, k := range m.byKey {
		if key.queue != queue {
			continue
		}
		if vt.Before(k.at) {
			k.at = vt
		}
		if k.limit.IsZero() || vt.Before(k.limit) {
			k.limit = vt
		}
	}
}

// due returns the marks to look behind now, and forgets those that are out of use.
func (m *marks) due() map[markKey]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	due := make(map[markKey]time.Time)
	now := time.Now()
	for key, k := range m.byKey {
		switch {
		case now.Sub(k.used) > markLife:
			delete(m.byKey, key)
		case !now.Before(k.nextLook):
			due[key] = k.at
		}
	}
	return due
}

// looked notes that a look behind a mark took so long in all, and the database so long for it.
func (m *marks) looked(key markKey, took, walk time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if k := m.byKey[key]; k != nil {
		k.heeded = walk > longWalk
		k.nextLook = time.Now().Add(max(m.every, lookShare*took))
	}
}

// enable switches marks on or off. Without someone who looks behind them there are none.
func (m *marks) enable(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.off = !on
	clear(m.byKey)
}

// lookBehindLoop looks behind the marks until ctx ends.
func (s *Service) lookBehindLoop(ctx context.Context) error {
	s.marks.enable(true)
	defer s.marks.enable(false)
	for pause(ctx, jittered(s.marks.every)) {
		for key, before := range s.marks.due() {
			start := time.Now()
			var (
				vt   *time.Time
				walk time.Duration // zero after an error: the mark is not heeded then
			)
			err := s.pool.QueryRow(ctx, `select vt, took from agent.oldest_vt($1, $2, $3)`, key.queue, key.maxAttempts, before).Scan(&vt, &walk)
			s.marks.looked(key, time.Since(start), walk)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				s.cfg.Logger.Warn().Err(err).Str("queue", key.queue).Msg("could not look for events that turned up late; it is tried again")
			case vt != nil:
				s.marks.lower(key.queue, *vt)
				s.wakeHere(map[string]bool{key.queue: true})
			}
		}
	}
	return nil
}
