package workloads

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// tieToParent has the child stopped when this process is killed.
func tieToParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGTERM }

// enlarge makes a pipe hold more, if the system lets it.
func enlarge(pipe *os.File, size int) {
	if raw, err := pipe.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, size) })
	}
}
