package topic

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pg"
)

// Bounds of the filters of subscriptions, which the schema holds, too.
const (
	MaxFilters    = 1000    // of one subscription
	MaxAllFilters = 100_000 // of all
)

// A Subscription is a named reader of the log that is remembered.
type Subscription struct {
	ID            int64 // one that is made anew under the same name has another
	Name          string
	Version       int64
	IsPaused      bool
	StartPosition int64
	MaxWaiting    int
	ExpiresAfter  *time.Duration // nil: it is durable, and holds segments of the log
	ExpiresAt     *time.Time
	CreatedAt     time.Time
	UpdatedAt     time.Time
	FilterCount   int64 `db:"filters"`
	Position      int64 // everything up to there is committed
	Head          int64 // the log is complete up to here
	LagEvents     int64
	LagSeconds    float64
	Gaps          int64
	LeasedUntil   *time.Time // nil: nobody has a lease

	Deliver  *Delivery `db:"-"` // nil: it is read by cursor
	IsInStep bool      // its position is the one of all that are level
	Waiting  int64     // events that are due in its queue, up to MaxWaiting
	Replays  int64     // that have not ended

	Filters []SubscriptionFilter `db:"-"` // nil in listings
}

// A Delivery says where the events of a subscription go.
type Delivery struct {
	Queue     string // required
	Type      string // of the events in the queue; empty: none
	Priority  int32
	GroupFrom string // where their groups are: key (of the publication), topic, or a JSON pointer into the payload; empty: they have none of their own
}

// A SubscriptionFilter is a filter of a subscription.
type SubscriptionFilter struct {
	Name         string
	Topics       []string        // nil: all
	Match        json.RawMessage // as it was given; nil: all
	ExpiresAfter *time.Duration  // nil: never
	ExpiresAt    *time.Time
	Filter       *match.Filter // compiled from Topics and Match; required to put it
}

// A Lag is how far a position is behind the head of the log.
type Lag struct {
	Events  int64   // positions in between, those counted whose publisher was rolled back
	Seconds float64 // since the first of these events was published
}

// PutSubscriptionParams is a subscription to create or replace. Name is required.
type PutSubscriptionParams struct {
	Name         string
	Filters      []SubscriptionFilter // none: only events that are published for it alone
	Start        int64                // a new one begins after this position
	Deliver      *Delivery            // nil: it is read by cursor
	MaxWaiting   int                  // events that are due in its queue, beyond which nothing is delivered
	ExpiresAfter *time.Duration       // nil: never
	IfVersions   []int64              // the versions of which it must have one; nil: any, or it is new
	IfExists     bool                 // it must not be new
}

// SubscriptionPage is a page of subscriptions, by name.
type SubscriptionPage struct {
	Subscriptions []Subscription
	Next          string // cursor of the next page; empty: this is the last one
}

// filterJSON is a filter as the schema takes it.
type filterJSON struct {
	Name         string          `json:"name"`
	Topics       []string        `json:"topics,omitempty"`
	Match        json.RawMessage `json:"match,omitempty"`
	Canonical    string          `json:"canonical"`
	ExpiresAfter *float64        `json:"expires_after,omitempty"`
}

func (f *SubscriptionFilter) json() filterJSON {
	j := filterJSON{Name: f.Name, Topics: f.Topics, Match: f.Match, Canonical: string(f.Filter.Canonical())}
	if f.ExpiresAfter != nil {
		j.ExpiresAfter = new(f.ExpiresAfter.Seconds())
	}
	return j
}

// PutSubscription creates a subscription, or replaces its filters and settings and leaves its position as it is, and reports whether it is new. A call
// that changes nothing renews a subscription that expires, and leaves the version. It fails with ErrStale, an *InvalidError, a *queue.UndeclaredError, and ErrWrongDelivery for one that exists and would
// change between delivery and reading by cursor.
func (s *Service) PutSubscription(ctx context.Context, p PutSubscriptionParams) (isNew bool, err error) {
	filters := make([]filterJSON, len(p.Filters))
	for i := range p.Filters {
		filters[i] = p.Filters[i].json()
	}
	text, err := json.Marshal(filters)
	if err != nil {
		return false, &InvalidError{Field: "filters", Detail: "must be JSON"}
	}
	var deliver struct {
		queue, kind, groupFrom *string
		priority               int32
	}
	if d := p.Deliver; d != nil {
		deliver.queue, deliver.kind, deliver.priority, deliver.groupFrom = &d.Queue, pg.OrNull(d.Type), d.Priority, pg.OrNull(d.GroupFrom)
	}
	err = s.writes.Row(ctx, `select agent_service.put_subscription_if_match($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) where `+s.cfg.Queue.RequireQueue("$9"), []any{
		p.Name, string(text), p.Start, p.MaxWaiting, p.ExpiresAfter, newToken(), p.IfVersions, p.IfExists, deliver.queue, deliver.kind, deliver.priority,
		deliver.groupFrom,
	}, &isNew)
	s.changed(p.Name)
	return isNew, wrap("putting a subscription", err)
}

// changed tells those of this process who read or deliver a subscription that it may have changed.
func (s *Service) changed(name string) {
	s.watches.signal(name)
	s.router.changed()
}

// PutFilter adds a filter to a subscription, replaces the one of its name, or renews it. It fails with ErrSubscriptionNotFound and an *InvalidError.
func (s *Service) PutFilter(ctx context.Context, subscription string, f SubscriptionFilter) error {
	text, err := json.Marshal(f.json())
	if err != nil {
		return &InvalidError{Field: "match", Detail: "must be JSON"}
	}
	err = s.writes.Exec(ctx, `select agent_service.put_filter($1, $2)`, subscription, string(text))
	s.changed(subscription)
	return wrap("putting a filter", err)
}

// DeleteFilter deletes a filter of a subscription. It fails with ErrSubscriptionNotFound or ErrFilterNotFound.
func (s *Service) DeleteFilter(ctx context.Context, subscription, filter string) error {
	err := s.writes.Exec(ctx, `select agent_service.delete_filter($1, $2)`, subscription, filter)
	s.changed(subscription)
	return wrap("deleting a filter", err)
}

// DeleteSubscription deletes a subscription if its version is one of ifVersions (nil: whatever it is). Cursors of it are lost. It fails with
// ErrSubscriptionNotFound or ErrStale.
func (s *Service) DeleteSubscription(ctx context.Context, name string, ifVersions []int64) error {
	err := s.writes.Exec(ctx, `select agent_service.delete_subscription_if_match($1, $2)`, name, ifVersions)
	s.changed(name)
	return wrap("deleting a subscription", err)
}

// PauseSubscription makes reads of a subscription get nothing, and nothing be delivered for it. It fails with ErrSubscriptionNotFound.
func (s *Service) PauseSubscription(ctx context.Context, name string) error {
	return s.setPaused(ctx, name, true)
}

// ResumeSubscription ends a pause. It fails with ErrSubscriptionNotFound.
func (s *Service) ResumeSubscription(ctx context.Context, name string) error {
	return s.setPaused(ctx, name, false)
}

func (s *Service) setPaused(ctx context.Context, name string, isPaused bool) error {
	err := s.writes.Exec(ctx, `select agent.pause_subscription($1, $2)`, name, isPaused)
	s.changed(name)
	return wrap("pausing a subscription", err)
}

const subscriptionColumns = `id, name, version, is_paused, start_position, max_waiting, expires_after, expires_at, created_at, updated_at, filters, position,
	head, lag_events, lag_seconds, gaps, leased_until, deliver_queue, deliver_type, deliver_priority, is_in_step, waiting, replays, deliver_group_from`

// subscriptionRow is a row of agent.list_subscriptions.
type subscriptionRow struct {
	Subscription
	DeliverQueue, DeliverType string
	DeliverPriority           int32
	DeliverGroupFrom          string
}

// collectSubscriptions reads rows of agent.list_subscriptions.
func collectSubscriptions(rows pgx.Rows) (all []Subscription, err error) {
	for row, err := range pg.Each[subscriptionRow](rows) {
		if err != nil {
			return nil, err
		}
		if row.DeliverQueue != "" {
			row.Deliver = &Delivery{row.DeliverQueue, row.DeliverType, row.DeliverPriority, row.DeliverGroupFrom}
		}
		all = append(all, row.Subscription)
	}
	return all, nil
}

// Subscription returns a subscription with its filters. It fails with ErrSubscriptionNotFound.
func (s *Service) Subscription(ctx context.Context, name string) (Subscription, error) {
	rows, _ := s.reads.Query(ctx, `select `+subscriptionColumns+` from agent.list_subscriptions(1, null, $1)`, name)
	all, err := collectSubscriptions(rows)
	if err != nil {
		return Subscription{}, wrap("getting a subscription", err)
	}
	if len(all) == 0 {
		return Subscription{}, ErrSubscriptionNotFound
	}
	// The filters come after the version: who changes them on the ground of this version has seen them, or is refused.
	found := all[0]
	_, found.Filters, err = s.readFilters(ctx, found.ID)
	return found, err
}

// SubscriptionAllowed reports whether a subscription delivers, if at all, only into queues that these patterns stand for, and wants only topics that these do. It
// fails with ErrSubscriptionNotFound.
func (s *Service) SubscriptionAllowed(ctx context.Context, name string, queues, topics []string) (bool, error) {
	var allowed *bool
	if err := s.reads.QueryRow(ctx, `select agent_service.subscription_allowed($1, $2, $3)`, name, queues, topics).Scan(&allowed); err != nil {
		return false, wrap("looking at a subscription", err)
	}
	if allowed == nil {
		return false, ErrSubscriptionNotFound
	}
	return *allowed, nil
}

// Subscriptions returns a page of subscriptions, by name, without their filters: those that SubscriptionAllowed allows with these patterns; nil: all. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) Subscriptions(ctx context.Context, limit int, cursor string, queues, topics []string) (page SubscriptionPage, err error) {
	page.Subscriptions, page.Next, err = pg.ReadPage("subscriptions", cursor, limit, func(after pg.Cursor, n int) (all []Subscription, err error) {
		err = pg.Bounded(ctx, s.reads, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, `select `+subscriptionColumns+` from agent.list_subscriptions($1, $2, null, $3, $4)`, n, after.Name, queues, topics)
			all, err = collectSubscriptions(rows)
			return err
		})
		return all, wrap("listing subscriptions", err)
	}, func(sub *Subscription) pg.Cursor { return pg.Cursor{Name: &sub.Name} })
	return page, err
}

// SubscriptionLag is how far a subscription is behind.
type SubscriptionLag struct {
	Name       string
	LagEvents  int64
	LagSeconds float64
	Gaps       int64
	Others     int64 // subscriptions that are not among those returned
}

// SlowestSubscriptions returns the subscriptions that are the furthest behind.
func (s *Service) SlowestSubscriptions(ctx context.Context, limit int) ([]SubscriptionLag, error) {
	rows, _ := s.reads.Query(ctx, `select name, lag_events, lag_seconds, gaps, others from agent_service.slowest_subscriptions($1)`, limit)
	all, err := pg.Collect[SubscriptionLag](rows)
	return all, wrap("looking for the slowest subscriptions", err)
}

// Commit commits a cursor of a subscription, and returns the position from which the next read goes on. The cursor that was committed last can
// be committed again. It fails with ErrSubscriptionNotFound, ErrWrongDelivery, ErrCursorLost, and an *InvalidError for a text that is no cursor of this subscription.
func (s *Service) Commit(ctx context.Context, name, text string) (position int64, err error) {
	c, ok := parseCursor(name, text)
	if !ok {
		return 0, &InvalidError{Field: "cursor", Detail: notACursor}
	}
	err = s.writes.Row(ctx, `select agent_service.commit_cursor($1, $2, $3, $4, $5, $6, $7, $8)`,
		[]any{name, c.id, c.epoch, c.parent, c.token, c.position, c.isLeased, c.hasGap}, &position)
	if c.isLeased { // those who wait for the lease may go on
		s.changed(name)
	} else {
		s.watches.forget(name)
	}
	return position, wrap("committing a cursor", err)
}

// Seek makes a subscription go on after a position, which it returns. Instead of one that was never given out, that is the head of the log, with the
// gap that leads there. The subscription's cursors are lost, and a lease ends. It fails with ErrSubscriptionNotFound, and an *InvalidError for a number that is no position.
func (s *Service) Seek(ctx context.Context, name string, to int64) (position int64, gap *Gap, err error) {
	position = to
	p, err := s.readPage(ctx, to, 1, 1, nil)
	if err != nil {
		return 0, nil, err
	}
	if p.gap != nil && p.gap.Reason == GapBeyondHead { // positions that were not given out then can be given out by now, but not before it
		position, gap = p.gap.Until, p.gap
	}
	err = s.writes.Exec(ctx, `select agent_service.seek_subscription($1, $2, $3)`, name, position, newToken())
	s.changed(name)
	return position, gap, wrap("seeking", err)
}

// Replay delivers into the queue of a subscription once more the events after from, up to to, that its filters want as they are now. It
// returns how many these are, and with isDryRun delivers nothing. The router delivers them; it goes on with new events meanwhile. It fails with
// ErrSubscriptionNotFound, ErrWrongDelivery for one that is read by cursor, and an *InvalidError for a position that was never given out.
func (s *Service) Replay(ctx context.Context, name string, from, to int64, isDryRun bool) (events int64, err error) {
	id, err := s.replay(ctx, name, from, to, true)
	if err != nil {
		return 0, err
	}
	set, err := s.loadFilters(ctx, name, id)
	if err != nil {
		return 0, err
	}
	if set == nil {
		return 0, ErrSubscriptionNotFound
	}
	reader := &subscribedReader{svc: s, set: set}
	for after, isLevel := from, false; after < to && !isLevel; {
		p, at, err := s.readAfter(ctx, after, true)
		if err != nil {
			return 0, err
		}
		for i := range p.scanned {
			e := at(i)
			if e.Position > to {
				break
			}
			if _, isWanted := reader.match(e); isWanted {
				events++
			}
		}
		after, isLevel = p.next, p.isLevel
	}
	if isDryRun || events == 0 {
		return events, nil
	}
	_, err = s.replay(ctx, name, from, to, false)
	s.changed(name)
	return events, err
}

// replay begins a replay, or only checks whether there may be one. It returns the id of the subscription.
func (s *Service) replay(ctx context.Context, name string, from, to int64, isDryRun bool) (id int64, err error) {
	err = s.writes.Row(ctx, `select agent.replay_subscription($1, $2, $3, $4)`, []any{name, from, to, isDryRun}, &id)
	return id, wrap("replaying", err)
}
