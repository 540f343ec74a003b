package http

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/http/problem"
)

// provokeSubscribedStreams provokes every documented response of streams of subscriptions. The service is draining, so no stream lasts.
func provokeSubscribedStreams(h *environment) {
	h.call("PUT", "/subscriptions/streamed", `{"filters":[{"topics":["order.*"]}]}`).want(http.StatusCreated)
	h.call("GET", "/subscriptions/streamed/stream", "").want(http.StatusOK)
	h.call("GET", "/subscriptions/streamed/stream?after=0&data=event", "").want(http.StatusOK)
	h.with("Accept", "application/x-ndjson").with("Last-Event-ID", "0").call("GET", "/subscriptions/streamed/stream", "").want(http.StatusOK)
	h.call("GET", "/subscriptions/mail/stream", "").wantProblem(problem.SubscriptionNotFound)
	h.call("PUT", "/subscriptions/streamed-mails", `{"filters":[],"deliver":{"queue":"mail"}}`).want(http.StatusCreated)
	h.call("GET", "/subscriptions/streamed-mails/stream", "").wantProblem(problem.WrongDelivery)
}

func TestStreamOfASubscriptionSendsWhatItGets(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/subscriptions/s", `{"filters":[{"name":"orders","topics":["order.*"]},{"name":"large","match":{"total":[{"numeric":[">=",100]}]}}]}`).want(http.StatusCreated)
	h.publishAll("order.placed", "user.added", "order.paid")
	page := h.readSubscription("s", `{"limit":1,"lease":"1h"}`)
	h.call("POST", "/subscriptions/s/commit", fmt.Sprintf(`{"cursor":%q}`, page.Cursor)).want(http.StatusOK)
	h.readSubscription("s", `{"limit":1,"lease":"1h"}`) // a lease does not concern streams
	before := h.call("GET", "/subscriptions/s", "").body
	s, payloads, lines := h.open("/subscriptions/s/stream"), h.open("/subscriptions/s/stream?data=event&after=0"),
		h.environmentWith("Accept", "application/x-ndjson").open("/subscriptions/s/stream")
	for name, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"} {
		if got := s.header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	committed := page.Events[0].Position
	if p := &s.frame(1).parser; p.lastID != strconv.FormatInt(committed, 10) || p.retry < time.Second || len(p.events) != 0 {
		t.Errorf("the stream begins with %+v, committed is %d", p, committed)
	}
	h.call("POST", "/publish", `{"events":[{"topic":"user.paid","event":{"total":200}},{"topic":"x","event":{"y":1},"subscription":"s"},
		{"topic":"order.paid","event":{"total":300},"key":"k"},{"topic":"order.paid","event":{},"subscription":"other"}]}`).want(http.StatusCreated)
	var want []string
	for _, matched := range []string{`["orders"]`, `["large"]`, `[]`, `["large","orders"]`} {
		e := s.next(1)[0]
		if !strings.HasSuffix(e.data, `,"matched":`+matched+`}`) || !strings.HasPrefix(e.data, `{"position":`+e.lastID+`,"topic":"`+e.name+`"`) {
			t.Errorf("got %+v, want matched %s", e, matched)
		}
		want = append(want, e.data)
	}
	if e := payloads.next(5)[3]; e.name != "x" || e.data != `{"y":1}` {
		t.Errorf("with data=event the event is %+v", e)
	}
	reader := bufio.NewReader(lines.body)
	for _, want := range append([]string{fmt.Sprintf(`{"position":%d}`, committed)}, want...) {
		if got, err := reader.ReadString('\n'); err != nil || got != want+"\n" {
			t.Errorf("the line is %q, %v; want %s", got, err, want)
		}
	}
	after := decode[seenSubscription](h.call("GET", "/subscriptions/s", "").want(http.StatusOK))
	if after.Position != committed {
		t.Errorf("the subscription was %s and has come to %d", before, after.Position)
	}
}

func TestStreamOfASubscriptionResumesInAnotherProcess(t *testing.T) {
	t.Parallel()
	h := setup(t)
	processes := []*environment{h, setupWith(t, settings{beside: h})}
	h.call("PUT", "/subscriptions/s", `{"filters":[{"topics":["a"]}]}`).want(http.StatusCreated)
	first := h.publishInside("a", -1)
	h.call("POST", "/subscriptions/s/seek", `{"to":`+first+`}`).want(http.StatusOK)
	const count = 100
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := range count {
			h.publishInside("b", i)
			h.publishInside("a", i)
		}
	}()
	last := first
	for n := 0; n < count; {
		s := processes[n%2].environmentWith("Last-Event-ID", last).open("/subscriptions/s/stream?after=latest&data=event")
		for _, e := range s.next(min(1+n%37, count-n)) {
			if want := fmt.Sprintf(`{"n":%d}`, n); e.data != want {
				t.Fatalf("the event is %s, want %s", e.data, want)
			}
			n++
			last = e.lastID
		}
		s.close()
	}
	<-published
}

func TestStreamOfASubscriptionThatIsDeletedEnds(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/subscriptions/s", `{"filters":[{}]}`).want(http.StatusCreated)
	streams := []*openStream{h.open("/subscriptions/s/stream"), h.environmentWith("Accept", "application/x-ndjson").open("/subscriptions/s/stream")}
	h.publishAll("a")
	streams[0].next(1)
	h.call("DELETE", "/subscriptions/s", "").want(http.StatusNoContent)
	for _, s := range streams {
		for s.read() { // it ends as a whole answer does
		}
	}
	h.log.wait(t, `"route":"/subscriptions/{name}/stream"`, `"subscription":"s"`, `"status":200`, `"events":1`, `"ended":"subscription_not_found"`)
	// A browser that comes back gives up.
	h.with("Accept", "text/event-stream").with("Last-Event-ID", streams[0].parser.lastID).call("GET", "/subscriptions/s/stream", "").wantProblem(problem.SubscriptionNotFound)
}

func TestStreamOfAPausedSubscriptionHasPositionsOnly(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{server: func(s *Server, _ *http.Server) { s.heartbeat = 20 * time.Millisecond }})
	h.call("PUT", "/subscriptions/s", `{"filters":[{}]}`).want(http.StatusCreated)
	h.call("POST", "/subscriptions/s/pause", "").want(http.StatusOK)
	s := h.open("/subscriptions/s/stream")
	begun := s.frame(1).parser.lastID
	h.publishAll("a")
	if p := s.frame(5).parser; len(p.events) != 0 || p.lastID != begun || p.comments < 5 {
		t.Errorf("while it is paused the stream has %+v", p)
	}
	h.call("POST", "/subscriptions/s/resume", "").want(http.StatusOK)
	if e := s.next(1)[0]; e.name != "a" {
		t.Errorf("got %+v", e)
	}
}

func TestBrowserIsSentBackToTheStreamOfASubscription(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.db.Disconnect(t)
	starting := httptest.NewServer(Starting(Config{}).Handler())
	t.Cleanup(starting.Close)
	early := *h.client
	early.url, early.http = starting.URL, starting.Client() // no contract is served yet
	for name, h := range map[string]*client{"without a database": h.client, "at the start": &early} {
		if got := h.try("GET", "/subscriptions/s/stream", ""); got.status != http.StatusServiceUnavailable {
			t.Errorf("%s: a new stream gets %d", name, got.status)
		}
		got := h.with("Last-Event-ID", "7").with("Accept", "text/event-stream").try("GET", "/subscriptions/s/stream", "").want(http.StatusOK)
		if !strings.HasPrefix(got.body, "retry: ") {
			t.Errorf("%s: got %q", name, got.body)
		}
	}
}

func TestBadStreamsOfSubscriptionsAreProblems(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/subscriptions/s", `{"filters":[{}]}`).want(http.StatusCreated)
	for _, tc := range []struct {
		path, header, value string
		want                problem.Type
		pointer             string
	}{
		{"s/stream", "Last-Event-ID", "x", problem.InvalidParameter, "Last-Event-ID"},
		{"s/stream", "Last-Event-ID", "9007199254740992", problem.InvalidParameter, "Last-Event-ID"},
		{"s/stream", "Accept", "application/json", problem.InvalidParameter, "Accept"},
		{"s/stream?data=event", "Accept", "application/x-ndjson", problem.InvalidParameter, "?data"},
		{"s/stream?after=-1", "", "", problem.InvalidParameter, "?after"},
		{"s/stream?after=1&at=2020-01-01T00:00:00Z", "", "", problem.InvalidParameter, "?at"},
		{"s/stream?topic=a", "", "", problem.UnknownParameter, "?topic"},
		{"s/stream?match={}", "", "", problem.UnknownParameter, "?match"},
		{"a%20b/stream", "", "", problem.InvalidParameter, "{name}"},
	} {
		c := h.client
		if tc.header != "" {
			c = c.with(tc.header, tc.value)
		}
		got := c.try("GET", "/subscriptions/"+tc.path, "").wantProblem(tc.want)
		if len(got.Errors) != 1 || got.Errors[0].Pointer != tc.pointer {
			t.Errorf("%s %s %q: the errors are %+v, want one at %s", tc.path, tc.header, tc.value, got.Errors, tc.pointer)
		}
	}
	h.try("HEAD", "/subscriptions/s/stream", "").want(http.StatusOK)
	h.try("POST", "/subscriptions/s/stream", "").wantProblem(problem.MethodNotAllowed)
}
