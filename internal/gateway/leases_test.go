package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A claimedCell answers claims with events, and notes which of them are released.
type claimedCell struct {
	*fakeCell
	most int // events that it takes at a time

	mu       sync.Mutex
	released []string // "id receipt"
}

// answersClaims has a cell answer claims of the queue full with so many events, or wait until its client seems to go and answer then; claims of other queues with none.
func answersClaims(f *fakeCell, events int, isLate bool) *claimedCell {
	k := &claimedCell{fakeCell: f, most: 1000}
	f.mux.HandleFunc("POST /claim", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		body := `{"events":[]}` + "\n"
		if strings.Contains(string(text), "full") {
			body = claimedBody(f.number, events, r.Header.Get("Accept") != "")
			if isLate {
				<-r.Context().Done()
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		_, _ = io.WriteString(w, body)
	})
	f.mux.HandleFunc("POST /release", k.release)
	return k
}

// release answers POST /release.
func (k *claimedCell) release(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Events []struct {
			ID      int64
			Receipt string
		}
	}
	err := json.NewDecoder(r.Body).Decode(&body)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil || len(body.Events) == 0 || len(body.Events) > k.most || r.Header.Get("Authorization") != "Bearer "+callerKey {
		refuseBatch(w, "#/events")
		return
	}
	for _, e := range body.Events {
		k.released = append(k.released, fmt.Sprint(e.ID, " ", e.Receipt))
	}
	_, _ = io.WriteString(w, `{"results":[]}`)
}

func (k *claimedCell) got() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.released)
}

// claimedBody returns the answer to a claim.
func claimedBody(cell, events int, asCloudEvents bool) string {
	texts := make([]string, events)
	for i := range texts {
		id := int64(cell)<<idBits + int64(i) + 1
		if texts[i] = fmt.Sprintf(`{"id":%d,"queue":"full","event":{"id":7,"receipt":"x","n":[{"id":8,"receipt":"\"}{"}]},"receipt":"%[1]d.1.ab","attempts":1}`, id); asCloudEvents {
			texts[i] = fmt.Sprintf(`{"specversion":"1.0","id":"77","queuedid":"%d","queuedreceipt":"%[1]d.1.ab","receipt":"mine","data":{"queuedid":"8","queuedreceipt":"y"}}`, id)
		}
	}
	list := "[" + strings.Join(texts, ",") + "]"
	if !asCloudEvents {
		list = `{"events":` + list + "}"
	}
	return list + "\n"
}

// wantReleased checks that the cell has had so many leases released, each once.
func (k *claimedCell) wantReleased(when string, n int) {
	k.t.Helper()
	got := k.got()
	slices.Sort(got)
	if len(slices.Compact(slices.Clone(got))) != n || len(got) != n {
		k.t.Errorf("%s: %d leases of cell %d were released, want %d: %.200q", when, len(got), k.number, n, got)
		return
	}
	for i := range n {
		id := int64(k.number)<<idBits + int64(i) + 1
		if want := fmt.Sprintf("%d %[1]d.1.ab", id); !slices.Contains(got, want) {
			k.t.Errorf("%s: %q was not released", when, want)
		}
	}
}

// A brokenWriter is a response writer that fails when the response is written, from some byte on, or when it is flushed.
type brokenWriter struct {
	*httptest.ResponseRecorder
	left    int
	isFlush bool
}

func (w *brokenWriter) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left < 0 {
		return 0, syscall.EPIPE
	}
	return len(b), nil
}

func (w *brokenWriter) FlushError() error {
	if w.isFlush {
		return syscall.ECONNRESET
	}
	return nil
}

// claimBroken makes a claim whose answer cannot be written.
func (e *environment) claimBroken(w *brokenWriter, body string, fields ...string) {
	e.t.Helper()
	defer func() {
		if cause := recover(); cause != nil && fmt.Sprint(cause) != http.ErrAbortHandler.Error() {
			panic(cause)
		}
	}()
	w.ResponseRecorder = httptest.NewRecorder()
	r := e.request("POST", "/claim", body, fields...)
	r.RequestURI, r.Host = "/claim", r.URL.Host
	e.gateway.Handler().ServeHTTP(w, r)
}

func TestLeasesOfAnAnswerThatCannotBeWrittenAreReleased(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]brokenWriter{"writing fails": {left: 0}, "writing fails in the middle": {left: 20 << 10}, "flushing fails": {left: 1 << 30, isFlush: true}} {
		for what, cells := range map[string]int{"of one cell": 1, "of a pinned queue": 2, "of a spread queue": 2, "of a former cell": 3} {
			for _, field := range []string{"X-None: ", "Accept: application/cloudevents-batch+json"} {
				t.Run(name+" "+what+" "+field, func(t *testing.T) {
					t.Parallel()
					broken := w
					var fakes []*fakeCell
					for i := range cells {
						fakes = append(fakes, newFakeCell(t, i))
					}
					const events = 350
					last := answersClaims(fakes[cells-1], events, false)
					last.most = 64
					for _, f := range fakes[:cells-1] {
						answersClaims(f, 0, false)
					}
					switch what {
					case "of a pinned queue":
						fakes[0].put(placement{Queue: "full", Cells: []int{1}})
					case "of a spread queue":
						fakes[0].put(placement{Queue: "full", Cells: []int{0, 1}})
					case "of a former cell":
						fakes[0].put(placement{Queue: "full", Cells: []int{1}, Former: []former{{Cells: []int{2}}}})
					}
					e := setup(t, nil, fakes...)
					e.claimBroken(&broken, `{"queue":"full","limit":1000,"wait":"1s"}`, field)
					last.wantReleased(name, events)
					if line := e.log.String(); !strings.Contains(line, `"undelivered":"`) || !strings.Contains(line, fmt.Sprintf(`"released":%d`, events)) {
						t.Errorf("the log has %s", line)
					}
					// An answer that is received keeps its leases.
					e.want(200, "receipt", "POST", "/claim", `{"queue":"full"}`, field)
					last.wantReleased("after another one", events)
					e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
				})
			}
		}
	}
}

func TestLeasesThatAreKeptAreBounded(t *testing.T) {
	t.Parallel()
	k := answersClaims(newFakeCell(t, 0), 1000, false)
	e := setup(t, func(cfg *Config) { cfg.MaxBodyMemory = 16 << 10 }, k.fakeCell)
	e.claimBroken(new(brokenWriter), `{"queue":"full"}`)
	if n := len(k.got()); n < 50 || n > 600 {
		t.Errorf("%d leases were released", n)
	}
	if !strings.Contains(e.log.String(), "they end by themselves") {
		t.Errorf("the log has %s", e.log)
	}
	e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
}

func TestAnswerThatIsOnItsWayWhenItsClaimEndsIsGivenBack(t *testing.T) {
	t.Parallel()
	// The cell has claimed when its client seems to go, and answers.
	waiting := func(t *testing.T, cells ...*fakeCell) (*environment, chan answer) {
		t.Helper()
		e := setup(t, nil, cells...)
		answers := make(chan answer, 1)
		go func() {
			resp, err := e.client.Do(e.request("POST", "/claim", `{"queue":"full","wait":"30s"}`))
			if err != nil {
				close(answers)
				return
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			answers <- answer{resp.StatusCode, resp.Header, string(body)}
		}()
		e.until("the claim waits", func() bool { return slices.Contains(cells[len(cells)-1].calls(), "POST /claim") })
		return e, answers
	}
	t.Run("the client goes", func(t *testing.T) {
		t.Parallel()
		k := answersClaims(newFakeCell(t, 0), 3, true)
		e := setup(t, nil, k.fakeCell)
		r := e.request("POST", "/claim", `{"queue":"full","wait":"30s"}`)
		transport := e.client.Transport.(*http.Transport).Clone()
		gone := make(chan error, 1)
		go func() {
			resp, err := transport.RoundTrip(r)
			if err == nil {
				_ = resp.Body.Close()
			}
			gone <- err
		}()
		e.until("the claim waits", func() bool { return slices.Contains(k.calls(), "POST /claim") })
		// As a client does that is killed: it is not told of the end.
		e.server.CloseClientConnections()
		if err := <-gone; err == nil {
			t.Error("the client got an answer")
		}
		e.until("they are released", func() bool { return len(k.got()) == 3 })
		k.wantReleased("after the client has gone", 3)
	})
	t.Run("the queue is moved", func(t *testing.T) {
		t.Parallel()
		homeCell, k := newFakeCell(t, 0), answersClaims(newFakeCell(t, 1), 3, true)
		answersClaims(homeCell, 2, false)
		homeCell.put(placement{Queue: "full", Cells: []int{1}})
		_, answers := waiting(t, homeCell, k.fakeCell)
		homeCell.put(placement{Queue: "full", Cells: []int{0}})
		if got := <-answers; got.status != 200 || got.body != claimedBody(0, 2, false) {
			t.Errorf("the claim was answered %d %s", got.status, got.body)
		}
		k.wantReleased("after the move", 3)
	})
	t.Run("the gateway stops", func(t *testing.T) {
		t.Parallel()
		k := answersClaims(newFakeCell(t, 0), 3, true)
		e, answers := waiting(t, k.fakeCell)
		e.gateway.Drain()
		if got := <-answers; got.status != notReady.status {
			t.Errorf("the claim was answered %d %s", got.status, got.body)
		}
		k.wantReleased("after the stop", 3)
	})
	t.Run("the cell does not end it", func(t *testing.T) {
		t.Parallel()
		f := newFakeCell(t, 0)
		ended := make(chan struct{})
		f.mux.HandleFunc("POST /claim", func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			<-ended
		})
		defer close(ended)
		e, answers := waiting(t, f)
		e.gateway.Drain()
		if got := <-answers; got.status != notReady.status {
			t.Errorf("the claim was answered %d %s", got.status, got.body)
		}
	})
}

// TestLeasesAreFoundInAnswersHoweverTheyCome compares what is found in answers that come in pieces of any length with what they say.
func TestLeasesAreFoundInAnswersHoweverTheyCome(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	values := []string{`1`, `-2.5e3`, `"x"`, `"a\"b\\"`, `"\u007b\""`, `true`, `null`, `[]`, `{}`, `[{"id":5,"receipt":"no"}]`, `{"id":6,"receipt":"no","a":[1,"]"]}`, `""`}
	for range 2000 {
		isList := random.IntN(2) == 0
		id, receipt := "id", "receipt"
		if isList {
			id, receipt = "queuedid", "queuedreceipt"
		}
		var events, want []string
		for n := range random.IntN(5) {
			members := []string{fmt.Sprintf(`"%s": %d`, id, n+1), fmt.Sprintf(`"%s" :"r%d"`, receipt, n+1)}
			if isList {
				members[0] = fmt.Sprintf(`"%s":"%d"`, id, n+1)
			}
			want = append(want, fmt.Sprint(n+1, " r", n+1))
			for m := range random.IntN(6) {
				members = append(members, fmt.Sprintf(`"m%d":%s`, m, values[random.IntN(len(values))]))
			}
			random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			events = append(events, "{"+strings.Join(members, ", ")+"}")
		}
		body := "[" + strings.Join(events, " , ") + "]\n"
		if !isList {
			body = `{"a":{"id":1,"receipt":"r"},"events":` + body + `,"id":4,"receipt":"r"}`
		}
		if !json.Valid([]byte(body)) {
			t.Fatal(body)
		}
		var got []string
		var s leaseScanner
		for rest := body; rest != ""; {
			n := 1 + random.IntN(min(len(rest), 20))
			s.scan([]byte(rest[:n]), func(id, receipt []byte) { got = append(got, string(id)+" "+string(receipt)) })
			rest = rest[n:]
		}
		if !slices.Equal(got, want) {
			t.Fatalf("found %q, want %q, in\n%s", got, want, body)
		}
	}
}
