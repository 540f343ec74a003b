package http

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queued/queued/internal/gatewaytest"
	"github.com/queued/queued/internal/http/problem"
)

// waiting starts a waiting claim, and returns a channel with its response.
func (h *environment) waiting(body string) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		defer close(answers)
		answers <- h.call("POST", "/claim", body)
	}()
	return answers
}

func TestWaitingClaimIsAnsweredWhenAnEventIsInserted(t *testing.T) {
	t.Parallel()
	for name, post := range map[string]func(h *environment){
		"by HTTP": func(h *environment) { h.insert(`{"n":1}`) },
		"by SQL":  func(h *environment) { h.cellOf("default").sql(`select agent.insert_event('{"n":1}')`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			began := time.Now()
			claim := h.waiting(`{"wait":"60s"}`)
			post(h)
			got := <-claim
			if events := decode[seenPage](got.want(200)).Events; len(events) != 1 || string(events[0].Event) != `{"n":1}` {
				t.Errorf("got %s", got.body)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("the claim took %s", took)
			}
		})
	}
}

// acking is the body of a claim that acks events first.
func acking(queue string, events ...seenEvent) string {
	items := make([]string, len(events))
	for i, e := range events {
		items[i] = fmt.Sprintf(`{"id":%d,"receipt":%q,"result":{"n":%d}}`, e.ID, e.Receipt, i)
	}
	return fmt.Sprintf(`{"queue":%q,"acks":[%s]}`, queue, strings.Join(items, ","))
}

type ackedAndClaimedPage struct {
	Events []seenEvent `json:"events"`
	Acks   []ackResult `json:"acks"`
}

func TestClaimAcksTheEventsBefore(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var ids []int64
	for range 4 {
		ids = append(ids, h.insert(`{}`))
	}
	first := h.claim(`{"limit":2,"acks":[]}`)
	if got := h.call("POST", "/claim", `{"queue":"empty","acks":[]}`).want(200); got.body != `{"events":[]}` {
		t.Errorf("without acks: got %s", got.body)
	}
	wrong := first[1]
	wrong.Receipt = "1.1.0000000000000000"
	got := decode[ackedAndClaimedPage](h.call("POST", "/claim", acking("default", first[0], wrong, seenEvent{ID: 1 << 40, Receipt: "x"})).want(200))
	want := []ackResult{{ids[0], 204, ""}, {ids[1], 409, "lease_lost"}, {1 << 40, 404, "event_not_found"}}
	if !slices.Equal(got.Acks, want) || len(got.Events) != 1 || got.Events[0].ID != ids[2] {
		t.Errorf("got %+v", got)
	}
	if e := h.get(ids[0]); e.Outcome != "done" || string(e.Result) != `{"n":0}` {
		t.Errorf("acked: %+v", e)
	}
	if e := h.get(ids[1]); e.State != "leased" {
		t.Errorf("with a wrong receipt: %+v", e)
	}
	// Whatever is wrong with the claim, nothing is acked.
	for _, wrong := range []string{`"limit":0`, `"nothing":1`, `"acks":[{"id":1},{"id":"x"}]`, `"acks":[{"receipt":"x"}]`, `"acks":{}`, `"acks":null`} {
		body := strings.Replace(acking("default", got.Events[0]), `}]}`, `}],`+wrong+`}`, 1)
		if p := h.try("POST", "/claim", body); p.status != 422 && p.status != 400 {
			t.Errorf("%s: got %s", body, p.body)
		}
	}
	h.try("POST", "/claim", `{"acks":[{"id":1}`+strings.Repeat(`,{"id":1}`, 1000)+`]}`).wantProblem(problem.BatchTooLarge)
	if e := h.get(ids[2]); e.State != "leased" {
		t.Errorf("after claims that are wrong: %+v", e)
	}
}

func TestClaimAcksEventsOfOtherQueues(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "a")
	h.placeOn(1, "b")
	for _, queue := range []string{"a", "a", "b", "b"} {
		h.insertWith("queue=" + queue)
	}
	ofA, ofB := h.claimOneBy(`{"queue":"a"}`), h.claimOneBy(`{"queue":"b"}`)
	wrong := ofA
	wrong.Receipt = "1.1.0000000000000000"
	for _, claim := range []struct {
		body string
		want []ackResult
	}{
		{acking("b", ofB, wrong, ofA), []ackResult{{ofB.ID, 204, ""}, {ofA.ID, 409, "lease_lost"}, {ofA.ID, 204, ""}}},
		{acking("a", ofB, ofA), []ackResult{{ofB.ID, 204, ""}, {ofA.ID, 204, ""}}}, // once more
	} {
		got := decode[ackedAndClaimedPage](h.with("Accept", "application/cloudevents-batch+json").call("POST", "/claim", claim.body).want(200))
		if !slices.Equal(got.Acks, claim.want) || len(got.Events) != 1 || got.Events[0].Receipt == "" {
			t.Errorf("%s: got %+v", claim.body, got)
		}
	}
	h.try("POST", "/claim", acking("a", ofB, ofB, ofA)[:50]).wantProblem(problem.InvalidJSON)
	if p := h.try("POST", "/claim", fmt.Sprintf(`{"queue":"a","acks":[{"id":%d},{"id":%d,"receipt":"x","more":1}]}`, ofA.ID, ofB.ID)); p.status != 422 || !strings.Contains(p.body, `"#/acks/1/more"`) {
		t.Errorf("got %s", p.body)
	}
}

func TestWaitingClaimIsAnsweredEmptyAtTheEndOfWait(t *testing.T) {
	t.Parallel()
	h := setup(t)
	began := time.Now()
	if events := h.claim(`{"wait":"300ms"}`); len(events) != 0 {
		t.Errorf("got %+v", events)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 10*time.Second {
		t.Errorf("a wait of 300ms took %s", took)
	}
}

func TestDrainAnswersWaitingClaimsAndTurnsReadinessOff(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("GET", "/readyz", "").want(200)
	claim := h.waiting(`{"wait":"60s"}`)
	h.drain()
	if got := <-claim; got.want(200).body != `{"events":[]}` {
		t.Errorf("got %s", got.body)
	}
	h.call("GET", "/readyz", "").wantProblem(problem.NotReady)
	h.call("GET", "/livez", "").want(200)
	h.insert(`{}`)
}

func TestDisconnectedClientEndsItsWaitAndLosesNothing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	r := h.request(ctx, "POST", "/claim", `{"wait":"60s"}`)
	go func() {
		resp, err := h.http.Do(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		gone <- err
	}()
	leave()
	if err := <-gone; err == nil {
		t.Fatal("the client got a response")
	}
	id := h.insert(`{}`)
	h.wantClaimable(id)
}

// wantClaimable fails the test unless the event can be claimed soon, as its first attempt.
func (h *environment) wantClaimable(id int64) {
	h.t.Helper()
	events := h.claim(`{"wait":"30s"}`)
	if len(events) != 1 || events[0].ID != id || events[0].Attempts != 1 || len(events[0].Claimed) != 1 {
		h.t.Errorf("after an unreceived claim, the next one got %+v", events)
	}
}

func TestConnectionResetDuringAClaimLosesNothing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	host := strings.TrimPrefix(h.url, "http://")
	for n := range 30 {
		id := h.insert(`{}`)
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", host)
		if err != nil {
			t.Fatal(err)
		}
		_, err = fmt.Fprintf(conn, "POST /claim HTTP/1.1\r\nHost: x\r\nX-Request-Id: round-%d\r\nContent-Length: 0\r\n\r\n", n)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // so that Close resets the connection
			t.Fatal(err)
		}
		_ = conn.Close()
		// The reset can come before the claim, during it, or after the kernel has accepted the response.
		parts := []string{fmt.Sprintf(`"request_id":"round-%d"`, n)}
		if gatewaytest.Cells(t) > 0 {
			parts = append(parts, `"cell":"`) // the gateway's line
		}
		line := h.log.wait(t, parts...)
		if strings.Contains(line, `"status":200`) && !strings.Contains(line, "undelivered") {
			if e := h.get(id); e.State != "leased" {
				t.Errorf("round %d: the claim succeeded, but the event is %+v", n, e)
			}
		} else {
			h.wantClaimable(id)
		}
		h.call("DELETE", fmt.Sprintf("/events/%d", id), "").want(204)
	}
}

// A brokenWriter is a response writer that fails when the response is written or flushed.
type brokenWriter struct {
	header    http.Header
	failWrite bool
}

func (w *brokenWriter) Header() http.Header { return w.header }
func (w *brokenWriter) WriteHeader(int)     {}

func (w *brokenWriter) Write(b []byte) (int, error) {
	if w.failWrite {
		return 0, syscall.EPIPE
	}
	return len(b), nil
}

func (w *brokenWriter) FlushError() error { return syscall.ECONNRESET }

func TestClaimsAreReleasedWhenTheResponseCannotBeWritten(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]*brokenWriter{
		"writing fails":  {header: make(http.Header), failWrite: true},
		"flushing fails": {header: make(http.Header)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			id := h.insert(`{}`)
			h.cellOf("default").srv.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/claim", nil))
			if e := h.get(id); e.State != "ready" || e.Attempts != 0 || len(e.Claimed) != 0 {
				t.Errorf("the event is %+v", e)
			}
			h.wantClaimable(id)
			h.log.wait(t, `"route":"/claim"`, `"released":1`, `"undelivered":`)
			if metrics := h.call("GET", "/metrics", "").body; !strings.Contains(metrics, `queued_events_released_total{queue="default"} 1`) {
				t.Errorf("the release is not counted:\n%s", metrics)
			}
		})
	}
}

func TestLongWaitIsNotCutOffByTheReadTimeout(t *testing.T) {
	t.Parallel()
	h := setup(t)
	server := httptest.NewUnstartedServer(h.srv.Handler())
	server.Config.ReadTimeout = 100 * time.Millisecond
	server.Start()
	t.Cleanup(server.Close)
	c := *h.client
	c.url = server.URL
	if events := c.claim(`{"wait":"500ms"}`); len(events) != 0 {
		t.Errorf("got %+v", events)
	}
}
