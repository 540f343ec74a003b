package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/queued/queued/internal/failure"
)

// home is the number of the cell that has what there is once.
const home = 0

// How placements are followed.
const (
	followWait  = 25 * time.Second // that home may hold a request for changes
	followSpare = 10 * time.Second // that it may take beside the wait
	minPause    = 100 * time.Millisecond
	maxPause    = 3 * time.Second
)

// A placement says which cells a queue's new events go to, and which others may still hold some.
type placement struct {
	Queue   string   `json:"queue"`
	Cells   []int    `json:"cells"`
	Former  []former `json:"former"`
	Version int64    `json:"version"`
}

// A former cell is one that a queue was placed on before.
type former struct {
	Cell      int        `json:"cell"`
	Since     time.Time  `json:"since"`      // that it is no longer
	KeysUntil *time.Time `json:"keys_until"` // until when inserts with idempotency keys go to it; nil: they do not
	Drained   bool       `json:"drained"`    // it has no events of the queue left
}

// undrained returns the former cells that may still hold events, those that were left first first.
func (p *placement) undrained() []int {
	var cells []int
	for _, f := range p.Former {
		if !f.Drained && !slices.Contains(p.Cells, f.Cell) && !slices.Contains(cells, f.Cell) {
			cells = append(cells, f.Cell)
		}
	}
	return cells
}

// keyed returns the cell that inserts with idempotency keys go to at a time: where a repetition meets its first.
func (p *placement) keyed(now time.Time) int {
	at := -1
	for i, f := range p.Former {
		if f.KeysUntil != nil && f.KeysUntil.After(now) && (at < 0 || f.KeysUntil.Before(*p.Former[at].KeysUntil)) {
			at = i
		}
	}
	if at >= 0 {
		return p.Former[at].Cell
	}
	return p.Cells[0]
}

// placements are those of home, as far as the gateway knows.
type placements struct {
	mu       sync.RWMutex
	byQueue  map[string]*placement
	version  int64     // of the latest change; what is not known has a greater one
	known    time.Time // when home last said that nothing was missing; zero: never
	watchers map[string]map[*watcher]struct{}
}

// A watcher waits for a change of the placement of one queue.
type watcher struct{ changed func() }

func newPlacements() *placements {
	return &placements{byQueue: make(map[string]*placement), watchers: make(map[string]map[*watcher]struct{})}
}

// get returns the placement of a queue, nil if it is placed nowhere. isKnown is false as long as home has not said what there is.
func (p *placements) get(queue string) (found *placement, isKnown bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byQueue[queue], !p.known.IsZero()
}

// names reports whether a placement names a cell.
func (p *placements) names(number int) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, placed := range p.byQueue {
		if slices.Contains(placed.Cells, number) || slices.ContainsFunc(placed.Former, func(f former) bool { return f.Cell == number }) {
			return true
		}
	}
	return false
}

// status returns the version, and when home last confirmed it, zero if never.
func (p *placements) status() (version int64, known time.Time) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.version, p.known
}

// put adds one placement, unless a later one is known.
func (p *placements) put(placed *placement) {
	p.mu.Lock()
	changed := p.set(placed)
	p.mu.Unlock()
	for _, w := range changed {
		w.changed()
	}
}

// set sets a placement and returns who waits for its change. The caller holds mu.
func (p *placements) set(placed *placement) []*watcher {
	before := p.byQueue[placed.Queue]
	if before != nil && before.Version >= placed.Version {
		return nil
	}
	p.byQueue[placed.Queue] = placed
	return slices.Collect(maps.Keys(p.watchers[placed.Queue]))
}

// update adds placements that have changed up to a version; or replaces all of them, if isWhole.
func (p *placements) update(changed []*placement, version int64, isWhole bool, now time.Time) {
	p.mu.Lock()
	var notify []*watcher
	if isWhole {
		before := p.byQueue
		p.byQueue = make(map[string]*placement, len(changed))
		for _, placed := range changed {
			p.byQueue[placed.Queue] = placed
		}
		for queue, watchers := range p.watchers {
			if !reflect.DeepEqual(before[queue], p.byQueue[queue]) { // versions may have been given anew
				notify = slices.AppendSeq(notify, maps.Keys(watchers))
			}
		}
	} else {
		for _, placed := range changed {
			notify = append(notify, p.set(placed)...)
		}
	}
	p.version, p.known = version, now
	p.mu.Unlock()
	for _, w := range notify {
		w.changed()
	}
}

// confirm notes that home has said that nothing has changed.
func (p *placements) confirm(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = now
}

// watch has changed called, once or more, when the placement of a queue changes, until stop is called.
func (p *placements) watch(queue string, changed func()) (stop func()) {
	w := &watcher{changed}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watchers[queue] == nil {
		p.watchers[queue] = make(map[*watcher]struct{})
	}
	p.watchers[queue][w] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watchers[queue], w)
		if len(p.watchers[queue]) == 0 {
			delete(p.watchers, queue)
		}
	}
}

// A placementsPage is an answer of home to GET /placements.
type placementsPage struct {
	Placements []*placement `json:"placements"`
	Version    int64        `json:"version"`
}

// follow keeps the placements like those of home, until ctx ends.
func (g *Gateway) follow(ctx context.Context) {
	at := g.cells[home]
	pause := time.Duration(0)
	for ctx.Err() == nil {
		if pause > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
		if !at.isUp() {
			pause = minPause
			continue
		}
		err := g.followOnce(ctx, at)
		switch {
		case err == nil:
			pause = 0
		case ctx.Err() == nil:
			g.log.Error().Func(failure.Of(err)).Msg("the placements of queues could not be read from home; those that are known stay")
			pause = min(max(2*pause, minPause), maxPause)
		}
	}
}

// followOnce asks home for changes, and waits for them.
func (g *Gateway) followOnce(ctx context.Context, at *cell) error {
	version, known := g.placements.status()
	isWhole := known.IsZero()
	path := "/placements"
	if !isWhole {
		path += "?after_version=" + strconv.FormatInt(version, 10) + "&wait=" + followWait.String()
	}
	page, err := g.readPlacements(ctx, at, path)
	if err == nil && !isWhole && page.Version < version { // home has come back from a copy that is older
		isWhole = true
		page, err = g.readPlacements(ctx, at, "/placements")
	}
	if err != nil {
		return err
	}
	for _, placed := range page.Placements {
		if placed == nil || placed.Queue == "" || len(placed.Cells) == 0 {
			return fmt.Errorf("GET %s: a placement without a queue or without cells", path)
		}
	}
	now := time.Now()
	if !isWhole && len(page.Placements) == 0 && page.Version == version {
		g.placements.confirm(now)
		return nil
	}
	g.placements.update(page.Placements, page.Version, isWhole, now)
	return nil
}

func (g *Gateway) readPlacements(ctx context.Context, at *cell, path string) (*placementsPage, error) {
	ctx, cancel := context.WithTimeout(ctx, followWait+followSpare)
	defer cancel()
	page := new(placementsPage)
	header := http.Header{}
	if g.cfg.Key != "" {
		header.Set("Authorization", "Bearer "+g.cfg.Key)
	}
	return page, at.do(ctx, http.MethodGet, path, header, nil, page)
}

// placed returns the placement of a queue, nil if it is placed nowhere.
func (g *Gateway) placed(queue string) (*placement, error) {
	found, isKnown := g.placements.get(queue)
	if found == nil && !isKnown {
		return nil, away(home, "It is not known yet where queues are placed, which home, cell 0, says. Nothing was done; retry.", nil)
	}
	return found, nil
}

// place returns the placement of a queue, which is placed now if it was not before: on the cell that all gateways choose for it, unless home has another one. Home checks
// that the caller may use the queue; its refusal is an *answered.
func (g *Gateway) place(c *call, r *http.Request, queue string) (*placement, error) {
	found, err := g.placed(queue)
	if found != nil || err != nil {
		return found, err
	}
	chosen := g.chooseFor(queue)
	if chosen == nil {
		return nil, away(home, "No cell can be used that new queues could be placed on. Nothing was done; retry.", nil)
	}
	return g.placeOn(c, r, queue, chosen.number)
}

// placeOn has home place a queue on a cell, unless it is placed already, in the name of the caller of r.
func (g *Gateway) placeOn(c *call, r *http.Request, queue string, number int) (*placement, error) {
	at := g.cells[home]
	if !at.isUp() {
		return nil, away(home, "The queue is placed nowhere yet, and home, cell 0, which places queues, cannot be used. Nothing was done; retry.", nil)
	}
	if !at.calls.enter() {
		g.metrics.refused.WithLabelValues(at.label).Inc()
		return nil, full("Home, which places queues, holds as many calls as it may. Nothing was done; retry with growing pauses.")
	}
	defer at.calls.leave()
	ctx, cancel := context.WithTimeout(r.Context(), placeTime)
	defer cancel()
	header := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {c.id}}
	if values := r.Header["Authorization"]; len(values) > 0 {
		header["Authorization"] = values
	}
	body, err := json.Marshal(map[string]int{"cell": number})
	if err != nil {
		return nil, err
	}
	made := new(placement)
	if err := at.do(ctx, http.MethodPost, "/queues/"+queue+"/placement", header, bytes.NewReader(body), made); err != nil {
		if refused, ok := err.(*answered); ok { //nolint:errorlint // as do returns it
			c.target = at
			return nil, refused
		}
		if r.Context().Err() != nil {
			return nil, r.Context().Err()
		}
		return nil, away(home, "The queue is placed nowhere yet, and home, cell 0, which places queues, does not answer. Nothing was done; retry.", err)
	}
	if made.Queue != queue || len(made.Cells) == 0 {
		return nil, fmt.Errorf("home has placed the queue %q as %+v", queue, *made)
	}
	g.placements.put(made)
	return made, nil
}

// placeTime is how long home may take to place a queue.
const placeTime = 15 * time.Second

// chooseFor returns the cell that a queue which is placed nowhere goes to: of those that can be used, the one with the highest hash of both (rendezvous hashing). So
// gateways that know the same cells choose the same, and one cell more takes its share from all. It is nil if no cell can be used.
func (g *Gateway) chooseFor(queue string) *cell {
	var best *cell
	var most uint64
	for _, number := range g.numbers {
		candidate := g.cells[number]
		if !candidate.isUp() {
			continue
		}
		if weight := weightOf(queue, number); best == nil || weight > most {
			best, most = candidate, weight
		}
	}
	return best
}

// weightOf hashes a queue and the number of a cell: FNV-1a, and the finalizer of SplitMix64, without which the last bytes would hardly count.
func weightOf(queue string, number int) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(queue) {
		h = (h ^ uint64(queue[i])) * 1099511628211
	}
	h = (h ^ uint64(number)) * 1099511628211
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
