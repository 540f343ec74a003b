//go:build !unix

package workloads

import "syscall"

// serverAttributes are none: Ctrl-C ends a server at the same time as the clients.
func serverAttributes() *syscall.SysProcAttr { return nil }
