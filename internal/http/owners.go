package http

import (
	"errors"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/schedule"
)

// An ownerBody is an owner as it goes over the wire.
type ownerBody struct {
	ID         string         `json:"id"`
	Timezone   string         `json:"timezone"`
	Attributes jsontext.Value `json:"attributes"`
	Version    int64          `json:"version"`
	CreatedAt  timestamp      `json:"created_at"`
	UpdatedAt  timestamp      `json:"updated_at"`
}

func ownerOf(o schedule.Owner) ownerBody {
	return ownerBody{
		ID:         o.ID,
		Timezone:   o.Timezone,
		Attributes: jsontext.Value(o.Attributes),
		Version:    o.Version,
		CreatedAt:  timestamp(o.CreatedAt),
		UpdatedAt:  timestamp(o.UpdatedAt),
	}
}

type putOwnerRequest struct {
	ID         string        `path:"id" validate:"owner"`
	IfMatch    *precondition `header:"If-Match"`
	Timezone   string        `json:"timezone" validate:"required,min=1,max=64"`
	Attributes bind.Object   `json:"attributes"`
}

func (s *Server) putOwner(r *http.Request, req putOwnerRequest) (reply, error) {
	logOf(r).add("owner", req.ID)
	p := schedule.PutOwnerParams{ID: req.ID, Timezone: req.Timezone, Attributes: []byte(req.Attributes)}
	var put schedule.PutOwnerResult
	attempt := func(version *int64) (err error) {
		p.IfVersion = version
		put, err = s.schedules.PutOwner(r.Context(), p)
		return err
	}
	var err error
	if req.IfMatch.isAny() {
		err = s.changeOwner(r, req.ID, attempt)
	} else {
		err = req.IfMatch.try(attempt)
	}
	logOf(r).add("moved", put.Moved)
	rep := reply{body: ownerOf(put.Owner), etag: entityTag(put.Version), location: "/owners/" + put.ID}
	if put.Created {
		rep.status = http.StatusCreated
	}
	return rep, err
}

// changeOwner makes attempt with the version that the owner has, which must be there, until nobody else was faster.
func (s *Server) changeOwner(r *http.Request, id string, attempt func(version *int64) error) error {
	for {
		o, err := s.schedules.GetOwner(r.Context(), id)
		if errors.Is(err, schedule.ErrOwnerNotFound) {
			return schedule.ErrStale
		}
		if err != nil {
			return err
		}
		if err := attempt(&o.Version); !errors.Is(err, schedule.ErrStale) {
			return err
		}
	}
}

type ownerRequest struct {
	ID string `path:"id" validate:"owner"`
}

func (s *Server) getOwner(r *http.Request, req ownerRequest) (reply, error) {
	logOf(r).add("owner", req.ID)
	found, err := s.schedules.GetOwner(r.Context(), req.ID)
	return reply{body: ownerOf(found), etag: entityTag(found.Version)}, err
}

type listOwnersRequest struct {
	paging `in:"query"`
}

type listOwnersResponse struct {
	Owners []ownerBody `json:"owners"`
	Next   *string     `json:"next"`
}

func (s *Server) listOwners(r *http.Request, req listOwnersRequest) (reply, error) {
	page, err := s.schedules.ListOwners(r.Context(), schedule.ListOwnersParams{Limit: req.Limit, Cursor: req.Cursor})
	return reply{body: listOwnersResponse{convert(page.Owners, ownerOf), nextOf(page.Next)}}, err
}

type deleteOwnerRequest struct {
	ID      string        `path:"id" validate:"owner"`
	IfMatch *precondition `header:"If-Match"`
}

func (s *Server) deleteOwner(r *http.Request, req deleteOwnerRequest) (reply, error) {
	logOf(r).add("owner", req.ID)
	return noContent, req.IfMatch.try(func(version *int64) error {
		cancelled, err := s.schedules.DeleteOwner(r.Context(), req.ID, version)
		logOf(r).add("cancelled", cancelled)
		return err
	})
}
