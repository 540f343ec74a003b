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
