package cli

import "syscall"

// dieWithParent has the kernel kill a command when the thread that started it ends, as all do when this process is killed: nobody would extend
// the lease any more.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
