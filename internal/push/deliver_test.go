package push

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func TestEventIsDeliveredSignedAndAcked(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	r := receive(t, nil)
	p.put("mail", r, func(params *PutParams) { params.Headers = map[string]string{"x-tenant": "one"} })
	at := time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC)
	payload := `{"big": 12345678901234567890, "html": "<b>"}`
	id := p.insert(queue.InsertParams{Queue: "mail", Event: json.RawMessage(payload), Type: "order.placed", EventTS: &at})[0]
	done := p.outcome(queue.Done, id)[0]
	var result struct{ Status, MS int }
	if err := json.Unmarshal(done.Result, &result); err != nil || result.Status != http.StatusNoContent || result.MS < 0 {
		t.Errorf("the result is %s", done.Result)
	}
	c := r.seen()[0]
	want := fmt.Sprintf(`{"type":"order.placed","timestamp":"2026-02-03T04:05:06.000007Z","data":%s}`, payload)
	if string(c.body) != want {
		t.Errorf("got the body %s, want %s", c.body, want)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/json", "X-Tenant": "one", "Webhook-Id": "evt_" + strconv.FormatInt(id, 10), "User-Agent": "queued/test",
	} {
		if got := c.header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if attempts, err := p.queue.Attempts(t.Context(), id); err != nil || len(attempts) != 1 || !strings.HasPrefix(attempts[0].Worker, "push:") {
		t.Errorf("the attempts are %v, %v", attempts, err)
	}
}

func TestFormatsAndTraces(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	r := receive(t, nil)
	p.put("plain", r, func(params *PutParams) { params.Format = Event })
	trace := "00-12345678901234567890123456789012-1234567890123456-01"
	meta, _ := json.Marshal(map[string]string{"traceparent": trace, "tracestate": "a=1"})
	id := p.insert(queue.InsertParams{Queue: "plain", Event: json.RawMessage(`{"n":1}`), Meta: meta})[0]
	p.outcome(queue.Done, id)
	c := r.seen()[0]
	if string(c.body) != `{"n": 1}` && string(c.body) != `{"n":1}` {
		t.Errorf("the body is %s", c.body)
	}
	if c.header.Get("Traceparent") != trace || c.header.Get("Tracestate") != "a=1" {
		t.Errorf("the trace is %q, %q", c.header.Get("Traceparent"), c.header.Get("Tracestate"))
	}

	p.put("cloud", r, func(params *PutParams) { params.Format = CloudEvents })
	id = p.insert(queue.InsertParams{Queue: "cloud", Event: json.RawMessage(`{"n":3}`), Type: "order.placed", Source: "/shop"})[0]
	p.outcome(queue.Done, id)
	c = r.seen()[1]
	var ce map[string]any
	if err := json.Unmarshal(c.body, &ce); err != nil || ce["specversion"] != "1.0" || ce["id"] != strconv.FormatInt(id, 10) || ce["type"] != "order.placed" ||
		ce["source"] != "/shop" || c.header.Get("Content-Type") != "application/cloudevents+json" {
		t.Errorf("got %s as %s", c.body, c.header.Get("Content-Type"))
	}

	p.put("typeless", r)
	id = p.insert(queue.InsertParams{Queue: "typeless", Event: json.RawMessage(`{"n":2}`), Meta: json.RawMessage(`{"traceparent":"nonsense"}`)})[0]
	p.outcome(queue.Done, id)
	c = r.seen()[2]
	if !strings.HasPrefix(string(c.body), `{"type":"event","timestamp":"`) || c.header.Get("Traceparent") != "" {
		t.Errorf("got %s with the trace %q", c.body, c.header.Get("Traceparent"))
	}
}

func TestFailureIsTriedAgainUnderTheSameID(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	tries := 0
	r := receive(t, func(w http.ResponseWriter, _ call) {
		if tries++; tries < 3 {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("no\x00 way " + strings.Repeat("x", 3000)))
		}
	})
	p.put("mail", r)
	p.atOnce(10)
	id := p.insert(numbered("mail", 1)...)[0]
	done := p.outcome(queue.Done, id)[0]
	if done.Attempts != 3 || !strings.HasPrefix(*done.LastError, "HTTP 500: no  way xxx") || len(*done.LastError) > len("HTTP 500: ")+1024 {
		t.Errorf("after %d attempts the last error is %s", done.Attempts, *done.LastError)
	}
	for _, c := range r.seen() {
		if want := "evt_" + strconv.FormatInt(id, 10); c.id != want {
			t.Errorf("an attempt has the id %s, want %s", c.id, want)
		}
	}
}

func TestRedirectIsAFailure(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	other := receive(t, nil)
	r := receive(t, func(w http.ResponseWriter, _ call) {
		w.Header().Set("Location", other.URL)
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
	p.put("mail", r)
	p.atOnce(1)
	e := p.outcome(queue.Failed, p.insert(numbered("mail", 1)...)...)[0]
	if !strings.Contains(*e.LastError, "HTTP 307") || len(other.seen()) > 0 {
		t.Errorf("the error is %s, and the other receiver got %d", *e.LastError, len(other.seen()))
	}
}

func TestFinalStatusEndsTheEventAndIsNoFailureOfTheEndpoint(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t), func(c *Config) { c.Threshold = 1; c.BreakerPause = time.Hour })
	r := receive(t, status(http.StatusUnprocessableEntity))
	p.put("mail", r, func(params *PutParams) { params.FinalStatuses = []int{422} })
	for _, e := range p.outcome(queue.Failed, p.insert(numbered("mail", 3)...)...) {
		if e.Attempts != 1 || *e.LastError != "HTTP 422" {
			t.Errorf("after %d attempts the error is %s", e.Attempts, *e.LastError)
		}
	}
	if push := p.status(StatusEnabled); push.Failures != 0 {
		t.Errorf("there are %d failures", push.Failures)
	}
}

func TestGoneDisablesAndKeepsEverything(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	r := receive(t, status(http.StatusGone))
	p.put("mail", r, func(params *PutParams) { params.MaxInFlight = 1 })
	ids := p.insert(numbered("mail", 5)...)
	push := p.status(StatusDisabled)
	if !strings.Contains(*push.DisabledReason, "HTTP 410") || len(r.seen()) != 1 {
		t.Errorf("disabled because %q after %d calls", *push.DisabledReason, len(r.seen()))
	}
	until(t, "the event was given back", func() bool { return p.event(ids[0]).State == queue.Ready })
	for _, id := range ids {
		if e := p.event(id); e.Attempts != 0 {
			t.Errorf("event %d has used up %d attempts", id, e.Attempts)
		}
	}
	topics(t, db, "queued.push.disabled")

	// Enabled again, everything is delivered in its order.
	r.takeAll()
	if _, err := p.Enable(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	p.outcome(queue.Done, ids...)
	for i, c := range r.seen()[1:] { // the first was given back when it had been claimed: its vt is that time
		if want := (i + 1) % len(ids); c.n != want {
			t.Errorf("number %d came at place %d, want %d", c.n, i, want)
		}
	}
	topics(t, db, "queued.push.disabled", "queued.push.enabled")
}

func TestEnabledPushSendsWhatWaitsAfterItsFailuresAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	r := receive(t, status(http.StatusInternalServerError))
	p.put("mail", r) // whose policy gets a backoff of 5 s, 20 s, 80 s, …
	failed := p.insert(numbered("mail", 5)...)
	scheduled := p.insert(queue.InsertParams{Queue: "mail", Event: []byte(`{"n":5}`), Delay: time.Hour})
	p.status(StatusOpen)
	conn := pgtest.Connect(t, db.URL)
	until(t, "all that failed waits", func() bool {
		return pgtest.Query[int](t, conn, `select count(*) from agent.event where attempts > 0 and nacked_at is null`) == 0
	})
	if pgtest.Query[int](t, conn, `select count(*) from agent.event where nacked_at is not null and vt > now()`) == 0 {
		t.Error("no event waits for its backoff")
	}
	if _, err := conn.Exec(t.Context(), `update agent.event set vt = vt + interval '10 hours' where nacked_at is not null`); err != nil {
		t.Fatal(err)
	}
	r.takeAll()
	if _, err := p.Enable(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	p.outcome(queue.Done, failed...)
	if e := p.event(scheduled[0]); e.State != queue.Scheduled || e.Attempts != 0 {
		t.Errorf("an event that its sender has scheduled is %s, after %d attempts", e.State, e.Attempts)
	}
}

// topics compares what was published with what is wanted.
func topics(t *testing.T, db *pgtest.DB, want ...string) {
	t.Helper()
	got := pgtest.Query[[]string](t, pgtest.Connect(t, db.URL), `select coalesce(array_agg(l.topic order by l.position), '{}') from agent.log l`)
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("published were %v, want %v", got, want)
	}
}

func TestRequeuedEventKeepsItsID(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	r := receive(t, nil)
	p.put("mail", r)
	first := p.insert(numbered("mail", 1)...)[0]
	p.outcome(queue.Done, first)
	last := first
	for range 3 {
		var err error
		if last, err = p.queue.Requeue(t.Context(), last, nil); err != nil {
			t.Fatal(err)
		}
		p.outcome(queue.Done, last)
	}
	calls := r.seen()
	if len(calls) != 4 {
		t.Fatalf("there were %d calls", len(calls))
	}
	for _, c := range calls {
		if want := "evt_" + strconv.FormatInt(first, 10); c.id != want {
			t.Errorf("a copy has the id %s, want %s", c.id, want)
		}
	}
}

func TestEventWithAControlCharacterInItsTraceIsNobodyElsesFailure(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := receive(t, status(http.StatusOK))
	p := start(t, db)
	p.put("mail", r)
	var bad []queue.InsertParams
	for range 20 { // more than the breaker takes
		bad = append(bad, queue.InsertParams{
			Queue: "mail", Event: json.RawMessage(`{}`), Meta: json.RawMessage(`{"traceparent":"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-\u0001","tracestate":"a=\u0007"}`),
		})
	}
	p.outcome(queue.Done, append(p.insert(bad...), p.insert(numbered("mail", 3)...)...)...)
	if got, err := p.Get(t.Context(), "mail"); err != nil || got.Failures != 0 || got.LastError != nil {
		t.Errorf("the push is %+v, %v", got, err)
	}
	if n := len(r.seen()); n != 23 {
		t.Errorf("%d requests came", n)
	}
}

// A field that cannot be sent is the event's fault, whichever field it is.
func TestEventThatCannotBeSentFailsForGoodAndOpensNoBreaker(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := receive(t, status(http.StatusOK))
	p := start(t, db)
	p.put("mail", r)
	p.outcome(queue.Done, p.insert(numbered("mail", 1)...)...) // there is a worker
	set := func(name, value string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		w := p.workers["mail"]
		w.mu.Lock()
		defer w.mu.Unlock()
		e := *w.endpoint
		e.header = e.header.Clone()
		if value == "" {
			e.header.Del(name)
		} else {
			e.header[name] = []string{value}
		}
		w.endpoint = &e
		w.interrupt()
	}
	for name, value := range map[string]string{"X-Data": "a\x00b", "X-Line": "a\r\nb", "X Name": "a"} {
		set(name, value)
		for _, e := range p.outcome(queue.Failed, p.insert(numbered("mail", 20)...)...) {
			if e.Attempts != 1 || e.LastError == nil || !strings.HasPrefix(*e.LastError, "no request can be made of the event: ") || !strings.Contains(*e.LastError, name) {
				t.Fatalf("%s: the event is %+v", name, e)
			}
		}
		if got, err := p.Get(t.Context(), "mail"); err != nil || got.Failures != 0 || got.Status != StatusEnabled {
			t.Errorf("the push is %+v, %v", got, err)
		}
		set(name, "")
	}
	if n := len(r.seen()); n != 1 {
		t.Errorf("%d requests came", n)
	}
}
