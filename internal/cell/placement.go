package cell

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// A placementRow is a placement as the database has it.
type placementRow struct {
	Placement
	Former json.RawMessage
	Asked  json.RawMessage
}

const placementColumns = `queue, cells, placed_at, former, keys_cells, keys_until, past, asked, is_first_use, is_removed, updated_at, version`

func (r *placementRow) placement() (Placement, error) {
	p := r.Placement
	if err := json.Unmarshal(r.Former, &p.Former); err != nil {
		return p, fmt.Errorf("former cells of the queue %s: %w", p.Queue, err)
	}
	if err := json.Unmarshal(r.Asked, &p.Asked); err != nil {
		return p, fmt.Errorf("cells that are asked for keys of the queue %s: %w", p.Queue, err)
	}
	return p, nil
}

// change runs a function that changes a placement and returns it.
func (s *Service) change(ctx context.Context, doing, from string, args ...any) (Placement, error) {
	r, err := pg.WriteOne[placementRow](ctx, &s.writes, `select `+placementColumns+` from `+from, args...)
	if err != nil {
		return Placement{}, wrap(doing, err)
	}
	return r.placement()
}

// Place places a queue on cells, for its new events. Of two calls with IfAbsent one fails with ErrStale. It fails with ErrNotHome and an *InvalidError, too.
func (s *Service) Place(ctx context.Context, p PlaceParams) (Placement, error) {
	var retention *time.Duration
	if !p.KeysNow {
		retention = &s.cfg.KeyRetention
	}
	return s.change(ctx, "placing a queue", `agent.place_queue($1, $2, $3, $4, $5, $6, $7)`, p.Queue, []int(p.Cells), retention, p.IfVersions, p.IfExists, p.IfAbsent, p.IsFirstUse)
}

// Drained notes that former cells, nil for all, hold no events of a queue any more. It fails with ErrNotHome, ErrNotPlaced, and ErrStale if the version of the
// placement is none of ifVersions (nil: any).
func (s *Service) Drained(ctx context.Context, queue string, cells Set, ifVersions []int64) (Placement, error) {
	return s.change(ctx, "draining a placement", `agent.drain_placement($1, $2, $3)`, queue, []int(cells), ifVersions)
}

// DeletePlacement removes the placement of a queue that was deleted on every cell. It fails as Drained does.
func (s *Service) DeletePlacement(ctx context.Context, queue string, ifVersions []int64) error {
	return wrap("deleting a placement", s.writes.Exec(ctx, `select agent.delete_placement($1, $2)`, queue, ifVersions))
}

// Placement returns the placement of a queue. It fails with ErrNotHome and ErrNotPlaced.
func (s *Service) Placement(ctx context.Context, queue string) (Placement, error) {
	rows, _ := s.pool.Query(ctx, `select `+placementColumns+` from agent.get_placement($1)`, queue)
	found, err := pg.Collect[placementRow](rows)
	switch {
	case err != nil:
		return Placement{}, wrap("reading a placement", err)
	case len(found) == 0:
		return Placement{}, ErrNotPlaced
	}
	return found[0].placement()
}

// Placements lists placements by their versions. Where it goes on from a version, it waits until there is one, for Wait at most; those that were removed are
// among them then. It fails with ErrNotHome, ErrBadCursor and ErrQueryTimeout.
func (s *Service) Placements(ctx context.Context, p PlacementsParams) (PlacementsPage, error) {
	var page PlacementsPage
	var failed error
	err := s.cfg.Database.AwaitChange(ctx, p.Wait, s.drained, s.changes, func() bool {
		page, failed = s.placements(ctx, p)
		return failed != nil || p.Cursor != "" || page.IsComplete || page.Version != p.AfterVersion
	})
	if err != nil {
		return PlacementsPage{}, err
	}
	return page, failed
}

// placements is Placements without the wait.
func (s *Service) placements(ctx context.Context, p PlacementsParams) (page PlacementsPage, err error) {
	cursor, err := pg.ParseCursor("placements", p.Cursor)
	if err != nil {
		return page, err
	}
	err = pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
		var floor int64
		if err := tx.QueryRow(ctx, `select latest, floor, epoch from agent_service.placement_versions()`).Scan(&page.Version, &floor, &page.Epoch); err != nil {
			return err
		}
		after := p.AfterVersion
		if cursor.ID != nil {
			after = *cursor.ID
		} else {
			page.IsComplete = page.BeginsAnew(after, p.Epoch, floor)
		}
		if page.IsComplete {
			after = 0
		}
		if cursor.ID == nil {
			rows, _ := tx.Query(ctx, `select cell, url, takes_new, turns from agent_service.listed_cells()`)
			if page.Cells, err = pg.Collect[Followed](rows); err != nil {
				return err
			}
		}
		size := pg.PageSize(p.Limit)
		rows, _ := tx.Query(ctx, `select `+placementColumns+` from agent_service.list_placements($1, $2, $3, $4)`, after, size+1, !page.IsComplete, p.Queues)
		found, err := pg.Collect[placementRow](rows)
		if err != nil {
			return err
		}
		found, page.Next = pg.Cut(found, size, "placements", func(r *placementRow) pg.Cursor { return pg.Cursor{ID: &r.Version} })
		for i := range found {
			one, err := found[i].placement()
			if err != nil {
				return err
			}
			page.Placements = append(page.Placements, one)
		}
		return nil
	})
	return page, wrap("listing placements", err)
}
