package http

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/queued/queued/internal/schedule"
)

type listOwnerCopiesRequest struct {
	After string `query:"after" validate:"max=16384"` // empty: from the beginning
	paging
	Wait time.Duration `query:"wait" validate:"min=0s,max=1m"`
}

func (req *listOwnerCopiesRequest) waits() time.Duration { return req.Wait }

type listOwnerCopiesResponse struct {
	Owners   []json.RawMessage `json:"owners"`
	Next     *string           `json:"next"`
	After    string            `json:"after"`
	Complete bool              `json:"complete"`
}

func (s *Server) listOwnerCopies(r *http.Request, req listOwnerCopiesRequest) (reply, error) {
	page, err := s.schedules.OwnerCopies(r.Context(), schedule.OwnerCopiesParams{After: req.After, Limit: req.Limit, Cursor: req.Cursor, Wait: req.Wait})
	if page.Copies == nil {
		page.Copies = []json.RawMessage{}
	}
	return reply{body: listOwnerCopiesResponse{page.Copies, nextOf(page.Next), page.After, page.IsComplete}}, err
}

type putOwnerCopiesRequest struct {
	Owners []json.RawMessage `json:"owners" validate:"required,min=1,max=1000" restrict:"-"`
}

// A putOwnerCopy is what became of one copy.
type putOwnerCopy struct {
	ID      *string `json:"id"` // null: it had none
	Result  string  `json:"result"`
	Version int64   `json:"version,omitzero"` // that the owner has here, or had when it was deleted
	Detail  string  `json:"detail,omitzero"`  // why it was refused
}

type putOwnerCopiesResponse struct {
	Owners []putOwnerCopy `json:"owners"`
}

// putOwnerCopies takes copies of the owners of another cell.
func (s *Server) putOwnerCopies(r *http.Request, req putOwnerCopiesRequest) (reply, error) {
	results, err := s.schedules.PutOwnerCopies(r.Context(), req.Owners)
	applied := 0
	body := putOwnerCopiesResponse{convert(results, func(put schedule.PutOwnerCopy) putOwnerCopy {
		if put.Result == "applied" {
			applied++
		}
		return putOwnerCopy{nextOf(put.ID), put.Result, put.Version, put.Reason}
	})}
	logOf(r).add("applied", applied)
	return reply{body: body}, err
}
