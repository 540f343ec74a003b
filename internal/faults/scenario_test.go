package faults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A scenario strikes at what it has set up, for a number of rounds, and writes into the ledger what came of it.
type scenario func(t *testing.T, b build, l *ledger, rounds int)

// holds runs a scenario on the program as it is: the ledger must be clean.
func (s scenario) holds(t *testing.T, short, long int) {
	t.Helper()
	l := newLedger()
	s(t, sound, l, rounds(t, short, long))
	l.report(t)
}

// catches runs a scenario on a program that was broken on purpose: the ledger must complain.
func (s scenario) catches(t *testing.T, b build, rounds int) {
	t.Helper()
	l := newLedger()
	s(t, b, l, rounds)
	if l.clean() {
		l.report(t)
		t.Errorf("nothing was seen of the broken build %q", b.name)
		return
	}
	t.Logf("the broken build %q: %s", b.name, l.summary())
}

// What a broken build changes has to be there. That it is caught is seen in the long form; that it can still be made, here.
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
	for _, b := range []build{unfenced, early, local, trusting, unmoved, unheard, resent, blind, late, patient, unlocked, leaking} {
		for _, e := range b.edits {
			text, err := os.ReadFile(filepath.Join(root(t), e.file))
			if err != nil || !strings.Contains(string(text), e.old) {
				t.Errorf("the broken build %q: %s has no %q any more (%v)", b.name, e.file, e.old, err)
			}
		}
		for _, e := range b.sql {
			if !strings.Contains(functions.String(), e.old) {
				t.Errorf("the broken build %q: no function has %q any more", b.name, e.old)
			}
		}
	}
}
