package gateway

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/queued/queued/internal/request"
	"github.com/queued/queued/internal/rounds"
)

// metrics counts requests. What there is of cells and placements is read at each scrape; see collector.
type metrics struct {
	handler  http.Handler
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	forwards *prometheus.CounterVec

	mu    sync.RWMutex
	known map[requestLabels]requestSeries // looking it up costs less than the vectors' own look-ups
}

type requestLabels struct {
	cell, route, method string
	status              int
}

type requestSeries struct {
	count    prometheus.Counter
	duration prometheus.Observer
}

func newMetrics(g *Gateway) *metrics {
	m := &metrics{
		handler: promhttp.HandlerFor(g.cfg.Registry, promhttp.HandlerOpts{}),
		known:   make(map[requestLabels]requestSeries),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "queued_gateway_requests_total",
			Help: "Requests answered, by cell, route, method and status; no cell: the gateway answered itself; status 499: the client disconnected first.",
		}, []string{"cell", "route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "queued_gateway_request_duration_seconds",
			Help: "Time from a request's header to the end of its answer, by cell, route and method. Claims include the time they wait.",
			// From a single insert (about a millisecond) to the longest wait (a minute).
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 65},
		}, []string{"cell", "route", "method"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "queued_gateway_refused_total",
			Help: "Requests answered 503 overloaded because the cell held as many calls as it may.",
		}, []string{"cell"}),
	}
	m.forwards = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "queued_gateway_forwarded_total",
		Help: "Events that this gateway has brought from home to the cell of their queue.",
	}, []string{"cell"})
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "queued_gateway_build_info", Help: "Always 1; the label describes the build.", ConstLabels: prometheus.Labels{"version": g.cfg.Version},
	})
	info.Set(1)
	g.cfg.Registry.MustRegister(m.requests, m.duration, m.refused, m.forwards, info, &collector{g},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// observe counts one request.
func (m *metrics) observe(cell, route, method string, status int, took time.Duration) {
	labels := requestLabels{cell, route, request.KnownMethod(method), status}
	m.mu.RLock()
	series, ok := m.known[labels]
	m.mu.RUnlock()
	if !ok {
		series = requestSeries{
			m.requests.WithLabelValues(cell, route, labels.method, strconv.Itoa(status)),
			m.duration.WithLabelValues(cell, route, labels.method),
		}
		m.mu.Lock()
		m.known[labels] = series
		m.mu.Unlock()
	}
	series.count.Inc()
	series.duration.Observe(took.Seconds())
}

var (
	cellUp = prometheus.NewDesc("queued_cell_up", "1 when the cell answers and is the one that it is said to be, else 0.", []string{"cell"}, nil)
	held   = prometheus.NewDesc("queued_gateway_calls", "Calls that the cell holds: those that are answered soon (call), and those that wait and streams (wait).", []string{"cell", "kind"}, nil)
	heldBy = prometheus.NewDesc("queued_gateway_calls_max", "The most of queued_gateway_calls.", []string{"cell", "kind"}, nil)

	bodyBytes        = prometheus.NewDesc("queued_gateway_body_bytes", "Memory that bodies of calls take.", nil, nil)
	placementVersion = prometheus.NewDesc("queued_placement_version", "The version of the placements of queues that this gateway goes by.", nil, nil)
	strayQueues      = prometheus.NewDesc("queued_cell_stray_queues", "Queues with events on the cell that are not placed there, as SQL or dead letters may bring about; claims find these events.", []string{"cell"}, nil)
	keysVersion      = prometheus.NewDesc("queued_cell_keys_version", "The version of home's keys that the cell is known to have; for home itself the latest one that is known. Missing until then, and with one cell.", []string{"cell"}, nil)
	placementAge     = prometheus.NewDesc("queued_placement_age_seconds", "Time since home last confirmed the placements of queues; missing until it has, and with one cell.", nil, nil)
)

// A collector reads what there is at each scrape.
type collector struct{ g *Gateway }

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{cellUp, held, heldBy, bodyBytes, strayQueues, keysVersion, placementVersion, placementAge} {
		out <- desc
	}
	rounds.Describe(out)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	set := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for _, at := range c.g.cells() {
		up := 0.0
		if at.isUp() {
			up = 1
		}
		set(cellUp, up, at.label)
		set(held, float64(at.calls.inUse()), at.label, "call")
		set(held, float64(at.waiting.inUse()), at.label, "wait")
		set(heldBy, float64(at.calls.limit), at.label, "call")
		set(heldBy, float64(at.waiting.limit), at.label, "wait")
		set(strayQueues, float64(c.g.strays.count(at)), at.label)
		if known := at.levels[ofKeys].known.Load(); known != nil {
			set(keysVersion, float64(known.version), at.label)
		}
	}
	if m := c.g.marks[ofKeys].Load(); m != nil {
		set(keysVersion, float64(m.version), c.g.home().label)
	}
	stats := c.g.budget.Stats()
	set(bodyBytes, float64(stats.Verified+stats.Unverified+c.g.answers.inUse()))
	c.g.rounds.Collect(out)
	version, _, known := c.g.placements.state()
	if !known.IsZero() {
		set(placementVersion, float64(version))
		set(placementAge, time.Since(known).Seconds())
	}
}
