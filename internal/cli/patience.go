package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// patience is for how long a command goes on trying to reach a server; zero: one try, and nothing is said.
type patience struct {
	limit   time.Duration
	isGiven bool // by the flag: then also where no server listens on this machine
}

const (
	// refusalGrace is how long a command goes on where no server listens on this machine: one that was started just before it listens soon. With the pauses of package client it
	// has given up within a second.
	refusalGrace = 300 * time.Millisecond
	// firstNotice is how long a server may not answer before standard error says so. Most pauses of a restart behind a proxy are shorter.
	firstNotice = 500 * time.Millisecond
	// noticeInterval is how often the time that was waited is written anew.
	noticeInterval = time.Second
)

// patientTransport sends requests, and says on standard error when they are tried again because the server cannot be reached or is overloaded.
type patientTransport struct {
	base     http.RoundTripper
	status   *statusLine
	patience patience // after which the client gives up
	server   string   // with where its URL comes from

	isReached    atomic.Bool  // there was a connection to the server: it comes back probably
	firstRefusal atomic.Int64 // in nanoseconds since 1970; 0: none
}

// noServerError is the error of a call to a server that does not listen on this machine. Another try is not worth it.
type noServerError struct{ error }

func (e *noServerError) Unwrap() error { return e.error }

// Permanent is for package client.
func (e *noServerError) Permanent() bool { return true }

// isRefusedHere reports whether a connection to this machine was refused: nothing listens at the address.
func isRefusedHere(err error) bool {
	const refusedByWindows = syscall.Errno(10061) // WSAECONNREFUSED
	op, ok := errors.AsType[*net.OpError](err)    // of a proxy it is about that: then Op is proxyconnect
	if !ok || op.Op != "dial" || !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, refusedByWindows) {
		return false
	}
	to, ok := op.Addr.(*net.TCPAddr)
	return ok && to.IP.IsLoopback()
}

// isAbsent reports whether a call has failed because no server has listened on this machine since the command began. One that did before is being restarted probably.
func (p *patientTransport) isAbsent(err error) bool {
	return !p.patience.isGiven && !p.isReached.Load() && isRefusedHere(err)
}

// refused returns the error of a call that failed as isAbsent has it: after the grace one that is not worth another try.
func (p *patientTransport) refused(err error) error {
	now := time.Now().UnixNano()
	p.firstRefusal.CompareAndSwap(0, now)
	if time.Duration(now-p.firstRefusal.Load()) < refusalGrace {
		return err
	}
	return &noServerError{err}
}

// RoundTrip implements http.RoundTripper.
func (p *patientTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	began := time.Now()
	isConnected := make(chan struct{})
	var once sync.Once
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		once.Do(func() { close(isConnected) })
		p.isReached.Store(true)
		p.status.reached()
	}})
	slow := time.AfterFunc(firstNotice, func() {
		select {
		case <-isConnected: // the server may take its time, or the call waits for events
		default:
			p.status.wait(began, p.patience.limit, "no connection to "+p.server+" yet", true)
		}
	})
	defer slow.Stop()
	resp, err := p.base.RoundTrip(req.WithContext(ctx))
	switch {
	case isOver(req.Context()):
	case err != nil && p.isAbsent(err):
		err = p.refused(err)
	case err != nil:
		p.status.wait(began, p.patience.limit, "no answer from "+p.server+": "+shortReason(err), true)
	case resp.StatusCode == http.StatusBadGateway, resp.StatusCode == http.StatusServiceUnavailable, resp.StatusCode == http.StatusGatewayTimeout,
		resp.StatusCode == http.StatusTooManyRequests:
		p.status.wait(began, p.patience.limit, "the server "+p.server+" answers "+resp.Status, false)
	default:
		p.status.endWait()
	}
	return resp, err
}

// isOver reports whether the command waits no longer: it was interrupted, or the time of its --wait is over. The time of one try has a cause of its own.
func isOver(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return errors.Is(cause, context.Canceled) || cause == context.DeadlineExceeded //nolint:errorlint // other causes may wrap it
}

// shortReason returns the last part of why a connection failed, such as "connect: connection refused".
func shortReason(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return err.Error()
}

// statusLine is the last line of a terminal on standard error, which is written again and again: by the progress of a command, or while it waits
// for the server. Elsewhere a wait is one line that stays. Its zero value is ready to use. Its methods can be called by several goroutines.
type statusLine struct {
	mu         sync.Mutex
	w          io.Writer // nil: nothing is written
	isTerminal bool
	width      func() int // of the terminal, in characters; 0: not known
	length     int        // of the line that is on the terminal, in characters

	hasProgress   bool      // the line is that of a command's progress
	since         time.Time // the server has not answered; zero: it has
	limit         time.Duration
	reason        string
	isUnreachable bool
	isSaid        bool // the reason is on the terminal
	timer         *time.Timer
}

// open has the line written to standard error.
func (s *statusLine) open(env *Env) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w, s.isTerminal, s.width = env.Stderr, IsTerminal(env.Stderr), func() int { return widthOf(env.Stderr) }
}

// wait notes that a call which began at began is tried again for a reason, until the limit.
func (s *statusLine) wait(began time.Time, limit time.Duration, reason string, isUnreachable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil {
		return
	}
	if s.reason, s.isUnreachable = reason, isUnreachable; s.since.IsZero() {
		s.since, s.limit = began, limit
		s.timer = time.AfterFunc(max(0, firstNotice-time.Since(began)), s.tick)
	}
}

// tick writes the status line: the thing waited for, and for how long.
func (s *statusLine) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return
	}
	if !s.isTerminal {
		s.isSaid = true
		_, _ = io.WriteString(s.w, PrintableLines(fmt.Sprintf("queued: %s; trying again for %s (--retry-for)", s.reason, s.limit))+"\n")
		return
	}
	if !s.isSaid {
		s.isSaid = true
		s.clear()
		_, _ = io.WriteString(s.w, PrintableLines("queued: "+s.reason)+"\n")
	}
	if !s.hasProgress {
		s.draw(s.waiting())
	}
	s.timer.Reset(noticeInterval)
}

// waiting returns how long the server was waited for; empty: it is not waited for, or not for long.
func (s *statusLine) waiting() string {
	if s.since.IsZero() || !s.isSaid {
		return ""
	}
	return fmt.Sprintf("waiting for the server: %s of %s (--retry-for); Ctrl-C ends it", time.Since(s.since).Truncate(time.Second), s.limit)
}

// reached notes that there is a connection to the server: if there was none before, nothing is waited for.
func (s *statusLine) reached() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isUnreachable {
		s.endWaitLocked()
	}
}

// endWait notes that the server has answered.
func (s *statusLine) endWait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endWaitLocked()
}

func (s *statusLine) endWaitLocked() {
	if s.since.IsZero() {
		return
	}
	s.timer.Stop()
	if s.isSaid && !s.hasProgress {
		s.clear()
	}
	s.since, s.isSaid, s.isUnreachable = time.Time{}, false, false
}

// setProgress says whether the line is that of a command's progress. The line is then empty.
func (s *statusLine) setProgress(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hasProgress = is
	s.clear()
}

// report replaces the line by a report of progress.
func (s *statusLine) report(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if waiting := s.waiting(); waiting != "" {
		line += "; " + waiting
	}
	s.draw(line)
}

// draw replaces the line on the terminal.
func (s *statusLine) draw(line string) {
	if width := s.width(); width > 1 {
		line = cut(line, width-1) // a terminal goes on in the next line otherwise, and stays there
	}
	n := len([]rune(line))
	_, _ = io.WriteString(s.w, "\r"+line+strings.Repeat(" ", max(0, s.length-n))) // nobody reads it: nothing stops
	s.length = n
}

// clear removes the line from the terminal.
func (s *statusLine) clear() {
	if s.length > 0 {
		s.draw("")
		_, _ = io.WriteString(s.w, "\r")
		s.length = 0
	}
}

// End removes the status line of a command that has ended from the terminal, before its error is written.
func (e *Env) End() {
	e.status.mu.Lock()
	defer e.status.mu.Unlock()
	e.status.endWaitLocked()
	e.status.clear()
}
