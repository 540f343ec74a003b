package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
)

// How long home's word on a caller counts for calls that cells answer, and check again: it ends with a change of home's keys, too. For those that the gateway answers itself
// it does not count at all: see admit.
const (
	callerTime = time.Minute     // while home can be asked
	callerLast = 5 * time.Minute // while it cannot
	maxCallers = 10_000
)

// callers are those that home was asked about.
type callers struct {
	stopping atomic.Bool        // /readyz says that the gateway stops
	asking   singleflight.Group // of home about one caller, by the hash and the mark: for all calls of it that come meanwhile

	mu    sync.Mutex
	known map[holder]caller // by the hash of Authorization
}

// A caller is what home has said of one.
type caller struct {
	at      time.Time
	keys    mark // of home, as the gateway knew of it then
	isKnown bool
}

func newCallers() *callers { return &callers{known: make(map[holder]caller)} }

func (k *callers) get(hash holder) (caller, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found, ok := k.known[hash]
	return found, ok
}

func (k *callers) put(hash holder, found caller) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.known) >= maxCallers { // all are asked for anew
		clear(k.known)
	}
	k.known[hash] = found
}

// admit has home check the caller of r at this moment, who needs one of the scopes, for all queues and topics; no scopes: any caller. It is for calls that the gateway answers itself. It fails with home's answer to one that it does not
// know, and with a *problem if home does not answer.
func (g *Gateway) admit(c *call, r *http.Request, scopes ...string) error {
	req := c.partOf(r, http.MethodGet, "/keys/self", nil, nil)
	req.Header = callerHeader(r)
	req.Header["X-Request-Id"] = []string{c.id}
	body, err := g.success(c, g.ask(r.Context(), c, g.home(), req))
	switch refused, isAnswer := errors.AsType[*answered](err); {
	case isAnswer && refused.status >= http.StatusInternalServerError:
		return unknownCaller(err)
	case err != nil:
		return err
	}
	var self struct {
		Scopes []string         `json:"scopes"`
		Queues *json.RawMessage `json:"queues"`
		Topics *json.RawMessage `json:"topics"`
	}
	if err := json.Unmarshal(body, &self); err != nil {
		return fmt.Errorf("GET /keys/self: %w", err)
	}
	if len(scopes) > 0 && (self.Queues != nil || self.Topics != nil) {
		p := refuse(forbidden, "The call is about all queues and topics, and the key is restricted to some.")
		p.required = &requirement{Queue: "*", Topic: "**"}
		return p
	}
	if len(scopes) > 0 && !slices.ContainsFunc(scopes, func(scope string) bool { return slices.Contains(self.Scopes, scope) }) {
		p := refuse(forbidden, "The call needs a key with the scope %s.", scopes[0])
		p.required = &requirement{Scope: scopes[0]}
		return p
	}
	return nil
}

// unknownCaller is the problem of a caller that home cannot be asked about. Home's own answer is no answer to the caller.
func unknownCaller(err error) error {
	return away(home, "Home, cell 0, which knows the callers, does not answer. Retry.", err)
}

// recognize finds out whether home knows the caller of r, for what the call may hold: home is asked once a minute, and its last word counts for a while if it does not answer. What a caller may
// do the cells decide.
func (g *Gateway) recognize(c *call, r *http.Request) {
	hash, keys := hashOfCaller(r), g.keysMark()
	found, isThere := g.callers.get(hash)
	age := time.Since(found.at)
	isThere = isThere && found.keys == keys && age <= callerLast
	if !isThere || age > callerTime {
		learned, err := g.learn(c, r, hash, keys)
		if err == nil {
			found = learned
		} else if !isThere {
			return
		}
	}
	if c.isKnown = found.isKnown; c.isKnown {
		c.holder = hash
	}
}

// checkKnownCaller makes sure that home knows the caller of r, or knew it lately: for calls that cells check, too. It fails as admit does.
func (g *Gateway) checkKnownCaller(c *call, r *http.Request) error {
	if c.isKnown {
		return nil
	}
	now, keys := time.Now(), g.keysMark()
	err := g.admit(c, r)
	if err == nil {
		g.callers.put(hashOfCaller(r), caller{now, keys, true})
	}
	return err
}

// learn asks home about the caller of r, once for all calls of it that come meanwhile, and remembers the answer. It fails if there is none.
func (g *Gateway) learn(c *call, r *http.Request, hash holder, keys mark) (caller, error) {
	id, header, now := c.id, callerHeader(r), time.Now()                                       // the call may be over before home has answered the others
	answers := g.callers.asking.DoChan(fmt.Sprintf("%x %v", hash, keys), func() (any, error) { //nolint:contextcheck // it is for other calls, too
		isKnown, err := g.askCaller(id, header)
		learned := caller{now, keys, isKnown}
		if err == nil {
			g.callers.put(hash, learned)
		}
		return learned, err
	})
	select {
	case answer := <-answers:
		return answer.Val.(caller), answer.Err
	case <-r.Context().Done():
		return caller{}, r.Context().Err()
	}
}

// askCaller asks home whether it knows a caller, for all calls of it: none of them ends it.
func (g *Gateway) askCaller(requestID string, header http.Header) (isKnown bool, err error) {
	at := g.home()
	if !at.isUp() {
		return false, errAway
	}
	leave, err := g.takePlace(&at.calls, at, itself)
	if err != nil {
		return false, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	header["X-Request-Id"] = []string{requestID}
	err = at.do(ctx, http.MethodGet, "/keys/self", header, nil, nil)
	refused, isAnswer := errors.AsType[*answered](err)
	switch {
	case err == nil, isAnswer && refused.status == http.StatusTooManyRequests: // of a key that it knows
		return true, nil
	case isAnswer && refused.status < http.StatusInternalServerError:
		return false, nil
	}
	return false, err
}

// answerJSON answers with a value.
func answerJSON(c *call, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		panic(err) // there are strings and numbers only
	}
	writeOwn(c, c.id, http.StatusOK, "application/json", append(body, '\n'))
}

type healthResponse struct {
	Status string `json:"status"`
}

// livez says that the process runs.
func (*Gateway) livez(c *call, _ *http.Request) { answerJSON(c, healthResponse{"ok"}) }

// readyz says whether calls can be answered: a cell answers, and it is known where queues are placed.
func (g *Gateway) readyz(c *call, r *http.Request) {
	if err := g.ready(); err != nil {
		g.fail(c, r, err)
		return
	}
	answerJSON(c, healthResponse{"ok"})
}

func (g *Gateway) ready() error {
	var detail string
	_, _, known := g.placements.state()
	switch {
	case g.drain.Err() != nil, g.callers.stopping.Load():
		detail = "The gateway is shutting down."
	case !slices.ContainsFunc(g.cells(), (*cell).isUp):
		detail = "No cell can be used."
	case known.IsZero():
		detail = "It is not known yet where queues are placed, which home, cell 0, says."
	default:
		return nil
	}
	return &problem{problemType: notReady, detail: detail}
}

type versionResponse struct {
	Version    string `json:"version"`
	Go         string `json:"go"`
	Background string `json:"background"`
}

// showVersion says what the gateway is.
func (g *Gateway) showVersion(c *call, r *http.Request) {
	if err := g.admit(c, r); err != nil {
		g.fail(c, r, err)
		return
	}
	answerJSON(c, versionResponse{g.cfg.Version, strings.TrimPrefix(runtime.Version(), "go"), "off"}) // a gateway does nothing by itself
}

// showMetrics answers a scrape.
func (g *Gateway) showMetrics(c *call, r *http.Request) {
	if err := g.admit(c, r, "metrics", "admin"); err != nil {
		g.fail(c, r, err)
		return
	}
	c.Header()["X-Request-Id"] = []string{c.id}
	g.metrics.handler.ServeHTTP(c, r)
}
