//go:build unix && !linux

package embedded

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// userDataDir is the directory for data in a user's home directory.
const userDataDir = "Library/Application Support"

// signalWithParent does nothing: only Linux has this. The next start stops a server that a killed process leaves running.
func signalWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// isPostmasterOf reports whether a process is a PostgreSQL running on the cluster.
func isPostmasterOf(ctx context.Context, pid int, cluster string) bool {
	out, err := exec.CommandContext(ctx, "ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return false
	}
	// ps does not separate arguments, but -D is always the first one.
	program, args, found := strings.Cut(string(out), " -D ")
	return found && filepath.Base(program) == "postgres" && strings.HasPrefix(args, cluster+" ")
}

// clusterProcesses returns nil: the processes of one cluster cannot be told from those of another.
func clusterProcesses(string) []int { return nil }
