package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// leasable has a cell answer calls about several events with "status" of each id, and returns what it got: the ids and the other members.
func leasable(f *fakeCell) func() []string {
	var mu sync.Mutex
	var got []string
	answer := func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		var body struct {
			Events []struct {
				ID      int64
				Receipt string
			}
			InvisibleFor string `json:"invisible_for"`
			Limit        *int   // of a claim
		}
		if err := json.Unmarshal(text, &body); err != nil || body.Limit != nil {
			refuseBatch(w, "#/events")
			return
		}
		mu.Lock()
		defer mu.Unlock()
		seen := r.URL.Path + " " + body.InvisibleFor
		results := []any{}
		for i, e := range body.Events {
			if e.Receipt == "bad" {
				refuseBatch(w, fmt.Sprintf("#/events/%d/receipt", i))
				return
			}
			if e.Receipt == "full" {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, `{"code":"overloaded","detail":"full"}`)
				return
			}
			seen += fmt.Sprint(" ", e.ID&(1<<idBits-1))
			results = append(results, map[string]any{"id": e.ID, "status": 200 + f.number})
		}
		got = append(got, seen)
		_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
	}
	for _, path := range []string{"/ack", "/extend", "/release"} {
		f.mux.HandleFunc("POST "+path, answer)
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

// heldOf returns the body of a call about "cell number receipt" events.
func heldOf(elements ...string) string {
	texts := make([]string, len(elements))
	for i, element := range elements {
		var number, n int64
		receipt := "r"
		_, _ = fmt.Sscan(element, &number, &n, &receipt)
		texts[i] = fmt.Sprintf(`{"id":%d,"receipt":%q}`, number<<idBits+n, receipt)
	}
	return `{"invisible_for":"1m","events":[` + strings.Join(texts, ",") + `]}`
}

// idResults returns "cell number status code" of each result.
func idResults(t *testing.T, got answer) []string {
	t.Helper()
	var body struct {
		Results []struct {
			ID, Status int64
			Code       string
			Cell       *int
		}
	}
	if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.status != http.StatusOK {
		t.Fatalf("answered %d %s: %v", got.status, got.body, err)
	}
	texts := make([]string, len(body.Results))
	for i, one := range body.Results {
		texts[i] = strings.TrimSpace(fmt.Sprint(one.ID>>idBits, " ", one.ID&(1<<idBits-1), " ", one.Status, " ", one.Code))
		if one.Cell != nil {
			texts[i] += fmt.Sprint(" ", *one.Cell)
		}
	}
	return texts
}

func TestListsOfIDsAreSplitByTheirCells(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	var got []func() []string
	for _, f := range fakes {
		got = append(got, leasable(f))
	}
	fakes[0].put(placement{Queue: "elsewhere", Cells: []int{9}})
	e := setup(t, nil, fakes...)
	for n, path := range []string{"/ack", "/extend", "/release"} {
		answered := e.call("POST", path, heldOf("2 1", "0 2", "2 3", "1 4", "0 5"))
		wantTexts(t, path, idResults(t, answered), "2 1 202", "0 2 200", "2 3 202", "1 4 201", "0 5 200")
		for i, want := range []string{" 1m 2 5", " 1m 4", " 1m 1 3"} {
			if seen := got[i](); len(seen) != n+1 || seen[n] != path+want {
				t.Errorf("cell %d got %q, want %q", i, seen, path+want)
			}
		}
	}
	// One of cell 9, which this gateway was not told of, fails by itself, and so does a cell that cannot take its share now.
	wantTexts(t, "of an unknown cell", idResults(t, e.call("POST", "/ack", heldOf("9 1", "1 2"))), "9 1 503 cell_unavailable 9", "1 2 201")
	e.wantProblem(cellUnavailable, 9, "POST", "/ack", heldOf("9 1"))
	wantTexts(t, "of a full cell", idResults(t, e.call("POST", "/ack", heldOf("2 1 full", "1 2"))), "2 1 503 overloaded 2", "1 2 201")
	// What a cell refuses is refused as a whole, as one server does.
	e.want(422, `"#/events/2/receipt"`, "POST", "/ack", heldOf("1 1", "2 2", "2 3 bad"))
	e.want(422, "", "POST", "/ack", `{"events":[{"id":"x"},{"id":35184372088833}]}`)
	e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
}

func TestCellThatIsAwayFailsItsIDsAlone(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	for _, f := range fakes[:2] {
		leasable(f)
	}
	fakes[2].mux.HandleFunc("POST /ack", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		panic(http.ErrAbortHandler)
	})
	e := setup(t, nil, fakes...)
	fakes[1].stop()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(1).isUp() }) // the outcome of a call that is under way then is unknown
	got := e.call("POST", "/ack", heldOf("1 1", "0 2", "1 3", "2 4"))
	wantTexts(t, "results", idResults(t, got), "1 1 503 cell_unavailable 1", "0 2 200", "1 3 503 cell_unavailable 1", "2 4 502 outcome_unknown 2")
	if got.header.Get(unavailableHeader) != "1, 2" {
		t.Errorf("answered with %v", got.header)
	}
	e.wantProblem(cellUnavailable, 1, "POST", "/ack", heldOf("1 1", "1 2"))
}
