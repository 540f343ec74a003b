package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// A claim that nobody waits for any more, because its client has gone, or its queue is placed elsewhere, is withdrawn. To break the connection to the cell off would lose an answer that is
// on its way, and its leases with it. So the gateway says that it sends no more, and goes on reading: the cell, whose client seems to go, undoes the claim and closes the connection, or has
// answered before; then the leases are given back.

// withdrawTime is how long a cell may take to end a claim that was withdrawn.
const withdrawTime = 5 * time.Second

// A withdrawal is how a claim can be withdrawn from its cell.
type withdrawal struct {
	cancel context.CancelCauseFunc // breaks the call off

	mu        sync.Mutex
	conn      net.Conn // that the claim was sent on; nil: there is none yet
	cause     error    // why it is withdrawn; nil: it is not
	isSettled bool     // the cell has answered, or the call has failed: it is too late
	late      *time.Timer
}

// on notes the connection of the claim.
func (w *withdrawal) on(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn = conn; w.cause != nil && !w.isSettled {
		w.closeWrite()
	}
}

// withdraw withdraws the claim.
func (w *withdrawal) withdraw(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isSettled || w.cause != nil {
		return
	}
	w.cause = cause
	w.late = time.AfterFunc(withdrawTime, func() { w.cancel(cause) })
	if w.conn != nil {
		w.closeWrite()
	}
}

// closeWrite tells the cell that no more is sent. A connection of HTTP/2 has the calls of others, so the claim is broken off there. The caller holds mu.
func (w *withdrawal) closeWrite() {
	half, canClose := w.conn.(interface{ CloseWrite() error })
	if over, isTLS := w.conn.(*tls.Conn); isTLS && over.ConnectionState().NegotiatedProtocol == "h2" {
		canClose = false
	}
	if !canClose || half.CloseWrite() != nil {
		w.cancel(w.cause)
	}
}

// settle is called once the cell has answered or the call has failed. It returns why the claim was withdrawn before; nil: it was not, and is not any more.
func (w *withdrawal) settle() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isSettled = true; w.late != nil {
		w.late.Stop()
	}
	return w.cause
}

// A sentClaim is a claim at a cell.
type sentClaim struct {
	withdrawal

	trace      httptrace.ClientTrace
	request    *http.Request
	ctx        context.Context
	leave      func() // gives the place back
	stopClient func() bool
	stopLife   func() bool
}

// sendClaim is send for a claim: the end of the context of r withdraws it, and the leases in the answer are kept.
//
// It is on the stack while the claim waits, and what it calls before and after is not: see claimOnce.
func (g *Gateway) sendClaim(c *call, to *cell, r *http.Request) (*http.Response, error) {
	sent, err := g.beginClaim(c, to, r)
	if err != nil {
		return nil, err
	}
	resp, err := g.try(c, to, sent.request)
	return g.endClaim(c, to, r, sent, resp, err)
}

// beginClaim makes what sends a claim.
//
//go:noinline
func (g *Gateway) beginClaim(c *call, to *cell, r *http.Request) (*sentClaim, error) { //nolint:contextcheck // see AfterFunc
	leave, life, err := g.enter(c, to)
	if err != nil {
		return nil, err
	}
	sent := &sentClaim{leave: leave}
	sent.ctx, sent.cancel = context.WithCancelCause(context.WithoutCancel(r.Context()))
	sent.stopClient = context.AfterFunc(r.Context(), func() { sent.withdraw(context.Cause(r.Context())) }) //nolint:contextcheck // it ends with it
	sent.stopLife = context.AfterFunc(life, func() {                                                       //nolint:contextcheck // it is the cell's, beside that of r
		if cause := context.Cause(life); errors.Is(cause, errDraining) {
			sent.withdraw(cause)
		} else {
			sent.cancel(cause)
		}
	})
	sent.trace.GotConn = func(got httptrace.GotConnInfo) { sent.on(got.Conn) }
	sent.request = r.WithContext(httptrace.WithClientTrace(sent.ctx, &sent.trace)) //nolint:contextcheck // it ends by being withdrawn
	return sent, nil
}

// end is called when the claim and its answer are over.
func (s *sentClaim) end() {
	s.stopClient()
	s.stopLife()
	s.cancel(nil)
	s.leave()
}

// endClaim returns what sendClaim does, of the answer to a claim or the error instead.
//
//go:noinline
func (g *Gateway) endClaim(c *call, to *cell, r *http.Request, sent *sentClaim, resp *http.Response, err error) (*http.Response, error) {
	cause := sent.settle()
	sent.stopClient()
	switch {
	case err == nil && cause != nil:
		g.takeBack(c, to, r, resp)
		sent.end()
		return nil, explain(c, to, r, errWithdrawn, cause)
	case err != nil:
		if cause == nil {
			cause = context.Cause(sent.ctx)
		}
		sent.end()
		return nil, explain(c, to, r, err, cause)
	}
	if !c.mayWait {
		sent.stopLife() // what has begun is finished, or breaks by itself
	}
	resp.Body = &answerBody{resp.Body, sync.OnceFunc(sent.end), sent.ctx, false}
	g.watchLeases(c, to, resp)
	return resp, nil
}

// errWithdrawn is of a claim that was answered after it was withdrawn.
var errWithdrawn = errors.New("the claim was withdrawn")

// takeBack gives back the leases in the answer to a claim that was withdrawn. The last byte, which no lease needs, stays unread: so the connection, on which nothing more can be sent, is used no
// more.
func (g *Gateway) takeBack(c *call, to *cell, r *http.Request, resp *http.Response) {
	all := resp.Body
	defer func() { _ = all.Close() }()
	if resp.StatusCode != http.StatusOK {
		return
	}
	late := time.AfterFunc(releaseTime, func() { _ = all.Close() })
	defer late.Stop()
	l := &leases{at: to, from: callerHeader(r), call: c, g: g}
	rest := io.Reader(&claimBody{ReadCloser: all, leases: l})
	if resp.ContentLength > 0 {
		rest = io.LimitReader(rest, resp.ContentLength-1)
	}
	_, _ = io.Copy(io.Discard, rest)
	g.giveBack(r.Context(), l)
}
