package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
	"github.com/rs/zerolog"
)

// oldest is the first major version of PostgreSQL that queued works on.
const oldest = 14

// programs is the bin directory of a PostgreSQL server.
type programs struct {
	dir          string
	major, minor int
}

func (p programs) path(name string) string { return filepath.Join(p.dir, name) }
func (p programs) version() string         { return fmt.Sprintf("%d.%d", p.major, p.minor) }

// machine is where PostgreSQL's programs come from. The zero value is the real one.
type machine struct {
	places     []string                           // patterns of bin directories; nil: PATH and the usual ones
	cache      string                             // holds what was fetched
	repository string                             // the URL of a Maven repository; "": Maven Central
	versions   []embeddedpostgres.PostgresVersion // what can be fetched, the preferred one first
}

// programs returns the programs to run a cluster of the given major version with, 0 for a new one:
// the newest on the machine, else those fetched earlier, else those it fetches now.
func (m machine) programs(ctx context.Context, a account, major int, cluster string, log zerolog.Logger) (programs, error) {
	var others []string
	for _, dirs := range [][]string{m.installed(ctx), m.fetched()} {
		found, refused, err := usable(ctx, a, dirs)
		if err != nil {
			return programs{}, err
		}
		for _, p := range found {
			if major == 0 || p.major == major {
				return p, nil
			}
			others = append(others, fmt.Sprintf("%s (%s)", p.version(), p.dir))
		}
		others = append(others, refused...)
	}
	fetched, err := m.fetch(ctx, a, major, log)
	if err == nil {
		return fetched, nil
	}
	if ctx.Err() != nil {
		return programs{}, fmt.Errorf("fetch PostgreSQL: %w", ctx.Err())
	}
	return programs{}, missing(major, cluster, others, err)
}

// missing explains to whoever starts queued what to install.
func missing(major int, cluster string, others []string, cause error) error {
	has := "none"
	if len(others) > 0 {
		has = strings.Join(others, ", ")
	}
	if major == 0 {
		return fmt.Errorf("queued needs PostgreSQL %d or newer; this machine has %s, and %w: install PostgreSQL %[1]d or newer (for example `apt-get install postgresql`), or set QUEUED_DATABASE_URL to a server of your own", oldest, has, cause)
	}
	return fmt.Errorf("%s was made by PostgreSQL %d, and only that major version can open it; this machine has %s, and %w: install PostgreSQL %[2]d (for example `apt-get install postgresql-%[2]d`), choose another QUEUED_DATA_DIR, or set QUEUED_DATABASE_URL to a server of your own", cluster, major, has, cause)
}

// installed returns the bin directories on this machine that may hold a server.
func (m machine) installed(ctx context.Context) []string {
	if m.places != nil {
		return matches(m.places...)
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
	return append(dirs, matches(
		"/usr/lib/postgresql/*/bin",     // Debian, Ubuntu
		"/usr/pgsql-*/bin",              // PostgreSQL's own packages for Red Hat and relatives
		"/usr/lib/postgresql[0-9]*/bin", // SUSE
		"/usr/libexec/postgresql[0-9]*", // Alpine
		"/usr/local/pgsql/bin",          // built from source
		"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin", "/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	)...)
}

func matches(patterns ...string) []string {
	var dirs []string
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern) // fails on a malformed pattern alone
		dirs = append(dirs, found...)
	}
	return dirs
}

// escapeGlob returns a pattern that matches just path.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// usable returns the servers among dirs that the account can run, the newest first, and says of
// each server that it cannot use why. It fails when the account cannot run any program at all.
func usable(ctx context.Context, a account, dirs []string) (found []programs, refused []string, err error) {
	var seen []os.FileInfo
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || slices.ContainsFunc(seen, func(other os.FileInfo) bool { return os.SameFile(info, other) }) || !complete(dir) {
			continue
		}
		seen = append(seen, info)
		p, err := probe(ctx, a, dir)
		switch {
		case ctx.Err() != nil:
			return nil, nil, ctx.Err()
		case errors.Is(err, syscall.EPERM):
			return nil, nil, fmt.Errorf("queued runs as root and PostgreSQL must not, but this process may not run programs as user %s: %w: run queued as an ordinary user", a.name, err)
		case err != nil:
			refused = append(refused, fmt.Sprintf("one in %s that cannot be used (%v)", dir, err))
		case p.major < oldest:
			refused = append(refused, fmt.Sprintf("%s (%s)", p.version(), dir))
		default:
			found = append(found, p)
		}
	}
	slices.SortStableFunc(found, func(a, b programs) int {
		if a.major != b.major {
			return b.major - a.major
		}
		return b.minor - a.minor
	})
	return found, refused, nil
}

// complete reports whether dir has what a server needs. A client's installation has less.
func complete(dir string) bool {
	for _, name := range []string{"initdb", "postgres", "pg_ctl"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			return false
		}
	}
	return true
}

// versionText is what `postgres --version` says: "postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)", "… 18beta1".
var versionText = regexp.MustCompile(`^postgres \(.*?\) (\d+)(?:\.(\d+))?`)

// probe asks the server in dir for its version, as the account that is to run it.
func probe(ctx context.Context, a account, dir string) (programs, error) {
	p := programs{dir: dir}
	out, err := a.command(ctx, p.path("postgres"), "--version").Output()
	if errors.Is(err, os.ErrPermission) && !errors.Is(err, syscall.EPERM) {
		return p, fmt.Errorf("user %s may not run it", a.name)
	}
	if err != nil {
		return p, err
	}
	version := versionText.FindStringSubmatch(string(out))
	if version == nil {
		return p, fmt.Errorf("it gives its version as %q", out)
	}
	p.major, _ = strconv.Atoi(version[1])
	p.minor, _ = strconv.Atoi(version[2])
	return p, nil
}
