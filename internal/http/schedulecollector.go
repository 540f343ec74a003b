package http

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/queued/queued/internal/schedule"
)

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
