package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// stopOrphans ends the PostgreSQL that a killed process has left running on the directory, which
// this process has locked. It returns the number that remains in postmaster.pid, 0 when
// the last server has ended orderly.
func (d dataDir) stopOrphans(ctx context.Context, log zerolog.Logger) (stale int, err error) {
	if pid := d.postmasterPID(); pid > 1 && isPostmasterOf(ctx, pid, d.pg()) {
		log.Warn().Int("pid", pid).Msg("stopping a PostgreSQL that was left running on this data directory")
		if err := d.stopOrphan(ctx, pid); err != nil {
			return 0, err
		}
	}
	// A postmaster that was itself killed may leave sessions behind that are still busy.
	for _, pid := range remainsOf(d.pg()) {
		log.Warn().Int("pid", pid).Msg("stopping a PostgreSQL session that was left running on this data directory")
		if err := kill(pid, syscall.SIGQUIT); err != nil {
			return 0, err
		}
	}
	return d.postmasterPID(), nil
}

// stopOrphan stops a postmaster that is no child of this process.
func (d dataDir) stopOrphan(ctx context.Context, pid int) error {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		if err := kill(pid, sig); err != nil {
			return err
		}
		for deadline := time.Now().Add(quitLimit); time.Now().Before(deadline); {
			if !isPostmasterOf(ctx, pid, d.pg()) {
				return nil
			}
			if err := pause(ctx, 20*time.Millisecond); err != nil {
				return fmt.Errorf("waiting for PostgreSQL (process %d), left running on %s, to end: %w", pid, d, err)
			}
		}
	}
	return fmt.Errorf("PostgreSQL (process %d) was left running on %s and does not end when told to: kill it and start again", pid, d)
}

func kill(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to PostgreSQL (process %d), which was left running: %w", sig, pid, err)
	}
	return nil
}

// postmasterPID returns the number in postmaster.pid, 0 when there is none.
func (d dataDir) postmasterPID() int {
	pid, err := strconv.Atoi(d.postmasterLine(1))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

// saysReady reports whether the server has written that it takes connections. It may have been
// another server.
func (d dataDir) saysReady() bool { return d.postmasterLine(8) == "ready" }

// postmasterLine returns a line of postmaster.pid, counted from 1, "" when it is not there.
func (d dataDir) postmasterLine(number int) string {
	text, _ := os.ReadFile(filepath.Join(d.pg(), "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	if number > len(lines) {
		return ""
	}
	return strings.TrimSpace(lines[number-1])
}
