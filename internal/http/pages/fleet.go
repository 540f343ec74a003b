package pages

import (
	"cmp"
	"slices"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

const (
	// shownWorkers and shownExecutions are how many of each the page shows.
	shownWorkers    = 100
	shownExecutions = 100
)

// showFleet is the page of processes, workers, and what holds others back. Processes and executions are about all queues, and left out for keys that may use some.
func showFleet(v *visit) (view, error) {
	var shown ui.Fleet
	var err error
	if shown.Holders, err = v.api.ListHolders(v.r.Context()); err != nil {
		return view{}, err
	}
	if shown.Processes, err = v.api.ListProcesses(v.r.Context()); err != nil && !isForbidden(err) {
		return view{}, err
	}
	shown.IsOfSome = err != nil
	if shown.Workers, err = v.api.ListWorkers(v.r.Context(), client.WorkersParams{Limit: shownWorkers}); err != nil {
		return view{}, err
	}
	executions, err := v.api.ListExecutions(v.r.Context(), client.ExecutionFilter{Type: v.query("type"), Worker: v.query("worker")})
	if err != nil && !isForbidden(err) {
		return view{}, err
	}
	shown.AllKinds = len(executions)
	slices.SortStableFunc(executions, func(a, b client.Execution) int { return cmp.Compare(b.Cycles, a.Cycles) })
	shown.Executions = executions[:min(len(executions), shownExecutions)]
	return view{name: "fleet", title: "Fleet", nav: "fleet", isLive: true, body: &shown}, nil
}
