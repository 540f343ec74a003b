package gateway

import (
	"slices"
	"time"
)

// Inserts under idempotency keys into a queue that is on all cells go to the cell that the hash of the key says of those that took new queues one retention of keys ago, so that all gateways have heard
// of these. As long again, the cell of the key among those of before is asked for it: as after a move, see keyed.go. So a repetition meets its first when cells come and go, too.

// A turn is a change of whether a cell takes new queues, and is one of all cells.
type turn struct {
	At       time.Time `json:"at"`
	TakesNew bool      `json:"takes_new"`
}

// askedSpare is for how much longer cells are asked, as the clocks of gateways differ: as home has it for queues that are moved.
const askedSpare = 5 * time.Minute

// tookNew reports whether the cell took new queues at a time. Before its first turn it took some if it takes none since then; else it was not there.
func (c *cell) tookNew(at time.Time) bool {
	turns := c.turns.Load()
	if turns == nil || len(*turns) == 0 {
		return c.takesNew.Load() // it is in the settings alone
	}
	took := !(*turns)[0].TakesNew
	for _, t := range *turns {
		if t.At.After(at) {
			break
		}
		took = t.TakesNew
	}
	return took
}

// allAt returns the cells that took new queues at a time.
func (g *Gateway) allAt(at time.Time) cellSet {
	found := cellSet{}
	for _, c := range g.cells() {
		if c.tookNew(at) {
			found = append(found, c.number)
		}
	}
	return found
}

// allBetween returns the sets of cells that took new queues at some time from one to another, each once.
func (g *Gateway) allBetween(from, to time.Time) []cellSet {
	sets := []cellSet{g.allAt(from)}
	for _, c := range g.cells() {
		turns := c.turns.Load()
		if turns == nil {
			continue
		}
		for _, t := range *turns {
			if set := g.allAt(t.At); t.At.After(from) && !t.At.After(to) && !slices.ContainsFunc(sets, func(s cellSet) bool { return slices.Equal(s, set) }) {
				sets = append(sets, set)
			}
		}
	}
	return sets
}

// keyedSets returns the cells that inserts into a queue under keys go to at a time, and those that are asked for the keys before.
func (g *Gateway) keyedSets(p *placement, now time.Time) (set cellSet, ask []cellSet) {
	retention := time.Duration(g.placements.keyRetention.Load())
	oldest := now.Add(-staleAfter*retention - askedSpare)
	for _, a := range p.askedAt(now) {
		if a.Cells != nil {
			ask = append(ask, a.Cells)
		} else {
			ask = append(ask, g.allBetween(oldest, a.Since.Add(-retention))...)
		}
	}
	if set = p.keyed(now); set == nil {
		if set = g.allAt(now.Add(-retention)); len(set) == 0 { // there were none
			set = g.allAt(now)
		}
		if retention > 0 {
			ask = append(ask, g.allBetween(oldest, now.Add(-retention))...)
		}
	}
	return set, slices.DeleteFunc(ask, func(s cellSet) bool { return len(s) == 0 || slices.Equal(s, set) })
}
