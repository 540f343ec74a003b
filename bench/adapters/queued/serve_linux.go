package main

import "syscall"

// serverAttributes are those of the server's process: a group of its own, as Ctrl-C in a terminal goes to the whole group; and its sudden end with
// this process, as in a container that is killed.
func serverAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
