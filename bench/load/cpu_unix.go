//go:build unix

package load

import (
	"syscall"
	"time"
)

// OwnCPU is the CPU time of this process, user and system; zero where it is not known.
func OwnCPU() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
