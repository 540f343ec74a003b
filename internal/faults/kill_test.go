//go:build unix

package faults

import (
	"testing"
	"time"
)

// The broken builds of this file.
var (
	ackUnfenced = build{name: "an ack whose receipt is not compared", sql: []edit{{
		"move_to_history", `    and case
      when a.hash is not null then e.attempts = a.attempt and agent_private.has_token_hash(e.receipt_hash, a.hash)
      else a.receipt is null or agent_private.is_receipt(a.receipt, e.id, e.attempts, e.receipt_hash)
    end
`, "",
	}}}
	answerBeforeCommit = build{name: "answers before the commit", edits: []edit{
		{"internal/queue/transaction.go", "pool.SendBatch(ctx, tx.batch)", "answerEarly(ctx, pool, tx.batch)"},
		{"internal/queue/transaction.go", "// transaction is one group commit in the making.", `
func answerEarly(ctx context.Context, pool interface{ Begin(context.Context) (pgx.Tx, error) }, batch *pgx.Batch) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	err = tx.SendBatch(ctx, batch).Close()
	go func() {
		time.Sleep(20 * time.Millisecond)
		_ = tx.Commit(context.Background())
	}()
	return err
}

// transaction is one group commit in the making.`},
	}}
	commitAsync = build{name: "commits that return before they are on disk", setting: `alter database queued set synchronous_commit = off`}
)

// killQueued kills each of two processes in turn.
func killQueued(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	servers := []*queued{startQueued(t, b, server.URL()), startQueued(t, b, server.URL())}
	b.breakDatabase(t, server)
	d := startLoad(t, l, servers...)
	for i := range rounds {
		d.awaitInserts(20)
		victim := servers[i%2]
		victim.kill()
		victim.start()
		victim.awaitReady(startLimit)
	}
	d.awaitInserts(20)
	d.finish(server.AdminURL())
}

func TestNothingIsLostWhenQueuedIsKilled(t *testing.T) {
	t.Parallel()
	runScenario(t, killQueued, 5, 200)
}

func TestBrokenBuildWithAnswerBeforeCommitIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, killQueued, answerBeforeCommit, 6)
}

func TestBrokenBuildWithUnfencedAckIsCaughtByQueuedKill(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, killQueued, ackUnfenced, 20)
}

// killPostgres kills all processes of PostgreSQL.
func killPostgres(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	// The WAL writer must not write commits to disk that did not wait for it.
	server := Start(t, Config{Settings: map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "0"}})
	q := startQueued(t, b, server.URL())
	b.breakDatabase(t, server)
	d := startLoad(t, l, q)
	var longest time.Duration
	for range rounds {
		d.awaitInserts(20)
		server.Kill()
		server.Start()
		longest = max(longest, d.awaitInsertAfter(time.Now()))
	}
	t.Logf("the first insert succeeded within %v of the restart", longest)
	d.finish(server.AdminURL())
}

func TestNothingIsLostWhenPostgresIsKilled(t *testing.T) {
	t.Parallel()
	runScenario(t, killPostgres, 2, 50)
}

func TestBrokenBuildWithAsyncCommitIsCaughtByPostgresKill(t *testing.T) {
	inLongForm(t)
	t.Parallel()
	expectViolation(t, killPostgres, commitAsync, rounds(t, 2, 5))
}
