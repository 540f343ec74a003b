package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
)

// A cellSet is a cell.Set in a response: "all", or a list.
type cellSet cell.Set

// MarshalJSON implements json.Marshaler.
func (c cellSet) MarshalJSON() ([]byte, error) {
	if c == nil {
		return []byte(`"all"`), nil
	}
	return json.Marshal([]int(c))
}

// parseCells returns the cells in a field of a body. It fails with a problem.
func parseCells(given bind.Value) (cell.Set, error) {
	var all string
	if json.Unmarshal(given, &all) == nil && all == "all" {
		return nil, nil
	}
	var cells []int
	if err := json.Unmarshal(given, &cells); err != nil || len(cells) == 0 || len(cells) > cell.Last+1 {
		return nil, errCells
	}
	seen := make(map[int]bool, len(cells))
	for _, n := range cells {
		if n < 0 || n > cell.Last || seen[n] {
			return nil, errCells
		}
		seen[n] = true
	}
	return cells, nil
}

var errCells = problem.InField(problem.ValidationFailed, "#/cells", `must be "all", or a list of numbers from 0 to 255, none of them twice`)

// A placement is a cell.Placement in a response.
type placement struct {
	Queue    string        `json:"queue"`
	Cells    cellSet       `json:"cells"`
	PlacedAt time.Time     `json:"placed_at"`
	Former   []formerCells `json:"former"`
	Keys     *keysPlace    `json:"keys"` // null: inserts with an idempotency key go where all others go
	Past     cellSet       `json:"past"`
	Asked    []askedCells  `json:"asked"`
	FirstUse bool          `json:"first_use,omitzero"`
	Removed  bool          `json:"removed,omitzero"`

	UpdatedAt time.Time `json:"updated_at"`
	Version   int64     `json:"version"`
}

type formerCells struct {
	Cells cellSet   `json:"cells"`
	Since time.Time `json:"since"`
}

type askedCells struct {
	Cells cellSet   `json:"cells"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

type keysPlace struct {
	Cells cellSet   `json:"cells"`
	Until time.Time `json:"until"`
}

func placementOf(p cell.Placement) placement {
	out := placement{
		Queue: p.Queue, Cells: cellSet(p.Cells), PlacedAt: p.PlacedAt, Past: cellSet(p.Past), FirstUse: p.IsFirstUse, Removed: p.IsRemoved, UpdatedAt: p.UpdatedAt, Version: p.Version,
		Former: convert(p.Former, func(f cell.Former) formerCells { return formerCells{cellSet(f.Cells), f.Since} }),
		Asked:  convert(p.Asked, func(a cell.Asked) askedCells { return askedCells{cellSet(a.Cells), a.Since, a.Until} }),
	}
	if p.KeysUntil != nil {
		out.Keys = &keysPlace{cellSet(p.KeysCells), *p.KeysUntil}
	}
	return out
}

func replyOfPlacement(p cell.Placement) reply {
	return reply{body: placementOf(p), etag: etagOf(p.Version)}
}

type putPlacementRequest struct {
	Name        string        `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	IfMatch     *precondition `header:"If-Match"`
	IfNoneMatch *absence      `header:"If-None-Match"`
	Cells       bind.Value    `json:"cells" validate:"required"`
	Keys        string        `json:"keys" validate:"oneof=now"` // not given: inserts with an idempotency key stay where they are for a time
	FirstUse    bool          `json:"first_use"`                 // a call about the queue that is the first one does this
}

func (s *Server) putPlacement(r *http.Request, req putPlacementRequest) (reply, error) {
	cells, err := parseCells(req.Cells)
	if err != nil {
		return reply{}, err
	}
	if err := s.checkMayPlace(r); err != nil {
		return reply{}, err
	}
	p, err := s.cells.Place(r.Context(), cell.PlaceParams{
		Queue: req.Name, Cells: cells, KeysNow: req.Keys == "now",
		IfVersions: req.IfMatch.versions(), IfExists: req.IfMatch.isAny(), IfAbsent: req.IfNoneMatch != nil, IsFirstUse: req.FirstUse,
	})
	return replyOfPlacement(p), err
}

type placeNewQueueRequest struct {
	Name string `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	Cell int    `json:"cell" validate:"min=0,max=255"`
}

// placeNewQueue places a queue for whoever inserts into it, unless it is placed, and returns its placement. A queue that home has already, from before there were other
// cells, stays there.
func (s *Server) placeNewQueue(r *http.Request, req placeNewQueueRequest) (reply, error) {
	placed, err := s.cells.Placement(r.Context(), req.Name)
	if !errors.Is(err, cell.ErrNotPlaced) {
		return replyOfPlacement(placed), err
	}
	if err := s.checkMayPlace(r); err != nil {
		return reply{}, err
	}
	placed, err = s.cells.Place(r.Context(), cell.PlaceParams{Queue: req.Name, Cells: cell.Set{req.Cell}, IfAbsent: true, IsFirstUse: true})
	if errors.Is(err, cell.ErrStale) { // another caller was first
		placed, err = s.cells.Placement(r.Context(), req.Name)
	}
	return replyOfPlacement(placed), err
}

// checkMayPlace counts a queue that the caller places, and fails beyond what a key may place in an hour.
func (s *Server) checkMayPlace(r *http.Request) error {
	if s.access == nil {
		return nil
	}
	retry := logOf(r).grant.TakePlace()
	if retry == 0 {
		return nil
	}
	return problem.New(problem.RateLimited, fmt.Sprintf("The key has placed %d queues within an hour. Retry later, or place them with a key that has the scope manage for all queues.", access.PlacesPerHour)).
		With("Retry-After", fmt.Sprint(int(retry/time.Second)))
}

type placementRequest struct {
	Name string `path:"name" validate:"queue" log:"queue" restrict:"queue"`
}

func (s *Server) getPlacement(r *http.Request, req placementRequest) (reply, error) {
	p, err := s.cells.Placement(r.Context(), req.Name)
	return replyOfPlacement(p), err
}

type deletePlacementRequest struct {
	Name    string        `path:"name" validate:"queue" log:"queue" restrict:"queue"`
	IfMatch *precondition `header:"If-Match"`
}

func (s *Server) deletePlacement(r *http.Request, req deletePlacementRequest) (reply, error) {
	return noContent, s.cells.DeletePlacement(r.Context(), req.Name, req.IfMatch.versions())
}

type drainPlacementRequest struct {
	Name    string        `path:"name" validate:"queue" log:"queue" restrict:"queue"`
	IfMatch *precondition `header:"If-Match"`
	Cells   bind.Value    `json:"cells" validate:"required"`
}

func (s *Server) drainPlacement(r *http.Request, req drainPlacementRequest) (reply, error) {
	cells, err := parseCells(req.Cells)
	if err != nil {
		return reply{}, err
	}
	p, err := s.cells.Drained(r.Context(), req.Name, cells, req.IfMatch.versions())
	return replyOfPlacement(p), err
}

// following is the parameters of a listing of changes.
type following struct {
	AfterVersion int64  `query:"after_version" validate:"min=0"` // zero: from the beginning
	Epoch        string `query:"epoch" validate:"min=1,max=64"`
	paging
}

// followed is what the answer of such a listing has besides.
type followed struct {
	Next     *string `json:"next"`
	Version  int64   `json:"version"`
	Epoch    string  `json:"epoch"`
	Complete bool    `json:"complete"`
}

func followedOf(c cell.Changes) followed {
	return followed{nextOf(c.Next), c.Version, c.Epoch, c.IsComplete}
}

type listPlacementsRequest struct {
	following
	Wait   time.Duration `query:"wait" validate:"min=0s,max=1m"`
	Queues []string      `restrict:"allowed_queues"`
}

func (req *listPlacementsRequest) waits() time.Duration { return req.Wait }

// A followedCell is a cell that is listed, as gateways follow it.
type followedCell struct {
	Cell     int     `json:"cell"`
	URL      *string `json:"url"`
	TakesNew bool    `json:"takes_new"`
	Turns    []turn  `json:"turns"`
}

// A turn is a change of whether a cell takes new queues.
type turn struct {
	At       time.Time `json:"at"`
	TakesNew bool      `json:"takes_new"`
}

type listPlacementsResponse struct {
	Placements []placement    `json:"placements"`
	Cells      []followedCell `json:"cells,omitzero"` // on the first page
	KeptMS     int64          `json:"key_retention_ms"`
	followed
}

func (s *Server) listPlacements(r *http.Request, req listPlacementsRequest) (reply, error) {
	page, err := s.cells.Placements(r.Context(), cell.PlacementsParams{
		AfterVersion: req.AfterVersion, Epoch: req.Epoch, Limit: req.Limit, Cursor: req.Cursor, Queues: req.Queues, Wait: req.Wait,
	})
	var cells []followedCell
	if req.Queues == nil && req.Cursor == "" { // the others are of no use to who may see some queues alone
		cells = convert(page.Cells, func(f cell.Followed) followedCell {
			return followedCell{f.Cell, f.URL, f.TakesNew, convert(f.Turns, func(t cell.Turn) turn { return turn(t) })}
		})
	}
	return reply{body: listPlacementsResponse{
		convert(page.Placements, placementOf), cells, s.svc.KeyRetention().Milliseconds(), followedOf(page.Changes),
	}}, err
}
