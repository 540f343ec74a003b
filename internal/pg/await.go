package pg

import (
	"context"
	"time"
)

const (
	waitPoll      = time.Second      // between two looks of one who waits, while notifications may not arrive
	quietWaitPoll = 30 * time.Second // the same while they do
)

// AwaitChange calls look until it returns true, wait is over, or drained is closed, after which it looks once more. Between two looks it waits for the channel that changes returned
// before the first of them, or a while. It fails with the error of ctx when that ends.
func (db *Database) AwaitChange(ctx context.Context, wait time.Duration, drained <-chan struct{}, changes func() <-chan struct{}, look func() bool) error {
	until := time.NewTimer(wait)
	defer until.Stop()
	for isLast := wait <= 0; ; {
		changed := changes() // before the look, so that none is missed
		if look() || isLast {
			return nil
		}
		poll := waitPoll
		if db.MissesNothing() {
			poll = quietWaitPoll
		}
		again := time.NewTimer(poll)
		select {
		case <-changed:
		case <-again.C:
		case <-drained:
			isLast = true
		case <-until.C:
			isLast = true
		case <-ctx.Done():
			again.Stop()
			return ctx.Err()
		}
		again.Stop()
	}
}
