//go:build !linux

package workloads

import (
	"os"
	"syscall"
)

// tieToParent does nothing: only Linux tells a child of its parent's death.
func tieToParent(*syscall.SysProcAttr) {}

// enlarge does nothing: a pipe has the size it has.
func enlarge(*os.File, int) {}
