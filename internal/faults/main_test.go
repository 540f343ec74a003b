//go:build unix

package faults

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

// QUEUED_FAULTS selects one of these. In the long form, QUEUED_FAULTS_ROUNDS replaces each scenario's number of rounds.
const (
	shortForm = "short"
	longForm  = "long"
	noForm    = "off"
)

func form() string {
	if f := os.Getenv("QUEUED_FAULTS"); f != "" {
		return f
	}
	return shortForm
}

func TestMain(m *testing.M) {
	if addr := os.Getenv(workerAddr); addr != "" {
		runWorker(addr)
		return
	}
	switch form() {
	case noForm:
		_, _ = fmt.Fprintln(os.Stderr, "faults: QUEUED_FAULTS=off, no tests are run")
		return
	case shortForm, longForm:
	default:
		_, _ = fmt.Fprintf(os.Stderr, "faults: QUEUED_FAULTS is %q; it is short, long or off\n", form())
		os.Exit(2)
	}
	code := m.Run()
	if err := removePrograms(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "faults:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// rounds returns how often a scenario injects its faults.
func rounds(t *testing.T, short, long int) int {
	t.Helper()
	if form() == shortForm {
		return short
	}
	if text := os.Getenv("QUEUED_FAULTS_ROUNDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("QUEUED_FAULTS_ROUNDS is %q; want a number of rounds", text)
		}
		return min(n, long)
	}
	return long
}

// inLongForm skips a test in the short form.
func inLongForm(t *testing.T) {
	t.Helper()
	if form() == shortForm {
		t.Skip("in the long form only: make faults")
	}
}
