package pg_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/queued/queued/internal/pg"
)

// A host of a fake resolver: its addresses, after a time.
type fakeHost struct {
	after time.Duration
	addrs []string
}

func TestNameThatTheResolverDoesNotAnswerHoldsUpOneConnectionAtMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 3 * time.Second
		var asked atomic.Int64
		hosts := map[string]fakeHost{"gone": {after: 10 * time.Second}, "late": {5 * time.Second, []string{"192.0.2.1"}}, "there": {0, []string{"192.0.2.2"}}}
		resolve := pg.NewResolver(timeout, func(ctx context.Context, name string) ([]string, error) {
			asked.Add(1)
			select {
			case <-time.After(hosts[name].after):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			if hosts[name].addrs == nil {
				return nil, errors.New("no such host")
			}
			return hosts[name].addrs, nil
		})
		try := func(name string, wantTook time.Duration, want ...string) {
			t.Helper()
			began := time.Now()
			got, err := resolve(t.Context(), name)
			if took := time.Since(began); took != wantTook || !slices.Equal(got, want) || (err == nil) != (want != nil) {
				t.Errorf("%s: %v and %v after %v, want %v after %v", name, got, err, took, want, wantTook)
			}
		}
		try("gone", timeout)
		try("gone", 0)
		try("there", 0, "192.0.2.2")
		time.Sleep(8 * time.Second) //nolint:forbidigo // of the test's own clock
		try("gone", timeout)        // asked again
		try("late", timeout)
		time.Sleep(4 * time.Second) //nolint:forbidigo // as above
		try("late", 0, "192.0.2.1")
		try("192.0.2.3", 0, "192.0.2.3")
		if got := asked.Load(); got != 4 {
			t.Errorf("the resolver was asked %d times, want 4", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := resolve(ctx, "gone"); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that has gone got %v", err)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // as above
	})
}
