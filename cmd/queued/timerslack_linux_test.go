package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/timerslack"
)

// The process that serves is the one that was started, and its wake-ups may be put off.
func TestServerHasATimerSlack(t *testing.T) {
	pgtest.SameInEachFlavour(t)
	t.Parallel()
	p := serve(t, []string{"serve"}, "QUEUED_DATABASE_URL="+pgtest.New(t).URL)
	got, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", p.cmd.Process.Pid))
	if errors.Is(err, os.ErrPermission) {
		t.Skip("only root reads that of another process")
	}
	if want := fmt.Sprint(timerslack.Slack.Nanoseconds()); err != nil || strings.TrimSpace(string(got)) != want {
		t.Errorf("the slack is %q, %v; want %s", got, err, want)
	}
}
