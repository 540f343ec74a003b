//go:build unix && !linux

package workloads

import "syscall"

// serverAttributes are those of a server's process: a group of its own, as Ctrl-C in a terminal goes to the whole group and the server has
// to outlive the clients. It outlives this process, too, where that is killed.
func serverAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
