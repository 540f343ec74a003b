//go:build unix

package embedded

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/xi2/xz"
)

const (
	oldestMajor  = 14 // the first major version of PostgreSQL that queued supports
	mavenCentral = "https://repo1.maven.org/maven2"
	fetchTimeout = 10 * time.Minute // for a download of some 30 MB
	maxDownload  = 256 << 20        // bytes
)

// fetchVersions are the builds of github.com/zonkyio/embedded-postgres-binaries to fetch, the preferred one first.
var fetchVersions = []string{"18.6.0", "17.5.0", "17.4.0"}

// checksums are the SHA-256, in hexadecimal, of the archives that may be fetched, by platform and version. An archive is a program that runs with the
// rights of queued, so one that is not here is not fetched; checksums from the repository itself prove nothing. These are the checksums that other
// projects have pinned, which download the same archives: two of them the one for macOS, one each of the others.
var checksums = map[string]string{
	"darwin-arm64v8-17.5.0":       "e9d3398e10c2ec926395498b03e75ad1a24eeaed82895e756a7e173b202cf6de",
	"linux-amd64-17.4.0":          "d9d216d3c1c119ad31b8a8de60b3cf2826516f711a04d3745ef4f1913f21a938",
	"linux-amd64-alpine-18.6.0":   "1568b3805c3a3b99b5f4f0d7f6cf16e2a39075462ed47a614bfbabd92508350d",
	"linux-arm64v8-alpine-18.6.0": "dccf3c9c8438973e6e8cd9cd511af4a2c6a88d1c90a4cc0465a8f8797808e717",
}

// installation is an installed PostgreSQL server.
type installation struct {
	binDir       string
	major, minor int
}

func (i installation) program(name string) string { return filepath.Join(i.binDir, name) }
func (i installation) version() string            { return fmt.Sprintf("%d.%d", i.major, i.minor) }
func (i installation) String() string             { return i.version() + " (" + i.binDir + ")" }

// locations says where to look for PostgreSQL's programs. The zero value is for production.
type locations struct {
	binDirs    []string          // patterns of bin directories; nil: PATH and the usual places
	cache      string            // directory of fetched versions; empty: the user's cache directory
	repository string            // URL of a Maven repository; empty: Maven Central
	versions   []string          // that can be fetched; nil: fetchVersions
	checksums  map[string]string // nil: checksums
}

// find returns an installation for a cluster of the given major version, 0 for a new cluster: the newest on the machine, else one
// fetched earlier, else it fetches one.
func (l locations) find(ctx context.Context, a account, major int, cluster string, log zerolog.Logger) (installation, error) {
	var rejected []string
	for _, dirs := range [][]string{l.installed(ctx), l.fetched()} {
		found, unusable, err := usable(ctx, a, dirs)
		if err != nil {
			return installation{}, err
		}
		for _, i := range found {
			if major == 0 || i.major == major {
				return i, nil
			}
			rejected = append(rejected, i.String())
		}
		rejected = append(rejected, unusable...)
	}
	i, err := l.fetch(ctx, a, major, log)
	if err == nil {
		return i, nil
	}
	if ctx.Err() != nil {
		return installation{}, fmt.Errorf("fetch PostgreSQL: %w", ctx.Err())
	}
	needed := fmt.Sprintf("queued needs PostgreSQL %d or newer", oldestMajor)
	advice := fmt.Sprintf("install PostgreSQL %d or newer (for example `apt-get install postgresql`)", oldestMajor)
	if major != 0 {
		needed = fmt.Sprintf("%s was made by PostgreSQL %d, and only that major version can open it", cluster, major)
		advice = fmt.Sprintf("install PostgreSQL %d (for example `apt-get install postgresql-%[1]d`), choose another QUEUED_DATA_DIR,", major)
	}
	return installation{}, fmt.Errorf("%s; this machine has %s, and %w: %s or set QUEUED_DATABASE_URL to a server of your own",
		needed, cmp.Or(strings.Join(rejected, ", "), "none"), err, advice)
}

// installed returns the bin directories on this machine that may hold a server.
func (l locations) installed(ctx context.Context) []string {
	if l.binDirs != nil {
		return glob(l.binDirs...)
	}
	var dirs []string
	for _, name := range []string{"postgres", "initdb"} {
		if path, err := exec.LookPath(name); err == nil {
			if path, err = filepath.EvalSymlinks(path); err == nil {
				dirs = append(dirs, filepath.Dir(path))
			}
		}
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	return append(dirs, glob(
		"/usr/lib/postgresql/*/bin",     // Debian, Ubuntu
		"/usr/pgsql-*/bin",              // PostgreSQL's own packages for Red Hat and relatives
		"/usr/lib/postgresql[0-9]*/bin", // SUSE
		"/usr/libexec/postgresql[0-9]*", // Alpine
		"/usr/local/pgsql/bin",          // built from source
		"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin", "/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	)...)
}

// fetched returns the bin directories of the versions that were fetched before.
func (l locations) fetched() []string {
	cache, err := l.cacheDir()
	if err != nil {
		return nil
	}
	return glob(filepath.Join(escapeGlob(cache), "postgres-*", "bin"))
}

func glob(patterns ...string) []string {
	var paths []string
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern) // the only error is a malformed pattern
		paths = append(paths, found...)
	}
	return paths
}

// escapeGlob returns a pattern that matches path only.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// usable returns the servers among dirs that the account can run, the newest first, and a description of each one that it rejects.
// It fails when the account cannot run any program at all.
func usable(ctx context.Context, a account, dirs []string) (found []installation, rejected []string, err error) {
	var seen []os.FileInfo
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || slices.ContainsFunc(seen, func(other os.FileInfo) bool { return os.SameFile(info, other) }) || !hasServer(dir) {
			continue
		}
		seen = append(seen, info)
		i, err := inspect(ctx, a, dir)
		switch {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case errors.Is(err, syscall.EPERM):
			return nil, nil, fmt.Errorf("queued runs as root and PostgreSQL must not, but this process may not run programs as user %s: %w: "+
				"run queued as an ordinary user", a.name, err)
		case err != nil:
			rejected = append(rejected, fmt.Sprintf("one in %s that cannot be used (%v)", dir, err))
		case i.major < oldestMajor:
			rejected = append(rejected, i.String())
		default:
			found = append(found, i)
		}
	}
	slices.SortStableFunc(found, func(a, b installation) int {
		return cmp.Or(b.major-a.major, b.minor-a.minor)
	})
	return found, rejected, nil
}

// hasServer reports whether dir holds the programs of a server. A client's installation lacks some.
func hasServer(dir string) bool {
	for _, name := range []string{"initdb", "postgres", "pg_ctl"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			return false
		}
	}
	return true
}

// versionText matches the output of `postgres --version`: "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)", "… 18beta1".
var versionText = regexp.MustCompile(`(?m)^postgres \(.*?\) (\d+)(?:\.(\d+))?`)

// inspect asks the server in dir for its version, as the account that is to run it.
func inspect(ctx context.Context, a account, dir string) (installation, error) {
	i := installation{binDir: dir}
	out, err := a.run(ctx, "/", i.program("postgres"), "--version")
	if errors.Is(err, os.ErrPermission) && !errors.Is(err, syscall.EPERM) {
		return i, fmt.Errorf("user %s may not run it", a.name)
	}
	if err != nil {
		return i, err
	}
	version := versionText.FindStringSubmatch(string(out))
	if version == nil {
		return i, fmt.Errorf("it reports its version as %q", out)
	}
	i.major, _ = strconv.Atoi(version[1])
	i.minor, _ = strconv.Atoi(version[2])
	return i, nil
}

// fetch downloads the PostgreSQL of the given major version, 0 for the preferred one, into the cache.
func (l locations) fetch(ctx context.Context, a account, major int, log zerolog.Logger) (installation, error) {
	versions := l.versions
	if versions == nil {
		versions = fetchVersions
	}
	known := l.checksums
	if known == nil {
		known = checksums
	}
	here := platform(ctx) + "-"
	isWanted := func(v string) bool { return major == 0 || strings.HasPrefix(v, strconv.Itoa(major)+".") }
	if !slices.ContainsFunc(versions, isWanted) {
		return installation{}, fmt.Errorf("there is no PostgreSQL %d to fetch", major)
	}
	at := slices.IndexFunc(versions, func(v string) bool { return isWanted(v) && known[here+v] != "" })
	if at < 0 {
		return installation{}, fmt.Errorf("this program knows no checksum of a PostgreSQL for %s, and fetches nothing that it cannot check", strings.TrimSuffix(here, "-"))
	}
	version, repository := versions[at], cmp.Or(l.repository, mavenCentral)
	checksum := known[here+version]
	cache, err := l.cacheDir()
	if err != nil {
		return installation{}, fmt.Errorf("there is no directory to fetch one to: %w", err)
	}
	log.Info().Str("version", version).Str("from", repository).Msg("this machine has no PostgreSQL to use, fetching one")
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	target := filepath.Join(cache, "postgres-"+version)
	i := installation{}
	if err = fetchTo(ctx, target, repository, version, checksum); err == nil {
		i, err = inspect(ctx, a, filepath.Join(target, "bin"))
	}
	if err == nil && major != 0 && i.major != major {
		err = fmt.Errorf("the archive holds PostgreSQL %s", i.version())
	}
	if err != nil {
		return installation{}, fmt.Errorf("fetching PostgreSQL %s from %s failed: %w", version, repository, err)
	}
	return i, nil
}

// fetchTo downloads a version, whose archive has this checksum, and unpacks it as the directory target in the cache, completely or not at all.
func fetchTo(ctx context.Context, target, repository, version, checksum string) error {
	cache := filepath.Dir(target)
	file, err := lockCache(ctx, cache)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if hasServer(filepath.Join(target, "bin")) { // another process fetched it meanwhile
		return nil
	}
	staging := filepath.Join(cache, "fetch")
	if err := os.RemoveAll(staging); err != nil { // left by a process that was killed
		return err
	}
	artifact := "embedded-postgres-binaries-" + platform(ctx)
	jar, err := download(ctx, fmt.Sprintf("%s/io/zonky/test/postgres/%s/%s/%[2]s-%[3]s.jar", repository, artifact, version), checksum)
	if err != nil {
		return err
	}
	err = unpack(ctx, jar, staging)
	switch {
	case err != nil:
		err = fmt.Errorf("unpacking the archive: %w", err)
	case !hasServer(filepath.Join(staging, "bin")):
		err = errors.New("the archive holds no PostgreSQL server")
	default:
		waitUntilWritten(filepath.Join(staging, "bin"))
		err = errors.Join(os.RemoveAll(target), os.Rename(staging, target)) // the old target is incomplete
	}
	return errors.Join(err, os.RemoveAll(staging))
}

// lockCache makes the cache directory and waits until no other process fetches into it. The lock ends when the file is closed.
func lockCache(ctx context.Context, cache string) (*os.File, error) {
	err := os.MkdirAll(cache, 0o755) //nolint:gosec // the account that runs PostgreSQL reads it
	if err == nil && os.Geteuid() == 0 {
		err = os.Chmod(cache, 0o755) //nolint:gosec // that account is another one, which the umask may shut out
	}
	if err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // a file of the cache
	if err != nil {
		return nil, err
	}
	for err = lock(file); errors.Is(err, syscall.EWOULDBLOCK); err = lock(file) {
		if err = pause(ctx, 100*time.Millisecond); err != nil {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// cacheDir returns the directory for fetched versions.
func (l locations) cacheDir() (string, error) {
	if l.cache != "" {
		return l.cache, nil
	}
	if os.Geteuid() == 0 {
		return "/var/cache/queued", nil
	}
	if dir, err := os.UserCacheDir(); err == nil {
		return filepath.Join(dir, "queued"), nil
	}
	home, err := homeDir()
	return filepath.Join(home, ".cache", "queued"), err
}

// platform returns the repository's name for this machine, such as "linux-amd64", "linux-arm64v8-alpine" or "darwin-arm64v8".
func platform(ctx context.Context) string {
	name := runtime.GOOS + "-" + runtime.GOARCH
	switch runtime.GOARCH {
	case "arm64":
		name += "v8"
	case "arm": // uname says armv6l or armv7l
		if out, err := exec.CommandContext(ctx, "uname", "-m").Output(); err == nil && len(out) > 4 { //nolint:gosec // its arguments are constants
			name += "32" + string(out[3:5])
		}
	}
	if _, err := os.Stat("/etc/alpine-release"); err == nil {
		name += "-alpine"
	}
	return name
}

// download returns the file at url, and fails unless it has this SHA-256 checksum.
func download(ctx context.Context, url, checksum string) ([]byte, error) {
	file, err := get(ctx, url)
	if err != nil {
		return nil, err
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(file)); got != checksum {
		return nil, fmt.Errorf("%s has the wrong checksum: its SHA-256 is %s, and this program was made for %s", url, got, checksum)
	}
	return file, nil
}

// get returns the body of a successful response.
func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true // no connection is kept open
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s was answered %s", url, res.Status)
	}
	body, err := io.ReadAll(http.MaxBytesReader(nil, res.Body, maxDownload))
	if err != nil {
		return nil, fmt.Errorf("downloading %s: %w", url, err)
	}
	return body, nil
}

// unpack makes dir from a jar: a zip archive of a tar archive that is compressed by xz.
func unpack(ctx context.Context, jar []byte, dir string) error {
	archive, err := zip.NewReader(bytes.NewReader(jar), int64(len(jar)))
	if err != nil {
		return err
	}
	at := slices.IndexFunc(archive.File, func(f *zip.File) bool { return strings.HasSuffix(f.Name, ".txz") })
	if at < 0 {
		return errors.New("it holds no .txz file")
	}
	compressed, err := archive.File[at].Open()
	if err != nil {
		return err
	}
	defer func() { _ = compressed.Close() }()
	decompressed, err := xz.NewReader(compressed, 0)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir) // no name in the archive leads out of it
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	files := tar.NewReader(decompressed)
	for ctx.Err() == nil {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = extract(root, header, files)
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// extract makes one entry of a tar archive, readable by every user whatever the umask is.
func extract(root *os.Root, header *tar.Header, content io.Reader) error {
	name := filepath.Clean(header.Name)
	if header.Typeflag == tar.TypeDir {
		return makeDir(root, name)
	}
	if err := makeDir(root, filepath.Dir(name)); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeReg:
		file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		mode := os.FileMode(0o644)
		if header.Mode&0o100 != 0 {
			mode = 0o755
		}
		return errors.Join(err, file.Chmod(mode), file.Close())
	case tar.TypeSymlink:
		return root.Symlink(header.Linkname, name)
	case tar.TypeLink:
		return root.Link(filepath.Clean(header.Linkname), name)
	}
	return fmt.Errorf("%s is of the unexpected type %q", name, header.Typeflag)
}

// makeDir makes a directory and its missing parents.
func makeDir(root *os.Root, name string) error {
	err := root.MkdirAll(name, 0o755)
	for ; err == nil; name = filepath.Dir(name) {
		if err = root.Chmod(name, 0o755); name == "." {
			break
		}
	}
	return err
}
