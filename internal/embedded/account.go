package embedded

import (
	"context"
	"errors"
	"fmt"
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
	uid, gid int
	name     string
	home     string
	other    bool // this process runs as root, PostgreSQL as somebody else
}

// accountFor returns the account for the server in d: this process's own, except for root,
// as which PostgreSQL refuses to run. Root uses the owner of an existing cluster, else the user
// postgres, which exists where PostgreSQL is installed, else nobody.
func accountFor(d dataDir) (account, error) {
	info, err := os.Lstat(d.pg())
	exists := err == nil
	if uid := os.Geteuid(); uid != 0 {
		if exists && ownerOf(info) != uid {
			return account{}, fmt.Errorf("the cluster %s belongs to %s: run queued as that user or as root, or choose another QUEUED_DATA_DIR", d.pg(), userName(ownerOf(info)))
		}
		home, _ := homeDir() // programs get by without
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
	return account{}, errors.New("PostgreSQL does not run as root, and this machine has neither a user postgres nor nobody to run it as: make one (for example `useradd --system postgres`), or run queued as an ordinary user")
}

// command prepares a program to be run as the account, in a session of its own, away from the
// terminal's signals. It gets a small environment: the variables PG… and LC_… would change what
// PostgreSQL does, and this program's own hold secrets.
func (a account) command(ctx context.Context, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // the program is one of PostgreSQL's, wherever those were found
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

// own gives a file or directory that this process made to the account.
func (a account) own(path string) error {
	if !a.other {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// canEnter reports whether the account may go through dir. Running a program there is the one
// way to know that heeds access control lists and security modules too.
func (a account) canEnter(ctx context.Context, p programs, dir string) bool {
	if !a.other {
		return true
	}
	cmd := a.command(ctx, p.path("postgres"), "--version")
	cmd.Dir = dir
	return cmd.Run() == nil
}

// checkAccess fails, naming the directory that is closed, when the account cannot get to dir,
// or to where dir is going to be.
func (a account) checkAccess(ctx context.Context, p programs, dir string) error {
	dir, _ = nearest(dir)
	if a.canEnter(ctx, p, dir) {
		return nil
	}
	closed := dir
	for up := dir; up != filepath.Dir(up); {
		up = filepath.Dir(up)
		if !a.canEnter(ctx, p, up) {
			closed = up
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	mode := ""
	if info, err := os.Stat(closed); err == nil {
		mode = fmt.Sprintf(" (%s, owner %s)", info.Mode(), userName(ownerOf(info)))
	}
	return fmt.Errorf("queued runs as root and PostgreSQL must not, so it would run as user %s, who cannot enter %s%s on the way to its data: open it with `chmod o+x %[2]s`, choose another QUEUED_DATA_DIR, or run queued as an ordinary user", a.name, closed, mode)
}

// userName returns the name of a user, or its number where it has none.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}

// ownName returns the name of the user this process runs as, the way PostgreSQL will see it.
// Directory services beside /etc/passwd are asked through id: a static binary does not know them.
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

// homeDir returns the user's home directory, from the user database when $HOME does not say.
func homeDir() (string, error) {
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) {
		return home, nil
	}
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return "", fmt.Errorf("HOME is not set, and the user has no home directory: %w", err)
	}
	if !filepath.IsAbs(u.HomeDir) {
		return "", errors.New("HOME is not set, and the user has no home directory")
	}
	return u.HomeDir, nil
}
