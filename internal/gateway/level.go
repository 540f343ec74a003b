package gateway

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// A queue that several cells hold a part of is set on each as on the leading one. A cell that was away when it was changed follows when it is back: gateways see that, and look
// at all of its queues now and then, too, should the one have died that knew of a change.

// setAllEvery is how often all queues of a cell are set like on their leading cells.
const setAllEvery = 5 * time.Minute

// behind are the queues that a cell has to be set for.
type behind struct {
	mu     sync.Mutex
	queues map[string]bool // whether they were changed while the cell was away
}

func (b *behind) add(queue string, isChanged bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.queues == nil {
		b.queues = make(map[string]bool)
	}
	b.queues[queue] = b.queues[queue] || isChanged
}

// take returns all, and forgets them.
func (b *behind) take() map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.queues
	b.queues = nil
	return taken
}

// keepSet has the queues of a cell be set as they are on their leading cells, until ctx ends.
func (g *Gateway) keepSet(ctx context.Context, at *cell) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var all time.Time // when all were set last; zero: the cell was away since
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, _, known := g.placements.state(); !at.isUp() || known.IsZero() {
			all = time.Time{}
			continue
		}
		if time.Since(all) >= setAllEvery {
			all = time.Now()
			for _, p := range g.placements.those((*placement).isOfSeveral) {
				if slices.Contains(g.among(p.sets()), at) {
					at.behind.add(p.Queue, false)
				}
			}
		}
		for queue, isChanged := range at.behind.take() {
			if err := g.setAsLeading(ctx, at, queue, isChanged); err != nil && ctx.Err() == nil {
				at.behind.add(queue, isChanged)
			}
		}
	}
}

// setAsLeading sets a queue on a cell as it is set on the leading one. One that is set to nothing there may have come there without its settings: unless it was changed
// by a call, the others keep theirs.
func (g *Gateway) setAsLeading(ctx context.Context, at *cell, queue string, isChanged bool) error {
	p, _ := g.placements.get(queue)
	if p == nil || !slices.Contains(g.among(p.sets()), at) {
		return nil
	}
	lead, err := g.leadingCell(p)
	if err != nil || lead == at {
		return err
	}
	if !lead.isUp() {
		return errAway
	}
	ctx, cancel := context.WithTimeout(ctx, placeTime)
	defer cancel()
	return g.eachCopy(ctx, lead, queue, func(now []byte) error {
		if !isChanged && isSetToNothing(now) {
			return nil
		}
		return g.setEach(ctx, []*cell{at}, queue, now)
	})
}

// eachCopy has set called with what a queue is set to on its leading cell, again if that was changed by somebody else meanwhile, who may have been at the others before.
func (g *Gateway) eachCopy(ctx context.Context, lead *cell, queue string, set func(copied []byte) error) error {
	var copied []byte
	for range 3 {
		now, err := g.copyOf(ctx, lead, queue)
		if err != nil || copied != nil && bytes.Equal(now, copied) {
			return err
		}
		if err := set(now); err != nil {
			return err
		}
		copied = now
	}
	return nil
}

// isSetToNothing reports whether a copy of a queue has neither a policy nor a push.
func isSetToNothing(copied []byte) bool {
	var has struct {
		Policy jsontext.Value `json:"policy"`
		Push   jsontext.Value `json:"push"`
	}
	return decode(copied, &has) && (has.Policy == nil || has.Policy.Kind() == 'n') && (has.Push == nil || has.Push.Kind() == 'n')
}

// sets are the cells that a placement names, and its former ones.
func (p *placement) sets() []cellSet {
	sets := []cellSet{p.Cells}
	for _, f := range p.Former {
		sets = append(sets, f.Cells)
	}
	return sets
}

// isOfSeveral reports whether several cells hold a part of the queue.
func (p *placement) isOfSeveral() bool { return len(p.Cells) != 1 || len(p.Former) > 0 }
