package faults

import "testing"

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
