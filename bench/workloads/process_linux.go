package workloads

import "syscall"

// tieToParent has the process stopped when this one is killed.
func tieToParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGTERM }
