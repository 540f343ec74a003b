package http

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
)

// ends receives a stream until it ends as a whole, and fails the test when it does not.
func (s *openStream) ends() {
	s.t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for s.read() {
		}
	}()
	select {
	case <-ended:
	case <-time.After(busyTimeout):
		s.close()
		<-ended
		s.t.Fatal("the stream did not end")
	}
}

func TestTokenIsForItsTopicsUntilItsKeyEnds(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	key := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}, Topics: []string{"order.*", "mail.*"}})
	h.key(key).call("POST", "/stream/tokens", `{"topics":["order.**"]}`).wantProblem(problem.Forbidden)
	made := h.key(key).call("POST", "/stream/tokens", `{"topics":["order.*"],"match":{"n":[{"numeric":[">",1]}]}}`).want(http.StatusCreated)
	token := decode[createStreamTokenResponse](made).Token

	s := h.open("/stream?token=" + token)
	s.frame(1)
	for _, call := range []struct{ topic, body string }{{"order.a", `{"n":1}`}, {"mail.a", `{"n":2}`}, {"order.b", `{"n":2}`}} {
		admin.call("POST", "/topics/"+call.topic, call.body).want(http.StatusCreated)
	}
	if e := s.next(1)[0]; e.name != "order.b" {
		t.Errorf("the first event is %+v", e)
	}
	for _, query := range []string{"&topic=order.a", "&match=" + url.QueryEscape(`{"n":[1]}`)} {
		h.try("GET", "/stream?token="+token+query, "").wantProblem(problem.InvalidParameter)
	}
	for _, path := range []string{"/log?token=" + token, "/queues?token=" + token, "/stream/?token=" + token, "/subscriptions/a/stream?token=" + token} {
		h.try("GET", path, "").wantProblem(problem.Unauthorized)
	}
	h.try("POST", "/stream/tokens?token="+token, `{"topics":["order.*"]}`).wantProblem(problem.Unauthorized)
	dot := strings.Index(token, ".")
	for _, wrong := range []string{token[:dot+1] + token[dot+21:] + token[dot+1:dot+21], token[:dot+1], token[:dot], token + "A", "qt_", "qt_e30.", strings.Replace(token, "qt_", "qt_A", 1), "x"} {
		h.try("GET", "/stream?token="+wrong, "").wantProblem(problem.Unauthorized)
	}
	grant, err := h.access.Authenticate(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	past, _, err := h.access.SignToken(grant, key, []string{"order.*"}, nil, -time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	h.try("GET", "/stream?token="+past, "").wantProblem(problem.KeyExpired)
	// Who has a key can sign by itself, but not for longer than a server would.
	long, _, err := h.access.SignToken(grant, key, []string{"order.*"}, nil, 2*access.MaxTokenTime)
	if err != nil {
		t.Fatal(err)
	}
	h.try("GET", "/stream?token="+long, "").wantProblem(problem.Unauthorized)

	if err := h.access.Revoke(t.Context(), key[3:11]); err != nil {
		t.Fatal(err)
	}
	s.ends()
	h.try("GET", "/stream?token="+token, "").wantProblem(problem.KeyRevoked)
	if log := h.log.String(); strings.Contains(log, token) || strings.Contains(log, key) || !strings.Contains(log, `"ended":"key_revoked"`) {
		t.Error("the log has a secret, or does not say why the stream ended")
	}
}

func TestTokenIsRefusedWhenItsKeyMayReadLess(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	key := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}})
	token := decode[createStreamTokenResponse](h.key(key).call("POST", "/stream/tokens", `{"topics":["a","b"]}`).want(http.StatusCreated)).Token
	s := h.open("/stream?token=" + token)
	s.frame(1)
	if _, err := h.access.Update(t.Context(), key[3:11], access.Change{Topics: &[]string{"a"}}, nil); err != nil {
		t.Fatal(err)
	}
	s.ends()
	h.try("GET", "/stream?token="+token, "").wantProblem(problem.Unauthorized)
}

func TestTokenOfAnOpenServerEndsWithTheFirstKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	token := decode[createStreamTokenResponse](h.call("POST", "/stream/tokens", `{"topics":["**"],"expires_in":"1h"}`).want(http.StatusCreated)).Token
	s, open := h.open("/stream?token="+token), h.open("/stream")
	s.frame(1)
	open.frame(1)
	h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	s.ends()
	open.ends()
	h.try("GET", "/stream?token="+token, "").wantProblem(problem.Unauthorized)
}

func TestStreamsEndWithTheirKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	admin.call("PUT", "/subscriptions/a.reader", `{"filters":[{"topics":["a"]}]}`).want(http.StatusCreated)
	for _, path := range []string{"/stream?topic=a", "/subscriptions/a.reader/stream"} {
		ends := map[string]func(id string) error{
			"revocation": func(id string) error { return h.access.Revoke(t.Context(), id) },
			"narrowing": func(id string) error {
				_, err := h.access.Update(t.Context(), id, access.Change{Topics: &[]string{"b"}}, nil)
				return err
			},
			"expiry": func(id string) error {
				_, err := h.access.Update(t.Context(), id, access.Change{ExpiresAt: new(new(time.Now().Add(-time.Minute)))}, nil)
				return err
			},
		}
		for name, end := range ends {
			key := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read, access.Claim}})
			s := h.environmentWith("Authorization", "Bearer "+key).open(path)
			s.frame(1)
			if err := end(key[3:11]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			s.ends()
		}
	}
}
