package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queued/queued/internal/failure"
)

// Keys are made at home, and every cell checks its callers itself: so gateways put copies of home's keys on all cells. Any number of gateways do it at once, of whatever
// age: cells take copies in any order and more than once, and end the same. A cell is brought level before it is used, and again whenever keys of home or of
// the cell have changed:
//
//   - what has changed on the cell is put at home, which may have lost it by a failover; of keys that home has deleted the cell is told;
//   - what has changed at home is put on the cell.
//
// A change of the epoch of either says that it may have lost changes: all copies are exchanged then.

// How keys are kept level.
const (
	keysPageSize = 100 // copies in an answer
	maxPutBytes  = 512 << 10
	levelTime    = 30 * time.Second // that bringing a cell level may take
	spreadTime   = 3 * time.Second  // that a caller who has changed a key waits for one cell
)

// A mark is how far changes of keys of a cell have been read. The zero value is: not at all.
type mark struct {
	version int64
	epoch   string
}

// A keyLevel is how far the keys of a cell and of home are the same.
type keyLevel struct {
	busy   chan struct{}        // full while the cell is brought level; it guards the next two
	own    mark                 // of the cell: what has changed up to this is at home
	home   mark                 // of home: what has changed up to this is on the cell
	pulled atomic.Pointer[mark] // own, for others; nil: not at all
	pushed atomic.Pointer[mark] // home, for others; nil: the cell was never level
	wake   chan struct{}        // keys of home have changed
}

func newKeyLevel() *keyLevel {
	return &keyLevel{busy: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

// isAt reports whether the cell has all changes of home up to a mark, as far as this gateway knows.
func (l *keyLevel) isAt(m mark) bool {
	pushed := l.pushed.Load()
	return pushed != nil && *pushed == m
}

// version is that of home's keys which the cell is known to have.
func (l *keyLevel) version() (version int64, isKnown bool) {
	if pushed := l.pushed.Load(); pushed != nil {
		return pushed.version, true
	}
	return 0, false
}

// A keysPage is an answer to GET /cell/keys.
type keysPage struct {
	Keys     []json.RawMessage `json:"keys"`
	Next     *string           `json:"next"`
	Version  int64             `json:"version"`
	Epoch    string            `json:"epoch"`
	Complete bool              `json:"complete"`
}

// errKeysLost is why both sides have to exchange all copies: one of them may have lost changes.
var errKeysLost = errors.New("the cell may have lost changes of keys")

// A homeKeysError is of home: the cell that was to be brought level has nothing to do with it.
type homeKeysError struct{ cause error }

func (e *homeKeysError) Error() string { return "home: " + e.cause.Error() }

// Unwrap returns the cause.
func (e *homeKeysError) Unwrap() error { return e.cause }

// readKeys reads copies of keys of a cell that have changed since a mark, page by page, and returns the mark to go on from.
func readKeys(ctx context.Context, at *cell, after mark, use func(*keysPage) error) (mark, error) {
	query := keysQuery(after, keysPageSize)
	for isFirst := true; ; isFirst = false {
		page := new(keysPage)
		if err := at.do(ctx, http.MethodGet, "/cell/keys?"+query.Encode(), at.ownHeader(), nil, page); err != nil {
			return mark{}, err
		}
		if isFirst {
			after = mark{page.Version, page.Epoch}
		}
		if err := use(page); err != nil || page.Next == nil {
			return after, err
		}
		query.Set("cursor", *page.Next)
	}
}

func keysQuery(after mark, limit int) url.Values {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if after != (mark{}) {
		query.Set("after_version", strconv.FormatInt(after.version, 10))
		if after.epoch != "" {
			query.Set("epoch", after.epoch)
		}
	}
	return query
}

// putKeys puts copies of keys on a cell, and returns the ids of those that were deleted there.
func (g *Gateway) putKeys(ctx context.Context, at *cell, copies []json.RawMessage) (deleted []string, err error) {
	for len(copies) > 0 {
		n, size := 0, 0
		for n < len(copies) && (n == 0 || size+len(copies[n]) < maxPutBytes) {
			size += len(copies[n])
			n++
		}
		body, err := json.Marshal(map[string][]json.RawMessage{"keys": copies[:n]})
		if err != nil {
			return nil, err
		}
		copies = copies[n:]
		var put struct {
			Keys []struct {
				ID     string `json:"id"`
				Result string `json:"result"`
				Code   string `json:"code"`
				Detail string `json:"detail"`
			} `json:"keys"`
		}
		if err := at.do(ctx, http.MethodPut, "/cell/keys", at.jsonHeader(), bytes.NewReader(body), &put); err != nil {
			return nil, err
		}
		for _, one := range put.Keys {
			switch one.Result {
			case "deleted":
				deleted = append(deleted, one.ID)
			case "refused":
				g.log.Error().Str(failure.Field, "key "+one.Code).Int("cell", at.number).Str("key", one.ID).Str("error", one.Detail).Msg("the cell does not take the copy of a key")
			}
		}
	}
	return deleted, nil
}

// levelKeys brings a cell level, by the end of ctx. With isChanged the cell's own keys may have changed since. It fails with a *homeKeysError if home cannot be asked.
func (g *Gateway) levelKeys(ctx context.Context, at *cell, isChanged bool) error {
	l := at.keys
	select {
	case l.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.busy }()
	var err error
	for range 3 { // a failover of each
		if isChanged || l.own == (mark{}) {
			if err = g.pullKeys(ctx, at, l); err != nil && !errors.Is(err, errKeysLost) {
				return err
			}
		}
		if err = g.pushKeys(ctx, at, l); !errors.Is(err, errKeysLost) {
			return err
		}
	}
	return err
}

// pullKeys puts at home what has changed on a cell.
func (g *Gateway) pullKeys(ctx context.Context, at *cell, l *keyLevel) error {
	after, err := readKeys(ctx, at, l.own, func(page *keysPage) error {
		if page.Complete {
			l.home = mark{} // the cell may have lost copies
		}
		deleted, err := g.putKeys(ctx, g.home(), page.Keys)
		if err != nil {
			return &homeKeysError{err}
		}
		told := make([]json.RawMessage, len(deleted))
		for i, id := range deleted {
			told[i], _ = json.Marshal(map[string]any{"id": id, "deleted": true}) // a string and a bool always encode
		}
		_, err = g.putKeys(ctx, at, told)
		return err
	})
	if err == nil {
		l.own = after
		l.pulled.Store(&after)
	}
	return err
}

// pushKeys puts on a cell what has changed at home. It fails with errKeysLost if home may have lost changes, which the cell may have.
func (g *Gateway) pushKeys(ctx context.Context, at *cell, l *keyLevel) error {
	isAll := l.home == (mark{})
	var ofCell error
	after, err := readKeys(ctx, g.home(), l.home, func(page *keysPage) error {
		if page.Complete && !isAll {
			l.own, l.home = mark{}, mark{}
			return errKeysLost
		}
		_, ofCell = g.putKeys(ctx, at, page.Keys)
		return ofCell
	})
	switch {
	case errors.Is(err, errKeysLost), err != nil && ofCell != nil:
		return err
	case err != nil:
		return &homeKeysError{err}
	}
	l.home = after
	l.pushed.Store(&after)
	return nil
}

// prepare brings a cell level before it is used. While home cannot be asked, the cell is used with the keys that it has.
func (g *Gateway) prepare(ctx context.Context, at *cell) error {
	ctx, cancel := context.WithTimeout(ctx, levelTime)
	defer cancel()
	err := g.levelKeys(ctx, at, true)
	if ofHome, ok := errors.AsType[*homeKeysError](err); ok {
		at.log.Warn().Func(failure.Of(ofHome)).Msg("the cell has the keys that it had, as those of home could not be read")
		return nil
	}
	if err != nil {
		return &wrongCellError{"It could not be given the keys of home.", fmt.Sprintf("it could not be given the keys of home: %v", err)}
	}
	return nil
}

// pushWithin brings a cell that is used level with home within a time. If the cell does not let that happen, it is not used until it is level.
func (g *Gateway) pushWithin(ctx context.Context, at *cell, limit time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := g.levelKeys(limited, at, false)
	if err != nil && ctx.Err() == nil && !errors.As(err, new(*homeKeysError)) {
		at.fallBehind(fmt.Errorf("it could not be given the keys of home: %w", err))
	}
	return err
}

// spreadKeys puts on all cells what a caller has changed at home, before the caller is told. Cells that do not have it then are named in the answer.
func (g *Gateway) spreadKeys(ctx context.Context, c *call) {
	var missing []int
	var mu sync.Mutex
	var putting sync.WaitGroup
	for _, at := range g.cells() {
		if at.number == home {
			continue
		}
		putting.Go(func() {
			if at.isUp() && g.pushWithin(ctx, at, spreadTime) == nil {
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

// followHomeKeys has cells brought level whenever keys of home have changed, until ctx ends.
func (g *Gateway) followHomeKeys(ctx context.Context) {
	var known mark
	g.followKeys(ctx, g.home(), func() mark { return known }, func(page *keysPage) error {
		known = mark{page.Version, page.Epoch}
		g.homeKeys.Store(&known)
		for _, at := range g.cells() {
			if at.number != home && !at.keys.isAt(known) {
				at.wakeKeys()
			}
		}
		return nil
	})
}

// wakeKeys has the cell brought level soon.
func (c *cell) wakeKeys() {
	select {
	case c.keys.wake <- struct{}{}:
	default:
	}
}

// keepLevel brings a cell that is used level whenever its keys or those of home have changed, until ctx ends.
func (g *Gateway) keepLevel(ctx context.Context, at *cell) {
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() {
		known := func() mark {
			if pulled := at.keys.pulled.Load(); pulled != nil {
				return *pulled
			}
			return mark{}
		}
		g.followKeys(ctx, at, known, func(page *keysPage) error {
			if !page.Complete && len(page.Keys) == 0 {
				return nil
			}
			limited, cancel := context.WithTimeout(ctx, levelTime)
			defer cancel()
			return g.levelKeys(limited, at, true)
		})
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-at.keys.wake:
		}
		if !at.isUp() || g.pushWithin(ctx, at, levelTime) == nil || !at.isUp() {
			continue // or it is brought level before it is used again
		}
		select { // home cannot be asked
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
			at.wakeKeys()
		}
	}
}

// followKeys waits for changes of the keys of a cell that is used, and has seen called with each answer of the cell, until ctx ends. known is how far they are known.
func (g *Gateway) followKeys(ctx context.Context, at *cell, known func() mark, seen func(*keysPage) error) {
	pause := time.Duration(0)
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
		err := g.followKeysOnce(ctx, at, known(), seen)
		switch {
		case err == nil:
			pause = 0
		case ctx.Err() == nil:
			at.log.Error().Func(failure.Of(err)).Msg("changes of the keys of the cell could not be followed")
			pause = min(max(2*pause, minPause), maxPause)
		}
	}
}

func (g *Gateway) followKeysOnce(ctx context.Context, at *cell, known mark, seen func(*keysPage) error) error {
	limited, cancel := context.WithTimeout(ctx, followWait+followSpare)
	defer cancel()
	query := keysQuery(known, 1)
	if known != (mark{}) {
		query.Set("wait", followWait.String())
	}
	began := time.Now()
	page := new(keysPage)
	if err := at.do(limited, http.MethodGet, "/cell/keys?"+query.Encode(), at.ownHeader(), nil, page); err != nil {
		return err
	}
	if err := seen(page); err != nil {
		return err
	}
	if page.Version == known.version && time.Since(began) < minFollow { // the cell does not let anybody wait
		select {
		case <-ctx.Done():
		case <-time.After(minFollow):
		}
	}
	return nil
}
