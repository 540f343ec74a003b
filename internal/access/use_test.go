package access

import (
	"context"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
)

// Refusals that are being written when the service ends are neither lost nor written twice.
func TestRefusalsAreAuditedOnceWhenTheServiceEndsDuringTheWrite(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db, func(c *Config) { c.RecordInterval = 10 * time.Millisecond })
	s.Refuse(&Grant{actor: "key:k"}, "expired")
	held := pgtest.HoldWrites(t, db.URL, "agent.audit", false)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		_ = s.Run(ctx)
		close(ended)
	}()
	held.Await()
	cancel()
	held.Release()
	<-ended
	if n := pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select count(*)::int from agent.audit where action = 'access.refuse'`); n != 1 {
		t.Errorf("the audit has %d entries, want 1", n)
	}
}
