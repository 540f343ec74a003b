//go:build !linux

package main

import "syscall"

// serverAttributes are none: the server outlives this process where that is killed.
func serverAttributes() *syscall.SysProcAttr { return nil }
