package workloads

import (
	"context"
	"errors"
	"fmt"
)

// Piles is claims beside events that cannot be claimed, each kind of pile beside no pile.
type Piles struct {
	Delayed     int `name:"delayed" default:"1000000" placeholder:"N" help:"How many events of the queue are not due yet; 0 leaves this pile out."`
	Leased      int `name:"leased" default:"100000" placeholder:"N" help:"How many events of the queue are leased; 0 leaves this pile out."`
	Other       int `name:"other" default:"1000000" placeholder:"N" help:"How many events wait in another queue; 0 leaves this pile out."`
	Connections int `name:"connections" default:"16" placeholder:"N" help:"How many clients claim."`
	Claims      int `name:"claims" default:"2000" placeholder:"N" help:"How many events a turn claims; with claims of 100 it is five times as many."`
	Rounds      int `name:"rounds" default:"5" placeholder:"N" help:"How many turns each side gets, alternately, for each way to claim."`
}

func (*Piles) name() string { return "piles" }

func (w *Piles) check(cfg Config) error {
	if err := needOwnServers(cfg, "piles compares databases"); err != nil {
		return err
	}
	for flag, n := range map[string]int{"--delayed": w.Delayed, "--leased": w.Leased, "--other": w.Other} {
		if err := checkNumber(flag, n, 0, 100_000_000); err != nil {
			return err
		}
	}
	if w.Delayed+w.Leased+w.Other == 0 {
		return Invalidf("--delayed, --leased and --other are all 0: there is nothing to compare")
	}
	return checkContest(w.Connections, w.Claims, w.Rounds)
}

// beneath is how many claimable events there are on every side besides those that are claimed.
const beneath = 1000

func (w *Piles) run(ctx context.Context, s *session) error {
	piles := []struct {
		label string
		n     int
		heap  func(ctx context.Context, side *side, n int) error
	}{
		{"delayed", w.Delayed, func(ctx context.Context, side *side, n int) error {
			return s.load(ctx, side.server, delayedStatement, side.queue, n, side.ledger)
		}},
		{"leased", w.Leased, func(ctx context.Context, side *side, n int) error {
			// These leases were not given to anyone that the ledger knows, and do not end during the run.
			if err := s.load(ctx, side.server, readyStatement, side.queue, n, side.ledger); err != nil {
				return err
			}
			return side.server.leaseAll(ctx, side.queue, n)
		}},
		{"in another queue", w.Other, func(ctx context.Context, side *side, n int) error {
			return s.load(ctx, side.server, readyStatement, s.newQueue(), n, side.ledger)
		}},
	}
	for _, pile := range piles {
		if pile.n == 0 {
			continue
		}
		label := fmt.Sprintf("%d %s", pile.n, pile.label)
		err := w.compare(ctx, s, "no pile beside "+label, label, func(ctx context.Context, side *side) error {
			return pile.heap(ctx, side, pile.n)
		})
		// One pair at a time: the databases are large. Their servers would sweep and vacuum beside the next pair, too.
		if err = errors.Join(err, s.close(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// compare lets a side with a pile compete with one without.
func (w *Piles) compare(ctx context.Context, s *session, without, with string, heap func(ctx context.Context, side *side) error) error {
	c := &contest{session: s, connections: w.Connections, rounds: w.Rounds, claims: w.Claims}
	defer c.close(ctx)
	for _, label := range []string{without, with} {
		if err := c.enter(ctx, label, func(ctx context.Context, side *side) error {
			if label == with {
				if err := heap(ctx, side); err != nil {
					return err
				}
			}
			return s.load(ctx, side.server, readyStatement, side.queue, beneath, side.ledger)
		}); err != nil {
			return err
		}
	}
	return c.run(ctx, disciplines(), flatBar)
}
