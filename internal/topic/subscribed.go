package topic

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/rounds"
)

const (
	// MaxLease bounds the lease of a read.
	MaxLease = 24 * time.Hour
	// searchTime is how long a read that does not wait looks for events that match.
	searchTime = 2 * time.Second
)

// SubscribedParams say which events of a subscription to read. All fields may be zero.
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

// SubscribedPage is the result of a read of a subscription.
type SubscribedPage struct {
	Events      []MatchedEvent
	Cursor      string // commit it when the events are done; empty if the subscription is held or paused
	Lag         Lag    // after this page
	Gap         *Gap   // nil: nothing is missing
	LeasedUntil *time.Time
	HeldUntil   *time.Time // somebody else has a lease until then, so there is nothing to read; nil: nobody
	IsPaused    bool
}

// readState is the state of a subscription that a read begins with.
type readState struct {
	ID             int64
	FiltersVersion int64
	IsPaused       bool
	Position       int64
	Token, Epoch   int64
	LeasedUntil    *time.Time
}

// sameAs reports whether events read with an earlier state are still good. A position that is set back was lost by a failover.
func (st *readState) sameAs(before *readState) bool {
	return st.ID == before.ID && st.FiltersVersion == before.FiltersVersion && st.Token == before.Token && st.Epoch == before.Epoch &&
		st.Position >= before.Position
}

// subscribedReader reads the log for a subscription.
type subscribedReader struct {
	svc      *Service
	set      *filterSet
	position int64 // the next event is after it
	head     int64
	waited   time.Duration
	isLevel  bool   // there was no more
	joined   *group // nil: it has not waited yet
	ids      []int32

	joinedSet *filterSet // that joined is for

	watch      *watch // nil: it does not wait
	changed    <-chan struct{}
	maxBytes   int  // bound of the texts of the events read at once, unless it is one event
	takesTurns bool // with streams, for reading from the database
}

// ReadSubscription returns the next events of a subscription, in order. Everybody who uses the name reads them again until the cursor of the page
// is committed. The position of a subscription moves by itself over events that none of its filters wants. It fails with ErrSubscriptionNotFound,
// with ErrCursorLost when p.After can be committed no more, and with an *InvalidError if that is no cursor of this subscription.
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
	begun := time.Now()
	deadline := begun.Add(min(p.Wait, MaxWait))
	r := &subscribedReader{svc: s, maxBytes: readBytes}
	defer r.close()
	if p.Wait > 0 {
		r.watch = s.watches.join(name)
	}
	var before readState
	var start int64 // the search begins after it
	limiter, atPosition, atWaited := s.calls.Limiter(), int64(-1), time.Duration(0)
	for {
		if err := limiter.Pause(ctx, r.position == atPosition && r.waited-atWaited < rounds.MinWait); err != nil {
			return SubscribedPage{}, err
		}
		atPosition, atWaited = r.position, r.waited
		until := r.look(deadline)
		st, isWatched := s.watches.readState(r.watch) // while nothing is published, those who wait ask the database for nothing
		if !isWatched || isAhead && after.isLost(&st) {
			var err error
			if st, err = s.beginRead(ctx, name); err != nil {
				return SubscribedPage{}, err
			}
		}
		if isAhead && after.isLost(&st) {
			return SubscribedPage{}, ErrCursorLost
		}
		if st.IsPaused || st.LeasedUntil != nil && !isAhead {
			if r.pause(ctx, until) && time.Now().Before(deadline) {
				before = readState{}
				continue
			}
			return s.holdPage(ctx, name, st)
		}
		if !st.sameAs(&before) {
			r.position, before = st.Position, st
			if isAhead {
				r.position = max(after.position, st.Position)
			}
			start = r.position
			var err error
			if r.set, err = s.filterSet(ctx, name, st.ID, st.FiltersVersion); err != nil {
				return SubscribedPage{}, err
			}
			if r.set == nil { // it was deleted meanwhile
				s.watches.forget(name)
				continue
			}
		}
		before.Position = st.Position

		events, gap, err := r.next(ctx, pg.PageSize(p.Limit), until)
		if err != nil {
			return SubscribedPage{}, err
		}
		if isAhead && gap != nil && gap.Reason == GapBeyondHead { // the cursor is of another log
			return SubscribedPage{}, ErrCursorLost
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
		if latest, isWatched := s.watches.readState(r.watch); isEmpty && r.position == start && isWatched && latest.sameAs(&st) {
			return SubscribedPage{Cursor: c.format(name)}, nil // nothing was published, so there is nothing to make sure of
		}
		page, status, err := s.endRead(ctx, r, p.Lease, isAhead, isEmpty, &c)
		switch {
		case err != nil:
			return SubscribedPage{}, err
		case status == "lost":
			return SubscribedPage{}, ErrCursorLost
		case status == "changed":
			before = readState{}
			s.watches.forget(name)
			if err := ctx.Err(); err != nil {
				return SubscribedPage{}, err
			}
			continue
		case isEmpty && !r.isLevel && !s.tail.isDraining() && (time.Now().Before(deadline) || time.Since(begun) < searchTime):
			continue // little of it matches: it goes on where it was
		}
		switch {
		case page.LeasedUntil != nil:
			s.watches.forget(name)
		case isEmpty && !isAhead:
			s.watches.advance(r.watch, &st, r.position)
		}
		page.Events, page.Gap, page.Cursor = events, gap, c.format(name)
		return page, nil
	}
}

func (s *Service) beginRead(ctx context.Context, name string) (readState, error) {
	rows, _ := s.reads.Query(ctx, `select id, filters_version, is_paused, position, token, epoch, leased_until from agent_service.begin_read($1)`, name)
	st, err := pg.CollectOne[readState](rows)
	return st, wrap("reading a subscription", err)
}

// endRead makes sure that the page may be given away, and takes the lease. It sets the epoch of the cursor.
func (s *Service) endRead(ctx context.Context, r *subscribedReader, lease time.Duration, isAhead, isEmpty bool, c *cursor) (page SubscribedPage, status string, err error) {
	token := c.parent
	type ended struct {
		Status      string
		Epoch       int64
		LeasedUntil *time.Time
		LagEvents   int64
		LagSeconds  float64
	}
	const sql = `select status, epoch, leased_until, lag_events, lag_seconds from agent_service.end_read($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`
	args := []any{c.id, r.set.version, token, c.epoch, isAhead, isAhead && c.isLeased, c.token, r.position, r.head, pg.OrNull(lease), isEmpty}
	var end ended
	if lease > 0 || isAhead && c.isLeased { // it locks the subscription
		end, err = pg.WriteOne[ended](ctx, &s.writes, sql, args...)
	} else {
		rows, _ := s.reads.Query(ctx, sql, args...)
		end, err = pg.CollectOne[ended](rows)
	}
	if err != nil {
		return page, "", wrap("reading a subscription", err)
	}
	c.epoch = end.Epoch
	return SubscribedPage{Lag: Lag{end.LagEvents, end.LagSeconds}, LeasedUntil: end.LeasedUntil}, end.Status, nil
}

// holdPage is the page of a subscription that is held or paused.
func (s *Service) holdPage(ctx context.Context, name string, st readState) (SubscribedPage, error) {
	sub, err := s.Subscription(ctx, name)
	return SubscribedPage{Lag: Lag{sub.LagEvents, sub.LagSeconds}, HeldUntil: st.LeasedUntil, IsPaused: st.IsPaused}, err
}

// look returns until when to wait at most for the subscription as it is now, which is then to be looked at: from now on changes are noticed.
func (r *subscribedReader) look(deadline time.Time) (until time.Time) {
	if r.watch != nil {
		r.changed = r.svc.watches.changes(r.watch)
	}
	if poll := time.Now().Add(r.svc.cfg.PollInterval); !r.svc.tail.isReading() && poll.Before(deadline) {
		return poll // Run does not run, so nobody notices changes
	}
	return deadline
}

// next returns up to limit events that the subscription gets. Without any it waits, until a time or until the subscription may have changed.
func (r *subscribedReader) next(ctx context.Context, limit int, until time.Time) (events []MatchedEvent, gap *Gap, err error) {
	size, pageBytes := limit, r.maxBytes
	limiter := r.svc.calls.Limiter()
	for scanned, bytes := 0, 0; ; {
		before, waited := r.position, r.waited
		r.rejoin()
		p, _, isInTail := r.svc.tail.after(r.joined, r.position, limit, r.maxBytes)
		at := func(i int) *Event { return &p.entries[i].Event }
		n := len(p.entries)
		if !isInTail {
			read, isRead, err := r.readPage(ctx, size, pageBytes, until)
			if err != nil || !isRead {
				r.isLevel = false
				return events, gap, err
			}
			p, n, size, pageBytes = read.logSlice, len(read.events), min(2*size, readEvents), min(2*pageBytes, readBytes)
			at = func(i int) *Event { return &read.events[i] }
		}
		if p.gap != nil {
			if len(events) > 0 || gap != nil { // it comes after them
				r.isLevel = false
				return events, gap, nil
			}
			gap = p.gap
		}
		r.head, r.isLevel, scanned = p.head, p.isLevel, scanned+n
		for i := range n {
			e := at(i)
			matched, isWanted := r.match(e)
			if !isWanted {
				continue
			}
			if len(events) == limit || len(events) > 0 && bytes+e.size() > r.maxBytes {
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
		case p.isLevel && !r.wait(ctx, until, isInTail):
			r.passOver()
			return nil, nil, ctx.Err()
		}
		if err := limiter.Pause(ctx, r.position == before && r.waited-waited < rounds.MinWait); err != nil {
			return events, gap, err
		}
	}
}

// readPage reads on in the database. A stream waits for its turn, and there is nothing if that does not come in time.
func (r *subscribedReader) readPage(ctx context.Context, limit, maxBytes int, until time.Time) (p readPart, isRead bool, err error) {
	if r.takesTurns {
		r.svc.behind.Add(1)
		defer r.svc.behind.Add(-1)
		began := time.Now()
		hasTurn := r.svc.takeTurn(ctx, time.Until(until))
		r.waited += time.Since(began)
		if !hasTurn {
			return p, false, ctx.Err()
		}
		defer r.svc.endTurn()
	}
	p, err = r.svc.readPage(ctx, r.position, limit, maxBytes, nil)
	return p, err == nil, err
}

// join makes the reader one of those who follow the log for events that its filters want.
func (r *subscribedReader) join() {
	r.joined, r.joinedSet = r.svc.tail.joinSubscription(r.set), r.set
}

// rejoin has it follow the log for other filters once it has some, and those that it has if somebody has followed the log for them a moment ago.
func (r *subscribedReader) rejoin() {
	switch {
	case r.joinedSet == r.set:
	case r.joined != nil:
		before := r.joined
		r.join()
		r.svc.tail.leave(before)
	case r.watch != nil:
		if r.joined = r.svc.tail.joinSubscriptionAgain(r.set); r.joined != nil {
			r.joinedSet = r.set
		}
	}
}

// passOver goes on to the end of the log if the filters want nothing up to there.
func (r *subscribedReader) passOver() {
	if p, isMatched, isThere := r.svc.tail.after(r.joined, r.position, 1, 1); isThere && isMatched && len(p.entries) == 0 {
		r.position, r.head = p.next, p.head
	}
}

// wait waits for more of the log, and reports whether to look for it.
func (r *subscribedReader) wait(ctx context.Context, until time.Time, isInTail bool) bool {
	t := r.svc.tail
	limit := time.Until(until)
	if limit <= 0 || t.isDraining() {
		return false
	}
	if r.joined == nil {
		r.join()
	}
	changed, isMore, isBehind := t.look(r.joined, r.position)
	polls := false
	switch {
	case isMore, isBehind && isInTail:
		return true
	case !t.isReading():
		limit, polls = min(limit, r.svc.cfg.PollInterval), true
	case isBehind: // the database says that there is no more: somebody holds the head
		limit, polls = min(limit, behindPause), true
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	began := time.Now()
	defer func() { r.waited += time.Since(began) }()
	select {
	case <-changed:
		return true
	case <-timer.C:
		return polls
	case <-r.changed:
	case <-t.drained:
	case <-ctx.Done():
	}
	return false
}

// pause waits while a subscription is held or paused, and reports whether to look again.
func (r *subscribedReader) pause(ctx context.Context, until time.Time) bool {
	limit := time.Until(until)
	if limit <= 0 || r.svc.tail.isDraining() {
		return false
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	began := time.Now()
	defer func() { r.waited += time.Since(began) }()
	select {
	case <-timer.C:
		return true
	case <-r.changed:
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
	if r.watch != nil {
		r.svc.watches.leave(r.watch)
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

// A cursor is the end of a page of a subscription, to go on from and to commit.
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
	// The position also moves over events that no filter wants, which loses no cursor.
	isPassed := st.Position > c.position && st.Token != c.token && st.Token != c.parent
	return c.id != st.ID || c.epoch != st.Epoch || isPassed || c.isLeased && st.LeasedUntil == nil
}

const (
	cursorLeased = 1 << iota
	cursorGap
)

// cursorCheckBytes is how many bytes of a cursor tell whether it is unchanged.
const cursorCheckBytes = 6

// newToken returns a random number that tells a cursor from all others.
func newToken() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return int64(binary.BigEndian.Uint64(b[:]) >> 1)
}

// checkOf returns the check at the end of the bytes of a cursor of a subscription.
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
