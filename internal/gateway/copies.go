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

// Keys are made at home, and queues are set there, and every cell goes by its own of both. So gateways put copies of them on all cells: one way, as home says. A cell has what home has before it is used, and again
// whenever something has changed at home; it is used no more when it does not take a change of keys. Any number of gateways do it at once, of whatever age: cells take the changes of an epoch of home in any order
// and more than once, and end the same. Another epoch of home says that it may have lost changes: all copies are put then, and a cell takes them only from who has asked home after the cell has said which epoch it
// knows. Another epoch of the cell says that it may have lost copies: all are put again.

// A subject is what copies are of.
type subject int

const (
	ofKeys subject = iota
	ofSettings
	subjects
)

// path is where copies are read and put.
func (s subject) path() string { return [subjects]string{"/cell/keys", "/cell/settings"}[s] }

// member has the copies in a call.
func (s subject) member() string { return [subjects]string{"keys", "queues"}[s] }

// String returns what copies are of, as one says it.
func (s subject) String() string { return [subjects]string{"keys", "settings of queues"}[s] }

// How copies are put.
const (
	copiesPageSize = 500      // in an answer
	maxCopiesPage  = 64 << 20 // bytes of an answer: of 500 keys with all the patterns that there may be
	maxPutBytes    = 512 << 10
	levelTime      = 2 * time.Minute // that a cell may take to get all keys
	spreadTime     = 3 * time.Second // that a caller who has changed something waits for one cell
)

// A mark is how far changes of home are known. The zero value is: not at all.
type mark struct {
	version int64
	epoch   string
}

// A level is how far a cell has the keys, or the settings of queues, of home.
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

// A copiesPage is an answer to GET /cell/keys or /cell/settings: it has one of the two lists.
type copiesPage struct {
	Keys     []json.RawMessage `json:"keys,omitzero"`
	Queues   []json.RawMessage `json:"queues,omitzero"`
	Next     *string           `json:"next"`
	Version  int64             `json:"version"`
	Epoch    string            `json:"epoch"`
	Complete bool              `json:"complete"`
}

// mark is what to go on from, of a first page.
func (p *copiesPage) mark() mark { return mark{p.Version, p.Epoch} }

func (p *copiesPage) copies() []json.RawMessage { return append(p.Keys, p.Queues...) }

// errOtherEpoch is why all keys have to be put, as home says them now.
var errOtherEpoch = errors.New("home or the cell knows another epoch")

// A homeCopiesError is of home: the cell that was to be brought level has nothing to do with it.
type homeCopiesError struct{ cause error }

func (e *homeCopiesError) Error() string { return "home: " + e.cause.Error() }

// Unwrap returns the cause.
func (e *homeCopiesError) Unwrap() error { return e.cause }

// readCopies reads copies that have changed at home since a mark, page by page, and returns the mark to go on from. isAll: they are all that there are.
func (g *Gateway) readCopies(ctx context.Context, of subject, after mark, use func(page *copiesPage, isAll bool) error) (mark, error) {
	at := g.home()
	query := after.query(copiesPageSize)
	isAll := false
	for isFirst := true; ; isFirst = false {
		page := new(copiesPage)
		_, text, err := at.fetch(ctx, http.MethodGet, of.path()+"?"+query.Encode(), at.ownHeader(), nil, maxCopiesPage)
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

// putCopies puts copies of an epoch on a cell. before is the epoch that the cell has said it knows, empty if it was not asked: when it knows another one, that is noted there, and the call fails with errOtherEpoch.
func putCopies(ctx context.Context, at *cell, of subject, epoch string, before *string, copies []json.RawMessage, isComplete bool) error {
	for isFirst := true; len(copies) > 0 || isFirst && isComplete; isFirst = false {
		n, size := 0, 0
		for n < len(copies) && (n == 0 || size+len(copies[n]) < maxPutBytes) {
			size += len(copies[n])
			n++
		}
		put := map[string]any{of.member(): append([]json.RawMessage{}, copies[:n]...), "epoch": epoch, "complete": isComplete && n == len(copies)}
		if *before != "" {
			put["before"] = *before
		}
		copies = copies[n:]
		body, err := json.Marshal(put)
		if err != nil {
			return err
		}
		var answer struct {
			Epoch  string    `json:"epoch"`
			Keys   []copyPut `json:"keys"`
			Queues []copyPut `json:"queues"`
		}
		if err := at.do(ctx, http.MethodPut, of.path(), at.jsonHeader(), bytes.NewReader(body), &answer); err != nil {
			return err
		}
		if answer.Epoch != epoch {
			*before = answer.Epoch
			return errOtherEpoch
		}
		for _, one := range append(answer.Keys, answer.Queues...) {
			if one.Result == "refused" {
				at.log.Error().Str(failure.Field, of.member()+" "+one.Code).Str("of", one.ID+one.Queue).Str("error", one.Detail).Msg("the cell does not take a copy of " + of.String())
			}
		}
	}
	return nil
}

// A copyPut is what became of a copy, of the key or the queue.
type copyPut struct {
	ID     string `json:"id"`
	Queue  string `json:"queue"`
	Result string `json:"result"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// bringLevel puts on a cell what it does not have of home's, by the end of ctx. It fails with a *homeCopiesError if home cannot be asked.
func (g *Gateway) bringLevel(ctx context.Context, at *cell, of subject) error {
	l := at.levels[of]
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
		after, err = g.readCopies(ctx, of, l.home, func(page *copiesPage, isAll bool) error {
			return putCopies(ctx, at, of, page.Epoch, &before, page.copies(), isAll && page.Next == nil)
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

// prepare gives a cell what home has before it is used. While home cannot be asked, the cell is used with what it has.
func (g *Gateway) prepare(ctx context.Context, at *cell) error {
	ctx, cancel := context.WithTimeout(ctx, levelTime)
	defer cancel()
	for of := range subjects {
		err := g.bringLevel(ctx, at, of)
		if ofHome, ok := errors.AsType[*homeCopiesError](err); ok {
			at.log.Warn().Func(failure.Of(ofHome)).Msgf("the cell has the %s that it had, as those of home could not be read", of)
			continue
		}
		if err != nil {
			return &wrongCellError{fmt.Sprintf("It could not be given the %s of home.", of), fmt.Sprintf("it could not be given the %s of home: %v", of, err), false}
		}
	}
	return nil
}

// pushWithin brings a cell that is used level with home within a time. A cell that does not take changes of keys is not used until it has what it needs.
func (g *Gateway) pushWithin(ctx context.Context, at *cell, of subject, limit time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := g.bringLevel(limited, at, of)
	switch {
	case err == nil || ctx.Err() != nil || errors.As(err, new(*homeCopiesError)):
	case of == ofKeys:
		at.fallBehind(fmt.Errorf("it could not be given the keys of home: %w", err))
	default:
		at.log.Warn().Func(failure.Of(err)).Msgf("the cell has not taken the %s of home yet", of)
	}
	return err
}

// spread puts on all cells what a caller has changed at home, before the caller is told. It returns the numbers of those that do not have it then.
func (g *Gateway) spread(ctx context.Context, of subject) (missing []int) {
	var mu sync.Mutex
	var putting sync.WaitGroup
	for _, at := range g.cells() {
		if at.number == home {
			continue
		}
		putting.Go(func() {
			if at.isUp() && g.pushWithin(ctx, at, of, spreadTime) == nil {
				return
			}
			at.levels[of].wakeUp()
			mu.Lock()
			defer mu.Unlock()
			missing = append(missing, at.number)
		})
	}
	putting.Wait()
	return missing
}

// markOf is how far changes of home are known.
func (g *Gateway) markOf(of subject) mark {
	if m := g.marks[of].Load(); m != nil {
		return *m
	}
	return mark{}
}

// keysMark is markOf keys: what was found out about a caller under another one may be wrong.
func (g *Gateway) keysMark() mark { return g.markOf(ofKeys) }

// keepLevel brings a cell that is used level whenever something has changed at home, until ctx ends.
func (g *Gateway) keepLevel(ctx context.Context, at *cell, of subject) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-at.levels[of].wake:
		}
		limit := levelTime
		if of == ofKeys { // a key that was revoked must not work on a cell for longer than on the others
			limit = spreadTime
		}
		if !at.isUp() || g.pushWithin(ctx, at, of, limit) == nil || !at.isUp() {
			continue // or it is brought level before it is used again
		}
		select { // home cannot be asked, or the cell has not taken what it has
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
			at.levels[of].wakeUp()
		}
	}
}

// followHome waits for changes of home, and has cells brought level, until ctx ends.
func (g *Gateway) followHome(ctx context.Context, of subject) {
	isReady := func() bool { return g.home().isUp() && g.single() == nil }
	g.keepDoing(ctx, "following "+of.String(), isReady, func() (bool, error) {
		before := g.markOf(of)
		err := g.followOnceOf(ctx, of, before)
		return g.markOf(of) != before, err
	}, func(err error) {
		g.home().log.Error().Func(failure.Of(err)).Msgf("changes of the %s of home could not be followed", of)
	})
}

func (g *Gateway) followOnceOf(ctx context.Context, of subject, known mark) error {
	limited, cancel := context.WithTimeout(ctx, followWait+followSpare)
	defer cancel()
	query := known.query(1)
	if known != (mark{}) && of == ofKeys {
		query.Set("wait", followWait.String())
	}
	began := time.Now()
	page := new(copiesPage)
	if err := g.home().do(limited, http.MethodGet, of.path()+"?"+query.Encode(), g.home().ownHeader(), nil, page); err != nil {
		return err
	}
	now := page.mark()
	g.marks[of].Store(&now)
	for _, at := range g.cells() {
		if at.number != home && (page.Complete || len(page.copies()) > 0) {
			at.levels[of].wakeUp()
		}
	}
	if known != (mark{}) && len(page.copies()) == 0 && time.Since(began) < minFollow { // home does not let anybody wait
		select {
		case <-ctx.Done():
		case <-time.After(minFollow):
		}
	}
	return nil
}
