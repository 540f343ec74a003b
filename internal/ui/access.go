package ui

// LogIn is the page of the log-in.
type LogIn struct {
	To string // the path under /ui/ that it leads to
}
