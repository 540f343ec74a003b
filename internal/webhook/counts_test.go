package webhook_test

import (
	"context"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/webhook"
)

// A write of the counts that the end of the service meets must be neither left nor made again.
func TestDeliveriesAreCountedOnceWhenTheServiceEndsDuringTheWrite(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	h := setupOn(t, db, func(c *webhook.Config) { c.RecordInterval = 10 * time.Millisecond })
	h.putGitHub("github")
	body := `{"n":1}`
	for _, delivery := range []string{"a", "b", "c"} {
		if _, err := h.deliver("github", fromGitHub("secret", delivery, "application/json", body), body); err != nil {
			t.Fatal(err)
		}
	}
	held := pgtest.HoldWrites(t, db.URL, "agent.source_count", true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		_ = h.Run(ctx)
		close(ended)
	}()
	held.Await()
	cancel()
	held.Release()
	<-ended
	if n := pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select received::int from agent.source_count`); n != 3 {
		t.Errorf("%d deliveries are counted, want 3", n)
	}
}
