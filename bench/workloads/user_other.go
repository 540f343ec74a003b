//go:build !unix

package workloads

import "syscall"

// asOrdinaryUser changes nothing.
func asOrdinaryUser(*syscall.SysProcAttr, ...string) error { return nil }
