package topic_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/queued/queued/internal/topic"
)

// Those who join while the index is brought up to date write into none of the maps that it reads. The race detector tells.
func TestFollowersJoinWhileTheIndexIsBroughtUpToDate(t *testing.T) {
	t.Parallel()
	tail := topic.NewTail()
	joined := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		for isJoining := true; isJoining; {
			select {
			case <-joined:
				isJoining = false
			default:
			}
			tail.UpdateIndex() // mostly there is nothing to do
		}
	})
	for n := range 20_000 {
		tail.JoinAndLeave(fmt.Sprintf("t%d", n%10))
	}
	close(joined)
	all.Wait()
}
