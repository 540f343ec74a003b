package workloads

import (
	"context"
	"errors"
	"fmt"
)

// Depth is claims from a deep backlog beside claims from a shallow one.
type Depth struct {
	Backlog     []int `least:"0" most:"100000000" default:"1000,1000000" placeholder:"N" help:"Events that wait beside those that are claimed; each is compared with the first."`
	Connections int   `most:"80" default:"16" placeholder:"N" help:"How many clients claim."`
	Claims      int   `default:"2000" placeholder:"N" help:"Events that a turn claims; with claims of 100 five times as many."`
	Rounds      int   `default:"5" placeholder:"N" help:"How many turns each backlog gets, alternately, for each way to claim."`
}

func (*Depth) name() string { return "depth" }

func (w *Depth) check(cfg Config) error {
	if len(w.Backlog) < 2 {
		return Invalidf("--backlog: got %d; expected two numbers or more to compare, such as 1000,1000000", w.Backlog)
	}
	return needOwnServers(cfg)
}

func (w *Depth) run(ctx context.Context, s *session) error {
	c := &comparison{session: s, connections: w.Connections, rounds: w.Rounds, claims: w.Claims}
	defer c.close(ctx)
	for _, n := range w.Backlog {
		if err := c.addVariant(ctx, fmt.Sprintf("%d waiting", n), func(v *variant) error {
			return s.load(ctx, v.server, readyStatement, v.queue, n, v.clients.Account)
		}); err != nil {
			return err
		}
	}
	return c.run(ctx)
}

// Unclaimable is claims beside events that cannot be claimed, each kind of them beside none.
type Unclaimable struct {
	Delayed     int `least:"0" most:"100000000" default:"1000000" placeholder:"N" help:"How many events of the queue are not due yet; 0 leaves these out."`
	Leased      int `least:"0" most:"100000000" default:"100000" placeholder:"N" help:"How many events of the queue are leased; 0 leaves these out."`
	Other       int `least:"0" most:"100000000" default:"1000000" placeholder:"N" help:"How many events wait in another queue; 0 leaves these out."`
	Connections int `most:"80" default:"16" placeholder:"N" help:"How many clients claim."`
	Claims      int `default:"2000" placeholder:"N" help:"Events that a turn claims; with claims of 100 five times as many."`
	Rounds      int `default:"5" placeholder:"N" help:"How many turns each side gets, alternately, for each way to claim."`
}

func (*Unclaimable) name() string { return "unclaimable" }

func (w *Unclaimable) check(cfg Config) error {
	if w.Delayed+w.Leased+w.Other == 0 {
		return Invalidf("--delayed, --leased and --other are all 0: there is nothing to compare")
	}
	return needOwnServers(cfg)
}

func (w *Unclaimable) run(ctx context.Context, s *session) error {
	const claimable = 1000 // events on every side besides those that are claimed
	for _, beside := range []struct {
		label string
		n     int
		add   func(v *variant, n int) error
	}{
		{"delayed", w.Delayed, func(v *variant, n int) error {
			return s.load(ctx, v.server, delayedStatement, v.queue, n, v.clients.Account)
		}},
		{"leased", w.Leased, func(v *variant, n int) error {
			// No client of the account has these leases, and they do not end during the run.
			if err := s.load(ctx, v.server, readyStatement, v.queue, n, v.clients.Account); err != nil {
				return err
			}
			return v.server.leaseAll(ctx, v.queue, n)
		}},
		{"in another queue", w.Other, func(v *variant, n int) error {
			return s.load(ctx, v.server, readyStatement, s.newQueue(), n, v.clients.Account)
		}},
	} {
		if beside.n == 0 {
			continue
		}
		label := fmt.Sprintf("%d %s", beside.n, beside.label)
		c := &comparison{session: s, connections: w.Connections, rounds: w.Rounds, claims: w.Claims}
		add := func(v *variant) error {
			return s.load(ctx, v.server, readyStatement, v.queue, claimable, v.clients.Account)
		}
		err := c.addVariant(ctx, "without "+label, add)
		if err == nil {
			err = c.addVariant(ctx, label, func(v *variant) error { return errors.Join(beside.add(v, beside.n), add(v)) })
		}
		if err == nil {
			err = c.run(ctx)
		}
		c.close(ctx)
		// One pair at a time: the databases are large. Their servers would sweep and vacuum beside the next pair, too.
		if err = errors.Join(err, s.close(ctx)); err != nil {
			return err
		}
	}
	return nil
}
