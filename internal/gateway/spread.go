package gateway

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queued/queued/internal/request"
)

// A queue that is spread is on several cells. Events without a key go to these in turn, and those with a key where the hash of both says. A claim asks the cells in turn, and
// then waits at one of them. Claims that wait divide themselves among the cells; those that no claim waits at are asked again every now and then.

// How long claims wait at one cell before they look around again.
const (
	aloneEvery  = 500 * time.Millisecond // while no claim waits at some cell of the queue
	aroundEvery = 2 * time.Second        // while at each cell a claim waits, as those that do may have their events at any time
	aroundShare = 20 * time.Millisecond  // for each claim that waits, so that very many do not look around very often
)

// keyOf returns the idempotency key of an insert of one event; empty: it has none.
func keyOf(r *http.Request) (key string, isKeyed bool) {
	if key = queryOf(r, "key", ""); key != "" {
		return key, true
	}
	if values := r.Header["Idempotency-Key"]; len(values) > 0 {
		key, _ = request.IdempotencyKey(values[0]) // the cell says what is wrong with one
		return key, true
	}
	return "", false
}

// hashedOf returns the part of a key that decides about the cell: what is between the first { and the next }, if there is something, or else all. So keys can be
// chosen that go to one cell.
func hashedOf(key string) string {
	_, after, _ := strings.Cut(key, "{")
	if tag, _, isClosed := strings.Cut(after, "}"); isClosed && tag != "" {
		return tag
	}
	return key
}

// keyCell returns the cell of a set that inserts into a queue under a key go to: the one with the highest hash of all three, whether it can be used or not, so that a
// repetition meets its first.
func (g *Gateway) keyCell(queue, key string, set cellSet) (*cell, error) {
	if len(set) == 0 {
		return nil, away(home, "No cell takes new queues, on which the queue is spread. Nothing was done; retry.", nil)
	}
	best, most := set[0], uint64(0)
	name := queue
	if len(set) > 1 {
		name += "\x00" + hashedOf(key)
	}
	for _, number := range set {
		if weight := weightOf(name, number); weight > most {
			best, most = number, weight
		}
	}
	if at := g.cell(best); at != nil {
		return at, nil
	}
	return nil, g.unknownCell(best)
}

// turnCell returns the cell of a set that the next event of a queue without a key goes to: of those that can be used one that a claim waits at, or else the one that holds
// the fewest calls, in turn.
func (g *Gateway) turnCell(queue string, set cellSet) (*cell, error) {
	if len(set) == 1 {
		if at := g.cell(set[0]); at != nil {
			return at, nil
		}
		return nil, g.unknownCell(set[0])
	}
	cells := g.inTurn(turnOf{queue, true}, set)
	if len(cells) == 0 {
		return nil, g.noneUsable(queue, set)
	}
	if waited := g.waits.waited(queue, cells); len(waited) > 0 {
		cells = waited
	}
	return slices.MinFunc(cells, func(a, b *cell) int { return int(a.calls.inUse() - b.calls.inUse()) }), nil
}

// usable returns the cells of a set that can be used.
func (g *Gateway) usable(set cellSet) []*cell {
	return slices.DeleteFunc(g.cellsIn(set), func(at *cell) bool { return !at.isUp() })
}

// A turnOf is what goes to cells in turn: inserts into a queue, or claims of it.
type turnOf struct {
	queue    string
	isInsert bool
}

// inTurn returns the cells of a set that can be used, each time from the next one on.
func (g *Gateway) inTurn(of turnOf, set cellSet) []*cell {
	cells := g.usable(set)
	if len(cells) < 2 {
		return cells
	}
	turn, isThere := g.turns.Load(of)
	if !isThere {
		turn, _ = g.turns.LoadOrStore(of, new(atomic.Uint64))
	}
	first := int(turn.(*atomic.Uint64).Add(1) % uint64(len(cells)))
	return slices.Concat(cells[first:], cells[:first])
}

// noneUsable returns the problem of a call for a queue none of whose cells can be used.
func (g *Gateway) noneUsable(queue string, set cellSet) error {
	number := home
	if len(set) > 0 {
		number = set[0]
	}
	return away(number, "None of the cells of the queue \""+queue+"\" can be used. Nothing was done; retry.", nil)
}

// claimWaits are the claims that wait, of queues that are spread, by the cells that they wait at.
type claimWaits struct {
	mu      sync.Mutex
	byQueue map[string]map[*cell]int
}

// enter chooses the cell for a claim to wait at: that where the fewest wait, the first of those. It returns how long to wait there before looking around, and the others
// at which no claim waits.
func (w *claimWaits) enter(queue string, cells []*cell) (at *cell, every time.Duration, alone []*cell) {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := w.byQueue[queue]
	at = slices.MinFunc(cells, func(a, b *cell) int { return counts[a] - counts[b] })
	if counts == nil {
		if w.byQueue == nil {
			w.byQueue = make(map[string]map[*cell]int)
		}
		counts = make(map[*cell]int)
		w.byQueue[queue] = counts
	}
	counts[at]++
	total := 0
	for _, other := range cells {
		if total += counts[other]; counts[other] == 0 {
			alone = append(alone, other)
		}
	}
	if every = max(aroundEvery, time.Duration(total)*aroundShare); len(alone) > 0 {
		every = aloneEvery
	}
	return at, every, alone
}

// leave takes back what enter has noted.
func (w *claimWaits) leave(queue string, at *cell) {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := w.byQueue[queue]
	if counts[at]--; counts[at] <= 0 {
		delete(counts, at)
	}
	if len(counts) == 0 {
		delete(w.byQueue, queue)
	}
}

// waited returns those of cells that claims of a queue wait at.
func (w *claimWaits) waited(queue string, cells []*cell) []*cell {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := w.byQueue[queue]
	if counts == nil {
		return nil
	}
	var waited []*cell
	for _, at := range cells {
		if counts[at] > 0 {
			waited = append(waited, at)
		}
	}
	return waited
}
