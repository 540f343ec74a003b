//go:build !linux

package pg

import (
	"syscall"
	"time"
)

// setUserTimeout has no counterpart here: the keepalives find out.
func setUserTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
