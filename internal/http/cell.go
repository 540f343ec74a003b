package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/http/problem"
)

// A cellResponse is what is known of the database as one of several cells.
type cellResponse struct {
	Cell   int       `json:"cell"`
	IsHome bool      `json:"is_home"`
	IDs    cellRange `json:"ids"`
	// The versions of the latest changes of placements, at home, and of keys, with their epoch.
	PlacementVersion int64  `json:"placement_version"`
	KeysVersion      int64  `json:"keys_version"`
	Epoch            string `json:"epoch"`
	Version          string `json:"version"` // of the program
}

// A cellRange is the ids that a cell gives out.
type cellRange struct {
	First int64 `json:"first"`
	Last  int64 `json:"last"`
	Left  int64 `json:"left"` // of events, schedules or redrives, whichever has the fewest left
}

func (s *Server) cellResponseOf(c cell.Cell) cellResponse {
	return cellResponse{Cell: c.Number, IsHome: c.IsHome(), IDs: cellRange{c.FirstID, c.LastID, c.IDsLeft}, PlacementVersion: c.PlacementVersion, KeysVersion: c.KeysVersion, Epoch: c.Epoch, Version: s.version.Version}
}

// A listedCell is a cell that gateways are told of.
type listedCell struct {
	Cell      int       `json:"cell"`
	URL       *string   `json:"url"`
	TakesNew  bool      `json:"takes_new"`
	Placed    int64     `json:"placed"`
	Former    int64     `json:"former"`
	UpdatedAt time.Time `json:"updated_at"`
}

func listedCellOf(l cell.Listed) listedCell {
	return listedCell{l.Cell, l.URL, l.TakesNew, l.Placed, l.Former, l.UpdatedAt}
}

type listCellsResponse struct {
	Cells []listedCell `json:"cells"`
}

func (s *Server) listCells(r *http.Request, _ noRequest) (reply, error) {
	found, err := s.cells.List(r.Context())
	return reply{body: listCellsResponse{convert(found, listedCellOf)}}, err
}

type putCellRequest struct {
	Number   int     `path:"number" validate:"min=0,max=255"`
	URL      *string `json:"url" validate:"min=1,max=1000"`
	TakesNew bool    `json:"takes_new" default:"true"`
	Keys     string  `json:"keys" validate:"oneof=now"` // not given: inserts with an idempotency key into queues on all cells stay where they go for a time
}

func (s *Server) putCell(r *http.Request, req putCellRequest) (reply, error) {
	put, err := s.cells.Put(r.Context(), req.Number, req.URL, req.TakesNew, req.Keys == "now")
	return reply{body: listedCellOf(put)}, err
}

type deleteCellRequest struct {
	Number int    `path:"number" validate:"min=0,max=255"`
	Keys   string `query:"keys" validate:"oneof=now"` // not given: idempotency keys that were used there keep the cell on the list while they count
}

func (s *Server) deleteCell(r *http.Request, req deleteCellRequest) (reply, error) {
	err := s.cells.Delete(r.Context(), req.Number, req.Keys == "now")
	if used, ok := errors.AsType[*cell.InUseError](err); ok {
		p := problem.Of(err)
		if used.Placed+used.Former > 0 {
			p.Detail = fmt.Sprintf("Of the queues, %d are placed on the cell, and %d were and may have events there still. Drain it first (queued gateway drain %d --wait).", used.Placed, used.Former, req.Number)
			return reply{}, p
		}
		p.Detail = "Idempotency keys that were used on the cell count until " + used.KeysUntil.UTC().Format(time.RFC3339) + ": inserts under them go there, or ask it first, so that a repetition meets its first. " +
			"Take it off the list after that, or give these keys up with keys=now (queued gateway remove --keys-now)."
		return reply{}, p
	}
	return noContent, err
}

type insertForwardedRequest struct {
	Events []json.RawMessage `json:"events" validate:"required,min=1,max=1000" restrict:"-"`
}

// A forwardedEvent is what became of one event.
type forwardedEvent struct {
	Forwarded int64  `json:"forwarded"` // its id at home
	ID        int64  `json:"id,omitzero"`
	Result    string `json:"result"`
	Detail    string `json:"detail,omitzero"` // why it was refused
}

type insertForwardedResponse struct {
	Events []forwardedEvent `json:"events"`
}

// insertForwarded inserts events that home has had wait for this cell, as a gateway has claimed them there.
func (s *Server) insertForwarded(r *http.Request, req insertForwardedRequest) (reply, error) {
	results, err := s.cells.InsertForwarded(r.Context(), req.Events)
	inserted := 0
	body := insertForwardedResponse{convert(results, func(f cell.Forwarded) forwardedEvent {
		if f.Result == cell.ForwardInserted {
			inserted++
		}
		return forwardedEvent{f.Forwarded, f.ID, f.Result, f.Reason}
	})}
	logOf(r).add("inserted", inserted)
	return reply{body: body}, err
}

type listCellQueuesRequest struct{ paging }

type listCellQueuesResponse struct {
	Queues []string `json:"queues"`
	Next   *string  `json:"next"` // null on the last page
}

func (s *Server) listCellQueues(r *http.Request, req listCellQueuesRequest) (reply, error) {
	queues, next, err := s.cells.WaitingQueues(r.Context(), req.Cursor, req.Limit)
	if queues == nil {
		queues = []string{}
	}
	return reply{body: listCellQueuesResponse{queues, nextOf(next)}}, err
}

func (s *Server) getCell(r *http.Request, _ noRequest) (reply, error) {
	c, err := s.cells.Get(r.Context())
	return reply{body: s.cellResponseOf(c)}, err
}
