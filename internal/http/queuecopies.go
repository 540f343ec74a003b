package http

import (
	"encoding/hex"
	"encoding/json"
	"net/http"

	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
)

type queueCopyRequest struct {
	Name string `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
}

// getQueueCopy returns what a queue is set to on this cell, for gateways, which have it be set so on others.
func (s *Server) getQueueCopy(r *http.Request, req queueCopyRequest) (reply, error) {
	copied, err := s.cells.QueueCopy(r.Context(), req.Name)
	return reply{body: copied}, err
}

type putQueueCopyRequest struct {
	Name   string     `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	Policy bind.Value `json:"policy"`
	Push   bind.Value `json:"push"`
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

var errPushCopy = problem.InField(problem.ValidationFailed, "#/push", "must be a copy of a push, with secrets, or null")

type putQueueCopyResponse struct {
	Changed bool `json:"changed"`
}

// putQueueCopy has a queue be set here as on another cell, if this server can open the secrets of its push.
func (s *Server) putQueueCopy(r *http.Request, req putQueueCopyRequest) (reply, error) {
	copied := map[string]json.RawMessage{"policy": json.RawMessage(req.Policy), "push": json.RawMessage(req.Push)}
	for name, value := range copied {
		if len(value) == 0 {
			copied[name] = json.RawMessage("null")
		}
	}
	if string(copied["push"]) != "null" {
		var sealed sealedPush
		if json.Unmarshal(req.Push, &sealed) != nil {
			return reply{}, errPushCopy
		}
		headers, secrets, err := sealed.open()
		if err != nil {
			return reply{}, err
		}
		if err := s.pushes.CheckCopy(req.Name, headers, secrets); err != nil {
			return reply{}, err
		}
	}
	text, err := json.Marshal(copied)
	if err != nil {
		return reply{}, err
	}
	changed, err := s.cells.PutQueueCopy(r.Context(), req.Name, text)
	return reply{body: putQueueCopyResponse{changed}}, err
}

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
