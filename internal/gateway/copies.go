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
	"github.com/queued/queued/internal/rounds"
)

// Keys are made at home, and every cell checks its callers itself. So gateways put copies of them on all cells: one way, as home says. A cell has the keys of home before it is used, and again whenever one
// has changed at home; it is used no more when it does not take a change. Any number of gateways do it at once, of whatever age: cells take the changes of an epoch of home in any order and more than once,
// and end the same. Another epoch of home says that it may have lost changes: all keys are put then, and a cell takes them only from who has asked home after the cell has said which epoch it knows. Another
// epoch of the cell says that it may have lost copies: all are put again.

// How copies are put.
const (
	copiesPageSize = 500      // in an answer
	maxCopiesPage  = 64 << 20 // bytes of an answer: of 500 keys with all the patterns that there may be
	maxPutBytes    = 512 << 10
	levelTime      = 2 * time.Minute // that a cell may take to get all keys
	spreadTime     = 3 * time.Second // that a caller who has changed something waits for one cell
)

// A mark is how far changes of home's keys are known. The zero value is: not at all.
type mark struct {
	version int64
	epoch   string
}

// A level is how far a cell has the keys of home.
type level struct {
	busy  chan struct{}        // full while copies are put; it guards the next one
	home  mark                 // what has changed up to this is on the cell
	known atomic.Pointer[mark] // home, for others; nil: the cell was never level
	wake  chan struct{}        // something has changed at home

	epoch  atomic.Pointer[string] // of the cell; nil: it was not asked yet
	isLost atomic.Bool            // the cell may have lost copies
}

func newLevel() *level {
	return &level{busy: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

// isAt reports whether the cell has all changes of home up to a mark, as far as this gateway knows.
func (l *level) isAt(m mark) bool {
	known := l.known.Load()
	return known != nil && *known == m
}

// sawEpoch notes the epoch of the cell.
func (l *level) sawEpoch(epoch string) {
	if before := l.epoch.Swap(&epoch); before != nil && *before != epoch {
		l.isLost.Store(true)
		l.wakeUp()
	}
}

// wakeUp has the cell brought level soon.
func (l *level) wakeUp() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// A copiesPage is an answer to GET /cell/keys.
type copiesPage struct {
	Keys     []json.RawMessage `json:"keys"`
	Next     *string           `json:"next"`
	Version  int64             `json:"version"`
	Epoch    string            `json:"epoch"`
	Complete bool              `json:"complete"`
}

// mark is what to go on from, of a first page.
func (p *copiesPage) mark() mark { return mark{p.Version, p.Epoch} }

// errOtherEpoch is why all keys have to be put, as home says them now.
var errOtherEpoch = errors.New("home or the cell knows another epoch of keys")

// A homeCopiesError is of home: the cell that was to be brought level has nothing to do with it.
type homeCopiesError struct{ cause error }

func (e *homeCopiesError) Error() string { return "home: " + e.cause.Error() }

// Unwrap returns the cause.
func (e *homeCopiesError) Unwrap() error { return e.cause }

// readCopies reads copies that have changed at home since a mark, page by page, and returns the mark to go on from. isAll: they are all that there are.
func (g *Gateway) readCopies(ctx context.Context, after mark, use func(page *copiesPage, isAll bool) error) (mark, error) {
	at := g.home()
	query := after.query(copiesPageSize)
	isAll := false
	for isFirst := true; ; isFirst = false {
		page := new(copiesPage)
		_, text, err := at.fetch(ctx, http.MethodGet, "/cell/keys?"+query.Encode(), at.ownHeader(), nil, maxCopiesPage)
		if err == nil {
			err = json.Unmarshal(text, page)
		}
		switch {
		case err != nil:
			return mark{}, &homeCopiesError{err}
		case isFirst:
			after, isAll = page.mark(), page.Complete
		case page.Epoch != after.epoch:
			return mark{}, errOtherEpoch
		}
		if err := use(page, isAll); err != nil || page.Next == nil {
			return after, err
		}
		query.Set("cursor", *page.Next)
	}
}

// query returns the parameters that ask for what has changed since a mark.
func (m mark) query(limit int) url.Values {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if m != (mark{}) {
		query.Set("after_version", strconv.FormatInt(m.version, 10))
		query.Set("epoch", m.epoch)
	}
	return query
}

// A copiesPut is a call of PUT /cell/keys.
type copiesPut struct {
	Keys     []json.RawMessage `json:"keys"`
	Epoch    string            `json:"epoch"`
	Before   string            `json:"before,omitzero"`
	Complete bool              `json:"complete,omitzero"`
}

// putCopies puts copies of an epoch on a cell. before is the epoch that the cell has said it knows, empty if it was not asked: when it knows another one, that is noted there, and the call fails with errOtherEpoch.
func putCopies(ctx context.Context, at *cell, epoch string, before *string, copies []json.RawMessage, isComplete bool) error {
	for isFirst := true; len(copies) > 0 || isFirst && isComplete; isFirst = false {
		n, size := 0, 0
		for n < len(copies) && (n == 0 || size+len(copies[n]) < maxPutBytes) {
			size += len(copies[n])
			n++
		}
		put := copiesPut{append([]json.RawMessage{}, copies[:n]...), epoch, *before, isComplete && n == len(copies)}
		copies = copies[n:]
		body, err := json.Marshal(put)
		if err != nil {
			return err
		}
		var answer struct {
			Epoch string `json:"epoch"`
			Keys  []struct {
				ID     string `json:"id"`
				Result string `json:"result"`
				Code   string `json:"code"`
				Detail string `json:"detail"`
			} `json:"keys"`
		}
		if err := at.do(ctx, http.MethodPut, "/cell/keys", at.jsonHeader(), bytes.NewReader(body), &answer); err != nil {
			return err
		}
		if answer.Epoch != epoch {
			*before = answer.Epoch
			return errOtherEpoch
		}
		for _, one := range answer.Keys {
			if one.Result == "refused" {
				at.log.Error().Str(failure.Field, "key "+one.Code).Str("id", one.ID).Str("error", one.Detail).Msg("the cell does not take the copy of a key")
			}
		}
	}
	return nil
}

// bringLevel puts on a cell what it does not have of home's keys, by the end of ctx. It fails with a *homeCopiesError if home cannot be asked.
func (g *Gateway) bringLevel(ctx context.Context, at *cell) error {
	l := at.keys
	select {
	case l.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.busy }()
	before := ""
	var err error
	for range 3 { // a failover of each
		if l.isLost.Swap(false) {
			l.home = mark{}
		}
		var after mark
		after, err = g.readCopies(ctx, l.home, func(page *copiesPage, isAll bool) error {
			return putCopies(ctx, at, page.Epoch, &before, page.Keys, isAll && page.Next == nil)
		})
		if err == nil {
			l.home = after
			l.known.Store(&after)
			return nil
		}
		if !errors.Is(err, errOtherEpoch) {
			return err
		}
		l.home = mark{}
	}
	return err
}

// prepare gives a cell the keys of home before it is used. While home cannot be asked, the cell is used with the keys that it has.
func (g *Gateway) prepare(ctx context.Context, at *cell) error {
	ctx, cancel := context.WithTimeout(ctx, levelTime)
	defer cancel()
	err := g.bringLevel(ctx, at)
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
func (g *Gateway) pushWithin(ctx context.Context, at *cell, limit time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := g.bringLevel(limited, at)
	if err != nil && ctx.Err() == nil && !errors.As(err, new(*homeCopiesError)) {
		at.fallBehind(fmt.Errorf("it could not be given the keys of home: %w", err))
	}
	return err
}

// spread puts on all cells what a caller has changed at home, before the caller is told. Cells that do not have it then are named in the answer.
func (g *Gateway) spread(ctx context.Context, c *call) {
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

// keysMark is how far changes of home's keys are known: what was found out under another one may be wrong.
func (g *Gateway) keysMark() mark {
	if m := g.homeKeys.Load(); m != nil {
		return *m
	}
	return mark{}
}

// keepLevel brings a cell that is used level whenever something has changed at home, until ctx ends.
func (g *Gateway) keepLevel(ctx context.Context, at *cell) {
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
			at.keys.wakeUp()
		}
	}
}

// followKeys waits for changes of home's keys, and has cells brought level, until ctx ends.
func (g *Gateway) followKeys(ctx context.Context) {
	pause := time.Duration(0)
	limiter := g.rounds.Loop("following keys").Limiter()
	for ctx.Err() == nil {
		if pause > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
		if !g.home().isUp() || g.single() != nil {
			pause = minPause
			continue
		}
		before, began := g.keysMark(), time.Now()
		err := g.followKeysOnce(ctx, before)
		switch {
		case err == nil:
			pause = limiter.Delay(g.keysMark() == before && time.Since(began) < rounds.MinWait)
		case ctx.Err() == nil:
			g.home().log.Error().Func(failure.Of(err)).Msg("changes of the keys of home could not be followed")
			pause = min(max(2*pause, minPause), maxPause)
		}
	}
}

func (g *Gateway) followKeysOnce(ctx context.Context, known mark) error {
	limited, cancel := context.WithTimeout(ctx, followWait+followSpare)
	defer cancel()
	query := known.query(1)
	if known != (mark{}) {
		query.Set("wait", followWait.String())
	}
	began := time.Now()
	page := new(copiesPage)
	if err := g.home().do(limited, http.MethodGet, "/cell/keys?"+query.Encode(), g.home().ownHeader(), nil, page); err != nil {
		return err
	}
	now := page.mark()
	g.homeKeys.Store(&now)
	for _, at := range g.cells() {
		if at.number != home && !at.keys.isAt(now) {
			at.keys.wakeUp()
		}
	}
	if known != (mark{}) && len(page.Keys) == 0 && time.Since(began) < minFollow { // home does not let anybody wait
		select {
		case <-ctx.Done():
		case <-time.After(minFollow):
		}
	}
	return nil
}
