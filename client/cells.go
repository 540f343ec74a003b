package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A Cell is what a server says of its database as one of several behind a gateway.
type Cell struct {
	// Number is that of the cell, 0 to 255. A single database is cell 0, which is home.
	Number int     `json:"cell"`
	IsHome bool    `json:"is_home"`
	IDs    CellIDs `json:"ids"`
	// PlacementVersion and KeysVersion are those of the latest changes of placements, at home, and of keys; Epoch is that of both.
	PlacementVersion int64  `json:"placement_version"`
	KeysVersion      int64  `json:"keys_version"`
	Epoch            string `json:"epoch"`
	// Version is that of the server.
	Version string `json:"version"`
}

// CellIDs are the ids of events, schedules and redrives that a cell gives out.
type CellIDs struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	// Left is how many it has still, of events, schedules or redrives, whichever has the fewest.
	Left int64 `json:"left"`
}

// GetCell returns which cell the database of the server is.
func (c *Client) GetCell(ctx context.Context) (Cell, error) {
	var cell Cell
	_, err := c.Do(ctx, Request{Path: "/cell"}, &cell)
	return cell, err
}

// A ListedCell is a cell that gateways are told of.
type ListedCell struct {
	Cell int `json:"cell"`
	// URL is the base URL of its servers; nil: gateways have it from their settings.
	URL *string `json:"url"`
	// TakesNew says that new queues may be placed there.
	TakesNew bool `json:"takes_new"`
	// Placed is how many queues are on it, and Former how many were and may have events there still.
	Placed int64 `json:"placed"`
	Former int64 `json:"former"`
	// UpdatedAt is nil for a cell that is in the settings of the gateway, and not listed.
	UpdatedAt *time.Time `json:"updated_at"`
	// State says through a gateway whether that can use the cell, "up" or "away", and Why why not.
	State string `json:"state,omitzero"`
	Why   string `json:"why,omitzero"`
}

// ListCells returns the cells that gateways are told of; through a gateway, all that it knows.
func (c *Client) ListCells(ctx context.Context) ([]ListedCell, error) {
	var listed cellList
	_, err := c.Do(ctx, Request{Path: "/cells"}, &listed)
	return listed.Cells, err
}

type cellList struct {
	Cells []ListedCell `json:"cells"`
}

// PutCellParams say what to list of a cell.
type PutCellParams struct {
	// URL is the base URL of its servers; nil: gateways have it from their settings.
	URL      *string `json:"url,omitzero"`
	TakesNew bool    `json:"takes_new"`
	// Keys is "now" to have inserts with an idempotency key into queues on all cells go by this at once; empty: they stay where they go for as long as keys are kept.
	Keys string `json:"keys,omitzero"`
}

// PutCell lists a cell, or changes what is listed of it.
func (c *Client) PutCell(ctx context.Context, number int, p PutCellParams) (ListedCell, error) {
	var listed ListedCell
	_, err := c.Do(ctx, Request{Method: http.MethodPut, Path: "/cells/" + strconv.Itoa(number), Body: p, Repeatable: true}, &listed)
	return listed, err
}

// DeleteCellParams say how to take a cell off the list; the zero value is for one that nothing needs any more.
type DeleteCellParams struct {
	// Keys is "now" to give up the idempotency keys that were used there and count still; empty: the cell stays on the list while there are some.
	Keys string
}

// DeleteCell takes a cell off the list that no queue is on, or returns [ErrNotFound].
func (c *Client) DeleteCell(ctx context.Context, number int, p DeleteCellParams) error {
	query := url.Values{}
	if p.Keys != "" {
		query.Set("keys", p.Keys)
	}
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: "/cells/" + strconv.Itoa(number), Query: query}, nil)
	return err
}

// A ForwardedEvent is what became of an event that home has had wait for a cell.
type ForwardedEvent struct {
	// Forwarded is its id at home, and ID that on the cell; 0 if it was refused.
	Forwarded int64 `json:"forwarded"`
	ID        int64 `json:"id,omitzero"`
	// Result is "inserted", "known" if it was inserted before, or "refused"; Detail says why.
	Result string `json:"result"`
	Detail string `json:"detail,omitzero"`
}

// InsertForwarded inserts events on a cell that home has had wait for it in queued.forward.<cell>, as they were claimed there, at most 1,000. It may be repeated. Gateways do that.
func (c *Client) InsertForwarded(ctx context.Context, events []json.RawMessage) ([]ForwardedEvent, error) {
	var inserted forwardedEvents
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/cell/events", Body: insertForwardedRequest{events}, Repeatable: true}, &inserted)
	return inserted.Events, err
}

type insertForwardedRequest struct {
	Events []json.RawMessage `json:"events"`
}

type forwardedEvents struct {
	Events []ForwardedEvent `json:"events"`
}

// ListCellQueues returns the names of all queues that have an event on the cell, waiting or leased.
func (c *Client) ListCellQueues(ctx context.Context) ([]string, error) {
	var all []string
	query := url.Values{"limit": {"1000"}}
	for {
		var page cellQueues
		if _, err := c.Do(ctx, Request{Path: "/cell/queues", Query: query}, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Queues...)
		if page.Next == nil {
			return all, nil
		}
		query.Set("cursor", *page.Next)
	}
}

type cellQueues struct {
	Queues []string `json:"queues"`
	Next   *string  `json:"next"`
}

// Cells are numbers of cells; nil: all that take new queues.
type Cells []int

// MarshalJSON implements json.Marshaler.
func (c Cells) MarshalJSON() ([]byte, error) {
	if c == nil {
		return []byte(`"all"`), nil
	}
	return json.Marshal([]int(c))
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *Cells) UnmarshalJSON(text []byte) error {
	if string(text) == `"all"` {
		*c = nil
		return nil
	}
	return json.Unmarshal(text, (*[]int)(c))
}

// A Placement says which cells a queue is on.
type Placement struct {
	Queue string `json:"queue"`
	// Cells are where new events go, since PlacedAt.
	Cells    Cells     `json:"cells"`
	PlacedAt time.Time `json:"placed_at"`
	// Former are those that it was placed on before and that may hold some of its events still.
	Former []FormerCells `json:"former"`
	// Keys is where inserts with an idempotency key go for a time; nil: where all others go.
	Keys *KeysPlacement `json:"keys"`
	// Past are those that it was placed on before, whether they are Former still or were found empty: they have history of it.
	Past Cells `json:"past"`
	// Asked are those where inserts with an idempotency key went until Since, and that are asked first whether they know a key until Until.
	Asked []AskedCells `json:"asked"`
	// FirstUse: the first call about the queue has placed it, and nobody else since. Gateways remove it again if the queue is not used within a day.
	FirstUse bool `json:"first_use,omitzero"`
	// Removed placements are only in listings of changes.
	Removed   bool      `json:"removed,omitzero"`
	UpdatedAt time.Time `json:"updated_at"`
	// Version is greater than that of every earlier change of any placement.
	Version int64 `json:"version"`
}

// FormerCells are cells that a queue was placed on until a time.
type FormerCells struct {
	Cells Cells     `json:"cells"`
	Since time.Time `json:"since"`
}

// AskedCells are cells that may know idempotency keys still, when inserts go elsewhere.
type AskedCells struct {
	Cells Cells     `json:"cells"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// LeaveKeys leaves idempotency keys of a queue, up to 1,000, to the cell that the queue is placed on now. It returns the ids of the events that were inserted under them on this
// cell, in the order of the keys, nil for the others: inserts here under these are refused from then on. Gateways do so before they insert elsewhere.
func (c *Client) LeaveKeys(ctx context.Context, queue string, keys []string) ([]*int64, error) {
	var left leftKeys
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/cell/queues/" + escape(queue) + "/keys", Body: leaveKeysRequest{keys}, Repeatable: true}, &left)
	return left.Events, err
}

type leaveKeysRequest struct {
	Keys []string `json:"keys"`
}

type leftKeys struct {
	Events []*int64 `json:"events"`
}

// A KeysPlacement is where inserts with an idempotency key go until a time.
type KeysPlacement struct {
	Cells Cells     `json:"cells"`
	Until time.Time `json:"until"`
}

// PlaceParams say where to place a queue.
type PlaceParams struct {
	Cells Cells `json:"cells"`
	// FirstUse says that a call about the queue that is the first one does this: a queue that home has stays there.
	FirstUse bool `json:"first_use,omitzero"`
	// Keys is "now" to have inserts with an idempotency key follow at once; empty: they stay for as long as keys are kept.
	Keys string `json:"keys,omitzero"`
	// IfVersion is the version that the placement must have; 0: any. With IfAbsent the queue must not be placed.
	IfVersion int64 `json:"-"`
	IfAbsent  bool  `json:"-"`
}

// PutPlacement places a queue, at home. It returns [ErrPreconditionFailed] if the placement is not as p says it must be.
func (c *Client) PutPlacement(ctx context.Context, queue string, p PlaceParams) (Placement, error) {
	header := ifMatch(p.IfVersion)
	if p.IfAbsent {
		header.Set("If-None-Match", "*")
	}
	var placed Placement
	_, err := c.Do(ctx, Request{Method: http.MethodPut, Path: "/queues/" + escape(queue) + "/placement", Header: header, Body: p}, &placed)
	return placed, err
}

// PlaceNewQueue places a queue on a cell, at home, unless it is placed or home has it already, and returns the placement that holds. Gateways do that at the first use of
// a queue.
func (c *Client) PlaceNewQueue(ctx context.Context, queue string, cell int) (Placement, error) {
	var placed Placement
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/queues/" + escape(queue) + "/placement", Body: placeNewQueueRequest{cell}, Repeatable: true}, &placed)
	return placed, err
}

type placeNewQueueRequest struct {
	Cell int `json:"cell"`
}

// GetPlacement returns the placement of a queue, or [ErrNotFound].
func (c *Client) GetPlacement(ctx context.Context, queue string) (Placement, error) {
	var placed Placement
	_, err := c.Do(ctx, Request{Path: "/queues/" + escape(queue) + "/placement"}, &placed)
	return placed, err
}

// DrainPlacement says that former cells of a queue are empty, if its placement has this version (0: any).
func (c *Client) DrainPlacement(ctx context.Context, queue string, cells Cells, ifVersion int64) (Placement, error) {
	var placed Placement
	_, err := c.Do(ctx, Request{
		Method: http.MethodPost, Path: "/queues/" + escape(queue) + "/placement/drained", Header: ifMatch(ifVersion), Body: drainRequest{cells}, Repeatable: ifVersion == 0,
	}, &placed)
	return placed, err
}

type drainRequest struct {
	Cells Cells `json:"cells"`
}

// DeletePlacement removes the placement of a queue that was deleted on every cell, if it has this version (0: any).
func (c *Client) DeletePlacement(ctx context.Context, queue string, ifVersion int64) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: "/queues/" + escape(queue) + "/placement", Header: ifMatch(ifVersion)}, nil)
	return err
}

// allChanges reads all pages of a listing of changes as one: the first, which says what to go on from, with the elements of all. parts returns those of a page, and its Next.
func allChanges[P, T any](ctx context.Context, c *Client, listing Request, parts func(page *P) (*[]T, **string)) (P, error) {
	var all P
	elements, next := parts(&all)
	for isFirst := true; ; isFirst = false {
		var page P
		if _, err := c.Do(ctx, listing, &page); err != nil {
			return *new(P), err
		}
		more, following := parts(&page)
		if isFirst {
			all = page
		} else {
			*elements, *next = append(*elements, *more...), *following
		}
		if *next == nil {
			return all, nil
		}
		listing.Query.Set("cursor", **next)
	}
}

// PlacementFilter says which changes of placements to list; its zero value is all placements.
type PlacementFilter struct {
	// AfterVersion and Epoch are those of an earlier listing: only what has changed since.
	AfterVersion int64  `query:"after_version"`
	Epoch        string `query:"epoch"`
	// Wait is how long to wait for a change, at most a minute.
	Wait time.Duration `query:"wait"`
	// Limit is the size of the pages that are read.
	Limit int `query:"limit"`
}

// A FollowedCell is a cell that is listed, as gateways follow it.
type FollowedCell struct {
	Cell     int     `json:"cell"`
	URL      *string `json:"url"`
	TakesNew bool    `json:"takes_new"`
	// Turns are the changes of TakesNew, in order.
	Turns []CellTurn `json:"turns"`
}

// A CellTurn is a change of whether a cell takes new queues.
type CellTurn struct {
	At       time.Time `json:"at"`
	TakesNew bool      `json:"takes_new"`
}

// Placements are those of queues, or what has changed of them.
type Placements struct {
	Placements []Placement `json:"placements"`
	// Cells are those that are listed; nil for keys that are restricted to some queues.
	Cells []FollowedCell `json:"cells,omitzero"`
	// KeyRetentionMS is for how long home remembers the idempotency keys of inserts, in milliseconds.
	KeyRetentionMS int64 `json:"key_retention_ms"`
	// Version and Epoch are those to list the next changes from.
	Version int64  `json:"version"`
	Epoch   string `json:"epoch"`
	// Complete says that there are no other placements than these.
	Complete bool    `json:"complete"`
	Next     *string `json:"next"`
}

// ListPlacements returns placements, all pages of them.
func (c *Client) ListPlacements(ctx context.Context, filter PlacementFilter) (Placements, error) {
	return allChanges(ctx, c, Request{Path: "/placements", Query: queryOf(filter), Wait: filter.Wait}, func(page *Placements) (*[]Placement, **string) { return &page.Placements, &page.Next })
}

// KeyCopyFilter says which changes of keys to read; its zero value is all keys.
type KeyCopyFilter struct {
	// AfterVersion and Epoch are those of an earlier listing: only what has changed since.
	AfterVersion int64  `query:"after_version"`
	Epoch        string `query:"epoch"`
	// Wait is how long to wait for a change, at most a minute.
	Wait time.Duration `query:"wait"`
	// Limit is the size of the pages that are read.
	Limit int `query:"limit"`
}

// KeyCopies are copies of keys for other cells, with the hashes of their texts.
type KeyCopies struct {
	Keys []json.RawMessage `json:"keys"`
	// Version and Epoch are those to list the next changes from.
	Version int64  `json:"version"`
	Epoch   string `json:"epoch"`
	// Complete says that there are no other keys than these.
	Complete bool    `json:"complete"`
	Next     *string `json:"next"`
}

// ListKeyCopies returns copies of keys, all pages of them, for [Client.PutKeyCopies] on another cell.
func (c *Client) ListKeyCopies(ctx context.Context, filter KeyCopyFilter) (KeyCopies, error) {
	return allChanges(ctx, c, Request{Path: "/cell/keys", Query: queryOf(filter), Wait: filter.Wait}, func(page *KeyCopies) (*[]json.RawMessage, **string) { return &page.Keys, &page.Next })
}

// A PutKeyCopy is what became of a copy of a key.
type PutKeyCopy struct {
	ID *string `json:"id"`
	// Result is "applied", "unchanged" if the key was there as new or newer, "deleted" if it was deleted there, or "refused"; Code and Detail say why.
	Result string `json:"result"`
	Code   string `json:"code,omitzero"`
	Detail string `json:"detail,omitzero"`
}

// KeyCopiesPut are copies of keys for a cell.
type KeyCopiesPut struct {
	Keys []json.RawMessage `json:"keys"` // at most 1,000
	// Epoch is that of home that the copies are of; empty: they are put by hand, and only keys that are not there yet are taken. Before is that of the copies that are on the cell, when it is another one.
	Epoch  string `json:"epoch,omitzero"`
	Before string `json:"before,omitzero"`
	// Complete says that all keys of home have come in this epoch: copies that have not are deleted.
	Complete bool `json:"complete,omitzero"`
}

// PutKeyCopies are what became of copies, in their order.
type PutKeyCopies struct {
	Keys []PutKeyCopy `json:"keys"`
	// Epoch is the one that copies are taken of; nil: these were put by hand. If it is another one than that of the copies, nothing was done.
	Epoch *string `json:"epoch"`
}

// PutKeyCopies puts copies of home's keys on a cell, and returns what became of each.
func (c *Client) PutKeyCopies(ctx context.Context, copies KeyCopiesPut) (PutKeyCopies, error) {
	var put PutKeyCopies
	if copies.Keys == nil {
		copies.Keys = []json.RawMessage{}
	}
	_, err := c.Do(ctx, Request{Method: http.MethodPut, Path: "/cell/keys", Body: copies}, &put)
	return put, err
}

// QueueCopyFilter says which copies of settings of queues to list.
type QueueCopyFilter struct {
	// AfterVersion and Epoch are those of an earlier listing: only queues that were set since are listed. Zero: all that are set to something.
	AfterVersion int64  `query:"after_version"`
	Epoch        string `query:"epoch"`
	Queue        string `query:"queue"` // only this one
	Limit        int    `query:"limit"` // of a page
}

// QueueCopies are copies of what queues are set to, their policies and pushes, for other cells. Secrets of pushes are sealed.
type QueueCopies struct {
	Queues []json.RawMessage `json:"queues"`
	// Version and Epoch are those to list the next changes from.
	Version int64  `json:"version"`
	Epoch   string `json:"epoch"`
	// Complete says that no other queues are set to something.
	Complete bool    `json:"complete"`
	Next     *string `json:"next"`
}

// ListQueueCopies returns copies of settings of queues, all pages of them, for [Client.PutQueueCopies] on another cell.
func (c *Client) ListQueueCopies(ctx context.Context, filter QueueCopyFilter) (QueueCopies, error) {
	return allChanges(ctx, c, Request{Path: "/cell/settings", Query: queryOf(filter)}, func(page *QueueCopies) (*[]json.RawMessage, **string) { return &page.Queues, &page.Next })
}

// A PutQueueCopy is what became of a copy of the settings of a queue.
type PutQueueCopy struct {
	Queue *string `json:"queue"`
	// Result is "applied", "unchanged" if the settings were there as new or newer, or "refused"; Code and Detail say why.
	Result string `json:"result"`
	Code   string `json:"code,omitzero"`
	Detail string `json:"detail,omitzero"`
}

// QueueCopiesPut are copies of settings of queues for a cell.
type QueueCopiesPut struct {
	Queues []json.RawMessage `json:"queues"` // at most 1,000
	// Epoch is that of home that the copies are of; empty: they are put by hand, and queues are set as they say. Before is that of the copies that are on the cell, when it is another one.
	Epoch  string `json:"epoch,omitzero"`
	Before string `json:"before,omitzero"`
	// Complete says that all settings of home have come in this epoch: those of other queues that were copied end.
	Complete bool `json:"complete,omitzero"`
}

// PutQueueCopies are what became of copies, in their order.
type PutQueueCopies struct {
	Queues []PutQueueCopy `json:"queues"`
	// Epoch is the one that copies are taken of; nil: these were put by hand. If it is another one than that of the copies, nothing was done.
	Epoch *string `json:"epoch"`
}

// PutQueueCopies puts copies of home's settings of queues on a cell, and returns what became of each.
func (c *Client) PutQueueCopies(ctx context.Context, copies QueueCopiesPut) (PutQueueCopies, error) {
	var put PutQueueCopies
	if copies.Queues == nil {
		copies.Queues = []json.RawMessage{}
	}
	_, err := c.Do(ctx, Request{Method: http.MethodPut, Path: "/cell/settings", Body: copies}, &put)
	return put, err
}
