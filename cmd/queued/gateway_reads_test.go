package main

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// ids reads a listing of a program page by page and returns what is in a member of its elements.
func ids(t *testing.T, f *fleet, p *program, path, list, member string, limit int) (found []string) {
	t.Helper()
	for cursor := ""; ; {
		at := path + fmt.Sprintf("limit=%d", limit)
		if cursor != "" {
			at += "&cursor=" + url.QueryEscape(cursor)
		}
		page := p.want(http.StatusOK, http.MethodGet, at, "", "Authorization: Bearer "+keyOfCells).decode(t)
		if p == f.program && fmt.Sprint(page["unavailable_cells"]) != "[]" {
			t.Fatalf("%s: %v", at, page)
		}
		for _, element := range page[list].([]any) {
			found = append(found, fmt.Sprint(element.(map[string]any)[member]))
		}
		next, isNext := page["next"].(string)
		if !isNext {
			return found
		}
		cursor = next
	}
}

func TestGatewayReadsOverCells(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	queues := f.queuesOn()
	for n := range 12 {
		for number, queue := range queues {
			at := fmt.Sprintf("2026-02-03T04:05:%02d.%dZ", n/3, (n+number)%3)
			f.call(http.StatusCreated, http.MethodPost, "/events?queue="+queue+"&vt="+url.QueryEscape("2036-02-03T04:05:00."+fmt.Sprint(n%4)+"Z"), `{}`)
			f.call(http.StatusCreated, http.MethodPost, "/events?queue="+queue+"&event_ts="+url.QueryEscape(at), `{}`)
			event := f.claim(queue, "10s")
			f.call(http.StatusNoContent, http.MethodDelete, fmt.Sprintf("/events/%.0f?receipt=%s", event["id"], url.QueryEscape(event["receipt"].(string))), "")
			f.call(http.StatusCreated, http.MethodPost, "/schedules", fmt.Sprintf(`{"queue":%q,"event":{},"at":"2040-01-%02dT00:00:00Z"}`, queue, 1+(n*7+number)%12))
			f.call(http.StatusAccepted, http.MethodPost, "/redrives", fmt.Sprintf(`{"filter":{"queue":%q,"outcome":"failed"}}`, queue))
		}
	}
	for _, listing := range []struct{ path, list, time, order string }{
		{"/events?", "events", "vt", "ascending"},
		{"/history?", "events", "event_ts", "descending"},
		{"/history?outcome=done&", "events", "event_ts", "descending"},
		{"/schedules?", "schedules", "created_at", "ascending"},
		{"/schedules?due_before=2041-01-01T00:00:00Z&", "schedules", "next_at", "ascending"},
		{"/redrives?", "redrives", "created_at", "descending"},
	} {
		type row struct {
			ID   int64
			Time string
		}
		var want []row
		for _, cell := range f.cells {
			page := cell.want(http.StatusOK, http.MethodGet, listing.path+"limit=1000", "", "Authorization: Bearer "+keyOfCells).decode(t)
			for _, element := range page[listing.list].([]any) {
				e := element.(map[string]any)
				text := strings.TrimSuffix(e[listing.time].(string), "Z")
				want = append(want, row{int64(e["id"].(float64)), text})
			}
		}
		slices.SortFunc(want, func(a, b row) int {
			order := cmp.Or(strings.Compare(a.Time, b.Time), cmp.Compare(a.ID, b.ID))
			if listing.order == "descending" {
				return -order
			}
			return order
		})
		var reference []string
		for _, r := range want {
			reference = append(reference, fmt.Sprint(float64(r.ID)))
		}
		if len(reference) < 24 {
			t.Fatalf("%s has %d", listing.path, len(reference))
		}
		for _, limit := range []int{1, 5, 1000} {
			if got := ids(t, f, f.program, listing.path, listing.list, "id", limit); !slices.Equal(got, reference) {
				t.Errorf("%s in pages of %d: got %v, want %v", listing.path, limit, got, reference)
			}
		}
	}

	records, err := csv.NewReader(strings.NewReader(f.call(http.StatusOK, http.MethodGet, "/history?format=csv", "").body)).ReadAll()
	if err != nil || len(records) != 26 || records[25][0] != "#end" || records[25][1] != "24" {
		t.Errorf("the export has %v, %v", records, err)
	}
	own := csvOf(t, f.cells[0])
	if !slices.Equal(records[0], own[0]) || !slices.ContainsFunc(records, func(r []string) bool { return slices.Equal(r, own[1]) }) {
		t.Errorf("the export has no %v as that of the cell has", own[1])
	}
	link := f.want(http.StatusOK, http.MethodGet, "/history?limit=5", "", "Authorization: Bearer "+keyOfCells, "Accept: application/cloudevents-batch+json")
	if !strings.Contains(link.header.Get("Link"), `rel="next"`) || strings.Contains(link.body, "queuedcursor") || strings.Count(link.body, `"queuedid"`) != 5 {
		t.Errorf("as CloudEvents: %v %s", link.header, link.body)
	}
	for path, member := range map[string]string{
		"/stats/queues": "queues", "/stats/executions": "executions", "/stats/processes": "processes", "/stats/workers": "workers", "/stats/holders": "holders",
		"/history/stats": "buckets", "/history/errors": "errors", "/queues/queued.none/stats": "buckets",
	} {
		if got := f.call(http.StatusOK, http.MethodGet, path, "").decode(t); got[member] == nil || fmt.Sprint(got["unavailable_cells"]) != "[]" {
			t.Errorf("%s: %v", path, got)
		}
	}
	if processes := f.call(http.StatusOK, http.MethodGet, "/stats/processes", "").decode(t)["processes"].([]any); len(processes) != 2 {
		t.Errorf("%d processes", len(processes))
	}
	if got := f.call(http.StatusBadRequest, http.MethodGet, "/history?nonsense=1", "").decode(t); got["code"] != "unknown_parameter" {
		t.Errorf("a bad parameter: %v", got)
	}

	f.cells[1].signal(syscall.SIGKILL)
	until(t, "the gateway sees that cell 1 is away", func() bool {
		return strings.Contains(f.call(http.StatusOK, http.MethodGet, "/metrics", "").body, `queued_cell_up{cell="1"} 0`)
	})
	got := f.call(http.StatusOK, http.MethodGet, "/history?limit=1000", "")
	if page := got.decode(t); fmt.Sprint(page["unavailable_cells"]) != "[1]" || len(page["events"].([]any)) != 12 || page["next"] == nil || got.header.Get("Queued-Unavailable-Cells") != "1" {
		t.Errorf("without cell 1: %v", got)
	}
	f.call(http.StatusServiceUnavailable, http.MethodGet, "/history?format=csv", "")
}

// csvOf returns the records of the history of a cell as CSV.
func csvOf(t *testing.T, p *program) [][]string {
	t.Helper()
	records, err := csv.NewReader(strings.NewReader(p.want(http.StatusOK, http.MethodGet, "/history?format=csv", "", "Authorization: Bearer "+keyOfCells).body)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func TestGatewayReadsAQueueThatWasMovedAsOne(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	queue := f.queuesOn()[0] // which has an event
	finish := func(n int) {
		t.Helper()
		for range n {
			f.call(http.StatusCreated, http.MethodPost, "/events?queue="+queue, `{}`)
			event := f.claim(queue, "10s")
			f.call(http.StatusNoContent, http.MethodDelete, fmt.Sprintf("/events/%.0f?receipt=%s", event["id"], url.QueryEscape(event["receipt"].(string))), "")
		}
	}
	finish(3)
	f.call(http.StatusOK, http.MethodPut, "/queues/"+queue, `{"max_attempts":7}`)
	f.call(http.StatusOK, http.MethodPut, "/queues/"+queue+"/placement", `{"cells":[1],"keys":"now"}`)
	finish(2)
	f.call(http.StatusCreated, http.MethodPost, "/events?queue="+queue+"&delay=1h", `{}`)
	if got := f.call(http.StatusOK, http.MethodGet, "/queues/"+queue, "").decode(t); got["scheduled"] != 2.0 || got["done_last_hour"] != 5.0 || got["max_attempts"] != 7.0 {
		t.Errorf("the queue: %v", got)
	}
	names := ids(t, f, f.program, "/queues?", "queues", "queue", 1)
	if seen := slices.Compact(slices.Sorted(slices.Values(names))); !slices.Contains(names, queue) || len(seen) != len(names) {
		t.Errorf("the queues are %v", names)
	}
	// The former cell is called empty, and has its history all the same.
	for _, cells := range []string{`"all"`, "[0]"} {
		f.call(http.StatusOK, http.MethodPost, "/queues/"+queue+"/placement/drained", `{"cells":`+cells+`}`)
	}
	until(t, "the gateway knows that the former cell is empty", func() bool {
		got := f.call(http.StatusOK, http.MethodGet, "/events?queue="+queue, "").decode(t)
		return len(got["events"].([]any)) == 1
	})
	found := ids(t, f, f.program, "/history?queue="+queue+"&", "events", "id", 2)
	byCell := map[int]int{}
	for _, text := range found {
		var id float64
		if err := json.Unmarshal([]byte(text), &id); err != nil {
			t.Fatal(err)
		}
		byCell[cellOf(id)]++
	}
	if !maps.Equal(byCell, map[int]int{0: 3, 1: 2}) {
		t.Errorf("the history has %v", byCell)
	}
	series := f.call(http.StatusOK, http.MethodGet, "/queues/"+queue+"/stats", "").decode(t)
	if totals := series["totals"].(map[string]any); totals["done"] != 5.0 || totals["wait_p50_ms"] == nil || totals["wait_bins"] != nil {
		t.Errorf("the statistics are %v", series)
	}
	if got := f.call(http.StatusOK, http.MethodGet, "/stats/queues?name_contains="+queue, "").decode(t); got["total"] != 1.0 || got["totals"].(map[string]any)["done"] != 5.0 {
		t.Errorf("the overview is %v", got)
	}
}
