package workloads

import "syscall"

// serverAttributes are those of a server's process: a group of its own, as Ctrl-C in a terminal goes to the whole group and the server has
// to outlive the clients; and its end with this process, whatever that one's is.
func serverAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
