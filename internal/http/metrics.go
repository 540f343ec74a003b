package http

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
)

// metrics counts requests. What happens to events is counted by the queue; see eventCollector.
type metrics struct {
	handler  http.Handler
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics(reg *prometheus.Registry, svc *queue.Service, schedules *schedule.Service, build versionResponse) *metrics {
	m := newRequestMetrics()
	m.handler = promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "queued_build_info",
		Help:        "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": build.Version, "go": build.Go, "commit": build.Commit},
	})
	info.Set(1)
	reg.MustRegister(
		m.requests, m.duration, info,
		newEventCollector(svc), newPoolCollector(svc), newUpkeepCollector(svc), newScheduleCollector(schedules), newServerCollector(svc),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// newRequestMetrics returns counters of requests that are registered nowhere.
func newRequestMetrics() *metrics {
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "queued_http_requests_total",
			Help: "Requests answered, by route, method and status; 499: the client went away first.",
		}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "queued_http_request_duration_seconds",
			Help: "Time from a request's header to the end of its answer. Claims include the time they wait.",
			// From a single insert (about a millisecond) to the longest wait (a minute).
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 65},
		}, []string{"route", "method"}),
	}
}

// observe counts one request.
func (m *metrics) observe(route, method string, status int, took time.Duration) {
	method = knownMethod(method)
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(route, method).Observe(took.Seconds())
}

// knownMethod keeps the methods that callers make up from becoming series.
func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	default:
		return "other"
	}
}

const (
	// scrapeTime bounds each of the two questions that a scrape asks of the database.
	scrapeTime = 3 * time.Second
	// maxQueueSeries is how many queues a metric has series for.
	maxQueueSeries = 500
)

// An eventCollector reports what this process did with events, and how the queues stand.
type eventCollector struct {
	svc       *queue.Service
	done      []eventCounter
	up        *prometheus.Desc
	counted   *prometheus.Desc
	leftOut   *prometheus.Desc
	events    *prometheus.Desc
	estimated *prometheus.Desc
	oldestAge *prometheus.Desc
}

type eventCounter struct {
	desc  *prometheus.Desc
	value func(queue.Counters) int64
}

func newEventCollector(svc *queue.Service) *eventCollector {
	counter := func(verb, help string, value func(queue.Counters) int64) eventCounter {
		return eventCounter{prometheus.NewDesc("queued_events_"+verb+"_total", help+" by this process.", []string{"queue"}, nil), value}
	}
	return &eventCollector{
		svc: svc,
		done: []eventCounter{
			counter("inserted", "Events put into their queue", func(c queue.Counters) int64 { return c.Inserted }),
			counter("claimed", "Claims of events", func(c queue.Counters) int64 { return c.Claimed }),
			counter("released", "Claims undone because their client had gone,", func(c queue.Counters) int64 { return c.Released }),
			counter("acked", "Events finished as done or cancelled", func(c queue.Counters) int64 { return c.Acked }),
			counter("nacked", "Events given back", func(c queue.Counters) int64 { return c.Nacked }),
			counter("failed", "Events given up for good", func(c queue.Counters) int64 { return c.Failed }),
			counter("expired", "Events swept into history", func(c queue.Counters) int64 { return c.Expired }),
			counter("requeued", "Events of history put back", func(c queue.Counters) int64 { return c.Requeued }),
		},
		up: prometheus.NewDesc("queued_database_up",
			"1 when the database answered this scrape, else 0; the gauges of the queues are missing then.", nil, nil),
		counted: prometheus.NewDesc("queued_queues_counted",
			"1 when the events of the queues could be counted for this scrape, else 0; the gauges of the queues are missing then.", nil, nil),
		leftOut: prometheus.NewDesc("queued_queues_left_out",
			"Queues that hold events or have a policy, and have no gauges of their own, because there are more than 500: so many at least. Those with the oldest ready events, and the most, have some.", nil, nil),
		events: prometheus.NewDesc("queued_events",
			"Events in their queue by state: ready, scheduled or leased. Every process on one database says the same.", []string{"queue", "state"}, nil),
		estimated: prometheus.NewDesc("queued_events_estimated",
			"1 when queued_events is an estimate, because more than some 100,000 events wait; else 0.", []string{"queue"}, nil),
		oldestAge: prometheus.NewDesc("queued_oldest_ready_age_seconds",
			"How long the longest-waiting ready event has been claimable; 0 when none is.", []string{"queue"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *eventCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, counter := range c.done {
		ch <- counter.desc
	}
	ch <- c.up
	ch <- c.counted
	ch <- c.leftOut
	ch <- c.events
	ch <- c.estimated
	ch <- c.oldestAge
}

// Collect implements prometheus.Collector.
func (c *eventCollector) Collect(ch chan<- prometheus.Metric) {
	for _, counts := range c.svc.Counters() {
		for _, counter := range c.done {
			ch <- prometheus.MustNewConstMetric(counter.desc, prometheus.CounterValue, float64(counter.value(counts)), counts.Queue)
		}
	}
	// The other metrics are worth having at just such a time as one of these fails.
	up := c.ask(c.svc.Ping)
	ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, up)
	if up == 0 {
		return
	}
	var queues []queue.QueueStats
	var leftOut int64
	counted := c.ask(func(ctx context.Context) (err error) {
		queues, leftOut, err = c.svc.BusiestQueues(ctx, maxQueueSeries)
		return err
	})
	ch <- prometheus.MustNewConstMetric(c.counted, prometheus.GaugeValue, counted)
	if counted == 0 {
		return
	}
	ch <- prometheus.MustNewConstMetric(c.leftOut, prometheus.GaugeValue, float64(leftOut))
	for _, q := range queues {
		ch <- prometheus.MustNewConstMetric(c.events, prometheus.GaugeValue, float64(q.Ready), q.Queue, string(queue.Ready))
		ch <- prometheus.MustNewConstMetric(c.events, prometheus.GaugeValue, float64(q.Scheduled), q.Queue, string(queue.Scheduled))
		ch <- prometheus.MustNewConstMetric(c.events, prometheus.GaugeValue, float64(q.Leased), q.Queue, string(queue.Leased))
		estimated := 0.0
		if q.Estimated {
			estimated = 1
		}
		ch <- prometheus.MustNewConstMetric(c.estimated, prometheus.GaugeValue, estimated, q.Queue)
		var age time.Duration
		if q.OldestReadyAge != nil {
			age = *q.OldestReadyAge
		}
		ch <- prometheus.MustNewConstMetric(c.oldestAge, prometheus.GaugeValue, age.Seconds(), q.Queue)
	}
}

// ask asks the database something, and returns 1 when it answered in time, else 0.
func (*eventCollector) ask(question func(context.Context) error) float64 {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	if question(ctx) != nil {
		return 0
	}
	return 1
}

// newPoolCollector reports the use of the connection pool.
func newPoolCollector(svc *queue.Service) prometheus.Collector {
	return &poolCollector{
		svc: svc,
		connections: prometheus.NewDesc("queued_pool_connections",
			"Connections to the database by state: in_use or idle.", []string{"state"}, nil),
		limit: prometheus.NewDesc("queued_pool_connections_max",
			"The most connections the pool opens.", nil, nil),
		acquires: prometheus.NewDesc("queued_pool_acquires_total",
			"Connections handed out.", nil, nil),
		waits: prometheus.NewDesc("queued_pool_acquire_waits_total",
			"Connections handed out that had to be waited for.", nil, nil),
		waited: prometheus.NewDesc("queued_pool_acquire_wait_seconds_total",
			"Time spent waiting for connections.", nil, nil),
	}
}

type poolCollector struct {
	svc                                         *queue.Service
	connections, limit, acquires, waits, waited *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.connections, c.limit, c.acquires, c.waits, c.waited} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	pool := c.svc.PoolStats()
	ch <- prometheus.MustNewConstMetric(c.connections, prometheus.GaugeValue, float64(pool.InUse), "in_use")
	ch <- prometheus.MustNewConstMetric(c.connections, prometheus.GaugeValue, float64(pool.Idle), "idle")
	ch <- prometheus.MustNewConstMetric(c.limit, prometheus.GaugeValue, float64(pool.Max))
	ch <- prometheus.MustNewConstMetric(c.acquires, prometheus.CounterValue, float64(pool.Acquires))
	ch <- prometheus.MustNewConstMetric(c.waits, prometheus.CounterValue, float64(pool.EmptyAcquires))
	ch <- prometheus.MustNewConstMetric(c.waited, prometheus.CounterValue, pool.EmptyAcquireWaitTime.Seconds())
}

// A scheduleCollector reports what this process made of the occurrences of schedules.
type scheduleCollector struct {
	schedules                        *schedule.Service
	fired, skipped, faulty, lateness *prometheus.Desc
}

func newScheduleCollector(schedules *schedule.Service) *scheduleCollector {
	return &scheduleCollector{
		schedules: schedules,
		fired:     prometheus.NewDesc("queued_schedules_fired_total", "Occurrences of schedules that became events by this process.", nil, nil),
		skipped:   prometheus.NewDesc("queued_schedules_skipped_total", "Occurrences of schedules that were missed and recorded as skipped by this process.", nil, nil),
		faulty:    prometheus.NewDesc("queued_schedules_faulty_total", "Schedules that could not fire and that this process paused for it.", nil, nil),
		lateness:  prometheus.NewDesc("queued_schedule_lateness_seconds", "How long after its time an occurrence of a schedule became an event.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *scheduleCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.fired
	ch <- c.skipped
	ch <- c.faulty
	ch <- c.lateness
}

// Collect implements prometheus.Collector.
func (c *scheduleCollector) Collect(ch chan<- prometheus.Metric) {
	counts := c.schedules.Counters()
	buckets := make(map[float64]uint64, len(counts.Lateness))
	for i, n := range counts.Lateness {
		buckets[schedule.LatenessBounds[i].Seconds()] = n
	}
	ch <- prometheus.MustNewConstMetric(c.fired, prometheus.CounterValue, float64(counts.Fired))
	ch <- prometheus.MustNewConstMetric(c.skipped, prometheus.CounterValue, float64(counts.Skipped))
	ch <- prometheus.MustNewConstMetric(c.faulty, prometheus.CounterValue, float64(counts.Faulty))
	ch <- prometheus.MustNewConstHistogram(c.lateness, uint64(counts.Fired), counts.TotalLate.Seconds(), buckets)
}

// A serverCollector reports what is known of the database's server.
type serverCollector struct {
	svc                               *queue.Service
	unsafe, listening, pooled, behind *prometheus.Desc
}

func newServerCollector(svc *queue.Service) *serverCollector {
	return &serverCollector{
		svc: svc,
		unsafe: prometheus.NewDesc("queued_database_unsafe_setting",
			"1 when the server has this setting so that what is committed may be lost, else 0.", []string{"setting"}, nil),
		listening: prometheus.NewDesc("queued_database_listening",
			"1 when notifications arrive, by a test each minute, else 0: waiting claims poll then.", nil, nil),
		pooled: prometheus.NewDesc("queued_database_pooled",
			"1 when a pooler stands between this process and PostgreSQL, else 0.", nil, nil),
		behind: prometheus.NewDesc("queued_database_clock_behind_seconds",
			"How far the primary's clock was behind that of the primary before it when it took over; negative: ahead.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *serverCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.unsafe
	ch <- c.listening
	ch <- c.pooled
	ch <- c.behind
}

// Collect implements prometheus.Collector.
func (c *serverCollector) Collect(ch chan<- prometheus.Metric) {
	state := c.svc.Server()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for setting, isUnsafe := range state.Unsafe {
		gauge(c.unsafe, number(isUnsafe), setting)
	}
	gauge(c.listening, number(state.Hears))
	gauge(c.pooled, number(state.IsPooled))
	gauge(c.behind, state.ClockBehind.Seconds())
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// An upkeepCollector reports how upkeep goes.
type upkeepCollector struct {
	svc           *queue.Service
	failures, age *prometheus.Desc
}

func newUpkeepCollector(svc *queue.Service) *upkeepCollector {
	return &upkeepCollector{
		svc: svc,
		failures: prometheus.NewDesc("queued_upkeep_failures_total",
			"Rounds of a task of upkeep that failed in this process: partitions, retention, queue_history, keys or executions.", []string{"task"}, nil),
		age: prometheus.NewDesc("queued_upkeep_age_seconds",
			"How long ago any process on this database last did the task to its end, as far as this one knows; it is due hourly.", []string{"task"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *upkeepCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.failures
	ch <- c.age
}

// Collect implements prometheus.Collector.
func (c *upkeepCollector) Collect(ch chan<- prometheus.Metric) {
	for _, task := range c.svc.Upkeep() {
		ch <- prometheus.MustNewConstMetric(c.failures, prometheus.CounterValue, float64(task.Failures), task.Task)
		if !task.Done.IsZero() {
			ch <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, time.Since(task.Done).Seconds(), task.Task)
		}
	}
}
