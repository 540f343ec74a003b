//go:build !unix

package workloads

// maxOpenFiles knows of no limit.
func maxOpenFiles() (most uint64, isKnown bool) { return 0, false }
