package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// listedAt returns a cell as home lists it, at the URL of a fake one.
func listedAt(f *fakeCell, takesNew bool) listed {
	return listed{f.number, &f.server.URL, takesNew, nil}
}

func TestCellsThatHomeListsAreUsedWithoutARestart(t *testing.T) {
	t.Parallel()
	home, one, moved := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 1)
	for _, f := range []*fakeCell{home, one, moved} {
		f.answers("POST /events", http.StatusCreated, f.server.URL)
	}
	e := setup(t, nil, home)
	if e.gateway.single() == nil {
		t.Fatal("with one cell and nothing placed elsewhere there are several")
	}
	e.want(http.StatusCreated, home.server.URL, "POST", "/events?queue=q", "{}")

	// A queue on a cell that nobody has told the gateway of is not taken for one at home.
	home.put(placement{Queue: "q", Cells: []int{1}})
	e.until("the placement is known", func() bool { return e.gateway.single() == nil })
	e.wantProblem(cellUnavailable, 1, "POST", "/events?queue=q", "{}")

	inserts := func(at *fakeCell) func() bool {
		return func() bool {
			got := e.call("POST", "/events?queue=q", "{}")
			return got.status == http.StatusCreated && got.body == at.server.URL
		}
	}
	home.list(listedAt(one, true))
	e.until("the cell that is listed is used", inserts(one))
	home.list(listedAt(moved, true))
	e.until("the cell is used at its other URL", inserts(moved))
	home.list()
	e.until("the cell is used no more", func() bool { return e.call("POST", "/events?queue=q", "{}").status == http.StatusServiceUnavailable })
	home.list(listed{1, nil, true, nil}, listed{2, new("ftp://x"), true, nil})
	e.until("the log says what is wrong with the list", func() bool {
		return strings.Contains(e.log.String(), "listed without a URL") && strings.Contains(e.log.String(), "listed with a URL that cannot be used")
	})
}

func TestSettingsOfAGatewayGoBeforeTheList(t *testing.T) {
	t.Parallel()
	home, one, other := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 1)
	e := setup(t, nil, home, one)
	before := e.gateway.cell(1)
	home.list(listedAt(other, false), listed{0, nil, true, nil})
	e.until("the list is known", func() bool { return !e.gateway.cell(1).takesNew.Load() })
	if e.gateway.cell(1) != before {
		t.Error("the cell of the settings was replaced by one that is listed")
	}
	home.list()
	e.until("the list is known", func() bool { return e.gateway.cell(1).takesNew.Load() })
}

func TestCellsThatTakeNoNewQueuesGetNone(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	e := setup(t, nil, fakes...)
	fakes[0].list(listed{0, nil, false, nil}, listed{1, nil, false, nil})
	e.until("the list is known", func() bool { return !e.gateway.cell(0).takesNew.Load() })
	for i := range 50 {
		if at := e.gateway.chooseFor("q" + itoa(int64(i))); at == nil || at.number != 2 {
			t.Fatalf("a queue would be placed on %v", at)
		}
	}
	if all := e.gateway.cellsIn(nil); len(all) != 1 || all[0].number != 2 {
		t.Errorf("queues on all cells are on %v", all)
	}
	// A queue that is on all cells was on these, too, and may have events there.
	former := e.gateway.formerOf(&placement{Queue: "q"})
	if len(former) != 2 || former[0].number != 0 || former[1].number != 1 {
		t.Errorf("its former cells are %v", former)
	}
	fakes[0].list(listed{0, nil, false, nil}, listed{1, nil, false, nil}, listed{2, nil, false, nil})
	e.until("the list is known", func() bool { return !e.gateway.cell(2).takesNew.Load() })
	e.wantProblem(cellUnavailable, 0, "POST", "/events?queue=q", "{}")
}

func TestACellIsListedOnceItHasSaidThatItIsTheOne(t *testing.T) {
	t.Parallel()
	home, two := newFakeCell(t, 0), newFakeCell(t, 2)
	home.answers("PUT /cells/{number}", http.StatusOK, `{"cell":2}`)
	e := setup(t, nil, home)
	var asked atomic.Int32
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(stranger.Close)
	put := func(number, url, key string) answer {
		body, _ := json.Marshal(map[string]string{"url": url})
		return e.call("PUT", "/cells/"+number, string(body), "Authorization: Bearer "+key)
	}
	if got := put("2", stranger.URL, callerKey); got.status != http.StatusForbidden || asked.Load() > 0 {
		t.Errorf("a caller who is no admin got %d %s, and the URL was asked %d times", got.status, got.body, asked.Load())
	}
	for name, got := range map[string]answer{
		"another cell":       put("3", two.server.URL, gatewayKey),
		"no cell":            put("2", stranger.URL, gatewayKey),
		"nobody":             put("2", "http://127.0.0.1:1", gatewayKey),
		"nobody in the name": put("2", "http://cell.invalid", gatewayKey),
		"a line end":         put("2", "http://127.0.0.1:1%0d%0aX:y", gatewayKey),
		"an escape":          put("2", "http://a%zz", gatewayKey),
	} {
		if got.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: got %d %s", name, got.status, got.body)
		}
	}
	e.want(http.StatusUnprocessableEntity, "#/url: is needed", "PUT", "/cells/2", `{"takes_new":true}`, "Authorization: Bearer "+gatewayKey)
	e.want(http.StatusUnprocessableEntity, "#/url: is needed", "PUT", "/cells/2", `{"url":null}`, "Authorization: Bearer "+gatewayKey)
	if got := home.calls(); slices.ContainsFunc(got, func(call string) bool { return call[:3] == "PUT" }) {
		t.Errorf("home was asked to list a cell that is not there: %v", got)
	}
	e.want(http.StatusOK, "", "PUT", "/cells/0", `{"takes_new":true}`, "Authorization: Bearer "+gatewayKey) // of the settings
	if got := put("2", two.server.URL, gatewayKey); got.status != http.StatusOK {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

func TestListOfCellsSaysWhetherTheGatewayCanUseThem(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.answers("GET /cells", http.StatusOK, `{"cells":[{"cell":3,"url":"http://127.0.0.1:1","takes_new":false,"placed":4,"former":5,"updated_at":"2026-02-03T04:05:06Z"},`+
		`{"cell":4,"url":null,"takes_new":true,"placed":0,"former":0,"updated_at":"2026-02-03T04:05:06Z"}]}`)
	home.put(placement{Queue: "a", Cells: []int{1}})
	home.put(placement{Queue: "b", Cells: []int{0}, Former: []former{{Cells: []int{1}}}})
	home.list(listed{3, new("http://127.0.0.1:1"), false, nil})
	e := setup(t, nil, home, one)
	e.until("the list is known", func() bool { return e.gateway.cell(3) != nil })
	want := `{"cells":[{"cell":0,"url":"` + home.server.URL + `","takes_new":true,"placed":1,"former":0,"updated_at":null,"state":"up"},` +
		`{"cell":1,"url":"` + one.server.URL + `","takes_new":true,"placed":1,"former":1,"updated_at":null,"state":"up"},` +
		`{"cell":3,"url":"http://127.0.0.1:1","takes_new":false,"placed":4,"former":5,"updated_at":"2026-02-03T04:05:06Z","state":"away","why":"It does not answer."},` +
		`{"cell":4,"url":null,"takes_new":true,"placed":0,"former":0,"updated_at":"2026-02-03T04:05:06Z","state":"away","why":"This gateway has no URL of it that can be used."}]}` + "\n"
	e.until("the cell that is away is known to be", func() bool { return e.gateway.cell(3).state.Load().why == "It does not answer." })
	if got := e.call("GET", "/cells", ""); got.status != http.StatusOK || got.body != want {
		t.Errorf("got  %d %s\nwant %s", got.status, got.body, want)
	}
}

func TestIDsOfCellsThatAreNotKnownYetAreNotDenied(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.answers("GET /events/{id}", http.StatusNotFound, `{"code":"event_not_found"}`)
	one.answers("GET /events/{id}", http.StatusOK, `{"id":7}`)
	home.list(listedAt(one, true))
	thaw := home.freeze()
	e := start(t, nil, home)
	e.wantProblem(cellUnavailable, 1, "GET", "/events/"+idOf(1), "")
	e.wantProblem(cellUnavailable, 1, "POST", "/ack", `{"events":[{"id":`+idOf(1)+`}]}`)
	thaw()
	e.until("the cell is known", func() bool { return e.call("GET", "/events/"+idOf(1), "").status == http.StatusOK })
	e.want(http.StatusNotFound, "event_not_found", "GET", "/events/"+idOf(200), "") // there is no such cell
}

func TestCellThatSomethingIsLeftOnStaysListed(t *testing.T) {
	t.Parallel()
	home, other, given := newFakeCell(t, 0), newFakeCell(t, 2), newFakeCell(t, 1)
	home.answers("DELETE /cells/{number}", http.StatusNoContent, "")
	home.mux.HandleFunc("GET /queues/{name}", func(w http.ResponseWriter, r *http.Request) {
		waiting := 0
		if home.queues.Load() != nil && r.PathValue("name") == "queued.forward.2" {
			waiting = 1
		}
		_, _ = fmt.Fprintf(w, `{"waiting":%d}`, waiting)
	})
	home.list(listedAt(other, false), listedAt(given, false))
	e := setup(t, nil, home, given)
	e.until("the cell can be used", func() bool { return e.gateway.cell(2) != nil && e.gateway.cell(2).isUp() })
	remove := func(status int, text string, number int) {
		t.Helper()
		e.want(status, text, "DELETE", fmt.Sprintf("/cells/%d?keys=now", number), "", "Authorization: Bearer "+gatewayKey)
	}
	remove(http.StatusConflict, "QUEUED_CELLS", 1)
	e.want(http.StatusUnauthorized, "", "DELETE", "/cells/2", "", "Authorization: Bearer wrong")
	e.want(http.StatusForbidden, "", "DELETE", "/cells/2", "")
	other.queues.Store(&[]string{"queued.x", "strange"})
	remove(http.StatusConflict, `the queue \"strange\"`, 2)
	other.queues.Store(&[]string{"queued.x"})
	home.queues.Store(&[]string{})
	remove(http.StatusConflict, "queued.forward.2", 2)
	home.queues.Store(nil)
	if slices.Contains(home.calls(), "DELETE /cells/2") {
		t.Error("home was told to take the cell off the list")
	}
	remove(http.StatusNoContent, "", 2)
	other.queues.Store(&[]string{"strange"})
	home.put(placement{Queue: "q", Cells: []int{2}}) // home says what is wrong
	e.until("the gateway knows", func() bool { p, _ := e.gateway.placements.get("q"); return p != nil })
	remove(http.StatusNoContent, "", 2)
	home.put(placement{Queue: "q", Cells: []int{0}})
	e.until("the gateway knows", func() bool { p, _ := e.gateway.placements.get("q"); return p.Cells[0] == 0 })
	remove(http.StatusConflict, "strange", 2)
	defer other.freeze()()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(2).isUp() })
	remove(http.StatusNoContent, "", 2)
	remove(http.StatusNoContent, "", 7)
}
