package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// ErrInUse is what Start returns when another process runs a server in the data directory.
var ErrInUse = errors.New("the data directory is in use")

// lock is a file lock. The kernel lets it go with the process that holds it, however that ends.
type lock struct{ file *os.File }

// errLocked: some other open file holds the lock.
var errLocked = errors.New("locked")

// acquire locks an open file, without waiting.
func acquire(file *os.File) (*lock, error) {
	err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errLocked
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return &lock{file: file}, nil
}

func (l *lock) release() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

// lock makes the directory this process's own, or fails with ErrInUse. The file stays when the
// lock is released: removing it would let two processes hold locks on two files of one name.
func (d dataDir) lock() (*lock, error) {
	file, err := d.open(d.lockFile(), os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("lock the data directory: %w: run queued as the directory's owner, or choose another QUEUED_DATA_DIR", err)
	}
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	held, err := acquire(file)
	if errors.Is(err, errLocked) {
		owner := "another process"
		if text, err := io.ReadAll(io.LimitReader(file, 32)); err == nil && len(text) > 0 {
			owner = "process " + strings.TrimSpace(string(text))
		}
		err = fmt.Errorf("%w: %s belongs to %s, which runs a server in it: stop that process, or choose another QUEUED_DATA_DIR", ErrInUse, d, owner)
		return nil, errors.Join(err, file.Close())
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if err := errors.Join(file.Truncate(0), writePID(file)); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the data directory: %w", err), file.Close())
	}
	return held, nil
}

func writePID(file *os.File) error {
	_, err := fmt.Fprintf(file, "%d\n", os.Getpid())
	return err
}
