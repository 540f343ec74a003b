package workloads

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/queued/queued/bench/report"
)

// Compare is several programs side by side: each serves a database of its own, on the same PostgreSQL, and they take turns, in an order
// drawn by lot in each round, so that other work of the machine hits all alike.
type Compare struct {
	Programs    []string      `required:"" placeholder:"NAME=FILE" help:"Programs, the first of which the others are compared with."`
	Rounds      int           `default:"15" placeholder:"N" help:"How many turns each program gets with each load."`
	Duration    time.Duration `default:"2s" help:"How long a turn takes, after the warm-up."`
	Connections int           `default:"64" placeholder:"N" help:"How many clients insert, claim and ack one event at a time."`
	Batch       int           `most:"1000" default:"100" placeholder:"N" help:"Events in each request of batches, over 4 connections."`
}

func (*Compare) name() string { return "compare" }

func (w *Compare) check(cfg Config) error {
	if err := checkPrograms(w.Programs); err != nil {
		return err
	}
	if len(w.Programs) < 2 {
		return Invalidf("--programs: got %d; expected two or more, such as before=/tmp/queued,after=bin/queued", len(w.Programs))
	}
	return needOwnServers(cfg)
}

// checkPrograms refuses programs that do not have a name and a file each.
func checkPrograms(programs []string) error {
	for _, program := range programs {
		if name, file, _ := strings.Cut(program, "="); name == "" || file == "" {
			return Invalidf("--programs: got %q; expected NAME=FILE", program)
		}
	}
	return nil
}

func (w *Compare) run(ctx context.Context, s *session) error {
	type side struct {
		name   string
		server *server
	}
	var sides []side
	var versions []string
	for _, program := range w.Programs {
		name, file, _ := strings.Cut(program, "=")
		srv, err := s.startOnNew(ctx, file)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		sides = append(sides, side{name, srv})
		versions = append(versions, name+" "+s.report.Machine.Queued)
	}
	const batchClients = 4
	loads := []struct {
		name    string
		clients clients
	}{{"single", s.singles(w.Connections, nil)}, {"batch", s.batches(batchClients, w.Batch)}}
	s.report.Machine.Queued = strings.Join(versions, ", ")
	s.report.Rounds, s.report.Duration = w.Rounds, w.Duration.String()
	s.report.Parts = []report.Part{
		{Name: "single", About: fmt.Sprintf("single events over %d connections", w.Connections)},
		{Name: "batch", About: fmt.Sprintf("batches of %d events over %d connections", w.Batch, batchClients)},
	}
	for round := range w.Rounds {
		for _, l := range loads {
			order := slices.Clone(sides)
			rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] }) //nolint:gosec // an order, not a secret
			for _, side := range order {
				result, err := s.measure(ctx, measurement{label: side.name, server: side.server, clients: []clients{l.clients}, duration: w.Duration})
				if err != nil {
					return fmt.Errorf("round %d, %s, %s: %w", round+1, l.name, side.name, err)
				}
				result.Series = nil
				s.report.Add(l.name, round, false, result)
			}
		}
	}
	slices.SortStableFunc(s.report.Numbers, func(a, b *report.Number) int { return strings.Compare(a.Name, b.Name) })
	for _, side := range sides[1:] {
		for _, l := range loads {
			s.report.Judge(report.ProgramBars(l.name, side.name, sides[0].name))
		}
	}
	return nil
}
