//go:build unix

package crowd

import "syscall"

// OpenFiles returns how many files the process may open, connections included, a million at most.
func OpenFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return maxFiles
	}
	return int(min(limit.Cur, maxFiles))
}
