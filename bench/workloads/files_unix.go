//go:build unix

package workloads

import "syscall"

// maxOpenFiles returns how many files a process may have open, and whether that is known. Go has raised the limit as far as it may already.
func maxOpenFiles() (most uint64, isKnown bool) {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)
	return uint64(limit.Max), err == nil //nolint:unconvert // its type differs between systems
}

// freeze stops the process where it is. It keeps its connections and answers nothing.
func (p *process) freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// thaw has a frozen process go on.
func (p *process) thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
