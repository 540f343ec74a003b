package client

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"net/http"
	"slices"
	"strings"
	"time"
)

// GroupSettings are what holds for one group of a queue alone. Where a field is zero, the policy of the queue applies.
type GroupSettings struct {
	// Concurrency is how many events of the group are leased at once, at most, up to 10,000.
	Concurrency int `json:"concurrency,omitzero"`
	// Rate limits the claims of the group; nil: the policy of the queue does.
	Rate *Rate `json:"rate,omitzero"`
	// Paused: nothing of the group is handed out. Leases go on, and events can be inserted.
	Paused bool `json:"paused,omitzero"`
	// HeldUntil is a time before which nothing of the group is handed out.
	HeldUntil time.Time `json:"held_until,omitzero"`
	// Hold is the same from now on, by the clock of the database, up to ten years. Not with HeldUntil.
	Hold time.Duration `json:"hold,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (s GroupSettings) MarshalJSON() ([]byte, error) {
	type plain GroupSettings
	return encodeJSON(struct {
		plain
		Hold duration `json:"hold,omitzero"`
	}{plain(s), duration(s.Hold)})
}

// A Group is the events of a queue that share a group, and what is set for them alone. Of each kind up to 10,000 events are counted.
type Group struct {
	Group string `json:"group"`
	// Concurrency is the group's own; 0: that of the policy of the queue.
	Concurrency int `json:"concurrency"`
	// Rate is the group's own; nil: that of the policy of the queue.
	Rate   *Rate `json:"rate"`
	Paused bool  `json:"paused"`
	// HeldUntil is when the hold ends; nil: there is none.
	HeldUntil *time.Time `json:"held_until"`
	// Waiting events wait for their turn, Admitted ones have it and can be claimed now, Leased ones are being worked on, and the time of Scheduled ones has not come.
	Waiting   int `json:"waiting"`
	Admitted  int `json:"admitted"`
	Leased    int `json:"leased"`
	Scheduled int `json:"scheduled"`
	// OldestAt is since when the first event that waits, or can be claimed, is due; nil: there is none.
	OldestAt *time.Time `json:"oldest_at"`
	// NextAt is when the next scheduled event will be due; nil: there is none.
	NextAt *time.Time `json:"next_at"`
	// BlockedBy is what the first event that waits does so for; nil: nothing waits, or it can be claimed with the next claim.
	BlockedBy *BlockedBy `json:"blocked_by"`
	// Version of what is set is another one after each change; 0: nothing is set.
	Version int64 `json:"version"`
	// UpdatedAt is when it was set; nil: nothing is.
	UpdatedAt *time.Time `json:"updated_at"`
}

// MarshalJSON implements [json.Marshaler].
func (g Group) MarshalJSON() ([]byte, error) {
	type plain Group
	return encodeJSON(struct {
		plain
		Concurrency *int   `json:"concurrency"`
		Version     *int64 `json:"version"`
	}{plain(g), nullable(g.Concurrency), nullable(g.Version)})
}

// Settings returns what is set for the group, to change some of it and pass it to [Client.PutGroupIf].
func (g *Group) Settings() GroupSettings {
	s := GroupSettings{Concurrency: g.Concurrency, Rate: g.Rate, Paused: g.Paused}
	if g.HeldUntil != nil {
		s.HeldUntil = *g.HeldUntil
	}
	return s
}

// The reasons for which events wait that could be claimed by their time.
const (
	BlockedByQueue       = "queue_paused" // the queue is paused
	BlockedByPause       = "paused"       // the group is
	BlockedByHold        = "hold"         // the group is held, until a time
	BlockedByRate        = "rate"         // as many events of the group were claimed lately as may be, until a time
	BlockedByOrder       = "order"        // another event of the group comes first, or the group has stopped for one that failed
	BlockedByConcurrency = "concurrency"  // as many events of the group are leased as may be
	BlockedByTotal       = "total"        // as many events of the queue are leased as may be
)

// BlockedBy says what an event waits for.
type BlockedBy struct {
	// Reason is [BlockedByQueue], [BlockedByPause], [BlockedByHold], [BlockedByRate], [BlockedByOrder], [BlockedByConcurrency] or [BlockedByTotal].
	Reason string `json:"reason"`
	// Limit is that of the last two; 0: of others.
	Limit int `json:"limit,omitzero"`
	// Until is when the hold ends, or the next event can be claimed at the rate; nil: of others.
	Until *time.Time `json:"until,omitzero"`
	// EventID is, of order, the event that comes first or has failed; 0: of others.
	EventID int64 `json:"event_id,omitzero"`
}

// A GroupFilter says which groups to list. The zero value takes all, by name.
type GroupFilter struct {
	// State is empty, or "blocked": groups whose events wait for something.
	State string `query:"state"`
	// Sort is empty, or "waiting": those in which the most events wait come first, and there are PageSize of them. Of a queue with more than a thousand groups, those with
	// the longest lines are found by a sample of what waits.
	Sort string `query:"sort"`
	// PageSize is how many groups one request asks for, up to 1,000; 0: 100.
	PageSize int `query:"limit"`
}

// ListGroups returns the groups of a queue that have events, and those that something is set for. It reads page after page as the loop goes on; an error is the last thing it
// returns.
func (c *Client) ListGroups(ctx context.Context, queue string, filter GroupFilter) iter.Seq2[Group, error] {
	listed := listOfCells(ctx, c, queuePath(queue, "/groups"), filter, byGroup, func(p groupPage) page[Group] { return page[Group]{p.Groups, p.Next} })
	if filter.Sort == "" {
		return listed
	}
	return func(yield func(Group, error) bool) { // each cell has one page, of those with its longest lines
		longest, err := collect(listed)
		slices.SortStableFunc(longest, func(a, b Group) int {
			return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), strings.Compare(a.Group, b.Group))
		})
		for _, g := range longest[:min(len(longest), cmp.Or(filter.PageSize, defaultPage))] {
			if !yield(g, nil) {
				return
			}
		}
		if err != nil {
			yield(Group{}, err)
		}
	}
}

type groupPage struct {
	Groups []Group `json:"groups"`
	Next   *string `json:"next"`
}

// GetGroup returns a group of a queue; one without events, and with nothing set, if there is none.
func (c *Client) GetGroup(ctx context.Context, queue, group string) (Group, error) {
	return c.group(ctx, Request{Path: groupPath(queue, group)})
}

// PutGroup replaces all that is set for a group of a queue, at once and for every process, whatever it was before, and wakes the claims that it lets something through to.
func (c *Client) PutGroup(ctx context.Context, queue, group string, settings GroupSettings) (Group, error) {
	return c.group(ctx, Request{Method: http.MethodPut, Path: groupPath(queue, group), Body: settings})
}

// PutGroupIf is PutGroup if what is set has that version, or, with version 0, if nothing is. Otherwise it returns [ErrPreconditionFailed]; so it does, too, when it is repeated
// after an answer that was lost, and its change was made.
func (c *Client) PutGroupIf(ctx context.Context, queue, group string, settings GroupSettings, version int64) (Group, error) {
	header := ifMatch(version)
	if version == 0 {
		header = ifAbsent()
	}
	return c.group(ctx, Request{Method: http.MethodPut, Path: groupPath(queue, group), Header: header, Body: settings})
}

// ChangeGroup reads what is set for a group of a queue, calls change with it, and writes what that has made of it; where it has changed nothing, nothing is written. What others change at the
// same time is kept: it is read again, and change is called once more, ten times at most. Then it returns [ErrPreconditionFailed]. An error of change ends it.
func (c *Client) ChangeGroup(ctx context.Context, queue, group string, change func(*GroupSettings) error) (Group, error) {
	const maxTries = 10
	for try := 1; ; try++ {
		before, err := c.GetGroup(ctx, queue, group)
		if err != nil {
			return Group{}, err
		}
		settings := before.Settings()
		if err := change(&settings); err != nil {
			return Group{}, err
		}
		if settings == before.Settings() {
			return before, nil
		}
		changed, err := c.PutGroupIf(ctx, queue, group, settings, before.Version)
		if try == maxTries || !errors.Is(err, ErrPreconditionFailed) {
			return changed, err
		}
	}
}

// UnblockGroup has a group in order go on that stopped for events that failed, and returns whether it had. Those of them that were requeued keep their places.
func (c *Client) UnblockGroup(ctx context.Context, queue, group string) (bool, error) {
	var answer unblockedGroup
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: groupPath(queue, group) + "/unblock", Repeatable: true}, &answer)
	return answer.Unblocked, err
}

type unblockedGroup struct {
	Unblocked bool `json:"unblocked"`
}

// DeleteGroup ends what is set for a group of a queue. Its events stay.
func (c *Client) DeleteGroup(ctx context.Context, queue, group string) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: groupPath(queue, group)}, nil)
	return err
}

func (c *Client) group(ctx context.Context, req Request) (Group, error) {
	var g Group
	_, err := c.Do(ctx, req, &g)
	return g, err
}

// groupPath returns the path of a call about a group, whose name may be any text.
func groupPath(queue, group string) string { return queuePath(queue, "/groups/") + escape(group) }
