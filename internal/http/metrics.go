package http

import (
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
