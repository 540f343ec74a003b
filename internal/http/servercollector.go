package http

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queued/queued/internal/queue"
)

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
