package embedded

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// userDataDir is the directory for data in a user's home directory.
const userDataDir = ".local/share"

// signalWithParent has the kernel send sig to the child when the thread that started it ends.
func signalWithParent(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// isPostmasterOf reports whether a process is a PostgreSQL running on the cluster.
func isPostmasterOf(_ context.Context, pid int, cluster string) bool {
	// In a container, root may not look into other users' processes, but may read their command lines.
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	args := strings.Split(string(bytes.TrimRight(line, "\x00")), "\x00")
	at := slices.Index(args, "-D")
	return isPostgres(args[0]) && at >= 0 && at+1 < len(args) && args[at+1] == cluster
}

// clusterProcesses returns the ids of the PostgreSQL processes of a cluster.
func clusterProcesses(cluster string) []int {
	var pids []int
	for _, proc := range glob("/proc/[1-9]*") {
		program, err := os.Readlink(filepath.Join(proc, "exe"))
		if err == nil && isPostgres(program) && worksIn(proc, cluster) {
			if pid, err := strconv.Atoi(filepath.Base(proc)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// isPostgres compares the prefix only: the kernel appends " (deleted)" to the path after an upgrade.
func isPostgres(program string) bool {
	return strings.HasPrefix(filepath.Base(program), "postgres")
}

// worksIn reports whether the cluster is the process's working directory, as it is for every process of a PostgreSQL server.
func worksIn(proc, cluster string) bool {
	cwd, err := os.Stat(filepath.Join(proc, "cwd"))
	if err != nil {
		return false
	}
	dir, err := os.Stat(cluster)
	return err == nil && os.SameFile(cwd, dir)
}
