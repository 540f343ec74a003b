package workloads

import (
	"context"
	"fmt"
)

// Depth is claims from a deep backlog beside claims from a shallow one.
type Depth struct {
	Backlog     []int `name:"backlog" default:"1000,1000000" sep:"," placeholder:"N" help:"How many events wait besides those that are claimed; each is compared with the first."`
	Connections int   `name:"connections" default:"16" placeholder:"N" help:"How many clients claim."`
	Claims      int   `name:"claims" default:"2000" placeholder:"N" help:"How many events a turn claims; with claims of 100 it is five times as many."`
	Rounds      int   `name:"rounds" default:"5" placeholder:"N" help:"How many turns each backlog gets, alternately, for each way to claim."`
}

func (*Depth) name() string { return "depth" }

func (w *Depth) check(cfg Config) error {
	if err := needOwnServers(cfg, "depth compares databases"); err != nil {
		return err
	}
	if err := checkList("--backlog", w.Backlog, 0, 100_000_000); err != nil {
		return err
	}
	if len(w.Backlog) < 2 {
		return Invalidf("--backlog: got one number; takes two or more to compare, such as 1000,1000000")
	}
	return checkContest(w.Connections, w.Claims, w.Rounds)
}

// flatBar is how much of the rate has to be left where the cost of a claim is said to be flat.
const flatBar = 0.9

func (w *Depth) run(ctx context.Context, s *session) error {
	c := &contest{session: s, connections: w.Connections, rounds: w.Rounds, claims: w.Claims}
	defer c.close(ctx)
	for _, n := range w.Backlog {
		if err := c.enter(ctx, fmt.Sprintf("%d waiting", n), func(ctx context.Context, side *side) error {
			side.x = float64(max(n, 1))
			return s.load(ctx, side.server, readyStatement, side.queue, n, side.ledger)
		}); err != nil {
			return err
		}
	}
	return c.run(ctx, disciplines(), flatBar)
}

func checkContest(connections, claims, rounds int) error {
	if err := checkNumber("--connections", connections, 1, 80); err != nil { // each is a session for SQL, too
		return err
	}
	if err := checkNumber("--claims", claims, 1, 1_000_000); err != nil {
		return err
	}
	return checkNumber("--rounds", rounds, 1, 1000)
}
