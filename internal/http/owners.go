package http

import (
	"errors"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

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

func (o ownerBody) version() int64 { return o.Version }

type putOwnerRequest struct {
	ID         string         `path:"id" validate:"owner"`
	IfMatch    *precondition  `header:"If-Match"`
	Timezone   string         `json:"timezone" validate:"required,min=1,max=64"`
	Attributes jsontext.Value `json:"attributes"`
}

// A putOwnerResponse is an owner, and whether it is new.
type putOwnerResponse struct {
	ownerBody

	wasThere bool
}

func (resp putOwnerResponse) location() string { return "/owners/" + resp.ID }
func (resp putOwnerResponse) existed() bool    { return resp.wasThere }

func (s *Server) putOwner(r *http.Request, req putOwnerRequest) (putOwnerResponse, error) {
	recordOf(r).note("owner", req.ID)
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
	recordOf(r).note("moved", put.Moved)
	return putOwnerResponse{ownerOf(put.Owner), !put.Created}, err
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

func (s *Server) getOwner(r *http.Request, req ownerRequest) (ownerBody, error) {
	recordOf(r).note("owner", req.ID)
	found, err := s.schedules.GetOwner(r.Context(), req.ID)
	return ownerOf(found), err
}

type listOwnersRequest struct {
	paging `in:"query"`
}

type listOwnersResponse struct {
	Owners []ownerBody `json:"owners"`
	Next   *string     `json:"next"`
}

func (s *Server) listOwners(r *http.Request, req listOwnersRequest) (listOwnersResponse, error) {
	page, err := s.schedules.ListOwners(r.Context(), schedule.ListOwnersParams{Limit: req.Limit, Cursor: req.Cursor})
	resp := listOwnersResponse{Owners: make([]ownerBody, len(page.Owners)), Next: nextOf(page.Next)}
	for i, o := range page.Owners {
		resp.Owners[i] = ownerOf(o)
	}
	return resp, err
}

type deleteOwnerRequest struct {
	ID      string        `path:"id" validate:"owner"`
	IfMatch *precondition `header:"If-Match"`
}

func (s *Server) deleteOwner(r *http.Request, req deleteOwnerRequest) (nothing, error) {
	recordOf(r).note("owner", req.ID)
	return nothing{}, req.IfMatch.try(func(version *int64) error {
		cancelled, err := s.schedules.DeleteOwner(r.Context(), req.ID, version)
		recordOf(r).note("cancelled", cancelled)
		return err
	})
}
