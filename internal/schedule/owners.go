package schedule

import (
	"context"
	"encoding/json"

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

// PutOwnerResult is the result of PutOwner.
type PutOwnerResult struct {
	Owner
	Created bool  `db:"is_new"`
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

// ownerColumns are the columns of an Owner.
const ownerColumns = `id, timezone, attributes, version, created_at, updated_at`

// PutOwner creates or replaces an owner. When the zone changes, all their schedules without a zone of their own are resolved anew from the same civil
// times, in the same transaction: one whose time is over in the new zone and has not come yet comes now, none comes twice. It fails with ErrStale and
// an *InvalidError.
func (s *Service) PutOwner(ctx context.Context, p PutOwnerParams) (PutOwnerResult, error) {
	attributes := string(p.Attributes)
	if p.Attributes == nil {
		attributes = "{}"
	}
	put, err := writeOne[struct {
		PutOwnerResult
		Unresolved []int64
	}](ctx, s, "putting an owner", `select `+ownerColumns+`, is_new, moved, unresolved from agent_service.put_owner_if_match($1, $2, $3, $4, $5)`,
		p.ID, p.Timezone, attributes, p.IfVersions, p.IfExists)
	if err != nil {
		return PutOwnerResult{}, err
	}
	s.expandUnresolved(ctx, s.pool, put.Unresolved)
	return put.PutOwnerResult, nil
}

// GetOwner returns one owner. It fails with ErrOwnerNotFound.
func (s *Service) GetOwner(ctx context.Context, id string) (Owner, error) {
	return one[Owner](ctx, s, "getting an owner", `select `+ownerColumns+` from agent.get_owner($1)`, id)
}

// ListOwners returns one page of owners by id. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) ListOwners(ctx context.Context, p ListOwnersParams) (page OwnerPage, err error) {
	page.Owners, page.Next, err = pg.ReadPage("owners", p.Cursor, p.Limit, func(after pg.Cursor, n int) ([]Owner, error) {
		return list[Owner](ctx, s, "listing owners", `select `+ownerColumns+` from agent.list_owners($1, $2)`, n, after.Name)
	}, func(o *Owner) pg.Cursor { return pg.Cursor{Name: &o.ID} })
	return page, err
}

// DeleteOwner deletes an owner and cancels all their schedules, as Delete does, and returns how many. It fails with ErrOwnerNotFound, and with ErrStale
// when ifVersions (nil: any) has not the owner's version.
func (s *Service) DeleteOwner(ctx context.Context, id string, ifVersions []int64) (int64, error) {
	deleted, err := writeOne[struct{ Cancelled int64 }](ctx, s, "deleting an owner",
		`select agent_service.delete_owner_if_match($1, $2) as cancelled`, id, ifVersions)
	return deleted.Cancelled, err
}
