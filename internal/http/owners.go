package http

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/queued/queued/internal/schedule"
)

// An ownerBody is an owner as it goes over the wire.
type ownerBody struct {
	ID         string          `json:"id"`
	Timezone   string          `json:"timezone"`
	Attributes json.RawMessage `json:"attributes"`
	Version    int64           `json:"version"`
	CreatedAt  time.Time       `json:"created_at"`
	UpdatedAt  time.Time       `json:"updated_at"`
}

func ownerOf(o schedule.Owner) ownerBody { return ownerBody(o) }

type putOwnerRequest struct {
	ID         string          `path:"id" validate:"owner" log:"owner"`
	IfMatch    *precondition   `header:"If-Match"`
	Timezone   string          `json:"timezone" validate:"required,min=1,max=64"`
	Attributes json.RawMessage `json:"attributes"`
}

func (s *Server) putOwner(r *http.Request, req putOwnerRequest) (reply, error) {
	put, err := s.schedules.PutOwner(r.Context(), schedule.PutOwnerParams{
		ID:         req.ID,
		Timezone:   req.Timezone,
		Attributes: req.Attributes,
		IfVersions: req.IfMatch.versions(),
		IfExists:   req.IfMatch.isAny(),
	})
	logOf(r).add("moved", put.Moved)
	rep := reply{body: ownerOf(put.Owner), etag: etagOf(put.Version), location: "/owners/" + put.ID}
	if put.Created {
		rep.status = http.StatusCreated
	}
	return rep, err
}

type ownerRequest struct {
	ID string `path:"id" validate:"owner" log:"owner"`
}

func (s *Server) getOwner(r *http.Request, req ownerRequest) (reply, error) {
	found, err := s.schedules.GetOwner(r.Context(), req.ID)
	return reply{body: ownerOf(found), etag: etagOf(found.Version)}, err
}

type listOwnersResponse struct {
	Owners []ownerBody `json:"owners"`
	Next   *string     `json:"next"`
}

func (s *Server) listOwners(r *http.Request, req paging) (reply, error) {
	page, err := s.schedules.ListOwners(r.Context(), schedule.ListOwnersParams{Limit: req.Limit, Cursor: req.Cursor})
	return reply{body: listOwnersResponse{convert(page.Owners, ownerOf), nextOf(page.Next)}}, err
}

type deleteOwnerRequest struct {
	ID      string        `path:"id" validate:"owner" log:"owner"`
	IfMatch *precondition `header:"If-Match"`
}

func (s *Server) deleteOwner(r *http.Request, req deleteOwnerRequest) (reply, error) {
	cancelled, err := s.schedules.DeleteOwner(r.Context(), req.ID, req.IfMatch.versions())
	logOf(r).add("cancelled", cancelled)
	return noContent, err
}
