package gateway

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/request"
)

// A call is what is known of one request. It is the request's http.ResponseWriter, too, to see the answer.
type call struct {
	http.ResponseWriter

	id        string
	start     time.Time
	route     *route                    // nil: there is none
	target    *cell                     // that the request is for; nil: none, or not known yet
	only      *cell                     // that the request says by its path, /cells/{number}/…; nil: it does not
	claim     *claim                    // of a claim whose queue is not in one place
	answer    func(*http.Request) error // of a call that several cells have a part of: it writes the answer, or fails before that; nil: one cell answers
	queue     string                    // that the request names, as far as the gateway had to look; empty: none
	mayWait   bool                      // it may be held for long before it is answered, or while it is
	client    string                    // the subject of the client's certificate; empty: none
	ownOrigin bool                      // its Origin is that of the gateway itself
	body      []byte                    // of the request, once isRead
	isRead    bool                      // the body was read
	holder    holder                    // who holds what the call holds
	isKnown   bool                      // home knows the caller, or knew it lately
	hold      body.Hold                 // the memory of the body
	shared    int64                     // bytes of the body that count for its holder
	held      atomic.Int64              // bytes of cells' answers to parts of it

	leases   *leases // in the answer to a claim that is on its way; nil: there is none
	released int     // of these, those that were given back
	writeErr error   // why the answer has not reached the client; nil: as far as is known, it has

	status int // 0 until the answer begins
	bytes  int64
	err    error     // why the answer is one of 500 or above, or was broken off
	code   string    // of the problem that the gateway has answered; empty: none
	until  time.Time // the deadline of writes

	ctx callContext
}

// A callContext is the context of a request, with its call. It is part of the call, so that a request has one allocation for both.
type callContext struct {
	context.Context
	call *call
}

type callKey struct{}

// Value implements context.Context.
func (c *callContext) Value(key any) any {
	if key == (callKey{}) {
		return c.call
	}
	return c.Context.Value(key)
}

// callOf returns the call of a context, which observe put there.
func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// WriteHeader implements http.ResponseWriter.
func (c *call) WriteHeader(status int) {
	if c.status == 0 && status >= http.StatusOK {
		c.status = status
		c.extend(time.Now())
	}
	c.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. A client that takes nothing for blockedLimit is given up.
func (c *call) Write(b []byte) (int, error) {
	if now := time.Now(); c.until.Sub(now) < blockedLimit-time.Second {
		c.extend(now)
	}
	if c.status == 0 {
		c.status = http.StatusOK
	}
	n, err := c.ResponseWriter.Write(b)
	c.bytes += int64(n)
	if err != nil && c.writeErr == nil {
		c.writeErr = err
	}
	return n, err
}

// FlushError writes what is buffered of the answer. It brings out the error of a connection that broke meanwhile.
func (c *call) FlushError() error {
	err := http.NewResponseController(c.ResponseWriter).Flush()
	if err != nil && c.writeErr == nil {
		c.writeErr = err
	}
	return err
}

// extend puts off the deadline of writes.
func (c *call) extend(now time.Time) {
	c.until = now.Add(blockedLimit)
	_ = http.NewResponseController(c.ResponseWriter).SetWriteDeadline(c.until)
}

// Unwrap lets http.ResponseController reach the connection.
func (c *call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// pattern is the route's, for the log and the metrics, where nothing of the caller's has a place.
func (c *call) pattern() string {
	if c.route == nil {
		return "unmatched"
	}
	return c.route.pattern
}

// observe gives each request its call, answers panics, and says in one line of the log and in the metrics how the request went.
func (g *Gateway) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{ResponseWriter: w, id: request.ID(r), start: time.Now()}
		c.ctx = callContext{r.Context(), c}
		r = r.WithContext(&c.ctx) //nolint:contextcheck // it inherits from the context of r
		admitHeader(r)
		defer g.finish(c, r)
		defer g.releaseMemory(c)
		defer g.rescue(c, r)
		next.ServeHTTP(c, r)
	})
}

// finish notes in the log and in the metrics how r went.
func (g *Gateway) finish(c *call, r *http.Request) {
	took := time.Since(c.start)
	number := ""
	switch {
	case c.answer != nil:
		number = "several"
	case c.target != nil:
		number = c.target.label
	}
	g.metrics.observe(number, c.pattern(), r.Method, c.status, took)
	level := g.level(c, took)
	line := g.log.WithLevel(level)
	if line == nil {
		return
	}
	line = line.Err(c.err)
	if level == zerolog.ErrorLevel && !g.cfg.LogAll {
		line.Str(failure.Field, strings.TrimSpace(cmp.Or(c.code, strconv.Itoa(c.status))+" "+number+" "+failure.Reason(c.err)))
	}
	line.Str("request_id", c.id).Str("method", r.Method).Str("route", c.pattern()).Int("status", c.status).Dur("duration_ms", took).Int64("bytes", c.bytes)
	if c.writeErr != nil {
		line.AnErr("undelivered", c.writeErr)
	}
	if c.released > 0 {
		line.Int("released", c.released)
	}
	for _, field := range [...][2]string{{"cell", number}, {"queue", c.queue}, {"code", c.code}, {"client", c.client}} {
		if field[1] != "" {
			line.Str(field[0], field[1])
		}
	}
	line.Msg("request")
}

// slowAfter is how long a request may take before it counts as slow, unless it is one that may wait.
const slowAfter = time.Second

// level is that of the line of the log about a request: as of a server's, successful calls that are made for every event are at debug.
func (g *Gateway) level(c *call, took time.Duration) zerolog.Level {
	isHealth := c.route != nil && c.route.isHealth()
	switch {
	case c.code == notReady.code && !g.cfg.LogAll && !isHealth: // callers try again
		return zerolog.DebugLevel
	case c.code != "" && c.code != notReady.code && c.status >= http.StatusInternalServerError && !isHealth: // of cells, the cell's log has it
		return zerolog.ErrorLevel
	case !g.cfg.LogAll && c.route != nil && c.route.busy && c.status < http.StatusBadRequest && (took < slowAfter || c.mayWait):
		return zerolog.DebugLevel
	default:
		return zerolog.InfoLevel
	}
}

var errPanic = errors.New("the handler panicked")

// rescue, deferred, answers a panic with a problem and leaves its stack in the log.
func (g *Gateway) rescue(c *call, r *http.Request) {
	cause := recover()
	switch cause {
	case nil:
		return
	case http.ErrAbortHandler:
		if r.Context().Err() != nil {
			c.status = statusClientGone
		}
		panic(cause)
	}
	g.log.Error().Str(failure.Field, "panic").Str("request_id", c.id).Any("panic", cause).Bytes("stack", debug.Stack()).Msg("panic")
	g.fail(c, r, errPanic)
}

// fail answers r with the problem that err is. When the client has gone, or has the beginning of another answer, it ends the request without one.
func (g *Gateway) fail(c *call, r *http.Request, err error) {
	if r.Context().Err() != nil && !c.hold.IsCutOff() { // the client cannot read an answer any more
		c.status = statusClientGone
		panic(http.ErrAbortHandler)
	}
	if c.status != 0 { // half an answer must not look like a whole one
		c.err = err
		panic(http.ErrAbortHandler)
	}
	if whole, ok := errors.AsType[*answered](err); ok {
		whole.write(c)
		return
	}
	p, ok := errors.AsType[*problem](err)
	if !ok {
		p = &problem{problemType: internalError, detail: "The gateway's log has the cause, under this request_id.", cause: err}
	}
	if p.status >= http.StatusInternalServerError {
		c.err = p.cause
	}
	c.code = p.code
	p.write(c, c.id)
}
