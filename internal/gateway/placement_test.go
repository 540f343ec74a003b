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
	"sync/atomic"
	"testing"
	"time"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// insertable has cells take events, and returns the cells that each queue's events came to.
func insertable(fakes ...*fakeCell) func(queue string) []int {
	var mu sync.Mutex
	came := map[string][]int{}
	for _, f := range fakes {
		f.mux.HandleFunc("POST /events", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			mu.Lock()
			defer mu.Unlock()
			queue := r.URL.Query().Get("queue")
			came[queue] = append(came[queue], f.number)
			w.WriteHeader(http.StatusCreated)
		})
	}
	return func(queue string) []int {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(came[queue])
	}
}

// However many placements there are, and however often home goes away meanwhile, a gateway reads each page once, uses what it has read, and goes on by what is known of changes.
func TestPlacementsAreReadPageByPage(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	came := insertable(home, one)
	for i := range 10 {
		home.put(placement{Queue: fmt.Sprint("q", i), Cells: []int{1}})
	}
	home.pageSize, home.epoch = 2, "a"
	pages := map[int]int{}
	failing := map[int]bool{2: true, 6: true}
	half, goOn := make(chan struct{}), make(chan struct{})
	home.beforePage = func(n int) bool {
		pages[n]++
		if n == 4 {
			half <- struct{}{}
			<-goOn
		}
		defer delete(failing, n)
		return !failing[n]
	}
	e := start(t, nil, home, one)
	<-half
	e.until("cell 1 can be used", func() bool { return e.gateway.cell(1).isUp() })
	e.want(201, "", "POST", "/events?queue=q3", "{}")
	e.wantProblem(cellUnavailable, 0, "POST", "/events?queue=q9", "{}")
	if err := e.gateway.ready(); err == nil {
		t.Error("it is ready before it knows all placements")
	}
	goOn <- struct{}{}
	e.until("it is ready", func() bool { return e.gateway.ready() == nil })
	e.want(201, "", "POST", "/events?queue=q9", "{}")
	if got := fmt.Sprint(pages); got != "map[2:2 4:1 6:2 8:1]" {
		t.Errorf("pages were read %s times", got)
	}
	if placed, before := e.gateway.placements.count(1); placed != 10 || before != 0 {
		t.Errorf("%d queues are on cell 1, and %d were", placed, before)
	}

	// Home is another one, which knows fewer and has given out the versions anew.
	home.mu.Lock()
	home.epoch, home.version = "b", 0
	clear(home.placements)
	for i := range 6 {
		home.set(placement{Queue: fmt.Sprint("q", i), Cells: []int{i % 2}})
	}
	home.mu.Unlock()
	<-half
	e.until("what was read is known", func() bool { p, _ := e.gateway.placements.get("q2"); return p.Cells[0] == 0 })
	e.want(201, "", "POST", "/events?queue=q2", "{}")
	e.want(201, "", "POST", "/events?queue=q8", "{}") // it has not been read yet that this one is gone
	if err := e.gateway.ready(); err != nil {
		t.Errorf("it is not ready while it reads all again: %v", err)
	}
	goOn <- struct{}{}
	e.until("what is gone is known", func() bool { p, _ := e.gateway.placements.get("q8"); return p == nil })
	if placed, _ := e.gateway.placements.count(1); placed != 3 {
		t.Errorf("%d queues are on cell 1, want 3", placed)
	}
	if got := fmt.Sprint(came("q2"), came("q8"), came("q9")); got != "[0] [1] [1]" {
		t.Errorf("events came to %s", got)
	}
}

func TestQueueThatWasNeverUsedIsPlacedNowhereAgain(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	long := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{"unused", "waiting", "done", "set"} {
		home.put(placement{Queue: name, Cells: []int{1}, FirstUse: true, PlacedAt: long})
	}
	home.put(placement{Queue: "young", Cells: []int{1}, FirstUse: true, PlacedAt: time.Now()})
	home.put(placement{Queue: "asked-for", Cells: []int{1}, PlacedAt: long})
	home.put(placement{Queue: "moved", Cells: []int{1}, FirstUse: true, PlacedAt: long, Former: []former{{Cells: cellSet{0}, Since: time.Now()}}})
	home.settings.set("set", `{}`)
	one.mux.HandleFunc("GET /queues/{name}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"ready":%d}`, map[string]int{"waiting": 1}[r.PathValue("name")])
	})
	one.mux.HandleFunc("GET /history", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, map[bool]string{true: `{"events":[{}]}`, false: `{"events":[]}`}[r.URL.Query().Get("queue") == "done"])
	})
	removed := make(chan string, 10)
	home.mux.HandleFunc("DELETE /queues/{name}/placement", func(w http.ResponseWriter, r *http.Request) {
		removed <- r.PathValue("name") + " " + r.Header.Get("If-Match")
		home.put(placement{Queue: r.PathValue("name"), Removed: true})
		w.WriteHeader(http.StatusNoContent)
	})
	e := setup(t, func(cfg *Config) { cfg.unusedEvery, cfg.unusedAfter = 10*time.Millisecond, time.Hour }, home, one)
	e.until("it is placed nowhere", func() bool { p, _ := e.gateway.placements.get("unused"); return p == nil })
	looks := func() (n int) {
		for _, call := range one.calls() {
			if strings.HasPrefix(call, "GET /queues/") {
				n++
			}
		}
		return n
	}
	before := looks()
	e.until("others were looked at once", func() bool { return before <= 4 && len(removed) == 1 })
	if got := <-removed; got != `unused "1"` {
		t.Errorf("removed %s", got)
	}
}

func TestFirstUseOfAQueuePlacesItOnceForAllGateways(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	cells := insertable(fakes...)
	a := setup(t, nil, fakes...)
	// The other gateway knows of fewer cells, and so chooses others.
	b := setup(t, nil, fakes[0], fakes[1])
	chosen := map[int]int{}
	for i := range 24 {
		queue := fmt.Sprintf("queue-%d", i)
		home := fakes[0]
		choices := []int{a.gateway.chooseFor(queue).number, b.gateway.chooseFor(queue).number}
		chosen[choices[0]]++
		isReachable := choices[0] < 2 // for both
		var running sync.WaitGroup
		for _, e := range []*environment{a, b} {
			for range 4 {
				running.Go(func() {
					if got := e.call("POST", "/events?queue="+queue, "{}"); got.status != 201 && isReachable {
						t.Errorf("answered %d %s", got.status, got.body)
					}
				})
			}
		}
		running.Wait()
		home.mu.Lock()
		placed := home.placements[queue].Cells[0]
		home.mu.Unlock()
		if !slices.Contains(choices, placed) {
			t.Errorf("%s is placed on %d, want one of %v", queue, placed, choices)
		}
		for _, number := range cells(queue) {
			if number != placed {
				t.Errorf("%s is placed on %d, and events came to %v", queue, placed, cells(queue))
			}
		}
		if isReachable && len(cells(queue)) != 8 {
			t.Errorf("%s got %d events, want 8", queue, len(cells(queue)))
		}
	}
	if len(chosen) != 3 {
		t.Errorf("the cells %v were chosen, want all three", chosen)
	}
}

func TestCallersWhomHomeRefusesPlaceNothing(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	cells := insertable(home, one)
	e := setup(t, nil, home, one)
	for _, call := range [][3]string{
		{"POST", "/events?queue=new", "{}"}, {"PUT", "/queues/new", "{}"}, {"POST", "/cloudevents?queue=new", "{}"},
	} {
		for _, key := range []string{"wrong", ""} {
			got := e.want(401, "unauthorized", call[0], call[1], call[2], "Authorization: Bearer "+key, "X-Request-Id: mine")
			if got.header.Get("X-Request-Id") != "mine" || got.header.Get("Www-Authenticate") != "Bearer" || !strings.Contains(got.body, `"request_id":"mine"`) {
				t.Errorf("answered %v %s", got.header, got.body)
			}
		}
	}
	home.mu.Lock()
	defer home.mu.Unlock()
	if len(home.placements) > 0 || len(cells("new")) > 0 {
		t.Errorf("placed %v, inserted %v", home.placements, cells("new"))
	}
}

func TestCellsThatCannotBeUsedGetNoNewQueues(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	cells := insertable(home, one)
	e := setup(t, nil, home, one)
	one.stop()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(1).isUp() })
	for i := range 8 {
		queue := fmt.Sprint("q", i)
		e.want(201, "", "POST", "/events?queue="+queue, "{}")
		if got := cells(queue); !slices.Equal(got, []int{0}) {
			t.Errorf("%s is on %v", queue, got)
		}
	}
}

func TestRendezvousHashMovesNoMoreThanItMust(t *testing.T) {
	t.Parallel()
	best := func(queue string, cells int) int {
		most := 0
		for number := range cells {
			if weightOf(queue, number) > weightOf(queue, most) {
				most = number
			}
		}
		return most
	}
	const queues = 10_000
	perCell, moved := make([]int, 5), 0
	for i := range queues {
		queue := fmt.Sprint("queue.", i)
		before, after := best(queue, 4), best(queue, 5)
		perCell[after]++
		if before != after {
			moved++
			if after != 4 {
				t.Errorf("%s moves from %d to %d", queue, before, after)
			}
		}
	}
	for number, n := range perCell {
		if n < queues/5*9/10 || n > queues/5*11/10 {
			t.Errorf("cell %d has %d of %d queues", number, n, queues)
		}
	}
	if moved > queues/5*11/10 {
		t.Errorf("%d of %d queues would move", moved, queues)
	}
}

func TestMovedQueueIsFollowed(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	cells := insertable(home, one)
	home.put(placement{Queue: "q", Cells: []int{0}})
	e := setup(t, nil, home, one)
	e.want(201, "", "POST", "/events?queue=q", "{}")
	home.put(placement{Queue: "q", Cells: []int{1}, Former: []former{{Cells: cellSet{0}}}})
	e.until("the gateway knows", func() bool { version, _, _ := e.gateway.placements.state(); return version == 2 })
	e.want(201, "", "POST", "/events?queue=q", "{}")
	if got := cells("q"); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("events went to %v", got)
	}
}

func TestOlderPlacementsOfARestoredHomeAreTaken(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	for i := range 5 {
		home.put(placement{Queue: fmt.Sprint("q", i), Cells: []int{1}})
	}
	e := setup(t, nil, home, one)
	home.mu.Lock()
	home.placements = map[string]placement{}
	home.version, home.epoch = 0, "restored"
	home.set(placement{Queue: "q0", Cells: []int{0}})
	home.mu.Unlock()
	e.until("the gateway knows", func() bool {
		p, _ := e.gateway.placements.get("q0")
		gone, _ := e.gateway.placements.get("q1")
		return p != nil && p.Cells[0] == 0 && gone == nil
	})
}

func TestKeyedInsertsStayWhereTheirKeysAre(t *testing.T) {
	t.Parallel()
	home, one, two := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)
	cells := insertable(home, one, two)
	later, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	home.put(placement{Queue: "moved", Cells: []int{2}, Former: []former{{Cells: cellSet{1}}}, Keys: &keys{cellSet{1}, later}})
	home.put(placement{Queue: "twice", Cells: []int{2}, Former: []former{{Cells: cellSet{0}}, {Cells: cellSet{1}}}, Keys: &keys{cellSet{0}, later}})
	home.put(placement{Queue: "now", Cells: []int{2}, Former: []former{{Cells: cellSet{1}}}, Keys: &keys{cellSet{1}, past}})
	e := setup(t, nil, home, one, two)
	for _, queue := range []string{"moved", "twice", "now"} {
		e.want(201, "", "POST", "/events?queue="+queue, "{}")
		e.want(201, "", "POST", "/events?queue="+queue+"&key=k", "{}")
		e.want(201, "", "POST", "/events?queue="+queue, "{}", "Idempotency-Key: k")
	}
	for queue, want := range map[string][]int{"moved": {2, 1, 1}, "twice": {2, 0, 0}, "now": {2, 2, 2}} {
		if got := cells(queue); !slices.Equal(got, want) {
			t.Errorf("%s: events went to %v, want %v", queue, got, want)
		}
	}
}

// claimable has a cell answer claims with the events that are put into the channel, one each, and otherwise with none after their wait. It returns the waits that were asked for.
func claimable(f *fakeCell) (events chan string, waits func() []string) {
	events = make(chan string, 10)
	var mu sync.Mutex
	var asked []string
	f.mux.HandleFunc("POST /claim", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Queue string
			Wait  *string
			Limit int
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Limit != 7 {
			http.Error(w, fmt.Sprintf("limit %d, %v", body.Limit, err), http.StatusUnprocessableEntity)
			return
		}
		wait := time.Minute
		mu.Lock()
		asked = append(asked, "policy")
		if body.Wait != nil {
			asked[len(asked)-1] = *body.Wait
			wait, _ = time.ParseDuration(*body.Wait)
		}
		mu.Unlock()
		select {
		case event := <-events:
			_, _ = fmt.Fprintf(w, `{"events":[{"id":%s}]}`+"\n", event)
			return
		default:
		}
		select {
		case event := <-events:
			_, _ = fmt.Fprintf(w, `{"events":[{"id":%s}]}`+"\n", event)
		case <-time.After(wait):
			_, _ = io.WriteString(w, `{"events":[]}`+"\n")
		case <-r.Context().Done():
		}
	})
	return events, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(asked)
	}
}

func TestClaimsAskFormerCellsFirst(t *testing.T) {
	t.Parallel()
	home, one, two := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)
	atHome, homeWaits := claimable(home)
	atOne, oneWaits := claimable(one)
	atTwo, twoWaits := claimable(two)
	home.put(placement{Queue: "q", Cells: []int{2}, Former: []former{{Cells: cellSet{1}}}})
	e := setup(t, nil, home, one, two)
	const claim = `{"queue":"q","limit":7,"wait":"30s"}`
	atHome <- "1"
	atOne <- "2"
	atTwo <- "3"
	e.want(200, `{"id":2}`, "POST", "/claim", claim)
	e.want(200, `{"id":3}`, "POST", "/claim", claim)
	if len(homeWaits()) > 0 || !slices.Equal(oneWaits(), []string{"0s", "0s"}) || !slices.Equal(twoWaits(), []string{"2s"}) {
		t.Errorf("asked with the waits %v, %v and %v", homeWaits(), oneWaits(), twoWaits())
	}
	// What comes back to the former cell while the claim waits at the other one is found, too.
	go func() {
		e.until("the claim waits", func() bool { return len(twoWaits()) == 2 })
		atOne <- "4"
	}()
	e.want(200, `{"id":4}`, "POST", "/claim", claim)
	e.want(200, `{"events":[]}`, "POST", "/claim", `{"queue":"q","limit":7,"wait":"0s"}`)

	one.stop()
	atTwo <- "5"
	e.want(200, `{"id":5}`, "POST", "/claim", claim)
}

func TestClaimWithAWaitThatNoServerTakesGoesToHome(t *testing.T) {
	t.Parallel()
	home, one, two := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)
	home.answers("POST /claim", http.StatusUnprocessableEntity, "as home says")
	for _, f := range []*fakeCell{one, two} {
		f.answers("POST /claim", http.StatusOK, `{"events":[{"id":1}]}`)
	}
	home.put(placement{Queue: "moved", Cells: []int{2}, Former: []former{{Cells: cellSet{1}}}})
	home.put(placement{Queue: "spread", Cells: []int{1, 2}})
	e := setup(t, nil, home, one, two)
	for _, queue := range []string{"moved", "spread"} {
		for _, wait := range []string{`"-5s"`, `"61s"`, `"1d"`, `"soon"`, `""`, `7`, `{}`, `false`} {
			e.want(http.StatusUnprocessableEntity, "as home says", "POST", "/claim", `{"queue":"`+queue+`","wait":`+wait+`}`)
		}
		for _, wait := range []string{`"60s"`, `"0s"`, `null`} {
			e.want(http.StatusOK, `"id":1`, "POST", "/claim", `{"queue":"`+queue+`","wait":`+wait+`}`)
		}
	}
}

func TestClaimFollowsItsQueueWhileItWaits(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	_, homeWaits := claimable(home)
	atOne, oneWaits := claimable(one)
	home.put(placement{Queue: "q", Cells: []int{0}})
	e := setup(t, nil, home, one)
	var began atomic.Int32
	go func() {
		e.until("the claim waits", func() bool { return len(homeWaits()) == 1 })
		began.Add(1)
		home.put(placement{Queue: "q", Cells: []int{1}})
		e.until("the claim waits at the other cell", func() bool { return len(oneWaits()) == 1 })
		atOne <- "7"
	}()
	e.want(200, `{"id":7}`, "POST", "/claim", `{"queue":"q","limit":7,"wait":"50s"}`)
	e.until("the cells hold nothing", func() bool {
		return e.gateway.cell(0).waiting.inUse()+e.gateway.cell(1).waiting.inUse() == 0
	})
	e.gateway.placements.mu.RLock()
	defer e.gateway.placements.mu.RUnlock()
	if len(e.gateway.placements.watchers) > 0 {
		t.Errorf("somebody still waits for %v", sortedKeys(e.gateway.placements.watchers))
	}
}

func TestClaimsOfAQueueWithoutAPlacementAskHomeToo(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	atHome, _ := claimable(home)
	atOne, oneWaits := claimable(one)
	e := setup(t, nil, home, one)
	queue := ""
	for i := 0; queue == ""; i++ {
		if name := fmt.Sprint("q", i); e.gateway.chooseFor(name).number == 1 {
			queue = name
		}
	}
	claim := fmt.Sprintf(`{"queue":%q,"limit":7}`, queue)
	atHome <- "1" // which was there before there was a gateway
	e.want(200, `{"id":1}`, "POST", "/claim", claim)
	go func() {
		e.until("the claim waits", func() bool { return len(oneWaits()) == 1 })
		atOne <- "2"
	}()
	e.want(200, `{"id":2}`, "POST", "/claim", claim)
	if !slices.Equal(oneWaits(), []string{"policy"}) {
		t.Errorf("asked with the waits %v", oneWaits())
	}
}

func TestLargeBodiesOfClaimsAreRefused(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.put(placement{Queue: "q", Cells: []int{1}})
	claimable(one)
	e := setup(t, func(cfg *Config) { cfg.MaxBodyMemory = 100 << 10 }, home, one)
	body := func(size int) string {
		return `{"queue":"q","limit":7,"wait":"0s","x":"` + strings.Repeat("x", size-50) + `"}`
	}
	e.want(200, "events", "POST", "/claim", body(40<<10))
	e.wantProblem(overloaded, -1, "POST", "/claim", body(maxClaimBody-100)) // more than all may take
	e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
	large := setup(t, nil, home, one)
	large.want(200, "events", "POST", "/claim", body(maxClaimBody-100))
	large.wantProblem(bodyTooLarge, -1, "POST", "/claim", body(maxClaimBody+100))
	large.wantProblem(bodyTooLarge, -1, "POST", "/claim", body(maxPeekBody+100))
}

func TestManagersPlaceQueuesWithoutPublishing(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.mux.HandleFunc("GET /queues/{name}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("name") == "old" {
			_, _ = io.WriteString(w, `{"queue":"old","version":null,"ready":0,"scheduled":0,"waiting":1}`)
			return
		}
		_, _ = io.WriteString(w, `{"queue":"new","version":null,"ready":0,"scheduled":0}`)
	})
	for _, f := range []*fakeCell{home, one} {
		f.answers("PUT /queues/{name}", 200, strconv.Itoa(f.number))
		f.answers("POST /events", 201, "")
	}
	e := setup(t, nil, home, one)
	for i := range 8 {
		name := fmt.Sprint("q", i)
		got := e.want(200, "", "PUT", "/queues/"+name, "{}", "Authorization: Bearer "+managerKey)
		home.mu.Lock()
		placed := home.placements[name]
		home.mu.Unlock()
		if len(placed.Cells) != 1 || got.body != "0" {
			t.Errorf("%s is placed on %v, and its policy went to %s", name, placed.Cells, got.body)
		}
	}
	e.want(403, "", "POST", "/events?queue=other", "{}", "Authorization: Bearer "+managerKey)
	if e.gateway.chooseFor("old").number == 0 {
		t.Fatal("the test needs a name that is not placed at home by its hash")
	}
	e.want(200, "0", "PUT", "/queues/old", "{}", "Authorization: Bearer "+managerKey)
}

func TestRemovedPlacementIsForgotten(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.put(placement{Queue: "q", Cells: []int{1}})
	e := setup(t, nil, home, one)
	home.put(placement{Queue: "q", Removed: true})
	e.until("the gateway knows", func() bool {
		p, isKnown := e.gateway.placements.get("q")
		return p == nil && isKnown
	})
}
