package http

import (
	"testing"

	"github.com/queued/queued/internal/queue"
)

func TestEveryTimeoutIsSetAndNoneCutsALongWaitOff(t *testing.T) {
	t.Parallel()
	s := New(Config{}).HTTPServer()
	if s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 {
		t.Errorf("a limit is missing: %+v", s)
	}
	if s.WriteTimeout <= s.ReadTimeout+queue.MaxWait {
		t.Errorf("a response must end within %s of the header, but a claim may wait %s", s.WriteTimeout, queue.MaxWait)
	}
}

func TestEveryPoolLimitsWaitsForLocks(t *testing.T) {
	t.Parallel()
	h := setup(t)
	pools := h.database.Pools()
	if len(pools) != 15 { // six of the queue, three each of schedules and topics, and three that services share
		t.Errorf("%d pools, expected those of all services", len(pools))
	}
	for _, pool := range pools {
		var limit string
		if err := pool.QueryRow(t.Context(), `select current_setting('lock_timeout')`).Scan(&limit); err != nil {
			t.Fatal(err)
		}
		if limit == "0" {
			t.Errorf("a pool of %d connections waits for locks without a limit", pool.Config().MaxConns)
		}
	}
}
