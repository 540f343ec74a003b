//go:build !linux

package embedded

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// userDataDir is where a user's data are kept, under the home directory.
const userDataDir = "Library/Application Support"

// tieToParent does nothing: only Linux tells a child of its parent's death. What a killed
// process leaves running is stopped by the next start.
func tieToParent(*syscall.SysProcAttr, syscall.Signal) {}

// isPostmasterOf reports whether a process is a PostgreSQL running on the cluster.
func isPostmasterOf(ctx context.Context, pid int, cluster string) bool {
	out, err := exec.CommandContext(ctx, "ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return false
	}
	// Arguments are not separated reliably, but this program always gives the same ones first.
	program, args, found := strings.Cut(string(out), " -D ")
	return found && filepath.Base(program) == "postgres" && strings.HasPrefix(args, cluster+" ")
}

// remainsOf returns the processes of the cluster's PostgreSQL that can be told apart: none.
func remainsOf(string) []int { return nil }
