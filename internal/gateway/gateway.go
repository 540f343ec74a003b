package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/crowd"
	"github.com/queued/queued/internal/request"
	"github.com/queued/queued/internal/rounds"
)

// Config holds the settings of a Gateway. Cells is required, with home among them.
type Config struct {
	Cells map[int]*url.URL // by their numbers, 0 to 255; URLs without a path
	Key   string           // an admin key of every cell that Keys has none of; empty: they need none
	// Keys returns admin keys of single cells, by their numbers, as they are now: no cell learns that of another one. Nil: there are none.
	Keys     func() map[int]string
	TLS      *tls.Config    // of connections to cells; nil: the system's authorities, no certificate
	Version  string         // of the program
	Logger   zerolog.Logger // zero: silent
	Registry *prometheus.Registry

	// AnswerTime is how long a cell may take to begin an answer once it has the request; it bounds how long a call of any kind waits. Zero: DefaultAnswerTimeout.
	AnswerTimeout time.Duration
	MaxCalls      int   // that one cell may hold at a time, besides those that wait; zero: DefaultMaxCalls
	MaxWaits      int   // calls that wait, and streams, that one cell may hold at a time; zero: DefaultMaxWaits
	MaxBody       int64 // bytes of a body; zero: 8 MiB
	MaxBodyMemory int64 // bytes that the bodies of all calls may take, and again cells' answers to parts of calls; zero: 64 MiB, or eight of the longest if that is more

	emptyEvery, emptyAfter, unusedEvery, unusedAfter time.Duration // of tests; zero: the constants
	files                                            int64         // that the process may open; zero: it is asked

	LogAll bool // log every request at info; false: successful busy calls at debug
	// VerifyClient returns the subject of the certificate that a client has shown over TLS, or an error for the client, who is then refused; nil: clients need no
	// certificate. Health checks need none.
	VerifyClient func(*tls.ConnectionState) (subject string, err error)
	LoopbackOnly bool     // listening on loopback: answer only requests that were made to a loopback host, or one of Hosts
	Hosts        []string // other names that requests may be made to; one of request.AnyHost: all. None: on loopback no others, elsewhere all
}

// The limits unless Config says otherwise.
const (
	DefaultAnswerTimeout = 2 * time.Minute
	DefaultMaxCalls      = 2048
	DefaultMaxWaits      = 20_000
	DefaultMaxBody       = 8 << 20 // of a batch, as servers take it unless they are set otherwise
	defaultBodyMemory    = 64 << 20
)

// blockedLimit is how long a client may take nothing of its answer, and a connection of HTTP/2 nothing at all.
const blockedLimit = 30 * time.Second

// A Gateway passes requests on to cells. It is safe for concurrent use.
type Gateway struct {
	cfg        Config
	log        zerolog.Logger
	given      map[int]*cell // of Config.Cells
	known      atomic.Pointer[cellsNow]
	watching   sync.WaitGroup
	complaints map[int]string // about cells that are listed, as they were logged
	placements *placements
	strays     *strays
	marks      [subjects]atomic.Pointer[mark] // how far changes of home are known; nil: not at all
	turns      sync.Map                       // *atomic.Uint64 by turnOf: how often the cells of a queue that is spread had their turn
	waits      claimWaits
	budget     *body.Budget // memory of bodies of requests
	shares     pool         // of that, among callers
	answers    pool         // memory of cells' answers to parts of calls
	waiting    pool         // calls that wait, and streams, at all cells
	proxy      *httputil.ReverseProxy
	metrics    *metrics
	callers    *callers
	api        http.Handler // the routes
	handler    http.Handler

	rounds  rounds.Counts   // of loops
	claims  *rounds.Loop    // of claims that ask cells in turn
	drain   context.Context // ends when it drains
	drained context.CancelFunc
}

// New returns a Gateway, which uses no cell before Run, and registers its metrics on cfg.Registry.
func New(cfg Config) (*Gateway, error) {
	cfg.AnswerTimeout = cmp.Or(cfg.AnswerTimeout, DefaultAnswerTimeout)
	cfg.MaxCalls, cfg.MaxWaits = cmp.Or(cfg.MaxCalls, DefaultMaxCalls), cmp.Or(cfg.MaxWaits, DefaultMaxWaits)
	cfg.MaxBody = cmp.Or(cfg.MaxBody, DefaultMaxBody)
	cfg.MaxBodyMemory = cmp.Or(cfg.MaxBodyMemory, max(defaultBodyMemory, 8*(cfg.MaxBody+1)))
	cfg.emptyEvery, cfg.emptyAfter = cmp.Or(cfg.emptyEvery, emptyEvery), cmp.Or(cfg.emptyAfter, emptyAfter)
	cfg.unusedEvery, cfg.unusedAfter = cmp.Or(cfg.unusedEvery, unusedEvery), cmp.Or(cfg.unusedAfter, unusedAfter)
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	g := &Gateway{
		cfg: cfg, given: make(map[int]*cell, len(cfg.Cells)), complaints: make(map[int]string), log: cfg.Logger, placements: newPlacements(), strays: newStrays(), callers: newCallers(),
	}
	g.budget = body.NewBudget(body.Config{Limit: cfg.MaxBodyMemory, Largest: cfg.MaxBody, Unverified: cfg.MaxBody})
	g.waiting.limit = 3 * cmp.Or(cfg.files, int64(crowd.OpenFiles())) / 8 // of two files each, and a quarter is for others
	g.shares.limit, g.answers.limit = cfg.MaxBodyMemory, cfg.MaxBodyMemory
	g.claims = g.rounds.Loop("claiming from cells in turn")
	g.drain, g.drained = context.WithCancel(context.Background())
	for number, base := range cfg.Cells {
		if number < 0 || number > maxCell {
			return nil, fmt.Errorf("the number of a cell is 0 to %d, not %d", maxCell, number)
		}
		g.given[number] = newCell(&cfg, number, base, g.drain)
	}
	if g.given[home] == nil {
		return nil, errors.New("there must be home, which is cell 0")
	}
	g.known.Store(newCellsNow(g.given))
	g.metrics = newMetrics(g)
	g.proxy = g.newProxy()
	g.api = g.newMux()
	g.handler = g.observe(g.checkHost(g.checkClient(g.checkOrigin(g.api))))
	return g, nil
}

// Run looks after the cells and follows the placements of home, and the list of cells there, until ctx ends. It is called once.
func (g *Gateway) Run(ctx context.Context) {
	defer g.watching.Wait()
	for _, at := range g.given {
		g.watch(ctx, at)
	}
	g.watching.Go(func() { g.findEmpty(ctx) })
	g.watching.Go(func() { g.findUnused(ctx) })
	for of := range subjects {
		g.watching.Go(func() { g.followHome(ctx, of) })
	}
	g.follow(ctx)
}

// AwaitFirstLook waits until each cell of Config.Cells was looked at once since Run was called, and where queues are placed is known, if home can say; or until ctx ends.
func (g *Gateway) AwaitFirstLook(ctx context.Context) {
	for _, c := range g.given {
		select {
		case <-c.first:
		case <-ctx.Done():
			return
		}
	}
	if g.home().isUp() {
		select {
		case <-g.placements.first:
		case <-ctx.Done():
		}
	}
}

// Handler returns the handler of every route.
func (g *Gateway) Handler() http.Handler { return g.handler }

// Drain has /readyz answer 503 from now on, answers the calls that wait, so that their clients turn elsewhere, and ends streams. Other calls are answered as before. It may
// be repeated.
func (g *Gateway) Drain() { g.drained() }

// StopReady has /readyz answer 503 from now on, before Drain.
func (g *Gateway) StopReady() { g.callers.stopping.Store(true) }

// Close closes the connections to cells that nobody uses.
func (g *Gateway) Close() {
	g.drained()
	for _, c := range g.cells() {
		c.transport.CloseIdleConnections()
	}
}

// HTTPServer returns a server of Handler with every timeout set.
func (g *Gateway) HTTPServer() *http.Server {
	return &http.Server{
		Handler:           g.handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,                                     // the largest body over a slow line; net/http lifts it when the body has been read
		WriteTimeout:      time.Minute + g.cfg.AnswerTimeout + time.Minute, // each write sets its own: see call.Write
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    256 << 10, // a filter of 64 KiB in a URL takes up to three times that
		HTTP2:             &http.HTTP2Config{SendPingTimeout: blockedLimit, WriteByteTimeout: blockedLimit},
		ErrorLog:          stdlog.New(warnings{g.log}, "", 0),
	}
}

// checkClient requires a client certificate, where there is an authority for them, for every call but the health checks.
func (g *Gateway) checkClient(next http.Handler) http.Handler {
	if g.cfg.VerifyClient == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := callOf(r.Context())
		if request.IsHealth(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		subject, err := g.cfg.VerifyClient(r.TLS)
		if err != nil {
			text := err.Error()
			g.fail(c, r, refuse(unauthorizedCert, "%s", strings.ToUpper(text[:1])+text[1:]+"."))
			return
		}
		c.client = subject
		next.ServeHTTP(w, r)
	})
}

// checkOrigin keeps web pages of other origins from calling through the browser of someone who can reach the gateway. Cells cannot check that: for them the host is their own.
func (g *Gateway) checkOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := callOf(r.Context())
		if err := protection.Check(r); err != nil {
			g.fail(c, r, refuse(crossOrigin, "The browser reports that a page of another origin makes this call."))
			return
		}
		c.ownOrigin = isOwnOrigin(r)
		next.ServeHTTP(w, r)
	})
}

// checkHost answers only requests that were made to a host that they may be made to: see request.Hosts.
func (g *Gateway) checkHost(next http.Handler) http.Handler {
	hosts := request.Hosts{LoopbackOnly: g.cfg.LoopbackOnly, Names: g.cfg.Hosts}
	if hosts.AllowAll() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hosts.Allow(r) {
			next.ServeHTTP(w, r)
			return
		}
		g.fail(callOf(r.Context()), r, refuse(hostNotAllowed, "The host must be localhost, in 127.0.0.0/8, [::1] or one of QUEUED_HOSTS, not %q.", r.Host))
	})
}
