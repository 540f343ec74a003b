package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A cellsServer answers as a gateway does in front of the cells 0, 1 and 2, all of which have a part of everything.
type cellsServer struct {
	mu      sync.Mutex
	away    int // the cell that does not answer; negative: all do
	called  []string
	answers map[string]func(cell int, query url.Values, body map[string]any) (status int, answer string) // by method and path
}

var belowCell = regexp.MustCompile(`^/cells/([0-9])(/.*)$`)

func (s *cellsServer) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	found := belowCell.FindStringSubmatch(r.URL.Path)
	if found == nil {
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"code":"several_cells","cells":[0,1,2]}`)
		return
	}
	cell := int(found[1][0] - '0')
	var body map[string]any
	_ = json.NewDecoder(r.Body).Decode(&body)
	s.mu.Lock()
	s.called = append(s.called, fmt.Sprintf("%d %s %s limit=%v", cell, r.Method, found[2], body["limit"]))
	away := s.away
	s.mu.Unlock()
	if cell == away {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintf(w, `{"code":"cell_unavailable","cell":%d}`, cell)
		return
	}
	answer := s.answers[r.Method+" "+found[2]]
	if answer == nil {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	status, text := answer(cell, r.URL.Query(), body)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// of returns a function that answers with a text for each cell.
func of(texts ...string) func(int, url.Values, map[string]any) (int, string) {
	return func(cell int, _ url.Values, _ map[string]any) (int, string) { return http.StatusOK, texts[cell] }
}

// lists returns a function that answers with pages of one element of lists.
func lists(name string, all ...[]string) func(int, url.Values, map[string]any) (int, string) {
	return func(cell int, query url.Values, _ map[string]any) (int, string) {
		at := 0
		_, _ = fmt.Sscan(query.Get("cursor"), &at)
		if at >= len(all[cell]) {
			return http.StatusOK, fmt.Sprintf(`{%q:[],"next":null}`, name)
		}
		next := "null"
		if at+1 < len(all[cell]) {
			next = fmt.Sprintf(`"%d"`, at+1)
		}
		return http.StatusOK, fmt.Sprintf(`{%q:[%s],"next":%s}`, name, all[cell][at], next)
	}
}

func TestListingsOfCellsAreMergedInTheirOrder(t *testing.T) {
	t.Parallel()
	event := func(id int, second int) string {
		return fmt.Sprintf(`{"id":%d,"vt":"2026-01-01T00:00:%02dZ","event_ts":"2026-01-01T00:00:%02dZ"}`, id, second, second)
	}
	s := &cellsServer{away: -1, answers: map[string]func(int, url.Values, map[string]any) (int, string){
		"GET /events":  lists("events", []string{event(1, 1), event(2, 5)}, []string{event(11, 1), event(12, 2), event(13, 9)}, nil),
		"GET /history": lists("events", []string{event(2, 5), event(1, 1)}, []string{event(13, 9), event(12, 2)}, []string{event(21, 5)}),
		"GET /queues": lists("queues", []string{`{"queue":"a","ready":1,"oldest_ready_age":"1s","dead_letters_of":["x"]}`, `{"queue":"c"}`},
			[]string{`{"queue":"a","ready":2,"paused":true,"oldest_ready_age":"3s","dead_letters_of":["w","x"]}`, `{"queue":"b"}`}, []string{`{"queue":"a","leased":4}`}),
		"GET /queues/q/groups": lists("groups", []string{`{"group":"g","waiting":1}`, `{"group":"i","waiting":9}`}, []string{`{"group":"g","waiting":4,"version":7,"paused":true}`}, []string{`{"group":"h","waiting":6}`}),
		"GET /redrives":        lists("redrives", []string{`{"id":1,"created_at":"2026-01-01T00:00:01Z"}`}, []string{`{"id":11,"created_at":"2026-01-01T00:00:03Z"}`}, []string{`{"id":21,"created_at":"2026-01-01T00:00:02Z"}`}),
	}}
	c := answering(t, Config{}, s.serve)
	ctx := soon(t)
	ids := func(events []Event, err error) string {
		if err != nil {
			t.Error(err)
		}
		var found []int64
		for _, e := range events {
			found = append(found, e.ID)
		}
		return fmt.Sprint(found)
	}
	if got := ids(collect(c.ListEvents(ctx, EventFilter{}))); got != "[1 11 12 2 13]" {
		t.Errorf("events: %s", got)
	}
	if got := ids(collect(c.ListHistory(ctx, HistoryFilter{}))); got != "[13 21 2 12 1]" {
		t.Errorf("history: %s", got)
	}
	queues, err := collect(c.ListQueues(ctx))
	if err != nil || len(queues) != 3 || queues[0].Ready != 3 || queues[0].Leased != 4 || !queues[0].Paused || queues[0].OldestReadyAge != 3*time.Second || !slices.Equal(queues[0].DeadLettersOf, []string{"w", "x"}) ||
		queues[1].Queue != "b" || queues[2].Queue != "c" {
		t.Errorf("queues: %+v, %v", queues, err)
	}
	groups, err := collect(c.ListGroups(ctx, "q", GroupFilter{}))
	if err != nil || len(groups) != 3 || groups[0].Waiting != 5 || !groups[0].Paused || groups[0].Version != 7 || groups[2].Group != "i" {
		t.Errorf("groups: %+v, %v", groups, err)
	}
	longest, err := collect(c.ListGroups(ctx, "q", GroupFilter{Sort: "waiting", PageSize: 2}))
	if err != nil || len(longest) != 2 || longest[0].Group != "i" || longest[1].Group != "h" {
		t.Errorf("the longest groups: %+v, %v", longest, err)
	}
	redrives, err := collect(c.ListRedrives(ctx, RedriveListing{}))
	if err != nil || len(redrives) != 3 || redrives[0].ID != 11 || redrives[2].ID != 1 {
		t.Errorf("redrives: %+v, %v", redrives, err)
	}
	if one, err := collect(c.Cell(1).ListEvents(ctx, EventFilter{})); ids(one, err) != "[11 12 13]" {
		t.Errorf("of one cell: %+v", one)
	}

	s.mu.Lock()
	s.away = 1
	s.mu.Unlock()
	began := time.Now()
	var missing *MissingCellsError
	events, err := collect(c.ListEvents(ctx, EventFilter{}))
	if !errors.As(err, &missing) || !slices.Equal(missing.Cells, []int{1}) || len(events) != 2 {
		t.Errorf("without a cell: %+v, %v", events, err)
	}
	if time.Since(began) > DefaultRetryFor/2 {
		t.Error("the others waited for a cell that is away")
	}
	for _, err := range c.ListEvents(ctx, EventFilter{}) { // who reads only the first elements has to know, too
		if !errors.As(err, &missing) {
			t.Errorf("the listing begins with %v", err)
		}
		break
	}
}

func TestListingThatACellRefusesIsRefused(t *testing.T) {
	t.Parallel()
	s := &cellsServer{away: -1, answers: map[string]func(int, url.Values, map[string]any) (int, string){
		"GET /events": func(cell int, _ url.Values, _ map[string]any) (int, string) {
			if cell == 2 {
				return http.StatusForbidden, `{"code":"forbidden"}`
			}
			return http.StatusOK, `{"events":[{"id":1}],"next":null}`
		},
		"GET /history": func(cell int, _ url.Values, _ map[string]any) (int, string) {
			if cell > 0 {
				return http.StatusNotFound, `{"code":"queue_not_declared"}`
			}
			return http.StatusOK, `{"events":[{"id":1}],"next":null}`
		},
		"GET /queues/q/groups": func(int, url.Values, map[string]any) (int, string) {
			return http.StatusNotFound, `{"code":"queue_not_declared"}`
		},
	}}
	c := answering(t, Config{}, s.serve)
	if events, err := collect(c.ListEvents(soon(t), EventFilter{})); !errors.Is(err, ErrForbidden) || len(events) > 0 {
		t.Errorf("%+v, %v", events, err)
	}
	if events, err := collect(c.ListHistory(soon(t), HistoryFilter{Queue: "q"})); err != nil || len(events) != 1 {
		t.Errorf("a queue that one cell knows: %+v, %v", events, err)
	}
	if _, err := collect(c.ListGroups(soon(t), "q", GroupFilter{})); !errors.Is(err, ErrQueueNotDeclared) {
		t.Errorf("a queue that none knows: %v", err)
	}
}

func TestStatisticsOfCellsAreAddedUp(t *testing.T) {
	t.Parallel()
	s := &cellsServer{away: -1, answers: map[string]func(int, url.Values, map[string]any) (int, string){
		"GET /history/stats": of(`{"buckets":[{"start":"2026-01-01T00:00:00Z","done":1},{"start":"2026-01-01T01:00:00Z","done":2}]}`, `{"buckets":[{"start":"2026-01-01T01:00:00Z","done":3,"failed":4}]}`, `{"buckets":[]}`),
		"GET /history/errors": of(`{"errors":[{"cause":"b","count":3,"queues":["x"],"types":[],"last_at":"2026-01-01T00:00:01Z"}],"causes":9,"looked_at":3,"complete":true}`,
			`{"errors":[{"cause":"a","count":4,"queues":["x"],"types":[]},{"cause":"b","count":2,"queues":["w"],"types":[],"last_at":"2026-01-01T00:00:02Z","example":{"id":7}}],"causes":2,"looked_at":6,"complete":false}`, `{"errors":[],"complete":true}`),
		"GET /stats/executions": of(`{"executions":[{"type":"t","cycles":1,"total_ms":10,"fastest_ms":10,"longest_ms":10}]}`, `{"executions":[{"type":"s","cycles":1},{"type":"t","cycles":3,"total_ms":2,"fastest_ms":0.5,"longest_ms":1}]}`, `{"executions":[]}`),
		"GET /stats/processes":  of(`{"processes":[{"id":"x"}]}`, `{"processes":[{"id":"y"}]}`, `{"processes":[{"id":"z"}]}`),
		"GET /stats/holders":    of(`{"holders":[{"kind":"lease"}],"complete":true}`, `{"holders":[],"complete":true}`, `{"holders":[{"kind":"exhausted"}],"complete":true}`),
		"GET /stats/workers": of(`{"workers":[{"worker":"w","leases":1,"ended":1,"average_ms":10,"queues":["a"]}],"total":4,"complete":true}`, `{"workers":[{"worker":"v","leases":2},{"worker":"w","leases":3,"ended":3,"average_ms":2,"queues":["b"]}],"total":2,"complete":true}`,
			`{"workers":[],"total":0,"complete":true}`),
		"GET /queues/q": of(`{"queue":"q","version":3,"ready":1,"estimated":false}`, `{"queue":"q","ready":2,"leased":1,"estimated":true}`, `{"queue":"q"}`),
		"GET /queues/q/stats": of(`{"queue":"q","bucket":"1m","complete":true,"totals":{"done":1,"wait_p95_ms":4},"buckets":[{"start":"2026-01-01T00:00:00Z","ready":1,"max_ready":2,"complete":true}]}`,
			`{"queue":"q","bucket":"1m","complete":true,"totals":{"done":2,"wait_p95_ms":9},"buckets":[{"start":"2026-01-01T00:00:00Z","ready":3,"max_ready":4,"complete":true}]}`, `{"queue":"q","bucket":"1m","complete":true,"totals":{"done":0,"wait_p95_ms":null},"buckets":[]}`),
		"GET /stats/queues": func(cell int, query url.Values, _ map[string]any) (int, string) {
			if query.Get("limit") != "200" || query.Get("offset") != "" {
				return http.StatusTeapot, ""
			}
			return of(`{"from":"2026-01-01T00:00:00Z","bucket":"5m","complete":true,"total":2,"totals":{"failed":3},"outcomes":[{"start":"2026-01-01T00:00:00Z","failed":3}],"queues":[{"queue":"b","failed":2,"ready_series":[1,null],"failed_series":[2,0],"last_failed_at":"2026-01-01T00:03:00Z","dead_letters_of":["x"]},{"queue":"a","failed":1}]}`,
				`{"from":"2026-01-01T00:00:00Z","bucket":"5m","complete":true,"total":2,"totals":{"failed":4},"outcomes":[{"start":"2026-01-01T00:00:00Z","failed":4}],"queues":[{"queue":"c","failed":0},{"queue":"b","failed":4,"ready_series":[2,3],"failed_series":[1,3],"last_failed_at":"2026-01-01T00:07:00Z","dead_letters_of":["w"],"wait_p95_ms":8}]}`,
				`{"from":"2026-01-01T00:00:00Z","bucket":"5m","complete":true,"total":0,"totals":{},"outcomes":[],"queues":[]}`)(cell, nil, nil)
		},
	}}
	c := answering(t, Config{}, s.serve)
	ctx := soon(t)
	check := func(what string, isRight bool, got any, err error) {
		t.Helper()
		if err != nil || !isRight {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	stats, err := c.HistoryStats(ctx, HistoryStatsParams{})
	check("history", len(stats) == 2 && stats[0].Done == 1 && stats[1].Done == 5 && stats[1].Failed == 4, stats, err)
	causes, err := c.HistoryErrors(ctx, CauseFilter{})
	check("causes", len(causes.Errors) == 2 && causes.Errors[0].Cause == "b" && causes.Errors[0].Count == 5 && causes.Errors[0].Example.ID == 7 && strings.Join(causes.Errors[0].Queues, "") == "wx" &&
		causes.Causes == 10 && causes.LookedAt == 9 && !causes.Complete, causes, err)
	executions, err := c.ListExecutions(ctx, ExecutionFilter{})
	check("executions", len(executions) == 2 && executions[1].Cycles == 4 && executions[1].AverageMS == 3 && executions[1].FastestMS == 0.5 && executions[1].LongestMS == 10, executions, err)
	processes, err := c.ListProcesses(ctx)
	check("processes", len(processes) == 3 && *processes[0].Cell == 0 && *processes[2].Cell == 2, processes, err)
	holders, err := c.ListHolders(ctx)
	check("holders", len(holders.Holders) == 2 && holders.Complete && *holders.Holders[1].Cell == 2, holders, err)
	workers, err := c.ListWorkers(ctx, WorkersParams{})
	check("workers", len(workers.Workers) == 2 && workers.Total == 5 && workers.Workers[0].Leases == 4 && *workers.Workers[0].AverageMS == 4 && strings.Join(workers.Workers[0].Queues, "") == "ab", workers, err)
	queue, err := c.GetQueue(ctx, "q")
	check("queue", queue.Version == 3 && queue.Ready == 3 && queue.Leased == 1 && queue.Estimated && queue.UnavailableCells == nil, queue, err)
	series, err := c.QueueStats(ctx, "q", SeriesParams{})
	check("series", series.Totals.Done == 3 && *series.Totals.WaitP95MS == 9 && len(series.Buckets) == 1 && *series.Buckets[0].Ready == 4 && *series.Buckets[0].MaxReady == 6 && series.Complete, series, err)
	overview, err := c.QueuesOverview(ctx, OverviewParams{Limit: 1, Offset: 1})
	check("overview", len(overview.Queues) == 1 && overview.Queues[0].Queue == "a" && overview.Total == 3 && overview.Totals.Failed == 7 && overview.Outcomes[0].Failed == 7, overview, err)
	overview, err = c.QueuesOverview(ctx, OverviewParams{})
	check("overview", len(overview.Queues) == 3 && overview.Queues[0].Failed == 6 && *overview.Queues[0].WaitP95MS == 8 && *overview.Queues[0].ReadySeries[0] == 3 && *overview.Queues[0].ReadySeries[1] == 3 &&
		slices.Equal(overview.Queues[0].FailedSeries, []int{3, 3}) && overview.Queues[0].LastFailedAt.Minute() == 7 && slices.Equal(overview.Queues[0].DeadLettersOf, []string{"w", "x"}), overview, err)

	s.mu.Lock()
	s.away = 0
	s.mu.Unlock()
	var missing *MissingCellsError
	if _, err := c.ListProcesses(ctx); !errors.As(err, &missing) || !slices.Equal(missing.Cells, []int{0}) {
		t.Errorf("processes without a cell: %v", err)
	}
	series, err = c.QueueStats(ctx, "q", SeriesParams{})
	check("series without a cell", slices.Equal(series.UnavailableCells, []int{0}) && !series.Complete && series.Totals.Done == 2, series, err)
}

func TestCallsOfAllCellsAreMadeOneByOne(t *testing.T) {
	t.Parallel()
	s := &cellsServer{away: -1, answers: map[string]func(int, url.Values, map[string]any) (int, string){
		"POST /queues/q/purge": of(`{"purged":1}`, `{"purged":2}`, `{"purged":4}`),
		"POST /queues/q/run":   of(`{"run":2}`, `{"run":2}`, `{"run":2}`),
		"POST /queues/q/move": func(cell int, _ url.Values, _ map[string]any) (int, string) {
			if cell == 1 {
				return http.StatusNotFound, `{"code":"queue_not_declared"}`
			}
			return http.StatusOK, `{"moved":3}`
		},
		"POST /sweep":           of(`{"expired":1}`, `{"expired":0}`, `{"expired":1}`),
		"POST /history/requeue": of(`{"matched":600,"requeued":600}`, `{"matched":400,"requeued":400}`, `{"matched":1,"requeued":1}`),
		"POST /redrives": func(cell int, _ url.Values, body map[string]any) (int, string) {
			if body["dry_run"] == true {
				return http.StatusOK, fmt.Sprintf(`{"matched":%d,"estimate":%v}`, cell+1, cell == 2)
			}
			return http.StatusAccepted, fmt.Sprintf(`{"id":%d,"rate":%v,"state":"running"}`, 10*cell+1, body["rate"])
		},
	}}
	c := answering(t, Config{RetryFor: -1}, s.serve)
	ctx := soon(t)
	came := func() (all []string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		all, s.called = s.called, nil
		return all
	}
	if n, err := c.PurgeQueue(ctx, "q"); n != 7 || err != nil || len(came()) != 3 {
		t.Errorf("purged %d, %v", n, err)
	}
	if n, err := c.RunQueue(ctx, "q", RunParams{Limit: 3}); n != 4 || err != nil { // 2 and, of the last one that is left, as many as the cell says
		t.Errorf("run %d, %v", n, err)
	}
	if got := came(); !slices.Equal(got, []string{"0 POST /queues/q/run limit=3", "1 POST /queues/q/run limit=1"}) {
		t.Errorf("came %q", got)
	}
	if n, err := c.MoveEvents(ctx, "q", MoveParams{To: "r"}); n != 6 || err != nil {
		t.Errorf("moved %d, %v", n, err)
	}
	if n, err := c.Sweep(ctx, SweepParams{}); n != 2 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	came()
	if r, err := c.RequeueMatching(ctx, RequeueParams{HistoryFilter: HistoryFilter{Outcome: OutcomeFailed}}); r.Requeued != 1000 || err != nil {
		t.Errorf("requeued %+v, %v", r, err)
	}
	if got := came(); !slices.Equal(got, []string{"0 POST /history/requeue limit=1000", "1 POST /history/requeue limit=400"}) {
		t.Errorf("came %q", got)
	}
	if n, isEstimate, err := c.CountRedrive(ctx, NewRedrive{Queue: "q"}); n != 6 || !isEstimate || err != nil {
		t.Errorf("counted %d, %v, %v", n, isEstimate, err)
	}
	if r, err := c.CreateRedrive(ctx, NewRedrive{Queue: "q", Rate: 6}); r.ID != 1 || r.Rate != 2 || !slices.Equal(r.Others, []int64{11, 21}) || err != nil {
		t.Errorf("created %+v, %v", r, err)
	}
	s.mu.Lock()
	s.away = 1
	s.mu.Unlock()
	var away *Error
	if n, err := c.PurgeQueue(ctx, "q"); n != 1 || !errors.As(err, &away) || *away.Cell != 1 || !strings.Contains(err.Error(), "cell 1: ") || !strings.Contains(err.Error(), "(1 on the cells before)") {
		t.Errorf("without a cell purged %d, %v", n, err)
	}
}

func TestExportsOfCellsAreMerged(t *testing.T) {
	t.Parallel()
	csv := map[int]string{
		0: "id,queue,event_ts,event\r\n3,q,2026-01-01T00:00:05Z,\"a \"\"b\"\",\r\nc\"\r\n1,q,2026-01-01T00:00:01Z,\r\n#end,2,,\r\n",
		1: "id,queue,event_ts,event\r\n11,q,2026-01-01T00:00:03.5Z,x\r\n#end,1,,\r\n",
		2: "id,queue,event_ts,event\r\n#end,0,,\r\n",
	}
	lines := map[int]string{
		0: "{\"id\":3,\"event_ts\":\"2026-01-01T00:00:05Z\"}\n{\"id\":1,\"event_ts\":\"2026-01-01T00:00:01Z\"}\n{\"end\":{\"rows\":2}}\n",
		1: "{\"id\":11,\"event_ts\":\"2026-01-01T00:00:03.5Z\"}\n{\"end\":{\"rows\":1}}\n",
		2: "{\"end\":{\"rows\":0}}\n",
	}
	s := &cellsServer{away: -1, answers: map[string]func(int, url.Values, map[string]any) (int, string){
		"GET /history": func(cell int, query url.Values, _ map[string]any) (int, string) {
			if query.Get("format") == "csv" {
				return http.StatusOK, csv[cell]
			}
			return http.StatusOK, lines[cell]
		},
		"GET /history/stats": func(_ int, query url.Values, _ map[string]any) (int, string) {
			if query.Get("format") != "" {
				return http.StatusTeapot, ""
			}
			return http.StatusOK, `{"buckets":[{"start":"2026-01-01T00:00:00Z","done":1}]}`
		},
	}}
	c := answering(t, Config{RetryFor: -1}, s.serve)
	export := func(p ExportParams) (string, Exported, error) {
		var b strings.Builder
		exported, err := c.ExportHistory(soon(t), &b, HistoryFilter{}, p)
		return b.String(), exported, err
	}
	got, exported, err := export(ExportParams{Format: ExportCSV})
	if want := "id,queue,event_ts,event\r\n3,q,2026-01-01T00:00:05Z,\"a \"\"b\"\",\r\nc\"\r\n11,q,2026-01-01T00:00:03.5Z,x\r\n1,q,2026-01-01T00:00:01Z,\r\n#end,3,,\r\n"; err != nil || got != want || exported.Rows != 3 || exported.More {
		t.Errorf("CSV: %q %+v, %v", got, exported, err)
	}
	got, exported, err = export(ExportParams{})
	if want := strings.Join([]string{strings.Split(lines[0], "\n")[0], strings.Split(lines[1], "\n")[0], strings.Split(lines[0], "\n")[1], `{"end":{"rows":3}}`, ""}, "\n"); err != nil || got != want || exported.Rows != 3 {
		t.Errorf("lines: %q %+v, %v", got, exported, err)
	}
	if got, exported, err = export(ExportParams{Limit: 2}); err != nil || exported.Rows != 2 || !exported.More || strings.Count(got, "\n") != 3 {
		t.Errorf("with a limit: %q %+v, %v", got, exported, err)
	}
	if _, _, err := export(ExportParams{Cursor: "x"}); err == nil {
		t.Error("an export went on at a cursor")
	}
	var b strings.Builder
	if exported, err := c.ExportHistoryStats(soon(t), &b, HistoryStatsParams{}, ExportCSV); err != nil || exported.Rows != 1 || b.String() != "start,done,failed,expired,cancelled\r\n2026-01-01T00:00:00Z,3,0,0,0\r\n#end,1,,,\r\n" {
		t.Errorf("statistics: %q %+v, %v", b.String(), exported, err)
	}
	lines[1] = strings.Split(lines[1], "{\"end")[0]
	if got, _, err := export(ExportParams{}); !errors.Is(err, ErrExportCutShort) || strings.Contains(got, `"end"`) {
		t.Errorf("where one is cut short: %q, %v", got, err)
	}
	s.mu.Lock()
	s.away = 2
	s.mu.Unlock()
	if got, _, err := export(ExportParams{}); !errors.Is(err, ErrUnavailable) || got != "" {
		t.Errorf("without a cell: %q, %v", got, err)
	}
}
