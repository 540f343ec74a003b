//go:build unix

package faults

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// lockTimeoutLeft is the broken build of this file.
var lockTimeoutLeft = build{name: "a lock timeout that stays in the pooler's session", edits: []edit{{
	"internal/pg/pool.go", "` + p.LockTimeout() + `', true)`", "` + p.LockTimeout() + `', false)`",
}}}

// throughPooler runs two processes behind a PgBouncer and checks the sessions that other clients of the pooler get.
func throughPooler(mode string) scenario {
	return func(t *testing.T, b build, l *ledger, rounds int) {
		t.Helper()
		server := Start(t, Config{})
		// In session mode each connection of the processes holds a session: up to 38 for each, and 12 for the others.
		pooler := StartPooler(t, server, mode, "default_pool_size = 80")
		// Transaction mode does not support LISTEN, so notifications need a direct connection.
		environ := []string{"QUEUED_LISTEN_URL=" + server.URL()}
		servers := []*queued{startQueued(t, b, pooler.URL(), environ...), startQueued(t, b, pooler.URL(), environ...)}
		b.breakDatabase(t, server)
		d := startLoad(t, l, servers...)
		for range rounds {
			d.awaitInserts(100)
			checkSessions(t, pooler, l)
		}
		d.finish(server.AdminURL())
	}
}

// checkSessions checks that queued has left no settings in the sessions it shares with others.
func checkSessions(t *testing.T, pooler *Pooler, l *ledger) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const others = 12
	conns := make([]*pgx.Conn, 0, others)
	for range others {
		conn, err := pgx.Connect(ctx, pooler.URL()+"&default_query_exec_mode=exec")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(ctx) }()
		if _, err := conn.Exec(ctx, "begin"); err != nil { // occupies a session
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		var changed *string
		err := conn.QueryRow(ctx, `
			select string_agg(format('%s = %s', name, setting), ', ') from pg_catalog.pg_settings
			where source = 'session' and name in ('lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout', 'search_path', 'default_transaction_isolation', 'synchronous_commit', 'timezone')
			and setting is distinct from reset_val`).Scan(&changed)
		if err != nil {
			t.Fatal(err)
		}
		if changed != nil {
			l.violated("another client of the pooler got a session with %s", *changed)
		}
	}
}

func TestNothingIsLostThroughPgBouncerInTransactionMode(t *testing.T) {
	t.Parallel()
	runScenario(t, throughPooler("transaction"), 1, 10)
}

func TestNothingIsLostThroughPgBouncerInSessionMode(t *testing.T) {
	t.Parallel()
	runScenario(t, throughPooler("session"), 1, 10)
}

func TestBrokenBuildWithSessionLockTimeoutIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, throughPooler("transaction"), lockTimeoutLeft, 2)
}
