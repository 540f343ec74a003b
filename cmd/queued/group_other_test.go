//go:build !unix

package main

import "os/exec"

func leadGroup(*exec.Cmd) {}

func terminate(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
