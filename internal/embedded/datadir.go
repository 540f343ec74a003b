//go:build unix

package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// maxLogSize is the size in bytes from which a start renames postgres.log to postgres.log.1. PostgreSQL writes a few lines per start.
const maxLogSize = 8 << 20

// dataDir is the absolute path, without symbolic links, of the directory that holds a server.
//
// When root owns it, the account that runs PostgreSQL owns only pg/ and run/ in it, so it cannot redirect writes of root elsewhere.
type dataDir string

func (d dataDir) file(name string) string { return filepath.Join(string(d), name) }
func (d dataDir) pg() string              { return d.file("pg") }
func (d dataDir) run() string             { return d.file("run") }
func (d dataDir) logFile() string         { return d.file("postgres.log") }

// DefaultDataDir returns the directory used when none is configured: /var/lib/queued for root, else one in the user's home (on Linux
// $XDG_DATA_HOME/queued or ~/.local/share/queued). It fails when the user has no home directory.
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
		return "", fmt.Errorf("no default data directory: %w: set QUEUED_DATA_DIR, or QUEUED_DATABASE_URL to use an existing PostgreSQL", err)
	}
	return filepath.Join(base, filepath.FromSlash(userDataDir), "queued"), nil
}

// openDataDir returns the directory at path, empty for the default, whether it exists or not.
func openDataDir(path string) (dataDir, error) {
	if path == "" {
		var err error
		if path, err = DefaultDataDir(); err != nil {
			return "", err
		}
	}
	abs, err := filepath.Abs(path)
	if err == nil {
		existing, rest := splitExisting(abs)
		existing, err = filepath.EvalSymlinks(existing)
		abs = filepath.Join(existing, rest)
	}
	if err != nil {
		return "", fmt.Errorf("the data directory %s: %w", path, err)
	}
	return dataDir(abs), nil
}

// splitExisting splits an absolute path into its longest part that exists and the rest.
func splitExisting(path string) (existing, rest string) {
	for existing = path; existing != filepath.Dir(existing); existing = filepath.Dir(existing) {
		if _, err := os.Lstat(existing); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		rest = filepath.Join(filepath.Base(existing), rest)
	}
	return existing, rest
}

// check refuses an existing directory in which other users could change the server's files.
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

// major returns the major version of the cluster, 0 when there is no cluster.
func (d dataDir) major() (int, error) {
	file := filepath.Join(d.pg(), "PG_VERSION")
	text, err := os.ReadFile(file) //nolint:gosec // a file of the data directory
	if errors.Is(err, fs.ErrNotExist) {
		var files []fs.DirEntry
		if files, err = os.ReadDir(d.pg()); len(files) > 0 {
			return 0, fmt.Errorf("%s is no PostgreSQL cluster (it has no PG_VERSION) and is not empty: move it away, "+
				"or choose another QUEUED_DATA_DIR", d.pg())
		}
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return 0, nil
		}
	}
	if err != nil {
		return 0, fmt.Errorf("look for a PostgreSQL cluster: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s holds no version that queued knows: %q", file, text)
	}
	return major, nil
}

// create makes the directory and its missing parents. They are private; where PostgreSQL runs as another account, other users can
// enter the directory and not list it.
func (d dataDir) create(a account) error {
	existing, rest := splitExisting(string(d))
	if err := os.MkdirAll(string(d), 0o700); err != nil || rest == "" || !a.other {
		return err
	}
	for parent := filepath.Dir(string(d)); len(parent) > len(existing); parent = filepath.Dir(parent) {
		if err := os.Chmod(parent, 0o755); err != nil { //nolint:gosec // the account enters it
			return err
		}
	}
	return os.Chmod(string(d), 0o711) //nolint:gosec // the account enters it
}

// open opens or makes a private file that this process writes, and refuses a symbolic link. A file that root makes belongs to the
// directory's owner.
func (d dataDir) open(name string, flags int) (*os.File, error) {
	file, err := os.OpenFile(d.file(name), flags|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil || os.Geteuid() != 0 {
		return file, err
	}
	info, err := os.Stat(string(d))
	if err == nil {
		err = file.Chown(ownerOf(info), -1)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// write replaces a file, completely or not at all. Other users may read it.
func (d dataDir) write(name, text string) error {
	file, err := d.open(name+".new", os.O_WRONLY|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	if err := errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return err
	}
	return os.Rename(d.file(name+".new"), d.file(name))
}

// lock locks an open file without waiting, or fails with EWOULDBLOCK. The lock ends when the file is closed, at the latest with the
// process.
func lock(file *os.File) error { return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// lock takes the directory for this process until the returned file is closed, or fails with ErrInUse. The file is never removed:
// two processes could then hold locks on two files of the same name.
func (d dataDir) lock() (*os.File, error) {
	file, err := d.open("queued.lock", os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w: run queued as the directory's owner, or choose another QUEUED_DATA_DIR", err)
	}
	err = lock(file)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		holder := "another process"
		if pid, err := io.ReadAll(io.LimitReader(file, 32)); err == nil && len(pid) > 0 {
			holder = "process " + strings.TrimSpace(string(pid))
		}
		err = fmt.Errorf("%w: %s belongs to %s, which runs a server in it: stop that process, or choose another QUEUED_DATA_DIR",
			ErrInUse, d, holder)
	case err == nil:
		if err = file.Truncate(0); err == nil {
			_, err = fmt.Fprintf(file, "%d\n", os.Getpid())
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
	}
	return file, nil
}

// initialize makes the cluster. It has another name until it is complete, so that an interrupted start leaves nothing that looks like
// a cluster.
func (s *Server) initialize(ctx context.Context) error {
	for _, incomplete := range glob(filepath.Join(escapeGlob(string(s.dir)), "pg.new-*")) {
		err := os.RemoveAll(incomplete) // files that are still written to are left to the next start
		s.log.Warn().Err(err).Str("directory", incomplete).Msg("discarded a cluster whose making was interrupted")
	}
	s.log.Info().Str("version", s.installation.version()).Msg("making a new PostgreSQL cluster")
	staging, err := os.MkdirTemp(string(s.dir), "pg.new-")
	if err == nil {
		err = s.account.takeOver(staging)
	}
	if err == nil {
		_, err = s.account.run(ctx, "/", s.installation.program("initdb"), s.initdbArguments(staging)...)
	}
	if err == nil {
		_ = os.Remove(s.dir.pg()) // an empty directory
		err = os.Rename(staging, s.dir.pg())
	}
	if err == nil {
		err = syncDir(string(s.dir))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("make the cluster by %s: %w", s.installation.program("initdb"), err), os.RemoveAll(staging))
	}
	return nil
}

// initdbArguments have initdb make a cluster in dir. Its locale is C, which sorts by bytes and is part of PostgreSQL, so that indexes stay
// valid when the system's libraries are upgraded or the directory moves to another machine; not every system has C.UTF-8.
func (s *Server) initdbArguments(dir string) []string {
	args := []string{
		"-D", dir, "--username", userRole, "--auth-local", "peer", "--auth-host", "reject",
		"--encoding", "UTF8", "--locale", "C", "--data-checksums", "--no-instructions",
	}
	if s.settings["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	return args
}

// syncDir makes a rename in dir survive a crash of the machine.
func syncDir(dir string) error {
	file, err := os.Open(dir) //nolint:gosec // the data directory
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// adopt gives the account a cluster that root has put there, such as a restored copy.
func (d dataDir) adopt(a account) error {
	info, err := os.Lstat(d.pg())
	if err != nil || !a.other || ownerOf(info) == a.uid {
		return err
	}
	root, err := os.OpenRoot(d.pg()) // no link leads out of it
	if err != nil {
		return err
	}
	err = fs.WalkDir(root.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = root.Lchown(path, a.uid, a.gid)
		}
		return err
	})
	if err := errors.Join(err, root.Close()); err != nil {
		return fmt.Errorf("give the cluster to user %s: %w", a.name, err)
	}
	return nil
}

// makeSocketDir makes run/ anew. When its path is too long for a socket, run is a symbolic link to a temporary directory.
func (d dataDir) makeSocketDir(ctx context.Context, i installation, a account) (socketDir, error) {
	if err := d.removeSocketDir(); err != nil {
		return "", err
	}
	if dir := socketDir(d.run()); dir.isUsable() {
		return dir, errors.Join(os.Mkdir(d.run(), 0o700), a.takeOver(d.run()))
	}
	for _, base := range []string{os.TempDir(), "/tmp"} {
		// MkdirTemp appends up to ten digits.
		if !socketDir(filepath.Join(base, "queued-0123456789")).isUsable() || !a.canEnter(ctx, i, base) {
			continue
		}
		path, err := os.MkdirTemp(base, "queued-")
		if err != nil {
			return "", err
		}
		if err := errors.Join(a.takeOver(path), os.Symlink(path, d.run())); err != nil {
			return "", errors.Join(err, os.Remove(path))
		}
		return socketDir(path), nil
	}
	return "", fmt.Errorf("the path %s is too long for a socket, and so is that of the directory for temporary files: "+
		"choose a shorter QUEUED_DATA_DIR or TMPDIR", d.run())
}

// removeSocketDir removes run/ and the temporary directory it may be a link to.
func (d dataDir) removeSocketDir() error {
	if target, err := os.Readlink(d.run()); err == nil {
		// Not with RemoveAll: the link may be stale, and the path in use by another process.
		socket := socketDir(target).socket()
		for _, path := range []string{socket, socket + ".lock", target} {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return os.RemoveAll(d.run())
}

// openLog opens postgres.log for a new process and returns the offset where its part begins.
func (d dataDir) openLog() (file *os.File, from int64, err error) {
	if info, err := os.Lstat(d.logFile()); err == nil && info.Size() > maxLogSize {
		if err := os.Rename(d.logFile(), d.logFile()+".1"); err != nil {
			return nil, 0, err
		}
	}
	if file, err = d.open("postgres.log", os.O_WRONLY|os.O_APPEND); err != nil {
		return nil, 0, err
	}
	if from, err = file.Seek(0, io.SeekEnd); err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, from, nil
}

// logTail returns the last lines logged after an offset, empty when the log cannot be read.
func (d dataDir) logTail(from int64) string {
	const size = 8 << 10
	file, err := os.Open(d.logFile())
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	end, _ := file.Seek(0, io.SeekEnd)
	text, _ := io.ReadAll(io.NewSectionReader(file, max(from, end-size), size))
	return lastLines(text)
}

// lastLines returns the end of a program's output, for an error.
func lastLines(output []byte) string {
	lines := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-12):], []byte("\n")))
}
