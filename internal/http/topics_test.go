package http

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/http/problem"
)

// provokeTopics provokes every documented response about topics and the log.
func provokeTopics(h *environment) {
	for _, status := range []int{201, 200} {
		h.with("Idempotency-Key", `"k"`).call("POST", "/topics/order.placed?key=4711", `{"n":1}`).want(status)
		h.call("POST", "/publish", `{"events":[{"topic":"order.paid","event":{"n":2},"meta":{"m":1},"key":"k","idempotency_key":"k"}]}`).want(status)
	}
	h.call("POST", "/topics/order.placed?delay=1h&subscription=s", `{"n":3}`).want(202)
	h.with("Idempotency-Key", "k").call("POST", "/topics/order.placed", `{"n":9}`).wantProblem(problem.KeyReused)
	h.call("POST", "/publish", `{"events":[{"topic":"order.placed","event":{},"idempotency_key":"k"}]}`).wantProblem(problem.KeyReused)
	h.call("GET", "/topics", "").want(200)
	page := decode[seenLog](h.call("GET", "/log?topic=order.*", "").want(200))
	h.call("GET", "/log?last=2&topic=order.*", "").want(200)
	h.call("GET", fmt.Sprintf("/log/%d", page.Events[0].Position), "").want(200)
	h.call("GET", "/log/7", "").wantProblem(problem.PositionNotFound)
	h.call("GET", "/log?match="+url.QueryEscape(`{"n":[{"numerc":1}]}`), "").wantProblem(problem.FilterRefused)
	h.call("POST", "/match", `{"filter":{"topics":["order.*"]},"last":10}`).want(200)
	h.call("POST", "/match", `{"filter":{"topics":["a..b"]},"last":10}`).wantProblem(problem.FilterRefused)
	h.call("GET", "/log/settings", "").want(200)
	h.call("PUT", "/log/settings", `{"retention":"48h"}`).want(200)
	h.with("If-Match", `"99"`).call("PUT", "/log/settings", `{}`).wantProblem(problem.PreconditionFailed)
}

// seenLog is a page of the log.
type seenLog struct {
	Events []struct {
		Position int64          `json:"position"`
		Topic    string         `json:"topic"`
		Key      string         `json:"key"`
		Meta     map[string]any `json:"meta"`
		Event    map[string]any `json:"event"`
	} `json:"events"`
	Next int64 `json:"next"`
	Head int64 `json:"head"`

	Complete *bool `json:"complete"`

	Gap  *struct{} `json:"gap"`
	Held *struct {
		Position int64 `json:"position"`
		PID      int   `json:"pid"`
	} `json:"held_by"`
}

// topics are those of the events of a page, in order.
func (l seenLog) topics() (all []string) {
	for _, e := range l.Events {
		all = append(all, e.Topic)
	}
	return all
}

// readLog returns a page of the log.
func (h *environment) readLog(query string) seenLog {
	h.t.Helper()
	return decode[seenLog](h.call("GET", "/log?"+query, "").want(http.StatusOK))
}

func TestPublishedEventComesBackAsItWasSent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	got := h.call("POST", "/topics/order.placed?key=4711", `{"order":4711,"total":99.90}`).want(http.StatusCreated)
	position := decode[struct {
		Position int64  `json:"position"`
		Topic    string `json:"topic"`
	}](got)
	if position.Topic != "order.placed" || got.header.Get("Location") != fmt.Sprintf("/log/%d", position.Position) {
		t.Errorf("published %+v at %s", position, got.header.Get("Location"))
	}
	page := h.readLog("")
	if len(page.Events) != 1 || page.Events[0].Position != position.Position || page.Events[0].Key != "4711" || page.Next != page.Head {
		t.Fatalf("the log is %+v", page)
	}
	one := h.call("GET", got.header.Get("Location"), "").want(http.StatusOK)
	if !strings.HasSuffix(strings.TrimSpace(one.body), `"key":"4711","event":{"order":4711,"total":99.90}}`) {
		t.Errorf("the event is %s", one.body)
	}
}

func TestLogTakesFiltersAsLargeAsTheyMayBe(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/topics/a", `{"name":"ü5999"}`).want(http.StatusCreated)
	names := make([]string, 6000)
	for i := range names {
		names[i] = fmt.Sprintf(`"ü%04d"`, i)
	}
	match := `{"name":[` + strings.Join(names, ",") + `]}`
	if len(match) > 64<<10 || len(url.QueryEscape(match)) < 96<<10 {
		t.Fatalf("the pattern has %d bytes", len(match))
	}
	if got := h.readLog("match=" + url.QueryEscape(match)).topics(); len(got) != 1 {
		t.Errorf("a large pattern matches %v", got)
	}
	topics := make([]string, 256)
	for i := range topics {
		topics[i] = fmt.Sprintf("topic=%03d%s", i, strings.Repeat("x", 252))
	}
	topics[7] = "topic=a"
	if got := h.readLog(strings.Join(topics, "&")).topics(); len(got) != 1 {
		t.Errorf("many topics match %v", got)
	}
}

func TestLogIsFilteredByTopicsAndPayloads(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/publish", `{"events":[{"topic":"order.placed","event":{"total":10}},{"topic":"order.paid.late","event":{"total":200}},
		{"topic":"user.added","event":{"total":200}},{"topic":"order.placed","event":{"total":300}}]}`).want(http.StatusCreated)
	big := url.QueryEscape(`{"total":[{"numeric":[">=",200]}]}`)
	for query, want := range map[string]string{
		"":                                    "order.placed order.paid.late user.added order.placed",
		"topic=order.placed":                  "order.placed order.placed",
		"topic=order.*":                       "order.placed order.placed",
		"topic=order.**":                      "order.placed order.paid.late order.placed",
		"topic=user.added&topic=order.paid.*": "order.paid.late user.added",
		"match=" + big:                        "order.paid.late user.added order.placed",
		"topic=order.*&match=" + big:          "order.placed",
		"limit=1":                             "order.placed",
		"after=latest":                        "",
		"after=earliest":                      "order.placed order.paid.late user.added order.placed",
		"after=0":                             "order.placed order.paid.late user.added order.placed",
		"at=2020-01-01T00:00:00Z":             "order.placed order.paid.late user.added order.placed",
		"last=1000":                           "order.placed order.paid.late user.added order.placed",
		"last=3":                              "order.paid.late user.added order.placed",
		"last=1&topic=order.placed":           "order.placed",
		"last=1&topic=order.**&topic=a":       "order.placed",
		"last=2&topic=user.added&topic=a":     "user.added",
		"last=2&match=" + big:                 "user.added order.placed",
		"last=2&topic=order.*&match=" + big:   "order.placed",
	} {
		if got := strings.Join(h.readLog(query).topics(), " "); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	last := h.readLog("last=1")
	if last.Complete == nil || !*last.Complete || last.Next != last.Head || last.Events[0].Position != last.Head || h.readLog("limit=1").Complete != nil {
		t.Errorf("the last event is %+v", last)
	}
	out := h.with("Accept", "application/cloudevents-batch+json").call("GET", "/log?last=1&topic=user.*", "").want(200)
	if link := out.header.Get("Link"); !strings.Contains(link, fmt.Sprintf("after=%d&topic=", last.Head)) || strings.Contains(link, "last=") {
		t.Errorf("the next page is at %s", link)
	}
}

func TestWaitingReadOfTheLogIsAnsweredWhenSomethingIsPublished(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/topics/a", `{}`).want(http.StatusCreated)
	head := h.readLog("").Head
	done := make(chan seenLog, 1)
	go func() { done <- h.readLog(fmt.Sprintf("after=%d&wait=60s&topic=b", head)) }()
	h.call("POST", "/topics/a", `{}`).want(http.StatusCreated)
	h.call("POST", "/topics/b", `{}`).want(http.StatusCreated)
	if got := (<-done).topics(); !slices.Equal(got, []string{"b"}) {
		t.Errorf("the reader got %q", got)
	}
}

func TestDelayedPublicationIsAcceptedAndPublishedLater(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for i := range 2 {
		got := h.with("Idempotency-Key", "k").call("POST", "/topics/later?delay=1h", `{"n":1}`).want(http.StatusAccepted)
		if replayed := got.header.Get("Idempotency-Replayed") == "true"; replayed != (i == 1) {
			t.Errorf("call %d: Idempotency-Replayed is %v", i+1, replayed)
		}
		if !strings.HasPrefix(got.header.Get("Location"), "/events/") {
			t.Errorf("Location is %q", got.header.Get("Location"))
		}
	}
	h.sql(`update agent.event set vt = now()`)
	if page := h.readLog("wait=60s"); len(page.Events) != 1 || page.Events[0].Topic != "later" {
		t.Errorf("published %+v", page)
	}
}

func TestReaderBehindAHeldHeadIsToldWhoHoldsIt(t *testing.T) {
	t.Parallel()
	h := setup(t)
	conn := h.connect()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent_service.append_log('{held}', '{"{}"}')`); err != nil {
		t.Fatal(err)
	}
	h.call("POST", "/topics/a", `{}`).want(http.StatusCreated)
	deadline := time.Now().Add(busyTimeout)
	page := h.readLog("")
	for page.Held == nil && time.Now().Before(deadline) { // it is told after a second
		page = h.readLog("wait=100ms")
	}
	if len(page.Events) != 0 || page.Held == nil || page.Held.PID != int(conn.PgConn().PID()) {
		t.Fatalf("behind a held head the page is %+v, want the session %d", page, conn.PgConn().PID())
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := h.readLog("wait=60s").topics(); !slices.Equal(got, []string{"held", "a"}) {
		t.Errorf("afterwards %q is read", got)
	}
}

func TestBadRequestsAboutTopicsSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	h := setup(t)
	long := strings.Repeat("x", 256)
	for _, test := range []struct {
		method, path, body string
		typ                problem.Type
		pointer            string
	}{
		{"POST", "/topics/a..b", `{}`, problem.InvalidParameter, "{topic}"},
		{"POST", "/topics/queued.x", `{}`, problem.InvalidParameter, "{topic}"},
		{"POST", "/topics/" + long, `{}`, problem.InvalidParameter, "{topic}"},
		{"POST", "/topics/a%20b", `{}`, problem.InvalidParameter, "{topic}"},
		{"POST", "/topics/a?delay=1s&at=2100-01-01T00:00:00Z", `{}`, problem.InvalidParameter, "?at"},
		{"POST", "/topics/a?delay=-1s", `{}`, problem.InvalidParameter, "?delay"},
		{"POST", "/topics/a?meta={}", `{}`, problem.UnknownParameter, "?meta"},
		{"POST", "/topics/a", `[]`, problem.ValidationFailed, "#"},
		{"POST", "/publish", `{"events":[]}`, problem.ValidationFailed, "#/events"},
		{"POST", "/publish", `{"events":[{"topic":"a","event":{}},{"topic":"a b","event":{}}]}`, problem.ValidationFailed, "#/events/1/topic"},
		{"POST", "/publish", `{"events":[{"topic":"a","event":{},"meta":[]}]}`, problem.ValidationFailed, "#/events/0/meta"},
		{"POST", "/publish", `{"events":[{"topic":"a","event":{}},{"topic":"a","event":{},"meta":{"a":"` + strings.Repeat("x", 16377) + `"}}]}`, problem.ValidationFailed, "#/events/1/meta"},
		{"POST", "/publish", `{"events":[{"event":{}}]}`, problem.ValidationFailed, "#/events/0/topic"},
		{"POST", "/match", `{"filter":{}}`, problem.ValidationFailed, "#/events"},
		{"POST", "/match", `{"filter":{},"last":1,"events":[{"topic":"a","event":{}}]}`, problem.ValidationFailed, "#/events"},
		{"POST", "/match", `{"last":1}`, problem.ValidationFailed, "#/filter"},
		{"POST", "/match", `{"filter":{"topics":[]},"last":1}`, problem.ValidationFailed, "#/filter/topics"},
		{"POST", "/match", `{"filter":{"topics":["a.**.b"]},"last":1}`, problem.FilterRefused, "#/filter/topics/0"},
		{"POST", "/match", `{"filter":{"match":{"a":[{"numeric":["<"]}]}},"last":1}`, problem.FilterRefused, "#/filter/match/a/0/numeric"},
		{"POST", "/match", `{"filter":{},"events":[{"topic":"a b","event":{}}]}`, problem.ValidationFailed, "#/events/0/topic"},
		{"GET", "/log?after=x", "", problem.InvalidParameter, "?after"},
		{"GET", "/log?after=-1", "", problem.InvalidParameter, "?after"},
		{"GET", "/log?after=9007199254740992", "", problem.InvalidParameter, "?after"},
		{"GET", "/log?after=1&at=2020-01-01T00:00:00Z", "", problem.InvalidParameter, "?at"},
		{"GET", "/log?limit=0", "", problem.InvalidParameter, "?limit"},
		{"GET", "/log?last=0", "", problem.InvalidParameter, "?last"},
		{"GET", "/log?last=1001", "", problem.InvalidParameter, "?last"},
		{"GET", "/log?last=1&after=earliest", "", problem.InvalidParameter, "?last"},
		{"GET", "/log?last=1&at=2020-01-01T00:00:00Z", "", problem.InvalidParameter, "?last"},
		{"GET", "/log?last=1&limit=1", "", problem.InvalidParameter, "?last"},
		{"GET", "/log?last=1&wait=1s", "", problem.InvalidParameter, "?last"},
		{"GET", "/log?last=1&topic=a..b", "", problem.FilterRefused, "?topic"},
		{"GET", "/log?wait=2m", "", problem.InvalidParameter, "?wait"},
		{"GET", "/log?topic=**.a", "", problem.FilterRefused, "?topic"},
		{"GET", "/log?topic=", "", problem.InvalidParameter, "?topic"},
		{"GET", "/log?match=" + url.QueryEscape(`{"a":[]}`), "", problem.FilterRefused, "?match#/a"},
		{"GET", "/log?match=x", "", problem.InvalidParameter, "?match"},
		{"GET", "/log/x", "", problem.InvalidParameter, "{position}"},
		{"PUT", "/log/settings", `{"retention":"1s"}`, problem.ValidationFailed, "#/retention"},
		{"PUT", "/log/settings", `{"retention":"48h","hold":"24h"}`, problem.ValidationFailed, "#/hold"},
		{"PUT", "/log/settings", `{"segment_size":1}`, problem.ValidationFailed, "#/segment_size"},
	} {
		got := h.try(test.method, test.path, test.body).wantProblem(test.typ)
		if len(got.Errors) != 1 || got.Errors[0].Pointer != test.pointer || got.Errors[0].Detail == "" {
			t.Errorf("%s %s: the errors are %+v, want one at %s", test.method, test.path, got.Errors, test.pointer)
		}
	}
	h.with("Idempotency-Key", "k").try("POST", "/publish", `{"events":[{"topic":"a","event":{}}]}`).wantProblem(problem.InvalidParameter)
	if page := h.readLog(""); len(page.Events) != 0 {
		t.Errorf("published %+v", page.Events)
	}
}

func TestFilterIsTriedBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	got := h.call("POST", "/match", `{"filter":{"topics":["order.*"],"match":{"total":[{"numeric":[">",100]}]}},
		"events":[{"topic":"order.placed","event":{"total":250}},{"topic":"order.placed","event":{"total":1}},{"topic":"user","event":{"total":250}}]}`).want(http.StatusOK)
	if got.body != `{"matched":[true,false,false]}` {
		t.Errorf("of events in the request: %s", got.body)
	}
	if got := h.call("POST", "/match", `{"filter":{},"last":5}`).want(http.StatusOK); got.body != `{"matched":[]}` {
		t.Errorf("of an empty log: %s", got.body)
	}
	h.call("POST", "/publish", `{"events":[{"topic":"a","event":{}},{"topic":"b","event":{}},{"topic":"c","event":{},"subscription":"s"},{"topic":"a","event":{}}]}`).want(http.StatusCreated)
	got = h.call("POST", "/match", `{"filter":{"topics":["a"]},"last":2}`).want(http.StatusOK)
	if got.body != `{"matched":[false,true],"positions":[4294967298,4294967300]}` {
		t.Errorf("of the last two events: %s", got.body)
	}
}

func TestSettingsOfTheLogTakeEffectByTheirVersion(t *testing.T) {
	t.Parallel()
	h := setup(t)
	tag := h.call("GET", "/log/settings", "").want(http.StatusOK).header.Get("Etag")
	changed := h.with("If-Match", tag).call("PUT", "/log/settings", `{"retention":"48h"}`).want(http.StatusOK)
	if !strings.HasPrefix(changed.body, `{"retention":"48h0m0s","hold":"168h0m0s","segment_interval":"1h0m0s","segment_size":10000000,`) {
		t.Errorf("changed to %s", changed.body)
	}
	h.with("If-Match", tag).call("PUT", "/log/settings", `{}`).wantProblem(problem.PreconditionFailed)
	if again := h.call("GET", "/log/settings", "").want(http.StatusOK); again.body != changed.body || again.header.Get("Etag") == tag {
		t.Errorf("the settings are %s", again.body)
	}
}

func TestMetricsShowTheLogAndWhoHoldsIt(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/topics/a", `{}`).want(http.StatusCreated)
	head := h.readLog("").Head
	conn := h.connect()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	metric := func(name string) string {
		_, rest, _ := strings.Cut(h.call("GET", "/metrics", "").want(http.StatusOK).body, "\n"+name+" ")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	if published, held := metric("queued_log_published_total"), metric("queued_log_held_seconds"); published != "1" || held != "0" {
		t.Errorf("%s published, held for %s s; want 1 and 0", published, held)
	}
	if got, err := strconv.ParseFloat(metric("queued_log_head_position"), 64); err != nil || int64(got) != head {
		t.Errorf("the head is %v, %v; want %d", got, err, head)
	}
	if _, err := tx.Exec(t.Context(), `select agent_service.append_log('{held}', '{"{}"}')`); err != nil {
		t.Fatal(err)
	}
	if held := metric("queued_log_held_seconds"); held == "0" || held == "" {
		t.Errorf("held for %q s beside an open publisher", held)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestPublicationsThatAreNotAtomicAreEachPublishedAlone(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/publish", `{"events":[{"topic":"a.b","event":{"n":-1},"idempotency_key":"used"}]}`).want(201)
	var items []string
	for n := range 20 {
		options := ""
		switch n {
		case 3, 4, 17:
			options = `,"idempotency_key":"used"`
		case 11:
			options = `,"idempotency_key":"mine"`
		}
		items = append(items, fmt.Sprintf(`{"topic":"a.b","event":{"n":%d}%s}`, n, options))
	}
	type result struct {
		Status       int
		Position     int64
		Topic        string
		PublishedAt  time.Time `json:"published_at"`
		Code, Detail string
	}
	post := func(items ...string) []result {
		t.Helper()
		return decode[struct{ Results []result }](h.call("POST", "/publish?atomic=false", `{"events":[`+strings.Join(items, ",")+`]}`).want(200)).Results
	}
	results := post(items...)
	if len(results) != len(items) {
		t.Fatalf("got %d results of %d events", len(results), len(items))
	}
	for n, r := range results {
		if n == 3 || n == 4 || n == 17 {
			if r.Status != 422 || r.Code != "idempotency_key_reused" || r.Detail == "" || r.Position != 0 {
				t.Errorf("event %d: got %+v", n, r)
			}
			continue
		}
		published := h.call("GET", fmt.Sprintf("/log/%d", r.Position), "").want(200).body
		if r.Status != 201 || r.Topic != "a.b" || r.PublishedAt.IsZero() || !strings.Contains(published, fmt.Sprintf(`"event":{"n":%d}`, n)) {
			t.Errorf("event %d: got %+v, which is %s", n, r, published)
		}
	}
	if again := post(items[11]); again[0].Status != 200 || again[0].Position != results[11].Position {
		t.Errorf("an event that was published before: got %+v, want 200 and the position %d", again, results[11].Position)
	}
	h.try("POST", "/publish?atomic=false", `{"events":[{"topic":"a","event":{}},{"topic":"a b","event":{}}]}`).wantProblem(problem.ValidationFailed)
	h.try("POST", "/publish?atomic=perhaps", `{"events":[{"topic":"a","event":{}}]}`).wantProblem(problem.InvalidParameter)
	if n := h.count("select count(*) from agent.log"); n != 18 {
		t.Errorf("there are %d events in the log, want 18", n)
	}

	batch, codes := apart(func(payload string) string { return `{"topic":"a.b","event":` + payload + `}` })
	results = decode[struct{ Results []result }](h.try("POST", "/publish?atomic=false", batch).want(200)).Results
	for i, code := range codes {
		if r := results[i]; r.Code != code || (code == "") != (r.Status == 201) || r.Topic != map[bool]string{true: "a.b"}[code == ""] {
			t.Errorf("event %d that cannot be stored, or beside one: %+v, want %q", i, r, code)
		}
	}
}
