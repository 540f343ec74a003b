package gateway

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/api"
)

// The routes of a server, as its source has them.
var (
	addsRoute  = regexp.MustCompile(`\br\.(Get|Post|Put|Patch|Delete)\("([^"]+)"`)
	addsMethod = regexp.MustCompile(`\br\.add\(http\.Method(\w+), "([^"]+)"`)
)

func TestTableHasEveryRouteOfTheServerAndOfTheContract(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../http/routes.go")
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, pattern := range []*regexp.Regexp{addsRoute, addsMethod} {
		for _, found := range pattern.FindAllStringSubmatch(string(source), -1) {
			served[strings.ToUpper(found[1])+" "+found[2]] = true
		}
	}
	documented := map[string]bool{}
	path := ""
	inPaths := false
	for line := range strings.Lines(string(api.OpenAPI)) {
		line = strings.TrimRight(line, "\n")
		switch name := strings.TrimSuffix(strings.TrimSpace(line), ":"); {
		case !strings.HasPrefix(line, " ") && line != "":
			inPaths = line == "paths:"
		case !inPaths:
		case strings.HasPrefix(line, "  /"):
			path = name
		case strings.HasPrefix(line, "    ") && !strings.HasPrefix(line, "     ") && strings.HasSuffix(line, ":") && name != "parameters":
			documented[strings.ToUpper(name)+" "+path] = true
		}
	}
	known := map[string]bool{}
	for _, r := range table() {
		if known[r.method+" "+r.pattern] {
			t.Errorf("%s %s is there twice", r.method, r.pattern)
		}
		known[r.method+" "+r.pattern] = true
		if (r.own == nil) == (r.choose == nil) {
			t.Errorf("%s %s goes nowhere, or to two places", r.method, r.pattern)
		}
	}
	if len(known) < 100 {
		t.Errorf("the table has %d routes", len(known))
	}
	if diff := cmp.Diff(sortedKeys(served), sortedKeys(known)); diff != "" {
		t.Errorf("(-server +table)\n%s", diff)
	}
	for route := range documented {
		if !known[route] {
			t.Errorf("the contract has %s, and the table does not", route)
		}
	}
	if len(documented) < 100 {
		t.Errorf("the contract has %d operations", len(documented))
	}
}

// idOf returns an id of a cell.
func idOf(number int64) string { return itoa(number<<idBits + 1042) }

func TestCallsGoToTheCellOfTheirIDQueueOrToHome(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	for _, f := range fakes {
		f.mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	}
	fakes[0].put(placement{Queue: "one", Cells: []int{1}})
	fakes[0].put(placement{Queue: "two", Cells: []int{2}})
	fakes[0].put(placement{Queue: "beside", Cells: []int{2}})
	fakes[0].put(placement{Queue: "default", Cells: []int{1}})
	fakes[0].put(placement{Queue: "moving", Cells: []int{2}, Former: []former{{Cells: cellSet{1}}}})
	fakes[0].put(placement{Queue: "everywhere"})
	fakes[0].put(placement{Queue: "wide", Cells: []int{1, 2}})
	fakes[0].put(placement{Queue: "gone", Cells: []int{9}})
	e := setup(t, nil, fakes...)
	const several = 409
	e.want(batchNotAtomic.status, "", "POST", "/events/batch", `{"events":[{"queue":"one"},{"queue":"two"}]}`) // from here on the caller is known
	for _, test := range []struct {
		method, path, body string
		want               int // the cell, or a status
	}{
		{"GET", "/events/" + idOf(0), "", 0},
		{"GET", "/events/" + idOf(1) + "?wait=1s", "", 1},
		{"DELETE", "/events/" + idOf(2), "", 2},
		{"POST", "/events/" + idOf(2) + "/nack", "{}", 2},
		{"POST", "/history/" + idOf(1) + "/requeue", "", 1},
		{"GET", "/schedules/" + idOf(2) + "/occurrences", "", 0},
		{"POST", "/redrives/" + idOf(1) + "/pause", "", 1},
		{"HEAD", "/events/" + idOf(1), "", 1},
		{"GET", "/events/" + idOf(9), "", 503}, // cell 9 has queues, and is not known here
		{"GET", "/events/" + idOf(8), "", 0},   // there is no cell 8: home says so
		{"GET", "/events/99999999999999999999", "", 0},
		{"GET", "/events/x", "", 0},

		{"POST", "/events", "{}", 1},
		{"POST", "/events?queue=two", "{}", 2},
		{"POST", "/events?queue=bad%20name", "{}", 0},
		{"POST", "/events?queue=queued.own", "{}", 0},
		{"POST", "/events?queue=gone", "{}", 503},
		{"POST", "/cloudevents?queue=two", "[]", 2},
		{"POST", "/cloudevents?topic=a.b", "[]", 0},
		{"POST", "/claim", "", 1},
		{"POST", "/claim", ` {"limit":3,"queue":"two"} `, 2},
		{"POST", "/claim", `{"queue":7}`, 0},
		{"POST", "/claim", `{"queue":"two","queue":"one"}`, 0},
		{"POST", "/claim", `{`, 0},
		{"GET", "/queues/two", "", 2},
		{"PUT", "/queues/one", "{}", 0},
		{"POST", "/queues/two/push/test", "{}", 2},
		{"GET", "/queues/nowhere", "", 0},
		{"GET", "/queues/two/stats", "", 2},
		{"POST", "/queues/two/move", `{"to":"beside"}`, 2},
		{"POST", "/queues/two/move", `{"to":"one"}`, 2},
		{"POST", "/schedules", `{"queue":"two","event":{}}`, 0},
		{"GET", "/schedules?queue=two", "", 0},
		{"GET", "/owners/ada", "", 0},
		{"POST", "/schedules", `{"topic":"a","event":{}}`, 0},
		{"POST", "/sweep", `{"queue":"two"}`, 2},

		{"GET", "/events?queue=one", "", 1},
		{"GET", "/history?queue=one", "", 1},
		{"GET", "/history?id=" + idOf(2), "", 2},
		{"GET", "/history/errors?queue=two", "", 2},
		{"POST", "/history/requeue", `{"queue":"two"}`, 2},
		{"POST", "/history/requeue", `{"id":` + idOf(1) + `}`, 1},
		{"POST", "/redrives", `{"filter":{"queue":"two"}}`, 2},
		{"POST", "/redrives", `{"filter":{"queue":"two"},"to":"one"}`, 2},
		{"POST", "/events/batch", `{"events":[]}`, 0},
		{"POST", "/events/batch", `{"events":[{"queue":"two"},{"queue":"beside"}]}`, 2},
		{"POST", "/ack", `{"events":[{"id":` + idOf(2) + `},{"id":` + idOf(2) + `}]}`, 2},
		{"POST", "/extend", `{"events":[{"id":` + idOf(2) + `},{"id":` + idOf(2) + `}]}`, 2},
		{"POST", "/release", `{"events":[]}`, 0},

		{"GET", "/events", "", several},
		{"GET", "/events?queue=wide", "", several},
		{"GET", "/events?queue=moving", "", several},
		{"GET", "/events?queue=queued.forward.1", "", 0},
		{"GET", "/events?queue=bad%20name", "", 0},
		{"GET", "/history", "", several},
		{"GET", "/history?format=csv", "", several},
		{"GET", "/history?queue=everywhere", "", several},
		{"GET", "/history/stats?queue=wide", "", several},
		{"GET", "/history/errors", "", several},
		{"GET", "/queues", "", several},
		{"GET", "/queues/wide", "", several},
		{"GET", "/queues/wide/stats", "", several},
		{"GET", "/queues/wide/groups", "", several},
		{"POST", "/queues/wide/purge", "", several},
		{"POST", "/queues/wide/run", "{}", several},
		{"POST", "/queues/wide/move", `{"to":"one"}`, several},
		{"POST", "/queues/wide/push/enable", "", several},
		{"POST", "/history/requeue", `{"outcome":"failed"}`, several},
		{"POST", "/redrives", `{"queue":"wide"}`, several},
		{"GET", "/redrives", "", several},
		{"POST", "/sweep", "{}", several},
		{"GET", "/stats/queues", "", several},
		{"GET", "/stats/executions", "", several},
		{"GET", "/stats/processes", "", several},
		{"GET", "/stats/workers", "", several},
		{"GET", "/stats/holders", "", several},

		{"GET", "/cells/1/events", "", 1},
		{"GET", "/cells/2/queues/wide?x=1", "", 2},
		{"POST", "/cells/2/claim", `{"queue":"one"}`, 2},
		{"POST", "/cells/0/queues/one/purge", "", 0},
		{"GET", "/cells/2/metrics", "", 2},
		{"GET", "/cells/1/cells/2/events", "", 1}, // which has no such path
		{"GET", "/cells/1/ui/", "", 1},
		{"GET", "/ui/queues", "", 0},
		{"GET", "/cells/9/events", "", 404},
		{"GET", "/cells/x/events", "", 404},
		{"GET", "/cells/01/events", "", 404},

		{"POST", "/topics/a.b", "{}", 0},
		{"GET", "/log?wait=1s", "", 0},
		{"POST", "/in/shop", "{}", 0},
		{"OPTIONS", "/in/shop", "", 0},
		{"GET", "/keys", "", 0},
		{"GET", "/docs", "", 0},
		{"BREW", "/events", "", 0},
		{"GET", "/no/such/path", "", 0},
	} {
		before := make([]int, len(fakes))
		for i, f := range fakes {
			before[i] = len(f.calls())
		}
		got := e.call(test.method, test.path, test.body)
		if test.want >= 400 {
			if got.status != test.want || test.want == several && !strings.Contains(got.body, `"code":"several_cells"`) || test.want == 404 && !strings.Contains(got.body, `"code":"cell_not_found"`) {
				t.Errorf("%s %s %s answered %d %s, want %d", test.method, test.path, test.body, got.status, got.body, test.want)
			}
			continue
		}
		for i, f := range fakes {
			if asked := len(f.calls()) - before[i]; asked != map[bool]int{true: 1}[i == test.want] || got.status != 200 {
				t.Errorf("%s %s %s: cell %d was asked %d times, want cell %d once; answered %d %s", test.method, test.path, test.body, i, asked, test.want, got.status, got.body)
			}
		}
	}
}

func TestOneCellGetsEverythingAndNothingIsPlaced(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	home.mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	e := setup(t, nil, home)
	want := 0
	for _, r := range table() {
		if r.own != nil || strings.Contains(r.pattern, "placement") || strings.HasPrefix(r.pattern, "/cell") || r.pattern == "/keys/self" { // which the fake answers by itself
			continue
		}
		want++
		e.want(200, "", r.method, strings.NewReplacer("{id}", idOf(3), "{name}", "n", "{topic}", "t", "{filter}", "f", "{position}", "1", "{asset}", "a").Replace(r.pattern), "{}",
			"Authorization: Bearer "+gatewayKey)
	}
	if got := len(home.calls()); got != want {
		t.Errorf("%d calls arrived, want %d", got, want)
	}
	for _, call := range home.calls() {
		if strings.HasSuffix(call, "/placement") {
			t.Errorf("a queue was placed: %s", call)
		}
	}
}

func TestStrangersAreNotToldWhereQueuesAre(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1)}
	fakes[0].put(placement{Queue: "a", Cells: []int{0}})
	fakes[0].put(placement{Queue: "b", Cells: []int{1}})
	fakes[0].put(placement{Queue: "moved", Cells: []int{1}, Former: []former{{Cells: cellSet{0}}}})
	e := setup(t, nil, fakes...)
	for path, body := range map[string]string{
		"/sweep":              "{}",
		"/queues/moved/purge": "",
		"/events/batch":       `{"events":[{"queue":"a"},{"queue":"b"}]}`,
	} {
		e.want(http.StatusUnauthorized, "unauthorized", "POST", path, body, "Authorization: Bearer nobody")
		if got := e.call("POST", path, body); got.status != http.StatusConflict && got.status != http.StatusUnprocessableEntity {
			t.Errorf("%s answered %d %s", path, got.status, got.body)
		}
	}
}

func TestBatchOfIDsWithOneThatIsNoneIsRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1)}
	fakes[0].answers("POST /ack", http.StatusUnprocessableEntity, `{"code":"validation_failed"}`)
	fakes[1].answers("POST /ack", http.StatusOK, `{"events":[]}`)
	e := setup(t, nil, fakes...)
	for _, wrong := range []string{`{"id":-1}`, `{"id":0}`, `{"id":"1"}`, `{"id":1.5}`, `{}`, `{"id":1,"receipt":7}`} {
		e.want(http.StatusUnprocessableEntity, "validation_failed", "POST", "/ack", `{"events":[{"id":`+idOf(1)+`},`+wrong+`]}`)
	}
	if got := fakes[1].calls(); len(got) > 0 {
		t.Errorf("the other cell was asked: %v", got)
	}
}
