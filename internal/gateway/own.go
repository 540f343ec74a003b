package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
)

// How long home's word on a caller counts, for the calls that the gateway answers itself.
const (
	callerTime = time.Minute // while home can be asked
	callerLast = time.Hour   // while it cannot
	maxCallers = 1000
)

// callers are those that home knows.
type callers struct {
	stopping atomic.Bool        // /readyz says that the gateway stops
	asking   singleflight.Group // of home about one caller, by the hash: for all calls of it that come meanwhile

	mu    sync.Mutex
	known map[[sha256.Size]byte]caller // by the hash of Authorization, and of the key that it calls for
}

// A caller is what home says of one.
type caller struct {
	scopes []string
	at     time.Time
}

func newCallers() *callers { return &callers{known: make(map[[sha256.Size]byte]caller)} }

func (k *callers) get(hash [sha256.Size]byte) (caller, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found, ok := k.known[hash]
	return found, ok
}

func (k *callers) put(hash [sha256.Size]byte, found caller) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.known) >= maxCallers { // all are asked for anew
		clear(k.known)
	}
	k.known[hash] = found
}

func (k *callers) remove(hash [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.known, hash)
}

// check has home check the caller of r, who needs one of the scopes; none: any. It fails with home's answer to one it does not know.
func (g *Gateway) check(c *call, r *http.Request, scopes ...string) error {
	given := r.Header.Get("Authorization")
	behalf := c.behalf
	if scheme, key, _ := strings.Cut(given, " "); behalf == "" && g.cfg.Key != "" && strings.EqualFold(scheme, "Bearer") &&
		subtle.ConstantTimeCompare([]byte(strings.TrimLeft(key, " ")), []byte(g.cfg.Key)) == 1 {
		return nil
	}
	hash := sha256.Sum256([]byte(given + "\n" + behalf))
	now := time.Now()
	found, isKnown := g.callers.get(hash)
	if !isKnown || now.Sub(found.at) > callerTime {
		fresh, err := g.learn(c, r, hash)
		var refused *answered
		switch {
		case err == nil:
			found = fresh
		case errors.As(err, &refused) && refused.status < http.StatusInternalServerError:
			g.callers.remove(hash)
			return refused
		case r.Context().Err() != nil:
			return r.Context().Err()
		case !isKnown || now.Sub(found.at) > callerLast:
			return away(home, "Home, cell 0, which knows the callers, does not answer. Retry.", err)
		}
	}
	if len(scopes) > 0 && !slices.ContainsFunc(scopes, func(scope string) bool { return slices.Contains(found.scopes, scope) }) {
		p := refuse(forbidden, "The call needs a key with the scope %s.", scopes[0])
		p.required = &requirement{scopes[0]}
		return p
	}
	return nil
}

// learn asks home about the caller of r, once for all calls of it that come meanwhile, and remembers what it says.
func (g *Gateway) learn(c *call, r *http.Request, hash [sha256.Size]byte) (caller, error) {
	id, header, now := c.id, callerHeader(c, r), time.Now()                   // the call may be over before home has answered the others
	answers := g.callers.asking.DoChan(string(hash[:]), func() (any, error) { //nolint:contextcheck // it is for other calls, too
		scopes, err := g.askCaller(id, header)
		found := caller{scopes, now}
		if err == nil {
			g.callers.put(hash, found)
		}
		return found, err
	})
	select {
	case answer := <-answers:
		return answer.Val.(caller), answer.Err
	case <-r.Context().Done():
		return caller{}, r.Context().Err()
	}
}

// askCaller returns the scopes of a caller, as home says, for all calls of it: none of them ends it.
func (g *Gateway) askCaller(requestID string, header http.Header) ([]string, error) {
	at := g.home()
	if !at.isUp() {
		return nil, errAway
	}
	if !at.calls.enter() {
		return nil, full("Home holds as many calls as it may.")
	}
	defer at.calls.leave()
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	header["X-Request-Id"] = []string{requestID}
	var self struct {
		Scopes []string `json:"scopes"`
	}
	err := at.do(ctx, http.MethodGet, "/keys/self", header, nil, &self)
	return self.Scopes, err
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
	if err := g.check(c, r); err != nil {
		g.fail(c, r, err)
		return
	}
	answerJSON(c, versionResponse{g.cfg.Version, strings.TrimPrefix(runtime.Version(), "go"), "off"}) // a gateway does nothing by itself
}

// showMetrics answers a scrape.
func (g *Gateway) showMetrics(c *call, r *http.Request) {
	if err := g.check(c, r, "metrics", "admin"); err != nil {
		g.fail(c, r, err)
		return
	}
	c.Header()["X-Request-Id"] = []string{c.id}
	g.metrics.handler.ServeHTTP(c, r)
}
