package embedded

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// TestProgramsThatWereWrittenCanBeRun writes programs and runs them, while others are started: a child has what is written meanwhile open for a moment.
func TestProgramsThatWereWrittenCanBeRun(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			program := filepath.Join(dir, "program-"+string(rune('a'+i)))
			for range 100 {
				_ = os.Remove(program)
				if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
					t.Error(err)
					return
				}
				waitUntilWritten(program)
				if err := exec.Command(program).Run(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}
