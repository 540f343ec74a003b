package client

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"testing"
)

func TestAnswersWithoutTheCellsThatAreAwaySayWhich(t *testing.T) {
	t.Parallel()
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, map[string]string{
			"/stats/processes":  `{"processes":[{"id":"x","cell":1}],"unavailable_cells":[0,2]}`,
			"/stats/executions": `{"executions":[{"type":"t"}],"unavailable_cells":[0,2]}`,
			"/history/stats":    `{"buckets":[{"done":1}],"unavailable_cells":[0,2]}`,
			"/stats/holders":    `{"holders":[],"complete":false,"unavailable_cells":[0,2]}`,
			"/queues/q":         `{"queue":"q","ready":3,"unavailable_cells":[0,2]}`,
		}[r.URL.Path])
	})
	ctx := soon(t)
	want := func(what string, listed int, err error) {
		t.Helper()
		var missing *MissingCellsError
		if !errors.As(err, &missing) || !slices.Equal(missing.Cells, []int{0, 2}) || listed != 1 {
			t.Errorf("%s: %d listed, %v", what, listed, err)
		}
	}
	processes, err := c.ListProcesses(ctx)
	want("processes", len(processes), err)
	if processes[0].Cell == nil || *processes[0].Cell != 1 {
		t.Errorf("the process is %+v", processes[0])
	}
	executions, err := c.ListExecutions(ctx, ExecutionFilter{})
	want("executions", len(executions), err)
	stats, err := c.HistoryStats(ctx, HistoryStatsParams{})
	want("history", len(stats), err)
	holders, err := c.ListHolders(ctx)
	if err != nil || !slices.Equal(holders.UnavailableCells, []int{0, 2}) {
		t.Errorf("holders: %+v, %v", holders, err)
	}
	queue, err := c.GetQueue(ctx, "q")
	if err != nil || queue.Ready != 3 || !slices.Equal(queue.UnavailableCells, []int{0, 2}) {
		t.Errorf("the queue: %+v, %v", queue, err)
	}
}
