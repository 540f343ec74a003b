//go:build unix

package porttest

import (
	"os"
	"syscall"
	"testing"
)

// hold locks a file until the test ends, or this process does, and reports whether nobody else has locked it.
func hold(tb testing.TB, path string) bool {
	tb.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o666) //nolint:gosec // other accounts lock it, too
	if err != nil {
		return false // it is of another account
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		return false
	}
	tb.Cleanup(func() { _ = file.Close() })
	return true
}
