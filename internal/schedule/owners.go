package schedule

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// PutOwnerParams is an owner to create or replace.
type PutOwnerParams struct {
	ID         string
	Timezone   string          // an IANA name
	Attributes json.RawMessage // a JSON object; nil: {}
	IfVersions []int64         // the versions of which it must have one; nil: any, or it is new
	IfExists   bool            // it must not be new
}

// PutOwnerResult is what PutOwner returns.
type PutOwnerResult struct {
	Owner
	Created bool
	Moved   int64 // schedules whose next occurrence was resolved anew
}

// ListOwnersParams selects a page of owners.
type ListOwnersParams struct {
	Limit  int    // zero: DefaultPage
	Cursor string // an OwnerPage.Next, or empty for the first page
}

// OwnerPage is one page of owners. Next is the cursor of the following page, empty at the end.
type OwnerPage struct {
	Owners []Owner
	Next   string
}

const ownerColumns = `id, timezone, attributes, version, created_at, updated_at`

func (o *Owner) fields() []any {
	return []any{&o.ID, &o.Timezone, (*[]byte)(&o.Attributes), &o.Version, &o.CreatedAt, &o.UpdatedAt}
}

// PutOwner creates or replaces an owner. When the zone changes, all their schedules without a zone of their own are resolved anew from the same civil
// times, in the same transaction: one whose time is over in the new zone and has not come yet comes now, none comes twice. It fails with ErrStale and
// an *InvalidError.
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
		return s.pool.QueryRow(ctx, `select `+ownerColumns+`, is_new, moved, unresolved from agent.put_owner_if_match($1, $2, $3, $4, $5)`,
			p.ID, p.Timezone, attributes, p.IfVersions, p.IfExists).Scan(append(result.fields(), &result.Created, &result.Moved, &unresolved)...)
	})
	if err != nil {
		return PutOwnerResult{}, err
	}
	s.expandUnresolved(ctx, s.pool, unresolved)
	return result, nil
}

// GetOwner returns one owner. It fails with ErrOwnerNotFound.
func (s *Service) GetOwner(ctx context.Context, id string) (Owner, error) {
	var o Owner
	err := s.call(ctx, "getting an owner", func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select `+ownerColumns+` from agent.get_owner($1)`, id).Scan(o.fields()...)
	})
	return o, err
}

// ListOwners returns one page of owners by id. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) ListOwners(ctx context.Context, p ListOwnersParams) (OwnerPage, error) {
	after, err := pg.ParseCursor("owners", p.Cursor)
	if err != nil {
		return OwnerPage{}, err
	}
	limit := pageSize(p.Limit)
	var page OwnerPage
	err = s.list(ctx, "listing owners", func(ctx context.Context, tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, `select `+ownerColumns+` from agent.list_owners($1, $2)`, limit+1, after.Name)
		page.Owners, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Owner, err error) { return o, row.Scan(o.fields()...) })
		return err
	})
	if len(page.Owners) > limit {
		page.Owners = page.Owners[:limit]
		page.Next = pg.Cursor{Listing: "owners", Name: &page.Owners[limit-1].ID}.String()
	}
	return page, err
}

// DeleteOwner deletes an owner and cancels all their schedules, as Delete does, and returns how many. It fails with ErrOwnerNotFound, and with ErrStale
// when ifVersions (nil: any) has not the owner's version.
func (s *Service) DeleteOwner(ctx context.Context, id string, ifVersions []int64) (int64, error) {
	var cancelled int64
	err := s.call(ctx, "deleting an owner", func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select agent.delete_owner_if_match($1, $2)`, id, ifVersions).Scan(&cancelled)
	})
	return cancelled, err
}
