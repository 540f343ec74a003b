package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/loop"
)

// A low-water mark is a time before which a lane (a queue's events of one priority, or of one type and priority) has nothing
// claimable. Claims begin their scan there: while some session holds an old snapshot, PostgreSQL keeps the index entries of
// every event that was claimed since, and a scan from the beginning walks over all of them each time.
//
// Marks follow the claims at a distance, and are heeded only while walking there takes long. What turns up behind one
// nevertheless (a long transaction commits an event late, or SQL sets a vt in the past), or in a lane that is not known, is found by
// looking there now and then, outside of any claim.

const (
	// markGrace is how far a mark stays behind the latest claim: longer than it takes from an
	// insert's beginning, which is its vt, to its commit.
	markGrace = 500 * time.Millisecond
	// lookBehindInterval is the time between two looks behind a mark.
	lookBehindInterval = time.Second
	// longWalk is how long the database may look behind marks before claims begin at them: as long as a small claim takes
	// in all. It is reached when some 50,000 events have been claimed since the last vacuum.
	longWalk = 250 * time.Microsecond
	// lookShare bounds the time spent looking behind marks and ahead for the next vt: a look that took 1 s is followed
	// by a pause of at least this many seconds. Beside an old snapshot a look grows long.
	lookShare = 20
	// markLife is how long the marks of a queue that nobody claims from are kept.
	markLife = 30 * time.Second
	// maxLanes is how many lanes of a queue are worth marks. Claims find their way through more of them by themselves.
	maxLanes = 100
	// maxMarked is how many queues, and types of theirs, have marks at the same time.
	maxMarked = 1000
)

// markKey names the marks of a queue's lanes, or of those of one of its types: what one claim may not take, because it was
// claimed too often, another may.
type markKey struct {
	queue, typ  string // typ is empty for claims of whatever type
	maxAttempts int
}

// laneMarks are the low-water marks of a markKey.
type laneMarks struct {
	byLane   map[int32]*mark // by priority
	heeded   bool
	known    bool // somebody has looked which lanes there are, so that claims need not
	stale    bool // somebody else has brought something since: the next claim looks for itself, unless marks are heeded
	used     time.Time
	nextLook time.Time
}

// mark is one low-water mark.
type mark struct {
	since time.Time // when the lane came to be known
	at    time.Time // by the database's clock; zero: unknown
	limit time.Time // the claim under way must not raise it beyond, for it may not have seen what is there; zero: none
}

// lower has the mark be at vt, if it is not before that.
func (m *mark) lower(vt time.Time) {
	if vt.Before(m.at) {
		m.at = vt
	}
	if m.limit.IsZero() || vt.Before(m.limit) {
		m.limit = vt
	}
}

// lane names a queue's events of one type and priority.
type lane struct {
	queue, typ string
	priority   int32
}

// marks are the low-water marks of a service.
type marks struct {
	mu    sync.Mutex
	byKey map[markKey]*laneMarks
	off   bool          // nobody looks behind them
	every time.Duration // time between two looks
}

// marked are lanes and their marks, as agent.claim_from_watermarks has them; nil slices where a claim is to find its way by itself.
type marked struct {
	lanes []int32
	types []string
	marks []*time.Time // nil: unknown
}

// begin returns where a claim begins. There is one claim like it at a time.
func (m *marks) begin(p *ClaimParams) (from marked) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known, heeded := true, true
	for _, typ := range typesOf(p) {
		k := m.byKey[markKey{p.Queue, typ, p.MaxAttempts}]
		if k == nil {
			return marked{}
		}
		k.used = time.Now()
		for priority, at := range k.byLane {
			at.limit = time.Time{}
			from.add(priority, typ, at.at)
		}
		heeded = heeded && k.heeded
		known = known && k.known && !k.stale
		k.stale = false
	}
	if !heeded {
		if !known {
			return marked{}
		}
		from.marks = nil
	}
	return from
}

// add puts a lane where it belongs, in ascending order of priorities.
func (m *marked) add(priority int32, typ string, at time.Time) {
	i, _ := slices.BinarySearch(m.lanes, priority)
	m.lanes, m.types = slices.Insert(m.lanes, i, priority), slices.Insert(m.types, i, typ)
	var mark *time.Time
	if !at.IsZero() {
		mark = &at
	}
	m.marks = slices.Insert(m.marks, i, mark)
}

// typesOf returns the types a claim has marks for.
func typesOf(p *ClaimParams) []string {
	if len(p.Types) == 0 {
		return []string{""}
	}
	return p.Types
}

// advance notes that everything up to a vt was claimed, lane by lane.
func (m *marks) advance(p *ClaimParams, upTo map[lane]time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.off {
		return
	}
	now := time.Now()
	for l, vt := range upTo {
		key := markKey{p.Queue, l.typ, p.MaxAttempts}
		k := m.byKey[key]
		if k == nil && len(m.byKey) >= maxMarked {
			continue
		}
		if k == nil {
			k = &laneMarks{byLane: make(map[int32]*mark, 1), nextLook: now.Add(m.every)}
			m.byKey[key] = k
		}
		k.used = now
		at := k.lane(l.priority)
		vt = vt.Add(-markGrace)
		if !at.limit.IsZero() && at.limit.Before(vt) {
			vt = at.limit
		}
		if vt.After(at.at) {
			at.at = vt
		}
		if len(k.byLane) > maxLanes {
			delete(m.byKey, key)
		}
	}
}

// lane returns the mark of a priority, unknown if there was none.
func (k *laneMarks) lane(priority int32) *mark {
	at := k.byLane[priority]
	if at == nil {
		at = &mark{since: time.Now()}
		k.byLane[priority] = at
	}
	return at
}

// lower notes that something in a lane is claimable from vt on; zero: from no time before its mark.
func (m *marks) lower(l lane, vt time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, k := range m.byKey {
		if key.queue != l.queue || key.typ != "" && key.typ != l.typ {
			continue
		}
		at := k.lane(l.priority)
		if !vt.IsZero() {
			at.lower(vt)
		}
	}
}

// strange notes that somebody else has brought something to a queue, perhaps in a lane that is not known here.
func (m *marks) strange(queue string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, k := range m.byKey {
		if key.queue == queue {
			k.stale = true
		}
	}
}

// due returns the marks to look behind now, and forgets those that are out of use.
func (m *marks) due() map[markKey]marked {
	m.mu.Lock()
	defer m.mu.Unlock()
	due := make(map[markKey]marked)
	now := time.Now()
	for key, k := range m.byKey {
		switch {
		case now.Sub(k.used) > markLife:
			delete(m.byKey, key)
		case !now.Before(k.nextLook):
			var from marked
			for priority, at := range k.byLane {
				from.add(priority, key.typ, at.at)
			}
			due[key] = from
		}
	}
	return due
}

// looked notes that a look behind marks began at start and took the database so long, and what was found in each lane: the
// oldest vt before its mark, or nil. It reports whether anything was hidden by a mark.
func (m *marks) looked(key markKey, start time.Time, walk time.Duration, found map[int32]*time.Time) (hidden bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.byKey[key]
	if k == nil {
		return false
	}
	k.heeded = walk > longWalk
	k.known = found != nil
	now := time.Now()
	k.nextLook = now.Add(max(m.every, lookShare*now.Sub(start)))
	for priority, at := range k.byLane {
		if _, ok := found[priority]; !ok && k.known && at.since.Before(start) {
			delete(k.byLane, priority) // nothing is there any more
		}
	}
	for priority, vt := range found {
		_, known := k.byLane[priority]
		at := k.lane(priority)
		if vt != nil && (!known || vt.Before(at.at)) {
			at.lower(*vt)
			hidden = true
		}
	}
	return hidden
}

// enable switches marks on or off. Without someone who looks behind them there are none.
func (m *marks) enable(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.off = !on
	clear(m.byKey)
}

// forget has every claim find its way by itself again: another clock may decide from now on.
func (m *marks) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.byKey)
}

// lookBehindLoop looks behind the marks until ctx ends.
func (s *Service) lookBehindLoop(ctx context.Context) error {
	s.marks.enable(true)
	defer s.marks.enable(false)
	for loop.Pause(ctx, loop.Jittered(s.marks.every)) {
		for key, from := range s.marks.due() {
			start := time.Now()
			found, walk, err := s.lookBehind(ctx, key, from)
			hidden := s.marks.looked(key, start, walk, found)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				s.cfg.Logger.Warn().Err(err).Str("queue", key.queue).Msg("could not look for events that turned up late; it is tried again")
			case hidden:
				s.wakeHere(map[string]bool{key.queue: true})
			}
		}
	}
	return nil
}

// lookBehind returns the oldest claimable vt behind the mark of each lane, and how long the database took; zero after
// an error: the marks are not heeded then.
func (s *Service) lookBehind(ctx context.Context, key markKey, from marked) (found map[int32]*time.Time, walk time.Duration, err error) {
	var types []string
	if key.typ == "" {
		from.types = nil
	} else {
		types = []string{key.typ}
	}
	rows, _ := s.loops.Query(ctx, `select priority, vt, took from agent.check_watermarks($1, $2, $3, $4, $5, $6)`,
		key.queue, key.maxAttempts, types, from.lanes, from.types, from.marks)
	found = make(map[int32]*time.Time)
	var priority int32
	var vt *time.Time
	_, err = pgx.ForEachRow(rows, []any{&priority, &vt, &walk}, func() error {
		found[priority] = vt
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return found, walk, nil
}
