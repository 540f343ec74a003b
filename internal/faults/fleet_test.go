//go:build unix

package faults

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A fleet is cells, each with a database of its own, and gateways in front of them.
type fleet struct {
	cells    []*queued
	gateways []*queued
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
			return
		}
		if time.Since(began) > startLimit || status < http.StatusInternalServerError && status != 0 {
			t.Fatalf("PUT %s returned %d %s", path, status, answer)
		}
	}
}
