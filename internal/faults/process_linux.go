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
		text, err := os.ReadFile(stat) //nolint:gosec // the kernel's file
		if err != nil {
			continue
		}
		// "pid (name) state ppid …", where the name may hold anything
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) && fields[0] != "Z" {
			if child, err := strconv.Atoi(filepath.Base(filepath.Dir(stat))); err == nil {
				found = append(found, child)
			}
		}
	}
	return found
}
