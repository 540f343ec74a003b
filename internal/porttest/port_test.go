package porttest_test

import (
	"testing"

	"github.com/queued/queued/internal/porttest"
)

func TestNoPortIsGivenTwice(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for range 300 {
		port := porttest.Free(t)
		if seen[port] {
			t.Fatalf("port %d was given twice", port)
		}
		seen[port] = true
	}
}
