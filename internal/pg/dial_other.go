//go:build !linux

package pg

import (
	"syscall"
	"time"
)

// setUserTimeout does nothing: only keepalives detect a lost server here.
func setUserTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
