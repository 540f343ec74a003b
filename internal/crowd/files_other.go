//go:build !unix

package crowd

// OpenFiles returns how many files the process may open, connections included, a million at most: here there is no limit.
func OpenFiles() int { return maxFiles }
