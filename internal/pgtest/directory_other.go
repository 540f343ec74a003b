//go:build !unix

package pgtest

import "os"

func fastBase() string { return os.TempDir() }

// tryLock does nothing: there is no private server here, only containers and servers of the user.
func tryLock(*os.File) error { return nil }
