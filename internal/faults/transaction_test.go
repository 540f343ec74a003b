//go:build unix

package faults

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// watermarksUnchecked is the broken build of this file: claims start at watermarks, and events found below these are not claimed.
var watermarksUnchecked = build{name: "events below a watermark are not claimed", edits: []edit{
	{"internal/watermark/watermark.go", "if vt != nil && (!known || vt.Before(l.mark)) {", "if vt != nil && !known {"},
	{"internal/queue/service.go", "defaultWatermarkScanTime = 250 * time.Microsecond", "defaultWatermarkScanTime = 1"},
}}

// holdTransaction inserts an event in a transaction that stays open for the given minutes (seconds in the short form) and then commits.
func holdTransaction(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	q := startQueued(t, b, server.URL())
	b.breakDatabase(t, server)
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	const late = "inserted long before its commit"
	l.inserting(late)
	var id int64
	if err := tx.QueryRow(t.Context(), `select agent.insert_event(jsonb_build_object('n', $1::text))`, late).Scan(&id); err != nil {
		t.Fatal(err)
	}
	d := startLoad(t, l, q)
	round := time.Minute
	if form() == shortForm {
		round = time.Second
	}
	var first, last int
	for i := range rounds {
		before, _ := l.counts()
		pause(round) // keeps the transaction open
		last, _ = l.counts()
		last -= before
		if i == 0 {
			first = last
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.inserted(late, id)
	t.Logf("open for %v: %d inserts succeeded in the first %v, %d in the last", time.Duration(rounds)*round, first, round, last)
	d.awaitInserts(20)
	d.finish(server.AdminURL())
}

func TestLongTransactionLosesNothingAndBlocksNobody(t *testing.T) {
	t.Parallel()
	runScenario(t, holdTransaction, 5, 30)
}

func TestBrokenBuildWithoutScanBelowWatermarkIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, holdTransaction, watermarksUnchecked, 1)
}
