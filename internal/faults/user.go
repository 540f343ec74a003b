//go:build unix

package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// serverUser is the operating system's user of the servers: that of this process or, since PostgreSQL refuses to run as root, postgres or
// nobody.
type serverUser struct {
	credential *syscall.Credential // nil: this process's own
}

func findServerUser() (serverUser, error) {
	if os.Geteuid() != 0 {
		return serverUser{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(found.Uid, 10, 32)
		if err != nil {
			return serverUser{}, err
		}
		gid, err := strconv.ParseUint(found.Gid, 10, 32)
		if err != nil {
			return serverUser{}, err
		}
		return serverUser{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return serverUser{}, fmt.Errorf("this test runs as root, PostgreSQL does not, and there is neither a user postgres nor nobody")
}

// command prepares a program to be run as the user, in a session of its own and with a small environment.
func (u serverUser) command(ctx context.Context, environ []string, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // programs of PostgreSQL and PgBouncer
	cmd.Dir = "/"
	cmd.Env = append([]string{"LC_ALL=C", "TZ=UTC", "HOME=/", "PATH=" + os.Getenv("PATH")}, environ...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: u.credential}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// chown changes the owner of a file or directory to the user.
func (u serverUser) chown(path string) error {
	if u.credential == nil {
		return nil
	}
	return os.Lchown(path, int(u.credential.Uid), int(u.credential.Gid))
}

// newDirectory creates a directory owned by the user, in base or in the directory for temporary files.
func (u serverUser) newDirectory(base string) (string, error) {
	dir, err := os.MkdirTemp(base, "queued-faults-")
	if err == nil {
		err = u.chown(dir)
	}
	return dir, err
}

// directory creates one that is removed at the end of the test. Other users cannot enter the directories of t.TempDir.
func (u serverUser) directory(t *testing.T, base string) string {
	t.Helper()
	dir, err := u.newDirectory(base)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("removing a server's directory: %v", err)
		}
	})
	return dir
}

// binDir returns the directory of the newest PostgreSQL on this machine.
func binDir() (string, error) {
	patterns := []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin"}
	best, bestVersion := "", -1
	for _, pattern := range patterns {
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			var version int
			if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
				continue
			}
			_, _ = fmt.Sscanf(filepath.Base(filepath.Dir(dir)), "%d", &version)
			if version > bestVersion {
				best, bestVersion = dir, version
			}
		}
	}
	if best != "" {
		return best, nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", fmt.Errorf("the fault tests need PostgreSQL's programs on this machine (for example `apt-get install postgresql`)")
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	return filepath.Dir(path), nil
}
