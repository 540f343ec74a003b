package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// An ackingCell answers claims with acks as a cell does, and POST /ack as leasable has it.
type ackingCell struct {
	*fakeCell
	acked  func() []string
	events chan string // one for each claim; without one, claims are answered after their wait

	mu      sync.Mutex
	claims  []string // their bodies
	accepts []string
}

func acking(t *testing.T, number int) *ackingCell {
	t.Helper()
	k := &ackingCell{fakeCell: newFakeCell(t, number), events: make(chan string, 10)}
	k.acked = leasable(k.fakeCell)
	k.mux.HandleFunc("POST /claim", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		var body struct {
			Wait  string
			Limit int
			Acks  []struct{ ID int64 }
		}
		err := json.Unmarshal(text, &body)
		k.mu.Lock()
		k.claims, k.accepts = append(k.claims, string(text)), append(k.accepts, r.Header.Get("Accept"))
		k.mu.Unlock()
		if err != nil || body.Limit != 7 {
			refuseBatch(w, "#/limit")
			return
		}
		wait, _ := time.ParseDuration(body.Wait)
		list := ""
		select {
		case list = <-k.events:
		default:
			select {
			case list = <-k.events:
			case <-time.After(wait):
			case <-r.Context().Done():
				return
			}
		}
		answer := `{"events":[` + list + `]`
		for i, ack := range body.Acks {
			if i == 0 {
				answer += `,"acks":[`
			} else {
				answer += ","
			}
			answer += fmt.Sprintf(`{"id":%d,"status":%d}`, ack.ID, 200+number)
		}
		if len(body.Acks) > 0 {
			answer += "]"
		}
		answer += "}\n"
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		_, _ = io.WriteString(w, answer)
	})
	return k
}

// got returns the bodies of the claims that the cell has had.
func (k *ackingCell) got() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.claims)
}

// ackingCells starts a gateway in front of three cells: q is on 1, moved on 2 and before on 1, wide on all.
func ackingCells(t *testing.T, change func(*Config)) (*environment, []*ackingCell) {
	t.Helper()
	cells := []*ackingCell{acking(t, 0), acking(t, 1), acking(t, 2)}
	cells[0].put(placement{Queue: "q", Cells: []int{1}})
	cells[0].put(placement{Queue: "moved", Cells: []int{2}, Former: []former{{Cells: cellSet{1}}}})
	cells[0].put(placement{Queue: "wide"})
	cells[0].put(placement{Queue: "elsewhere", Cells: []int{9}})
	return setup(t, change, cells[0].fakeCell, cells[1].fakeCell, cells[2].fakeCell), cells
}

// ackClaim returns the body of a claim with acks of "cell number receipt" events.
func ackClaim(queue, wait string, acks ...string) string {
	list := strings.TrimPrefix(heldOf(acks...), `{"invisible_for":"1m","events":`)
	return fmt.Sprintf(`{"queue":%q, "limit":7, "acks": %s,"wait":%q}`, queue, strings.TrimSuffix(list, "}"), wait)
}

// wantAcked makes a claim that must be answered with an event, 0: none, and with the results of its acks, as idResults has them.
func (e *environment) wantAcked(event int, body string, results ...string) answer {
	e.t.Helper()
	return e.wantAckedAs(event, body, nil, results...)
}

func (e *environment) wantAckedAs(event int, body string, fields []string, results ...string) answer {
	e.t.Helper()
	got := e.call("POST", "/claim", body, fields...)
	var page struct {
		Events []struct{ ID int }
		Acks   json.RawMessage
	}
	if err := json.Unmarshal([]byte(got.body), &page); err != nil || got.status != http.StatusOK {
		e.t.Fatalf("%s was answered %d %v %s: %v", body, got.status, got.header, got.body, err)
	}
	if got.header.Get("Content-Length") != strconv.Itoa(len(got.body)) {
		e.t.Errorf("an answer of %d bytes has the length %s", len(got.body), got.header.Get("Content-Length"))
	}
	if isThere := len(page.Events) > 0; isThere != (event > 0) || isThere && page.Events[0].ID != event {
		e.t.Errorf("%s got %s, want event %d", body, got.body, event)
	}
	wantTexts(e.t, body, idResults(e.t, answer{status: http.StatusOK, body: `{"results":` + string(page.Acks) + `}`}), results...)
	return got
}

func TestClaimWithAcksOfItsCellAloneIsPassedOnAsItIs(t *testing.T) {
	t.Parallel()
	e, cells := ackingCells(t, nil)
	cells[1].events <- `{"id":5}`
	const batch = "Accept: application/cloudevents-batch+json"
	first, second := ackClaim("q", "10s", "1 1", "1 2"), ackClaim("q", "0s", "1 3")
	e.wantAckedAs(5, first, []string{batch}, "1 1 201", "1 2 201")
	e.wantAcked(0, second, "1 3 201")
	unconditional := fmt.Sprintf(`{"queue":"q","limit":7,"wait":"0s","acks":[{"id":%d}]}`, int64(1)<<idBits+4)
	e.wantAcked(0, unconditional, "1 4 201")
	wantTexts(t, "claims", cells[1].got(), first, second, unconditional)
	if cells[1].accepts[0] != strings.TrimPrefix(batch, "Accept: ") || len(cells[1].acked()) > 0 || len(cells[0].calls())+len(cells[2].calls()) > 0 {
		t.Errorf("it was asked with %q, and others had %v and %v", cells[1].accepts, cells[0].calls(), cells[2].calls())
	}
	// No acks are none.
	for _, queue := range []string{"q", "wide", "moved"} {
		if got := e.call("POST", "/claim", `{"queue":"`+queue+`","limit":7,"acks":[ ],"wait":"0s"}`); got.body != `{"events":[]}`+"\n" {
			t.Errorf("without acks: %s", got.body)
		}
	}
}

func TestAcksOfAClaimAreDoneByTheirCells(t *testing.T) {
	t.Parallel()
	e, cells := ackingCells(t, nil)
	cells[2].queues.Store(&[]string{"stray"})
	cells[0].put(placement{Queue: "stray", Cells: []int{1}})
	e.until("the strays are known", func() bool { return len(e.gateway.strays.of("stray")) == 1 })
	unplaced := ""
	for i := 0; unplaced == ""; i++ {
		if name := fmt.Sprint("new", i); e.gateway.chooseFor(name).number == 2 {
			unplaced = name
		}
	}
	id := 0
	for _, claim := range []struct {
		queue string
		at    int // the cell that has an event
		acks  []string
	}{
		{"q", 1, []string{"2 1", "0 2", "1 3"}},
		{"q", 1, []string{"2 1"}},
		{"moved", 1, []string{"2 1", "2 2"}},
		{"moved", 2, []string{"2 1"}},
		{"moved", 2, []string{"1 1", "2 2"}},
		{"stray", 1, []string{"1 1"}},
		{"stray", 2, []string{"1 1"}},
		{"wide", 0, []string{"0 1"}},
		{"wide", 1, []string{"0 1", "2 2", "0 3"}},
		{"wide", 2, []string{"2 1", "2 2"}},
		{unplaced, 0, []string{"2 1"}},
		{unplaced, 2, []string{"2 1"}},
	} {
		id++
		var want []string
		var before [3]int
		for i, k := range cells {
			before[i] = len(k.acked())
		}
		ofCell := map[int]string{}
		for _, ack := range claim.acks {
			number, _ := strconv.Atoi(ack[:1])
			want = append(want, fmt.Sprint(ack, " ", 200+number))
			ofCell[number] += ack[1:]
		}
		cells[claim.at].events <- fmt.Sprintf(`{"id":%d,"queue":%q}`, id, claim.queue)
		body := ackClaim(claim.queue, "30s", claim.acks...)
		if got := e.wantAckedAs(id, body, []string{"Accept: application/cloudevents-batch+json"}, want...); !strings.HasPrefix(got.body, `{"acks":[{"id":`) {
			t.Errorf("%s was answered %s", body, got.body)
		}
		for i, k := range cells {
			seen := k.acked()[before[i]:]
			if ofCell[i] == "" && len(seen) > 0 || ofCell[i] != "" && !slices.Equal(seen, []string{"/ack " + ofCell[i]}) {
				t.Errorf("%s: cell %d got %q, want %q", body, i, seen, ofCell[i])
			}
		}
	}
	for _, k := range cells {
		for i, body := range k.got() {
			if strings.Contains(body, "acks") || k.accepts[i] != "application/json" {
				t.Errorf("cell %d got the claim %s, with Accept %s", k.number, body, k.accepts[i])
			}
		}
	}
	e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
}

func TestClaimsWithAcksAskTheCellsOfASpreadQueueInTurn(t *testing.T) {
	t.Parallel()
	e, cells := ackingCells(t, nil)
	cells[0].put(placement{Queue: "pair", Cells: []int{1, 2}})
	e.until("the gateway knows", func() bool { p, _ := e.gateway.placements.get("pair"); return p != nil })
	for range 4 {
		cells[1].events <- `{"id":1}`
		cells[2].events <- `{"id":2}`
	}
	for range 6 {
		e.want(200, `{"acks":[{"id":1,"status":200}],"events":[{`, "POST", "/claim", ackClaim("pair", "0s", "0 1"))
	}
	if len(cells[1].events) != 1 || len(cells[2].events) != 1 {
		t.Errorf("%d and %d events are left, want one each", len(cells[1].events), len(cells[2].events))
	}
}

func TestAcksAreDoneOnTheirCellsBeforeTheirClaimWaits(t *testing.T) {
	t.Parallel()
	e, cells := ackingCells(t, nil)
	result := strings.Repeat("x", 200<<10)
	for _, claim := range []struct {
		queue string
		at    int
	}{{"q", 1}, {"moved", 2}, {"wide", 1}} {
		// Those of other cells, without receipts, and very long ones are done for themselves, and hold nothing while the claim waits.
		for n, ack := range []string{
			fmt.Sprintf(`{"id":%d,"receipt":"r"}`, 3),
			fmt.Sprintf(`{"id":%d}`, int64(claim.at)<<idBits+3),
			fmt.Sprintf(`{"id":%d,"receipt":"r","result":%q}`, int64(claim.at)<<idBits+3, result),
		} {
			before := len(cells[0].acked()) + len(cells[claim.at].acked())
			answered := make(chan answer, 1)
			go func() {
				answered <- e.call("POST", "/claim", fmt.Sprintf(`{"queue":%q,"limit":7,"wait":"50s","acks":[%s]}`, claim.queue, ack))
			}()
			e.until("the claim waits", func() bool {
				waiting := int64(0)
				for _, at := range e.gateway.cells() {
					waiting += at.waiting.inUse()
				}
				return waiting == 1
			})
			e.until("the acks are done", func() bool { return len(cells[0].acked())+len(cells[claim.at].acked()) == before+1 })
			if held := e.gateway.memoryInUse(); held > 0 {
				t.Errorf("%d bytes are held", held)
			}
			cells[claim.at].events <- fmt.Sprintf(`{"id":%d}`, n+1)
			if got := <-answered; got.status != 200 || !strings.HasPrefix(got.body, `{"acks":[{"id":`) || !strings.HasSuffix(got.body, fmt.Sprintf(`}],"events":[{"id":%d}]}`+"\n", n+1)) {
				t.Errorf("%s: answered %d %s", claim.queue, got.status, got.body)
			}
			if n := len(cells[0].acked()) + len(cells[claim.at].acked()); n != before+1 {
				t.Errorf("acked %d times", n-before)
			}
		}
	}
}

func TestClaimThatIsPassedOnWithItsAcksFollowsItsQueue(t *testing.T) {
	t.Parallel()
	e, cells := ackingCells(t, nil)
	answered := make(chan answer, 1)
	go func() { answered <- e.call("POST", "/claim", ackClaim("q", "50s", "1 1", "1 2")) }()
	e.until("the claim waits", func() bool { return len(cells[1].got()) == 1 })
	cells[0].put(placement{Queue: "q", Cells: []int{2}})
	e.until("the claim waits at the other cell", func() bool { return len(cells[2].got()) == 1 })
	cells[2].events <- `{"id":9}`
	if got := <-answered; !strings.Contains(got.body, `"events":[{"id":9}]`) || strings.Count(got.body, `"status":201`) != 2 {
		t.Errorf("answered %d %s", got.status, got.body)
	}
	wantTexts(t, "acks of cell 1", cells[1].acked(), "/ack  1 2")
	if claim := cells[2].got()[0]; strings.Contains(claim, "acks") {
		t.Errorf("the other cell got %s", claim)
	}
}

func TestRefusedClaimsWithAcks(t *testing.T) {
	t.Parallel()
	e, cells := ackingCells(t, nil)
	none := func(when string) {
		t.Helper()
		for _, k := range cells {
			if len(k.acked()) > 0 {
				t.Errorf("%s: cell %d acked %q", when, k.number, k.acked())
			}
		}
	}
	// What a cell refuses is refused as a whole; the caller is told where in the acks it is.
	e.want(422, `"#/acks/2/receipt"`, "POST", "/claim", ackClaim("wide", "5s", "1 1", "2 2", "2 3 bad"))
	if got := e.call("POST", "/claim", ackClaim("q", "5s", "0 3 bad")); !strings.Contains(got.body, `"detail":"#/acks/0/receipt: wrong."`) || got.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("answered %d %s", got.status, got.body)
	}
	for _, k := range cells {
		if len(k.got()) > 0 {
			t.Errorf("cell %d had the claim %q", k.number, k.got())
		}
	}
	wantTexts(t, "acks of cell 1", cells[1].acked(), "/ack  1")
	// What cannot be read is for home, which refuses it before something is done.
	e, cells = ackingCells(t, nil)
	for i, acks := range []string{`null`, `{}`, `"x"`, `[1]`, `[{"id":"x"},{"id":35184372088833}]`, `[{"id":0}]`, `[{}]`, `[{"id":1,"receipt":1}]`, `[{"id":1}` + strings.Repeat(`,{"id":1}`, maxElements) + `]`, `[],"acks":[{"id":1}]`, `[{"id":1}],"wait":"61s"`, `[{"id":1}],"queue":"%"`} {
		e.want(422, "#/limit", "POST", "/claim", `{"queue":"q","acks":`+acks+`}`)
		if n := len(cells[0].got()); n != i+1 {
			t.Fatalf("%s: home had %d claims", acks, n)
		}
	}
	e.want(422, "#/limit", "POST", "/claim", `{"queue":"wide","acks":[{"id":1}]}x`, "Content-Encoding: gzip")
	none("claims that cannot be read")
	if len(cells[1].calls())+len(cells[2].calls()) > 0 {
		t.Errorf("the cells had %q and %q", cells[1].calls(), cells[2].calls())
	}
	// A claim that is refused after its acks is answered as the cell answers it.
	got := e.want(422, "#/limit", "POST", "/claim", `{"queue":"q","acks":[{"id":1,"receipt":"r"}]}`)
	if strings.Contains(got.body, "acks") || got.header.Get(unavailableHeader) != "" {
		t.Errorf("answered %s", got.body)
	}
	wantTexts(t, "acks of home", cells[0].acked(), "/ack  1")
	e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
}

func TestClaimGoesOnWithoutTheCellsOfItsAcks(t *testing.T) {
	t.Parallel()
	cells := []*ackingCell{acking(t, 0), acking(t, 1)}
	torn := newFakeCell(t, 2)
	torn.mux.HandleFunc("POST /ack", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		panic(http.ErrAbortHandler)
	})
	cells[0].put(placement{Queue: "q", Cells: []int{0}})
	cells[0].put(placement{Queue: "away", Cells: []int{1}})
	cells[0].put(placement{Queue: "elsewhere", Cells: []int{9}})
	e := setup(t, nil, cells[0].fakeCell, cells[1].fakeCell, torn)
	for range 5 {
		cells[0].events <- `{"id":5}`
	}
	e.wantAcked(5, ackClaim("q", "9s", "1 1 full", "0 2"), "1 1 503 overloaded 1", "0 2 200")
	cells[1].stop()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(1).isUp() })
	got := e.wantAcked(5, ackClaim("q", "9s", "1 1", "0 2", "9 3", "2 4"), "1 1 503 cell_unavailable 1", "0 2 200", "9 3 503 cell_unavailable 9", "2 4 502 outcome_unknown 2")
	if got.header.Get(unavailableHeader) != "1, 2" {
		t.Errorf("answered with %v", got.header)
	}
	e.wantAcked(5, ackClaim("q", "9s", "1 1", "1 2"), "1 1 503 cell_unavailable 1", "1 2 503 cell_unavailable 1")
	e.wantAcked(5, ackClaim("q", "9s", "9 1"), "9 1 503 cell_unavailable 9")
	// If the cells of the queue are away, the acks are done, and the answer says why there is no event.
	before := len(cells[0].acked())
	e.wantProblem(cellUnavailable, 1, "POST", "/claim", ackClaim("away", "0s", "0 7", "1 8"))
	e.wantProblem(cellUnavailable, 9, "POST", "/claim", ackClaim("elsewhere", "0s", "0 9"))
	wantTexts(t, "acks of home", cells[0].acked()[before:], "/ack  7", "/ack  9")
	e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
}

func TestLeasesOfAClaimWithAcksWhoseAnswerIsNotReadAreReleased(t *testing.T) {
	t.Parallel()
	const events = 350
	for name, w := range map[string]brokenWriter{"writing fails": {left: 0}, "writing fails in the middle": {left: 20 << 10}, "flushing fails": {left: 1 << 30, isFlush: true}} {
		for what, ack := range map[string]int{"of the same cell": 1, "of another one": 0} {
			t.Run(name+" with acks "+what, func(t *testing.T) {
				t.Parallel()
				broken := w
				home, one := newFakeCell(t, 0), newFakeCell(t, 1)
				home.put(placement{Queue: "full", Cells: []int{1}})
				leasable(home)
				k := &claimedCell{fakeCell: one, most: 1000}
				one.mux.HandleFunc("POST /claim", func(w http.ResponseWriter, r *http.Request) {
					text, _ := io.ReadAll(r.Body)
					body := strings.TrimSuffix(claimedBody(1, events, false), "}\n")
					if strings.Contains(string(text), "acks") {
						body += fmt.Sprintf(`,"acks":[{"id":%d,"status":204},{"status":409,"code":"lease_lost","id":8}]`, int64(1)<<idBits)
					}
					w.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(w, body+"}\n")
				})
				one.mux.HandleFunc("POST /release", k.release)
				e := setup(t, nil, home, one)
				claim := fmt.Sprintf(`{"queue":"full","wait":"1s","acks":[{"id":%d,"receipt":"r"}]}`, int64(ack)<<idBits+1<<30)
				e.claimBroken(&broken, claim)
				k.wantReleased(name, events)
				e.want(200, `"acks":[{"`, "POST", "/claim", claim)
				k.wantReleased("after another one", events)
				e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
			})
		}
	}
}

func TestAnswerOfAClaimWithAcksThatIsNoneIsBrokenOff(t *testing.T) {
	t.Parallel()
	e, cells := ackingCells(t, nil)
	for _, body := range []string{`[]`, ``} {
		cells[1].override.Store(&override{http.StatusOK, body})
		resp, err := e.client.Do(e.request("POST", "/claim", ackClaim("q", "0s", "0 1")))
		if err != nil {
			continue
		}
		if text, err := io.ReadAll(resp.Body); err == nil {
			t.Errorf("answered %d %s", resp.StatusCode, text)
		}
		_ = resp.Body.Close()
	}
}

func TestLengthOfClaimsWithAcks(t *testing.T) {
	t.Parallel()
	e, cells := ackingCells(t, nil)
	body := func(claim, acks int) string {
		return fmt.Sprintf(`{"queue":"q","limit":7,"wait":"0s","x":%q,"acks":[{"id":1,"receipt":"r","result":%q}]}`, strings.Repeat("x", claim), strings.Repeat("y", acks))
	}
	e.wantAcked(0, body(10, maxPeekBody-200), "0 1 200")
	e.wantAcked(0, body(maxClaimBody-200, maxClaimBody), "0 1 200")
	e.wantProblem(bodyTooLarge, -1, "POST", "/claim", body(10, maxPeekBody))
	e.wantProblem(bodyTooLarge, -1, "POST", "/claim", body(maxClaimBody, 10))
	if n := len(cells[0].acked()); n != 2 {
		t.Errorf("acked %d times", n)
	}
	e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
	small, cells := ackingCells(t, func(cfg *Config) { cfg.MaxBodyMemory = 100 << 10 })
	small.wantProblem(overloaded, -1, "POST", "/claim", body(10, 200<<10))
	if len(cells[0].acked())+len(cells[1].got()) > 0 {
		t.Error("something was done")
	}
}
