package http

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/push"
)

// endpointOf starts a server that answers with a status and a body.
func endpointOf(t *testing.T, status int, body string) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	return srv
}

// seenPush is a push in a response.
type seenPush struct {
	URL, Format, Status, Secret string
	Headers                     []string
	Timeout                     string
	MaxInFlight                 int `json:"max_in_flight"`
	Rate                        *struct {
		PerSecond float64 `json:"per_second"`
		Burst     int
	}
	FinalStatuses []int  `json:"final_statuses"`
	DisableAfter  string `json:"disable_after"`
	Secrets       []struct {
		LiveUntil *time.Time `json:"live_until"`
	}
	Version int
}

// provokePushes makes every call about pushes.
func provokePushes(h *environment) {
	to := endpointOf(h.t, http.StatusOK, "thanks")
	const path = "/queues/pushed/push"
	body := `{"url":"` + to.URL + `/hook"}`
	h.call("GET", path, "").wantProblem(problem.PushNotFound)
	h.call("DELETE", path, "").wantProblem(problem.PushNotFound)
	for _, verb := range []string{"secret", "test", "enable"} {
		h.call("POST", path+"/"+verb, "").wantProblem(problem.PushNotFound)
	}
	h.with("If-Match", `"1"`).call("PUT", path, body).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `*`).call("PUT", path, body).wantProblem(problem.PreconditionFailed)
	made := h.call("PUT", path, body).want(http.StatusCreated)
	if made.header.Get("Location") != path {
		h.t.Errorf("it is at %s", made.header.Get("Location"))
	}
	h.with("If-Match", made.header.Get("Etag")).call("PUT", path, `{"url":"`+to.URL+`","format":"event","headers":{"X-A":"b"},"timeout":"30s","max_in_flight":50,`+
		`"rate":{"per_second":100,"burst":20},"final_statuses":[400,422],"disable_after":"72h"}`).want(http.StatusOK)
	h.with("If-Match", made.header.Get("Etag")).call("PUT", path, body).wantProblem(problem.PreconditionFailed)
	h.call("GET", path, "").want(http.StatusOK)
	h.call("GET", path+"/deliveries", "").want(http.StatusOK)
	h.call("GET", "/queues/nothing/push/deliveries", "").wantProblem(problem.PushNotFound)
	h.call("POST", path+"/secret", `{"keep":"1h"}`).want(http.StatusOK)
	h.try("POST", path+"/secret", `{"keep":"1 hour"}`).wantProblem(problem.ValidationFailed)
	h.call("POST", path+"/test", "").want(http.StatusOK)
	h.call("POST", path+"/enable", "").want(http.StatusOK)
	h.with("If-Match", `"1"`).call("DELETE", path, "").wantProblem(problem.PreconditionFailed)
	h.call("DELETE", path, "").want(http.StatusNoContent)
}

func TestPushIsShownWithoutSecrets(t *testing.T) {
	t.Parallel()
	h := setup(t)
	to := endpointOf(t, http.StatusOK, "")
	made := decode[seenPush](h.call("PUT", "/queues/mail/push", `{"url":"`+to.URL+`","headers":{"authorization":"hunter2"}}`).want(http.StatusCreated))
	if !strings.HasPrefix(made.Secret, "whsec_") || made.Format != "standard" || made.Timeout != "15s" || made.MaxInFlight != 10 || made.DisableAfter != "120h0m0s" ||
		made.Status != "enabled" || made.Version != 1 || made.Rate != nil || len(made.FinalStatuses) != 0 {
		t.Errorf("got %+v", made)
	}
	shown := h.call("GET", "/queues/mail/push", "").want(http.StatusOK).body
	if strings.Contains(shown, "hunter2") || strings.Contains(shown, "whsec_") || !strings.Contains(shown, `"headers":["Authorization"]`) {
		t.Errorf("got %s", shown)
	}
	rotated := decode[seenPush](h.call("POST", "/queues/mail/push/secret", "").want(http.StatusOK))
	if rotated.Secret == made.Secret || len(rotated.Secrets) != 2 || rotated.Secrets[0].LiveUntil != nil || time.Until(*rotated.Secrets[1].LiveUntil) < 23*time.Hour {
		t.Errorf("got %+v", rotated)
	}
	if again := decode[seenPush](h.call("PUT", "/queues/mail/push", `{"url":"`+to.URL+`","headers":{}}`).want(http.StatusOK)); again.Secret != "" || len(again.Headers) != 0 {
		t.Errorf("got %+v", again)
	}
}

func TestBadPushesAreRefusedInTheirPlace(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for body, pointer := range map[string]string{
		`{}`:                          "#/url",
		`{"url":""}`:                  "#/url",
		`{"url":"ftp://a.b/"}`:        "#/url",
		`{"url":"https://10.0.0.1/"}`: "#/url",
		`{"url":"https://169.254.169.254/latest"}`:                                        "#/url",
		`{"url":"https://u:p@example.com/"}`:                                              "#/url",
		`{"url":"https://example.com","format":"xml"}`:                                    "#/format",
		`{"url":"https://example.com","timeout":"0s"}`:                                    "#/timeout",
		`{"url":"https://example.com","timeout":"6m"}`:                                    "#/timeout",
		`{"url":"https://example.com","max_in_flight":0}`:                                 "#/max_in_flight",
		`{"url":"https://example.com","max_in_flight":1001}`:                              "#/max_in_flight",
		`{"url":"https://example.com","rate":{"burst":1}}`:                                "#/rate/per_second",
		`{"url":"https://example.com","final_statuses":[200]}`:                            "#/final_statuses/0",
		`{"url":"https://example.com","disable_after":"1h"}`:                              "#/disable_after",
		`{"url":"https://example.com","headers":{"X-A":1}}`:                               "#/headers/X-A",
		`{"url":"https://example.com","headers":{"Webhook-Id":"1"}}`:                      "#/headers/Webhook-Id",
		`{"url":"https://example.com","headers":{"X-A":"a\r\nX-B: c"}}`:                   "#/headers/X-A",
		`{"url":"https://example.com","headers":[]}`:                                      "#/headers",
		`{"url":"https://example.com","secret":"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}`: "#/secret",
	} {
		p := h.try("PUT", "/queues/mail/push", body).wantProblem(problem.ValidationFailed)
		if len(p.Errors) == 0 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: got %+v, want %s", body, p.Errors, pointer)
		}
	}
	if p := h.try("PUT", "/queues/queued.publish/push", `{"url":"https://example.com"}`).wantProblem(problem.InvalidParameter); p.Errors[0].Pointer != "{name}" {
		t.Errorf("a reserved queue: got %+v", p.Errors)
	}
	h.call("GET", "/queues/mail/push", "").wantProblem(problem.PushNotFound)
}

func TestTestOfAPushSaysWhatCameOfIt(t *testing.T) {
	t.Parallel()
	h := setup(t)
	teapot, away := endpointOf(t, http.StatusTeapot, "short\nand stout"), endpointOf(t, http.StatusOK, "")
	h.call("PUT", "/queues/teapot/push", `{"url":"`+teapot.URL+`"}`).want(http.StatusCreated)
	h.call("PUT", "/queues/away/push", `{"url":"`+away.URL+`"}`).want(http.StatusCreated)
	away.Close()
	type result struct {
		Delivered      bool
		Status         int
		Excerpt, Error *string
	}
	if got := decode[result](h.call("POST", "/queues/teapot/push/test", "").want(http.StatusOK)); got.Delivered || got.Status != 418 || *got.Excerpt != "short and stout" || got.Error != nil {
		t.Errorf("got %+v", got)
	}
	if got := decode[result](h.call("POST", "/queues/away/push/test", "").want(http.StatusOK)); got.Delivered || got.Status != 0 || *got.Error != "the connection was refused" || got.Excerpt != nil {
		t.Errorf("got %+v", got)
	}
	for range 20 {
		if got := h.try("POST", "/queues/away/push/test", ""); got.status == http.StatusTooManyRequests {
			if got.wantProblem(problem.RateLimited); got.header.Get("Retry-After") != "1" {
				t.Errorf("retry after %q", got.header.Get("Retry-After"))
			}
			return
		}
	}
	t.Error("tests have no limit")
}

func TestWithoutASealingKeyNothingIsPut(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{push: func(cfg *push.Config) { cfg.Sealer = nil }})
	for method, path := range map[string]string{"PUT": "/queues/mail/push", "POST": "/queues/mail/push/secret"} {
		body := ""
		if method == "PUT" {
			body = `{"url":"https://example.com"}`
		}
		if p := h.call(method, path, body).wantProblem(problem.SealingUnavailable); !strings.Contains(p.Detail, "QUEUED_SECRET_KEY") {
			t.Errorf("%s: %s", path, p.Detail)
		}
	}
	h.call("POST", "/queues/mail/push/test", "").wantProblem(problem.SealingUnavailable)
	h.call("GET", "/queues/mail/push", "").wantProblem(problem.PushNotFound)
}

func TestPushesAreCounted(t *testing.T) {
	t.Parallel()
	h := setup(t)
	to := endpointOf(t, http.StatusOK, "")
	h.call("PUT", "/queues/mail/push", `{"url":"`+to.URL+`"}`).want(http.StatusCreated)
	h.call("POST", "/events?queue=mail", `{"a":1}`).want(http.StatusCreated)
	h.scrape(`queued_pushes_total{queue="mail",result="delivered"} 1`, `queued_push_status{queue="mail",status="enabled"} 1`)
	gone := endpointOf(t, http.StatusGone, "")
	h.call("PUT", "/queues/lost/push", `{"url":"`+gone.URL+`"}`).want(http.StatusCreated)
	h.call("POST", "/events?queue=lost", `{"a":1}`).want(http.StatusCreated)
	got := h.scrape(`queued_push_status{queue="lost",status="disabled"} 1`)
	if n := strings.Count(got, "\nqueued_push_status{"); n != 2 {
		t.Errorf("two pushes have %d statuses", n)
	}
}

func TestKeysThatExpireNextAreAmongTheMetrics(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	h.createKey(access.CreateParams{Name: "soon", Scopes: []access.Scope{access.Read}, ExpiresAt: &at})
	h.createKey(access.CreateParams{Name: "never", Scopes: []access.Scope{access.Read}})
	got := admin.scrape(`",name="soon"} `)
	if want := strconv.FormatFloat(float64(at.Unix()), 'g', -1, 64); !strings.Contains(got, `",name="soon"} `+want+"\n") || strings.Contains(got, `name="never"`) {
		t.Errorf("want one key that expires at %s in\n%s", want, got)
	}
}

// scrape returns the metrics, as soon as they have all of the texts.
func (c *client) scrape(texts ...string) string {
	c.t.Helper()
	deadline := time.After(busyTimeout)
	for {
		got := c.try("GET", "/metrics", "").body
		missing := slices.DeleteFunc(slices.Clone(texts), func(text string) bool { return strings.Contains(got, text) })
		if len(missing) == 0 {
			return got
		}
		select {
		case <-deadline:
			c.t.Fatalf("the metrics lack %q in\n%s", missing, got)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
