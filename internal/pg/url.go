package pg

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ConnectTimeout bounds connecting to each host of a URL without connect_timeout.
const ConnectTimeout = 3 * time.Second

// idleInTransactionTimeout is how long a process that is stopped, or cut off from the network, in the middle of a transaction can block
// others.
const idleInTransactionTimeout = 5 * time.Second

// sessionSettings are the settings that the services rely on. They override the defaults of the role, the database and the server, and
// parameters of the URL override them.
func sessionSettings() map[string]string {
	return map[string]string{
		"default_transaction_isolation":       "read committed",
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": fmt.Sprint(idleInTransactionTimeout.Milliseconds()),
		"intervalstyle":                       "postgres",
	}
}

// pooledSettings are further ones, which PgBouncer keeps for each client. It refuses or ignores all others.
func pooledSettings() map[string]string {
	return map[string]string{
		"client_encoding":             "UTF8",
		"datestyle":                   "ISO, MDY",
		"timezone":                    "UTC",
		"standard_conforming_strings": "on",
	}
}

// parsedURL is a database URL with the program's defaults.
type parsedURL struct {
	pool        *pgxpool.Config
	anyServer   bool // the URL has target_session_attrs=any
	hasExecMode bool // the URL has a default_query_exec_mode
	hasMaxConns bool // the URL has a pool_max_conns
}

// parseURL parses a URL or keywords as libpq takes them. Its errors may quote the text.
func parseURL(text string) (parsedURL, error) {
	pool, err := pgxpool.ParseConfig(text)
	if err != nil {
		return parsedURL{}, fmt.Errorf("parsing the database URL: %w", err)
	}
	p := parsedURL{pool: pool}
	// The parser's result does not show whether a parameter was in the URL. Adding another value to the URL shows it, since the first
	// value counts.
	if other, err := pgx.ParseConfig(withDefault(text, "target_session_attrs", "read-write")); err == nil && other.ValidateConnect == nil {
		p.anyServer = true
	}
	a, errA := pgx.ParseConfig(withDefault(text, "default_query_exec_mode", "exec"))
	b, errB := pgx.ParseConfig(withDefault(text, "default_query_exec_mode", "simple_protocol"))
	p.hasExecMode = errA == nil && errB == nil && a.DefaultQueryExecMode == b.DefaultQueryExecMode
	if conn, err := pgx.ParseConfig(text); err == nil { // it takes the parameters of pgxpool for settings
		_, p.hasMaxConns = conn.RuntimeParams["pool_max_conns"]
	}
	return p, nil
}

// withDefault adds a parameter to a URL or to keywords that do not have it.
func withDefault(text, name, value string) string {
	if !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://") {
		return name + "=" + value + " " + text // the last one counts
	}
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	if u.RawQuery != "" { // the first one counts
		u.RawQuery += "&"
	}
	u.RawQuery += name + "=" + value
	return u.String()
}
