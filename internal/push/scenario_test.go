package push

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// eventsOfScenario is how many events the test below pushes: QUEUED_PUSH_EVENTS, or few enough for every run of the tests.
func eventsOfScenario(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("QUEUED_PUSH_EVENTS"))
	if err != nil {
		return 400
	}
	return n
}

// TestEndpointsThatHangOrAreDownSlowNobodyElse pushes events to ten endpoints: one answers nothing, one refuses connections.
func TestEndpointsThatHangOrAreDownSlowNobodyElse(t *testing.T) {
	t.Parallel()
	const endpoints, hanging, down = 10, 0, 1
	each := eventsOfScenario(t) / endpoints
	p := start(t, pgtest.New(t), func(c *Config) { c.BreakerPause = time.Minute; c.MaxPause = time.Hour })
	var arrived atomic.Int64
	release := make(chan struct{})
	receivers := make([]*receivingServer, endpoints)
	names := make([]string, endpoints)
	for i := range endpoints {
		names[i] = fmt.Sprintf("endpoint-%d", i)
		receivers[i] = receive(t, func(w http.ResponseWriter, _ call) {
			if i == hanging {
				<-release
			}
			arrived.Add(1)
			w.WriteHeader(http.StatusNoContent)
		})
		p.put(names[i], receivers[i])
		if i == down {
			receivers[i].Close()
		}
	}
	t.Cleanup(func() { // before the receivers are closed
		close(release)
	})
	healthy := each * (endpoints - 2)
	pushAll := func(what string, isBad bool) (ids [endpoints][]int64) {
		before, began := arrived.Load(), time.Now()
		for i, name := range names {
			if isBad || i != hanging && i != down {
				ids[i] = p.insert(numbered(name, each)...)
			}
		}
		until(t, "the other eight have everything", func() bool { return arrived.Load() >= before+int64(healthy) })
		t.Logf("%s: %d events at eight endpoints, %.0f/s", what, healthy, float64(healthy)/time.Since(began).Seconds())
		return ids
	}
	pushAll("alone", false)
	ids := pushAll("beside one that hangs and one that is down", true)
	pushAll("alone again", false)
	for i := range endpoints {
		if i == hanging || i == down {
			continue
		}
		for _, e := range p.outcome(queue.Done, ids[i]...) {
			if e.Attempts != 1 {
				t.Errorf("an event of %s took %d attempts", names[i], e.Attempts)
			}
		}
		if n := len(receivers[i].seen()); n != 3*each {
			t.Errorf("%s got %d calls for %d events", names[i], n, 3*each)
		}
	}
	if n := len(receivers[hanging].seen()); n > 10 {
		t.Errorf("%d calls at the endpoint that hangs, which may have 10 at a time", n)
	}
	var push Push
	until(t, "the breaker of the endpoint that is down is open", func() bool {
		var err error
		push, err = p.Get(t.Context(), names[down])
		return err == nil && push.Status == StatusOpen
	})
	tried := 0
	for _, id := range ids[down] {
		attempts, err := p.queue.Attempts(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range attempts {
			tried++
			if a.Outcome != queue.AttemptNacked || a.Error == nil || *a.Error != "the connection was refused" {
				text, _ := json.Marshal(a)
				t.Errorf("an attempt is on record as %s", text)
			}
		}
	}
	if tried < DefaultThreshold || tried > DefaultThreshold+10 {
		t.Errorf("%d attempts at an endpoint that is down", tried)
	}
}
