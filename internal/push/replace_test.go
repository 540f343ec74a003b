package push

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// A failover without synchronous replication may lose the latest changes.
func TestWorkerTakesOverAStateThatIsBehindItsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, func(c *Config) { c.BreakerPause = time.Millisecond; c.MaxPause = time.Millisecond })
	r := receive(t, status(http.StatusInternalServerError))
	p.put("mail", r)
	p.atOnce(100000)
	ids := p.insert(numbered("mail", 3)...)
	p.status(StatusOpen)
	run(t, db, `update agent.push_state set epoch = epoch - 1000000, opened_at = null, failures = 0, failing_since = null, pause = null, retry_at = null`)
	calls := len(r.seen())
	until(t, "it goes on", func() bool { return len(r.seen()) > calls+10 })
	r.takeAll()
	p.outcome(queue.Done, ids...)
	conn := pgtest.Connect(t, db.URL)
	until(t, "the worker has recorded its changes", func() bool {
		epoch := pgtest.Query[int64](t, conn, `select epoch from agent.push_state`)
		w := p.worker("mail")
		w.mu.Lock()
		defer w.mu.Unlock()
		return !w.isUnrecorded && w.state.epoch == epoch
	})
	p.status(StatusEnabled)
}

func TestWhatWasClaimedForAnEndpointIsNotSentToItOnceThereIsAnother(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	before, after := receive(t, nil), receive(t, nil)
	p.put("mail", before)
	until(t, "there is a worker", func() bool { return p.worker("mail") != nil })
	w := p.worker("mail")
	r := w.capacity()
	after.trust(p.put("mail", after))
	until(t, "the worker has the other endpoint", func() bool { return w.capacity().endpoint != r.endpoint })
	event := queue.Event{ID: 1, Queue: "mail", VT: time.Now().Add(time.Hour), Payload: []byte(`{}`)}
	if w.begin(t.Context(), r, &event, 1) {
		t.Error("an event is sent to the endpoint that was replaced")
	}
}

func TestPutAnswersWithWhatItHasPut(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	p.Drain() // it is about the answers alone
	var callers sync.WaitGroup
	for i := range 4 {
		callers.Go(func() {
			for n := range 40 {
				timeout := time.Duration(i*40+n+1) * time.Second
				push, secret, err := p.Put(t.Context(), PutParams{
					Queue: "mail", URL: "http://127.0.0.1:1/", Format: Standard, Timeout: timeout, MaxInFlight: 1, DisableAfter: 24 * time.Hour,
				})
				switch {
				case err != nil:
					t.Errorf("putting while another deletes: %v", err)
				case push.Timeout != timeout:
					t.Errorf("a timeout of %s was put, the answer has %s", timeout, push.Timeout)
				case (secret != "") != (push.Version == 1):
					t.Errorf("version %d comes with the secret %q", push.Version, secret)
				}
				if err := p.Delete(t.Context(), "mail", nil); err != nil && !errors.Is(err, ErrNotFound) {
					t.Errorf("deleting: %v", err)
				}
			}
		})
	}
	callers.Wait()
}

// A caller who may change a push must not learn its header fields, which are never shown, by sending them to a server of their own.
func TestHeadersDoNotFollowToAnotherHost(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	p.Drain()
	params := PutParams{
		Queue: "mail", URL: "https://example.com/hook", Format: Standard, Timeout: time.Second, MaxInFlight: 1, DisableAfter: 24 * time.Hour,
		Headers: map[string]string{"Authorization": "Bearer hunter2"},
	}
	put := func(url string, headers map[string]string) error {
		params.URL, params.Headers = url, headers
		_, _, err := p.Put(t.Context(), params)
		return err
	}
	if err := put("https://example.com/hook", params.Headers); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"https://example.org/hook", "https://example.com:8443/hook", "https://example.com.example.org", "http://127.0.0.1/"} {
		var invalid *InvalidError
		if err := put(url, nil); !errors.As(err, &invalid) || invalid.Field != "headers" {
			t.Errorf("the header fields follow to %s: %v", url, err)
		}
	}
	if err := put("https://EXAMPLE.com?other", nil); err != nil {
		t.Errorf("another path of the host is refused: %v", err)
	}
	if err := put("https://example.org/hook", map[string]string{}); err != nil {
		t.Errorf("another host without header fields is refused: %v", err)
	}
	if err := put("https://example.com/hook", nil); err != nil {
		t.Errorf("another host is refused where there are no header fields: %v", err)
	}
}
