package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/seal"
	"github.com/queued/queued/internal/topic"
	"github.com/queued/queued/internal/webhook"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience is the time limit of statements and deliveries on a busy machine.
const patience = time.Minute

// env is a service of sources on its own database, with the queues and the log that its events go to.
type env struct {
	*webhook.Service
	t      *testing.T
	db     *pgtest.DB
	queue  *queue.Service
	topics *topic.Service
}

// setup returns an env on a database of its own.
func setup(t *testing.T) *env {
	t.Helper()
	return setupOn(t, pgtest.New(t))
}

// setupOn returns an env on a database, as another process has it. change, if given, modifies the configuration.
func setupOn(t *testing.T, db *pgtest.DB, change ...func(*webhook.Config)) *env {
	t.Helper()
	connections, err := pg.Open(t.Context(), pg.Config{URL: db.ServiceURL})
	if err != nil {
		t.Fatal(err)
	}
	closing := func(end func(context.Context) error) {
		t.Cleanup(func() {
			if err := end(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	h := &env{t: t, db: db}
	if h.queue, err = queue.Open(t.Context(), queue.Config{Database: connections, SweepInterval: -1, QueryTimeout: patience, LockTimeout: patience}); err != nil {
		t.Fatal(err)
	}
	closing(h.queue.Close)
	if h.topics, err = topic.Open(t.Context(), topic.Config{Database: connections, Queue: h.queue, QueryTimeout: patience, IsQuiet: true}); err != nil {
		t.Fatal(err)
	}
	closing(h.topics.Close)
	sealer, err := seal.NewSealer("a key of more than sixteen bytes")
	if err != nil {
		t.Fatal(err)
	}
	cfg := webhook.Config{Database: connections, Queue: h.queue, Topics: h.topics, Sealer: sealer, QueryTimeout: patience, TimeLimit: patience}
	for _, set := range change {
		set(&cfg)
	}
	if h.Service, err = webhook.Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	closing(h.Close)
	return h
}

// put puts a source.
func (h *env) put(name string, p webhook.Params) webhook.Source {
	h.t.Helper()
	put, _, err := h.Put(h.t.Context(), name, p, queue.Precondition{})
	if err != nil {
		h.t.Fatal(err)
	}
	return put
}

// deliver makes a delivery to a source as HTTP does: it is admitted, verified by its header, and received.
func (h *env) deliver(name string, header http.Header, body string) (webhook.Result, error) {
	h.t.Helper()
	admission, err := h.Admit(h.t.Context(), name, "request-1")
	if err != nil {
		return webhook.Result{}, err
	}
	if _, err := admission.VerifyHeader(header); err != nil {
		return webhook.Result{}, err
	}
	return admission.Receive(h.t.Context(), webhook.Delivery{Header: header, Body: []byte(body)})
}

// claim claims the only event of a queue.
func (h *env) claim(name string) queue.Event {
	h.t.Helper()
	events, err := h.queue.Claim(h.t.Context(), queue.ClaimParams{Queue: name, Limit: 10})
	if err != nil || len(events) != 1 {
		h.t.Fatalf("got %d events, %v, want one", len(events), err)
	}
	return events[0]
}

// fromGitHub returns the header of a delivery of GitHub, signed with a secret.
func fromGitHub(secret, delivery, contentType, body string) http.Header {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(body))
	return http.Header{
		"X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}, "X-Github-Event": {"push"}, "X-Github-Delivery": {delivery}, "Content-Type": {contentType},
	}
}

// isSame reports whether two texts are the same JSON.
func isSame(t *testing.T, a, b []byte) bool {
	t.Helper()
	var values [2]any
	for i, text := range [][]byte{a, b} {
		if err := json.Unmarshal(text, &values[i]); err != nil {
			t.Fatal(err)
		}
	}
	first, _ := json.Marshal(values[0])
	second, _ := json.Marshal(values[1])
	return string(first) == string(second)
}
