package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/rounds"
)

// home is the number of the cell that has what there is once.
const home = 0

// How placements are followed.
const (
	followWait  = 25 * time.Second // that home may hold a request for changes
	followSpare = 10 * time.Second // that it may take beside the wait
	minFollow   = time.Second      // between two requests that were answered at once without a change
	minPause    = 100 * time.Millisecond
	maxPause    = 3 * time.Second
)

// A cellSet is numbers of cells; nil: all that take new queues.
type cellSet []int

// UnmarshalJSON implements json.Unmarshaler.
func (s *cellSet) UnmarshalJSON(text []byte) error {
	if string(text) == `"all"` {
		*s = nil
		return nil
	}
	return json.Unmarshal(text, (*[]int)(s))
}

// MarshalJSON implements json.Marshaler.
func (s cellSet) MarshalJSON() ([]byte, error) {
	if s == nil {
		return []byte(`"all"`), nil
	}
	return json.Marshal([]int(s))
}

// has reports whether a cell is among them.
func (s cellSet) has(number int) bool { return s == nil || slices.Contains(s, number) }

// A placement says which cells a queue's new events go to, and which others may still hold some.
type placement struct {
	Queue   string   `json:"queue"`
	Cells   cellSet  `json:"cells"`
	Former  []former `json:"former"`
	Keys    *keys    `json:"keys"`
	Asked   []asked  `json:"asked"`
	Past    *cellSet `json:"past"`             // that it was on at some time; nil: home does not say
	Removed bool     `json:"removed,omitzero"` // in listings of changes: the queue is placed nowhere any more
	Version int64    `json:"version"`

	PlacedAt time.Time `json:"placed_at"`
	FirstUse bool      `json:"first_use,omitzero"` // the first call about the queue has placed it, and nobody else since

	reading int // during which it was read
}

// Former cells are those that a queue was placed on until a time, and that may hold events of it still.
type former struct {
	Cells cellSet   `json:"cells"`
	Since time.Time `json:"since"`
}

// Keys are where inserts with idempotency keys go until a time: where a repetition meets its first.
type keys struct {
	Cells cellSet   `json:"cells"`
	Until time.Time `json:"until"`
}

// formerOf returns the former cells of a placement that this gateway knows, those that were left first first.
func (g *Gateway) formerOf(p *placement) []*cell {
	var cells []*cell
	current := g.cellsIn(p.Cells)
	add := func(set cellSet) {
		for _, at := range g.cells() {
			if set.has(at.number) && !slices.Contains(current, at) && !slices.Contains(cells, at) {
				cells = append(cells, at)
			}
		}
	}
	for _, f := range p.Former {
		add(f.Cells)
	}
	if p.Cells == nil { // it was on those, too, that take no new queues any more
		add(nil)
	}
	return cells
}

// keyed returns the cells that inserts with idempotency keys go to at a time.
func (p *placement) keyed(now time.Time) cellSet {
	if p.Keys != nil && p.Keys.Until.After(now) {
		return p.Keys.Cells
	}
	return p.Cells
}

// placements are those of home, as far as the gateway knows.
type placements struct {
	mu       sync.RWMutex
	byQueue  map[string]*placement
	onCell   map[int]placedOn
	away     int       // of them, those that are not at home
	reading  int       // grows with each reading of all placements
	version  int64     // of the latest change; what is not known has a greater one
	epoch    string    // that the version is of
	known    time.Time // when home last said that nothing was missing; zero: never
	watchers map[string]map[*watcher]struct{}

	first        chan struct{} // closed once placements are known
	keyRetention atomic.Int64  // how long keys of inserts are remembered, as a time.Duration; zero: home does not say

	allAtHome atomic.Bool // it is known that no queue is placed elsewhere; true again only once all placements were read
}

// placedOn is how many queues are on a cell, but for those that are on all, and how many were and may have events there still.
type placedOn struct{ placed, before int64 }

// A watcher waits for a change of the placement of one queue.
type watcher struct{ changed func() }

func newPlacements() *placements {
	return &placements{first: make(chan struct{}), byQueue: make(map[string]*placement), onCell: make(map[int]placedOn), watchers: make(map[string]map[*watcher]struct{})}
}

// get returns the placement of a queue, nil if it is placed nowhere. isKnown is false as long as home has not said what there is.
func (p *placements) get(queue string) (found *placement, isKnown bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byQueue[queue], !p.known.IsZero()
}

// state returns the version and its epoch, and when home last confirmed them, zero if never.
func (p *placements) state() (version int64, epoch string, known time.Time) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.version, p.epoch, p.known
}

// isAtHome reports whether a queue is at home alone, and was.
func (p *placement) isAtHome() bool {
	isOther := func(set cellSet) bool { return set != nil && (len(set) != 1 || set[0] != home) }
	return !isOther(p.Cells) && !slices.ContainsFunc(p.Former, func(f former) bool { return isOther(f.Cells) }) && (p.Keys == nil || !isOther(p.Keys.Cells))
}

// names reports whether a placement names a cell.
func (p *placements) names(number int) bool {
	placed, before := p.count(number)
	return placed+before > 0
}

// those returns the placements that a test is true for.
func (p *placements) those(test func(*placement) bool) []*placement {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var found []*placement
	for _, one := range p.byQueue {
		if test(one) {
			found = append(found, one)
		}
	}
	return found
}

// count returns how many queues are on a cell, and were.
func (p *placements) count(number int) (placed, before int64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	on := p.onCell[number]
	return on.placed, on.before
}

// tally counts a placement that comes, by 1, or goes, by -1. The caller holds mu.
func (p *placements) tally(placed *placement, by int64) {
	for _, number := range placed.Cells {
		on := p.onCell[number]
		on.placed += by
		p.onCell[number] = on
	}
	for _, f := range placed.Former {
		for _, number := range f.Cells {
			on := p.onCell[number]
			on.before += by
			p.onCell[number] = on
		}
	}
	if !placed.isAtHome() {
		p.away += int(by)
	}
}

// put adds placements, unless later ones are known.
func (p *placements) put(all ...*placement) {
	p.mu.Lock()
	var notify []*watcher
	for _, placed := range all {
		notify = append(notify, p.set(placed)...)
	}
	p.mu.Unlock()
	for _, w := range notify {
		w.changed()
	}
}

// set sets a placement and returns who waits for its change. What was known before the latest reading of all placements is older, whatever its version: versions may have been given anew. The caller
// holds mu.
func (p *placements) set(placed *placement) []*watcher {
	before := p.byQueue[placed.Queue]
	if before != nil && before.reading == p.reading && before.Version >= placed.Version {
		return nil
	}
	if before != nil {
		p.tally(before, -1)
	}
	placed.reading = p.reading
	if p.byQueue[placed.Queue] = placed; placed.Removed {
		delete(p.byQueue, placed.Queue)
	} else {
		p.tally(placed, 1)
	}
	if p.away > 0 {
		p.allAtHome.Store(false)
	}
	if p.watchers[placed.Queue] == nil || before != nil && before.isLike(placed) {
		return nil
	}
	return slices.Collect(maps.Keys(p.watchers[placed.Queue]))
}

// isLike reports whether two placements are the same, but for when they were read.
func (p *placement) isLike(other *placement) bool {
	one, two := *p, *other
	one.reading, two.reading = 0, 0
	return reflect.DeepEqual(one, two)
}

// readAll begins a reading of all placements: those that it does not find are no more at its end.
func (p *placements) readAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reading++
}

// confirm notes that all changes up to those of a first page were read; or all placements.
func (p *placements) confirm(first *placementsPage, now time.Time) {
	p.mu.Lock()
	var notify []*watcher
	if first.Complete {
		for queue, placed := range p.byQueue {
			if placed.reading == p.reading {
				continue
			}
			p.tally(placed, -1)
			delete(p.byQueue, queue)
			notify = slices.AppendSeq(notify, maps.Keys(p.watchers[queue]))
		}
		p.allAtHome.Store(p.away == 0)
	}
	if p.known.IsZero() {
		close(p.first)
	}
	p.version, p.epoch, p.known = first.Version, first.Epoch, now
	p.keyRetention.Store(first.KeptMS * int64(time.Millisecond))
	p.mu.Unlock()
	for _, w := range notify {
		w.changed()
	}
}

// wake has those who wait for a change of the placement of a queue look again.
func (p *placements) wake(queue string) {
	p.mu.RLock()
	watchers := slices.Collect(maps.Keys(p.watchers[queue]))
	p.mu.RUnlock()
	for _, w := range watchers {
		w.changed()
	}
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
	Next       *string      `json:"next"`
	Version    int64        `json:"version"`
	Epoch      string       `json:"epoch"`
	KeptMS     int64        `json:"key_retention_ms"` // for how long keys of inserts are remembered; zero: home does not say
	Complete   bool         `json:"complete"`         // there are no other placements
	Cells      []listed     `json:"cells"`            // on the first page; nil: home does not say
}

// follow keeps the placements like those of home, until ctx ends.
func (g *Gateway) follow(ctx context.Context) {
	at := g.home()
	var reading placementsReading
	g.keepDoing(ctx, "following placements", at.isUp, func() (bool, error) {
		before, _, _ := g.placements.state()
		err := g.followOnce(ctx, at, &reading)
		after, _, _ := g.placements.state()
		return after != before, err
	}, func(err error) {
		g.log.Error().Func(failure.Of(err)).Msg("the placements of queues could not be read from home; those that are known stay")
	})
}

// keepDoing calls once again and again until ctx ends, while isReady: at once if it has got something done, and after growing pauses if it has failed, which is logged.
func (g *Gateway) keepDoing(ctx context.Context, loop string, isReady func() bool, once func() (isDone bool, err error), logFailure func(error)) {
	limiter := g.rounds.Loop(loop).Limiter()
	for pause := time.Duration(0); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if !isReady() {
			pause = minPause
			continue
		}
		began := time.Now()
		isDone, err := once()
		switch {
		case err == nil:
			pause = limiter.Delay(!isDone && time.Since(began) < rounds.MinWait)
		case ctx.Err() == nil && isReady():
			logFailure(err)
			pause = min(max(2*pause, minPause), maxPause)
		default:
			pause = minPause
		}
	}
}

// A placementsReading is how far placements were read, page by page, to go on from there after a failure.
type placementsReading struct {
	first *placementsPage // without its placements; nil: none was read
	next  *string         // cursor of the next page
}

// followOnce asks home for changes, and waits for them.
func (g *Gateway) followOnce(ctx context.Context, at *cell, reading *placementsReading) error {
	version, epoch, known := g.placements.state()
	query := url.Values{"limit": {"1000"}}
	began := time.Now()
	if reading.first == nil {
		if !known.IsZero() {
			query.Set("after_version", strconv.FormatInt(version, 10))
			query.Set("wait", followWait.String())
			if epoch != "" {
				query.Set("epoch", epoch)
			}
		}
		page, err := g.readPlacements(ctx, at, query)
		if err != nil {
			return err
		}
		if page.Cells != nil {
			g.setListed(ctx, page.Cells) // before the placements, which may name them
		}
		if page.Complete {
			g.placements.readAll()
		}
		g.placements.put(page.Placements...)
		page.Placements = nil
		reading.first, reading.next = page, page.Next
	}
	for reading.next != nil {
		page, err := g.readPlacements(ctx, at, url.Values{"limit": {"1000"}, "cursor": {*reading.next}})
		if refused, isAnswer := errors.AsType[*answered](err); isAnswer && refused.status < http.StatusInternalServerError { // it is not the home that has given the cursor
			*reading = placementsReading{}
		}
		if err != nil {
			return err
		}
		g.placements.put(page.Placements...)
		reading.next = page.Next
	}
	g.placements.confirm(reading.first, time.Now())
	isChanged := reading.first.Version != version
	*reading = placementsReading{}
	if !isChanged && time.Since(began) < minFollow {
		select {
		case <-ctx.Done():
		case <-time.After(minFollow):
		}
	}
	return nil
}

func (g *Gateway) readPlacements(ctx context.Context, at *cell, query url.Values) (*placementsPage, error) {
	ctx, cancel := context.WithTimeout(ctx, followWait+followSpare)
	defer cancel()
	page := new(placementsPage)
	if err := at.do(ctx, http.MethodGet, "/placements?"+query.Encode(), at.ownHeader(), nil, page); err != nil {
		return nil, err
	}
	for _, placed := range page.Placements {
		if placed == nil || placed.Queue == "" || !placed.isValid() {
			return nil, errors.New("GET /placements: a placement without a queue or without cells")
		}
	}
	return page, nil
}

// isValid reports whether a placement names a cell, or all.
func (p *placement) isValid() bool { return p.Removed || p.Cells == nil || len(p.Cells) > 0 }

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
		return nil, away(home, "No cell that takes new queues can be used. Nothing was done; retry.", nil)
	}
	return g.placeOn(c, r, queue, chosen.number)
}

// placeOn has home place a queue on a cell, unless it is placed already, in the name of the caller of r.
func (g *Gateway) placeOn(c *call, r *http.Request, queue string, number int) (*placement, error) {
	at := g.home()
	if !at.isUp() {
		return nil, away(home, "The queue is placed nowhere yet, and home, cell 0, which places queues, cannot be used. Nothing was done; retry.", nil)
	}
	leave, err := g.takePlace(&at.calls, at, c.holder)
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), placeTime)
	defer cancel()
	made, err := askPlacement(ctx, c, r, at, queue, number)
	var refused *answered
	switch {
	case err == nil && made.Queue == queue && !made.Removed && made.isValid():
		g.placements.put(made)
		return made, nil
	case err == nil:
		return nil, fmt.Errorf("home has placed the queue %q as %+v", queue, *made)
	case errors.As(err, &refused):
		c.target = at
		return nil, refused
	case r.Context().Err() != nil:
		return nil, r.Context().Err()
	}
	return nil, away(home, "The queue is placed nowhere yet, and home, cell 0, which places queues, does not answer. Nothing was done; retry.", err)
}

// askPlacement asks home for a placement: as one who publishes, or where the call is for those who manage, as one of them.
func askPlacement(ctx context.Context, c *call, r *http.Request, at *cell, queue string, number int) (*placement, error) {
	header := callerHeader(r)
	header["Content-Type"], header["X-Request-Id"] = []string{"application/json"}, []string{c.id}
	path := "/queues/" + queue + "/placement"
	made := new(placement)
	err := at.do(ctx, http.MethodPost, path, header, strings.NewReader(fmt.Sprintf(`{"cell":%d}`, number)), made)
	if isAnswer(err, http.StatusForbidden) && c.route.manages {
		header["If-None-Match"] = []string{"*"}
		err = at.do(ctx, http.MethodPut, path, header, strings.NewReader(fmt.Sprintf(`{"cells":[%d],"first_use":true}`, number)), made)
		if isAnswer(err, http.StatusPreconditionFailed) { // it is placed by now; who may place it may know where
			err = at.do(ctx, http.MethodGet, path, at.ownHeader(), nil, made)
		}
	}
	return made, err
}

// isAnswer reports whether err is an answer of a status.
func isAnswer(err error, status int) bool {
	whole, ok := errors.AsType[*answered](err)
	return ok && whole.status == status
}

// placeTime is how long home may take to place a queue.
const placeTime = 7 * time.Second

// chooseFor returns the cell that a queue which is placed nowhere goes to: of those that can be used and take new queues, the one with the highest hash of both (rendezvous hashing). So
// gateways that know the same cells choose the same, and one cell more takes its share from all. It is nil if there is no such cell.
func (g *Gateway) chooseFor(queue string) *cell {
	var best *cell
	var most uint64
	for _, candidate := range g.cells() {
		if !candidate.isUp() || !candidate.takesNew.Load() {
			continue
		}
		if weight := weightOf(queue, candidate.number); best == nil || weight > most {
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
