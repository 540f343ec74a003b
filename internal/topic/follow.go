package topic

import (
	"context"
	"time"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/rounds"
)

const (
	// streamBytes bounds the texts of a batch of a stream, unless it is one event.
	streamBytes = 96 << 10
	// behindPause is how long who has read the log to its end from the database waits at least for the tail to get there.
	behindPause = 50 * time.Millisecond
)

// A Stream follows the log from a position on. It gets the newest events from memory, where they are read once for all streams. When it is slower
// than the log, or begins earlier, it reads from the database until it is level; a few streams do so at a time. It is for one goroutine.
type Stream struct {
	follower
	first   *logSlice // the slice that Follow has read
	reached int64     // the end of the batches that Next has returned
}

// Follow returns a Stream. Close it. It fails with an *InvalidError if After is no position, and with ErrUnavailable.
func (s *Service) Follow(ctx context.Context, p FollowParams) (*Stream, error) {
	st := &Stream{follower: follower{svc: s, position: p.After, topics: p.Topics, filter: p.Filter}, reached: p.After}
	st.join()
	s.streams.Add(1)
	first, err := st.step(ctx, MaxWait)
	if err != nil {
		st.Close()
		return nil, err
	}
	st.first = &first
	return st, nil
}

// Close ends the stream.
func (st *Stream) Close() {
	st.svc.streams.Add(-1)
	st.close()
}

// Position returns the position that the stream has come to: Next has returned all matches up to there.
func (st *Stream) Position() int64 {
	return st.reached
}

// Next returns the next events, in order. When none come within wait, the batch has only the position up to which there are none. It fails with
// ErrDraining once Drain was called, with the error of ctx, and with ErrUnavailable; another stream may go on after the last batch.
func (st *Stream) Next(ctx context.Context, wait time.Duration) (Batch, error) {
	deadline := time.Now().Add(wait)
	limiter := st.svc.calls.Limiter()
	for isOver := false; ; {
		if err := ctx.Err(); err != nil {
			return Batch{}, err
		}
		if st.svc.tail.isDraining() {
			return Batch{}, ErrDraining
		}
		before, waited := st.position, st.waited
		var p logSlice
		if st.first != nil {
			p, st.first = *st.first, nil
		} else {
			var err error
			if p, err = st.step(ctx, time.Until(deadline)); err != nil {
				return Batch{}, err
			}
		}
		if len(p.entries) > 0 || p.gap != nil || isOver {
			st.reached = st.position
			return Batch{Entries: p.entries, Next: st.position, Gap: p.gap}, nil
		}
		if p.isLevel {
			isOver = !st.wait(ctx, time.Until(deadline))
		} else {
			isOver = !time.Now().Before(deadline)
		}
		if err := limiter.Pause(ctx, st.position == before && st.waited-waited < rounds.MinWait); err != nil {
			return Batch{}, err
		}
	}
}

// step returns the next events, maybe none. It waits, up to limit, until few enough other streams read from the database; if they do not get fewer,
// there is nothing.
func (st *Stream) step(ctx context.Context, limit time.Duration) (logSlice, error) {
	if p, isThere := st.fromTail(readEvents, streamBytes); isThere {
		return p, nil
	}
	st.svc.behind.Add(1)
	defer st.svc.behind.Add(-1)
	began := time.Now()
	hasTurn := st.svc.takeTurn(ctx, limit)
	st.waited += time.Since(began)
	if !hasTurn {
		return logSlice{}, ctx.Err()
	}
	defer st.svc.endTurn()
	return st.fromDatabase(ctx, readEvents, streamBytes)
}

// takeTurn waits, up to limit, until few enough streams read from the database, and reports whether the caller may. Then call endTurn.
func (s *Service) takeTurn(ctx context.Context, limit time.Duration) bool {
	select {
	case s.catchUps <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case s.catchUps <- struct{}{}:
		return true
	case <-timer.C:
	case <-s.tail.drained:
	case <-ctx.Done():
	}
	return false
}

func (s *Service) endTurn() { <-s.catchUps }

// A follower reads the log from a position on: from the tail where that reaches back so far, else from the database.
type follower struct {
	svc       *Service
	position  int64
	topics    []string
	filter    *match.Filter
	group     *group      // nil: it has not joined the tail
	timer     *time.Timer // nil: it has not waited yet
	pageBytes int         // bytes that it reads at once from the database; zero: as much as it is to return
	wasLevel  bool        // it has read the log to its end from the database
	waited    time.Duration
}

// logSlice is the part of the log that a follower gets in one step.
type logSlice struct {
	entries    []*Entry
	next, head int64
	gap        *Gap
	scanned    int
	isLevel    bool // there is no more for now
}

func (f *follower) join() {
	if f.group == nil {
		f.group = f.svc.tail.join(f.filter)
		f.filter = f.group.filter // equal, and the same for all of them
	}
}

func (f *follower) close() {
	if f.group != nil {
		f.svc.tail.leave(f.group)
	}
}

// fromTail returns up to limit events of maxBytes together, but one at least, and reports whether the tail reaches back so far.
func (f *follower) fromTail(limit, maxBytes int) (logSlice, bool) {
	p, isMatched, isThere := f.svc.tail.after(f.group, f.position, limit, maxBytes)
	if !isThere {
		return logSlice{}, false
	}
	if !isMatched {
		f.choose(&p, limit, maxBytes, len(p.entries), func(i int) (*Event, *Entry) { return &p.entries[i].Event, p.entries[i] })
	}
	f.position, f.wasLevel, f.pageBytes = p.next, false, 0
	return p, true
}

// fromDatabase is fromTail from the database.
func (f *follower) fromDatabase(ctx context.Context, limit, maxBytes int) (logSlice, error) {
	size := readEvents
	if f.filter == nil || f.topics != nil {
		size = limit
	}
	f.pageBytes = max(f.pageBytes, maxBytes)
	read, err := f.svc.readPage(ctx, f.position, size, f.pageBytes, f.topics)
	if err != nil {
		return logSlice{}, err
	}
	p := read.logSlice
	f.choose(&p, limit, maxBytes, len(read.events), func(i int) (*Event, *Entry) {
		return &read.events[i], nil
	})
	switch {
	case p.next < read.next: // it has got more than it may return
		f.pageBytes = maxBytes
	case !p.isLevel: // little of it matches
		f.pageBytes = min(2*f.pageBytes, readBytes)
	}
	f.position, f.wasLevel = p.next, p.isLevel
	return p, nil
}

// choose makes entries of p those that match of n events, and ends p when they are as many as they may be.
func (f *follower) choose(p *logSlice, limit, maxBytes, n int, at func(int) (*Event, *Entry)) {
	var chosen []*Entry
	bytes := 0
	for i := range n {
		e, entry := at(i)
		if e.Subscription != "" || f.filter != nil && !f.filter.Matches(e.Topic, e.Event) {
			continue
		}
		if len(chosen) > 0 && (len(chosen) == limit || bytes+e.size() > maxBytes) {
			last, _ := at(i - 1)
			p.next, p.isLevel = last.Position, false
			break
		}
		bytes += e.size()
		if entry == nil {
			entry = &Entry{Event: *e}
		}
		chosen = append(chosen, entry)
	}
	p.entries = chosen
}

// wait waits for more, and reports whether to look again.
func (f *follower) wait(ctx context.Context, limit time.Duration) bool {
	if limit <= 0 {
		return false
	}
	t := f.svc.tail
	f.join()
	changed, isMore, isBehind := t.look(f.group, f.position)
	switch {
	case isMore:
		return true
	case isBehind && !f.wasLevel:
		return true
	case isBehind: // the database says that there is no more: somebody holds the head
		limit = min(limit, behindPause)
	case !t.isReading():
		limit = min(limit, f.svc.cfg.PollInterval)
		isBehind = true
	}
	f.setTimer(limit)
	began := time.Now()
	defer func() { f.waited += time.Since(began) }()
	select {
	case <-changed:
		return true
	case <-f.timer.C:
		return isBehind
	case <-t.drained:
	case <-ctx.Done():
	}
	return false
}

// setTimer makes the timer fire after d.
func (f *follower) setTimer(d time.Duration) {
	if f.timer == nil {
		f.timer = time.NewTimer(d)
	} else {
		f.timer.Reset(d)
	}
}
