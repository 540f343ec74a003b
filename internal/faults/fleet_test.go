//go:build unix

package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A fleet is cells, each with a database of its own, and gateways in front of them.
type fleet struct {
	cells    []*queued
	gateways []*queued
	placed   int64 // the version of the latest placement that place has made
}

// startFleet starts a cell on each of the databases, the first of which is home, and gateways in front of them. All are of the build and end with the test.
func startFleet(t *testing.T, b build, gateways int, databaseURLs ...string) *fleet {
	t.Helper()
	f := &fleet{}
	var list []string
	for number, url := range databaseURLs {
		cell := startQueued(t, b, url, fmt.Sprintf("QUEUED_CELL=%d", number))
		f.cells = append(f.cells, cell)
		list = append(list, fmt.Sprintf("%d=http://%s", number, cell.addr))
	}
	for range gateways {
		f.addGateway(t, b, list...)
	}
	return f
}

// addGateway starts a gateway in front of cells, as QUEUED_CELLS lists them.
func (f *fleet) addGateway(t *testing.T, b build, cells ...string) {
	t.Helper()
	f.gateways = append(f.gateways, startCommand(t, b.program(t), "gateway", "QUEUED_CELLS="+strings.Join(cells, ",")))
}

// newLoad returns a load through all gateways, which has not started and uses two queues that are placed on each cell.
func (f *fleet) newLoad(t *testing.T, l *ledger) *load {
	t.Helper()
	d := newLoad(t, l, f.gateways...)
	d.throughGateways = true
	for cell := range f.cells {
		for i := range 2 {
			queue := fmt.Sprintf("queue-%d-%d", cell, i)
			f.place(t, queue, cell)
			d.queues = append(d.queues, queue)
		}
	}
	return d
}

// place places a queue on a cell, through the first gateway.
func (f *fleet) place(t *testing.T, queue string, cell int) {
	t.Helper()
	f.placeOn(t, queue, fmt.Sprintf("[%d]", cell))
}

// placeOn places a queue on cells, as the JSON of a placement has them, through the first gateway.
func (f *fleet) placeOn(t *testing.T, queue, cells string) {
	t.Helper()
	var made struct{ Version int64 }
	path := "/queues/" + queue + "/placement"
	answer := f.put(t, path, `{"cells":`+cells+`}`)
	if err := json.Unmarshal([]byte(answer), &made); err != nil || made.Version == 0 {
		t.Fatalf("PUT %s returned %s (%v)", path, answer, err)
	}
	f.placed = made.Version
}

// put makes a call of the first gateway until it succeeds, and returns the answer. What it returns again and again while a cell is away does not count.
func (f *fleet) put(t *testing.T, path, body string) string {
	t.Helper()
	for began := time.Now(); ; pause(50 * time.Millisecond) {
		status, answer := f.gateways[0].ask(http.MethodPut, path, body)
		if status == http.StatusOK || status == http.StatusCreated {
			return answer
		}
		if time.Since(began) > startLimit || status < http.StatusInternalServerError && status != 0 {
			t.Fatalf("PUT %s %s returned %d %s", path, body, status, answer)
		}
	}
}

// list has home list a cell, and returns when every gateway can use it.
func (f *fleet) list(t *testing.T, cell int, takesNew bool) {
	t.Helper()
	f.put(t, fmt.Sprintf("/cells/%d", cell), fmt.Sprintf(`{"url":"http://%s","takes_new":%t}`, f.cells[cell].addr, takesNew))
	want := fmt.Sprintf(`"takes_new":%t,`, takesNew)
	for _, gateway := range f.gateways {
		for began := time.Now(); ; pause(20 * time.Millisecond) {
			_, answer := gateway.ask(http.MethodGet, "/cells", "")
			_, of, _ := strings.Cut(answer, fmt.Sprintf(`{"cell":%d,`, cell))
			of, _, _ = strings.Cut(of, "}")
			if strings.Contains(of, want) && strings.Contains(of, `"state":"up"`) {
				break
			}
			if time.Since(began) > startLimit {
				t.Fatalf("within %v a gateway could not use cell %d: %s", startLimit, cell, answer)
			}
		}
	}
}

// awaitPlaced returns when a gateway knows all placements that place has made.
func (f *fleet) awaitPlaced(t *testing.T, gateway *queued) {
	t.Helper()
	for began := time.Now(); ; pause(20 * time.Millisecond) {
		_, metrics, _ := gateway.get("/metrics", startLimit)
		_, after, _ := strings.Cut(metrics, "\nqueued_placement_version ")
		text, _, _ := strings.Cut(after, "\n")
		if version, err := strconv.ParseFloat(text, 64); err == nil && version >= float64(f.placed) {
			return
		}
		if time.Since(began) > startLimit {
			t.Fatalf("within %v the gateway did not know the placements up to version %d: it goes by version %q", startLimit, f.placed, text)
		}
	}
}
