package http

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
)

type listKeyCopiesRequest struct {
	following
	Wait time.Duration `query:"wait" validate:"min=0s,max=1m"`
}

func (req *listKeyCopiesRequest) waits() time.Duration { return req.Wait }

type listKeyCopiesResponse struct {
	Keys []json.RawMessage `json:"keys"`
	followed
}

func (s *Server) listKeyCopies(r *http.Request, req listKeyCopiesRequest) (reply, error) {
	page, err := s.access.Copies(r.Context(), access.CopiesParams{AfterVersion: req.AfterVersion, Epoch: req.Epoch, Limit: req.Limit, Cursor: req.Cursor, Wait: req.Wait})
	if err == nil && len(page.Copies) > 0 && logOf(r).grant.IsOpen { // another process has made a key seconds ago
		err = challenge(r, access.ErrUnauthorized)
	}
	return reply{body: listKeyCopiesResponse{page.Copies, followedOf(page.Changes)}}, err
}

type putKeyCopiesRequest struct {
	Keys     []json.RawMessage `json:"keys" validate:"required,max=1000" restrict:"-"`
	Epoch    string            `json:"epoch" validate:"min=1,max=64"`  // not given: they are put by hand
	Before   string            `json:"before" validate:"min=1,max=64"` // that of the copies that are here
	Complete bool              `json:"complete"`
}

// A putKeyCopy is what became of one copy.
type putKeyCopy struct {
	ID     *string `json:"id"` // null: it had none
	Result string  `json:"result"`
	Code   string  `json:"code,omitzero"` // why it was refused
	Detail string  `json:"detail,omitzero"`
}

type putKeyCopiesResponse struct {
	Keys  []putKeyCopy `json:"keys"`
	Epoch *string      `json:"epoch"` // that copies are taken of; null: these were put by hand
}

// checkCopies makes sure that there are copies in a field of a body, or that they are complete in an epoch.
func checkCopies(field string, n int, epoch string, isComplete bool) error {
	switch {
	case isComplete && epoch == "":
		return problem.InField(problem.ValidationFailed, "#/complete", "must not be true without an epoch")
	case n == 0 && !isComplete:
		return problem.InField(problem.ValidationFailed, field, "must not be empty unless the copies are complete")
	}
	return nil
}

// putKeyCopies takes copies of the keys of home. As with a first key, callers without one must not be left without an admin key.
func (s *Server) putKeyCopies(r *http.Request, req putKeyCopiesRequest) (reply, error) {
	if err := checkCopies("#/keys", len(req.Keys), req.Epoch, req.Complete); err != nil {
		return reply{}, err
	}
	results, err := s.access.PutCopies(r.Context(), access.PutCopiesParams{Copies: req.Keys, Epoch: req.Epoch, Before: req.Before, IsComplete: req.Complete, IsFirst: logOf(r).grant.IsOpen})
	if stale, ok := errors.AsType[*access.StaleCopiesError](err); ok {
		return reply{body: putKeyCopiesResponse{[]putKeyCopy{}, &stale.Current}}, nil
	}
	applied := 0
	body := putKeyCopiesResponse{Epoch: nextOf(req.Epoch), Keys: convert(results, func(put access.PutCopy) putKeyCopy {
		out := putKeyCopy{ID: nextOf(put.ID), Result: put.Result}
		if put.Result == access.CopyApplied {
			applied++
		}
		if put.Err != nil {
			p := problem.Of(put.Err)
			out.Code, out.Detail = p.Type.Code, p.Detail
			if invalid, ok := errors.AsType[*access.InvalidError](put.Err); ok {
				out.Detail = invalid.Detail
			}
		}
		return out
	})}
	logOf(r).add("applied", applied)
	return reply{body: body}, err
}
