package embedded

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// userDataDir is where a user's data are kept, under the home directory.
const userDataDir = ".local/share"

// tieToParent makes the child get sig when the thread that starts it ends.
func tieToParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// isPostmasterOf reports whether a process is a PostgreSQL running on the cluster.
func isPostmasterOf(_ context.Context, pid int, cluster string) bool {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	if program, err := os.Readlink(filepath.Join(proc, "exe")); err == nil {
		return isPostgres(program) && worksIn(proc, cluster)
	}
	// In a container, root may not look into other users' processes, but may read how they were called.
	line, err := os.ReadFile(filepath.Join(proc, "cmdline")) //nolint:gosec // the kernel's file
	if err != nil {
		return false
	}
	args := strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00")
	at := slices.Index(args, "-D")
	return isPostgres(args[0]) && at >= 0 && at+1 < len(args) && args[at+1] == cluster
}

// remainsOf returns the processes of the cluster's PostgreSQL, whichever they are.
func remainsOf(cluster string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		proc := filepath.Join("/proc", entry.Name())
		if program, err := os.Readlink(filepath.Join(proc, "exe")); err == nil && isPostgres(program) && worksIn(proc, cluster) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isPostgres goes by the name, to which the kernel adds " (deleted)" after an upgrade.
func isPostgres(program string) bool {
	return strings.HasPrefix(filepath.Base(program), "postgres")
}

// worksIn reports whether the process has the cluster as its working directory, as every
// process of a PostgreSQL has.
func worksIn(proc, cluster string) bool {
	cwd, err := os.Stat(filepath.Join(proc, "cwd"))
	if err != nil {
		return false
	}
	dir, err := os.Stat(cluster)
	return err == nil && os.SameFile(cwd, dir)
}
