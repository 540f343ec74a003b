package http

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
)

// An openStream is a stream of Server-Sent Events that is being received.
type openStream struct {
	t      *testing.T
	header http.Header
	body   io.ReadCloser
	parser sseParser
	rest   []byte // received, and not yet parsed
	seen   int    // events that next has returned
}

// open opens a stream; it is closed with the test.
func (h *environment) open(path string) *openStream {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.t.Context()), 5*busyTimeout)
	h.t.Cleanup(cancel)
	// Nobody checks it against the contract, as the test's own client would at its end.
	resp, err := h.raw.RoundTrip(h.request(ctx, http.MethodGet, path, "")) //nolint:bodyclose // close does it
	if err != nil {
		h.t.Fatal(err)
	}
	s := &openStream{t: h.t, header: resp.Header, body: resp.Body}
	h.t.Cleanup(s.close)
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		h.t.Fatalf("%s: got %d %s", path, resp.StatusCode, body)
	}
	return s
}

func (s *openStream) close() { _ = s.body.Close() }

// read parses what comes next, up to the end of a frame, receives more for it if need be, and reports whether the stream goes on. What has
// been parsed when it returns does not depend on how much the server had sent.
func (s *openStream) read() bool {
	s.t.Helper()
	var err error
	if len(s.rest) == 0 {
		var n int
		s.rest = make([]byte, 4096)
		n, err = s.body.Read(s.rest)
		s.rest = s.rest[:n]
	}
	for frames := s.parser.frames; len(s.rest) > 0 && s.parser.frames == frames; s.rest = s.rest[1:] {
		s.parser.feed(s.rest[:1])
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.t.Fatalf("the stream broke off: %v", err)
	}
	return err == nil || len(s.rest) > 0
}

// frame receives until there have been n frames, and returns the stream.
func (s *openStream) frame(n int) *openStream {
	s.t.Helper()
	for s.parser.frames < n {
		if !s.read() {
			s.t.Fatalf("the stream ended after %d frames", s.parser.frames)
		}
	}
	return s
}

// next returns the next n events.
func (s *openStream) next(n int) []sseEvent {
	s.t.Helper()
	for len(s.parser.events) < s.seen+n {
		if !s.read() {
			s.t.Fatalf("the stream ended after %d events", len(s.parser.events))
		}
	}
	events := s.parser.events[s.seen : s.seen+n]
	s.seen += n
	return events
}

// publishAll publishes events to topics in one call and returns their positions.
func (h *environment) publishAll(topics ...string) []int64 {
	h.t.Helper()
	var events []string
	for i, name := range topics {
		events = append(events, fmt.Sprintf(`{"topic":%q,"event":{"n":%d}}`, name, i))
	}
	got := h.call("POST", "/publish", `{"events":[`+strings.Join(events, ",")+`]}`).want(http.StatusCreated)
	return decode[struct {
		Positions []int64 `json:"positions"`
	}](got).Positions
}

// publishInside publishes an event without a connection, and returns its position.
func (h *environment) publishInside(name string, n int) string {
	h.t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/topics/"+name, strings.NewReader(fmt.Sprintf(`{"n":%d}`, n)))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.srv.Handler().ServeHTTP(w, r)
	var published struct {
		Position json.Number `json:"position"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &published); err != nil || w.Code != http.StatusCreated {
		h.t.Errorf("publishing returned %d %s, %v", w.Code, w.Body, err)
	}
	return published.Position.String()
}

// dropLog drops what is in the log, as if it were old.
func (h *environment) dropLog() {
	h.t.Helper()
	conn := h.connect()
	for deadline := time.Now().Add(busyTimeout); ; {
		_, err := conn.Exec(h.t.Context(), `
			do $$ begin
				update agent.log_segment set opened_at = now() - interval '2 hours' where state = 'open';
				for i in 1 .. 10 loop
					perform agent_service.maintain_log();
				end loop;
				update agent.log_segment set closed_at = now() - interval '200 hours' where state = 'closed';
				if agent_service.drop_log_segment() is null then
					raise exception 'nothing was dropped';
				end if;
			end $$`)
		if err == nil {
			return
		}
		if time.Now().After(deadline) { // the service does the same from time to time
			h.t.Fatal(err)
		}
	}
}

// provokeStreams provokes every documented response of streams, after which no stream lasts.
func provokeStreams(h *environment) {
	h.call("GET", "/stream?match="+url.QueryEscape(`{"n":[]}`), "").wantProblem(problem.FilterRefused)
	h.topics.Drain()
	h.call("GET", "/stream?topic=a.*&after=0&data=event", "").want(http.StatusOK)
	h.with("Accept", "application/x-ndjson").with("Last-Event-ID", "0").call("GET", "/stream", "").want(http.StatusOK)
}

func TestStreamBeginsWithItsPositionAndSendsWhatIsPublished(t *testing.T) {
	t.Parallel()
	h := setup(t)
	head := h.publishAll("before")[0]
	s := h.open("/stream")
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no", "Content-Length": "", "X-Content-Type-Options": "nosniff",
	} {
		if got := s.header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	p := &s.frame(1).parser
	if p.lastID != strconv.FormatInt(head, 10) || p.comments == 0 || p.retry < time.Second || p.retry > 4*time.Second || len(p.events) != 0 {
		t.Errorf("the first frame has the id %s, %d comments, and retry %s; want %d", p.lastID, p.comments, p.retry, head)
	}
	location := h.call("POST", "/topics/order.placed?key=k", `{"total": 99.90, "text": "a\nb"}`).want(201).header.Get("Location")
	e := s.next(1)[0]
	if e.name != "order.placed" || "/log/"+e.lastID != location {
		t.Errorf("got %+v, want that of %s", e, location)
	}
	if want := h.call("GET", location, "").body; e.data != want {
		t.Errorf("the data are\n%s, want the event as GET /log/{position} has it\n%s", e.data, want)
	}
}

func TestStreamHasOnlyWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	h := setup(t)
	positions := h.publishAll("order.placed", "order.paid", "user.added", "order.paid.late")
	h.call("POST", "/topics/order.placed?subscription=s", `{"n":9}`).want(201)
	last := h.publishAll("end.of.test")[0]
	big := url.QueryEscape(`{"n":[{"numeric":[">=",2]}]}`)
	for query, want := range map[string]string{
		"after=0":                                            "order.placed order.paid user.added order.paid.late",
		"after=earliest&topic=order.*":                       "order.placed order.paid",
		"after=0&topic=order.paid":                           "order.paid",
		"after=0&match=" + big:                               "user.added order.paid.late",
		"after=0&topic=*.*&match=" + big:                     "user.added",
		"at=2020-01-01T00:00:00Z&topic=*":                    "",
		fmt.Sprintf("after=%d&topic=order.**", positions[1]): "order.paid.late",
		fmt.Sprintf("after=%d", last-1):                      "",
	} {
		s := h.open("/stream?topic=end.of.test&" + query)
		if !strings.Contains(query, "topic=") {
			s = h.open("/stream?topic=**&" + query)
			if strings.Contains(query, "match") {
				s = h.open("/stream?" + query)
			}
		}
		var got []string
		for _, e := range s.next(len(strings.Fields(want))) {
			got = append(got, e.name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %q", query, got, want)
		}
		if !strings.Contains(query, "match") {
			if e := s.next(1)[0]; e.name != "end.of.test" {
				t.Errorf("%s: got %s, too", query, e.name)
			}
		}
	}
}

func TestStreamOfPayloadsAndStreamOfLines(t *testing.T) {
	t.Parallel()
	h := setup(t)
	positions := h.publishAll("a", "b")
	if e := h.open("/stream?after=0&data=event").next(2)[1]; e.data != `{"n":1}` || e.name != "b" || e.lastID != strconv.FormatInt(positions[1], 10) {
		t.Errorf("with data=event the event is %+v", e)
	}
	s := h.environmentWith("Accept", "application/x-ndjson").open(fmt.Sprintf("/stream?after=%d", positions[0]))
	if got := s.header.Get("Content-Type"); got != "application/x-ndjson" {
		t.Errorf("the content type is %s", got)
	}
	lines := bufio.NewReader(s.body)
	for _, want := range []string{fmt.Sprintf(`{"position":%d}`, positions[0]), h.call("GET", fmt.Sprintf("/log/%d", positions[1]), "").body} {
		if got, err := lines.ReadString('\n'); err != nil || got != want+"\n" {
			t.Errorf("the line is %q, %v; want %s", got, err, want)
		}
	}
}

// environmentWith is the environment with a header in every request.
func (h *environment) environmentWith(name, value string) *environment {
	changed := *h
	changed.client = h.with(name, value)
	return &changed
}

func TestStreamResumesInAnotherProcessWithoutLossOrRepetition(t *testing.T) {
	t.Parallel()
	h := setup(t)
	processes := []*environment{h, setupWith(t, settings{beside: h})}
	const count = 300
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := range count {
			h.publishInside("a", i)
		}
	}()
	last := "0"
	for n := 0; n < count; {
		s := processes[n%2].environmentWith("Last-Event-ID", last).open("/stream?after=latest")
		for _, e := range s.next(min(1+n%37, count-n)) {
			var body struct {
				Event struct{ N int } `json:"event"`
			}
			if err := json.Unmarshal([]byte(e.data), &body); err != nil || body.Event.N != n {
				t.Fatalf("the event is %s, want number %d", e.data, n)
			}
			n++
			last = e.lastID
		}
		s.close()
	}
	<-published
}

func TestStreamTellsTheGapThatRetentionLeft(t *testing.T) {
	t.Parallel()
	h := setup(t)
	positions := h.publishAll("a", "a", "a")
	h.dropLog()
	next := h.publishAll("b")[0]
	resumed := h.environmentWith("Last-Event-ID", strconv.FormatInt(positions[0], 10))
	gap := fmt.Sprintf(`{"gap":{"after":%d,"until":%d,"reason":"retention"}}`, positions[0], positions[2])
	events := resumed.open("/stream").next(2)
	if want := (sseEvent{"gap", gap, strconv.FormatInt(positions[2], 10)}); events[0] != want {
		t.Errorf("got %+v, want %+v", events[0], want)
	}
	if events[1].name != "b" || events[1].lastID != strconv.FormatInt(next, 10) {
		t.Errorf("after the gap comes %+v", events[1])
	}
	s := resumed.environmentWith("Accept", "application/x-ndjson").open("/stream")
	lines := bufio.NewReader(s.body)
	_, _ = lines.ReadString('\n')
	if got, err := lines.ReadString('\n'); err != nil || got != gap+"\n" {
		t.Errorf("the line is %q, %v", got, err)
	}
	// A gap is counted when it has been written, so its reader may ask earlier.
	for deadline := time.Now().Add(busyTimeout); !strings.Contains(h.call("GET", "/metrics", "").body, "\nqueued_stream_gaps_total 2\n"); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the metrics do not count two gaps")
		}
	}
	// Who goes on after the gap is not told again.
	if e := h.environmentWith("Last-Event-ID", events[0].lastID).open("/stream").next(1)[0]; e.name != "b" {
		t.Errorf("after the end of the gap comes %+v", e)
	}
}

func TestSilentStreamOutlivesTheTimeoutsAndSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{server: func(s *Server, server *http.Server) {
		s.heartbeat, server.WriteTimeout = 50*time.Millisecond, 100*time.Millisecond
	}})
	s := h.open("/stream?topic=wanted")
	begun := s.frame(1).parser.lastID
	last := h.publishInside("other", 1)
	for s.parser.lastID != last {
		s.read()
	}
	if s.frame(s.parser.frames + 5); s.parser.comments < 6 || s.parser.lastID == begun || len(s.parser.events) != 0 {
		t.Errorf("the stream is %+v", &s.parser)
	}
	h.publishInside("wanted", 2)
	if e := s.next(1)[0]; e.name != "wanted" {
		t.Errorf("got %+v", e)
	}
}

func TestDrainEndsStreamsAndSaysWhenToComeBack(t *testing.T) {
	t.Parallel()
	h := setup(t)
	streams := []*openStream{h.open("/stream?after=0"), h.open("/stream?topic=b")}
	h.publishAll("a", "a")
	streams[0].next(2)
	h.topics.Drain()
	for _, s := range streams {
		s.parser.retry = 0
		for s.read() {
		}
		if s.parser.retry < time.Second || s.parser.retry > 4*time.Second {
			t.Errorf("a stream ended with retry %s", s.parser.retry)
		}
	}
	h.log.wait(t, `"route":"/stream"`, `"status":200`, `"events":2`, `"ended":"draining"`, `"duration_ms"`)
	metrics := h.call("GET", "/metrics", "").body
	for _, want := range []string{"queued_streams_open 0", "queued_stream_events_total 2", "queued_streams_behind 0", "queued_stream_tail_bytes 0"} {
		if !strings.Contains(metrics, "\n"+want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

func TestClientThatGoesEndsItsStream(t *testing.T) {
	t.Parallel()
	h := setup(t)
	s := h.open("/stream?after=0")
	h.publishAll("a")
	s.next(1)
	if got := h.call("GET", "/metrics", "").body; !strings.Contains(got, "\nqueued_streams_open 1\n") {
		t.Error("the metrics do not count the stream")
	}
	s.close()
	line := h.log.wait(t, `"route":"/stream"`, `"status":200`, `"events":1`)
	if strings.Contains(line, "ended") || strings.Contains(line, "error") {
		t.Errorf("the log has %s", line)
	}
}

func TestClientThatDoesNotReadIsClosedAndDelaysNobody(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{server: func(s *Server, _ *http.Server) { s.blockedLimit = time.Second }})
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /stream?after=0 HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	reading := h.open("/stream?after=0")
	event := `{"text":"` + strings.Repeat("x", 100_000) + `"}`
	for range 30 { // more than the socket takes
		h.call("POST", "/topics/a", event).want(http.StatusCreated)
		reading.next(1)
	}
	h.log.wait(t, `"route":"/stream"`, `"ended":"blocked"`)
	if got := h.call("GET", "/metrics", "").body; !strings.Contains(got, "\nqueued_streams_blocked_total 1\n") || !strings.Contains(got, "\nqueued_streams_open 1\n") {
		t.Error("the metrics do not count the stream that was closed")
	}
	if content, err := io.ReadAll(conn); err == nil && bytes.HasSuffix(content, []byte("0\r\n\r\n")) {
		t.Error("the stream looks whole")
	}
}

func TestStreamThatIsNotReadOverHTTP2IsEndedAndLeavesTheConnectionToOthers(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http2: true, server: func(s *Server, _ *http.Server) { s.blockedLimit = time.Second }})
	blocked := h.open("/stream?after=0")
	reading := h.open("/stream?after=0")
	event := `{"text":"` + strings.Repeat("x", 1_000_000) + `"}`
	for range 8 { // more than the 4 MiB that Go's client takes of a stream
		h.call("POST", "/topics/a", event).want(http.StatusCreated)
		reading.next(1)
	}
	h.log.wait(t, `"route":"/stream"`, `"ended":"blocked"`)
	if got := h.call("GET", "/metrics", "").body; !strings.Contains(got, "\nqueued_streams_blocked_total 1\n") || !strings.Contains(got, "\nqueued_streams_open 1\n") {
		t.Error("the metrics do not count the stream that was ended")
	}
	if _, err := io.ReadAll(blocked.body); err == nil {
		t.Error("the stream looks whole")
	}
	h.call("POST", "/topics/a", `{}`).want(http.StatusCreated)
	reading.next(1)
}

func TestQuietStreamOverHTTP2OutlivesTheTimeOfAWrite(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http2: true, server: func(s *Server, _ *http.Server) { s.blockedLimit, s.heartbeat = 500*time.Millisecond, 2*time.Second }})
	quiet := h.open("/stream").frame(3) // each but the first comes after a heartbeat, four times the limit
	h.call("POST", "/topics/a", `{}`).want(http.StatusCreated)
	quiet.next(1)
}

func TestBrowserThatResumesIsSentBackWhileTheServerCannotAnswer(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.db.Disconnect(t)
	away := func(name string, h *client) {
		first := h.with("Accept", "text/event-stream").try("GET", "/stream", "")
		if first.status != http.StatusServiceUnavailable {
			t.Errorf("%s: a new stream gets %d", name, first.status)
		}
		if got := h.with("Last-Event-ID", "7").with("Accept", "application/x-ndjson").try("GET", "/stream", ""); got.status != http.StatusServiceUnavailable {
			t.Errorf("%s: lines get %d", name, got.status)
		}
		got := h.with("Last-Event-ID", "7").with("Accept", "text/event-stream").try("GET", "/stream", "").want(http.StatusOK)
		p := new(sseParser)
		p.feed([]byte(got.body + "\n"))
		if p.retry < time.Second || p.retry > 4*time.Second || got.header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%s: got %q of type %s", name, got.body, got.header.Get("Content-Type"))
		}
	}
	away("without a database", h.client)

	starting := httptest.NewServer(Starting(Config{}).Handler())
	t.Cleanup(starting.Close)
	c := *h.client
	c.url, c.http = starting.URL, starting.Client() // no contract is served yet
	away("at the start", &c)
}

func TestStreamsAreCalledAsOtherRoutes(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{keys: func(cfg *access.Config) { cfg.Key = "s3cret" }})
	h.try("GET", "/stream", "").wantProblem(problem.Unauthorized)
	keyed := h.with("Authorization", "Bearer s3cret")
	head := keyed.try("HEAD", "/stream?topic=a", "").want(http.StatusOK)
	if head.body != "" || head.header.Get("Content-Type") != "text/event-stream" || head.header.Get("Cache-Control") != "no-store" {
		t.Errorf("HEAD returned %+v", head)
	}
	keyed.try("HEAD", "/stream?topic=..", "").want(http.StatusUnprocessableEntity)
	keyed.try("POST", "/stream", "").wantProblem(problem.MethodNotAllowed)
	s := h.environmentWith("Authorization", "Bearer s3cret").environmentWith("Origin", "https://other.example").open("/stream")
	if s.header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("a page of another origin may read the stream")
	}
}

func TestBadStreamsAreProblems(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.publishAll("a")
	h.open("/stream?after=0").next(1) // the newest events are in memory
	for _, tc := range []struct {
		query, header, value string
		typ                  problem.Type
		pointer              string
	}{
		{"", "Last-Event-ID", "x", problem.InvalidParameter, "Last-Event-ID"},
		{"", "Last-Event-ID", "-1", problem.InvalidParameter, "Last-Event-ID"},
		{"", "Last-Event-ID", "", problem.InvalidParameter, "Last-Event-ID"},
		{"", "Last-Event-ID", "007", problem.InvalidParameter, "Last-Event-ID"},
		{"", "Last-Event-ID", "9007199254740992", problem.InvalidParameter, "Last-Event-ID"},
		{"", "Last-Event-ID", strings.Repeat("9", 100), problem.InvalidParameter, "Last-Event-ID"},
		{"", "Accept", "application/json", problem.InvalidParameter, "Accept"},
		{"data=event", "Accept", "application/x-ndjson", problem.InvalidParameter, "?data"},
		{"after=x", "", "", problem.InvalidParameter, "?after"},
		{"after=-1", "", "", problem.InvalidParameter, "?after"},
		{"after=9007199254740992", "", "", problem.InvalidParameter, "?after"},
		{"after=1&at=2020-01-01T00:00:00Z", "", "", problem.InvalidParameter, "?at"},
		{"at=yesterday", "", "", problem.InvalidParameter, "?at"},
		{"data=payload", "", "", problem.InvalidParameter, "?data"},
		{"data=", "", "", problem.InvalidParameter, "?data"},
		{"topic=", "", "", problem.InvalidParameter, "?topic"},
		{"topic=a*", "", "", problem.FilterRefused, "?topic"},
		{"match=x", "", "", problem.InvalidParameter, "?match"},
		{"match=" + url.QueryEscape(`{"a":[{"like":"b"}]}`), "", "", problem.FilterRefused, "?match#/a/0/like"},
		{"limit=1", "", "", problem.UnknownParameter, "?limit"},
		{"wait=1s", "", "", problem.UnknownParameter, "?wait"},
	} {
		c := h.client
		if tc.header != "" {
			c = c.with(tc.header, tc.value)
		}
		got := c.try("GET", "/stream?"+tc.query, "").wantProblem(tc.typ)
		if len(got.Errors) != 1 || got.Errors[0].Pointer != tc.pointer || got.Errors[0].Detail == "" {
			t.Errorf("%s %s %q: the errors are %+v, want one at %s", tc.query, tc.header, tc.value, got.Errors, tc.pointer)
		}
	}
}

// A browser gives up for good when its stream is refused.
func TestReadersBeyondTheHeadGetAGap(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/subscriptions/s", `{"filters":[{}]}`).want(http.StatusCreated)
	head := h.publishAll("a", "b")[1]
	beyond := head + 1000
	gap := fmt.Sprintf(`"gap":{"after":%d,"until":%d,"reason":"beyond_head"}`, beyond, head)

	got := h.call("GET", fmt.Sprintf("/log?after=%d", beyond), "").want(http.StatusOK)
	if want := fmt.Sprintf(`{"events":[],"next":%d,"head":%d,%s}`, head, head, gap); strings.TrimSpace(got.body) != want {
		t.Errorf("GET /log: %s, want %s", got.body, want)
	}
	if got := h.with("Accept", "application/cloudevents-batch+json").call("GET", fmt.Sprintf("/log?after=%d", beyond), "").want(http.StatusOK); !strings.HasSuffix(got.header.Get("Queued-Gap"), "reason=beyond_head") {
		t.Errorf("with CloudEvents: %q", got.header.Get("Queued-Gap"))
	}
	sought := h.call("POST", "/subscriptions/s/seek", fmt.Sprintf(`{"to":%d}`, beyond)).want(http.StatusOK)
	if want := fmt.Sprintf(`{"position":%d,%s}`, head, gap); strings.TrimSpace(sought.body) != want {
		t.Errorf("seek: %s, want %s", sought.body, want)
	}
	resumed := h.environmentWith("Last-Event-ID", strconv.FormatInt(beyond, 10))
	streams := map[string]*openStream{"GET /stream": resumed.open("/stream"), "the stream of a subscription": resumed.open("/subscriptions/s/stream")}
	for name, s := range streams {
		if e, want := s.next(1)[0], (sseEvent{"gap", "{" + gap + "}", strconv.FormatInt(head, 10)}); e != want {
			t.Errorf("%s: %+v, want %+v", name, e, want)
		}
	}
	lines := bufio.NewReader(resumed.environmentWith("Accept", "application/x-ndjson").open("/stream").body)
	for _, want := range []string{fmt.Sprintf(`{"position":%d}`, beyond), "{" + gap + "}"} {
		if got, err := lines.ReadString('\n'); err != nil || got != want+"\n" {
			t.Errorf("line %q, %v; want %s", got, err, want)
		}
	}
	h.publishAll("c")
	for name, s := range streams {
		if e := s.next(1)[0]; e.name != "c" {
			t.Errorf("%s goes on with %+v, want c", name, e)
		}
	}
	h.call("GET", "/log?after=9007199254740992", "").want(http.StatusBadRequest)
}
