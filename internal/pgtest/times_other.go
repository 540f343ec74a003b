//go:build !unix

package pgtest

import "testing"

func noteTimes(testing.TB, *Server, string) {}
