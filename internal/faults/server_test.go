//go:build unix

package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// query returns one value from a server.
func query[T any](t *testing.T, url, statement string, args ...any) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var value T
	if err := conn.QueryRow(ctx, statement, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return value
}

// Tests the harness: commits on a synchronous pair are on the standby when the primary is killed, and again after
// the old primary has rejoined and the new one is frozen.
func TestPairFailsOverAndBack(t *testing.T) {
	t.Parallel()
	pair := StartPair(t, Synchronous, Config{})
	pair.Primary.Exec("queued", `create table n (n int)`)
	faults := []func(){func() { pair.Primary.Kill() }, func() { pair.Primary.Freeze() }}
	for round, fault := range faults[:rounds(t, 1, 2)] {
		pair.Primary.Exec("queued", `insert into n values (1)`)
		fault()
		pair.Failover()
		if got := query[int](t, pair.Primary.AdminURL(), `select count(*) from n`); got != round+1 {
			t.Errorf("round %d: the new primary has %d rows, want %d", round, got, round+1)
		}
		pair.Rejoin()
	}
	if got := query[bool](t, pair.Standby.URL(), `select pg_is_in_recovery()`); !got {
		t.Error("the standby is not in recovery")
	}
	pooler := StartPooler(t, pair.Primary, "transaction")
	if got := query[string](t, pooler.URL()+"&default_query_exec_mode=exec", `select current_user`); got != "queued" {
		t.Errorf("PgBouncer connects as %s", got)
	}
}

// Tests the harness: commits that did not reach the standby are lost in an asynchronous failover.
func TestUnreplicatedCommitsAreLostInAsynchronousFailover(t *testing.T) {
	t.Parallel()
	pair := StartPair(t, Asynchronous, Config{})
	pair.Primary.Exec("queued", `create table n (n int)`)
	pair.Primary.AwaitStandby(pair.Standby)
	pair.Primary.PauseReplication()
	pair.Primary.Exec("queued", `insert into n values (1)`)
	pair.Primary.Kill()
	pair.Failover()
	if got := query[int](t, pair.Primary.AdminURL(), `select count(*) from n`); got != 0 {
		t.Errorf("the new primary has %d rows, want none", got)
	}
}

func TestFrozenServerDoesNotAnswerUntilUnfrozen(t *testing.T) {
	t.Parallel()
	server := Start(t, Config{})
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	server.Freeze()
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), `select 1`)
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Errorf("a frozen server answered: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	server.Unfreeze()
	if err := <-answered; err != nil {
		t.Error(err)
	}
	server.Kill()
	server.Start()
	var pgErr *pgconn.PgError
	if _, err := conn.Exec(t.Context(), `select 1`); err == nil || errors.As(err, &pgErr) && pgErr.Code != "57P01" {
		t.Errorf("a session continued after its server was killed: %v", err)
	}
}
