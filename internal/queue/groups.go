package queue

import (
	"context"
	"encoding/json"
	"time"

	"github.com/queued/queued/internal/pg"
)

// Group is the events of a queue that share a group, and what is set for them alone. Of each kind up to 10,000 are counted.
type Group struct {
	Key string
	GroupSettings
	Waiting   int64      // for their turn
	Admitted  int64      // they have their turn, and nobody has a lease on them
	Leased    int64      //
	Scheduled int64      // their time has not come
	Oldest    *time.Time // since when the first that waits, or can be claimed, is due; nil: none does
	NextAt    *time.Time // when the first of those that are scheduled will be due; nil: none is
	BlockedBy *Block     // what the first one that waits does so for; nil: nothing waits, or it has its turn with the next claim
	Version   *int64     // of what is set, another one after each change; nil: nothing is set
	UpdatedAt *time.Time // when it was set; nil: nothing is
}

// GroupSettings is what holds for one group alone. The zero value: what holds for all groups of its queue.
type GroupSettings struct {
	Concurrency *int       // leases at once, 1 to MaxConcurrency; nil: as the policy of the queue says
	Rate        *Rate      `db:"-"` // of its claims; nil: as the policy of the queue says
	Paused      bool       // nothing of it is handed out
	HeldUntil   *time.Time // nothing of it is handed out before; nil: it is
}

// Block says what an event waits for that could be claimed by its time.
type Block struct {
	Reason BlockReason `json:"reason"`
	Limit  *int        `json:"limit,omitempty"`    // of BlockedByConcurrency and BlockedByTotal
	Until  *time.Time  `json:"until,omitempty"`    // of BlockedByHold and BlockedByRate
	ID     *int64      `json:"event_id,omitempty"` // of BlockedByOrder: the first event, which is unfinished, or the one for which the group has stopped
}

// BlockReason is the kind of a Block.
type BlockReason string

// The reasons for which events wait.
const (
	BlockedByQueue       BlockReason = "queue_paused" // the queue is paused
	BlockedByPause       BlockReason = "paused"       // the group is
	BlockedByHold        BlockReason = "hold"         // the group is held until a time
	BlockedByOrder       BlockReason = "order"        // another event of the group comes first, or the group has stopped
	BlockedByRate        BlockReason = "rate"         // as many of the group were claimed lately as may be
	BlockedByConcurrency BlockReason = "concurrency"  // as many of the group are leased as may be
	BlockedByTotal       BlockReason = "total"        // as many of the queue are leased as may be
)

// GroupsParams asks for groups of a queue: those that have events, and those that something is set for.
type GroupsParams struct {
	Queue     string
	Limit     int    // zero: DefaultPage
	Cursor    string // a GroupsPage.Next, or empty for the first page
	Blocked   bool   // only those that something blocks
	ByWaiting bool   // those with the longest lines first, by Waiting, in one page; without it by key
}

// GroupsPage is one page of groups. Next is the cursor of the following page, empty at the end. With Blocked a page may have fewer groups than
// asked for, or none, and yet a Next: it looks at about a thousand.
type GroupsPage struct {
	Groups []Group
	Next   string
}

// PutGroup sets what holds for one group of a queue alone, at once and for every process, and returns the group. hold, if it is not nil, holds the group for so long from now on, instead of
// settings.HeldUntil. It fails with an *InvalidError, an *UndeclaredError, and with ErrStale if the precondition is not met.
func (s *Service) PutGroup(ctx context.Context, queue, group string, settings GroupSettings, hold *time.Duration, only Precondition) (Group, error) {
	object := map[string]any{"paused": settings.Paused}
	if settings.Concurrency != nil {
		object["concurrency"] = *settings.Concurrency
	}
	if settings.Rate != nil {
		object["rate"] = settings.Rate.object()
	}
	if settings.HeldUntil != nil {
		object["held_until"] = settings.HeldUntil.UTC()
	}
	putInterval(object, "hold", hold)
	body, err := json.Marshal(object)
	if err != nil { // a year that JSON has no form for
		return Group{}, &InvalidError{Field: "held_until", Detail: "must be of the years 1 to 9999"}
	}
	asked := time.Now()
	err = s.short(ctx, func(pool *pg.Pool) error {
		_, err := pool.Exec(ctx, `select agent.put_group($1, $2, $3, $4, $5, $6) where `+s.RequireQueue("$1"),
			queue, group, string(body), only.Versions, only.Exists, only.Absent)
		return err
	})
	if err != nil {
		return Group{}, s.noteRefusal(asked, wrap("setting what holds for a group", err))
	}
	s.wakeHere(map[string]bool{queue: true})
	return s.GetGroup(ctx, queue, group)
}

// DeleteGroup ends what was set for one group of a queue alone. It fails with an *InvalidError, and with ErrStale if versions (nil: any) has not that of what is set.
func (s *Service) DeleteGroup(ctx context.Context, queue, group string, versions []int64) error {
	err := s.short(ctx, func(pool *pg.Pool) error {
		_, err := pool.Exec(ctx, `select agent.delete_group($1, $2, $3)`, queue, group, versions)
		return err
	})
	if err == nil {
		s.wakeHere(map[string]bool{queue: true})
	}
	return wrap("ending what holds for a group", err)
}

// UnblockGroup has a group in order go on that stopped for events that failed, and returns whether it had. Those of them that were requeued keep their places. It fails with an *InvalidError.
func (s *Service) UnblockGroup(ctx context.Context, queue, group string) (bool, error) {
	wasBlocked, err := shortCall(ctx, &s.pools, pg.CollectOne[struct{ WasBlocked bool }], `select agent.unblock_group($1, $2) as was_blocked`, queue, group)
	if wasBlocked.WasBlocked {
		s.wakeHere(map[string]bool{queue: true})
	}
	return wasBlocked.WasBlocked, wrap("unblocking a group", err)
}

const groupColumns = `key, concurrency, paused, held_until, waiting, admitted, leased, scheduled, oldest, next_at, blocked_by, version, updated_at, rate_limit, rate_period, rate_burst`

// groupRow is a Group as rows have it.
type groupRow struct {
	Group
	rateColumns
}

func (r *groupRow) group() Group {
	r.Rate = r.rate()
	return r.Group
}

// GetGroup returns one group of a queue: one without events, and with nothing set, if there is none.
func (s *Service) GetGroup(ctx context.Context, queue, group string) (Group, error) {
	g, err := shortCall(ctx, &s.pools, pg.CollectOne[groupRow], `select `+groupColumns+` from agent_service.get_group($1, $2)`, queue, group)
	return g.group(), wrap("reading a group", err)
}

// Groups returns one page of the groups of a queue. With p.ByWaiting it counts up to a thousand groups: of a queue that has more, those that a sample of what waits has the most of.
// It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) Groups(ctx context.Context, p GroupsParams) (page GroupsPage, err error) {
	const listing = "groups"
	size := pg.PageSize(p.Limit)
	if p.ByWaiting {
		longest, err := collect[groupRow](ctx, s, `select `+groupColumns+` from agent_service.longest_groups($1, $2, $3)`, p.Queue, size, p.Blocked)
		for i := range longest {
			page.Groups = append(page.Groups, longest[i].group())
		}
		return page, wrap("listing groups", err)
	}
	after, err := pg.ParseCursor(listing, p.Cursor)
	if err != nil {
		return page, err
	}
	type listed struct {
		groupRow
		IsListed bool // false: it says only where the page goes on
	}
	found, err := collect[listed](ctx, s, `select `+groupColumns+`, is_listed from agent_service.list_groups($1, $2, coalesce($3, ''), $4)`, p.Queue, size+1, after.Name, p.Blocked)
	if err != nil {
		return page, wrap("listing groups", err)
	}
	if n := len(found); n > 0 && !found[n-1].IsListed {
		page.Next = pg.Cursor{Listing: listing, Name: &found[n-1].Key}.String()
		found = found[:n-1]
	} else {
		found, page.Next = pg.Cut(found, size, listing, func(g *listed) pg.Cursor { return pg.Cursor{Name: &g.Key} })
	}
	for i := range found {
		page.Groups = append(page.Groups, found[i].group())
	}
	return page, nil
}

// HoldGroup has nothing of a group be handed out for some time from now on, unless it is held for longer, and waits for nobody. It reports false, and does nothing, if the queue has no limits of
// groups and nothing is set for one of its groups. It fails with an *InvalidError.
func (s *Service) HoldGroup(ctx context.Context, queue, group string, hold time.Duration) (isHeld bool, err error) {
	err = s.row(ctx, `select agent_service.hold_group($1, $2, $3)`, []any{queue, group, hold}, &isHeld)
	return isHeld, wrap("holding a group", err)
}
