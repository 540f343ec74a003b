//go:build !linux

package workloads

import "syscall"

// tieToParent does nothing: only Linux tells a process of its parent's death.
func tieToParent(*syscall.SysProcAttr) {}
