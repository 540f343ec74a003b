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
	"strconv"
	"strings"
	"syscall"
	"time"
)

// account is the user that PostgreSQL runs as.
type account struct {
	uid, gid   int
	name, home string
	other      bool // not the user of this process, which is root
}

// accountFor returns the account for the server in d: the user of this process, unless that is root, as which PostgreSQL refuses
// to run. For root it is the owner of an existing cluster, else the user postgres, else nobody.
func accountFor(d dataDir) (account, error) {
	info, err := os.Lstat(d.pg())
	exists := err == nil
	if uid := os.Geteuid(); uid != 0 {
		if exists && ownerOf(info) != uid {
			return account{}, fmt.Errorf("the cluster %s belongs to %s: run queued as that user or as root, or choose another QUEUED_DATA_DIR",
				d.pg(), userName(ownerOf(info)))
		}
		home, _ := homeDir() // PostgreSQL does without
		return account{uid: uid, gid: os.Getegid(), name: userName(uid), home: home}, nil
	}
	if exists && ownerOf(info) != 0 {
		stat := info.Sys().(*syscall.Stat_t)
		return account{uid: int(stat.Uid), gid: int(stat.Gid), name: userName(int(stat.Uid)), home: "/", other: true}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, uidErr := strconv.Atoi(u.Uid)
			gid, gidErr := strconv.Atoi(u.Gid)
			if err := errors.Join(uidErr, gidErr); err != nil {
				return account{}, fmt.Errorf("the user %s: %w", name, err)
			}
			return account{uid: uid, gid: gid, name: name, home: u.HomeDir, other: true}, nil
		}
	}
	return account{}, errors.New("PostgreSQL does not run as root, and this machine has neither a user postgres nor nobody to run it as: " +
		"make one (for example `useradd --system postgres`), or run queued as an ordinary user")
}

// command returns a command that runs as the account, in a session of its own, so that it gets no signals from a terminal. Its
// environment leaves out PG… and LC_…, which change what PostgreSQL does, and the variables of this program, which hold secrets.
func (a account) command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // a program of PostgreSQL
	cmd.Dir = "/"                                  // PostgreSQL complains about a working directory that it cannot enter
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC", "HOME=" + a.home, "USER=" + a.name}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok { //nolint:forbidigo // passed on, not acted upon
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a.other {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// takeOver makes the account the owner of a file or directory.
func (a account) takeOver(path string) error {
	if !a.other {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// canEnter reports whether the account can use dir as a working directory. It runs a program there, because access control lists and
// security modules count, too.
func (a account) canEnter(ctx context.Context, i installation, dir string) bool {
	if !a.other {
		return true
	}
	cmd := a.command(ctx, i.program("postgres"), "--version")
	cmd.Dir = dir
	return cmd.Run() == nil
}

// checkAccess fails when the account cannot enter dir, or its nearest parent that exists, and names the first closed directory.
func (a account) checkAccess(ctx context.Context, i installation, dir string) error {
	dir, _ = splitExisting(dir)
	if a.canEnter(ctx, i, dir) {
		return nil
	}
	closed := dir
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		if !a.canEnter(ctx, i, parent) {
			closed = parent
		}
		if parent == filepath.Dir(parent) {
			break
		}
	}
	if err := ctx.Err(); err != nil {
		return err
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
