package http

import (
	"testing"

	"github.com/queued/queued/internal/queue"
)

func TestEveryTimeoutIsSetAndNoneCutsALongWaitOff(t *testing.T) {
	t.Parallel()
	s := New(Config{}).HTTPServer()
	if s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 {
		t.Errorf("something is unlimited: %+v", s)
	}
	if s.WriteTimeout <= s.ReadTimeout+queue.MaxWait {
		t.Errorf("answers must begin and end within %s of the header, and a claim may wait %s", s.WriteTimeout, queue.MaxWait)
	}
}
