package clienttest

import (
	"errors"
	"testing"
	"time"

	"github.com/queued/queued/client"
)

func TestKeysAreMadeUsedAndRevoked(t *testing.T) {
	t.Parallel()
	s := serve(t, "QUEUED_API_KEY=secret-of-the-tests")
	admin := newClient(t, client.Config{URL: s.url, Key: "secret-of-the-tests"})
	ctx := soon(t)
	issued, err := admin.CreateKey(ctx, client.NewKey{Name: "shop", Scopes: []string{client.ScopePublish}, Queues: []string{"orders.*"}, RateLimit: &client.RateLimit{PerSecond: 1000}})
	if err != nil || issued.Key == "" || issued.Status != "active" || issued.RateLimit == nil {
		t.Fatalf("%+v, %v", issued, err)
	}
	shop := newClient(t, client.Config{URL: s.url, Key: issued.Key})
	if _, err := shop.Insert(ctx, client.NewEvent{Queue: "orders.new", Payload: struct{}{}}); err != nil {
		t.Error(err)
	}
	_, err = shop.Claim(ctx, client.ClaimParams{Queue: "orders.new"})
	if e, ok := errors.AsType[*client.Error](err); !ok || !errors.Is(err, client.ErrForbidden) || e.Required == nil || e.Required.Scope != client.ScopeClaim {
		t.Errorf("%v", err)
	}
	if own, err := shop.GetOwnKey(ctx); err != nil || own.ID == nil || *own.ID != issued.ID || own.Queues[0] != "orders.*" {
		t.Errorf("%+v, %v", own, err)
	}
	changed, err := admin.PatchKey(ctx, issued.ID, issued.Version, map[string]any{"scopes": []string{client.ScopePublish, client.ScopeClaim}})
	if err != nil || len(changed.Scopes) != 2 {
		t.Errorf("%+v, %v", changed, err)
	}
	if k, err := admin.GetKey(ctx, issued.ID); err != nil || k.Version != changed.Version {
		t.Errorf("%+v, %v", k, err)
	}
	rotated, err := admin.RotateKey(ctx, issued.ID, -time.Second)
	if err != nil || rotated.Key == issued.Key {
		t.Errorf("%+v, %v", rotated, err)
	}
	reader, err := admin.CreateKey(ctx, client.NewKey{Name: "page", Scopes: []string{client.ScopeRead}})
	if err != nil {
		t.Fatal(err)
	}
	token, err := newClient(t, client.Config{URL: s.url, Key: reader.Key}).CreateStreamToken(ctx, client.LogFilter{Topics: []string{"order.*"}}, time.Minute)
	if err != nil || token.Token == "" || token.ExpiresAt.IsZero() {
		t.Errorf("%+v, %v", token, err)
	}
	if n := count(t, admin.ListKeys(ctx)); n != 2 {
		t.Errorf("%d keys, want 2", n)
	}
	if err := admin.RevokeKey(ctx, issued.ID); err != nil {
		t.Error(err)
	}
	if _, err := newClient(t, client.Config{URL: s.url, Key: rotated.Key}).GetOwnKey(ctx); !errors.Is(err, client.ErrUnauthorized) {
		t.Errorf("%v", err)
	}
	if n := count(t, admin.ListAudit(ctx, client.AuditFilter{Action: "key.*", Target: issued.ID})); n < 4 {
		t.Errorf("%d actions are audited, want at least 4", n)
	}
}
