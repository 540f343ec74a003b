//go:build !unix

package workloads

import "errors"

// maxOpenFiles knows of no limit.
func maxOpenFiles() (most uint64, isKnown bool) { return 0, false }

var errNotFrozen = errors.New("processes cannot be stopped where they are on this system")

func (*process) freeze() error { return errNotFrozen }

func (*process) thaw() error { return errNotFrozen }
