package topic

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/rounds"
)

const (
	// readEvents and readBytes bound a statement that reads the log.
	readEvents = 1000
	readBytes  = 4 << 20
	// pageBytes bounds the texts of a page, as claims and pages of queues are bounded, but for its last event.
	pageBytes = 8 << 20
	// scanEvents is how many events one call reads at most to find those that match: it returns those, maybe none, and how far it has come.
	scanEvents = 50_000
)

// Read returns events of the log after a position, in order, with texts of about 8 MiB. A page that is not full may still have more after it: read on
// after Next. When there is none it waits for the first, up to p.Wait. From a position that was never given out
// it goes on at the head, after a gap. It fails with an *InvalidError if After is no position, and with ErrUnavailable.
func (s *Service) Read(ctx context.Context, p ReadParams) (Page, error) {
	limit := pg.PageSize(p.Limit)
	f := &follower{svc: s, position: p.After, topics: p.Topics, filter: p.Filter}
	defer f.close()
	if p.Wait > 0 {
		f.group = s.tail.joinAgain(f.filter)
	}
	deadline := time.Now().Add(min(p.Wait, MaxWait))
	page := Page{Next: p.After}
	limiter := s.calls.Limiter()
	for scanned, bytes := 0, 0; ; {
		before, waited := f.position, f.waited
		maxBytes := min(readBytes, pageBytes-bytes)
		slice, isThere := f.fromTail(limit-len(page.Events), maxBytes)
		if !isThere {
			var err error
			if slice, err = f.fromDatabase(ctx, limit-len(page.Events), maxBytes); err != nil {
				return Page{}, err
			}
		}
		for _, e := range slice.entries {
			page.Events = append(page.Events, e.Event)
			bytes += e.Event.size()
		}
		page.Next, page.Head = slice.next, slice.head
		if slice.gap != nil && page.Gap == nil {
			page.Gap = slice.gap
		}
		scanned += slice.scanned
		switch {
		case len(page.Events) == limit, bytes >= pageBytes, scanned >= scanEvents, page.Gap != nil: // there may be another gap
			return page, nil
		case !slice.isLevel:
			if err := limiter.Pause(ctx, f.position == before); err != nil {
				return page, err
			}
			continue
		case len(page.Events) > 0, s.tail.isDraining():
			return page, ctx.Err()
		case !f.wait(ctx, time.Until(deadline)):
			if slice, isThere := f.fromTail(limit, pageBytes); isThere { // the next read goes on from here, and need not pass over events that came meanwhile
				page.Next, page.Head = slice.next, slice.head
				for _, e := range slice.entries {
					page.Events = append(page.Events, e.Event)
				}
			}
			return page, ctx.Err()
		}
		if err := limiter.Pause(ctx, f.position == before && f.waited-waited < rounds.MinWait); err != nil {
			return page, err
		}
	}
}

// ReadLast returns the last events of the log that match, in order, with texts of about 8 MiB. isComplete says that they are p.N events, or all there are: otherwise it has ended
// before, as there is much in the log that does not match. Who reads on after Next misses nothing. It fails with ErrUnavailable.
func (s *Service) ReadLast(ctx context.Context, p LastParams) (page Page, isComplete bool, err error) {
	var before *int64
	for scanned, bytes, size := 0, 0, min(p.N, readEvents); ; size = min(2*size, readEvents) {
		part, err := s.readBack(ctx, before, size, p.Topics)
		if err != nil {
			return Page{}, false, err
		}
		if before == nil {
			page.Next, page.Head = part.head, part.head
		}
		for i := range part.events {
			e := &part.events[i]
			if e.Subscription != "" || p.Filter != nil && !p.Filter.Matches(e.Topic, e.Event) {
				continue
			}
			if bytes += e.size(); len(page.Events) > 0 && bytes > pageBytes {
				slices.Reverse(page.Events)
				return page, false, nil
			}
			if page.Events = append(page.Events, *e); len(page.Events) == p.N {
				slices.Reverse(page.Events)
				return page, true, nil
			}
		}
		if scanned += len(part.events); part.isFirst || scanned >= scanEvents {
			slices.Reverse(page.Events)
			return page, part.isFirst, ctx.Err()
		}
		before = &part.events[len(part.events)-1].Position
	}
}

// backPart is a part of the log that was read backwards, the latest event first.
type backPart struct {
	events  []Event
	head    int64
	isFirst bool // there is nothing before
}

// readBack reads a part of the log backwards, before a position or from its end on: all events, or those of topics.
func (s *Service) readBack(ctx context.Context, before *int64, limit int, topics []string) (p backPart, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	rows, err := s.reads.Query(ctx, `select head, bytes, position, published_at, topic, event, meta, key, subscription from agent_service.read_log_back($1, $2, $3, $4)`,
		before, limit, readBytes, topics)
	if err != nil {
		return p, wrap("reading the end of the log", err)
	}
	defer rows.Close()
	r := pg.NewRowReader(rows)
	var bytes int64
	for rows.Next() {
		var e Event
		if err := r.Read(&p.head, &bytes, &e.Position, &e.PublishedAt, &e.Topic, (*[]byte)(&e.Event), (*[]byte)(&e.Meta), &e.Key, &e.Subscription); err != nil {
			return p, wrap("reading the end of the log", err)
		}
		if e.Position != 0 {
			p.events = append(p.events, e)
		}
	}
	rows.Close()
	p.isFirst = len(p.events) < limit && bytes < readBytes
	return p, wrap("reading the end of the log", rows.Err())
}

// readPart is a page of the log as it was read.
type readPart struct {
	logSlice // without entries
	events   []Event
	origin   int64 // another one than that of an earlier page: events read then may be there no more
}

// readPage reads a page of the log from the database: all events, or those of topics.
func (s *Service) readPage(ctx context.Context, after int64, limit, maxBytes int, topics []string) (p readPart, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	rows, err := s.reads.Query(ctx, `select head, gap_until, bytes, position, published_at, topic, event, meta, key, subscription, (select agent_service.log_origin()),
			case when gap_until is not null then (select agent_service.log_gap_reason($1)) end
		from agent_service.read_log_page($1, $2, $3, $4)`, after, limit, maxBytes, topics)
	if err != nil {
		return p, wrap("reading the log", err)
	}
	defer rows.Close()
	r := pg.NewRowReader(rows)
	var gapUntil, bytes int64
	var gapReason string
	for rows.Next() {
		var e Event
		if err := r.Read(&p.head, &gapUntil, &bytes, &e.Position, &e.PublishedAt, &e.Topic, (*[]byte)(&e.Event), (*[]byte)(&e.Meta), &e.Key, &e.Subscription, &p.origin, &gapReason); err != nil {
			return p, wrap("reading the log", err)
		}
		if e.Position != 0 {
			p.events = append(p.events, e)
		}
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return p, wrap("reading the log", err)
	}
	if gapUntil != 0 {
		p.gap = &Gap{After: after, Until: gapUntil, Reason: GapReason(gapReason)}
	}
	p.scanned = len(p.events)
	p.isLevel = p.scanned < limit && bytes < int64(maxBytes)
	p.next = max(p.head, after)
	switch {
	case p.gap == nil:
	case p.gap.Reason == GapBeyondHead:
		p.next = p.head
	default: // or the next read would tell the gap again
		p.next = max(p.next, p.gap.Until)
	}
	if !p.isLevel {
		p.next = p.events[p.scanned-1].Position
	}
	return p, nil
}

// Get returns the event at a position. It fails with ErrPositionNotFound, also for an event that can be read only when an earlier transaction has
// ended, or that is for one subscription alone.
func (s *Service) Get(ctx context.Context, position int64) (Event, error) {
	if position < 1 {
		return Event{}, ErrPositionNotFound
	}
	rows, _ := s.reads.Query(ctx, `select position, published_at, topic, event, meta, key from agent_service.get_published($1)`, position)
	e, err := pg.CollectOne[Event](rows)
	if errors.Is(err, pgx.ErrNoRows) {
		return Event{}, ErrPositionNotFound
	}
	return e, wrap("reading the log", err)
}

// MatchLast tells which of the last n events of the log a filter takes, or of all if there are fewer, in their order.
func (s *Service) MatchLast(ctx context.Context, filter *match.Filter, n int) (positions []int64, matched []bool, err error) {
	positions, matched = []int64{}, []bool{}
	err = pg.Bounded(ctx, s.reads, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `select position, topic, event from agent_service.last_published($1)`, n)
		for e, err := range pg.Each[Event](rows) {
			if err != nil {
				return err
			}
			if err := ctx.Err(); err != nil { // many events may have been received that are not compared yet
				return err
			}
			positions, matched = append(positions, e.Position), append(matched, filter.Matches(e.Topic, e.Event))
		}
		return nil
	})
	return positions, matched, wrap("reading the end of the log", err)
}

// Bounds returns the first position that can be read, and the position up to which the log is complete.
func (s *Service) Bounds(ctx context.Context) (first, head int64, err error) {
	err = s.reads.QueryRow(ctx, `select first, head from agent.log_bounds()`).Scan(&first, &head)
	return first, head, wrap("reading the bounds of the log", err)
}

// PositionAt returns the position after which everything is that was published at a time or later.
func (s *Service) PositionAt(ctx context.Context, at time.Time) (position int64, err error) {
	err = s.reads.QueryRow(ctx, `select agent.log_position($1)`, at).Scan(&position)
	return position, wrap("looking for a time in the log", err)
}

// Holder returns the transaction that has held the head of the log for longest; nil: none does.
func (s *Service) Holder(ctx context.Context) (*Holder, error) {
	rows, _ := s.reads.Query(ctx, `select pid, prepared, position, age, query from agent.log_holder()`)
	all, err := pg.Collect[Holder](rows)
	if err != nil || len(all) == 0 {
		return nil, wrap("looking who holds the head of the log", err)
	}
	return &all[0], nil
}

// Topics returns a page of the topics that have events in the log, by name. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) Topics(ctx context.Context, limit int, cursor string, patterns []string) (page TopicPage, err error) {
	after, err := pg.ParseCursor("topics", cursor)
	if err != nil {
		return page, err
	}
	size := pg.PageSize(limit)
	err = pg.Bounded(ctx, s.reads, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `select topic, events, last_position, last_at from agent.list_topics($1, $2, $3)`, size+1, after.Name, patterns)
		page.Topics, err = pg.Collect[Topic](rows)
		return err
	})
	if len(page.Topics) > size {
		page.Topics = page.Topics[:size]
		page.Next = pg.Cursor{Listing: "topics", Name: &page.Topics[size-1].Name}.String()
	}
	return page, wrap("listing topics", err)
}

const settingsColumns = `retention, hold, segment_interval, segment_size, version, updated_at`

// Settings returns the settings of the log.
func (s *Service) Settings(ctx context.Context) (Settings, error) {
	rows, _ := s.reads.Query(ctx, `select `+settingsColumns+` from agent.get_log_settings()`)
	settings, err := pg.CollectOne[Settings](rows)
	return settings, wrap("reading the settings of the log", err)
}

// PutSettings changes settings, for all processes at once, if their version is one of ifVersions (nil: whatever it is). It fails with an *InvalidError
// or ErrStale.
func (s *Service) PutSettings(ctx context.Context, c SettingsChange, ifVersions []int64) (Settings, error) {
	settings, err := pg.WriteOne[Settings](ctx, &s.writes, `select `+settingsColumns+` from agent.put_log_settings($1, $2, $3, $4, $5)`,
		c.Retention, c.Hold, c.SegmentInterval, c.SegmentSize, ifVersions)
	return settings, wrap("changing the settings of the log", err)
}
