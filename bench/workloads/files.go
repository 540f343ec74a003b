package workloads

import "syscall"

// spareFiles is what a process has open besides its connections.
const spareFiles = 64

// checkFiles refuses more connections than this process, and a server it starts, may open. Go has raised the limit as
// far as it may already.
func checkFiles(connections int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return nil //nolint:nilerr // the connections themselves will tell
	}
	if most := uint64(limit.Max); uint64(connections)+spareFiles > most { //nolint:unconvert // its type differs between systems
		return Invalidf("%d connections: a process may have %d files open, and each connection is one; raise that (ulimit -Hn %d) or measure fewer",
			connections, most, connections+spareFiles)
	}
	return nil
}
