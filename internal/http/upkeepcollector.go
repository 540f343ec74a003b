package http

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queued/queued/internal/queue"
)

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
