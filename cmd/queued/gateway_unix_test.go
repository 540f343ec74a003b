//go:build unix

package main

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

func TestEventsOfHomeComeToTheirCellOnceWhicheverDies(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	second := *f
	second.program = serve(t, f.command)
	second.wantReady()
	elsewhere := f.queuesOn()[1]
	f.call(http.StatusCreated, http.MethodPut, "/subscriptions/s", fmt.Sprintf(`{"filters":[{"topics":["a.b"]}],"deliver":{"queue":%q}}`, elsewhere))
	const events = 1000
	list := strings.Repeat(`{"topic":"a.b","event":{}},`, events)
	f.call(http.StatusCreated, http.MethodPost, "/publish", `{"events":[`+strings.TrimSuffix(list, ",")+`]}`)
	counts := func(cell int, queue string) int {
		t.Helper()
		got := f.cells[cell].want(http.StatusOK, http.MethodGet, "/queues/"+queue, "", "Authorization: Bearer "+keyOfCells).decode(t)
		return int(got["ready"].(float64) + got["leased"].(float64))
	}
	until(t, "some are on their cell", func() bool { return counts(1, elsewhere) > 0 })
	f.signal(syscall.SIGKILL)
	f.cells[1].signal(syscall.SIGSTOP)
	second.waitForLine("the cell is away", func(line string) bool { return strings.Contains(line, "the cell cannot be used") })
	f.cells[1].signal(syscall.SIGCONT)
	until(t, "none waits at home", func() bool { return counts(0, "queued.forward.1") == 0 })
	seen := map[float64]bool{}
	for len(seen) < events {
		claimed := second.call(http.StatusOK, http.MethodPost, "/claim", fmt.Sprintf(`{"queue":%q,"limit":100,"wait":"1s"}`, elsewhere)).decode(t)["events"].([]any)
		if len(claimed) == 0 {
			break
		}
		for _, event := range claimed {
			position := event.(map[string]any)["publication"].(map[string]any)["position"].(float64)
			if seen[position] {
				t.Errorf("the publication at %.0f is there twice", position)
			}
			seen[position] = true
		}
	}
	if n := counts(1, elsewhere); len(seen) != events || n != events {
		t.Errorf("%d publications of %d are there, in %d events", len(seen), events, n)
	}
}
