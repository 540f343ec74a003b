package topic

import (
	"container/list"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"sync"
	"time"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pg"
)

const (
	// MaxLease bounds the lease of a read.
	MaxLease = 24 * time.Hour
	// searchTime is how long a read that does not wait looks for events that match.
	searchTime = 2 * time.Second
	// cachedFilterBytes bounds the texts of the filters that a process keeps compiled, unless one subscription has more.
	cachedFilterBytes = 64 << 20
)

// SubscribedParams say what to read of a subscription. All fields may be zero.
type SubscribedParams struct {
	After string        // a cursor that is not committed, to go on from; empty: the position of the subscription
	Limit int           // events at most; zero: pg.DefaultPage
	Wait  time.Duration // how long to wait for the first event; zero: not at all
	Lease time.Duration // nobody else gets anything for so long, unless the page is empty; zero: no lease
}

// A MatchedEvent is an event of the log, and the names of the filters that want it.
type MatchedEvent struct {
	Event
	Matched []string // none if it is for this subscription alone, and no filter wants it
}

// SubscribedPage is what a read of a subscription returns.
type SubscribedPage struct {
	Events      []MatchedEvent
	Cursor      string // commit it when the events are done; empty if the subscription is held or paused
	Lag         Lag    // after this page
	Gap         *Gap   // nil: nothing is missing
	LeasedUntil *time.Time
	HeldUntil   *time.Time // somebody else has a lease until then, so there is nothing to read; nil: nobody
	IsPaused    bool
}

// readState is what a read of a subscription begins with.
type readState struct {
	ID             int64
	FiltersVersion int64
	IsPaused       bool
	Position       int64
	Token, Epoch   int64
	LeasedUntil    *time.Time
}

// sameAs reports whether what was read with an earlier state is still good.
func (st *readState) sameAs(before *readState) bool {
	return st.ID == before.ID && st.FiltersVersion == before.FiltersVersion && st.Token == before.Token && st.Epoch == before.Epoch
}

// subscribedReader reads the log for a subscription.
type subscribedReader struct {
	svc      *Service
	set      *filterSet
	position int64 // what comes next is after it
	head     int64
	isLevel  bool // there was no more
	joined   *group
	ids      []int32

	checkedAt time.Time // when the state was read
	hasMoved  bool      // over events since then
}

// ReadSubscription returns what comes next for a subscription, in order. It is read again by everybody who uses the name until the cursor of the page
// is committed. The position of a subscription moves by itself over events that none of its filters wants. It fails with ErrSubscriptionNotFound,
// with ErrCursorLost when p.After can be committed no more, and with an *InvalidError for what is no cursor of this subscription.
func (s *Service) ReadSubscription(ctx context.Context, name string, p SubscribedParams) (SubscribedPage, error) {
	after, isAhead := cursor{}, p.After != ""
	if isAhead {
		var ok bool
		if after, ok = parseCursor(name, p.After); !ok {
			return SubscribedPage{}, &InvalidError{Field: "after", Detail: notACursor}
		}
		if p.Lease > 0 && !after.isLeased {
			return SubscribedPage{}, &InvalidError{Field: "lease", Detail: "must not be given together with a cursor without a lease: take it with the first read"}
		}
	}
	start := time.Now()
	deadline := start.Add(min(p.Wait, MaxWait))
	r := &subscribedReader{svc: s}
	defer r.close()
	var before readState
	for {
		st, err := s.beginRead(ctx, name)
		if err != nil {
			return SubscribedPage{}, err
		}
		if isAhead && after.isLost(&st) {
			return SubscribedPage{}, ErrCursorLost
		}
		if st.IsPaused || st.LeasedUntil != nil && !isAhead {
			if r.pause(ctx, deadline) {
				before = readState{}
				continue
			}
			return s.heldPage(ctx, name, st)
		}
		if !st.sameAs(&before) {
			r.position, before = st.Position, st
			if isAhead {
				r.position = max(after.position, st.Position)
			}
			if r.set, err = s.filterSet(ctx, name, st.ID, st.FiltersVersion); err != nil {
				return SubscribedPage{}, err
			}
			if r.set == nil { // it was deleted meanwhile
				continue
			}
		}

		events, gap, err := r.next(ctx, pg.PageSize(p.Limit), deadline)
		if err != nil {
			return SubscribedPage{}, err
		}
		isEmpty := len(events) == 0 && gap == nil
		if isEmpty && r.isLevel && time.Now().Before(deadline) && !s.tail.isDraining() {
			continue // have the filters changed?
		}
		c := cursor{id: st.ID, epoch: st.Epoch, parent: st.Token, token: newToken(), position: r.position, hasGap: gap != nil, isLeased: p.Lease > 0 && !isEmpty}
		if isAhead {
			c.parent, c.isLeased = after.token, after.isLeased
			if isEmpty { // the same cursor, further on
				c.parent, c.token, c.hasGap = after.parent, after.token, after.hasGap
			}
		}
		page, status, err := s.endRead(ctx, r, p.Lease, isAhead, isEmpty, &c)
		switch {
		case err != nil:
			return SubscribedPage{}, err
		case status == "lost":
			return SubscribedPage{}, ErrCursorLost
		case status == "changed":
			before = readState{}
			if err := ctx.Err(); err != nil {
				return SubscribedPage{}, err
			}
			continue
		case isEmpty && !r.isLevel && !s.tail.isDraining() && (time.Now().Before(deadline) || time.Since(start) < searchTime):
			continue // little of it matches: it goes on where it was
		}
		page.Events, page.Gap, page.Cursor = events, gap, c.format(name)
		return page, nil
	}
}

func (s *Service) beginRead(ctx context.Context, name string) (readState, error) {
	rows, _ := s.reads.Query(ctx, `select id, filters_version, is_paused, position, token, epoch, leased_until from agent.begin_read($1)`, name)
	st, err := pg.CollectOne[readState](rows)
	return st, wrap("reading a subscription", err)
}

// endRead makes sure that the page may be given away, and takes the lease. It sets the epoch of the cursor.
func (s *Service) endRead(ctx context.Context, r *subscribedReader, lease time.Duration, isAhead, isEmpty bool, c *cursor) (page SubscribedPage, status string, err error) {
	token := c.parent
	rows, _ := s.reads.Query(ctx, `select status, epoch, leased_until, lag_events, lag_seconds from agent.end_read($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		c.id, r.set.version, token, c.epoch, isAhead, isAhead && c.isLeased, c.token, r.position, r.head, pg.OrNull(lease), isEmpty)
	end, err := pg.CollectOne[struct {
		Status      string
		Epoch       int64
		LeasedUntil *time.Time
		LagEvents   int64
		LagSeconds  float64
	}](rows)
	if err != nil {
		return page, "", wrap("reading a subscription", err)
	}
	c.epoch = end.Epoch
	return SubscribedPage{Lag: Lag{end.LagEvents, end.LagSeconds}, LeasedUntil: end.LeasedUntil}, end.Status, nil
}

// heldPage is the page of a subscription that is held or paused.
func (s *Service) heldPage(ctx context.Context, name string, st readState) (SubscribedPage, error) {
	sub, err := s.Subscription(ctx, name)
	return SubscribedPage{Lag: Lag{sub.LagEvents, sub.LagSeconds}, HeldUntil: st.LeasedUntil, IsPaused: st.IsPaused}, err
}

// next returns up to limit events that the subscription gets. Without any it waits, until the deadline or until the state has to be looked at again.
func (r *subscribedReader) next(ctx context.Context, limit int, deadline time.Time) (events []MatchedEvent, gap *Gap, err error) {
	r.checkedAt, r.hasMoved = time.Now(), false
	size := limit
	for scanned, bytes := 0, 0; ; {
		p, _, isInTail := r.svc.tail.after(nil, r.position, readEvents, readBytes)
		at := func(i int) *Event { return &p.entries[i].Event }
		n := len(p.entries)
		if !isInTail {
			read, err := r.svc.readPage(ctx, r.position, size, readBytes, nil)
			if err != nil {
				return nil, nil, err
			}
			p, n, size = read.part, len(read.events), min(2*size, readEvents)
			at = func(i int) *Event { return &read.events[i] }
		}
		if p.gap != nil && gap == nil {
			gap = p.gap
		}
		r.head, r.isLevel, scanned = p.head, p.isLevel, scanned+n
		r.hasMoved = r.hasMoved || p.next > r.position
		for i := range n {
			e := at(i)
			matched, isWanted := r.match(e)
			if !isWanted {
				continue
			}
			if len(events) == limit || len(events) > 0 && bytes+e.size() > readBytes {
				r.position, r.isLevel = events[len(events)-1].Position, false
				return events, gap, nil
			}
			bytes += e.size()
			events = append(events, MatchedEvent{*e, matched})
		}
		r.position = p.next
		switch {
		case len(events) == limit, scanned >= scanEvents, p.isLevel && (len(events) > 0 || gap != nil):
			return events, gap, nil
		case p.isLevel && !r.wait(ctx, deadline, isInTail):
			return nil, nil, ctx.Err()
		}
	}
}

// recheckAt is when a reader that waits has to look whether its subscription has changed: soon if there were events that its filters did not want.
func (r *subscribedReader) recheckAt() time.Time {
	if r.hasMoved {
		return r.checkedAt.Add(r.svc.cfg.PollInterval)
	}
	return r.checkedAt.Add(5 * r.svc.cfg.PollInterval)
}

// wait waits for more of the log, and reports whether to look for it.
func (r *subscribedReader) wait(ctx context.Context, deadline time.Time, isInTail bool) bool {
	t := r.svc.tail
	limit := min(time.Until(deadline), time.Until(r.recheckAt()))
	if limit <= 0 || t.isDraining() {
		return false
	}
	if r.joined == nil {
		r.joined = t.join(nil) // so that the tail is fed
	}
	grown, start, head, isFed := t.reach()
	polls := false
	switch {
	case start != 0 && r.position >= start && head > r.position:
		return true
	case !isFed:
		limit, polls = min(limit, r.svc.cfg.PollInterval), true
	case start != 0 && !isInTail && r.position < start: // the database says that there is no more: somebody holds the head
		limit, polls = min(limit, behindPause), true
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-grown:
		return true
	case <-timer.C:
		return polls
	case <-t.drained:
	case <-ctx.Done():
	}
	return false
}

// pause waits while a subscription is held or paused, and reports whether to look again.
func (r *subscribedReader) pause(ctx context.Context, deadline time.Time) bool {
	limit := time.Until(deadline)
	if limit <= 0 || r.svc.tail.isDraining() {
		return false
	}
	timer := time.NewTimer(min(limit, r.svc.cfg.PollInterval))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.svc.tail.drained:
	case <-ctx.Done():
	}
	return false
}

func (r *subscribedReader) close() {
	if r.joined != nil {
		r.svc.tail.leave(r.joined)
	}
}

// match returns the names of the filters that want an event, and whether the subscription gets it: an event for one subscription alone is for that one
// whatever its filters are.
func (r *subscribedReader) match(e *Event) (matched []string, isWanted bool) {
	if e.Subscription != "" && e.Subscription != r.set.subscription {
		return nil, false
	}
	r.ids = r.set.index.Match(e.Topic, e.Event, r.ids[:0])
	if len(r.ids) == 0 {
		return nil, e.Subscription != ""
	}
	matched = make([]string, len(r.ids))
	for i, id := range r.ids {
		matched[i] = r.set.names[id]
	}
	return matched, true
}

// Cursors.

const notACursor = "must be the cursor of a read of this subscription, unchanged"

// A cursor is what a page of a subscription leads to.
type cursor struct {
	id       int64 // of the subscription
	epoch    int64
	parent   int64 // the token that has to be committed last
	token    int64
	position int64
	isLeased bool
	hasGap   bool // its page has told of one
}

// isLost reports whether a cursor can be committed no more, as far as that is known.
func (c *cursor) isLost(st *readState) bool {
	// The position also moves over what no filter wants, which loses no cursor.
	isPassed := st.Position > c.position && st.Token != c.token && st.Token != c.parent
	return c.id != st.ID || c.epoch != st.Epoch || isPassed || c.isLeased && st.LeasedUntil == nil
}

const (
	cursorLeased = 1 << iota
	cursorGap
)

// cursorCheckBytes is how many bytes of a cursor tell whether it is unchanged.
const cursorCheckBytes = 6

// newToken returns what tells a cursor from all others.
func newToken() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return int64(binary.BigEndian.Uint64(b[:]) >> 1)
}

// checkOf is what the bytes of a cursor of a subscription end with.
func checkOf(name string, b []byte) []byte {
	sum := sha256.Sum256(append([]byte("cursor of "+name+" "), b...))
	return sum[:cursorCheckBytes]
}

// format returns the cursor as parseCursor reads it.
func (c *cursor) format(name string) string {
	var flags int64
	if c.isLeased {
		flags |= cursorLeased
	}
	if c.hasGap {
		flags |= cursorGap
	}
	var b []byte
	for _, n := range []int64{flags, c.id, c.epoch, c.parent, c.token, c.position} {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return base64.RawURLEncoding.EncodeToString(append(b, checkOf(name, b)...))
}

// parseCursor reads a cursor of the subscription of this name, and reports whether it is one.
func parseCursor(name, text string) (c cursor, ok bool) {
	all, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(all) < cursorCheckBytes {
		return c, false
	}
	b, check := all[:len(all)-cursorCheckBytes], all[len(all)-cursorCheckBytes:]
	if string(checkOf(name, b)) != string(check) {
		return c, false
	}
	var flags int64
	for _, into := range []*int64{&flags, &c.id, &c.epoch, &c.parent, &c.token, &c.position} {
		n, length := binary.Uvarint(b)
		if length <= 0 || n > 1<<63-1 {
			return c, false
		}
		*into, b = int64(n), b[length:]
	}
	c.isLeased, c.hasGap = flags&cursorLeased != 0, flags&cursorGap != 0
	return c, len(b) == 0
}

// Compiled filters.

// A filterSet is the compiled filters of a subscription at one version of them. It is immutable.
type filterSet struct {
	subscription string
	version      int64
	names        []string     // by id
	index        *match.Index // equal filters are evaluated once
	bytes        int
}

// A filterCache has the filters of subscriptions that were read last.
type filterCache struct {
	mu    sync.Mutex
	sets  map[int64]*list.Element // of a cachedSet, by the id of the subscription
	order list.List               // the latest first
	bytes int
}

type cachedSet struct {
	id  int64
	set *filterSet
}

// get returns the filters of a subscription at a version, or nil if they are not there.
func (c *filterCache) get(id, version int64) *filterSet {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.sets[id]
	if e == nil {
		return nil
	}
	set := e.Value.(*cachedSet).set
	if set.version != version {
		return nil
	}
	c.order.MoveToFront(e)
	return set
}

func (c *filterCache) put(id int64, set *filterSet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sets == nil {
		c.sets = make(map[int64]*list.Element)
	}
	if e := c.sets[id]; e != nil {
		if e.Value.(*cachedSet).set.version > set.version {
			return
		}
		c.remove(e)
	}
	c.sets[id] = c.order.PushFront(&cachedSet{id, set})
	c.bytes += set.bytes
	for c.bytes > cachedFilterBytes && c.order.Len() > 1 {
		c.remove(c.order.Back())
	}
}

func (c *filterCache) remove(e *list.Element) {
	cached := c.order.Remove(e).(*cachedSet)
	c.bytes -= cached.set.bytes
	delete(c.sets, cached.id)
}

// filterOverhead is what a filter takes in memory besides its text, in bytes, about.
const filterOverhead = 1000

// filterSet returns the filters of a subscription, at a version or a later one; nil if the subscription is gone.
func (s *Service) filterSet(ctx context.Context, name string, id, version int64) (*filterSet, error) {
	if set := s.filters.get(id, version); set != nil {
		return set, nil
	}
	version, filters, err := s.readFilters(ctx, id)
	if err != nil || version == 0 {
		return nil, err
	}
	set := &filterSet{subscription: name, version: version, bytes: filterOverhead}
	compiled := make([]*match.Filter, len(filters))
	for i := range filters {
		f := &filters[i]
		set.names = append(set.names, f.Name)
		set.bytes += filterOverhead + 4*len(f.Match)
		for _, topic := range f.Topics {
			set.bytes += 4 * len(topic)
		}
		if compiled[i], err = match.Parse(f.Topics, f.Match); err != nil {
			// A later version has accepted it. Its events are not for this one.
			s.cfg.Logger.Error().Err(err).Str("subscription", name).Str("filter", f.Name).Msg("a filter of a subscription cannot be compiled: it wants nothing here")
			compiled[i] = nil
		}
	}
	set.index = match.NewIndex(compiled)
	s.filters.put(id, set)
	return set, nil
}

// readFilters returns the filters of a subscription, by name, and their version; 0 if the subscription is gone.
func (s *Service) readFilters(ctx context.Context, id int64) (version int64, filters []SubscriptionFilter, err error) {
	rows, _ := s.reads.Query(ctx, `select filters_version, name, topics, match, expires_after, expires_at from agent.read_filters($1)`, id)
	type row struct {
		FiltersVersion int64
		SubscriptionFilter
	}
	all, err := pg.Collect[row](rows)
	if err != nil {
		return 0, nil, wrap("reading the filters of a subscription", err)
	}
	filters = []SubscriptionFilter{}
	for i := range all {
		version = all[i].FiltersVersion
		if all[i].Name != "" {
			filters = append(filters, all[i].SubscriptionFilter)
		}
	}
	return version, filters, nil
}
