package webhook_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/webhook"
)

const (
	secret = "It's a Secret to Everybody"
	form   = "application/x-www-form-urlencoded"
)

func TestDeliveryBecomesOneEventHoweverOftenItComes(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.put("github", webhook.Params{Kind: webhook.GitHub, Queue: "deploys", Secrets: []string{secret}})
	const body = `{"ref":"refs/heads/main"}`
	header := fromGitHub(secret, "d1", "application/json", body)
	first, err := h.deliver("github", header, body)
	if err != nil || len(first.IDs) != 1 || first.Deduplicated {
		t.Fatalf("got %+v, %v", first, err)
	}
	again, err := h.deliver("github", header, body)
	if err != nil || len(again.IDs) != 1 || again.IDs[0] != first.IDs[0] || !again.Deduplicated {
		t.Errorf("the repetition: %+v, %v, want the event %d", again, err, first.IDs[0])
	}
	e := h.claim("deploys")
	if e.Type != "github.push" || e.Source != "github" || !isSame(t, e.Payload, []byte(body)) || !isSame(t, e.Meta, []byte(`{"verified_source":"github"}`)) {
		t.Errorf("got %+v", e)
	}
}

func TestFormOfGitHubBecomesTheEventThatItsJSONIs(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.put("github", webhook.Params{Kind: webhook.GitHub, Queue: "deploys", Secrets: []string{secret}})
	const payload = `{"ref":"refs/heads/a+b","head_commit":{"message":"ü & 100 %"}}`
	body := "payload=" + url.QueryEscape(payload)
	if _, err := h.deliver("github", fromGitHub(secret, "d1", form, payload), body); !isRejected(err, webhook.NoMatch) {
		t.Errorf("signed without its encoding: %v, want the signature to be that of the bytes", err)
	}
	if got, err := h.deliver("github", fromGitHub(secret, "d1", form, body), body); err != nil || got.Deduplicated {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got, err := h.deliver("github", fromGitHub(secret, "d1", "application/json", payload), payload); err != nil || !got.Deduplicated {
		t.Errorf("the same delivery in JSON: %+v, %v, want it to be the one before", got, err)
	}
	if e := h.claim("deploys"); e.Type != "github.push" || !isSame(t, e.Payload, []byte(payload)) {
		t.Errorf("got %s of the type %s, want %s", e.Payload, e.Type, payload)
	}
	for i, body := range []string{"", "a=1", "payload=hello", body + "&" + body} { // what its sender has proven is taken as it is
		if got, err := h.deliver("github", fromGitHub(secret, fmt.Sprint("form-", i), form, body), body); err != nil || got.Deduplicated {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
}

// isRejected reports whether an error is that of a delivery which was rejected with a code.
func isRejected(err error, code string) bool {
	rejection, ok := errors.AsType[*webhook.RejectedError](err)
	return ok && rejection.Code == code
}

func TestDeliveryOfASourceWithATopicIsPublishedOnce(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.put("ci", webhook.Params{Kind: webhook.Token, Topic: "ci.done", Header: "X-Token", Secrets: []string{"s1", "s2"}, Key: "{/id}"})
	for i, token := range []string{"s1", "s2"} {
		got, err := h.deliver("ci", http.Header{"X-Token": {token}}, `{"id":7}`)
		if err != nil || len(got.Positions) != 1 || got.Deduplicated != (i == 1) {
			t.Fatalf("with %s: %+v, %v", token, got, err)
		}
		if e, err := h.topics.Get(t.Context(), got.Positions[0]); err != nil || e.Topic != "ci.done" || !isSame(t, e.Event, []byte(`{"id":7}`)) {
			t.Errorf("got %+v, %v", e, err)
		}
	}
	if _, err := h.deliver("ci", http.Header{"X-Token": {"s3"}}, `{"id":8}`); !isRejected(err, webhook.NoMatch) {
		t.Errorf("with another token: %v", err)
	}
}

func TestChangeOfASourceHoldsAtOnce(t *testing.T) {
	t.Parallel()
	h := setup(t)
	if _, err := h.deliver("ci", nil, `{}`); !errors.Is(err, webhook.ErrNotFound) {
		t.Errorf("of no source: %v", err)
	}
	params := webhook.Params{Kind: webhook.Token, Queue: "a", Header: "X-Token", Secrets: []string{"s1"}}
	put := h.put("ci", params)
	header := http.Header{"X-Token": {"s1"}}
	if _, err := h.deliver("ci", header, `{}`); err != nil {
		t.Error(err)
	}
	params.Secrets, params.Paused = nil, true
	if _, _, err := h.Put(t.Context(), "ci", params, queue.Precondition{Versions: []int64{put.Version + 7}}); !errors.Is(err, webhook.ErrStale) {
		t.Errorf("for another version: %v", err)
	}
	if _, _, err := h.Put(t.Context(), "ci", params, queue.Precondition{Absent: true}); !errors.Is(err, webhook.ErrStale) {
		t.Errorf("for none: %v", err)
	}
	if changed := h.put("ci", params); changed.SecretCount != 1 || changed.Version == put.Version {
		t.Errorf("got %+v, want the secret to stay", changed)
	}
	if _, err := h.deliver("ci", header, `{}`); !errors.Is(err, webhook.ErrPaused) {
		t.Errorf("of a paused source: %v", err)
	}
	if err := h.Delete(t.Context(), "ci", nil); err != nil {
		t.Error(err)
	}
	if _, err := h.deliver("ci", header, `{}`); !errors.Is(err, webhook.ErrNotFound) {
		t.Errorf("of a deleted source: %v", err)
	}
}

// Another process that has not heard of the source looks it up.
func TestSourceIsKnownToOtherProcesses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	h, other := setupOn(t, db), setupOn(t, db)
	h.put("ci", webhook.Params{Kind: webhook.Token, Queue: "a", Header: "X-Token", Secrets: []string{"s1"}})
	if _, err := other.deliver("ci", http.Header{"X-Token": {"s1"}}, `{}`); err != nil {
		t.Error(err)
	}
	unsealed := setupOn(t, db, func(c *webhook.Config) { c.Sealer = nil })
	if _, err := unsealed.deliver("ci", http.Header{"X-Token": {"s1"}}, `{}`); !errors.Is(err, webhook.ErrSealing) {
		t.Errorf("without a key: %v", err)
	}
}

func TestTrialOfADeliveryStoresNothing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.put("github", webhook.Params{Kind: webhook.GitHub, Queue: "deploys", Secrets: []string{secret}})
	const body = `{"n":1}`
	trial, err := h.Test(t.Context(), "github", webhook.Delivery{Header: fromGitHub(secret, "d1", "application/json", body), Body: []byte(body)}, time.Now())
	if err != nil || trial.Refusal != nil || trial.Err != nil || len(trial.Mapped) != 1 || trial.Mapped[0].Key != "d1" {
		t.Errorf("got %+v, %v", trial, err)
	}
	trial, err = h.Test(t.Context(), "github", webhook.Delivery{Header: fromGitHub("another", "d1", "application/json", body), Body: []byte(body)}, time.Now())
	if err != nil || trial.Refusal == nil || trial.Refusal.Code != webhook.NoMatch {
		t.Errorf("with another secret: %+v, %v", trial, err)
	}
	if n := pgtest.Query[int](t, pgtest.Connect(t, h.db.URL), `select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events were stored", n)
	}
}
