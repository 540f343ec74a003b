//go:build !linux

package timerslack

// Raise does nothing: it is Linux that has a slack for each thread.
func Raise() {}
