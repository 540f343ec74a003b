package faults

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

func tieToParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// children returns the processes whose parent is pid.
func children(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var found []int
	for _, stat := range stats {
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err != nil {
			continue
		}
		if state, parent := status(child); parent == pid && state != "Z" {
			found = append(found, child)
		}
	}
	return found
}

// isStopped reports whether a process is stopped or has ended.
func isStopped(pid int) bool {
	state, _ := status(pid)
	return state == "" || strings.ContainsAny(state, "TtZX")
}

// status returns the state of a process, as in proc_pid_stat(5), and its parent. The state of no process is empty.
func status(pid int) (state string, parent int) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0
	}
	// "pid (name) state ppid …", where the name may hold anything
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 2 {
		return "", 0
	}
	parent, _ = strconv.Atoi(fields[1])
	return fields[0], parent
}
