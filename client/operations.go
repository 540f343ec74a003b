package client

import (
	"cmp"
	"context"
	"strings"
	"time"
)

// An Execution counts the events of a type that a worker has acked, with how long that took from claim to ack.
type Execution struct {
	// Type and Worker are empty for events without a type, and claims without a name.
	Type   string `json:"type"`
	Worker string `json:"worker"`
	// Cycles is how many events are done.
	Cycles    int       `json:"cycles"`
	LastMS    float64   `json:"last_ms"`
	AverageMS float64   `json:"average_ms"`
	FastestMS float64   `json:"fastest_ms"`
	LongestMS float64   `json:"longest_ms"`
	TotalMS   float64   `json:"total_ms"`
	LastAt    time.Time `json:"last_at"`
}

// An ExecutionFilter says which executions to list. Its zero value is all.
type ExecutionFilter struct {
	Type   string `query:"type"`
	Worker string `query:"worker"`
}

// ListExecutions returns how long events took, by type and worker. Of several cells it returns what those say that answer, and a [MissingCellsError] if one does not.
func (c *Client) ListExecutions(ctx context.Context, filter ExecutionFilter) ([]Execution, error) {
	list, away, err := joined(c, func(at *Client, _ *int) (executionList, error) {
		var list executionList
		_, err := at.Do(ctx, Request{Path: "/stats/executions", Query: queryOf(filter)}, &list)
		return list, err
	}, func(into *executionList, other executionList) {
		compare := func(a, b *Execution) int {
			return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Worker, b.Worker))
		}
		into.Executions = joinSorted(into.Executions, other.Executions, compare, func(e *Execution, o Execution) {
			e.Cycles += o.Cycles
			e.TotalMS += o.TotalMS
			e.AverageMS = e.TotalMS / float64(e.Cycles)
			e.FastestMS, e.LongestMS = min(e.FastestMS, o.FastestMS), max(e.LongestMS, o.LongestMS)
			if o.LastAt.After(e.LastAt) {
				e.LastAt, e.LastMS = o.LastAt, o.LastMS
			}
		})
	})
	return list.Executions, missing(err, away)
}

type executionList struct {
	Executions []Execution `json:"executions"`
}

// A Process is one running server on the database, with its counts since its start.
type Process struct {
	// ID changes at each start; Process is its name, for people.
	ID      string `json:"id"`
	Process string `json:"process"`
	Version string `json:"version"`
	// StartedAt and UptimeMS, in milliseconds, are nil if they are not known.
	StartedAt *time.Time `json:"started_at"`
	UptimeMS  *float64   `json:"uptime_ms"`
	Posted    int64      `json:"posted"`
	Claimed   int64      `json:"claimed"`
	Acked     int64      `json:"acked"`
	Nacked    int64      `json:"nacked"`
	Failed    int64      `json:"failed"`
	Expired   int64      `json:"expired"`
	Released  int64      `json:"released"`
	// WaitingClaims is how many claims wait for events.
	WaitingClaims int64     `json:"waiting_claims"`
	UpdatedAt     time.Time `json:"updated_at"`
	// Cell is the one that it is of, where several were asked; nil: one was.
	Cell *int `json:"cell,omitzero"`
}

// ListProcesses returns the processes that serve the database. Of several cells it returns those of the cells that answer, and a [MissingCellsError] if one does not.
func (c *Client) ListProcesses(ctx context.Context) ([]Process, error) {
	list, away, err := joined(c, func(at *Client, cell *int) (processList, error) {
		var list processList
		_, err := at.Do(ctx, Request{Path: "/stats/processes"}, &list)
		for i := range list.Processes {
			list.Processes[i].Cell = cell
		}
		return list, err
	}, func(into *processList, other processList) {
		into.Processes = append(into.Processes, other.Processes...)
	})
	return list.Processes, missing(err, away)
}

type processList struct {
	Processes []Process `json:"processes"`
}

// A Version is that of a server.
type Version struct {
	Version string `json:"version"`
	// Go is the version of the toolchain.
	Go string `json:"go"`
	// Commit is the commit that it was built from; empty in some builds.
	Commit string `json:"commit,omitzero"`
	// Background is whether the process pushes, fires schedules and delivers subscriptions: "on", "suspended" while the database is a copy that nobody
	// has adopted, or "off" by its settings.
	Background string `json:"background,omitzero"`
}

// ShowVersion returns the version of the server.
func (c *Client) ShowVersion(ctx context.Context) (Version, error) {
	var v Version
	_, err := c.Do(ctx, Request{Path: "/version"}, &v)
	return v, err
}

// Livez returns nil if the server runs.
func (c *Client) Livez(ctx context.Context) error {
	_, err := c.Do(ctx, Request{Path: "/livez"}, nil)
	return err
}

// Readyz returns nil if the server is ready for calls, and [ErrUnavailable] after Config.RetryFor if it is not.
func (c *Client) Readyz(ctx context.Context) error {
	_, err := c.Do(ctx, Request{Path: "/readyz"}, nil)
	return err
}
