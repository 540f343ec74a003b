package clienttest

import (
	"errors"
	"testing"
	"time"

	"github.com/queued/queued/client"
)

func TestSourcesArePutTriedAndDeleted(t *testing.T) {
	t.Parallel()
	s := serve(t, "QUEUED_SECRET_KEY=a-key-that-only-tests-have", "QUEUED_API_KEY=secret-of-the-tests")
	c := newClient(t, client.Config{URL: s.url, Key: "secret-of-the-tests"})
	ctx := soon(t)
	put, err := c.CreateSource(ctx, "shop", client.SourceSettings{
		Kind: "token", Queue: "orders", Secrets: []string{"a secret"}, Key: "{/id}", KeepRaw: time.Hour, DedupFor: 48 * time.Hour,
		Headers: []string{"X-Shop"}, RateLimit: &client.RateLimit{PerSecond: 10},
	})
	if err != nil || put.Version != 1 || put.SecretCount != 1 || put.KeepRaw != time.Hour || put.DedupFor != 48*time.Hour || put.RateLimit.Burst != 10 {
		t.Fatalf("%+v, %v", put, err)
	}
	if got, err := c.GetSource(ctx, "shop"); err != nil || got.Queue != "orders" || got.Tolerance != 5*time.Minute {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := c.CreateSource(ctx, "shop", client.SourceSettings{Kind: "token", Queue: "orders"}); !errors.Is(err, client.ErrPreconditionFailed) {
		t.Errorf("%v", err)
	}
	if _, err := c.PutSource(ctx, "shop", client.SourceSettings{Kind: "token", Queue: "orders"}, 7); !errors.Is(err, client.ErrPreconditionFailed) {
		t.Errorf("%v", err)
	}
	tried, err := c.TestSource(ctx, "shop", client.TrialDelivery{Headers: map[string]string{"Authorization": "Bearer a secret"}, Body: `{"id":7}`})
	if err != nil || !tried.Verified || tried.Mapped == nil || tried.Mapped.Key != "7" {
		t.Errorf("%+v, %v", tried, err)
	}
	if tried, err := c.TestSource(ctx, "shop", client.TrialDelivery{Body: `{"id":7}`}); err != nil || tried.Verified || tried.Rejected == nil {
		t.Errorf("%+v, %v", tried, err)
	}
	if n := count(t, c.ListSources(ctx)); n != 1 {
		t.Errorf("%d sources, want 1", n)
	}
	if err := c.DeleteSource(ctx, "shop", 1); err != nil {
		t.Error(err)
	}
	if _, err := c.GetSource(ctx, "shop"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("%v", err)
	}
}
