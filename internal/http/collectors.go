package http

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queued/queued/internal/queue"
)

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
