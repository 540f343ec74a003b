package schedule

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

const ownerColumns = `id, timezone, attributes, version, created_at, updated_at`

func (o *Owner) fields() []any {
	return []any{&o.ID, &o.Timezone, (*[]byte)(&o.Attributes), &o.Version, &o.CreatedAt, &o.UpdatedAt}
}

// PutOwner makes an owner or replaces what there is of one. In a new zone all their schedules that have none of their own are resolved anew from the
// same local times, in the same transaction: one whose time is over there and has not come yet comes now, none comes twice. It fails with
// ErrStale and an *InvalidError.
func (s *Service) PutOwner(ctx context.Context, p PutOwnerParams) (PutOwnerResult, error) {
	var (
		result     PutOwnerResult
		unresolved []int64
	)
	err := s.call(ctx, "putting an owner", func(ctx context.Context) error {
		attributes := string(p.Attributes)
		if p.Attributes == nil {
			attributes = "{}"
		}
		return s.pool.QueryRow(ctx, `select `+ownerColumns+`, is_new, moved, unresolved from agent.put_owner($1, $2, $3, $4)`,
			p.ID, p.Timezone, attributes, p.IfVersion).Scan(append(result.fields(), &result.Created, &result.Moved, &unresolved)...)
	})
	if err != nil {
		return PutOwnerResult{}, err
	}
	s.replan(ctx, s.pool, unresolved)
	return result, nil
}

// GetOwner returns one owner. It fails with ErrOwnerNotFound.
func (s *Service) GetOwner(ctx context.Context, id string) (Owner, error) {
	var o Owner
	err := s.call(ctx, "getting an owner", func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select `+ownerColumns+` from agent.get_owner($1)`, id).Scan(o.fields()...)
	})
	if err != nil {
		return Owner{}, err
	}
	return o, nil
}

// ListOwners returns one page of owners by id. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) ListOwners(ctx context.Context, p ListOwnersParams) (OwnerPage, error) {
	after, err := pg.ParseCursor("owners", p.Cursor)
	if err != nil {
		return OwnerPage{}, err
	}
	limit := pageSize(p.Limit)
	var page OwnerPage
	err = s.bounded(ctx, "listing owners", func(ctx context.Context, tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `select `+ownerColumns+` from agent.list_owners($1, $2)`, limit+1, after.Name)
		owners, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Owner, err error) { return o, row.Scan(o.fields()...) })
		if len(owners) > limit {
			owners = owners[:limit]
			page.Next = pg.Cursor{Listing: "owners", Name: &owners[limit-1].ID}.String()
		}
		page.Owners = owners
		return err
	})
	if err != nil {
		return OwnerPage{}, err
	}
	return page, nil
}

// DeleteOwner deletes an owner and cancels all their schedules, as Delete does, and returns how many. It fails with ErrOwnerNotFound,
// and with ErrStale when ifVersion (nil: any) is not the owner's version.
func (s *Service) DeleteOwner(ctx context.Context, id string, ifVersion *int64) (int64, error) {
	var cancelled int64
	err := s.call(ctx, "deleting an owner", func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select agent.delete_owner($1, $2)`, id, ifVersion).Scan(&cancelled)
	})
	return cancelled, err
}

// replan finds the next occurrences of schedules whose last one does not come any more, as far as there is time. They are marked, so that what is
// left undone here the firing loop does, of whichever process.
func (s *Service) replan(ctx context.Context, q querier, ids []int64) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	for _, id := range ids {
		r, err := one(ctx, q, `select `+columns("s")+` from agent.get_schedule($1) s`, id)
		if err == nil && r.isUnplanned {
			var b batch
			if err = s.planDue(ctx, q, &b, &due{row: r}, 1); err == nil {
				_, err = b.runPlanned(ctx, q)
			}
		}
		if err != nil {
			s.cfg.Logger.Info().Err(err).Int64("schedule_id", id).Int("schedules", len(ids)).Msg("the next times of schedules are left for the firing loop to find")
			return
		}
	}
}
