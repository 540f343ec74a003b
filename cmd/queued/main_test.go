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

func TestMain(m *testing.M) {
	code := pgtest.Run(m)
	for _, b := range []*built{&underTest, &forCommands} {
		if b.dir != "" {
			_ = os.RemoveAll(b.dir)
		}
	}
	os.Exit(code)
}

// built is a build of the program on disk. The first test that needs it builds it.
type built struct {
	hasRaceDetector bool
	once            sync.Once
	dir             string
	err             error
}

// The builds: that under test, and that of commands that end soon. With the race detector a program takes 0.06 s of processor time to
// start, and without it 0.02 s; the tests run hundreds of such commands. The tests of internal/cli find the races in them.
var (
	underTest   = built{hasRaceDetector: pgtest.HasRaceDetector}
	forCommands built
)

// binary returns the path of the built program, which exists until the last test has ended.
func binary(t *testing.T) string {
	t.Helper()
	return underTest.path(t)
}

// commandBinary returns the path of the program to run as a command that ends soon.
func commandBinary(t *testing.T) string {
	t.Helper()
	return forCommands.path(t)
}

func (b *built) path(t *testing.T) string {
	t.Helper()
	b.once.Do(func() { b.dir, b.err = build(b.hasRaceDetector) })
	if b.err != nil {
		t.Fatal(b.err)
	}
	return filepath.Join(b.dir, "queued")
}

func build(hasRaceDetector bool) (string, error) {
	dir, err := os.MkdirTemp("", "queued-program-")
	if err != nil {
		return "", err
	}
	args := []string{"build", "-o", dir}
	if hasRaceDetector {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", fmt.Errorf("building the program: %w\n%s", err, out)
	}
	return dir, nil
}
