package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/request"
)

// maxCopy is how much of an answer is on its way in the gateway, in bytes, besides the buffers of connections.
const maxCopy = 16 << 10

// newProxy returns what passes requests and answers on. ReverseProxy removes the fields that are for one connection, copies bodies and the trailers of answers, and breaks off the answer
// when the cell breaks off its own.
func (g *Gateway) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     exchange{g},
		FlushInterval: -1, // at once
		BufferPool:    newCopyBuffers(),
		ErrorLog:      stdlog.New(warnings{g.log}, "", 0),
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) {
			c := callOf(r.Context())
			g.fail(c, r, err)
		},
	}
}

// rewrite makes the request for the cell. ReverseProxy has removed Forwarded and X-Forwarded-* of the caller, whom nobody knows.
func rewrite(p *httputil.ProxyRequest) {
	c := callOf(p.In.Context())
	p.Out.URL.RawQuery = p.In.URL.RawQuery // cells refuse what is malformed; ReverseProxy would leave it out
	p.SetXForwarded()
	p.Out.Header["X-Request-Id"] = []string{c.id}
	p.Out.Host = ""
}

// copyBuffers are the buffers of answers on their way.
type copyBuffers struct{ pool sync.Pool }

func newCopyBuffers() *copyBuffers {
	return &copyBuffers{sync.Pool{New: func() any { return new([maxCopy]byte) }}}
}

// Get implements httputil.BufferPool.
func (b *copyBuffers) Get() []byte { return b.pool.Get().(*[maxCopy]byte)[:] }

// Put implements httputil.BufferPool.
func (b *copyBuffers) Put(buffer []byte) { b.pool.Put((*[maxCopy]byte)(buffer)) }

// warnings logs what net/http reports.
type warnings struct{ log zerolog.Logger }

// Write implements io.Writer.
func (w warnings) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	kind := "other"
	for _, begin := range []string{"httputil: ReverseProxy read error", "http: TLS handshake error", "http: Accept error", "http2: "} {
		if strings.HasPrefix(text, begin) {
			kind = begin
		}
	}
	w.log.Warn().Str("error", text).Str(failure.Field, kind).Msg("a connection could not be served")
	return len(line), nil
}

// exchange is the http.RoundTripper of the proxy: it has requests answered by cells.
type exchange struct{ g *Gateway }

// RoundTrip implements http.RoundTripper.
func (e exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	c := callOf(r.Context())
	if c.claim != nil {
		resp, err := e.g.answerClaim(c, r)
		if err == nil {
			c.claim.putAcked(c, resp)
		}
		return resp, err
	}
	resp, err := e.g.send(c, c.target, r)
	if err == nil && c.target.number != home {
		keepOwnCookies(resp, c.target.number)
	}
	if err == nil && c.route != nil && c.route.changes != nil && resp.StatusCode < http.StatusBadRequest && e.g.single() == nil {
		c.missing(e.g.spread(r.Context(), *c.route.changes))
	}
	return resp, err
}

// keepOwnCookies leaves of what the answer of a cell sets in browsers the cookie of the log-in to its own pages: the host is the gateway's, and so home's.
func keepOwnCookies(resp *http.Response, number int) {
	delete(resp.Header, "Clear-Site-Data")
	if set := resp.Header["Set-Cookie"]; set != nil {
		own := request.SessionCookie(number) + "="
		resp.Header["Set-Cookie"] = slices.DeleteFunc(set, func(cookie string) bool { return !strings.HasPrefix(cookie, own) })
	}
}

// send sends r to a cell and returns its answer. An error is a *problem, or that of a client that has gone.
func (g *Gateway) send(c *call, to *cell, r *http.Request) (*http.Response, error) {
	if c.route != nil && c.route.claims {
		return g.sendClaim(c, to, r)
	}
	return g.sendCall(c, to, r)
}

// sendCall is send for a call that is broken off when its client goes.
func (g *Gateway) sendCall(c *call, to *cell, r *http.Request) (*http.Response, error) { //nolint:contextcheck // see AfterFunc
	leave, life, err := g.enter(c, to)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) }) //nolint:contextcheck // it is the cell's, beside that of r
	end := func() {
		stop()
		cancel(nil)
		leave()
	}
	resp, err := g.try(c, to, r.WithContext(ctx))
	if err != nil {
		cause := context.Cause(ctx)
		end()
		return nil, explain(c, to, r, err, cause)
	}
	if !c.mayWait {
		stop() // what has begun is finished, or breaks by itself
	}
	resp.Body = &answerBody{resp.Body, sync.OnceFunc(end), ctx, c.route != nil && c.route.streams}
	return resp, nil
}

// enter takes a place for a call at a cell, and returns what gives it back, and when such calls end there.
func (g *Gateway) enter(c *call, to *cell) (leave func(), life context.Context, err error) {
	s := to.state.Load()
	if !s.usable {
		return nil, nil, away(to.number, "Cell "+to.label+" is needed for this call and cannot be used. "+s.why+" Nothing was done; retry.", nil)
	}
	places, life := &to.calls, s.life
	if c.mayWait {
		places, life = &to.waiting, s.waitLife
	}
	giveBack, err := g.takePlace(places, to, c.holder)
	if err != nil || !c.mayWait {
		return giveBack, life, err
	}
	if !g.waiting.take(c.holder, 1) {
		giveBack()
		g.metrics.refused.WithLabelValues(to.label).Inc()
		return nil, nil, full("The gateway holds as many calls that wait as the files that it may open allow, in all or of this caller. Nothing was done; retry with growing pauses.")
	}
	return func() { g.waiting.give(c.holder, 1); giveBack() }, life, nil
}

// try sends r to a cell, once more if the cell has refused the connection.
func (g *Gateway) try(c *call, to *cell, r *http.Request) (*http.Response, error) {
	for isFirst := true; ; isFirst = false {
		out := new(http.Request)
		*out = *r
		at := *r.URL
		at.Scheme, at.Host = to.url.Scheme, to.url.Host
		out.URL = &at
		if c.ownOrigin {
			out.Header = r.Header.Clone()
			out.Header["Origin"] = []string{to.origin}
		}
		if whole, ok := r.Body.(*wholeBody); ok {
			out.Body = newBody(whole.text)
			if r.Header["Idempotency-Key"] == nil && r.Header["X-Idempotency-Key"] == nil { // else net/http would repeat what may have taken effect
				out.GetBody = func() (io.ReadCloser, error) { return newBody(whole.text), nil } // of a connection that was closed before anything was written
			}
		} else if r.Body != nil {
			out.Body = io.NopCloser(r.Body) // it stays open, as a connection that was refused is tried again
		}
		resp, err := to.transport.RoundTrip(out)
		if err == nil || !isFirst || !isDial(err) || r.Context().Err() != nil {
			return resp, err
		}
	}
}

// isDial reports whether err is of a connection that was never made.
func isDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// isOutOfFiles reports whether err says that the gateway, or its machine, has no file left for a connection: the other side has nothing to do with it.
func isOutOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// isHandshake reports whether err is of a connection whose ends did not agree on TLS.
func isHandshake(err error) bool {
	var op *net.OpError
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, &op) && op.Op == "remote error" || errors.Is(err, http.ErrSchemeMismatch)
}

// explain returns the problem of a call that a cell has not answered. cause is why its context has ended, if it has.
func explain(c *call, to *cell, r *http.Request, err, cause error) error {
	switch {
	case r.Context().Err() != nil:
		return r.Context().Err()
	case errors.Is(cause, errDraining):
		return &problem{problemType: notReady, detail: "The gateway is shutting down. Nothing was done; retry.", retry: 1, cause: errDraining}
	case errors.Is(cause, errAway):
		err = errAway
	case isOutOfFiles(err):
		return full("The gateway has as many connections as the files that it may open allow. Nothing was done; retry with growing pauses.")
	case isDial(err), isHandshake(err):
		return away(to.number, "Cell "+to.label+" is needed for this call and does not answer. Nothing was done; retry.", err)
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead || c.mayWait {
		return away(to.number, "Cell "+to.label+" went away while it answered. The call can be repeated.", err)
	}
	p := refuse(outcomeUnknown, "Cell %s went away before it answered. The call may have taken effect: repeat it only if it may be made twice, or has an idempotency key.", to.label)
	p.cell, p.cause = &to.number, err
	return p
}

// An answerBody is the body of a cell's answer.
type answerBody struct {
	io.ReadCloser
	end      func() // of the call
	ctx      context.Context
	isStream bool
}

// Read implements io.Reader. A stream ends well when the gateway drains: its client comes back to another one.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.isStream && errors.Is(context.Cause(b.ctx), errDraining) {
		err = io.EOF
	}
	return n, err
}

// Close implements io.Closer.
func (b *answerBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// isOwnOrigin reports whether r has an Origin, that of the host that it was made to.
func isOwnOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host == r.Host
}
