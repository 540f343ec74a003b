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

// place places a queue on a cell, through the first gateway. What it returns again and again while a cell is away does not count.
func (f *fleet) place(t *testing.T, queue string, cell int) {
	t.Helper()
	path := "/queues/" + queue + "/placement"
	for began := time.Now(); ; pause(50 * time.Millisecond) {
		status, answer := f.gateways[0].ask(http.MethodPut, path, fmt.Sprintf(`{"cells":[%d]}`, cell))
		if status == http.StatusOK || status == http.StatusCreated {
			var made struct{ Version int64 }
			if err := json.Unmarshal([]byte(answer), &made); err != nil || made.Version == 0 {
				t.Fatalf("PUT %s returned %d %s (%v)", path, status, answer, err)
			}
			f.placed = made.Version
			return
		}
		if time.Since(began) > startLimit || status < http.StatusInternalServerError && status != 0 {
			t.Fatalf("PUT %s returned %d %s", path, status, answer)
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
