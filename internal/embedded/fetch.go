package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
	"github.com/rs/zerolog"
)

const (
	mavenCentral = "https://repo1.maven.org/maven2"
	// fetchLimit bounds a download of some 30 MB, which has no limit of its own.
	fetchLimit = 10 * time.Minute
)

// fetch downloads the PostgreSQL of the given major version, 0 for the preferred one, into the cache.
func (m machine) fetch(ctx context.Context, a account, major int, log zerolog.Logger) (programs, error) {
	version, err := m.fetchable(major)
	if err != nil {
		return programs{}, err
	}
	cache, err := m.cacheDir()
	if err != nil {
		return programs{}, fmt.Errorf("there is no place for a fetched one: %w", err)
	}
	repository := m.repository
	if repository == "" {
		repository = mavenCentral
	}
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	failed := func(err error) error {
		return fmt.Errorf("fetching PostgreSQL %s from %s failed: %w", version, repository, err)
	}

	// Others must be able to read it, which a program started by root with a strict umask
	// has to say: PostgreSQL may run as another user than this program.
	if err := os.MkdirAll(cache, 0o755); err != nil { //nolint:gosec // for other users to read
		return programs{}, failed(err)
	}
	if a.other {
		if err := os.Chmod(cache, 0o755); err != nil { //nolint:gosec // for other users to read
			return programs{}, failed(err)
		}
	}
	held, err := lockCache(ctx, cache)
	if err != nil {
		return programs{}, failed(err)
	}
	log.Info().Str("version", string(version)).Str("from", repository).Msg("this machine has no PostgreSQL to use, fetching one")
	target := filepath.Join(cache, "postgres-"+string(version))
	// The library's download cannot be cancelled. When the context ends, it is left to itself,
	// with the lock, and its result goes to the cache for the next start.
	done := make(chan error, 1)
	go func() {
		var err error
		if !complete(filepath.Join(target, "bin")) { // else another process was faster
			err = download(repository, version, cache, target)
		}
		done <- errors.Join(err, held.release())
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return programs{}, failed(err)
	}
	p, err := probe(ctx, a, filepath.Join(target, "bin"))
	if err == nil && major != 0 && p.major != major {
		err = fmt.Errorf("what came is PostgreSQL %s", p.version())
	}
	if err != nil {
		return programs{}, failed(err)
	}
	return p, nil
}

// fetchable returns the version to fetch for a major version, 0 for any.
func (m machine) fetchable(major int) (embeddedpostgres.PostgresVersion, error) {
	versions := m.versions
	if versions == nil {
		versions = []embeddedpostgres.PostgresVersion{
			embeddedpostgres.V18, embeddedpostgres.V17, embeddedpostgres.V16, embeddedpostgres.V15, embeddedpostgres.V14,
		}
	}
	for _, version := range versions {
		if major == 0 || strings.HasPrefix(string(version), strconv.Itoa(major)+".") {
			return version, nil
		}
	}
	return "", fmt.Errorf("there is no PostgreSQL %d to fetch", major)
}

// download fetches the archive and unpacks it as target, all of it or nothing.
func download(repository string, version embeddedpostgres.PostgresVersion, cache, target string) (err error) {
	// Whoever holds the lock may remove what a killed process left.
	for _, old := range matches(filepath.Join(escapeGlob(cache), "fetch-*")) {
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	staging, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(staging)) }()
	unpacked := filepath.Join(staging, "postgres")
	if err := unpack(repository, version, staging, unpacked); err != nil {
		return err
	}
	if err := makeReadable(unpacked); err != nil {
		return err
	}
	waitForForks()
	if err := os.RemoveAll(target); err != nil { // something incomplete, or nothing
		return err
	}
	return os.Rename(unpacked, target)
}

// unpack has the library fetch PostgreSQL into dir. The library's one way to do so is to start a
// server, and it is called in a way that ends after the unpacking: a data directory named "." is
// one that os.RemoveAll, the library's next step, refuses to touch. Nothing it fetched is run by
// it, and with the port 0, which PostgreSQL refuses, nothing could come to listen.
func unpack(repository string, version embeddedpostgres.PostgresVersion, staging, dir string) error {
	defer http.DefaultClient.CloseIdleConnections() // the library's client
	server := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(version).
		BinaryRepositoryURL(repository).
		BinariesPath(dir).
		CachePath(filepath.Join(staging, "archive")).
		RuntimePath(filepath.Join(staging, "runtime")).
		DataPath(filepath.Join(staging, "data") + string(filepath.Separator) + ".").
		Port(0).
		Logger(io.Discard))
	defer runtime.KeepAlive(server) // and with it its log, for dropLibraryLog to recognize
	defer dropLibraryLog()
	err := server.Start()
	if err == nil {
		return errors.Join(errors.New("a server was started, not only fetched"), server.Stop())
	}
	if !complete(filepath.Join(dir, "bin")) {
		return err
	}
	return nil
}

// waitForForks returns when files that were written before can be run. A program that another
// goroutine has just started holds them open, for writing, until it is done starting, and Linux
// runs no file that is open for writing.
func waitForForks() {
	syscall.ForkLock.RLock()
	syscall.ForkLock.RUnlock() //nolint:staticcheck // the wait is the point
}

// dropLibraryLog removes the temporary file that the library makes for each of its servers, and
// leaves behind open: among the files with such a name, those that this process has open.
func dropLibraryLog() {
	const descriptors = "/dev/fd"
	var own []fs.FileInfo
	open, _ := os.ReadDir(descriptors)
	for _, entry := range open {
		if info, err := os.Stat(filepath.Join(descriptors, entry.Name())); err == nil {
			own = append(own, info)
		}
	}
	for _, path := range matches(filepath.Join(escapeGlob(os.TempDir()), "embedded_postgres_log*")) {
		info, err := os.Lstat(path)
		if err == nil && slices.ContainsFunc(own, func(mine fs.FileInfo) bool { return os.SameFile(mine, info) }) {
			_ = os.Remove(path)
		}
	}
}

// makeReadable lets every user read and run what was unpacked, whatever the umask is.
func makeReadable(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	err = fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if entry.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return root.Chmod(path, mode)
	})
	return errors.Join(err, root.Close())
}

// lockCache waits until no other process fetches into the cache.
func lockCache(ctx context.Context, cache string) (*lock, error) {
	file, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // a file of the cache
	if err != nil {
		return nil, err
	}
	for {
		held, err := acquire(file)
		if err == nil {
			return held, nil
		}
		if errors.Is(err, errLocked) {
			err = pause(ctx, 100*time.Millisecond)
		}
		if err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
}

// cacheDir returns where fetched programs are kept. Unlike the data they can be fetched again.
func (m machine) cacheDir() (string, error) {
	if m.cache != "" {
		return m.cache, nil
	}
	if os.Geteuid() == 0 {
		return "/var/cache/queued", nil
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "queued"), nil
	}
	home, err := homeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(home, ".cache", "queued"), nil
}

// fetched returns the bin directories of what was fetched before.
func (m machine) fetched() []string {
	cache, err := m.cacheDir()
	if err != nil {
		return nil // without a place to fetch to, nothing was
	}
	return matches(filepath.Join(escapeGlob(cache), "postgres-*", "bin"))
}
