package http

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/http/problem"
)

type listQueueCopiesRequest struct {
	following
	Queue string `query:"queue" validate:"queue" log:"queue" restrict:"queue"`
}

type listQueueCopiesResponse struct {
	Queues []json.RawMessage `json:"queues"`
	followed
}

// listQueueCopies returns what queues are set to on this cell, for gateways, which have them be set so on others.
func (s *Server) listQueueCopies(r *http.Request, req listQueueCopiesRequest) (reply, error) {
	page, err := s.cells.Settings(r.Context(), cell.SettingsParams{AfterVersion: req.AfterVersion, Epoch: req.Epoch, Limit: req.Limit, Cursor: req.Cursor, Queue: req.Queue})
	return reply{body: listQueueCopiesResponse{page.Copies, followedOf(page.Changes)}}, err
}

type putQueueCopiesRequest struct {
	Queues   []json.RawMessage `json:"queues" validate:"required,max=1000" restrict:"-"`
	Epoch    string            `json:"epoch" validate:"min=1,max=64"`  // not given: they are put by hand
	Before   string            `json:"before" validate:"min=1,max=64"` // that of the copies that are here
	Complete bool              `json:"complete"`
}

// A putQueueCopy is what became of one copy.
type putQueueCopy struct {
	Queue  *string `json:"queue"` // null: it had none
	Result string  `json:"result"`
	Code   string  `json:"code,omitzero"` // why it was refused
	Detail string  `json:"detail,omitzero"`
}

type putQueueCopiesResponse struct {
	Queues []putQueueCopy `json:"queues"`
	Epoch  *string        `json:"epoch"` // that copies are taken of; null: these were put by hand
}

// putQueueCopies takes copies of the settings of queues at home: of those with a push, whose secrets this server can open.
func (s *Server) putQueueCopies(r *http.Request, req putQueueCopiesRequest) (reply, error) {
	if err := checkCopies("#/queues", len(req.Queues), req.Epoch, req.Complete); err != nil {
		return reply{}, err
	}
	body := putQueueCopiesResponse{Queues: make([]putQueueCopy, len(req.Queues)), Epoch: nextOf(req.Epoch)}
	var taken []int
	put := cell.PutSettingsParams{Epoch: req.Epoch, Before: req.Before, IsComplete: req.Complete}
	for i, copied := range req.Queues {
		queue, err := s.checkQueueCopy(copied)
		if err != nil {
			p := problem.Of(err)
			body.Queues[i] = putQueueCopy{nextOf(queue), access.CopyRefused, p.Type.Code, p.Detail}
			put.IsComplete = false // as what the cell has of it stays
			continue
		}
		taken = append(taken, i)
		put.Copies = append(put.Copies, copied)
	}
	results, err := s.cells.PutSettings(r.Context(), put)
	if stale, ok := errors.AsType[*access.StaleCopiesError](err); ok {
		return reply{body: putQueueCopiesResponse{[]putQueueCopy{}, &stale.Current}}, nil
	}
	applied := 0
	for i, one := range results {
		out := putQueueCopy{Queue: nextOf(one.Queue), Result: one.Result, Detail: one.Reason}
		switch one.Result {
		case access.CopyRefused:
			out.Code = problem.ValidationFailed.Code
		case access.CopyApplied:
			applied++
		}
		body.Queues[taken[i]] = out
	}
	logOf(r).add("applied", applied)
	return reply{body: body}, err
}

// checkQueueCopy returns the queue of a copy, empty if it says none. It fails with a problem if the secrets of its push cannot be opened here.
func (s *Server) checkQueueCopy(copied json.RawMessage) (queue string, err error) {
	var members struct {
		Queue string      `json:"queue"`
		Push  *sealedPush `json:"push"`
	}
	if json.Unmarshal(copied, &members) != nil {
		return "", errPushCopy
	}
	if members.Push == nil {
		return members.Queue, nil
	}
	headers, secrets, err := members.Push.open()
	if err == nil {
		err = s.pushes.CheckCopy(members.Queue, headers, secrets)
	}
	return members.Queue, err
}

// A sealedPush is what has to be opened of a copy of a push, in hexadecimal digits.
type sealedPush struct {
	Headers *string `json:"headers"`
	Secrets []struct {
		Secret string `json:"secret"`
	} `json:"secrets"`
}

// open returns the sealed texts. It fails with a problem.
func (p *sealedPush) open() (headers []byte, secrets [][]byte, err error) {
	if p.Headers != nil {
		if headers, err = hex.DecodeString(*p.Headers); err != nil {
			return nil, nil, errPushCopy
		}
	}
	for _, one := range p.Secrets {
		secret, err := hex.DecodeString(one.Secret)
		if err != nil {
			return nil, nil, errPushCopy
		}
		secrets = append(secrets, secret)
	}
	if len(secrets) == 0 {
		return nil, nil, errPushCopy
	}
	return headers, secrets, nil
}

var errPushCopy = problem.InField(problem.ValidationFailed, "#/queues", "must be copies of settings of queues, of which a push has secrets in hexadecimal digits")

type leaveKeysRequest struct {
	Name string   `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	Keys []string `json:"keys" validate:"required,min=1,max=1000,dive,min=1,max=255"`
}

type leaveKeysResponse struct {
	Events []*int64 `json:"events"` // in the order of the keys; null: none was inserted here under the key
}

// leaveKeys leaves idempotency keys to the cell that their queue is placed on now, for gateways, before they insert under them there.
func (s *Server) leaveKeys(r *http.Request, req leaveKeysRequest) (reply, error) {
	events, err := s.svc.LeaveKeys(r.Context(), req.Name, req.Keys)
	return reply{body: leaveKeysResponse{events}}, err
}
