package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	databaseName = "queued"
	userRole     = "queued" // the cluster's superuser
	socketPort   = "5432"   // no port is opened; PostgreSQL names the socket by it
	// longestSocket is the longest path a socket can have on every system: sockaddr_un has room
	// for 108 bytes on Linux and for 104 on macOS, one of them for the final NUL.
	longestSocket = 103
)

// writeAccessRules says who may connect: the user that this process runs as, whom the kernel
// vouches for, without a password. That is stricter than the socket directory's permissions,
// which already keep others out, and unlike a password there is nothing to keep, leak or
// compute. Other roles, should an operator make some, need a password. Nobody else gets in.
func (d dataDir) writeAccessRules(ctx context.Context) error {
	name, err := ownName(ctx)
	if err != nil {
		return err
	}
	hba := "# Written at every start of queued.\n" +
		"local all         " + userRole + " peer map=queued\n" +
		"local replication " + userRole + " peer map=queued\n" +
		"local all         all    scram-sha-256\n"
	ident := "# Written at every start of queued.\n" +
		"queued \"" + name + "\" " + userRole + "\n"
	if err := errors.Join(d.write(d.hbaFile(), hba), d.write(d.identFile(), ident)); err != nil {
		return fmt.Errorf("write the access rules: %w", err)
	}
	return nil
}

// socketDir is the directory of the server's socket, which only the server's account and root can enter.
type socketDir string

func (s socketDir) file() string { return filepath.Join(string(s), ".s.PGSQL."+socketPort) }

// usable reports whether clients can be told this path: it fits, and is no list of hosts.
func (s socketDir) usable() bool {
	return len(s.file()) <= longestSocket && !strings.Contains(string(s), ",")
}

func (s socketDir) url(database string) string {
	query := url.Values{"host": {string(s)}, "port": {socketPort}, "sslmode": {"disable"}}
	u := url.URL{
		Scheme: "postgres",
		User:   url.User(userRole),
		Path:   "/" + database,
		// libpq does not take "+" for a space.
		RawQuery: strings.ReplaceAll(query.Encode(), "+", "%20"),
	}
	return u.String()
}

// makeSocketDir makes run/ anew. Where its path is too long for a socket, run is a link to a
// directory with a short one.
func (d dataDir) makeSocketDir(ctx context.Context, p programs, a account) (socketDir, error) {
	if err := d.dropSocketDir(); err != nil {
		return "", err
	}
	if dir := socketDir(d.run()); dir.usable() {
		if err := os.Mkdir(d.run(), 0o700); err != nil {
			return "", fmt.Errorf("make the socket directory: %w", err)
		}
		return dir, a.own(d.run())
	}
	for _, base := range []string{os.TempDir(), "/tmp"} {
		// MkdirTemp adds up to ten digits.
		if !socketDir(filepath.Join(base, "queued-0123456789")).usable() || !a.canEnter(ctx, p, base) {
			continue
		}
		path, err := os.MkdirTemp(base, "queued-")
		if err != nil {
			return "", fmt.Errorf("make the socket directory: %w", err)
		}
		if err := errors.Join(a.own(path), os.Symlink(path, d.run())); err != nil {
			return "", errors.Join(fmt.Errorf("make the socket directory: %w", err), os.Remove(path))
		}
		return socketDir(path), nil
	}
	return "", fmt.Errorf("the path %s is too long for a socket, and so is that of the directory for temporary files: choose a shorter QUEUED_DATA_DIR or TMPDIR", d.run())
}

// dropSocketDir removes run/, or run and what it links to.
func (d dataDir) dropSocketDir() error {
	if target, err := os.Readlink(d.run()); err == nil {
		// By name, not by RemoveAll, as the directory stands among other people's.
		socket := socketDir(target).file()
		for _, path := range []string{socket, socket + ".lock", target} {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove the socket directory: %w", err)
			}
		}
	}
	if err := os.RemoveAll(d.run()); err != nil {
		return fmt.Errorf("remove the socket directory: %w", err)
	}
	return nil
}

// ensureDatabase connects to the database, which it makes when it is not there.
func ensureDatabase(ctx context.Context, socket socketDir) error {
	err := execute(ctx, socket.url(databaseName), "select 1")
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "3D000" { // no such database
		return execute(ctx, socket.url("postgres"), "create database "+databaseName)
	}
	return err
}

func execute(ctx context.Context, url, statement string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}

// isNotYet reports whether err is what a server that is still starting answers, or the lack of an answer.
func isNotYet(err error) bool {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return refused.Code == "57P03" // cannot connect now: starting up or recovering
	}
	_, malformed := errors.AsType[*pgconn.ParseConfigError](err)
	return !malformed
}
