//go:build unix

package pgtest

import (
	"os"
	"syscall"
)

const (
	memory     = "/dev/shm" // on Linux, a file system in memory
	memoryRoom = 2 << 30    // bytes that must be free there; make test-plain was seen to use 0.4 GB
)

// fastBase returns the directory for data that need not survive a crash: in memory if there is room, else that of temporary files. Creating
// a database of 10 MB takes 30 ms of CPU time in memory, and 110 ms on ext4.
func fastBase() string {
	var free syscall.Statfs_t
	if syscall.Statfs(memory, &free) != nil || free.Bavail*uint64(free.Bsize) < memoryRoom {
		return os.TempDir()
	}
	if probe, err := os.MkdirTemp(memory, directoryPrefix); err != nil || os.Remove(probe) != nil {
		return os.TempDir()
	}
	return memory
}

// tryLock locks a file until it is closed, or fails when it is locked.
func tryLock(file *os.File) error {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
