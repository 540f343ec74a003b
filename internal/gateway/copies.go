package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/rounds"
)

// Keys are made at home, and every cell checks its callers itself; owners are made at home, and schedules on every cell name them. So gateways put copies of both on all cells. Any
// number of gateways do it at once, of whatever age: cells take copies in any order and more than once, and end the same. A cell is brought level when it is found, and again
// whenever something has changed at home or on the cell:
//
//   - what has changed on the cell is put at home, which may have lost it by a failover; of what home has deleted the cell is told;
//   - what has changed at home is put on the cell.
//
// A change of the epoch of either says that it may have lost changes: all copies are exchanged then. A cell has the keys of home before it is used, and is used no more when it
// does not take a change of them. Owners come beside.

// How copies are kept level.
const (
	copiesPageSize = 500      // in an answer
	maxCopiesPage  = 64 << 20 // bytes of an answer: of 500 keys with all the patterns that there may be
	maxPutBytes    = 512 << 10
	spreadTime     = 3 * time.Second // that a caller who has changed something waits for one cell
)

// copied is what cells have copies of.
type copied struct {
	name      string // "keys" or "owners", in paths and answers
	one       string // for the log
	isNeeded  bool   // a cell without them is not used
	levelTime time.Duration
	home      atomic.Pointer[mark] // how far changes at home are known; nil: not at all
	of        func(*cell) *level
}

func newCopiedKeys() *copied {
	return &copied{name: "keys", one: "key", isNeeded: true, levelTime: 2 * time.Minute, of: func(c *cell) *level { return c.keys }}
}

// A mark is how far changes of a cell have been read. The zero value is: not at all.
type mark struct {
	version      int64  // of keys
	epoch, after string // of keys, and of owners
}

// A level is how far the copies of a cell and of home are the same.
type level struct {
	busy   chan struct{}        // full while the cell is brought level; it guards the next two
	own    mark                 // of the cell: what has changed up to this is at home
	home   mark                 // of home: what has changed up to this is on the cell
	pulled atomic.Pointer[mark] // own, for others; nil: not at all
	pushed atomic.Pointer[mark] // home, for others; nil: the cell was never level
	wake   chan struct{}        // something has changed at home
}

func newLevel() *level {
	return &level{busy: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

// isAt reports whether the cell has all changes of home up to a mark, as far as this gateway knows.
func (l *level) isAt(m mark) bool {
	pushed := l.pushed.Load()
	return pushed != nil && *pushed == m
}

// version is that of home's keys which the cell is known to have.
func (l *level) version() (version int64, isKnown bool) {
	if pushed := l.pushed.Load(); pushed != nil {
		return pushed.version, true
	}
	return 0, false
}

// A copiesPage is an answer to GET /cell/keys or /cell/owners.
type copiesPage struct {
	Keys     []json.RawMessage `json:"keys,omitempty"`
	Owners   []json.RawMessage `json:"owners,omitempty"`
	Next     *string           `json:"next"`
	Version  int64             `json:"version"`
	Epoch    string            `json:"epoch"`
	After    string            `json:"after"`
	Complete bool              `json:"complete"`
}

// copies are those of the page.
func (p *copiesPage) copies() []json.RawMessage { return append(p.Keys, p.Owners...) }

// mark is what to go on from, of a first page.
func (p *copiesPage) mark() mark { return mark{p.Version, p.Epoch, p.After} }

// errCopiesLost is why both sides have to exchange all copies: one of them may have lost changes.
var errCopiesLost = errors.New("changes may have been lost")

// A homeCopiesError is of home: the cell that was to be brought level has nothing to do with it.
type homeCopiesError struct{ cause error }

func (e *homeCopiesError) Error() string { return "home: " + e.cause.Error() }

// Unwrap returns the cause.
func (e *homeCopiesError) Unwrap() error { return e.cause }

// read reads copies of a cell that have changed since a mark, page by page, and returns the mark to go on from.
func (k *copied) read(ctx context.Context, at *cell, after mark, use func(*copiesPage) error) (mark, error) {
	query := k.query(after, copiesPageSize)
	for isFirst := true; ; isFirst = false {
		page := new(copiesPage)
		_, text, err := at.fetch(ctx, http.MethodGet, "/cell/"+k.name+"?"+query.Encode(), at.ownHeader(), nil, maxCopiesPage)
		if err == nil {
			err = json.Unmarshal(text, page)
		}
		if err != nil {
			return mark{}, err
		}
		if isFirst {
			after = page.mark()
		}
		if err := use(page); err != nil || page.Next == nil {
			return after, err
		}
		query.Set("cursor", *page.Next)
	}
}

// query returns the parameters that ask for what has changed since a mark.
func (k *copied) query(after mark, limit int) url.Values {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if after.version != 0 {
		query.Set("after_version", strconv.FormatInt(after.version, 10))
	}
	if after.epoch != "" {
		query.Set("epoch", after.epoch)
	}
	if after.after != "" {
		query.Set("after", after.after)
	}
	return query
}

// A deletedCopy tells a cell that something was deleted.
type deletedCopy struct {
	ID      string `json:"id"`
	Deleted bool   `json:"deleted"`
	Version int64  `json:"version,omitzero"` // of an owner
}

// put puts copies on a cell, and returns copies of what was deleted there.
func (k *copied) put(ctx context.Context, at *cell, copies []json.RawMessage) (deleted []json.RawMessage, err error) {
	for len(copies) > 0 {
		n, size := 0, 0
		for n < len(copies) && (n == 0 || size+len(copies[n]) < maxPutBytes) {
			size += len(copies[n])
			n++
		}
		body, err := json.Marshal(map[string][]json.RawMessage{k.name: copies[:n]})
		if err != nil {
			return nil, err
		}
		copies = copies[n:]
		var put map[string][]struct {
			ID      string `json:"id"`
			Result  string `json:"result"`
			Version int64  `json:"version"`
			Code    string `json:"code"`
			Detail  string `json:"detail"`
		}
		if err := at.do(ctx, http.MethodPut, "/cell/"+k.name, at.jsonHeader(), bytes.NewReader(body), &put); err != nil {
			return nil, err
		}
		for _, one := range put[k.name] {
			switch one.Result {
			case "deleted":
				text, _ := json.Marshal(deletedCopy{one.ID, true, one.Version}) // it always encodes
				deleted = append(deleted, text)
			case "refused":
				at.log.Error().Str(failure.Field, k.one+" "+one.Code).Str("id", one.ID).Str("error", one.Detail).Msg("the cell does not take the copy of a" + map[bool]string{true: " key", false: "n owner"}[k.isNeeded])
			}
		}
	}
	return deleted, nil
}

// bringLevel brings a cell level, by the end of ctx. With isChanged the cell itself may have changed something since. It fails with a *homeCopiesError if home cannot be asked.
func (g *Gateway) bringLevel(ctx context.Context, k *copied, at *cell, isChanged bool) error {
	l := k.of(at)
	select {
	case l.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.busy }()
	var err error
	for range 3 { // a failover of each
		var sides bothSides
		if l.own == (mark{}) || l.home == (mark{}) {
			l.own, l.home = mark{}, mark{}
			if sides, err = k.beginExchange(ctx, g.home()); err != nil {
				return &homeCopiesError{err}
			}
		}
		if isChanged || l.own == (mark{}) {
			err = k.pull(ctx, g.home(), at, l, sides)
		}
		if err == nil {
			err = k.push(ctx, g.home(), at, l, sides)
		}
		if !errors.Is(err, errCopiesLost) {
			return err
		}
	}
	return err
}

// bothSides are what each side of an exchange of all copies has: what both have is not put on either.
type bothSides struct{ home, cell copySet }

// A copySet is hashes of copies; nil: it is not known what there is.
type copySet map[[16]byte]struct{}

func hashOf(copied json.RawMessage) (hash [16]byte) {
	sum := sha256.Sum256(copied)
	copy(hash[:], sum[:])
	return hash
}

// add adds copies, and does nothing to a set that is nil.
func (s copySet) add(copies []json.RawMessage) {
	if s == nil {
		return
	}
	for _, one := range copies {
		s[hashOf(one)] = struct{}{}
	}
}

// without returns the copies that are not in the set.
func (s copySet) without(copies []json.RawMessage) []json.RawMessage {
	if s == nil {
		return copies
	}
	return slices.DeleteFunc(copies, func(one json.RawMessage) bool {
		_, isThere := s[hashOf(one)]
		return isThere
	})
}

// beginExchange reads what home has.
func (k *copied) beginExchange(ctx context.Context, home *cell) (bothSides, error) {
	sides := bothSides{make(copySet), make(copySet)}
	_, err := k.read(ctx, home, mark{}, func(page *copiesPage) error {
		sides.home.add(page.copies())
		return nil
	})
	return sides, err
}

// pull puts at home what has changed on a cell. It fails with errCopiesLost if the cell may have lost changes.
func (k *copied) pull(ctx context.Context, home, at *cell, l *level, sides bothSides) error {
	isAll := l.own == (mark{})
	after, err := k.read(ctx, at, l.own, func(page *copiesPage) error {
		if page.Complete && !isAll {
			l.own, l.home = mark{}, mark{}
			return errCopiesLost
		}
		copies := page.copies()
		sides.cell.add(copies)
		deleted, err := k.put(ctx, home, sides.home.without(copies))
		if err != nil {
			return &homeCopiesError{err}
		}
		_, err = k.put(ctx, at, deleted)
		return err
	})
	if err == nil {
		l.own = after
		l.pulled.Store(&after)
	}
	return err
}

// push puts on a cell what has changed at home. It fails with errCopiesLost if home may have lost changes, which the cell may have.
func (k *copied) push(ctx context.Context, home, at *cell, l *level, sides bothSides) error {
	isAll := l.home == (mark{})
	var ofCell error
	after, err := k.read(ctx, home, l.home, func(page *copiesPage) error {
		if page.Complete && !isAll {
			l.own, l.home = mark{}, mark{}
			return errCopiesLost
		}
		_, ofCell = k.put(ctx, at, sides.cell.without(page.copies()))
		return ofCell
	})
	switch {
	case errors.Is(err, errCopiesLost), err != nil && ofCell != nil:
		return err
	case err != nil:
		return &homeCopiesError{err}
	}
	l.home = after
	l.pushed.Store(&after)
	return nil
}

// prepare gives a cell the keys of home before it is used. While home cannot be asked, the cell is used with the keys that it has.
func (g *Gateway) prepare(ctx context.Context, at *cell) error {
	ctx, cancel := context.WithTimeout(ctx, g.keys.levelTime)
	defer cancel()
	err := g.bringLevel(ctx, g.keys, at, true)
	if ofHome, ok := errors.AsType[*homeCopiesError](err); ok {
		at.log.Warn().Func(failure.Of(ofHome)).Msg("the cell has the keys that it had, as those of home could not be read")
		return nil
	}
	if err != nil {
		return &wrongCellError{"It could not be given the keys of home.", fmt.Sprintf("it could not be given the keys of home: %v", err), false}
	}
	return nil
}

// pushWithin brings a cell that is used level with home within a time. A cell that does not let that happen is not used until it has what it needs.
func (g *Gateway) pushWithin(ctx context.Context, k *copied, at *cell, limit time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := g.bringLevel(limited, k, at, false)
	if err != nil && k.isNeeded && ctx.Err() == nil && !errors.As(err, new(*homeCopiesError)) {
		at.fallBehind(fmt.Errorf("it could not be given the %s of home: %w", k.name, err))
	}
	return err
}

// spread puts on all cells what a caller has changed at home, before the caller is told. Cells that do not have it then are named in the answer.
func (g *Gateway) spread(ctx context.Context, k *copied, c *call) {
	var missing []int
	var mu sync.Mutex
	var putting sync.WaitGroup
	for _, at := range g.cells() {
		if at.number == home {
			continue
		}
		putting.Go(func() {
			if at.isUp() && g.pushWithin(ctx, k, at, spreadTime) == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			missing = append(missing, at.number)
		})
	}
	putting.Wait()
	c.missing(missing)
}

// followHome has cells brought level whenever something has changed at home, until ctx ends.
func (g *Gateway) followHome(ctx context.Context, k *copied) {
	known := func() mark {
		if m := k.home.Load(); m != nil {
			return *m
		}
		return mark{}
	}
	g.followCopies(ctx, k, g.home(), known, func(page *copiesPage) error {
		now := page.mark()
		k.home.Store(&now)
		for _, at := range g.cells() {
			if at.number != home && !k.of(at).isAt(now) {
				k.of(at).wakeUp()
			}
		}
		return nil
	})
}

// wakeUp has the cell brought level soon.
func (l *level) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// keepLevel brings a cell that is used level whenever something has changed there or at home, until ctx ends.
func (g *Gateway) keepLevel(ctx context.Context, k *copied, at *cell) {
	var following sync.WaitGroup
	defer following.Wait()
	l := k.of(at)
	following.Go(func() {
		known := func() mark {
			if pulled := l.pulled.Load(); pulled != nil {
				return *pulled
			}
			return mark{}
		}
		g.followCopies(ctx, k, at, known, func(page *copiesPage) error {
			if !page.Complete && len(page.copies()) == 0 {
				return nil
			}
			limited, cancel := context.WithTimeout(ctx, k.levelTime)
			defer cancel()
			return g.bringLevel(limited, k, at, true)
		})
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		}
		if !at.isUp() || g.pushWithin(ctx, k, at, k.levelTime) == nil || !at.isUp() {
			continue // or it is brought level before it is used again
		}
		select { // home cannot be asked, or the cell does not take what it can do without
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
			l.wakeUp()
		}
	}
}

// followCopies waits for changes of what a cell that is used has, and has seen called with each answer of the cell, until ctx ends. known is how far they are known.
func (g *Gateway) followCopies(ctx context.Context, k *copied, at *cell, known func() mark, seen func(*copiesPage) error) {
	pause := time.Duration(0)
	limiter := g.rounds.Loop("following " + k.name).Limiter()
	for ctx.Err() == nil {
		if pause > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
		if !at.isUp() || g.single() != nil {
			pause = minPause
			continue
		}
		before, began := known(), time.Now()
		err := k.followOnce(ctx, at, before, seen)
		switch {
		case err == nil:
			pause = limiter.Delay(known() == before && time.Since(began) < rounds.MinWait)
		case ctx.Err() == nil:
			at.log.Error().Func(failure.Of(err)).Msg("changes of the " + k.name + " of the cell could not be followed")
			pause = min(max(2*pause, minPause), maxPause)
		}
	}
}

func (k *copied) followOnce(ctx context.Context, at *cell, known mark, seen func(*copiesPage) error) error {
	limited, cancel := context.WithTimeout(ctx, followWait+followSpare)
	defer cancel()
	query := k.query(known, 1)
	if known != (mark{}) {
		query.Set("wait", followWait.String())
	}
	began := time.Now()
	page := new(copiesPage)
	if err := at.do(limited, http.MethodGet, "/cell/"+k.name+"?"+query.Encode(), at.ownHeader(), nil, page); err != nil {
		return err
	}
	if err := seen(page); err != nil {
		return err
	}
	if known != (mark{}) && len(page.copies()) == 0 && time.Since(began) < minFollow { // the cell does not let anybody wait
		select {
		case <-ctx.Done():
		case <-time.After(minFollow):
		}
	}
	return nil
}
