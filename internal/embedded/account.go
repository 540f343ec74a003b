//go:build unix

package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// account is the user that PostgreSQL runs as.
type account struct {
	uid, gid int
	name     string
	other    bool // not the user of this process, which is root
}

// accountFor returns the account for the server in d: the user of this process, unless that is root, as which PostgreSQL refuses
// to run. For root it is the owner of an existing cluster, else the user postgres, else nobody.
func accountFor(d dataDir) (account, error) {
	uid := os.Geteuid()
	a := account{uid: uid, gid: os.Getegid()}
	if info, err := os.Lstat(d.pg()); err == nil {
		a.uid = ownerOf(info)
		if a.other = uid == 0 && a.uid != 0; a.other {
			a.gid = int(info.Sys().(*syscall.Stat_t).Gid)
		}
	}
	a.name = userName(a.uid)
	if a.uid != uid && !a.other {
		return a, fmt.Errorf("the cluster %s belongs to %s: run queued as that user or as root, or choose another QUEUED_DATA_DIR",
			d.pg(), a.name)
	}
	if a.uid != 0 {
		return a, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			a = account{name: name, other: true}
			if _, err := fmt.Sscan(u.Uid+" "+u.Gid, &a.uid, &a.gid); err != nil {
				return a, fmt.Errorf("the user %s: %w", name, err)
			}
			return a, nil
		}
	}
	return a, errors.New("PostgreSQL does not run as root, and this machine has neither a user postgres nor nobody to run it as: " +
		"make one (for example `useradd --system postgres`), or run queued as an ordinary user")
}

// command returns a command that runs as the account, in a session of its own, so that it gets no signals from a terminal. Its
// environment leaves out PG… and LC_…, which change the behaviour of PostgreSQL, and the variables of this program, which hold secrets.
func (a account) command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // a program of PostgreSQL
	cmd.Dir = "/"                                  // PostgreSQL complains about a working directory that it cannot enter
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC", "USER=" + a.name}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	passed := []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}
	if !a.other {
		passed = append(passed, "HOME")
	} else {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	for _, name := range passed {
		if value, ok := os.LookupEnv(name); ok { //nolint:forbidigo // passed on, not acted upon
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	return cmd
}

// run runs a program in the directory dir and returns its output, whose end is also in the error. The end of ctx kills the program and
// those that it has started; on Linux the end of this process kills the program.
func (a account) run(ctx context.Context, dir, path string, args ...string) (output []byte, err error) {
	runtime.LockOSThread() // see startProcess
	defer runtime.UnlockOSThread()
	cmd := a.command(ctx, path, args...)
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	signalWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // the process group
	output, err = cmd.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if text := lastLines(output); err != nil && text != "" {
		err = fmt.Errorf("%w; its output ends with:\n%s", err, text)
	}
	return output, err
}

// takeOver makes the account the owner of a file or directory.
func (a account) takeOver(path string) error {
	if !a.other {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// canEnter reports whether the account can run a program in dir, which access control lists and security modules decide, too.
func (a account) canEnter(ctx context.Context, i installation, dir string) bool {
	if !a.other {
		return true
	}
	_, err := a.run(ctx, dir, i.program("postgres"), "--version")
	return err == nil
}

// checkAccess fails when the account cannot enter dir, or its nearest parent that exists, and names the first closed directory.
func (a account) checkAccess(ctx context.Context, i installation, dir string) error {
	closed := ""
	for path, _ := splitExisting(dir); path != closed && !a.canEnter(ctx, i, path); path = filepath.Dir(path) {
		closed = path
	}
	if closed == "" || ctx.Err() != nil {
		return ctx.Err()
	}
	mode := ""
	if info, err := os.Stat(closed); err == nil {
		mode = fmt.Sprintf(" (%s, owner %s)", info.Mode(), userName(ownerOf(info)))
	}
	return fmt.Errorf("queued runs as root and PostgreSQL must not, so it would run as user %s, who cannot enter %s%s on the way to its data: "+
		"open it with `chmod o+x %[2]s`, choose another QUEUED_DATA_DIR, or run queued as an ordinary user", a.name, closed, mode)
}

func ownerOf(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }

// userName returns the name of a user, or the number of a user without a name.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}

// ownName returns the name that PostgreSQL knows the user of this process by. It asks id first: a statically linked program looks
// into /etc/passwd only, not into directory services.
func ownName(ctx context.Context) (string, error) {
	if out, err := exec.CommandContext(ctx, "id", "-un").Output(); err == nil {
		return strings.TrimSpace(string(out)), nil
	}
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return "", fmt.Errorf("the user that queued runs as has no name, which PostgreSQL needs: %w", err)
	}
	return u.Username, nil
}

// homeDir returns $HOME, or the home directory in the user database when that is not set.
func homeDir() (string, error) {
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		return home, nil
	}
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil || !filepath.IsAbs(u.HomeDir) {
		return "", errors.New("HOME is not set, and the user has no home directory")
	}
	return u.HomeDir, nil
}
