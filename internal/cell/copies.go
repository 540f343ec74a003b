package cell

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// SettingsParams say which copies of settings of queues to read.
type SettingsParams struct {
	AfterVersion int64  // only of queues whose settings have changed since; zero: of all
	Epoch        string // of AfterVersion; empty: it is not known
	Limit        int
	Cursor       string // of another page; AfterVersion and Epoch say which pages it is one of
	Queue        string // only of this queue; empty: of all
}

// A SettingsPage is copies of settings of queues, by the queues' names. A copy has the policy and the push, with sealed secrets, and is what PutSettings takes. Those of a queue whose settings have changed while
// they were read may come again.
type SettingsPage = pg.CopiesPage

// Settings returns copies of settings of queues. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) Settings(ctx context.Context, p SettingsParams) (page SettingsPage, err error) {
	cursor, err := pg.ParseCursor("settings", p.Cursor)
	if err != nil {
		return page, err
	}
	type copied struct {
		Queue string
		Copy  json.RawMessage
	}
	err = pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select latest, epoch from agent_service.queue_versions()`).Scan(&page.Version, &page.Epoch); err != nil {
			return err
		}
		since := cursor.ID
		if p.Cursor == "" {
			if page.IsComplete = page.BeginsAnew(p.AfterVersion, p.Epoch, 0); !page.IsComplete {
				since = &p.AfterVersion
			}
		}
		size := pg.PageSize(p.Limit)
		rows, _ := tx.Query(ctx, `select queue, copy from agent_service.read_queue_copies($1, $2, $3, nullif($4, ''))`, since, cursor.Name, size+1, p.Queue)
		found, err := pg.Collect[copied](rows)
		if err != nil {
			return err
		}
		found, page.Next = pg.Cut(found, size, "settings", func(c *copied) pg.Cursor { return pg.Cursor{ID: since, Name: &c.Queue} })
		page.Copies = make([]json.RawMessage, len(found)) // not nil, also if there are none
		for i, c := range found {
			page.Copies[i] = c.Copy
		}
		return nil
	})
	return page, wrap("reading copies of settings", err)
}

// PutSettingsParams say which copies to put.
type PutSettingsParams struct {
	Copies []json.RawMessage // as Settings has returned them at home
	// Epoch is that of the copies. Of another epoch than that of the latest copies they are taken if Before is that one.
	Epoch, Before string
	IsComplete    bool // all settings of home have come in this epoch: those of other queues that were copied end
}

// A PutCopy is what became of a copy.
type PutCopy struct {
	Queue  string // empty: it had none
	Result string // applied, unchanged if the settings are here as new or newer, or refused
	Reason string // why it was refused
}

// PutSettings puts copies of settings of home on this cell, each on its own. They may come in any order, and more than once. It fails with a *pg.StaleCopiesError and an *InvalidError.
func (s *Service) PutSettings(ctx context.Context, p PutSettingsParams) (put []PutCopy, err error) {
	body, err := json.Marshal(append([]json.RawMessage{}, p.Copies...))
	if err != nil {
		return nil, err
	}
	err = s.writes.Do(ctx, func(pool *pg.Pool) (err error) {
		rows, _ := pool.Query(ctx, `select queue, result, reason from agent_service.put_queue_copies($1, nullif($2, ''), nullif($3, ''), $4)`, string(body), p.Epoch, p.Before, p.IsComplete)
		put, err = pg.Collect[PutCopy](rows)
		return err
	})
	if stale := pg.StaleCopies(err); stale != nil {
		return nil, stale
	}
	return put, wrap("putting copies of settings", err)
}
