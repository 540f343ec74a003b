package workloads

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// turns sums up the turns that one load gets, as if they had been one run.
type turns struct {
	label  string
	counts *load.Counts
	spent  reading       // at is the time of all turns, since the zero time
	sql    time.Duration // processor time of PostgreSQL
	events int64
	rates  []float64 // events a second, of each turn
}

func newTurns(label string) *turns { return &turns{label: label, counts: load.NewCounts()} }

// add adds a turn between two readings, with so many events.
func (t *turns) add(counts *load.Counts, events int64, before, after turnReading) {
	took := after.at.Sub(before.at)
	t.counts.Add(counts)
	t.spent = reading{
		at: t.spent.at.Add(took), rss: after.rss,
		client: t.spent.client + after.client - before.client, server: t.spent.server + after.server - before.server,
		wal: t.spent.wal + after.wal - before.wal, commits: t.spent.commits + after.commits - before.commits,
	}
	t.sql += after.sql - before.sql
	t.events += events
	t.rates = append(t.rates, float64(events)/took.Seconds())
}

// result is of all turns together.
func (t *turns) result(hasDatabase bool) *report.Result {
	r := &report.Result{Label: t.label, Values: map[string]float64{}}
	fill(r, t.counts, reading{}, t.spent, hasDatabase)
	r.EventsPerS = float64(t.events) / r.Seconds
	if t.sql > 0 {
		r.Values["postgresql_us_per_event"] = float64(t.sql.Microseconds()) / float64(max(t.events, 1))
	}
	return r
}

// over is the median of the ratios to the turns of another load.
func (t *turns) over(other *turns) float64 {
	ratios := make([]float64, len(t.rates))
	for i := range ratios {
		ratios[i] = t.rates[i] / other.rates[i]
	}
	return report.Median(ratios)
}

// costOver is the ratio of the processor time that an event takes at the client, the server and PostgreSQL, as far as it is known, to that of
// another load.
func (t *turns) costOver(other *turns) float64 {
	cost := func(t *turns) float64 { return float64(t.spent.client+t.spent.server+t.sql) / float64(t.events) }
	return cost(t) / cost(other)
}

// turnReading is a reading with the processor time that PostgreSQL has used.
type turnReading struct {
	reading
	sql time.Duration // 0: not known
}

// turnReader reads the counters of a server and its database.
type turnReader struct {
	server     *server
	postmaster int // the process of PostgreSQL; 0: not known
}

func newTurnReader(srv *server) *turnReader {
	r := &turnReader{server: srv}
	if srv.db != nil {
		r.postmaster = postmasterOf(srv.db.conn.Config().Database)
	}
	return r
}

func (r *turnReader) read(ctx context.Context) (turnReading, error) {
	at, err := r.server.read(ctx)
	used := childrenUsage(r.postmaster)
	at.at = time.Now()
	return turnReading{at, used}, err
}

// postmasterOf finds the process of the PostgreSQL that serves a database, by the title of a session of it. It is 0 where that runs
// elsewhere, or cannot be seen.
func postmasterOf(database string) int {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		title, err := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if err == nil && strings.HasPrefix(string(title), "postgres: ") && strings.Contains(string(title), " "+database+" ") {
			if stat, ok := processStat(entry.Name()); ok {
				return int(stat.parent)
			}
		}
	}
	return 0
}

// childrenUsage is the processor time of a process's children, those that have ended included.
func childrenUsage(pid int) (cpu time.Duration) {
	if pid == 0 {
		return 0
	}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		stat, ok := processStat(entry.Name())
		switch {
		case !ok:
		case stat.parent == int64(pid):
			cpu += stat.cpu
		case entry.Name() == strconv.Itoa(pid):
			cpu += stat.ended
		}
	}
	return cpu
}
