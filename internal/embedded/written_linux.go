package embedded

import (
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// waitUntilWritten returns when the files below path that were written before can be run. Linux does not run a file that is open for writing, and a child that another
// goroutine starts meanwhile has it open until it runs its own program. On a busy machine that takes some milliseconds longer than the lock that forks have in package syscall.
func waitUntilWritten(path string) {
	_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			waitForWriters(path)
		}
		return nil // what cannot be read cannot be run either, which says why
	})
}

// writersLimit bounds waitForWriters: somebody else may have the file open.
const writersLimit = 10 * time.Second

// waitForWriters returns when nobody has a file open for writing: only then is there a lease for readers. Where there are no leases, it returns at once.
func waitForWriters(path string) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()                                                     // ends the lease
	for began := time.Now(); time.Since(began) < writersLimit; time.Sleep(time.Millisecond) { //nolint:forbidigo // nothing tells of the end of a writer
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK); !errors.Is(err, unix.EAGAIN) {
			return
		}
	}
}
