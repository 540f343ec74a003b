// Package watermark tells claims where in their lanes to begin to scan.
//
// A lane is a queue's events of one priority, or of one type and priority. Its watermark is a vt below which it has nothing to claim. While some
// session holds an old snapshot, PostgreSQL keeps the index entries of every event that was claimed since, and a scan from the beginning of
// the lane walks over all of them each time.
//
// Watermarks follow the claims at a distance, and are active only while such scans take long. Events that turn up below one nevertheless (a long
// transaction commits an event late, or SQL sets a vt in the past), or in a lane that is not known, are found by scanning there now and then,
// outside of any claim. docs/decisions/005-watermarks.md has the measurements.
package watermark

import (
	"slices"
	"sync"
	"time"
)

const (
	// grace is how far a watermark stays behind the latest claim: longer than it takes from an insert's beginning, which is its vt, to its commit.
	grace = 500 * time.Millisecond
	// ScanShare bounds the time spent on scans outside of claims: one that took 1 s is followed by a pause of at least this many seconds.
	ScanShare = 20
	// idleLimit is how long the watermarks of a queue without claims are kept.
	idleLimit = 30 * time.Second
	// maxLanes is how many lanes of a queue have watermarks. Claims find their way through more of them by themselves.
	maxLanes = 100
	// maxScopes is how many queues, and types of theirs, have watermarks at the same time.
	maxScopes = 1000
)

// Lane names a queue's events of one type and priority.
type Lane struct {
	Queue, Type string // Type is empty for claims of whatever type
	Priority    int32
}

// Claims are those that share watermarks: an event that one claim may not take because it was claimed too often, another may.
type Claims struct {
	Queue       string
	Types       []string // none: whatever the type
	MaxAttempts int
}

// Scope is the part of a queue that one scan covers: all its lanes, or those of one of its types.
type Scope struct {
	Queue, Type string // Type is empty for claims of whatever type
	MaxAttempts int
}

// Start is where a claim or a scan begins: lanes by ascending priority, and their watermarks, as arguments of SQL functions. Slices are nil where
// it is to find its way by itself.
type Start struct {
	Priorities []int32
	Types      []string
	Marks      []*time.Time // by the database's clock; nil: unknown
}

// Set is the watermarks of a service. It is safe for concurrent use. Times are those of this process's clock, vts those of the database's.
type Set struct {
	interval  time.Duration // between two scans of a scope
	threshold time.Duration // of the time that a scan takes the database

	mu      sync.Mutex
	byScope map[Scope]*scopeMarks
	enabled bool
}

// scopeMarks are the watermarks of a Scope.
type scopeMarks struct {
	lanes    map[int32]*lane // by priority
	active   bool            // claims begin at the watermarks
	known    bool            // a scan has found which lanes there are, so that claims need not
	stale    bool            // something was inserted since, perhaps elsewhere: the next claim finds the lanes by itself, unless watermarks are active
	used     time.Time
	nextScan time.Time
}

// lane is one watermark.
type lane struct {
	since time.Time // when the lane came to be known, or something was inserted into it the last time
	mark  time.Time // zero: unknown
	limit time.Time // the claim under way must not raise the mark beyond, for it may not have seen the events there; zero: none
}

// New returns a Set for scans that are an interval apart. Its watermarks are active when these take the database longer than threshold. It has no
// watermarks before Enable.
func New(interval, threshold time.Duration) *Set {
	return &Set{interval: interval, threshold: threshold, byScope: make(map[Scope]*scopeMarks)}
}

// Enable switches watermarks on or off, and forgets those there are. Without scans there must be none.
func (s *Set) Enable(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.enabled = on
	clear(s.byScope)
}

// Forget forgets all watermarks: another clock may decide from now on.
func (s *Set) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.byScope)
}

// Begin returns where a claim begins. There may be one at a time with the same Claims.
func (s *Set) Begin(now time.Time, c Claims) (start Start) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, active := true, true
	for _, scope := range c.scopes() {
		sc := s.byScope[scope]
		if sc == nil {
			return Start{}
		}
		sc.used = now
		for _, l := range sc.lanes {
			l.limit = time.Time{}
		}
		start.add(scope.Type, sc)
		active = active && sc.active
		known = known && sc.known && !sc.stale
		sc.stale = false
	}
	switch {
	case active:
	case known:
		start.Marks = nil
	default:
		return Start{}
	}
	return start
}

func (c *Claims) scopes() []Scope {
	if len(c.Types) == 0 {
		return []Scope{{c.Queue, "", c.MaxAttempts}}
	}
	scopes := make([]Scope, len(c.Types))
	for i, typ := range c.Types {
		scopes[i] = Scope{c.Queue, typ, c.MaxAttempts}
	}
	return scopes
}

// add puts the lanes of a type where they belong.
func (st *Start) add(typ string, sc *scopeMarks) {
	for priority, l := range sc.lanes {
		var mark *time.Time
		if !l.mark.IsZero() {
			mark = new(l.mark)
		}
		i, _ := slices.BinarySearch(st.Priorities, priority)
		st.Priorities, st.Types, st.Marks = slices.Insert(st.Priorities, i, priority), slices.Insert(st.Types, i, typ), slices.Insert(st.Marks, i, mark)
	}
}

// NoteClaimedThrough notes that a claim has taken everything up to a vt, by lane.
func (s *Set) NoteClaimedThrough(now time.Time, c Claims, through map[Lane]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.enabled {
		return
	}
	for in, vt := range through {
		scope := Scope{c.Queue, in.Type, c.MaxAttempts}
		sc := s.byScope[scope]
		if sc == nil {
			if len(s.byScope) >= maxScopes {
				continue
			}
			sc = &scopeMarks{lanes: make(map[int32]*lane, 1), nextScan: now.Add(s.interval)}
			s.byScope[scope] = sc
		}
		sc.used = now
		l := sc.lane(now, in.Priority)
		vt = vt.Add(-grace)
		if !l.limit.IsZero() && l.limit.Before(vt) {
			vt = l.limit
		}
		if vt.After(l.mark) {
			l.mark = vt
		}
		if len(sc.lanes) > maxLanes {
			delete(s.byScope, scope)
		}
	}
}

// lane returns the watermark of a priority, unknown if there was none.
func (sc *scopeMarks) lane(now time.Time, priority int32) *lane {
	l := sc.lanes[priority]
	if l == nil {
		l = &lane{since: now}
		sc.lanes[priority] = l
	}
	return l
}

// lower has the watermark be vt at most.
func (l *lane) lower(vt time.Time) {
	if vt.Before(l.mark) {
		l.mark = vt
	}
	if l.limit.IsZero() || vt.Before(l.limit) {
		l.limit = vt
	}
}

// Lower notes that something in a lane can be claimed from vt on; zero: from no time below its watermark.
func (s *Set) Lower(now time.Time, in Lane, vt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for scope, sc := range s.byScope {
		if scope.Queue != in.Queue || scope.Type != "" && scope.Type != in.Type {
			continue
		}
		l := sc.lane(now, in.Priority)
		l.since = now
		if !vt.IsZero() {
			l.lower(vt)
		}
	}
}

// LowerQueue notes that something in whichever lane of a queue can be claimed from vt on.
func (s *Set) LowerQueue(queue string, vt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for scope, sc := range s.byScope {
		if scope.Queue == queue {
			for _, l := range sc.lanes {
				l.lower(vt)
			}
		}
	}
}

// MarkStale notes that something was inserted into queues by others than the claims' own process, or by a statement that does not tell into which
// lanes, which may not be known here.
func (s *Set) MarkStale(queues map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for scope, sc := range s.byScope {
		if queues[scope.Queue] {
			sc.stale = true
		}
	}
}

// DueScans returns where to scan below watermarks now, and forgets those that are out of use.
func (s *Set) DueScans(now time.Time) map[Scope]Start {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := make(map[Scope]Start)
	for scope, sc := range s.byScope {
		switch {
		case now.Sub(sc.used) > idleLimit:
			delete(s.byScope, scope)
		case !now.Before(sc.nextScan):
			var start Start
			start.add(scope.Type, sc)
			due[scope] = start
		}
	}
	return due
}

// Scan is the result of a scan below watermarks.
type Scan struct {
	Began, Ended time.Time
	Took         time.Duration        // the database's own time
	Found        map[int32]*time.Time // by priority: the oldest vt below the watermark, or nil; nil map: the scan has failed
}

// NoteScan notes the result of a scan, and reports whether watermarks had hidden anything from claims.
func (s *Set) NoteScan(of Scope, scan Scan) (hidden bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc := s.byScope[of]
	if sc == nil {
		return false
	}
	sc.active = scan.Took > s.threshold
	sc.known = scan.Found != nil
	sc.nextScan = scan.Ended.Add(max(s.interval, ScanShare*scan.Ended.Sub(scan.Began)))
	for priority, l := range sc.lanes {
		if _, found := scan.Found[priority]; !found && sc.known && l.since.Before(scan.Began) {
			delete(sc.lanes, priority) // it is empty
		}
	}
	for priority, vt := range scan.Found {
		_, known := sc.lanes[priority]
		l := sc.lane(scan.Ended, priority)
		if vt != nil && (!known || vt.Before(l.mark)) {
			l.lower(*vt)
			hidden = true
		}
	}
	return hidden
}
