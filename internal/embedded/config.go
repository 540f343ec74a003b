// Package embedded runs a private PostgreSQL that is started and stopped with the program. Its programs are found on the machine or
// fetched, all its files are in one directory, and it is reached through a Unix socket only.
//
// A Server has two goroutines: one waits for the child process (process.go), the other for that one.
package embedded

import (
	"errors"

	"github.com/rs/zerolog"
)

// Config says where the server's files are and how it is set up.
type Config struct {
	// DataDir holds all files of this server: the cluster in pg/, the socket in run/, postgres.log and the lock. Start makes it when
	// it is missing. Empty: DefaultDataDir().
	DataDir string
	// Settings are PostgreSQL settings, by name in lower case, for this server. Those that decide how it is reached have no effect.
	Settings map[string]string
	// Logger gets a line for each step. Zero: nothing is logged.
	Logger zerolog.Logger

	locations locations
}

// ErrInUse is the error of Start when another process runs a server in the data directory.
var ErrInUse = errors.New("the data directory is in use")
