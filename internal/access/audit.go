package access

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// Audit returns a page of the audit, the latest first. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) Audit(ctx context.Context, p AuditParams) (page AuditPage, err error) {
	type listed struct {
		Entry
		Position pg.Timestamp
	}
	found, next, err := pg.ReadPage("audit", p.Cursor, p.Limit, func(after pg.Cursor, n int) (all []listed, err error) {
		err = pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, `select id, at, actor, role, action, target, detail, at as position
				from agent.list_audit(nullif($1, ''), nullif($2, ''), nullif($3, ''), $4, $5, $6, $7, $8)`,
				p.Actor, p.Action, p.Target, p.From, p.To, n, after.At, after.ID)
			all, err = pg.Collect[listed](rows)
			return err
		})
		return all, wrap("reading the audit", err)
	}, func(a *listed) pg.Cursor { return pg.Cursor{At: &a.Position, ID: &a.ID} })
	for i := range found {
		page.Actions = append(page.Actions, found[i].Entry)
	}
	page.Next = next
	return page, err
}
