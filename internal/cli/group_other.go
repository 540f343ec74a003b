//go:build unix && !linux

package cli

import "syscall"

// dieWithParent does nothing: only Linux has this.
func dieWithParent(*syscall.SysProcAttr) {}
