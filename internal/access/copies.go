package access

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// CopiesParams say which copies of keys to read.
type CopiesParams struct {
	AfterVersion int64  // only of keys that have changed since; zero: of all
	Epoch        string // of AfterVersion; empty: it is not known
	Limit        int
	Cursor       string        // of another page; AfterVersion, Epoch and Wait do not count then
	Wait         time.Duration // for a change, where it goes on from a version
}

// A CopiesPage is copies of keys, in the order of their latest changes. A copy has the hashes and verifiers of the texts of its key, and is what PutCopies takes.
type CopiesPage = pg.CopiesPage

// Copies returns copies of keys. Where it goes on from a version, it waits until a key has changed since, for Wait at most. It fails with ErrBadCursor or
// ErrQueryTimeout.
func (s *Service) Copies(ctx context.Context, p CopiesParams) (CopiesPage, error) {
	var page CopiesPage
	var failed error
	err := s.cfg.Database.AwaitChange(ctx, p.Wait, s.drained, s.changes, func() bool {
		page, failed = s.copies(ctx, p)
		return failed != nil || p.Cursor != "" || page.IsComplete || len(page.Copies) > 0
	})
	if err != nil {
		return CopiesPage{}, wrap("waiting for changes of keys", err)
	}
	return page, failed
}

// copies is Copies without the wait.
func (s *Service) copies(ctx context.Context, p CopiesParams) (page CopiesPage, err error) {
	cursor, err := pg.ParseCursor("copies", p.Cursor)
	if err != nil {
		return page, err
	}
	type copied struct {
		Change int64
		Copy   json.RawMessage
	}
	err = pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select latest, epoch from agent_service.key_versions()`).Scan(&page.Version, &page.Epoch); err != nil {
			return err
		}
		after := p.AfterVersion
		if cursor.ID != nil {
			after = *cursor.ID
		} else {
			page.IsComplete = page.BeginsAnew(after, p.Epoch, math.MinInt64)
		}
		if page.IsComplete {
			after = math.MinInt64
		}
		size := pg.PageSize(p.Limit)
		rows, _ := tx.Query(ctx, `select change, copy from agent_service.read_key_copies($1, $2, $3)`, after, size+1, !page.IsComplete)
		found, err := pg.Collect[copied](rows)
		if err != nil {
			return err
		}
		found, page.Next = pg.Cut(found, size, "copies", func(c *copied) pg.Cursor { return pg.Cursor{ID: &c.Change} })
		page.Copies = make([]json.RawMessage, len(found)) // not nil, also if there are none
		for i, c := range found {
			page.Copies[i] = c.Copy
		}
		return nil
	})
	return page, wrap("reading copies of keys", err)
}

// What becomes of a copy.
const (
	CopyApplied   = "applied"
	CopyUnchanged = "unchanged" // the key is here as new or newer
	CopyDeleted   = "deleted"   // the key was deleted here, and stays so
	CopyRefused   = "refused"
)

// A PutCopy is what became of a copy.
type PutCopy struct {
	ID     string // empty: it had none
	Result string // CopyApplied, CopyUnchanged, CopyDeleted or CopyRefused
	Err    error  // why it was refused: ErrLastAdmin or an *InvalidError
}

// PutCopiesParams say which copies to put.
type PutCopiesParams struct {
	Copies []json.RawMessage // as Copies has returned them at home
	// Epoch is that of the copies; empty: they are put by hand, and only keys that are not here yet are taken. Of another epoch than that of the latest copies they are taken if Before is that one.
	Epoch, Before string
	IsComplete    bool // all keys of home have come in this epoch: copies that have not are deleted
	IsFirst       bool // there must not have been a key before, and there has to be a live admin key then
}

// A StaleCopiesError is why copies are not taken.
type StaleCopiesError = pg.StaleCopiesError

// PutCopies puts copies of keys of home on this cell, each on its own. They may come in any order, and more than once. It fails with a *StaleCopiesError, ErrNotFirst, ErrLastAdmin and an *InvalidError.
func (s *Service) PutCopies(ctx context.Context, p PutCopiesParams) ([]PutCopy, error) {
	body, err := json.Marshal(append([]json.RawMessage{}, p.Copies...))
	if err != nil {
		return nil, &InvalidError{Field: "keys", Detail: "must be JSON objects"}
	}
	type row struct {
		ID     string
		Result string
		State  string
		Reason string
	}
	var found []row
	err = s.writes.Do(ctx, func(pool *pg.Pool) (err error) {
		rows, _ := pool.Query(ctx, `select id, result, state, reason from agent_service.put_key_copies($1, $2, nullif($3, ''), nullif($4, ''), $5)`, string(body), p.IsFirst, p.Epoch, p.Before, p.IsComplete)
		found, err = pg.Collect[row](rows)
		return err
	})
	if stale := pg.StaleCopies(err); stale != nil {
		return nil, stale
	}
	if err != nil {
		return nil, wrap("putting copies of keys", err)
	}
	s.keys.RenewNow(ctx)
	results := make([]PutCopy, len(found))
	for i, r := range found {
		results[i] = PutCopy{ID: r.ID, Result: r.Result}
		switch {
		case r.Result != CopyRefused:
		case r.State == "QD031":
			results[i].Err = ErrLastAdmin
		default:
			results[i].Err = &InvalidError{Field: "keys", Detail: r.Reason}
		}
	}
	return results, nil
}
