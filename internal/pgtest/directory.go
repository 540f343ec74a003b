package pgtest

import (
	"errors"
	"os"
	"path/filepath"
	"time"
)

// directory is a temporary directory for a server. Its lock goes with the process that made it, so
// that a later run can tell, and remove, those that a killed one has left.
type directory struct {
	path string
	lock *os.File
}

const (
	directoryPrefix = "queued-test-"
	lockName        = "lock"
	// newFor is how long a directory may be without a lock because it is only being made.
	newFor = time.Minute
)

// newDirectory makes a directory in base, and clears base of abandoned ones.
func newDirectory(base string) (*directory, error) {
	removeAbandoned(base)
	path, err := os.MkdirTemp(base, directoryPrefix)
	if err != nil {
		return nil, err
	}
	d := &directory{path: path}
	if d.lock, err = os.Create(filepath.Join(path, lockName)); err == nil { //nolint:gosec // In the directory just made.
		err = tryLock(d.lock)
	}
	if err == nil {
		// Run as root, the server is another user, who has to get through.
		err = os.Chmod(path, 0o711) //nolint:gosec // The data directory inside keeps its own, narrower mode.
	}
	if err != nil {
		return nil, errors.Join(err, d.remove())
	}
	return d, nil
}

func (d *directory) remove() error {
	err := os.RemoveAll(d.path)
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}

// removeAbandoned removes the directories that it can. It passes over the others, such as those of other users.
func removeAbandoned(base string) {
	paths, _ := filepath.Glob(filepath.Join(base, directoryPrefix+"*"))
	for _, path := range paths {
		if isAbandoned(path) {
			_ = os.RemoveAll(path)
		}
	}
}

func isAbandoned(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || time.Since(info.ModTime()) < newFor {
		return false
	}
	lock, err := os.Open(filepath.Join(path, lockName)) //nolint:gosec // Opened to be locked, never read.
	if err != nil {
		return errors.Is(err, os.ErrNotExist) // its removal was cut short
	}
	defer func() { _ = lock.Close() }()
	return tryLock(lock) == nil
}
