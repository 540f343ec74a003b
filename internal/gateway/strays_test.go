package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// holds has the cell hold events of queues.
func (f *fakeCell) holds(queues ...string) { f.queues.Store(&queues) }

func TestClaimsFindEventsThatAreNotWhereTheirQueueIsPlaced(t *testing.T) {
	t.Parallel()
	home, one, two := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)
	_, homeWaits := claimable(home)
	atOne, oneWaits := claimable(one)
	atTwo, twoWaits := claimable(two)
	home.put(placement{Queue: "q", Cells: []int{1}})
	home.put(placement{Queue: "other", Cells: []int{2}, Former: []former{{Cells: cellSet{0}}}})
	e := setup(t, nil, home, one, two)
	go func() {
		e.until("the claim waits", func() bool { return len(oneWaits()) == 1 })
		atTwo <- "7" // by SQL, or as a dead letter
		home.holds("other", "queued.publish")
		two.holds("other", "q")
	}()
	e.want(200, `{"id":7}`, "POST", "/claim", `{"queue":"q","limit":7,"wait":"50s"}`) // it is woken
	if got := twoWaits(); !slices.Equal(got, []string{"0s"}) || len(homeWaits()) != 0 {
		t.Errorf("asked with the waits %v, and home with %v", got, homeWaits())
	}
	e.until("the metrics say so", func() bool {
		got := e.call("GET", "/metrics", "", "Authorization: Bearer metrics").body
		return strings.Contains(got, `queued_cell_stray_queues{cell="2"} 1`) && strings.Contains(got, `queued_cell_stray_queues{cell="0"} 0`)
	})
	// While the cell holds some, it is asked again and again.
	go func() {
		e.until("the claim waits", func() bool { return len(oneWaits()) == 2 })
		atTwo <- "8"
	}()
	e.want(200, `{"id":8}`, "POST", "/claim", `{"queue":"q","limit":7,"wait":"50s"}`)

	two.holds("other")
	e.until("the cell holds none any more", func() bool { return len(e.gateway.strays.of("q")) == 0 })
	asked := len(twoWaits())
	atOne <- "9"
	e.want(200, `{"id":9}`, "POST", "/claim", `{"queue":"q","limit":7,"wait":"50s"}`)
	if len(twoWaits()) != asked {
		t.Error("a cell that holds none any more was asked")
	}
}

func TestClaimsOfAQueueThatIsPlacedNowhereFindItsEvents(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	e := setup(t, nil, fakes...)
	events := make([]chan string, len(fakes))
	for i, f := range fakes {
		events[i], _ = claimable(f)
		f.holds(fmt.Sprint("at-", i))
	}
	e.until("the gateway has looked at them", func() bool { return len(e.gateway.strays.of("at-1")) == 1 && len(e.gateway.strays.of("at-2")) == 1 })
	for i := range fakes {
		events[i] <- fmt.Sprint(i) // now: a cell hands it out to a claim of any queue
		e.want(200, fmt.Sprintf(`{"id":%d}`, i), "POST", "/claim", fmt.Sprintf(`{"queue":"at-%d","limit":7,"wait":"50s"}`, i))
	}
}

func TestStraysAreRememberedByCell(t *testing.T) {
	t.Parallel()
	s, a, b := newStrays(), &cell{number: 1}, &cell{number: 2}
	set := func(queues ...string) map[string]struct{} {
		all := map[string]struct{}{}
		for _, queue := range queues {
			all[queue] = struct{}{}
		}
		return all
	}
	if found := s.put(a, set("x", "y")); len(found) != 2 {
		t.Errorf("found %v", found)
	}
	if found := s.put(b, set("y")); !slices.Equal(found, []string{"y"}) {
		t.Errorf("found %v", found)
	}
	if found := s.put(a, set("y", "z")); !slices.Equal(found, []string{"z"}) || !slices.Equal(s.of("y"), []*cell{a, b}) || s.of("x") != nil || s.count(a) != 2 {
		t.Errorf("found %v; y is on %v", found, s.of("y"))
	}
	if s.put(a, nil); !slices.Equal(s.of("y"), []*cell{b}) || len(s.byCell) != 1 || len(s.onCell) != 1 {
		t.Errorf("there is %+v", s.onCell)
	}
}
