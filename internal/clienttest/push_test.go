package clienttest

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/client"
)

func TestEventsOfAQueueArePushed(t *testing.T) {
	t.Parallel()
	got := make(chan string, 10)
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Webhook-Id") }))
	t.Cleanup(endpoint.Close)
	s := serve(t, "QUEUED_PUSH_ALLOW=127.0.0.1", "QUEUED_SECRET_KEY=a-key-that-seals-secrets")
	c := newClient(t, client.Config{URL: s.url})
	ctx := soon(t)
	if _, err := c.GetPush(ctx, "mail"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("%v", err)
	}
	settings := client.PushSettings{URL: endpoint.URL, Headers: map[string]string{"X-A": "b"}, Timeout: 5 * time.Second, FinalStatuses: []int{422}, Rate: &client.RateLimit{PerSecond: 1000}}
	push, err := c.CreatePush(ctx, "mail", settings)
	if err != nil || !strings.HasPrefix(push.Secret, "whsec_") || push.Timeout != 5*time.Second || push.DisableAfter != 120*time.Hour || push.Status != "enabled" {
		t.Fatalf("%+v, %v", push, err)
	}
	settings.MaxInFlight, settings.Headers = 20, nil
	if push, err = c.PutPush(ctx, "mail", settings, push.Version); err != nil || push.Secret != "" || push.MaxInFlight != 20 || len(push.Headers) != 1 {
		t.Errorf("%+v, %v", push, err)
	}
	if _, err := c.CreatePush(ctx, "mail", settings); !errors.Is(err, client.ErrPreconditionFailed) {
		t.Errorf("%v", err)
	}
	if _, err := c.PutPush(ctx, "mail", settings, 1); !errors.Is(err, client.ErrPreconditionFailed) {
		t.Errorf("%v", err)
	}
	if push, err = c.RotatePushSecret(ctx, "mail", time.Hour); err != nil || push.Secret == "" || len(push.Secrets) != 2 || push.Secrets[1].LiveUntil.IsZero() {
		t.Errorf("%+v, %v", push, err)
	}
	if result, err := c.TestPush(ctx, "mail"); err != nil || !result.Delivered || result.Status != http.StatusOK || !strings.HasPrefix(<-got, "test_") {
		t.Errorf("%+v, %v", result, err)
	}
	if _, err := c.Insert(ctx, client.NewEvent{Queue: "mail", Payload: struct{}{}}); err != nil {
		t.Error(err)
	}
	select {
	case id := <-got:
		if !strings.HasPrefix(id, "evt_") {
			t.Errorf("the event came as %s", id)
		}
	case <-ctx.Done():
		t.Fatal("the event was not pushed")
	}
	if push, err := c.EnablePush(ctx, "mail"); err != nil || push.Queue != "mail" {
		t.Errorf("%+v, %v", push, err)
	}
	if err := c.DeletePush(ctx, "mail", 0); err != nil {
		t.Error(err)
	}
}
