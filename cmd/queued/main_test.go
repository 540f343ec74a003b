package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/queued/queued/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// built is the program on disk. The first test that needs it builds it, and the last one that uses it removes it.
var built struct {
	sync.Mutex
	dir   string
	users int
}

// binary returns the path of the built program, which exists until the test ends.
func binary(t *testing.T) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.users == 0 {
		dir, err := build()
		if err != nil {
			t.Fatal(err)
		}
		built.dir = dir
	}
	built.users++
	t.Cleanup(func() {
		built.Lock()
		defer built.Unlock()
		if built.users--; built.users == 0 {
			if err := os.RemoveAll(built.dir); err != nil {
				t.Errorf("removing the program: %v", err)
			}
		}
	})
	return filepath.Join(built.dir, "queued")
}

func build() (string, error) {
	dir, err := os.MkdirTemp("", "queued-program-")
	if err != nil {
		return "", err
	}
	args := []string{"build", "-o", dir}
	if raceFlag != "" {
		args = append(args, raceFlag)
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", fmt.Errorf("building the program: %w\n%s", err, out)
	}
	return dir, nil
}
