//go:build !unix

package embedded

import (
	"context"
	"errors"
)

var errUnsupported = errors.New("a private PostgreSQL needs a Unix system: set QUEUED_DATABASE_URL to use an existing PostgreSQL")

type locations struct{}

// Server never runs.
type Server struct{}

// DefaultDataDir fails.
func DefaultDataDir() (string, error) { return "", errUnsupported }

// Start fails.
func Start(context.Context, Config) (*Server, error) { return nil, errUnsupported }

// RunningURL fails.
func RunningURL(string) (string, error) { return "", errUnsupported }

// SecretKeyFile is the name of a file that is never made.
const SecretKeyFile = "secret.key"

// SecretKey fails.
func SecretKey(string) (string, bool, error) { return "", false, errUnsupported }

// URL returns nothing.
func (*Server) URL() string { return "" }

// Done returns nil.
func (*Server) Done() <-chan struct{} { return nil }

// Err returns nil.
func (*Server) Err() error { return nil }

// Stop does nothing.
func (*Server) Stop(context.Context) error { return nil }
