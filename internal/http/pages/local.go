package pages

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/queued/queued/client"
)

// statisticsAge is how old an answer may be that several viewers of a page share: what is counted is counted once in this time, however many look, and so is what
// open pages show.
const statisticsAge = 2 * time.Second

// maxCached bounds the answers in a readCache, in bytes. Beyond it they are forgotten.
const maxCached = 32 << 20

// clientFor returns a client of the API that calls in the name of a viewer, from the request r.
func (h *Handler) clientFor(r *http.Request, viewer Viewer) *client.Client {
	c, err := client.New(client.Config{
		URL: "http://queued.internal", RetryFor: -1, Timeout: -1, UserAgent: userAgent,
		HTTPClient: &http.Client{Transport: &local{h: h, origin: r, viewer: viewer}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	})
	if err != nil {
		panic(err) // the configuration is a constant
	}
	return c
}

// local is an http.RoundTripper whose requests this server answers, without a connection.
type local struct {
	h      *Handler
	origin *http.Request // of the page
	viewer Viewer
}

// RoundTrip implements http.RoundTripper.
func (l *local) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet && (renderedFor(l.origin) != nil || isStatistics(r.URL.Path)) {
		return l.h.reads.get(r, rightsOf(l.viewer), l.call)
	}
	return l.call(r)
}

var errAborted = errors.New("the answer was aborted")

// isStatistics reports whether an answer is counted from many events. Whoever loads a page gets all else as it is now.
func isStatistics(path string) bool {
	return strings.HasPrefix(path, "/stats/") || path == "/history/errors" || path == "/history/stats" || strings.HasPrefix(path, "/queues/") && strings.HasSuffix(path, "/stats")
}

// call has the server answer a request. It fails when the server gives up the answer: whoever asked has gone, or half of it was written.
func (l *local) call(r *http.Request) (resp *http.Response, err error) {
	defer func() {
		switch cause := recover(); cause {
		case nil:
		case http.ErrAbortHandler:
			err = errAborted
		default:
			panic(cause)
		}
	}()
	r = within(r.Clone(r.Context()), l.origin)
	defer func() { _ = r.Body.Close() }()
	answer := &recorder{header: make(http.Header), status: http.StatusOK}
	l.h.cfg.Call(answer, r, l.viewer)
	return answerOf(r, answer.status, answer.header, answer.body.Bytes()), nil
}

// userAgent is that of calls which pages make.
const userAgent = "queued-ui"

// within makes call, which a page makes, one that looks as if it had come over the connection of the request origin. It has nothing of the header of origin.
func within(call, origin *http.Request) *http.Request {
	call.RequestURI, call.RemoteAddr, call.Host, call.TLS = call.URL.RequestURI(), origin.RemoteAddr, origin.Host, origin.TLS
	call.Proto, call.ProtoMajor, call.ProtoMinor = "HTTP/1.1", 1, 1
	if call.Body == nil {
		call.Body = http.NoBody
	}
	return call
}

// answerOf returns a response that is complete.
func answerOf(r *http.Request, status int, header http.Header, body []byte) *http.Response {
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: r,
	}
}

// A recorder is an http.ResponseWriter that has the answer in memory.
type recorder struct {
	header http.Header
	status int
	isSent bool // the header, with the status
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *recorder) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *recorder) WriteHeader(status int) {
	if !a.isSent {
		a.status, a.isSent = status, true
	}
}

// Write implements http.ResponseWriter.
func (a *recorder) Write(b []byte) (int, error) {
	a.isSent = true
	return a.body.Write(b)
}

// A readCache has the answers of the API that were read lately, so that many viewers of a page read them once.
type readCache struct {
	mu      sync.Mutex
	answers map[readKey]*readAnswer
	size    int // of all bodies
}

// A readKey names an answer, with the rights of those who may have it: see Viewer.Rights.
type readKey struct {
	rights any
	url    string
}

// A readAnswer is being read until done is closed.
type readAnswer struct {
	done   chan struct{}
	at     time.Time // when it began to be read
	status int
	header http.Header
	body   []byte
	err    error // why there is none

	isCounted bool // in the cache's size
}

func newReadCache() *readCache { return &readCache{answers: make(map[readKey]*readAnswer)} }

// clear forgets all answers. Those that are being read are given to those who wait for them, and to nobody else.
func (c *readCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.answers)
	c.size = 0
}

// get returns the answer of a request, from memory if it is young enough. Requests for the same that come meanwhile wait for one answer.
func (c *readCache) get(r *http.Request, rights any, call func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	key := readKey{rights, r.URL.RequestURI()}
	c.mu.Lock()
	a := c.answers[key]
	if a == nil || time.Since(a.at) >= statisticsAge {
		a = &readAnswer{done: make(chan struct{}), at: time.Now()}
		c.prune()
		c.answers[key] = a
		go c.read(r.Clone(context.WithoutCancel(r.Context())), key, a, call)
	}
	c.mu.Unlock()
	select {
	case <-a.done:
		if a.err != nil {
			return nil, a.err
		}
		return answerOf(r, a.status, a.header.Clone(), a.body), nil
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
}

// read reads an answer. It outlives the request that asked for it first, since others may wait for it, too; the API bounds its time.
func (c *readCache) read(r *http.Request, key readKey, a *readAnswer, call func(*http.Request) (*http.Response, error)) {
	resp, err := call(r)
	if err == nil {
		defer func() { _ = resp.Body.Close() }()
		a.status, a.header = resp.StatusCode, resp.Header
		a.body, err = io.ReadAll(resp.Body)
	}
	a.err = err
	close(a.done)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.answers[key] != a:
	case a.err != nil, a.status != http.StatusOK, c.size+len(a.body) > maxCached: // problems are not kept: the next try may succeed
		delete(c.answers, key)
	default:
		a.isCounted = true
		c.size += len(a.body)
	}
}

// prune forgets the answers that are too old.
func (c *readCache) prune() {
	for key, a := range c.answers {
		if a.isCounted && time.Since(a.at) >= statisticsAge {
			delete(c.answers, key)
			c.size -= len(a.body)
		}
	}
}
