package pg

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const takesURL = `a URL such as "postgres://user:password@host:5432/database", ` +
	`or keywords such as "host=/run/postgresql dbname=queued"`

// CheckURL fails unless text is a database URL, or keywords as libpq takes them. The error begins with "got" and repeats nothing that may
// be part of a password.
func CheckURL(text string) error {
	_, err := parseURL(text)
	return err
}

// DescribeURL returns a valid database URL without its password and options.
func DescribeURL(text string) string {
	e, err := parseURL(text)
	if err != nil {
		return "PostgreSQL"
	}
	conn := e.pool.ConnConfig
	if strings.HasPrefix(conn.Host, "/") || strings.HasPrefix(conn.Host, "@") { // a Unix socket
		return "host=" + conn.Host + " user=" + conn.User + " dbname=" + conn.Database
	}
	shown := url.URL{
		Scheme: "postgres", User: url.User(conn.User), Path: "/" + conn.Database,
		Host: net.JoinHostPort(conn.Host, strconv.Itoa(int(conn.Port))),
	}
	return shown.String()
}

// parseURL returns the endpoint of a URL, which has no dialer yet.
func parseURL(text string) (endpoint, error) {
	if strings.TrimSpace(text) == "" {
		return endpoint{}, errors.New("got nothing; takes " + takesURL)
	}
	if hasMisplacedAt(text) {
		return endpoint{}, errors.New(`got a URL with an "@" where none belongs; in a user's name, a password or any ` +
			`other value "/" must be written as %2F, "?" as %3F, "#" as %23 and "@" as %40`)
	}
	pool, err := pgxpool.ParseConfig(text)
	if err != nil {
		return endpoint{}, withoutText(err)
	}
	// Parameters that a parser does not know are settings of the server to it: those of pgx, and one by a name that nobody knows.
	const anyServer = "queued_session_attrs"
	plain, err := pgconn.ParseConfig(strings.ReplaceAll(text, "target_session_attrs", anyServer))
	if err != nil {
		return endpoint{}, withoutText(err)
	}
	_, hasExecMode := plain.RuntimeParams["default_query_exec_mode"]
	maxConns, _ := strconv.Atoi(plain.RuntimeParams["pool_max_conns"])
	return endpoint{
		pool:        pool,
		anyServer:   plain.RuntimeParams[anyServer] == "any",
		hasExecMode: hasExecMode,
		maxConns:    maxConns,
	}, nil
}

// withoutText returns an error of the parser without the text that it quotes: cannot parse `the text`: the reason.
func withoutText(err error) error {
	got := "got a value that is not shown, as it may hold a password; takes " + takesURL
	// Behind the last mark, as the text may have one, too; a text that cannot be read at all is quoted in pieces behind it.
	const mark = "`: "
	quoted := err.Error()
	if i := strings.LastIndex(quoted, mark); i >= 0 && !strings.Contains(quoted, mark+"failed to parse as") {
		got += ": " + quoted[i+len(mark):]
	}
	return errors.New(got)
}

// hasMisplacedAt reports whether a URL has an "@" that does not end the user's name and password. Then the password probably has a
// delimiter in it, and the parser would take a part of it for a host, a port or a database, which are no secrets.
func hasMisplacedAt(text string) bool {
	scheme, rest, _ := strings.Cut(text, "://")
	if scheme != "postgres" && scheme != "postgresql" {
		return false
	}
	if i := strings.IndexAny(rest, "@/?#"); i >= 0 && rest[i] == '@' {
		rest = rest[i+1:]
	}
	return strings.Contains(rest, "@")
}
