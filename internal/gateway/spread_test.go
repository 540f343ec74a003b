package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// spreadCells starts a gateway in front of three cells, with the queue wide on all and pair on 1 and 2.
func spreadCells(t *testing.T) (*environment, []*fakeCell) {
	t.Helper()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	fakes[0].put(placement{Queue: "wide"})
	fakes[0].put(placement{Queue: "pair", Cells: []int{1, 2}})
	return setup(t, nil, fakes...), fakes
}

// countOf returns how often each number is among numbers.
func countOf(numbers []int) map[int]int {
	counts := map[int]int{}
	for _, n := range numbers {
		counts[n]++
	}
	return counts
}

func TestEventsOfASpreadQueueGoToItsCellsInTurn(t *testing.T) {
	t.Parallel()
	e, fakes := spreadCells(t)
	came := insertable(fakes...)
	for range 30 {
		e.want(201, "", "POST", "/events?queue=wide", "{}")
		e.want(201, "", "POST", "/events?queue=pair", "{}")
	}
	if got := countOf(came("pair")); got[0] != 0 || got[1] != 15 || got[2] != 15 {
		t.Errorf("events of pair went to %v", got)
	}
	if got := countOf(came("wide")); got[0] < 9 || got[1] < 9 || got[2] < 9 {
		t.Errorf("events of wide went to %v", got)
	}
	// Those in use hold calls, so the others are taken.
	e.gateway.cell(1).calls.take(strangers, 5)
	for range 10 {
		e.want(201, "", "POST", "/events?queue=pair", "{}")
	}
	e.gateway.cell(1).calls.give(strangers, 5)
	if got := countOf(came("pair")); got[2] != 25 {
		t.Errorf("events of pair went to %v", got)
	}
	thaw := fakes[2].freeze()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(2).isUp() })
	for range 10 {
		e.want(201, "", "POST", "/events?queue=pair", "{}")
	}
	thaw()
	if got := countOf(came("pair")); got[2] != 25 {
		t.Errorf("events of pair went to %v, while cell 2 was away", got)
	}
	defer fakes[1].freeze()()
	defer fakes[2].freeze()()
	e.until("both cells count as away", func() bool { return !e.gateway.cell(1).isUp() && !e.gateway.cell(2).isUp() })
	e.wantProblem(cellUnavailable, 1, "POST", "/events?queue=pair", "{}")
}

func TestKeyOfASpreadQueueAlwaysGoesToTheSameCell(t *testing.T) {
	t.Parallel()
	e, fakes := spreadCells(t)
	came := insertable(fakes...)
	other := setup(t, nil, fakes...)
	var firsts []int
	for i := range 60 {
		before := len(came("pair"))
		e.want(201, "", "POST", fmt.Sprintf("/events?queue=pair&key=k%d", i), "{}")
		e.want(201, "", "POST", "/events?queue=pair", "{}", fmt.Sprintf("Idempotency-Key: k%d", i))
		other.want(201, "", "POST", "/events?queue=pair", "{}", fmt.Sprintf("Idempotency-Key: \"k%d\"", i))
		got := came("pair")[before:]
		if firsts = append(firsts, got[0]); got[1] != got[0] || got[2] != got[0] {
			t.Errorf("k%d went to %v", i, got)
		}
	}
	if got := countOf(firsts); got[1] < 15 || got[2] < 15 {
		t.Errorf("keys went to %v", got)
	}
	before := len(came("pair"))
	for i := range 20 {
		e.want(201, "", "POST", fmt.Sprintf("/events?queue=pair&key=%d{order-7}%d", i, i), "{}")
	}
	if got := countOf(came("pair")[before:]); len(got) != 1 {
		t.Errorf("keys with the same part in braces went to %v", got)
	}
	away := firsts[0]
	defer fakes[away].freeze()()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(away).isUp() })
	e.wantProblem(cellUnavailable, away, "POST", "/events?queue=pair&key=k0", "{}")
	e.want(201, "", "POST", "/events?queue=pair", "{}")
}

func TestKeysOfASpreadQueueStayWhereTheyWent(t *testing.T) {
	t.Parallel()
	e, fakes := spreadCells(t)
	came := insertable(fakes...)
	insert := func() []int {
		before := len(came("pair"))
		for i := range 20 {
			e.want(201, "", "POST", fmt.Sprintf("/events?queue=pair&key=k%d", i), "{}")
		}
		return came("pair")[before:]
	}
	first := insert()
	fakes[0].put(placement{Queue: "pair", Cells: []int{0}, Former: []former{{Cells: cellSet{1, 2}}}, Keys: &keys{Cells: cellSet{1, 2}, Until: time.Now().Add(time.Hour)}})
	e.until("the gateway knows", func() bool { p, _ := e.gateway.placements.get("pair"); return p.Keys != nil })
	if again := insert(); !slices.Equal(first, again) {
		t.Errorf("keys went to %v, and then to %v", first, again)
	}
}

func TestBatchOfASpreadQueueStaysTogether(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	for _, f := range fakes {
		batchable(f)
	}
	fakes[0].put(placement{Queue: "wide"})
	fakes[0].put(placement{Queue: "two", Cells: []int{2}})
	e := setup(t, nil, fakes...)
	for range 10 {
		e.want(201, "ids", "POST", "/events/batch", eventsOf("wide a", "wide b", "wide c"))
		e.want(201, "ids", "POST", "/events/batch", eventsOf("wide a", "wide b", "two c"))
		e.want(201, "ids", "POST", "/events/batch", eventsOf("wide a {x}1", "wide b {x}2", "wide c {x}3", "wide d"))
	}
	got := e.want(422, "batch_not_atomic", "POST", "/events/batch", eventsOf("wide a k1", "wide b k2", "wide c k3", "wide d k4", "wide e k5", "wide f k6"))
	if !strings.Contains(got.body, "cells") {
		t.Errorf("answered %s", got.body)
	}
	one := resultsOf(t, e.call("POST", "/events/batch?atomic=false", eventsOf("wide a k1", "wide b k2", "wide c k3", "wide d k4", "wide e k5", "wide f k6")))
	two := resultsOf(t, e.call("POST", "/events/batch?atomic=false", eventsOf("wide f k6", "wide e k5", "wide d k4", "wide c k3", "wide b k2", "wide a k1")))
	slices.Reverse(two)
	wantTexts(t, "the same keys", two, one...)
	perCell := map[string]bool{}
	for range 20 {
		perCell[resultsOf(t, e.call("POST", "/events/batch?atomic=false", eventsOf("wide a", "two b")))[0]] = true
		perCell[resultsOf(t, e.call("POST", "/events/batch?atomic=false", eventsOf("wide a", "wide b")))[0]] = true
	}
	if len(perCell) != 3 {
		t.Errorf("batches went to %v", perCell)
	}
}

func TestClaimOfASpreadQueueFindsEventsOnEachCell(t *testing.T) {
	t.Parallel()
	e, fakes := spreadCells(t)
	events := make([]chan string, len(fakes))
	for i, f := range fakes {
		events[i], _ = claimable(f)
	}
	const claim = `{"queue":"wide","limit":7,"wait":"0s"}`
	for n := range 9 {
		events[n%3] <- fmt.Sprint(n)
		e.want(200, fmt.Sprintf(`{"id":%d}`, n), "POST", "/claim", claim)
	}
	e.want(200, `{"events":[]}`, "POST", "/claim", claim)
	// The cells come in turn.
	for i := range events {
		for range 4 {
			events[i] <- fmt.Sprint(100 + i)
		}
	}
	counts := map[string]int{}
	for range 6 {
		counts[e.call("POST", "/claim", claim).body]++
	}
	if len(counts) != 3 {
		t.Errorf("claimed %v", counts)
	}
	thaw := fakes[1].freeze()
	defer thaw()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(1).isUp() })
	for len(events[0])+len(events[2]) > 0 {
		if got := e.call("POST", "/claim", claim); !strings.Contains(got.body, `{"id":`) {
			t.Fatalf("answered %d %s with %d and %d events there", got.status, got.body, len(events[0]), len(events[2]))
		}
	}
	e.want(200, `{"events":[]}`, "POST", "/claim", claim)
}

func TestClaimsThatWaitDivideThemselvesAmongTheCells(t *testing.T) {
	t.Parallel()
	e, fakes := spreadCells(t)
	events := make([]chan string, len(fakes))
	for i, f := range fakes {
		events[i], _ = claimable(f)
	}
	const waiters = 9
	answers := make(chan string, waiters)
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() { answers <- e.call("POST", "/claim", `{"queue":"wide","limit":7,"wait":"60s"}`).body })
	}
	waiting := func(number int) int64 { return e.gateway.cell(number).waiting.inUse() }
	e.until("three wait at each cell", func() bool { return waiting(0) == 3 && waiting(1) == 3 && waiting(2) == 3 })
	for i := range events {
		events[i] <- fmt.Sprint(i)
		if got := <-answers; !strings.Contains(got, fmt.Sprintf(`{"id":%d}`, i)) {
			t.Errorf("answered %s", got)
		}
	}
	// The others are at every cell still, or come there.
	for n := range waiters - 3 {
		events[1] <- fmt.Sprint(100 + n)
		if got := <-answers; !strings.Contains(got, fmt.Sprintf(`{"id":%d}`, 100+n)) {
			t.Errorf("answered %s", got)
		}
	}
	all.Wait()
	e.gateway.waits.mu.Lock()
	defer e.gateway.waits.mu.Unlock()
	if len(e.gateway.waits.byQueue) > 0 {
		t.Errorf("claims still wait: %v", e.gateway.waits.byQueue)
	}
}

func TestSingleClaimThatWaitsFindsEventsOnOtherCells(t *testing.T) {
	t.Parallel()
	e, fakes := spreadCells(t)
	events := make([]chan string, len(fakes))
	came := insertable(fakes...)
	for i, f := range fakes {
		events[i], _ = claimable(f)
	}
	for i := range events {
		answered := make(chan string, 1)
		go func() { answered <- e.call("POST", "/claim", `{"queue":"wide","limit":7,"wait":"60s"}`).body }()
		e.until("the claim waits", func() bool { return len(e.gateway.waits.waited("wide", e.gateway.cells())) == 1 })
		// A new event goes where it waits.
		at := e.gateway.waits.waited("wide", e.gateway.cells())
		e.want(201, "", "POST", "/events?queue=wide", "{}")
		got := came("wide")
		if now := e.gateway.waits.waited("wide", e.gateway.cells()); len(now) == 1 && now[0] == at[0] && got[len(got)-1] != at[0].number {
			t.Errorf("the claim waits at %d, and the event went to %v", at[0].number, got[len(got)-1])
		}
		events[i] <- fmt.Sprint(i)
		if got := <-answered; !strings.Contains(got, fmt.Sprintf(`{"id":%d}`, i)) {
			t.Errorf("answered %s", got)
		}
	}
}

func TestClaimOfASpreadQueueWhoseClientGoesLeavesNothing(t *testing.T) {
	t.Parallel()
	e, fakes := spreadCells(t)
	for _, f := range fakes {
		claimable(f)
	}
	ctx, cancel := context.WithCancel(t.Context())
	claim := e.request(http.MethodPost, "/claim", `{"queue":"wide","limit":7,"wait":"60s"}`).WithContext(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if resp, err := e.client.Do(claim); err == nil {
			_ = resp.Body.Close()
			t.Error("the claim was answered")
		}
	}()
	e.until("the claim waits", func() bool { return len(e.gateway.waits.waited("wide", e.gateway.cells())) == 1 })
	cancel()
	<-gone
	e.until("nothing is held", func() bool {
		held := int64(0)
		for _, at := range e.gateway.cells() {
			held += at.waiting.inUse() + at.calls.inUse()
		}
		return held == 0 && len(e.gateway.waits.waited("wide", e.gateway.cells())) == 0
	})
}
