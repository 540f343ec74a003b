package pg

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ConnectTimeout bounds connecting to each host of a URL that has no connect_timeout of its own.
const ConnectTimeout = 3 * time.Second

// idleInTransactionTimeout is how long a session of the service may hold locks without a statement. A process that is stopped in the
// middle of a transaction, or cut off from the network, holds up the others for no longer than this.
const idleInTransactionTimeout = 5 * time.Second

// sessionSettings are what every session of the service relies on, whatever its role, its database or the server have as defaults. A
// parameter of the URL goes before them.
func sessionSettings() map[string]string {
	return map[string]string{
		"default_transaction_isolation":       "read committed",
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": fmt.Sprint(idleInTransactionTimeout.Milliseconds()),
		"intervalstyle":                       "postgres",
	}
}

// pooledSettings are those of the session settings that PgBouncer keeps for each of its clients. It refuses others, or passes them over.
func pooledSettings() map[string]string {
	return map[string]string{
		"client_encoding":             "UTF8",
		"datestyle":                   "ISO, MDY",
		"timezone":                    "UTC",
		"standard_conforming_strings": "on",
	}
}

// parsed is what a URL says, with the service's defaults.
type parsed struct {
	pool        *pgxpool.Config
	anyServer   bool // the URL has target_session_attrs=any
	ownExecMode bool // the URL has a default_query_exec_mode
	ownMaxConns bool // the URL has a pool_max_conns
}

// parse reads a URL or keywords as libpq takes them. Its errors may quote the text.
func parse(text string) (parsed, error) {
	pool, err := pgxpool.ParseConfig(text)
	if err != nil {
		return parsed{}, fmt.Errorf("reading the database URL: %w", err)
	}
	p := parsed{pool: pool}
	// What a URL leaves out is not to be seen in what the parser returns, but what it says goes before what is added.
	if other, err := pgx.ParseConfig(withDefault(text, "target_session_attrs", "read-write")); err == nil && other.ValidateConnect == nil {
		p.anyServer = true
	}
	a, errA := pgx.ParseConfig(withDefault(text, "default_query_exec_mode", "exec"))
	b, errB := pgx.ParseConfig(withDefault(text, "default_query_exec_mode", "simple_protocol"))
	p.ownExecMode = errA == nil && errB == nil && a.DefaultQueryExecMode == b.DefaultQueryExecMode
	if conn, err := pgx.ParseConfig(text); err == nil { // which does not know the pool's parameters
		_, p.ownMaxConns = conn.RuntimeParams["pool_max_conns"]
	}
	return p, nil
}

// withDefault adds a parameter to a URL or to keywords that counts only when the text does not have it.
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
