package client

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// A CauseFilter says which failures to group: events of history that ended as failed or expired with an error. Its zero value is all.
type CauseFilter struct {
	Queue string `query:"queue"`
	Type  string `query:"type"`
	// From, inclusive, and To, exclusive, bound EventTS.
	From time.Time `query:"from"`
	To   time.Time `query:"to"`
	// FinishedFrom, inclusive, and FinishedTo, exclusive, bound when the events ended: such as the last hour.
	FinishedFrom time.Time `query:"finished_from"`
	FinishedTo   time.Time `query:"finished_to"`
	// Limit is how many causes to return at most, up to 100; 0: 20.
	Limit int `query:"limit"`
}

// A Cause is what the errors of some failures have in common.
type Cause struct {
	// Cause is the text of the errors, with placeholders such as <number> for what varies.
	Cause string `json:"cause"`
	Count int    `json:"count"`
	// Queues and Types are those of the events, up to 100 of each.
	Queues []string `json:"queues"`
	Types  []string `json:"types"`
	// FirstAt and LastAt are when the first and the last of the events ended.
	FirstAt time.Time    `json:"first_at"`
	LastAt  time.Time    `json:"last_at"`
	Example CauseExample `json:"example"`
}

// A CauseExample is one event with a cause, and its error, up to 8,192 characters of it.
type CauseExample struct {
	ID        int64  `json:"id"`
	Error     string `json:"error"`
	Truncated bool   `json:"truncated"`
}

// HistoryErrors are the causes of failures, those of most failures first.
type HistoryErrors struct {
	Errors []Cause `json:"errors"`
	// Causes is how many causes there are, with those beyond the limit.
	Causes int `json:"causes"`
	// LookedAt is how many failures the server looked at, those with the newest EventTS; Complete is whether these were all.
	LookedAt int  `json:"looked_at"`
	Complete bool `json:"complete"`
	// UnavailableCells are those of several cells that do not answer: their part is missing.
	UnavailableCells []int `json:"unavailable_cells,omitzero"`
}

// HistoryErrors groups failures by their cause. The server looks at up to 10,000 of them.
func (c *Client) HistoryErrors(ctx context.Context, filter CauseFilter) (HistoryErrors, error) {
	found, away, err := joined(c, func(at *Client, _ *int) (HistoryErrors, error) {
		var found HistoryErrors
		_, err := at.Do(ctx, Request{Path: "/history/errors", Query: queryOf(filter)}, &found)
		return found, err
	}, func(into *HistoryErrors, other HistoryErrors) {
		byCause := func(a, b *Cause) int { return strings.Compare(a.Cause, b.Cause) }
		into.Causes += other.Causes
		into.LookedAt += other.LookedAt
		into.Complete = into.Complete && other.Complete
		into.Errors = joinSorted(into.Errors, other.Errors, byCause, func(cause *Cause, o Cause) {
			into.Causes-- // it is one
			cause.Count += o.Count
			cause.Queues, cause.Types = union(cause.Queues, o.Queues), union(cause.Types, o.Types)
			if o.FirstAt.Before(cause.FirstAt) {
				cause.FirstAt = o.FirstAt
			}
			if o.LastAt.After(cause.LastAt) {
				cause.LastAt, cause.Example = o.LastAt, o.Example
			}
		})
		slices.SortStableFunc(into.Errors, func(a, b Cause) int { return cmp.Or(cmp.Compare(b.Count, a.Count), b.LastAt.Compare(a.LastAt)) })
		into.Errors = into.Errors[:min(len(into.Errors), cmp.Or(filter.Limit, defaultCauses))]
	})
	if len(away) > 0 {
		found.UnavailableCells, found.Complete = away, false
	}
	return found, err
}

// defaultCauses is how many causes there are at most, unless a filter says so.
const defaultCauses = 20

// WorkersParams say which workers to list. Its zero value is those that hold a lease or were seen within an hour.
type WorkersParams struct {
	// Lately is how long ago a worker without a lease was seen at most, from a second to a day; 0: an hour.
	Lately time.Duration `query:"lately"`
	// Limit is how many workers to return at most, up to 1,000; 0: 100.
	Limit int `query:"limit"`
}

// A ListedWorker is what is known of the claims that name a worker.
type ListedWorker struct {
	// Worker is empty for claims without a name.
	Worker string `json:"worker"`
	// Queues are those that it has leases in, up to 100.
	Queues []string `json:"queues"`
	Leases int      `json:"leases"`
	// OldestLease is nil without a lease.
	OldestLease *OldestLease `json:"oldest_lease"`
	// Ended counts its attempts at events that have ended since Workers.CountedSince; Failed those without success.
	Ended  int `json:"ended"`
	Failed int `json:"failed"`
	// AverageMS and LongestMS are how long these attempts took, in milliseconds; nil without any.
	AverageMS  *float64  `json:"average_ms"`
	LongestMS  *float64  `json:"longest_ms"`
	LastSeenAt time.Time `json:"last_seen_at"`
}

// An OldestLease is the one of the leases of a worker that was claimed first.
type OldestLease struct {
	ClaimedAt time.Time `json:"claimed_at"`
	EndsAt    time.Time `json:"ends_at"`
}

// Workers are workers, those with most leases first, then those seen last.
type Workers struct {
	Workers []ListedWorker `json:"workers"`
	// Total is how many there are, with those beyond the limit.
	Total        int       `json:"total"`
	CountedSince time.Time `json:"counted_since"`
	// Complete is false where there were too many waiting events to look at all leases.
	Complete bool `json:"complete"`
	// UnavailableCells are those of several cells that do not answer: their part is missing.
	UnavailableCells []int `json:"unavailable_cells,omitzero"`
}

// ListWorkers returns the workers that hold a lease or were seen lately.
func (c *Client) ListWorkers(ctx context.Context, p WorkersParams) (Workers, error) {
	found, away, err := joined(c, func(at *Client, _ *int) (Workers, error) {
		var found Workers
		_, err := at.Do(ctx, Request{Path: "/stats/workers", Query: queryOf(p)}, &found)
		return found, err
	}, func(into *Workers, other Workers) {
		byName := func(a, b *ListedWorker) int { return strings.Compare(a.Worker, b.Worker) }
		into.Total += other.Total
		into.Complete = into.Complete && other.Complete
		if other.CountedSince.Before(into.CountedSince) {
			into.CountedSince = other.CountedSince
		}
		into.Workers = joinSorted(into.Workers, other.Workers, byName, func(w *ListedWorker, o ListedWorker) {
			into.Total-- // it is one
			w.add(o)
		})
		slices.SortStableFunc(into.Workers, func(a, b ListedWorker) int {
			return cmp.Or(cmp.Compare(b.Leases, a.Leases), b.LastSeenAt.Compare(a.LastSeenAt))
		})
		into.Workers = into.Workers[:min(len(into.Workers), cmp.Or(p.Limit, defaultPage))]
	})
	if len(away) > 0 {
		found.UnavailableCells, found.Complete = away, false
	}
	return found, err
}

// add adds what another cell knows of the worker.
func (w *ListedWorker) add(o ListedWorker) {
	if w.AverageMS == nil {
		w.AverageMS = o.AverageMS
	} else if o.AverageMS != nil {
		average := (*w.AverageMS*float64(w.Ended) + *o.AverageMS*float64(o.Ended)) / float64(w.Ended+o.Ended)
		w.AverageMS = &average
	}
	w.Queues = union(w.Queues, o.Queues)
	w.Leases += o.Leases
	w.Ended += o.Ended
	w.Failed += o.Failed
	w.LongestMS = greatest(w.LongestMS, o.LongestMS)
	if w.OldestLease == nil || o.OldestLease != nil && o.OldestLease.ClaimedAt.Before(w.OldestLease.ClaimedAt) {
		w.OldestLease = o.OldestLease
	}
	if o.LastSeenAt.After(w.LastSeenAt) {
		w.LastSeenAt = o.LastSeenAt
	}
}

// A Holder is something that holds others back. Fields that say nothing about its kind are zero.
type Holder struct {
	// Kind is log_head, transaction, prepared_transaction, replication_slot, hidden_sessions, lease or exhausted.
	Kind string `json:"kind"`
	// What says what it does, and Advice what to do about it, for people.
	What    string    `json:"what"`
	Advice  string    `json:"advice"`
	Since   time.Time `json:"since,omitzero"`
	Queue   string    `json:"queue,omitzero"`
	EventID int64     `json:"event_id,omitzero"`
	Worker  string    `json:"worker,omitzero"`
	// PID, Role, Application, Database, State, QueryStartedAt and Query describe a session; Query is for keys with the scope admin.
	PID            int32     `json:"pid,omitzero"`
	Role           string    `json:"role,omitzero"`
	Application    string    `json:"application,omitzero"`
	Database       string    `json:"database,omitzero"`
	State          string    `json:"state,omitzero"`
	QueryStartedAt time.Time `json:"query_started_at,omitzero"`
	Query          string    `json:"query,omitzero"`
	// Name is that of a prepared transaction, a slot, or a group that has stopped.
	Name string `json:"name,omitzero"`
	// Events is how many events are exhausted.
	Events int `json:"events,omitzero"`
	// OfKind is how many of the kind there are; up to a hundred are listed.
	OfKind int `json:"of_kind"`
	// Cell is the one that it is of, where several were asked; nil: one was.
	Cell *int `json:"cell,omitzero"`
}

// Holders are what holds others back, the oldest of each kind first.
type Holders struct {
	Holders []Holder `json:"holders"`
	// Complete is false where there were too many events to look at all leases or all exhausted events.
	Complete bool `json:"complete"`
	// UnavailableCells are those of several cells that do not answer: their part is missing.
	UnavailableCells []int `json:"unavailable_cells,omitzero"`
}

// ListHolders returns what holds others back, such as transactions and leases that do not end, with what to do about it.
func (c *Client) ListHolders(ctx context.Context) (Holders, error) {
	found, away, err := joined(c, func(at *Client, cell *int) (Holders, error) {
		var found Holders
		_, err := at.Do(ctx, Request{Path: "/stats/holders"}, &found)
		for i := range found.Holders {
			found.Holders[i].Cell = cell
		}
		return found, err
	}, func(into *Holders, other Holders) {
		into.Complete = into.Complete && other.Complete
		into.Holders = append(into.Holders, other.Holders...)
	})
	if len(away) > 0 {
		found.UnavailableCells, found.Complete = away, false
	}
	return found, err
}
