package queue

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// MaxFailures is how many failures Causes looks at, at most, and MaxLooked how many failed and expired events it reads to find them.
const (
	MaxFailures = 10_000
	MaxLooked   = 20_000
)

const (
	maxErrorStart = 600 // characters of an error that its cause is made of
	maxNames      = 100 // of the queues and the types of a cause
)

// CausesParams says which failures Causes looks at: events of history that ended as Failed or Expired with an error.
type CausesParams struct {
	Queue, Type string     // empty: any
	From, To    *time.Time // bounds of event_ts: From inclusive, To exclusive

	// FinishedFrom and FinishedTo are bounds of finished_at: FinishedFrom inclusive, FinishedTo exclusive.
	FinishedFrom, FinishedTo *time.Time

	Limit  int      // causes to return at most
	Queues []string // patterns as in ListParams; nil: all
}

// A Cause is what the errors of some failures have in common: their text without what varies.
type Cause struct {
	Text            string
	Count           int64
	Queues, Types   []string // up to 100 of each, by name; an event without a type has none
	FirstAt, LastAt time.Time

	ExampleID        int64  // the one of the events that has the newest event_ts
	ExampleError     string // as it was sent, up to 8,192 characters
	ExampleTruncated bool   // there are more
}

// Causes are the causes of failures, those of most failures first.
type Causes struct {
	Causes   []Cause
	Total    int   // causes, with those beyond the limit
	LookedAt int64 // failures
	Complete bool  // false: there are more failures, all with an older event_ts than those that were looked at
}

// failedEvent is a row of agent_service.list_failures.
type failedEvent struct {
	ID          int64 // 0: there is no event in the row
	Queue, Type string
	FinishedAt  time.Time
	Error       string
	IsBound     bool
}

// Causes groups failures by their cause. It looks at MaxFailures at most, newest event_ts first. It fails with ErrQueryTimeout.
func (s *Service) Causes(ctx context.Context, p CausesParams) (found Causes, err error) {
	g := causeGroups{byText: make(map[string]*causeGroup)}
	err = s.bounded(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `select id, queue, type, finished_at, error, is_bound
			from agent_service.list_failures(nullif($1, ''), nullif($2, ''), $3, $4, $5, $6, $7, $8, $9, $10)`,
			p.Queue, p.Type, p.From, p.To, p.Queues, MaxFailures+1, MaxLooked, maxErrorStart, p.FinishedFrom, p.FinishedTo)
		found.Complete = true
		for f, err := range pg.Each[failedEvent](rows) {
			if err != nil {
				return err
			}
			if f.IsBound || found.LookedAt == MaxFailures {
				found.Complete = false
			}
			if f.ID != 0 && found.LookedAt < MaxFailures {
				found.LookedAt++
				g.add(&f)
			}
		}
		found.Total = len(g.byText)
		found.Causes = g.most(p.Limit)
		return readExamples(ctx, tx, found.Causes)
	})
	return found, wrap("looking for the causes of failures", err)
}

// readExamples reads the whole errors of the examples, of which the beginning is there.
func readExamples(ctx context.Context, tx pgx.Tx, causes []Cause) error {
	ids := make([]int64, len(causes))
	for i := range causes {
		ids[i] = causes[i].ExampleID
	}
	type eventError struct {
		ID     int64
		Error  string
		Length int
	}
	rows, _ := tx.Query(ctx, `select id, error, length from agent_service.event_errors($1)`, ids)
	for e, err := range pg.Each[eventError](rows) {
		if err != nil {
			return err
		}
		for i := range causes {
			if causes[i].ExampleID == e.ID {
				causes[i].ExampleError = e.Error
				causes[i].ExampleTruncated = e.Length > len([]rune(e.Error))
			}
		}
	}
	return nil
}

// causeGroups gathers failures by cause.
type causeGroups struct {
	byText map[string]*causeGroup
}

type causeGroup struct {
	Cause
	queues, types map[string]struct{}
}

func (g *causeGroups) add(f *failedEvent) {
	text := causeOf(f.Error)
	c := g.byText[text]
	if c == nil {
		c = &causeGroup{
			Cause:  Cause{Text: text, FirstAt: f.FinishedAt, LastAt: f.FinishedAt, ExampleID: f.ID, ExampleError: f.Error},
			queues: make(map[string]struct{}), types: make(map[string]struct{}),
		}
		g.byText[text] = c
	}
	c.Count++
	addName(c.queues, f.Queue)
	if f.Type != "" {
		addName(c.types, f.Type)
	}
	if f.FinishedAt.Before(c.FirstAt) {
		c.FirstAt = f.FinishedAt
	}
	if f.FinishedAt.After(c.LastAt) {
		c.LastAt = f.FinishedAt
	}
}

func addName(names map[string]struct{}, name string) {
	if len(names) < maxNames {
		names[name] = struct{}{}
	}
}

// most returns up to limit causes: those with most failures, and of as many the one seen last, first.
func (g *causeGroups) most(limit int) []Cause {
	groups := slices.SortedFunc(maps.Values(g.byText), func(a, b *causeGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), b.LastAt.Compare(a.LastAt), cmp.Compare(a.Text, b.Text))
	})
	causes := make([]Cause, min(limit, len(groups)))
	for i := range causes {
		c := groups[i]
		causes[i] = c.Cause
		causes[i].Queues = slices.Sorted(maps.Keys(c.queues))
		causes[i].Types = slices.Sorted(maps.Keys(c.types))
	}
	return causes
}

// WorkersParams says which workers Workers returns.
type WorkersParams struct {
	Lately time.Duration // those that hold a lease, or were seen within it: a second to a day
	Limit  int           // workers at most
	Queues []string      // patterns as in ListParams; nil: all
}

// A Worker is what is known of the claims that name a worker. What is about its oldest lease is nil without one; Average and Longest are without an ended attempt.
type Worker struct {
	Name             string   // empty: claims without a name
	Queues           []string // of its leases, up to 100
	Leases           int64
	OldestClaimedAt  *time.Time
	OldestEndsAt     *time.Time
	Ended, Failed    int64 // attempts since Workers.CountedSince; Failed: without success
	Average, Longest *time.Duration
	LastSeenAt       time.Time // of its latest claim, extension of a lease that it has, or end of an attempt
}

// Workers are workers: those with most leases first, then those seen last.
type Workers struct {
	Workers      []Worker
	Total        int64     // with those beyond the limit
	CountedSince time.Time // of ended attempts; later than asked for where very many have ended
	Complete     bool      // false: there are too many waiting events to look at all leases
}

// Workers returns the workers that hold a lease or were seen lately. It fails with an *InvalidError or ErrQueryTimeout.
func (s *Service) Workers(ctx context.Context, p WorkersParams) (found Workers, err error) {
	type row struct {
		Worker
		IsWorker     bool
		Total        int64
		CountedSince time.Time
		IsComplete   bool
	}
	rows, err := collect[row](ctx, s, `select worker as name, queues, leases, oldest_claimed_at, oldest_ends_at, ended, failed, average, longest, last_seen_at,
			worker is not null as is_worker, total, counted_since, is_complete
		from agent.list_workers($1, $2, $3)`, p.Lately, p.Limit, p.Queues)
	for i := range rows {
		found.Total, found.CountedSince, found.Complete = rows[i].Total, rows[i].CountedSince, rows[i].IsComplete
		if rows[i].IsWorker {
			found.Workers = append(found.Workers, rows[i].Worker)
		}
	}
	return found, wrap("listing workers", err)
}

// A Holder is something that holds others back. Fields that say nothing about its kind are zero.
type Holder struct {
	Kind, What, Advice string // Kind as agent.list_holders has it
	Since              *time.Time
	Queue              string
	EventID            int64
	Worker             string
	PID                int32
	Name               string // of a prepared transaction or a slot
	Role               string
	Application        string
	Database           string
	State              string // of a session, as pg_stat_activity has it
	QueryStartedAt     *time.Time
	Query              string // its first 200 characters
	Events             int64
	OfKind             int64 // holders of the kind, with those left out
	IsComplete         bool  // false: there are too many events to look at all
}

// Holders returns what holds others back, up to a hundred of each kind. It says the queries of sessions only withQueries. For callers that may use some queues alone, it
// leaves out sessions, transactions and slots. It fails with ErrQueryTimeout.
func (s *Service) Holders(ctx context.Context, queues []string, withQueries bool) ([]Holder, error) {
	holders, err := collect[Holder](ctx, s, `select kind, what, advice, since, queue, event_id, worker, pid, name, role, application, database, state, query_started_at, query,
			events, of_kind, is_complete
		from agent.list_holders($1, $2, $3)`, queues, withQueries, s.cfg.MaxAttempts)
	return holders, wrap("looking for what holds others back", err)
}
