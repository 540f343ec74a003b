package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/failure"
)

// How cells are looked after.
const (
	lookEvery    = time.Second      // at a cell that can be used, and at one that cannot
	lookTime     = 2 * time.Second  // that a look may take
	missedLooks  = 2                // in a row, after which a cell that does not answer counts as away
	verifyEvery  = 5 * time.Second  // that the number of a cell is asked for again, and whether it may have lost something
	dialTime     = 2 * time.Second  // that a connection may take
	idleTime     = 90 * time.Second // less than servers keep connections that nobody uses
	maxIdle      = 512              // connections to a cell that nobody uses
	bufferSize   = 2 << 10          // of a connection, each way: for headers; longer reads and writes go past it
	maxOwnAnswer = 1 << 20          // of an answer to a call of the gateway's own
	maxOwnPage   = 16 << 20         // of one that is read as a whole
)

// A cell is one of the deployments behind the gateway.
type cell struct {
	number int
	label  string // the number, for the log and the metrics
	url    *url.URL
	origin string // of the URL, as browsers send it

	transport *http.Transport
	keyNow    func() string // of an admin; empty: the cell needs none
	calls     pool          // places of calls that are answered soon
	waiting   pool          // places of those that may wait
	state     atomic.Pointer[state]
	levels    [subjects]*level
	prepare   func(context.Context, *cell) error // before the cell is used; nil: nothing is done
	log       zerolog.Logger
	takesNew  atomic.Bool            // new queues may be placed there, and queues on all cells are on it
	turns     atomic.Pointer[[]turn] // of that, in order; nil: home does not list the cell
	stop      func()                 // ends its watch

	drain context.Context // ends when the gateway drains
	first chan struct{}   // closed after the first look
}

// A state is what is known of a cell.
type state struct {
	usable   bool
	why      string // it cannot be used, for callers; empty if it can
	verified time.Time
	missed   int // looks in a row that were not answered in time

	life, waitLife context.Context // of calls, and of those that may wait: they end when the cell goes away, and those that wait when the gateway drains
	end            func(cause error)
}

// Causes of the end of a call's context.
var (
	errAway     = errors.New("the cell went away while the call was under way")
	errDraining = errors.New("the gateway is shutting down")
	errMoved    = errors.New("the queue was placed elsewhere while the claim waited")
)

func newCell(cfg *Config, number int, base *url.URL, drain context.Context) *cell { //nolint:revive // the context is of the whole gateway
	c := &cell{
		number: number, label: strconv.Itoa(number), url: base, origin: base.Scheme + "://" + base.Host, keyNow: ownKeyOf(cfg, number), drain: drain, first: make(chan struct{}), levels: [subjects]*level{newLevel(), newLevel()},
		log: cfg.Logger.With().Int("cell", number).Logger(),
		transport: &http.Transport{
			DialContext:           (&net.Dialer{Timeout: dialTime, KeepAlive: 15 * time.Second}).DialContext,
			TLSClientConfig:       cfg.TLS,
			TLSHandshakeTimeout:   5 * time.Second,
			ForceAttemptHTTP2:     true,
			DisableCompression:    true,
			MaxIdleConnsPerHost:   maxIdle,
			IdleConnTimeout:       idleTime,
			ResponseHeaderTimeout: cfg.AnswerTimeout,
			ExpectContinueTimeout: time.Second,
			ReadBufferSize:        bufferSize,
			WriteBufferSize:       bufferSize,
			// What an HTTP/2 stream may have on its way that its client has not read yet.
			HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 256 << 10, SendPingTimeout: blockedLimit, WriteByteTimeout: blockedLimit},
		},
	}
	c.takesNew.Store(true)
	c.calls.limit, c.waiting.limit = int64(cfg.MaxCalls), int64(cfg.MaxWaits)
	c.state.Store(&state{why: "It was not reached yet.", life: drain, waitLife: drain})
	return c
}

// isUp reports whether the cell can be used.
func (c *cell) isUp() bool { return c.state.Load().usable }

// watch looks at the cell until ctx ends.
func (c *cell) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for isFirst := true; ; isFirst = false {
		c.look(ctx)
		if isFirst {
			close(c.first)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look looks at the cell once: whether it answers, and now and then whether it is the one that it is said to be.
func (c *cell) look(ctx context.Context) {
	now := time.Now()
	before := c.state.Load()
	if !before.usable || now.Sub(before.verified) >= verifyEvery {
		err := c.verify(ctx, c.ownHeader())
		if err == nil && !before.usable && c.prepare != nil {
			err = c.prepare(ctx, c)
		}
		switch {
		case err == nil:
			c.use(before, now)
			return
		case ctx.Err() != nil, isOutOfFiles(err):
			return
		case !before.usable || errors.As(err, new(*wrongCellError)):
			c.leave(before, err)
			return
		}
		// It is known, and cannot look at its database now: its own answers say so best.
	}
	err := c.ask(ctx, "/livez", http.Header{}, nil)
	var timeout net.Error
	switch {
	case ctx.Err() != nil:
	case err == nil && before.missed > 0:
		next := *before
		next.missed = 0
		c.state.CompareAndSwap(before, &next)
	case err == nil, isOutOfFiles(err):
	case errors.As(err, &timeout) && timeout.Timeout() && before.missed+1 < missedLooks:
		next := *before
		next.missed++
		c.state.CompareAndSwap(before, &next)
	default:
		c.leave(before, err)
	}
}

// use has calls use the cell from now on, unless its state has changed since before.
func (c *cell) use(before *state, now time.Time) {
	next := &state{usable: true, verified: now, life: before.life, waitLife: before.waitLife, end: before.end}
	if !before.usable {
		life, end := context.WithCancelCause(context.Background())
		waitLife, endWaits := context.WithCancelCause(life)
		stop := context.AfterFunc(c.drain, func() { endWaits(errDraining) })
		next.life, next.waitLife = life, waitLife
		next.end = func(cause error) {
			stop()
			end(cause)
		}
		c.log.Info().Str("url", c.url.String()).Msg("the cell can be used")
	}
	if c.state.CompareAndSwap(before, next) && !before.usable {
		for _, l := range c.levels { // home may have changed since it was prepared
			l.wakeUp()
		}
	}
}

// fallBehind has no call use the cell until a later look, which prepares it anew.
func (c *cell) fallBehind(err error) {
	for before := c.state.Load(); before.usable && !c.leave(before, &wrongCellError{why: "It does not have the keys of home.", detail: err.Error()}); {
		before = c.state.Load()
	}
}

// leave has no call use the cell until a later look, and ends those that wait for its answer. It does nothing, and returns false, if the state has changed since before.
func (c *cell) leave(before *state, err error) bool {
	why := "It does not answer."
	wrong, isWrong := errors.AsType[*wrongCellError](err)
	if isWrong {
		why = wrong.why
	}
	next := &state{why: why, life: before.life, waitLife: before.waitLife}
	if !c.state.CompareAndSwap(before, next) {
		return false
	}
	if before.usable || before.why != why {
		c.log.Error().Func(failure.Of(err)).Str("url", c.url.String()).Msg("the cell cannot be used")
	}
	if before.end != nil {
		before.end(errAway)
	}
	return true
}

// A wrongCellError is why a cell that answers is not used.
type wrongCellError struct {
	why, detail string
	isRefusal   bool // it refuses the key
}

func (e *wrongCellError) Error() string { return e.detail }

// verify asks the cell for its number, with the key in a header. It fails with a *wrongCellError if that is another one, or if the cell does not say.
func (c *cell) verify(ctx context.Context, header http.Header) error {
	var got struct {
		Cell  *int   `json:"cell"`
		Epoch string `json:"epoch"`
	}
	err := c.ask(ctx, "/cell", header, &got)
	var refused *answered
	switch {
	case errors.As(err, &refused) && (refused.status == http.StatusUnauthorized || refused.status == http.StatusForbidden):
		return &wrongCellError{"It refuses the gateway's key.", fmt.Sprintf("it refuses the gateway's key, which has to be an admin key of every cell: %d %s", refused.status, refused.body), true}
	case errors.As(err, &refused) && refused.status < http.StatusInternalServerError:
		return &wrongCellError{"It does not say which cell it is.", fmt.Sprintf("it does not say which cell it is: GET /cell answered %d", refused.status), false}
	case err != nil:
		return err
	case got.Cell == nil || *got.Cell != c.number:
		found := "none"
		if got.Cell != nil {
			found = strconv.Itoa(*got.Cell)
		}
		return &wrongCellError{"Its URL leads to another cell.", "its URL leads to another cell: " + found, false}
	}
	for _, l := range c.levels {
		l.sawEpoch(got.Epoch)
	}
	return nil
}

// ask asks the cell for something that it says at once, and decodes the answer into out unless that is nil. An answer other than success is an *answered.
func (c *cell) ask(ctx context.Context, path string, header http.Header, out any) error {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	return c.do(ctx, http.MethodGet, path, header, nil, out)
}

// ownHeader returns the header of a call of the gateway's own.
func (c *cell) ownHeader() http.Header {
	key := c.keyNow()
	if key == "" {
		return http.Header{}
	}
	return http.Header{"Authorization": {"Bearer " + key}}
}

// ownKeyOf returns what returns the gateway's key for a cell as it is now.
func ownKeyOf(cfg *Config, number int) func() string {
	if cfg.Keys == nil {
		return func() string { return cfg.Key }
	}
	return func() string { return cmp.Or(cfg.Keys()[number], cfg.Key) }
}

// jsonHeader returns the header of a call of the gateway's own that has a body.
func (c *cell) jsonHeader() http.Header {
	header := c.ownHeader()
	header["Content-Type"] = []string{"application/json"}
	return header
}

// do makes a call of the gateway's own.
func (c *cell) do(ctx context.Context, method, path string, header http.Header, body io.Reader, out any) error {
	_, text, err := c.fetch(ctx, method, path, header, body, maxOwnPage)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	return nil
}

// fetch makes a call of the gateway's own and returns the header and the body of the answer, of at most limit bytes. An answer other than success is an *answered.
func (c *cell) fetch(ctx context.Context, method, path string, header http.Header, body io.Reader, limit int64) (http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.origin+path, body)
	if err != nil {
		return nil, nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	if err == nil && resp.StatusCode >= http.StatusBadRequest {
		err = &answered{resp.StatusCode, resp.Header, text}
	}
	return resp.Header, text, err
}
