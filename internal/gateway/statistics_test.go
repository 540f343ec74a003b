package gateway

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// told is what a fake cell says to a path, whatever its query.
func (f *fakeCell) told(path, body string) {
	f.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.queries = append(f.queries, r.URL.Query())
		f.mu.Unlock()
		_, _ = fmt.Fprint(w, body)
	})
}

func TestStatisticsOverCellsAreAddedUpAsEachMemberNeeds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ path, query, first, second, want string }{
		{
			"/stats/executions", "",
			`{"executions":[{"type":"a","worker":"w","cycles":1,"last_ms":5,"average_ms":10.5,"fastest_ms":3,"longest_ms":20,"total_ms":10.5,"last_at":"2026-02-03T04:05:06.5Z"},
				{"type":"c","worker":"","cycles":1,"last_ms":1,"average_ms":1,"fastest_ms":1,"longest_ms":1,"total_ms":1,"last_at":"2026-02-03T04:05:06Z"}]}`,
			`{"executions":[{"type":"a","worker":"w","cycles":3,"last_ms":7,"average_ms":2,"fastest_ms":2,"longest_ms":9.25,"total_ms":6,"last_at":"2026-02-03T04:05:06Z"},
				{"type":"b","worker":"","cycles":1,"last_ms":1,"average_ms":1,"fastest_ms":1,"longest_ms":1,"total_ms":1,"last_at":"2026-02-03T04:05:06Z"}]}`,
			`{"executions":[{"type":"a","worker":"w","cycles":4,"last_ms":5,"average_ms":4.125,"fastest_ms":2,"longest_ms":20,"total_ms":16.5,"last_at":"2026-02-03T04:05:06.5Z"},
				{"type":"b","worker":"","cycles":1,"last_ms":1,"average_ms":1,"fastest_ms":1,"longest_ms":1,"total_ms":1,"last_at":"2026-02-03T04:05:06Z"},
				{"type":"c","worker":"","cycles":1,"last_ms":1,"average_ms":1,"fastest_ms":1,"longest_ms":1,"total_ms":1,"last_at":"2026-02-03T04:05:06Z"}],"unavailable_cells":[]}`,
		},
		{
			"/stats/processes", "",
			`{"processes":[{"id":"x","process":"b"}]}`, `{"processes":[{"id":"y","process":"a"},{"id":"a","process":"b"}]}`,
			`{"processes":[{"id":"y","process":"a","cell":1},{"id":"a","process":"b","cell":1},{"id":"x","process":"b","cell":0}],"unavailable_cells":[]}`,
		},
		{
			"/stats/workers", "limit=2",
			`{"workers":[{"worker":"w","queues":["b"],"leases":2,"oldest_lease":{"claimed_at":"2026-02-03T04:05:06Z","ends_at":"x"},"ended":1,"failed":0,"average_ms":10,"longest_ms":30,"last_seen_at":"2026-02-03T04:05:06Z"},
				{"worker":"z","queues":[],"leases":0,"oldest_lease":null,"ended":1,"failed":0,"average_ms":null,"longest_ms":null,"last_seen_at":"2026-02-03T04:05:06Z"}],"total":2,"counted_since":"2026-02-03T03:00:00Z","complete":true}`,
			`{"workers":[{"worker":"u","queues":[],"leases":2,"oldest_lease":null,"ended":1,"failed":0,"average_ms":null,"longest_ms":null,"last_seen_at":"2026-02-03T04:05:06Z"},
				{"worker":"w","queues":["a","b"],"leases":1,"oldest_lease":{"claimed_at":"2026-02-03T04:05:05.5Z","ends_at":"y"},"ended":3,"failed":2,"average_ms":2,"longest_ms":4,"last_seen_at":"2026-02-03T04:05:07Z"}],"total":9,"counted_since":"2026-02-03T03:30:00Z","complete":false}`,
			`{"workers":[{"worker":"w","queues":["a","b"],"leases":3,"oldest_lease":{"claimed_at":"2026-02-03T04:05:05.5Z","ends_at":"y"},"ended":4,"failed":2,"average_ms":4,"longest_ms":30,"last_seen_at":"2026-02-03T04:05:07Z"},
				{"worker":"u","queues":[],"leases":2,"oldest_lease":null,"ended":1,"failed":0,"average_ms":null,"longest_ms":null,"last_seen_at":"2026-02-03T04:05:06Z"}],"total":10,"counted_since":"2026-02-03T03:30:00Z","complete":false,"unavailable_cells":[]}`,
		},
		{
			"/stats/holders", "",
			`{"holders":[{"kind":"log_head","of_kind":1},{"kind":"lease","since":"2026-02-03T04:05:06Z","of_kind":5}],"complete":true}`,
			`{"holders":[{"kind":"transaction","pid":7,"of_kind":1},{"kind":"lease","since":"2026-02-03T04:05:05Z","of_kind":2},{"kind":"lease","since":"2026-02-03T04:05:07Z","of_kind":2}],"complete":true}`,
			`{"holders":[{"kind":"log_head","of_kind":1,"cell":0},{"kind":"transaction","pid":7,"of_kind":1,"cell":1},{"kind":"lease","since":"2026-02-03T04:05:05Z","of_kind":7,"cell":1},
				{"kind":"lease","since":"2026-02-03T04:05:06Z","of_kind":7,"cell":0},{"kind":"lease","since":"2026-02-03T04:05:07Z","of_kind":7,"cell":1}],"complete":true,"unavailable_cells":[]}`,
		},
		{
			"/history/stats", "",
			`{"buckets":[{"start":"2026-02-03T04:00:00Z","done":1,"failed":2,"expired":3,"cancelled":4},{"start":"2026-02-03T05:00:00Z","done":1,"failed":0,"expired":0,"cancelled":0}]}`,
			`{"buckets":[{"start":"2026-02-03T04:00:00Z","done":10,"failed":20,"expired":30,"cancelled":40},{"start":"2026-02-03T05:00:00Z","done":0,"failed":0,"expired":0,"cancelled":0}]}`,
			`{"buckets":[{"start":"2026-02-03T04:00:00Z","done":11,"failed":22,"expired":33,"cancelled":44},{"start":"2026-02-03T05:00:00Z","done":1,"failed":0,"expired":0,"cancelled":0}],"unavailable_cells":[]}`,
		},
		{
			"/history/errors", "limit=1",
			`{"errors":[{"cause":"a","count":3,"queues":["q"],"types":[],"first_at":"2026-02-03T04:00:02Z","last_at":"2026-02-03T04:00:03Z","example":{"id":1}},
				{"cause":"b","count":2,"queues":["q"],"types":["t"],"first_at":"2026-02-03T04:00:02Z","last_at":"2026-02-03T04:00:03Z","example":{"id":2}}],"causes":2,"looked_at":5,"complete":true}`,
			`{"errors":[{"cause":"b","count":2,"queues":["p"],"types":["t"],"first_at":"2026-02-03T04:00:01Z","last_at":"2026-02-03T04:00:04Z","example":{"id":3}}],"causes":4,"looked_at":2,"complete":false}`,
			`{"errors":[{"cause":"b","count":4,"queues":["p","q"],"types":["t"],"first_at":"2026-02-03T04:00:01Z","last_at":"2026-02-03T04:00:04Z","example":{"id":3}}],"causes":5,"looked_at":7,"complete":false,"unavailable_cells":[]}`,
		},
		{
			"/queues/wide/stats", "",
			`{"queue":"wide","since":"2026-02-01T00:00:00Z","sampled_at":"2026-02-03T04:00:02Z","counted_through":null,"complete":true,"counted":5,
				"totals":{"done":1,"wait_p50_ms":1,"wait_p95_ms":1,"processing_p50_ms":null,"wait_bins":[[0,3]],"processing_bins":[]},
				"buckets":[{"start":"2026-02-03T04:00:00Z","samples":2,"ready":1,"waiting":5,"oldest_ready_age_ms":2.5,"estimated":false,"max_ready":4,"done":1,"wait_p50_ms":1,"wait_bins":[[0,3]],"processing_bins":[],"complete":true},
					{"start":"2026-02-03T04:01:00Z","samples":0,"ready":null,"oldest_ready_age_ms":null,"estimated":null,"max_ready":null,"done":0,"wait_p50_ms":null,"wait_bins":[],"processing_bins":[],"complete":true}]}`,
			`{"queue":"wide","since":"2026-02-02T00:00:00Z","sampled_at":"2026-02-03T04:00:01Z","counted_through":"2026-02-03T04:00:01Z","complete":true,"counted":6,
				"totals":{"done":2,"wait_p50_ms":1,"wait_p95_ms":1,"processing_p50_ms":null,"wait_bins":[[0,1],[10,2]],"processing_bins":[]},
				"buckets":[{"start":"2026-02-03T04:00:00Z","samples":1,"ready":2,"waiting":1,"oldest_ready_age_ms":null,"estimated":true,"max_ready":3,"done":2,"wait_p50_ms":1,"wait_bins":[[0,1],[10,2]],"processing_bins":[],"complete":true},
					{"start":"2026-02-03T04:01:00Z","samples":0,"ready":null,"oldest_ready_age_ms":null,"estimated":null,"max_ready":null,"done":0,"wait_p50_ms":null,"wait_bins":[],"processing_bins":[],"complete":false}]}`,
			`{"queue":"wide","since":"2026-02-02T00:00:00Z","sampled_at":"2026-02-03T04:00:01Z","counted_through":null,"complete":true,"counted":11,
				"totals":{"done":3,"wait_p50_ms":1,"wait_p95_ms":2.47,"processing_p50_ms":null},
				"buckets":[{"start":"2026-02-03T04:00:00Z","samples":1,"ready":3,"waiting":6,"oldest_ready_age_ms":2.5,"estimated":true,"max_ready":7,"done":3,"wait_p50_ms":1,"complete":true},
					{"start":"2026-02-03T04:01:00Z","samples":0,"ready":null,"oldest_ready_age_ms":null,"estimated":null,"max_ready":null,"done":0,"wait_p50_ms":null,"complete":false}],"unavailable_cells":[]}`,
		},
		{
			"/stats/queues", "order=waiting&limit=2",
			`{"since":"2026-02-01T00:00:00Z","sampled_at":null,"counted_through":null,"live":true,"complete":true,"counted":5,"total":2,
				"totals":{"ready":12,"waiting":2,"oldest_ready_age_ms":5,"estimated":false,"failed":1},"outcomes":[{"start":"2026-02-03T04:00:00Z","done":1,"complete":true}],
				"queues":[{"queue":"a","ready":7,"oldest_ready_age_ms":5,"paused":false,"push":null,"wait_p95_ms":33,"wait_bins":[[9,1]],"processing_bins":[],"ready_series":[1,null]},
					{"queue":"wide","ready":5,"waiting":2,"oldest_ready_age_ms":null,"paused":true,"push":"open","wait_p95_ms":1,"wait_bins":[[0,9]],"processing_bins":[],"ready_series":[1,null]}]}`,
			`{"since":"2026-02-01T00:00:00Z","sampled_at":null,"counted_through":null,"live":false,"complete":true,"counted":5,"total":2,
				"totals":{"ready":4,"waiting":3,"oldest_ready_age_ms":9,"estimated":false,"failed":1},"outcomes":[{"start":"2026-02-03T04:00:00Z","done":2,"complete":true}],
				"queues":[{"queue":"wide","ready":3,"waiting":3,"oldest_ready_age_ms":9,"paused":false,"push":null,"wait_p95_ms":2,"wait_bins":[[10,9]],"processing_bins":[],"ready_series":[2,4]},
					{"queue":"z","ready":1,"oldest_ready_age_ms":null,"paused":false,"push":null,"wait_p95_ms":null,"wait_bins":[],"processing_bins":[],"ready_series":[1,null]}]}`,
			`{"since":"2026-02-01T00:00:00Z","sampled_at":null,"counted_through":null,"live":false,"complete":true,"counted":10,"total":3,
				"totals":{"ready":16,"waiting":5,"oldest_ready_age_ms":9,"estimated":false,"failed":2},"outcomes":[{"start":"2026-02-03T04:00:00Z","done":3,"complete":true}],
				"queues":[{"queue":"wide","ready":8,"waiting":5,"oldest_ready_age_ms":9,"paused":true,"push":"open","wait_p95_ms":2.47,"ready_series":[3,4]},
					{"queue":"a","ready":7,"oldest_ready_age_ms":5,"paused":false,"push":null,"wait_p95_ms":33,"ready_series":[1,null]}],"unavailable_cells":[]}`,
		},
	} {
		t.Run(test.path, func(t *testing.T) {
			t.Parallel()
			fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1)}
			fakes[0].put(placement{Queue: "wide", Cells: cellSet{0, 1}})
			fakes[0].told(test.path, test.first)
			fakes[1].told(test.path, test.second)
			e := setup(t, nil, fakes...)
			var got, want any
			text := e.want(200, "", "GET", test.path+"?"+test.query, "").body
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if err := json.Unmarshal([]byte(test.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s\n%s", diff, text)
			}
			if first, second := fakes[0].queries[0], fakes[1].queries[0]; !cmp.Equal(first, second) {
				t.Errorf("the cells were asked for %v and %v", first, second)
			}
			thaw := fakes[1].freeze()
			defer thaw()
			e.until("cell 1 is away", func() bool { return !e.gateway.cell(1).isUp() })
			part := e.want(200, `"unavailable_cells":[1]`, "GET", test.path+"?"+test.query, "")
			if part.header.Get(unavailableHeader) != "1" || strings.Contains(test.first, `"complete"`) && !strings.Contains(part.body, `"complete":false`) {
				t.Errorf("without cell 1: %v %s", part.header, part.body)
			}
		})
	}
}

func TestOverviewOverCellsIsThatOfOneServerInEachOrder(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 3))
	type queueFigures struct {
		Queue   string   `json:"queue"`
		Ready   int      `json:"ready"`
		Waiting int      `json:"waiting"`
		Failed  int      `json:"failed"`
		Age     *float64 `json:"oldest_ready_age_ms"`
	}
	isOlder := func(a, b queueFigures) bool { return b.Age == nil || a.Age != nil && *a.Age >= *b.Age }
	orders := map[string]func(a, b queueFigures) bool{ // whether a may stand before b
		"failed":  func(a, b queueFigures) bool { return a.Failed > b.Failed || a.Failed == b.Failed && isOlder(a, b) },
		"waiting": func(a, b queueFigures) bool { return a.Ready+a.Waiting >= b.Ready+b.Waiting },
		"oldest":  isOlder,
		"name":    func(a, b queueFigures) bool { return a.Queue < b.Queue },
	}
	var fakes []*fakeCell
	total := 0
	for number := range 3 {
		f := newFakeCell(t, number)
		var all []queueFigures
		for i := range random.IntN(600) {
			one := queueFigures{Queue: fmt.Sprintf("q%d.%04d", number, i), Ready: random.IntN(5), Waiting: random.IntN(5), Failed: random.IntN(5)}
			if random.IntN(2) == 0 {
				age := float64(random.IntN(10))
				one.Age = &age
			}
			all = append(all, one)
		}
		total += len(all)
		f.mux.HandleFunc("GET /stats/queues", func(w http.ResponseWriter, r *http.Request) {
			order := orders[r.URL.Query().Get("order")]
			sorted := slices.Clone(all)
			slices.SortFunc(sorted, func(a, b queueFigures) int {
				switch before, after := order(a, b), order(b, a); {
				case before == after:
					return strings.Compare(a.Queue, b.Queue)
				case before:
					return -1
				}
				return 1
			})
			var offset, limit int
			_, _ = fmt.Sscan(r.URL.Query().Get("offset"), &offset)
			_, _ = fmt.Sscan(r.URL.Query().Get("limit"), &limit)
			page := sorted[min(offset, len(sorted)):min(offset+limit, len(sorted))]
			_ = json.NewEncoder(w).Encode(map[string]any{"total": len(all), "totals": map[string]any{}, "outcomes": []any{}, "queues": append([]queueFigures{}, page...)})
		})
		fakes = append(fakes, f)
	}
	e := setup(t, nil, fakes...)
	for order, mayPrecede := range orders {
		var seen []queueFigures
		for offset := 0; ; {
			limit := 100 + random.IntN(100)
			var page struct {
				Total  int
				Queues []queueFigures
			}
			got := e.want(200, "", "GET", fmt.Sprintf("/stats/queues?order=%s&limit=%d&offset=%d", order, limit, offset), "")
			if err := json.Unmarshal([]byte(got.body), &page); err != nil || page.Total != total {
				t.Fatalf("got %.300s, %v", got.body, err)
			}
			if len(page.Queues) == 0 {
				break
			}
			seen, offset = append(seen, page.Queues...), offset+limit
		}
		names := map[string]bool{}
		for i, one := range seen {
			names[one.Queue] = true
			if i > 0 && !mayPrecede(seen[i-1], one) {
				t.Fatalf("seed %d, order %s: %v stands before %v", seed, order, seen[i-1], one)
			}
		}
		if len(names) != total || len(seen) != total {
			t.Errorf("seed %d, order %s: %d queues, %d different ones, want %d", seed, order, len(seen), len(names), total)
		}
	}
	e.wantProblem(notOverCells, -1, "GET", "/stats/queues?offset=2000", "")
}

func TestPercentilesOfAddedBinsAreThoseOfAllDurations(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(rand.Uint64(), 4))
	for range 50 {
		var all []float64
		sets := make([]map[int64]int64, 3)
		for i := range sets {
			sets[i] = map[int64]int64{}
			for range 1 + random.IntN(200) {
				took := math.Exp(random.Float64()*12 - 1) // in milliseconds
				all = append(all, took)
				number := int64(0)
				if took > 1 {
					number = int64(math.Ceil(math.Log(took) / math.Log(1.1)))
				}
				sets[i][number]++
			}
		}
		var added []byte
		for _, set := range sets {
			bins := []bin{}
			for number, n := range set {
				bins = append(bins, bin{number, n})
			}
			text, err := json.Marshal(bins)
			if err != nil {
				t.Fatal(err)
			}
			if added == nil {
				added = []byte("[]")
			}
			added = joinBins(added, text)
		}
		slices.Sort(all)
		for _, share := range []float64{0.5, 0.95} {
			want := all[int(math.Ceil(float64(len(all))*share))-1]
			got, ok := percentile(binsIn(added), share)
			if !ok || math.Abs(got-want) > max(1, want*0.05) {
				t.Errorf("percentile %v of %d durations is %v, want about %v", share, len(all), got, want)
			}
		}
	}
	if _, ok := percentile(nil, 0.5); ok {
		t.Error("there is a percentile of nothing")
	}
}

func TestCellsThatHaveAPartOfAQueueAreAskedForIt(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2), newFakeCell(t, 3)}
	for _, f := range fakes {
		for _, path := range []string{"/events", "/history"} {
			part := &fakeListing{list: "events"}
			f.mux.HandleFunc("GET "+path, part.serve)
		}
		f.told("/history/stats", `{"buckets":[]}`)
		f.told("/queues/{name}/stats", `{"totals":{},"buckets":[]}`)
		f.told("/queues/{name}", `{}`)
	}
	past := func(numbers ...int) *cellSet {
		set := append(cellSet{}, numbers...)
		return &set
	}
	fakes[0].put(placement{Queue: "moved", Cells: cellSet{1}, Former: []former{{Cells: cellSet{2}}}, Past: past(2, 3)})
	fakes[0].put(placement{Queue: "drained", Cells: cellSet{1}, Past: past(3)})
	fakes[0].put(placement{Queue: "still", Cells: cellSet{1}, Past: past()})
	fakes[0].put(placement{Queue: "all", Past: past()})
	fakes[0].put(placement{Queue: "gone", Cells: cellSet{1}, Past: past(9)})
	e := setup(t, nil, fakes...)
	for path, want := range map[string][]int{
		"/events?queue=moved": {1, 2}, "/history?queue=moved": {1, 2, 3}, "/history/stats?queue=moved": {1, 2, 3}, "/queues/moved/stats": {1, 2, 3}, "/queues/moved": {1, 2},
		"/events?queue=drained": {1}, "/history?queue=drained": {1, 3}, "/queues/drained": {1}, "/history?queue=still": {1}, "/events?queue=all": {0, 1, 2, 3},
		"/events?queue=nowhere": {0}, "/history?queue=nowhere": {0, 1, 2, 3}, "/queues/queued.forward.1": {0, 1, 2, 3}, "/history?queue=gone": {1},
		"/events": {0, 1, 2, 3}, "/history?format=ndjson": {0, 1, 2, 3}, "/history/stats?format=csv": {0, 1, 2, 3},
		"/history?id=" + url.QueryEscape(idOf(2)): {2},
	} {
		before := make([]int, len(fakes))
		for i, f := range fakes {
			before[i] = len(f.calls())
		}
		e.want(200, "", "GET", path, "")
		var asked []int
		for i, f := range fakes {
			if len(f.calls()) > before[i] {
				asked = append(asked, i)
			}
		}
		if !slices.Equal(asked, want) {
			t.Errorf("%s: the cells %v were asked, want %v", path, asked, want)
		}
	}
}
