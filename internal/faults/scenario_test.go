//go:build unix

package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A scenario starts servers and a load, injects faults for a number of rounds, and records violated invariants in the ledger.
type scenario func(t *testing.T, b build, l *ledger, rounds int)

// runScenario runs a scenario on the program as it is, which must violate nothing.
func runScenario(t *testing.T, s scenario, short, long int) {
	t.Helper()
	l := newLedger()
	s(t, unmodified, l, rounds(t, short, long))
	l.report(t)
}

// expectViolation runs a scenario on a broken build, which must violate an invariant.
func expectViolation(t *testing.T, s scenario, b build, rounds int) {
	t.Helper()
	l := newLedger()
	s(t, b, l, rounds)
	if l.clean() {
		l.report(t)
		t.Errorf("the broken build %q violated nothing", b.name)
		return
	}
	t.Logf("the broken build %q: %s", b.name, l.summary())
}

// The texts that the broken builds replace must exist. The long form tests that each build violates an invariant.
func TestBrokenBuildsCanBeMade(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob(filepath.Join(root(t), "sql", "idempotent", "*.sql"))
	if err != nil {
		t.Fatal(err)
	}
	var functions strings.Builder
	for _, path := range scripts {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		functions.Write(text)
	}
	for _, b := range []build{
		ackUnfenced, answerBeforeCommit, commitLocal, longConnectTimeout, sequencesNotAdvanced, cancelledWaitCommits, transactionResent,
		watermarksUnchecked, futureEventsLeft, turnsLeftInFuture, noHeaderTimeout, migrationUnlocked, lockTimeoutLeft, unboundedPending, headNotHeld, logNotAdvanced, publishedBeforeCommit,
		deliveriesUnbounded, scanRemembered, lostAnswerIsFailure, insertsRepeated, keysFollowAtOnce, formerForgotten, groupsUnlocked, slotsFreedByTime, claimsUncounted, clockMoved,
	} {
		for _, e := range b.edits {
			if e.old == "" {
				continue // a file that is not there yet
			}
			text, err := os.ReadFile(e.path(t))
			if err != nil || !strings.Contains(string(text), e.old) {
				t.Errorf("the broken build %q: %s does not contain %q (%v)", b.name, e.file, e.old, err)
			}
		}
		for _, e := range b.sql {
			if !strings.Contains(functions.String(), e.old) {
				t.Errorf("the broken build %q: no function contains %q", b.name, e.old)
			}
		}
	}
}
