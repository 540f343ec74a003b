package main

import (
	"errors"
	"net/url"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool" //nolint:depguard // it only parses here; nothing is opened
)

const takesDatabase = `a URL such as "postgres://user:password@host:5432/database", ` +
	`or keywords such as "host=/run/postgresql dbname=queued"`

// parseDatabaseURL accepts what the driver accepts. Its errors never repeat the text, which may
// hold a password, nor any part that a misplaced delimiter could have made of one.
func parseDatabaseURL(text string, _ *kong.Tag) (any, error) {
	if strings.TrimSpace(text) == "" {
		return nil, refuse("", takesDatabase)
	}
	got := errors.New("got a value that is not shown, as it may hold a password; takes " + takesDatabase)
	if isURL(text) && misplacedAt(text) {
		return nil, errors.New(`got a URL with an "@" where none belongs; in a user's name, a password or any ` +
			`other value "/" must be written as %2F, "?" as %3F, "#" as %23 and "@" as %40`)
	}
	if _, err := pgxpool.ParseConfig(text); err != nil {
		_, detail, ok := strings.Cut(err.Error(), "`: ")
		if !ok || strings.HasPrefix(detail, "failed to parse as") {
			return nil, got
		}
		return nil, errors.New(got.Error() + ": " + detail)
	}
	return text, nil
}

func isURL(text string) bool {
	return strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://")
}

// misplacedAt says whether a URL has an "@" that does not end the user's name and password:
// then a delimiter within the password has most likely cut it in two, and one half would pass
// for a host, a port or a database, which are no secrets.
func misplacedAt(text string) bool {
	_, rest, _ := strings.Cut(text, "://")
	if i := strings.IndexAny(rest, "@/?#"); i >= 0 && rest[i] == '@' {
		rest = rest[i+1:]
	}
	return strings.Contains(rest, "@")
}

// describeDatabase says which database a valid text leads to, without its password and options.
func describeDatabase(text string) string {
	cfg, err := pgxpool.ParseConfig(text)
	if err != nil {
		return "PostgreSQL"
	}
	conn := cfg.ConnConfig
	if strings.HasPrefix(conn.Host, "/") || strings.HasPrefix(conn.Host, "@") {
		return "host=" + conn.Host + " user=" + conn.User + " dbname=" + conn.Database
	}
	shown := url.URL{
		Scheme: "postgres", User: url.User(conn.User), Path: "/" + conn.Database,
		Host: hostPort(conn.Host, int(conn.Port)),
	}
	return shown.String()
}

var (
	urlPassword     = regexp.MustCompile(`(://)\S*@`)
	keywordPassword = regexp.MustCompile(`(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'?|\S+)`)
)

// redact removes what looks like a password in a connection string from a text that others
// wrote: the last line of defence, for text that should hold none.
func redact(text string) string {
	text = urlPassword.ReplaceAllString(text, "${1}xxxxx@")
	return keywordPassword.ReplaceAllString(text, "${1}xxxxx")
}
