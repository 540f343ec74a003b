package gateway

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/queued/queued/internal/failure"
)

// Events may come into a queue on a cell that it is not placed on: by SQL, as dead letters, or from schedules that were there before. Gateways look for them on every cell, and
// claims of the queue ask those cells, too, as they ask former ones.

// How strays are looked for.
const (
	strayEvery   = 5 * time.Second // on each cell, and more
	strayShare   = 20              // how many times longer than a look the pause after it is at least: a cell with very many queues is looked at more rarely
	maxStrays    = 10_000          // names that are remembered of a cell
	strayTimeout = 10 * time.Second
)

// strays are the queues with events on cells that they are not placed on.
type strays struct {
	mu     sync.RWMutex
	byCell map[*cell]map[string]struct{}
	onCell map[string][]*cell // by queue
}

func newStrays() *strays {
	return &strays{byCell: make(map[*cell]map[string]struct{}), onCell: make(map[string][]*cell)}
}

// of returns the cells that hold stray events of a queue.
func (s *strays) of(queue string) []*cell {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.onCell[queue]
}

// count returns how many queues have stray events on a cell.
func (s *strays) count(at *cell) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.byCell[at])
}

// put sets the queues that have stray events on a cell, and returns those that had none before.
func (s *strays) put(at *cell, queues map[string]struct{}) (found []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.byCell[at]
	for queue := range before {
		if _, stays := queues[queue]; stays {
			continue
		}
		others := slices.DeleteFunc(slices.Clone(s.onCell[queue]), func(c *cell) bool { return c == at }) // readers have the other slice
		if s.onCell[queue] = others; len(others) == 0 {
			delete(s.onCell, queue)
		}
	}
	for queue := range queues {
		if _, was := before[queue]; !was {
			s.onCell[queue] = append(slices.Clone(s.onCell[queue]), at)
			found = append(found, queue)
		}
	}
	if s.byCell[at] = queues; len(queues) == 0 {
		delete(s.byCell, at)
	}
	return found
}

// lookForStrays looks on a cell for events of queues that are not placed there, until ctx ends.
func (g *Gateway) lookForStrays(ctx context.Context, at *cell) {
	defer g.strays.put(at, nil)
	pause := minPause
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if _, _, known := g.placements.state(); !at.isUp() || known.IsZero() || g.single() != nil {
			pause = minPause
			continue
		}
		began := time.Now()
		if err := g.lookForStraysOnce(ctx, at); err != nil && ctx.Err() == nil {
			at.log.Error().Func(failure.Of(err)).Msg("the queues with events on the cell could not be listed")
		}
		pause = max(strayEvery, strayShare*time.Since(began))
		pause += rand.N(pause / 4) //nolint:gosec // only so that gateways do not all look at once
	}
}

func (g *Gateway) lookForStraysOnce(ctx context.Context, at *cell) error {
	limited, cancel := context.WithTimeout(ctx, strayTimeout)
	defer cancel()
	found := make(map[string]struct{})
	query := url.Values{"limit": {"1000"}}
	for {
		var page struct {
			Queues []string `json:"queues"`
			Next   *string  `json:"next"`
		}
		if err := at.do(limited, http.MethodGet, "/cell/queues?"+query.Encode(), at.ownHeader(), nil, &page); err != nil {
			return err
		}
		for _, queue := range page.Queues {
			if len(found) < maxStrays && g.isStray(queue, at) {
				found[queue] = struct{}{}
			}
		}
		if page.Next == nil {
			break
		}
		query.Set("cursor", *page.Next)
	}
	for _, queue := range g.strays.put(at, found) {
		at.log.Info().Str("queue", queue).Msg("the cell holds events of a queue that is not placed there; claims of the queue ask it, too")
		g.placements.wake(queue)
	}
	return nil
}

// isStray reports whether events of a queue on a cell are found by no claim otherwise.
func (g *Gateway) isStray(queue string, at *cell) bool {
	if !isQueue(queue) {
		return false
	}
	p, isKnown := g.placements.get(queue)
	switch {
	case !isKnown:
		return false
	case p == nil:
		return at.number != home
	}
	return !p.Cells.has(at.number) && !slices.Contains(g.formerOf(p), at)
}

// straysOf returns the cells that hold stray events of a queue, other than those that its claims ask already.
func (g *Gateway) straysOf(queue string, current *cell, before []*cell) []*cell {
	found := g.strays.of(queue)
	if len(found) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(found), func(at *cell) bool { return at == current || slices.Contains(before, at) })
}
