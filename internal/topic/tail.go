package topic

import (
	"cmp"
	"context"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pg"
)

const (
	// entryOverhead is the memory of an event of the tail besides its texts, in bytes, about.
	entryOverhead = 300
	// groupLinger is how long a group is kept when its last follower has left: who asks again and again joins the same one, and has missed nothing.
	groupLinger = 10 * time.Second
	// maxLeftBytes bounds the texts of the filters of groups that are kept so.
	maxLeftBytes = 2 << 20
	// tailBack is how many positions before the head the tail begins: readers that come back after a restart of this process find in it the events since.
	tailBack = 1000
)

// A tail has the newest events of the log, which are read once for all who follow it, and their matches with the filters of these. It is empty
// while nobody follows.
type tail struct {
	wake     pg.Signal // there may be more, or somebody has begun to follow: see offer and requestRead
	maxBytes int
	drained  chan struct{} // closed when nobody is to wait any more
	index    *match.Index  // of the filters of groups, by their id; belongs to followLog
	onAppend func()        // called when the tail reaches further; never blocks

	mu        sync.Mutex
	isRunning bool
	isDrained bool
	start     int64 // entries has the events after this position; zero: nothing was read yet
	head      int64 // and is complete up to here
	origin    int64 // of the events read from the database; zero: none were
	entries   []*Entry
	dropped   int // entries that were there and are no more: the sequence number of the first that is
	bytes     int

	offered      []*Entry // those that this process has appended, not added yet
	offeredBytes int
	mustRead     bool      // there may be more that was not offered
	mustIndex    bool      // groups have come or gone
	readAt       time.Time // when the log was last read to its end

	groups     map[string]*group          // by key
	subscribed map[string]map[*group]bool // by the name of their subscription
	followers  int                        // of all groups
	left       []leftGroup                // by time; some were joined again
	leftBytes  int                        // of the texts of their filters
	added      []*group                   // those that are not in the index yet
	byID       []*group                   // nil: the id is free
	free       []int32                    // ids
	changes    map[int32]*match.Filter    // to be made to index
	linger     time.Duration              // see groupLinger
	wakes      int                        // of followers, for events
}

// A group is those who follow the log with equal filters, or with those of one subscription. The matches are found once for all of them, and they are
// woken for nothing else.
type group struct {
	key          string
	filter       *match.Filter // nil: everything, or those of a subscription
	subscription string        // which gets events for it alone, too; empty: none
	ids          []int32       // of its filters in the index
	bytes        int           // of the texts of these
	followers    int
	leftAt       time.Time // when the last one left
	isIndexed    bool
	since        int64          // matched has the events after this position: the last dropped that matched, or the one from which on it was in the index
	matched      []matchedEntry // in order
	changed      chan struct{}  // closed when there is more
}

// A matchedEntry is an entry that a group wants.
type matchedEntry struct {
	number   int // its sequence number
	position int64
}

// A leftGroup is one that had no followers from a time on.
type leftGroup struct {
	*group
	at time.Time
}

func newTail(maxBytes int) *tail {
	return &tail{
		wake: pg.NewSignal(), maxBytes: maxBytes, drained: make(chan struct{}), index: match.NewIndex(nil), linger: groupLinger,
		groups: make(map[string]*group), subscribed: make(map[string]map[*group]bool), changes: make(map[int32]*match.Filter),
	}
}

// everything is the filter of those who have none.
var everything = sync.OnceValue(func() *match.Filter {
	f, err := match.Parse(nil, nil)
	if err != nil {
		panic(err) // it is never refused
	}
	return f
})

func (t *tail) setRunning(isRunning bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isRunning = isRunning
	t.onAppend()
	if !isRunning {
		t.clear()
		for _, g := range t.groups {
			g.signal()
		}
	}
}

// isFollowed reports whether anybody follows the log.
func (t *tail) isFollowed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isRunning && t.start != 0
}

// isReading reports whether Run reads the log.
func (t *tail) isReading() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isRunning
}

// clear forgets the events read. The caller holds mu.
func (t *tail) clear() {
	t.start, t.head, t.origin, t.entries, t.dropped, t.bytes = 0, 0, 0, nil, 0, 0
	t.offered, t.offeredBytes = nil, 0
	for _, g := range t.groups {
		g.matched, g.since = nil, 0
	}
}

func (t *tail) drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.isDrained {
		t.isDrained = true
		close(t.drained)
	}
}

// isDraining reports whether nobody is to wait any more.
func (t *tail) isDraining() bool {
	select {
	case <-t.drained:
		return true
	default:
		return false
	}
}

// join makes the caller one of those who follow the log with a filter.
func (t *tail) join(filter *match.Filter) *group {
	asked := filter
	if filter == nil {
		filter = everything()
	}
	return t.joinGroup(string(filter.Canonical()), func() *group { return &group{filter: asked} }, filter)
}

// joinAgain is join for who may have followed the log with this filter before: it returns nil if nobody has for a while.
func (t *tail) joinAgain(filter *match.Filter) *group {
	if filter == nil {
		filter = everything()
	}
	return t.joinKnown(string(filter.Canonical()))
}

// joinSubscription makes the caller one of those who follow the events of a subscription.
func (t *tail) joinSubscription(set *filterSet) *group {
	filters := make([]*match.Filter, set.index.Len())
	for i := range filters {
		filters[i] = set.index.Filter(int32(i))
	}
	return t.joinGroup(set.key(), func() *group { return &group{subscription: set.subscription} }, filters...)
}

// joinSubscriptionAgain is joinAgain for a subscription.
func (t *tail) joinSubscriptionAgain(set *filterSet) *group { return t.joinKnown(set.key()) }

// key is that of the group of those who follow the events of the subscription. No filter has it.
func (set *filterSet) key() string {
	return strconv.FormatInt(set.id, 10) + " " + strconv.FormatInt(set.version, 10)
}

// joinKnown makes the caller one of the group of a key, if there is one.
func (t *tail) joinKnown(key string) *group {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.groups[key]
	if g != nil {
		g.followers++
		t.followers++
	}
	return g
}

// joinGroup makes the caller one of the group of a key, which begins as newGroup returns it.
func (t *tail) joinGroup(key string, newGroup func() *group, filters ...*match.Filter) *group {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.groups[key]
	if g == nil {
		g = newGroup()
		g.key, g.changed = key, make(chan struct{})
		for _, filter := range filters {
			if filter != nil { // else it cannot be compiled, and wants nothing
				g.ids = append(g.ids, t.newID(g, filter))
				g.bytes += len(filter.Canonical())
			}
		}
		t.groups[key], t.added = g, append(t.added, g)
		if g.subscription != "" {
			if t.subscribed[g.subscription] == nil {
				t.subscribed[g.subscription] = make(map[*group]bool)
			}
			t.subscribed[g.subscription][g] = true
		}
		t.mustIndex, t.mustRead = true, t.mustRead || t.start == 0
		t.wake.Send()
	}
	g.followers++
	t.followers++
	return g
}

// newID has the index find a group by a filter. The caller holds mu.
func (t *tail) newID(g *group, filter *match.Filter) int32 {
	id := int32(len(t.byID))
	if n := len(t.free); n > 0 {
		id, t.free = t.free[n-1], t.free[:n-1]
	} else {
		t.byID = append(t.byID, nil)
	}
	t.byID[id], t.changes[id] = g, filter
	return id
}

func (t *tail) leave(g *group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	g.followers--
	t.followers--
	switch {
	case t.followers == 0:
		for _, g := range t.groups {
			t.remove(g)
		}
		t.left, t.leftBytes = nil, 0
		t.clear()
	case g.followers == 0:
		g.leftAt = time.Now()
		t.left = append(t.left, leftGroup{g, g.leftAt})
		t.leftBytes += g.bytes
		t.removeLeft(g.leftAt)
	}
}

// remove takes a group out. The caller holds mu.
func (t *tail) remove(g *group) {
	delete(t.groups, g.key)
	for _, id := range g.ids {
		t.byID[id], t.changes[id] = nil, nil
	}
	t.free = append(t.free, g.ids...)
	if g.subscription != "" {
		delete(t.subscribed[g.subscription], g)
		if len(t.subscribed[g.subscription]) == 0 {
			delete(t.subscribed, g.subscription)
		}
	}
}

// removeLeft takes those groups out that nobody has followed for a while, and the first of the others while these are too large. The caller holds mu.
func (t *tail) removeLeft(now time.Time) {
	n := 0
	for ; n < len(t.left) && (now.Sub(t.left[n].at) >= t.linger || t.leftBytes > maxLeftBytes); n++ {
		t.leftBytes -= t.left[n].bytes
		if g := t.left[n].group; g.followers == 0 && g.leftAt.Equal(t.left[n].at) && t.groups[g.key] == g {
			t.remove(g)
		}
	}
	clear(t.left[:n])
	t.left = t.left[n:]
}

// restart forgets the events read, so that the tail begins anew.
func (t *tail) restart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clear()
}

// isOf reports whether pages of an origin go on from the events read, and takes note of it.
func (t *tail) isOf(origin int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.origin == 0 && t.start != 0 {
		t.origin = origin
	}
	return t.origin == origin || t.start == 0
}

// updateIndex brings the index up to date with the groups. It returns up to where the tail reaches, and whether anybody follows it.
func (t *tail) updateIndex() (head int64, isFollowed bool) {
	t.mu.Lock()
	t.removeLeft(time.Now())
	var changes map[int32]*match.Filter // none: those who join write into the map that there is
	if len(t.changes) > 0 {
		changes, t.changes = t.changes, make(map[int32]*match.Filter)
	}
	added := t.added
	t.added = nil
	t.mu.Unlock()
	if len(changes) > 0 {
		t.index = t.index.Update(changes)
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range added {
		g.isIndexed, g.since = true, t.head
		g.signal()
	}
	return t.head, len(t.groups) > 0
}

// begin makes the tail start after a position, unless it has started.
func (t *tail) begin(start int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.start != 0 || len(t.groups) == 0 {
		return
	}
	t.start, t.head = start, start
	t.onAppend()
	for _, g := range t.groups {
		g.since = t.start
		g.signal()
	}
}

// wasLevel notes that the log was read to its end.
func (t *tail) wasLevel() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readAt = time.Now()
}

// requestRead makes the loop read the log from where it is.
func (t *tail) requestRead() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mustRead = true
	t.wake.Send()
}

// offer makes the loop add events that a commit of this process has appended, or read the log when it cannot: see docs/decisions/011. No events are
// offered where these are not known.
func (t *tail) offer(events []Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.wake.Send()
	if !t.isRunning || t.start == 0 || len(events) == 0 {
		t.mustRead = true
		return
	}
	for i := range events {
		e := &Entry{Event: events[i]}
		t.offered = append(t.offered, e)
		t.offeredBytes += e.size()
	}
	if len(t.offered) > readEvents || t.offeredBytes > t.maxBytes {
		t.offered, t.offeredBytes, t.mustRead = nil, 0, true
	}
}

// takeOffered returns those of the events offered that come next after head without a hole, in order, and reports whether these are all there is: whether
// something was offered, or only groups have come or gone since the log was read within a time, and nothing else is to be read.
//
// Positions are given out once, and those between two events without a hole belong to nobody else. So nothing can still come in between, and these are
// the next events of the log whatever other transactions do.
func (t *tail) takeOffered(head int64, within time.Duration) (next []*Entry, isAll bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	offered := t.offered
	isAll = (len(offered) > 0 || t.mustIndex && time.Since(t.readAt) < within) && !t.mustRead
	t.offered, t.offeredBytes, t.mustRead, t.mustIndex = nil, 0, false, false
	slices.SortFunc(offered, func(a, b *Entry) int { return cmp.Compare(a.Position, b.Position) })
	for _, e := range offered {
		if e.Position == head+1 {
			next, head = append(next, e), e.Position
		}
	}
	return next, isAll && (len(offered) == 0 || offered[len(offered)-1].Position <= head)
}

// match returns which groups want each of entries: the ids of those that want the entry i are ids[ends[i-1]:ends[i]].
func (t *tail) match(entries []*Entry) (ids []int32, ends []int) {
	ends = make([]int, len(entries))
	for i, e := range entries {
		if e.Subscription == "" {
			ids = t.index.Match(e.Topic, e.Event.Event, ids)
		}
		ends[i] = len(ids)
	}
	return ids, ends
}

// add adds the events read after a position, and drops the oldest entries when they are too many.
func (t *tail) add(after, next int64, entries []*Entry) {
	ids, ends := t.match(entries)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.head != after || next <= after { // everybody has left meanwhile
		return
	}
	touched := make(map[*group]bool)
	start := 0
	for i, e := range entries {
		t.entries = append(t.entries, e)
		t.bytes += e.size()
		entry := matchedEntry{t.dropped + len(t.entries) - 1, e.Position}
		for _, id := range ids[start:ends[i]] {
			if g := t.byID[id]; g != nil && g.isIndexed { // else the id belonged to another group when the index was made
				g.add(entry)
				touched[g] = true
			}
		}
		if e.Subscription != "" {
			for g := range t.subscribed[e.Subscription] {
				if g.isIndexed {
					g.add(entry)
					touched[g] = true
				}
			}
		}
		start = ends[i]
	}
	drop := 0
	for ; t.bytes > t.maxBytes && drop < len(t.entries); drop++ {
		t.bytes -= t.entries[drop].size()
		t.start = t.entries[drop].Position
	}
	clear(t.entries[:drop])
	t.entries, t.dropped = t.entries[drop:], t.dropped+drop
	t.head = next
	t.onAppend()
	for g := range touched {
		g.forget(t.dropped)
		g.signal()
		t.wakes += g.followers
	}
}

// add adds an entry that one or more filters of the group want.
func (g *group) add(entry matchedEntry) {
	if n := len(g.matched); n == 0 || g.matched[n-1] != entry {
		g.matched = append(g.matched, entry)
	}
}

// forget forgets the entries that the tail has dropped: those who are after the last of them have missed nothing.
func (g *group) forget(dropped int) {
	n := sort.Search(len(g.matched), func(i int) bool { return g.matched[i].number >= dropped })
	if n > 0 {
		g.since, g.matched = g.matched[n-1].position, g.matched[n:]
	}
}

// reach returns up to where the tail reaches.
func (t *tail) reach() (head int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.head
}

// signal wakes those of the group who wait. The caller holds the tail's mu.
func (g *group) signal() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// size is about the memory of the entry, read and encoded.
func (e *Entry) size() int {
	return 2*e.Event.size() + entryOverhead
}

func (e *Event) size() int {
	return len(e.Event) + len(e.Meta) + len(e.Topic) + len(e.Key)
}

// after returns the events of the tail after a position: those that the group wants, or, with isMatched false, up to readEvents that the caller has to
// match. Otherwise there are up to limit entries of maxBytes together, but one at least. It reports with isThere whether the tail has that: all entries
// after the position, or all that the group wants, however long ago the others were dropped.
func (t *tail) after(g *group, position int64, limit, maxBytes int) (p logSlice, isMatched, isThere bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	isMatched = t.hasMatched(g, position)
	if t.start == 0 || position < t.start && !isMatched || position > t.head {
		return logSlice{}, false, false
	}
	if !isMatched {
		limit, maxBytes = readEvents, readBytes
	}
	first := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].Position > position })
	p = logSlice{head: t.head, next: t.head, isLevel: true}
	at := func(i int) *Entry { return t.entries[first+i] }
	count := len(t.entries) - first
	if isMatched {
		firstMatch := sort.Search(len(g.matched), func(i int) bool { return g.matched[i].position > position })
		at = func(i int) *Entry { return t.entries[g.matched[firstMatch+i].number-t.dropped] }
		count = len(g.matched) - firstMatch
	}
	n, bytes := 0, 0
	for ; n < min(count, limit) && (n == 0 || bytes+at(n).Event.size() <= maxBytes); n++ {
		bytes += at(n).Event.size()
	}
	p.entries = make([]*Entry, n)
	for i := range p.entries {
		p.entries[i] = at(i)
	}
	if n < count {
		p.next, p.isLevel = p.entries[n-1].Position, false
	}
	p.scanned = n
	return p, isMatched, true
}

// hasMatched reports whether everything is in memory that a group wants after a position. The caller holds mu.
func (t *tail) hasMatched(g *group, position int64) bool {
	if t.start == 0 || g == nil || !g.isIndexed {
		return false
	}
	g.forget(t.dropped)
	return position >= g.since
}

// look returns a channel that is closed when there is more for the group; whether there is something after a position already; and whether the group
// may have missed something after it, so that it has to be read from elsewhere.
func (t *tail) look(g *group, position int64) (changed <-chan struct{}, isMore, isBehind bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.start == 0 || !g.isIndexed {
		return g.changed, false, false
	}
	isBehind = !t.hasMatched(g, position)
	if n := len(g.matched); n > 0 {
		isMore = g.matched[n-1].position > position
	}
	return g.changed, isMore, isBehind
}

// size returns about how much memory the entries take.
func (t *tail) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bytes
}

// tailStart returns the position after which the tail begins: tailBack positions before the head of the log, or where the first event is that can be
// read. Positions of other segments were passed over.
func tailStart(first, head int64) int64 {
	const inSegment = 1<<32 - 1
	return max(head-min(tailBack, head&inSegment), min(first-1, head))
}

// followLog adds the events that this process has appended, or reads on to the end of the log, while anybody follows it.
func (s *Service) followLog(ctx context.Context) error {
	limiter, reached := s.follows.Limiter(), int64(0)
	for isFirst := true; ; isFirst = false {
		head, isFollowed := s.tail.updateIndex()
		if !isFollowed {
			pg.Worked(ctx)
			return nil
		}
		if err := limiter.Pause(ctx, head <= reached); err != nil {
			return err
		}
		reached = max(reached, head)
		if head == 0 {
			first, end, err := s.Bounds(ctx)
			if err != nil {
				return err
			}
			s.tail.begin(tailStart(first, end))
			continue
		}
		if isFirst {
			offered, isAll := s.tail.takeOffered(head, s.cfg.PollInterval)
			if n := len(offered); n > 0 {
				s.tail.add(head, offered[n-1].Position, offered)
				head = offered[n-1].Position
			}
			if isAll {
				pg.Worked(ctx)
				return nil
			}
		}
		p, err := s.readPage(ctx, head, readEvents, readBytes, nil)
		if err != nil {
			return err
		}
		if p.gap != nil || !s.tail.isOf(p.origin) { // those who follow have to be told of the gap, or must not get events that were lost: they read the database
			s.tail.restart()
			if p.gap != nil { // no further gap is known after its end, so that each round gets on
				s.tail.begin(p.gap.Until)
			}
			continue
		}
		entries := make([]*Entry, len(p.events))
		for i := range p.events {
			entries[i] = &Entry{Event: p.events[i]} // each by itself: who still has one keeps no others in memory
		}
		s.tail.add(head, p.next, entries)
		if p.next > head {
			pg.Worked(ctx)
		}
		if p.isLevel {
			s.tail.wasLevel()
			return nil
		}
	}
}
