package schedule

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// OwnerCopiesParams say which copies of owners to read.
type OwnerCopiesParams struct {
	After  string // the OwnerCopiesPage.After of an earlier reading: only of owners that have changed since; empty: of all
	Limit  int
	Cursor string        // of another page; it goes with the same After. Wait does not count then
	Wait   time.Duration // for a change, where it goes on from an earlier reading
}

// An OwnerCopiesPage is copies of owners, by their ids. A copy is what PutOwnerCopies takes.
type OwnerCopiesPage struct {
	Copies     []json.RawMessage
	Next       string // cursor of the next page; empty: this is the last one
	After      string // of the first page: what to follow changes from when all pages are read
	IsComplete bool   // the pages are all owners that there are
}

// snapshotText is how PostgreSQL writes a snapshot of transactions.
var snapshotText = regexp.MustCompile(`^[0-9]+:[0-9]+:[0-9,]*$`)

// ownerSubscriber has those who wait for changes of owners look when they are told of one, or may have missed one.
func (s *Service) ownerSubscriber() pg.Subscriber {
	return pg.Subscriber{Channel: "agent_owner", Started: s.wakeOwners, Received: func(string) { s.wakeOwners() }, Failed: func(error) { s.wakeOwners() }}
}

// OwnerCopies returns copies of owners. Where it goes on from an earlier reading, it waits until an owner has changed since, for Wait at most. It fails with ErrBadCursor or
// ErrQueryTimeout.
func (s *Service) OwnerCopies(ctx context.Context, p OwnerCopiesParams) (OwnerCopiesPage, error) {
	var page OwnerCopiesPage
	var failed error
	err := s.db.AwaitChange(ctx, p.Wait, s.drained, s.ownerChanges, func() bool {
		page, failed = s.ownerCopies(ctx, p)
		return failed != nil || p.Cursor != "" || page.IsComplete || len(page.Copies) > 0
	})
	if err != nil {
		return OwnerCopiesPage{}, wrap("waiting for changes of owners", err)
	}
	return page, failed
}

// ownerCopies is OwnerCopies without the wait.
func (s *Service) ownerCopies(ctx context.Context, p OwnerCopiesParams) (page OwnerCopiesPage, err error) {
	cursor, err := pg.ParseCursor("owner copies", p.Cursor)
	if err != nil {
		return page, err
	}
	type copied struct {
		ID   string
		Copy json.RawMessage
	}
	err = pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
		var snapshot, epoch string
		if err := tx.QueryRow(ctx, `select snapshot::text, epoch from agent_service.owner_version()`).Scan(&snapshot, &epoch); err != nil {
			return err
		}
		page.After = epoch + "/" + snapshot
		var since *string // nil: from the beginning
		if of, after, _ := strings.Cut(p.After, "/"); of == epoch && snapshotText.MatchString(after) {
			since = &after
		}
		page.IsComplete = since == nil && cursor.Name == nil
		size := pg.PageSize(p.Limit)
		rows, _ := tx.Query(ctx, `select id, copy from agent_service.read_owner_copies($1::text::pg_catalog.pg_snapshot, $2, $3)`, since, cursor.Name, size+1)
		found, err := pg.Collect[copied](rows)
		if err != nil {
			return err
		}
		found, page.Next = pg.Cut(found, size, "owner copies", func(c *copied) pg.Cursor { return pg.Cursor{Name: &c.ID} })
		for _, c := range found {
			page.Copies = append(page.Copies, c.Copy)
		}
		return nil
	})
	return page, wrap("reading copies of owners", err)
}

// A PutOwnerCopy is what became of a copy.
type PutOwnerCopy struct {
	ID      string // empty: it had none
	Result  string // "applied", "unchanged", "deleted" or "refused"
	Reason  string // why it was refused
	Version int64  // that the owner has here, or had when it was deleted; zero: there is none
}

// PutOwnerCopies puts copies of owners, which OwnerCopies of another cell has returned, on this one, each on its own. They may come in any order, and more than once. It
// fails with an *InvalidError.
func (s *Service) PutOwnerCopies(ctx context.Context, copies []json.RawMessage) (results []PutOwnerCopy, err error) {
	body, err := json.Marshal(copies)
	if err != nil {
		return nil, err
	}
	type row struct {
		ID, Result, Reason string
		Version            int64
		Unresolved         []int64
	}
	var found []row
	err = s.call(ctx, "putting copies of owners", func(ctx context.Context) error {
		return s.writes.Do(ctx, func(pool *pg.Pool) (err error) {
			rows, _ := pool.Query(ctx, `select id, result, reason, version, unresolved from agent_service.put_owner_copies($1)`, string(body))
			found, err = pg.Collect[row](rows)
			return err
		})
	})
	for _, r := range found {
		results = append(results, PutOwnerCopy{r.ID, r.Result, r.Reason, r.Version})
		s.expandUnresolved(ctx, s.pool, r.Unresolved)
	}
	return results, err
}
