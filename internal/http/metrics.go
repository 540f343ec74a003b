package http

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/push"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/request"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/internal/topic"
	"github.com/queued/queued/internal/trace"
	"github.com/queued/queued/internal/webhook"
)

// metrics counts requests. The counts of the services are read at each scrape; see collector.
type metrics struct {
	handler  http.Handler
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec

	streamed, gaps, blocked prometheus.Counter // of streams
	keys                    *prometheus.CounterVec
	accepted                prometheus.Counter // of keys

	mu    sync.RWMutex
	known map[requestLabels]requestSeries // looking it up costs a third of the vectors' own look-ups
}

type requestLabels struct {
	route, method string
	status        int
}

type requestSeries struct {
	count    prometheus.Counter
	duration prometheus.Observer
}

func newMetrics(cfg Config, build versionResponse, bodies *body.Budget, answers *body.Answers) *metrics {
	m := newRequestMetrics()
	m.handler = promhttp.HandlerFor(cfg.Registry, promhttp.HandlerOpts{})
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "queued_build_info",
		Help:        "Always 1; the labels describe the build.",
		ConstLabels: prometheus.Labels{"version": build.Version, "go": build.Go, "commit": build.Commit},
	})
	info.Set(1)
	number := prometheus.NewGauge(prometheus.GaugeOpts{Name: "queued_cell", Help: "The number of the cell that the database is."})
	if cfg.Cells != nil {
		number.Set(float64(cfg.Cells.Number()))
	}
	cfg.Registry.MustRegister(
		m.requests, m.duration, m.streamed, m.gaps, m.blocked, m.keys, info, number, &collector{cfg.Service, cfg.Schedules, cfg.Topics, cfg.Access, cfg.Pushes, cfg.Sources, cfg.Tracer, bodies, answers},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// newRequestMetrics returns metrics of requests that are registered nowhere.
func newRequestMetrics() *metrics {
	m := &metrics{
		keys: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "queued_key_requests_total",
			Help: "Requests by what became of their key: accepted, unauthorized, expired, revoked, forbidden, rate_limited, or unavailable when it could not be looked up.",
		}, []string{"result"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "queued_http_requests_total",
			Help: "Requests answered, by route, method and status; status 499: the client disconnected first.",
		}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "queued_http_request_duration_seconds",
			Help: "Time from a request's header to the end of its answer. Claims include the time they wait.",
			// From a single insert (about a millisecond) to the longest wait (a minute).
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 65},
		}, []string{"route", "method"}),
		streamed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "queued_stream_events_total", Help: "Events sent over streams by this process, once for each stream.",
		}),
		gaps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "queued_stream_gaps_total", Help: "Gaps that streams of this process were told of.",
		}),
		blocked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "queued_streams_blocked_total", Help: "Streams that this process closed because their client had not read for too long.",
		}),
		known: make(map[requestLabels]requestSeries),
	}
	m.accepted = m.keys.WithLabelValues("accepted")
	return m
}

// observe counts one request.
func (m *metrics) observe(route, method string, status int, took time.Duration) {
	labels := requestLabels{route, request.KnownMethod(method), status}
	m.mu.RLock()
	series, ok := m.known[labels]
	m.mu.RUnlock()
	if !ok {
		series = requestSeries{
			m.requests.WithLabelValues(route, labels.method, strconv.Itoa(status)),
			m.duration.WithLabelValues(route, labels.method),
		}
		m.mu.Lock()
		m.known[labels] = series
		m.mu.Unlock()
	}
	series.count.Inc()
	series.duration.Observe(took.Seconds())
}

// A metric is one that a collector reads at each scrape.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func counter(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

var (
	eventsInserted = counter("queued_events_inserted_total", "Events inserted by this process.", "queue")
	eventsClaimed  = counter("queued_events_claimed_total", "Claims of events by this process.", "queue")
	eventsReleased = counter("queued_events_released_total", "Claims that this process undid: their client gave them back, or had disconnected.", "queue")
	eventsAcked    = counter("queued_events_acked_total", "Events acked by this process: done, or cancelled when never claimed.", "queue")
	eventsNacked   = counter("queued_events_nacked_total", "Events nacked by this process that went back to their queue.", "queue")
	eventsFailed   = counter("queued_events_failed_total", "Events nacked by this process that went into history as failed.", "queue")
	eventsExpired  = counter("queued_events_expired_total", "Events that this process swept into history.", "queue")
	deadLettered   = counter("queued_dead_lettered_total",
		"Events that this process nacked or swept into history and whose dead letters were inserted, by the queue that they ended in.", "queue")
	eventsRequeued = counter("queued_events_requeued_total", "Events that this process requeued from history.", "queue")
	eventsRedriven = counter("queued_redriven_total", "Events that redrives of this process requeued, by the queue that they went to.", "queue")

	eventWait = prometheus.NewDesc("queued_event_wait_seconds",
		"How long events that this process claimed for the first time had been due before.", []string{"queue"}, nil)
	eventProcessing = prometheus.NewDesc("queued_event_processing_seconds",
		"How long after their last claim events ended by an ack or a nack of this process.", []string{"queue"}, nil)

	redrives = gauge("queued_redrives", "Redrives that are running, paused, or failed and to be resumed. Every process on one database reports the same.", "state")

	endWaits = gauge("queued_event_waits", "Requests to this process that wait for the end of an event.")

	databaseUp    = gauge("queued_database_up", "1 when the database answered this scrape, else 0; the gauges of the queues are missing then.")
	queuesCounted = gauge("queued_queues_counted",
		"1 when the events of the queues could be counted for this scrape, else 0; the gauges of the queues are missing then.")
	queuesLeftOut = gauge("queued_queues_left_out",
		"Lower bound of the queues with events or a policy that have no gauges here, because there are more than 500. "+
			"Queues with the oldest ready events, and with the most, come first.")
	queueEvents = gauge("queued_events",
		"Events in their queue by state: ready, scheduled, waiting or leased. Every process on one database reports the same.", "queue", "state")
	queueEstimated = gauge("queued_events_estimated",
		"1 when queued_events is an estimate, because more than some 100,000 events wait; else 0.", "queue")
	queueOldestAge = gauge("queued_oldest_ready_age_seconds",
		"How long the longest-waiting ready event has been claimable; 0 when none is ready.", "queue")

	groupsBlocked = gauge("queued_groups_blocked",
		"Groups of the queue whose events wait, by what for: concurrency, order, rate, hold or paused. Counted once a minute; an estimate above 1,000 groups. Every process on one database reports the same.",
		"queue", "reason")
	longestGroup = gauge("queued_longest_group_events",
		"Events that wait for their turn in the group of the queue that has the most of them, up to 100,000. Counted once a minute.", "queue")

	bodyBytes = gauge("queued_body_bytes",
		"Memory that the bodies of requests in progress take in this process: verified, or unverified while a webhook has not proved who sent it.", "sender")
	bodyBytesMax  = gauge("queued_body_bytes_max", "The most of queued_body_bytes: all together, and the unverified among them.", "sender")
	bodiesRefused = counter("queued_bodies_refused_total",
		"Requests answered with 503 overloaded because bodies took all the memory that they may: full, unverified_full, or too_slow for those that gave way to others.", "reason")

	answerBytes = gauge("queued_answer_bytes",
		"Memory that large answers take in this process until their clients have read them. The most is that of bodies, queued_body_bytes_max.")
	answersRefused = counter("queued_answers_refused_total",
		"Large answers that their clients did not get because answers took all the memory that they may: full, answered with 503 overloaded, or too_slow for those that were broken off in favour of others.", "reason")

	poolConnections = gauge("queued_pool_connections",
		"Connections to the database by what they are for (pool) and by state: in_use or idle. The listener's is in use while this process listens for notifications.", "pool", "state")
	poolMax      = gauge("queued_pool_connections_max", "The most connections of each pool; all together are the most that this process opens.", "pool")
	poolAcquires = counter("queued_pool_acquires_total", "Connections acquired from the pool.", "pool")
	poolWaits    = counter("queued_pool_acquire_waits_total", "Connections acquired after a wait.", "pool")
	poolWaited   = counter("queued_pool_acquire_wait_seconds_total", "Time spent waiting for connections.", "pool")

	upkeepFailures = counter("queued_upkeep_failures_total",
		"Failed rounds of an upkeep task in this process: partitions, retention, queue_history, keys or executions.", "task")
	upkeepAge = gauge("queued_upkeep_age_seconds",
		"Time since any process on this database last completed the upkeep task, as far as this one knows; it is due hourly.", "task")

	schedulesFired   = counter("queued_schedules_fired_total", "Occurrences of schedules that this process turned into events.")
	schedulesSkipped = counter("queued_schedules_skipped_total", "Occurrences of schedules that were missed and that this process recorded as skipped.")
	schedulesFaulty  = counter("queued_schedules_faulty_total", "Schedules that could not fire and that this process paused for that.")
	scheduleLateness = prometheus.NewDesc("queued_schedule_lateness_seconds", "How long after its time an occurrence of a schedule became an event or was published.", nil, nil)

	logPublished = counter("queued_log_published_total", "Events published by this process, except by schedules and for a later time.")
	logHead      = gauge("queued_log_head_position", "The position up to which the log is complete. Every process on one database reports the same.")
	logFirst     = gauge("queued_log_first_position", "The first position of the log that can be read.")
	logHeld      = gauge("queued_log_held_seconds", "How long the oldest transaction that keeps readers from going on has been open; 0 when there is none.")

	routerActive    = gauge("queued_router_active", "1 while this process delivers subscriptions into queues, for all processes on one database, else 0.")
	routerDelivered = counter("queued_router_delivered_total", "Events that this process has delivered into queues.")

	streamsOpen   = gauge("queued_streams_open", "Streams that this process serves.")
	streamsBehind = gauge("queued_streams_behind", "Streams that read from the database, or wait for that, because the newest events in memory do not reach back so far.")
	streamsTail   = gauge("queued_stream_tail_bytes", "Memory that the newest events of the log take in this process, about; all streams share them.")

	subscriptionLag = gauge("queued_subscription_lag_events",
		"About how many events of the log lie after the position of the subscription. Every process on one database reports the same.", "subscription")
	subscriptionLagSeconds = gauge("queued_subscription_lag_seconds",
		"How long ago the first event after the position of the subscription was published; 0 when there is none.", "subscription")
	subscriptionGaps = counter("queued_subscription_gaps_total",
		"How often retention dropped events before the subscription had read them, since it was made.", "subscription")
	subscriptionsLeftOut = gauge("queued_subscriptions_left_out",
		"Subscriptions that have no gauges here, because there are more than 500. Those that are the furthest behind come first.")

	keysLive = gauge("queued_keys", "Keys in the database that were not revoked and have not expired, as far as this process knows.")

	pushes        = counter("queued_pushes_total", "Requests to the endpoints of queues by this process, by what came of them: delivered, failed, final, held or gone.", "queue", "result")
	keyExpiration = gauge("queued_key_expiration_timestamp_seconds",
		"When the key expires, in seconds since 1970: for the live keys that do, the 100 that are next.", "id", "name")

	pushStatus = gauge("queued_push_status",
		"1 for the status of the push of each queue: enabled, open while its endpoint fails, or disabled. Up to 1,000 queues, those that are not enabled first.", "queue", "status")
	pushesInFlight = gauge("queued_pushes_in_flight", "Requests to the endpoints of queues by this process that are under way.")
	webhooks       = counter("queued_webhooks_total",
		"Deliveries to sources of webhooks in this process, by what became of them: received, duplicate, challenge, rejected, invalid, rate_limited, paused or failed. "+
			"At most 1,000 sources have series of their own; the rest is counted as other.", "source", "result")

	spansEnded    = counter("queued_trace_spans_total", "Sampled spans of this process that have ended. Only with a collector of traces, like the following ones.")
	spansExported = counter("queued_trace_spans_exported_total", "Spans of this process that the collector of traces has taken.")
	spansFailed   = counter("queued_trace_spans_failed_total", "Spans of this process that the collector of traces has refused, or that never reached it.")

	serverUnsafe = gauge("queued_database_unsafe_setting",
		"1 when the database server has this setting so that committed data can be lost, else 0.", "setting")
	serverListening = gauge("queued_database_listening",
		"1 when notifications arrive, as tested every minute, else 0: whoever waits for changes polls then.")
	serverPooled = gauge("queued_database_pooled", "1 when a connection pooler stands between this process and PostgreSQL, else 0.")
	clockSetBack = counter("queued_database_clock_set_back_seconds_total",
		"By how much the clock of the database's server was set back, in all, as this process saw it: what has a time comes later by that much.")
	backgroundSuspended = gauge("queued_background_suspended",
		"1 while this process pushes nothing, fires no schedules and delivers no subscriptions, because the database is a copy that nobody has adopted "+
			"(copy), or because of QUEUED_BACKGROUND (setting), else 0.", "reason")
	serverClockBehind = gauge("queued_database_clock_behind_seconds",
		"How far the primary's clock was behind the previous primary's when it took over; negative: ahead.")
)

const (
	// scrapeTimeout bounds each of the two queries of a scrape.
	scrapeTimeout = 3 * time.Second
	// maxQueueSeries is how many queues a metric has series for.
	maxQueueSeries = 500
	// maxSubscriptionSeries is how many subscriptions a metric has series for.
	maxSubscriptionSeries = 500
	// maxPushSeries is how many pushes have a status among the metrics.
	maxPushSeries = 1000
	// maxKeySeries is how many keys have the time of their expiration among the metrics.
	maxKeySeries = 100
)

// A collector reports the counts of the services of this process, and the state of the queues and the database.
type collector struct {
	svc       *queue.Service
	schedules *schedule.Service
	topics    *topic.Service
	access    *access.Service
	pushes    *push.Service
	sources   *webhook.Service
	tracer    *trace.Tracer
	bodies    *body.Budget
	answers   *body.Answers
}

// Describe implements prometheus.Collector. A collector that describes nothing is one whose metrics are not checked at registration.
func (*collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	send := func(m metric, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
	}
	c.collectServices(ch, send)
	c.svc.Rounds().Collect(ch)
	send(endWaits, float64(c.svc.EndWaits()))
	bodies := c.bodies.Stats()
	send(bodyBytes, float64(bodies.Verified), "verified")
	send(bodyBytes, float64(bodies.Unverified), "unverified")
	send(bodyBytesMax, float64(bodies.Limit), "all")
	send(bodyBytesMax, float64(bodies.UnverifiedLimit), "unverified")
	send(bodiesRefused, float64(bodies.Full), "full")
	send(bodiesRefused, float64(bodies.UnverifiedFull), "unverified_full")
	send(bodiesRefused, float64(bodies.TooSlow), "too_slow")
	answers := c.answers.Stats()
	send(answerBytes, float64(answers.Bytes))
	send(answersRefused, float64(answers.Full), "full")
	send(answersRefused, float64(answers.TooSlow), "too_slow")
	fired := c.schedules.Counters()
	buckets := make(map[float64]uint64, len(fired.Lateness))
	for i, n := range fired.Lateness {
		buckets[schedule.LatenessBounds[i].Seconds()] = n
	}
	ch <- prometheus.MustNewConstHistogram(scheduleLateness, uint64(fired.Fired), fired.TotalLate.Seconds(), buckets)
	send(schedulesFired, float64(fired.Fired))
	send(schedulesSkipped, float64(fired.Skipped))
	send(schedulesFaulty, float64(fired.Faulty))
	c.collectLog(send)
	router := c.topics.RouterStats()
	send(routerActive, number(router.IsRouting))
	send(routerDelivered, float64(router.Delivered))
	streams := c.topics.StreamStats()
	send(streamsOpen, float64(streams.Open))
	send(streamsBehind, float64(streams.Behind))
	send(streamsTail, float64(streams.TailBytes))
	if c.access != nil {
		send(keysLive, float64(c.access.Count()))
		for _, e := range c.access.Expirations(maxKeySeries) {
			send(keyExpiration, float64(e.At.Unix()), e.ID, e.Name)
		}
	}
	if c.pushes != nil {
		for _, n := range c.pushes.Counts() {
			send(pushes, float64(n.Pushes), n.Queue, n.Result)
		}
		statuses := c.pushes.Statuses(maxPushSeries)
		for name, status := range statuses {
			send(pushStatus, 1, name, string(status))
		}
		send(pushesInFlight, float64(c.pushes.InFlight()))
	}
	if c.sources != nil {
		c.sources.Each(func(name, result string, n int64) { send(webhooks, float64(n), name, result) })
	}
	if c.tracer.IsOn() {
		ended, exported, failed := c.tracer.Counts()
		send(spansEnded, float64(ended))
		send(spansExported, float64(exported))
		send(spansFailed, float64(failed))
	}
	c.collectQueues(send)
}

func (c *collector) collectLog(send func(m metric, value float64, labels ...string)) {
	send(logPublished, float64(c.topics.CountPublished()))
	var first, head int64
	var holder *topic.Holder
	if !answers(func(ctx context.Context) (err error) {
		if first, head, err = c.topics.Bounds(ctx); err == nil {
			holder, err = c.topics.Holder(ctx)
		}
		return err
	}) {
		return
	}
	send(logFirst, float64(first))
	send(logHead, float64(head))
	held := 0.0
	if holder != nil {
		held = holder.Age.Seconds()
	}
	send(logHeld, held)

	var slowest []topic.SubscriptionLag
	if !answers(func(ctx context.Context) (err error) {
		slowest, err = c.topics.SlowestSubscriptions(ctx, maxSubscriptionSeries)
		return err
	}) {
		return
	}
	leftOut := int64(0)
	for _, sub := range slowest {
		send(subscriptionLag, float64(sub.LagEvents), sub.Name)
		send(subscriptionLagSeconds, sub.LagSeconds, sub.Name)
		send(subscriptionGaps, float64(sub.Gaps), sub.Name)
		leftOut = sub.Others
	}
	send(subscriptionsLeftOut, float64(leftOut))
}

func (c *collector) collectServices(ch chan<- prometheus.Metric, send func(m metric, value float64, labels ...string)) {
	for _, n := range c.svc.Counters() {
		send(eventsInserted, float64(n.Inserted), n.Queue)
		send(eventsClaimed, float64(n.Claimed), n.Queue)
		send(eventsReleased, float64(n.Released), n.Queue)
		send(eventsAcked, float64(n.Acked), n.Queue)
		send(eventsNacked, float64(n.Nacked), n.Queue)
		send(eventsFailed, float64(n.Failed), n.Queue)
		send(eventsExpired, float64(n.Expired), n.Queue)
		send(deadLettered, float64(n.DeadLettered), n.Queue)
		send(eventsRequeued, float64(n.Requeued), n.Queue)
		send(eventsRedriven, float64(n.Redriven), n.Queue)
		sendDurations(ch, eventWait, &n.Waits, n.Queue)
		sendDurations(ch, eventProcessing, &n.Processing, n.Queue)
	}
	for _, pool := range c.svc.Database().PoolStats() {
		send(poolConnections, float64(pool.InUse), pool.Name, "in_use")
		send(poolConnections, float64(pool.Idle), pool.Name, "idle")
		send(poolMax, float64(pool.Max), pool.Name)
		if pool.Name != "listener" {
			send(poolAcquires, float64(pool.Acquires), pool.Name)
			send(poolWaits, float64(pool.EmptyAcquires), pool.Name)
			send(poolWaited, pool.EmptyAcquireWaitTime.Seconds(), pool.Name)
		}
	}
	for _, task := range c.svc.Upkeep() {
		send(upkeepFailures, float64(task.Failures), task.Task)
		if !task.Done.IsZero() {
			send(upkeepAge, time.Since(task.Done).Seconds(), task.Task)
		}
	}
	server := c.svc.Server()
	for setting, isUnsafe := range server.Unsafe {
		send(serverUnsafe, number(isUnsafe), setting)
	}
	send(backgroundSuspended, number(server.Background == queue.BackgroundSuspended), "copy")
	send(backgroundSuspended, number(server.Background == queue.BackgroundOff), "setting")
	send(serverListening, number(server.IsListening))
	send(serverPooled, number(server.IsPooled))
	send(serverClockBehind, server.ClockBehind.Seconds())
	send(clockSetBack, server.SetBack.Seconds())
}

// sendDurations sends a histogram, unless nothing was counted.
func sendDurations(ch chan<- prometheus.Metric, desc *prometheus.Desc, d *queue.Durations, queueName string) {
	buckets := make(map[float64]uint64, len(queue.DurationBounds))
	total := uint64(0)
	for i, n := range d.Counts {
		total += uint64(n)
		if i < len(queue.DurationBounds) {
			buckets[queue.DurationBounds[i].Seconds()] = total
		}
	}
	if total > 0 {
		ch <- prometheus.MustNewConstHistogram(desc, total, d.Sum, buckets, queueName)
	}
}

// collectQueues asks the database. The other metrics are worth having at just such a time as that fails.
func (c *collector) collectQueues(send func(m metric, value float64, labels ...string)) {
	up := answers(c.svc.Ping)
	send(databaseUp, number(up))
	if !up {
		return
	}
	var counts map[queue.RedriveState]int64
	if answers(func(ctx context.Context) (err error) {
		counts, err = c.svc.CountRedrives(ctx)
		return err
	}) {
		for state, n := range counts {
			send(redrives, float64(n), string(state))
		}
	}
	var queues []queue.QueueStats
	var leftOut int64
	counted := answers(func(ctx context.Context) (err error) {
		queues, leftOut, err = c.svc.BusiestQueues(ctx, maxQueueSeries)
		return err
	})
	send(queuesCounted, number(counted))
	if !counted {
		return
	}
	send(queuesLeftOut, float64(leftOut))
	for _, q := range queues {
		send(queueEvents, float64(q.Ready), q.Queue, string(queue.Ready))
		send(queueEvents, float64(q.Scheduled), q.Queue, string(queue.Scheduled))
		send(queueEvents, float64(q.Waiting), q.Queue, string(queue.AwaitingTurn))
		send(queueEvents, float64(q.Leased), q.Queue, string(queue.Leased))
		send(queueEstimated, number(q.Estimated), q.Queue)
		var age time.Duration
		if q.OldestReadyAge != nil {
			age = *q.OldestReadyAge
		}
		send(queueOldestAge, age.Seconds(), q.Queue)
	}
	c.collectGroups(send, queues)
}

// collectGroups reports what the groups of some queues wait for.
func (c *collector) collectGroups(send func(m metric, value float64, labels ...string), queues []queue.QueueStats) {
	var samples []queue.GroupSample
	answers(func(ctx context.Context) (err error) {
		samples, err = c.svc.GroupSamples(ctx, convert(queues, func(q queue.QueueStats) string { return q.Queue }))
		return err
	})
	for _, g := range samples {
		send(groupsBlocked, float64(g.Concurrency), g.Queue, "concurrency")
		send(groupsBlocked, float64(g.InOrder), g.Queue, "order")
		send(groupsBlocked, float64(g.Rate), g.Queue, "rate")
		send(groupsBlocked, float64(g.Hold), g.Queue, "hold")
		send(groupsBlocked, float64(g.Paused), g.Queue, "paused")
		send(longestGroup, float64(g.Longest), g.Queue)
	}
}

// answers reports whether a query of a scrape succeeds in time.
func answers(query func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	return query(ctx) == nil
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
