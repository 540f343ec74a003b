package http

import (
	"fmt"
	"net/http"
	"time"

	"github.com/queued/queued/internal/queue"
)

// A statsSpan is the time of statistics: until now, and an hour of it, unless said otherwise. It is widened to whole buckets.
type statsSpan struct {
	From *time.Time `query:"from"`
	To   *time.Time `query:"to"`
	clocked
}

// The years that timestamps of statistics may be in: those that PostgreSQL and RFC 3339 have both.
const firstYear, lastYear = 1970, 9999

func (s statsSpan) whole(bucket time.Duration) (from, to time.Time) {
	to = s.now
	if s.To != nil {
		to = s.To.UTC()
	}
	from = to.Add(-time.Hour)
	if s.From != nil {
		from = s.From.UTC()
	}
	// Buckets are aligned to 1970, time.Truncate aligns to the year 1.
	seconds := int64(bucket / time.Second)
	floor := func(t time.Time) time.Time { return time.Unix(t.Unix()-t.Unix()%seconds, 0).UTC() }
	end := floor(to)
	if end.Before(to) {
		end = end.Add(bucket)
	}
	return floor(from), end
}

// check refuses a span in which nothing can be, and buckets that are no whole minutes or too many.
func (s statsSpan) check(bucket time.Duration, maxBuckets int, report func(field, detail string)) {
	if bucket < time.Minute || bucket%time.Minute != 0 {
		report("bucket", "must be whole minutes, as the queues are sampled once a minute")
		return
	}
	for field, t := range map[string]*time.Time{"from": s.From, "to": s.To} {
		if t != nil && (t.Year() < firstYear || t.Year() > lastYear) {
			report(field, fmt.Sprintf("must be in the years %d to %d", firstYear, lastYear))
			return
		}
	}
	from, to := s.whole(bucket)
	if !from.Before(to) || s.From != nil && s.To != nil && !s.From.Before(*s.To) {
		report("from", "must be before to")
		return
	}
	if n := float64(to.Unix()-from.Unix()) / bucket.Seconds(); n > float64(maxBuckets) {
		report("bucket", fmt.Sprintf("is too short: from and to would be %.0f buckets apart, more than %d", n, maxBuckets))
	}
}

type queueSeriesRequest struct {
	Name   string        `path:"name" validate:"queue" log:"queue" restrict:"queue"`
	Bucket time.Duration `query:"bucket" default:"1m" validate:"min=1m,max=168h"`
	statsSpan
}

// Check implements bind.Checker.
func (req *queueSeriesRequest) Check(report func(field, detail string)) {
	req.check(req.Bucket, queue.MaxSeriesBuckets, report)
}

// A queueSeries is a queue.Series.
type queueSeries struct {
	Queue          string         `json:"queue"`
	From           timestamp      `json:"from"`
	To             timestamp      `json:"to"`
	Bucket         time.Duration  `json:"bucket"`
	Since          *timestamp     `json:"since"`
	SampledAt      *timestamp     `json:"sampled_at"`
	CountedThrough *timestamp     `json:"counted_through"`
	Complete       bool           `json:"complete"`
	Counted        int64          `json:"counted"`
	Totals         seriesTotals   `json:"totals"`
	Buckets        []seriesBucket `json:"buckets"`
}

type seriesTotals struct {
	Done            int64         `json:"done"`
	Failed          int64         `json:"failed"`
	Expired         int64         `json:"expired"`
	Cancelled       int64         `json:"cancelled"`
	WaitP50MS       *milliseconds `json:"wait_p50_ms"`
	WaitP95MS       *milliseconds `json:"wait_p95_ms"`
	ProcessingP50MS *milliseconds `json:"processing_p50_ms"`
	ProcessingP95MS *milliseconds `json:"processing_p95_ms"`
}

type seriesBucket struct {
	Start            timestamp     `json:"start"`
	Samples          int64         `json:"samples"`
	Ready            *int64        `json:"ready"`
	Scheduled        *int64        `json:"scheduled"`
	Waiting          *int64        `json:"waiting"`
	Leased           *int64        `json:"leased"`
	OldestReadyAgeMS *milliseconds `json:"oldest_ready_age_ms"`
	Estimated        *bool         `json:"estimated"`
	MaxReady         *int64        `json:"max_ready"`
	seriesTotals
	Complete bool `json:"complete"`
}

func totalsOf(b queue.SeriesBucket) seriesTotals {
	return seriesTotals{
		Done: b.Done, Failed: b.Failed, Expired: b.Expired, Cancelled: b.Cancelled,
		WaitP50MS: (*milliseconds)(b.WaitP50), WaitP95MS: (*milliseconds)(b.WaitP95),
		ProcessingP50MS: (*milliseconds)(b.ProcessingP50), ProcessingP95MS: (*milliseconds)(b.ProcessingP95),
	}
}

func seriesBucketOf(b queue.SeriesBucket) seriesBucket {
	return seriesBucket{
		timestamp(b.Start), b.Samples, b.Ready, b.Scheduled, b.Waiting, b.Leased, (*milliseconds)(b.OldestReadyAge), b.IsEstimate, b.MaxReady, totalsOf(b), b.IsComplete,
	}
}

func (s *Server) queueStats(r *http.Request, req queueSeriesRequest) (reply, error) {
	from, to := req.whole(req.Bucket)
	found, err := s.svc.Series(r.Context(), queue.SeriesParams{Queue: req.Name, From: from, To: to, Bucket: req.Bucket})
	known := found.Total.Done + found.Total.Failed + found.Total.Expired + found.Total.Cancelled
	for _, b := range found.Buckets {
		if b.Ready != nil {
			known += *b.Ready + *b.Scheduled + *b.Waiting + *b.Leased
		}
	}
	counted := found.Total.Events
	if logOf(r).grant.IsRestricted() { // how many events others have is not told
		counted = found.Total.Done + found.Total.Failed + found.Total.Expired + found.Total.Cancelled
	}
	return reply{body: queueSeries{
		Queue: req.Name, From: timestamp(from), To: timestamp(to), Bucket: req.Bucket,
		Since: (*timestamp)(found.Since), SampledAt: (*timestamp)(found.SampledAt), CountedThrough: (*timestamp)(found.CountedThrough),
		Complete: found.Total.IsComplete, Counted: counted, Totals: totalsOf(found.Total),
		Buckets: convert(found.Buckets, seriesBucketOf),
	}}, s.requireIfEmpty(r, req.Name, known, err)
}

type queuesOverviewRequest struct {
	Bucket time.Duration `query:"bucket" default:"5m" validate:"min=1m,max=168h"`
	statsSpan
	Order  queue.OverviewOrder `query:"order" default:"failed" validate:"oneof=failed waiting oldest name"`
	Limit  int                 `query:"limit" default:"50" validate:"min=1,max=200"`
	Offset int                 `query:"offset" validate:"min=0,max=1000000"`

	NameContains string `query:"name_contains" validate:"max=128"` // empty: any name

	Queues []string `restrict:"allowed_queues"`
}

// Check implements bind.Checker.
func (req *queuesOverviewRequest) Check(report func(field, detail string)) {
	req.check(req.Bucket, queue.MaxOverviewBuckets, report)
	from, to := req.whole(max(req.Bucket-req.Bucket%time.Minute, time.Minute))
	if to.Unix()-from.Unix() > int64((queue.SampleRetention+req.Bucket)/time.Second) {
		report("from", "must be at most 168h before to: statistics are kept that long")
	}
}

// A queuesOverview is a queue.Overview.
type queuesOverview struct {
	From           timestamp       `json:"from"`
	To             timestamp       `json:"to"`
	Bucket         time.Duration   `json:"bucket"`
	Since          *timestamp      `json:"since"`
	SampledAt      *timestamp      `json:"sampled_at"`
	CountedThrough *timestamp      `json:"counted_through"`
	Live           bool            `json:"live"`
	Complete       bool            `json:"complete"`
	Counted        int64           `json:"counted"`
	Total          int64           `json:"total"`
	Totals         overviewFigures `json:"totals"`
	Outcomes       []outcomeBucket `json:"outcomes"`
	Queues         []overviewQueue `json:"queues"`
}

type overviewFigures struct {
	Ready            int64         `json:"ready"`
	Scheduled        int64         `json:"scheduled"`
	Waiting          int64         `json:"waiting"`
	Leased           int64         `json:"leased"`
	OldestReadyAgeMS *milliseconds `json:"oldest_ready_age_ms"`
	Estimated        bool          `json:"estimated"`
	Done             int64         `json:"done"`
	Failed           int64         `json:"failed"`
	Expired          int64         `json:"expired"`
	Cancelled        int64         `json:"cancelled"`
}

type outcomeBucket struct {
	Start     timestamp `json:"start"`
	Done      int64     `json:"done"`
	Failed    int64     `json:"failed"`
	Expired   int64     `json:"expired"`
	Cancelled int64     `json:"cancelled"`
	Complete  bool      `json:"complete"`
}

type overviewQueue struct {
	Queue string `json:"queue"`
	overviewFigures
	Paused          bool          `json:"paused"`
	Push            *string       `json:"push"` // null without one
	WaitP95MS       *milliseconds `json:"wait_p95_ms"`
	ProcessingP95MS *milliseconds `json:"processing_p95_ms"`
	ReadySeries     []*int64      `json:"ready_series"`
	FailedSeries    []int64       `json:"failed_series"`
	LastFailedAt    *timestamp    `json:"last_failed_at"` // null: none failed or expired
	DeadLettersOf   []string      `json:"dead_letters_of"`
}

func figuresOf(q queue.OverviewQueue) overviewFigures {
	return overviewFigures{
		q.Ready, q.Scheduled, q.Waiting, q.Leased, (*milliseconds)(q.OldestReadyAge), q.IsEstimate, q.Done, q.Failed, q.Expired, q.Cancelled,
	}
}

func overviewQueueOf(q queue.OverviewQueue) overviewQueue {
	if q.ReadySeries == nil { // all of the time is to come
		q.ReadySeries, q.FailedSeries = []*int64{}, []int64{}
	}
	return overviewQueue{
		q.Queue, figuresOf(q), q.Paused, nextOf(q.Push), (*milliseconds)(q.WaitP95), (*milliseconds)(q.ProcessingP95), q.ReadySeries,
		q.FailedSeries, (*timestamp)(q.LastFailedAt), q.DeadLettersOf,
	}
}

func (s *Server) queuesOverview(r *http.Request, req queuesOverviewRequest) (reply, error) {
	from, to := req.whole(req.Bucket)
	found, err := s.svc.Overview(r.Context(), queue.OverviewParams{
		From: from, To: to, Bucket: req.Bucket, Order: req.Order, Limit: req.Limit, Offset: req.Offset, Queues: req.Queues,
		NameContains: req.NameContains,
	})
	body := queuesOverview{
		From: timestamp(from), To: timestamp(to), Bucket: req.Bucket,
		Since: (*timestamp)(found.Since), SampledAt: (*timestamp)(found.SampledAt), CountedThrough: (*timestamp)(found.CountedThrough), Live: found.IsLive,
		Complete: true, Total: found.Total, Totals: figuresOf(found.All),
		Queues: convert(found.Queues, overviewQueueOf),
		Outcomes: convert(found.Outcomes, func(b queue.SeriesBucket) outcomeBucket {
			return outcomeBucket{timestamp(b.Start), b.Done, b.Failed, b.Expired, b.Cancelled, b.IsComplete}
		}),
	}
	for _, b := range found.Outcomes {
		body.Complete = body.Complete && b.IsComplete
		if logOf(r).grant.IsRestricted() { // how many events others have is not told
			body.Counted += b.Done + b.Failed + b.Expired + b.Cancelled
		} else {
			body.Counted += b.Events
		}
	}
	return reply{body: body}, err
}
