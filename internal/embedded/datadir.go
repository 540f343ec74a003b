package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// dataDir is the absolute path, free of symbolic links, of the directory that holds a server.
//
// With root as the owner, only pg/ and run/ in it are given to the account that PostgreSQL runs
// as. Everything that root itself writes stays in a directory where that account can change
// nothing, so it cannot lead root's writes astray.
type dataDir string

func (d dataDir) pg() string        { return filepath.Join(string(d), "pg") }
func (d dataDir) run() string       { return filepath.Join(string(d), "run") }
func (d dataDir) logFile() string   { return filepath.Join(string(d), "postgres.log") }
func (d dataDir) lockFile() string  { return filepath.Join(string(d), "queued.lock") }
func (d dataDir) hbaFile() string   { return filepath.Join(string(d), "pg_hba.conf") }
func (d dataDir) identFile() string { return filepath.Join(string(d), "pg_ident.conf") }

// DefaultDataDir returns the directory used when none is configured: /var/lib/queued for root,
// else one in the user's home (on Linux $XDG_DATA_HOME/queued or ~/.local/share/queued). It fails
// when the user has no home directory.
func DefaultDataDir() (string, error) {
	return defaultDataDir(os.Geteuid(), os.Getenv, homeDir) //nolint:forbidigo // the default depends on the environment by definition
}

func defaultDataDir(euid int, getenv func(string) string, home func() (string, error)) (string, error) {
	if euid == 0 {
		return "/var/lib/queued", nil
	}
	// The XDG specification says that a relative path is to be ignored.
	if base := getenv("XDG_DATA_HOME"); filepath.IsAbs(base) {
		return filepath.Join(base, "queued"), nil
	}
	base, err := home()
	if err != nil {
		return "", fmt.Errorf("no default data directory: %w: set QUEUED_DATA_DIR", err)
	}
	return filepath.Join(base, filepath.FromSlash(userDataDir), "queued"), nil
}

// openDataDir returns the directory that path names, empty for the default, whether it exists or not.
func openDataDir(path string) (dataDir, error) {
	if path == "" {
		def, err := DefaultDataDir()
		if err != nil {
			return "", err
		}
		path = def
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("the data directory %s: %w", path, err)
	}
	exists, rest := nearest(abs)
	exists, err = filepath.EvalSymlinks(exists)
	if err != nil {
		return "", fmt.Errorf("the data directory %s: %w", path, err)
	}
	return dataDir(filepath.Join(exists, rest)), nil
}

// nearest splits an absolute path into its longest part that exists and the rest.
func nearest(path string) (exists, rest string) {
	for exists = path; exists != filepath.Dir(exists); exists = filepath.Dir(exists) {
		if _, err := os.Lstat(exists); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		rest = filepath.Join(filepath.Base(exists), rest)
	}
	return exists, rest
}

// check refuses an existing directory in which others could tamper with the server.
func (d dataDir) check(a account) error {
	info, err := os.Stat(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the data directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("the data directory %s is not a directory", d)
	}
	if owner := ownerOf(info); owner != os.Geteuid() && owner != 0 && owner != a.uid {
		return fmt.Errorf("the data directory %s belongs to %s: run queued as that user, or choose another QUEUED_DATA_DIR", d, userName(owner))
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("the data directory %s can be written by everyone (%s): close it with `chmod o-w %[1]s`", d, info.Mode())
	}
	return nil
}

// major returns the major version of the cluster's PostgreSQL, 0 when there is no cluster yet.
func (d dataDir) major() (int, error) {
	text, err := os.ReadFile(filepath.Join(d.pg(), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		entries, err := os.ReadDir(d.pg())
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return 0, nil
		case err != nil:
			return 0, fmt.Errorf("look for a PostgreSQL cluster: %w", err)
		case len(entries) > 0:
			return 0, fmt.Errorf("%s is no PostgreSQL cluster (it has no PG_VERSION) and is not empty: move it away, or choose another QUEUED_DATA_DIR", d.pg())
		}
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for a PostgreSQL cluster: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s holds no version that queued knows: %q", filepath.Join(d.pg(), "PG_VERSION"), text)
	}
	return major, nil
}

// create makes the directory and its missing parents. What it makes is private; only where
// PostgreSQL runs as another account can others pass through it, and still not list it.
func (d dataDir) create(a account) error {
	var missing []string
	for path, rest := nearest(string(d)); rest != ""; {
		var first string
		first, rest, _ = strings.Cut(rest, string(filepath.Separator))
		path = filepath.Join(path, first)
		missing = append(missing, path)
	}
	for _, path := range missing {
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make the data directory: %w: choose another QUEUED_DATA_DIR", err)
		}
		if !a.other {
			continue
		}
		mode := fs.FileMode(0o755)
		if path == string(d) {
			mode = 0o711
		}
		if err := os.Chmod(path, mode); err != nil {
			return fmt.Errorf("make the data directory: %w", err)
		}
	}
	return nil
}

// open opens or creates a private file that this program writes. A symbolic link in its place is
// refused. What root makes in somebody else's directory belongs to that user.
func (d dataDir) open(path string, flags int, mode fs.FileMode) (*os.File, error) {
	file, err := os.OpenFile(path, flags|os.O_CREATE|syscall.O_NOFOLLOW, mode) //nolint:gosec // a file of the data directory
	if err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 {
		var info fs.FileInfo
		if info, err = os.Stat(string(d)); err == nil {
			err = file.Chown(ownerOf(info), -1)
		}
		if err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	return file, nil
}

// write puts text into a file, all of it or none. Others may read the file.
func (d dataDir) write(path, text string) error {
	next := path + ".new"
	file, err := d.open(next, os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	err = errors.Join(err, file.Chmod(0o644), file.Close()) // whatever the umask took away
	if err != nil {
		return err
	}
	return os.Rename(next, path)
}

// adopt gives a cluster that root has put there, such as a restored copy, to the account
// that PostgreSQL runs as.
func (d dataDir) adopt(a account) error {
	if !a.other {
		return nil
	}
	info, err := os.Lstat(d.pg())
	if err != nil {
		return fmt.Errorf("the cluster: %w", err)
	}
	if ownerOf(info) == a.uid {
		return nil
	}
	root, err := os.OpenRoot(d.pg()) // so that no link leads out of it
	if err == nil {
		err = fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return root.Lchown(path, a.uid, a.gid)
		})
		err = errors.Join(err, root.Close())
	}
	if err != nil {
		return fmt.Errorf("give the cluster to user %s: %w", a.name, err)
	}
	return nil
}

func ownerOf(info fs.FileInfo) int {
	return int(info.Sys().(*syscall.Stat_t).Uid)
}
