package ui

import (
	"time"

	"github.com/queued/queued/client"
)

// Fleet is the page of what works on events: processes of the server, workers, and what holds them back.
type Fleet struct {
	Processes  []client.Process
	Workers    client.Workers
	Holders    client.Holders
	Executions []client.Execution // those of most events
	AllKinds   int                // how many types and workers there are, with those beyond the executions shown
	IsOfSome   bool               // the viewer may use some queues: processes and executions, which are of all, are not known
}

// Up is how long a process has run, in minutes, so that a page does not change all the time.
func (*Fleet) Up(p client.Process) string {
	if p.UptimeMS == nil {
		return "–"
	}
	up := time.Duration(*p.UptimeMS * float64(time.Millisecond))
	if up < time.Minute {
		return "under a minute"
	}
	return Duration(up.Truncate(time.Minute))
}
