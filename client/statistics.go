package client

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
)

// SeriesParams say of which time statistics are. Its zero value is the last hour.
type SeriesParams struct {
	// From and To are widened to whole buckets; zero: an hour before To, and now.
	From time.Time `query:"from"`
	To   time.Time `query:"to"`
	// Bucket is whole minutes, up to a week; 0: a minute. There can be 1,500 buckets.
	Bucket time.Duration `query:"bucket"`
}

// A QueueSeries is the statistics of a queue over time. Since, SampledAt and CountedThrough are nil if no server has sampled the queues yet.
type QueueSeries struct {
	Queue string    `json:"queue"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	// Bucket is the length of a bucket.
	Bucket time.Duration `json:"bucket"`
	// Since is the time before which there are no statistics.
	Since *time.Time `json:"since"`
	// SampledAt is the time of the latest sample of all queues.
	SampledAt *time.Time `json:"sampled_at"`
	// CountedThrough is the time up to which outcomes are counted.
	CountedThrough *time.Time `json:"counted_through"`
	// Complete says that all is counted that ended between From and To, up to now.
	Complete bool `json:"complete"`
	// Counted is how many events of all queues were counted for that, or of this queue, if the key is restricted.
	Counted int `json:"counted"`
	// Totals are of the whole time.
	Totals SeriesTotals `json:"totals"`
	// Buckets come oldest first, without those that begin later than now.
	Buckets []SeriesBucket `json:"buckets"`
	// UnavailableCells are those of several cells that do not answer: their part is missing.
	UnavailableCells []int `json:"unavailable_cells,omitzero"`
}

// SeriesTotals are the outcomes in a time, and the durations of the events that ended in it, in milliseconds, nil if there are none. Wait is the time from
// when an event was due to its first claim, processing that from its last claim to its end as done or failed.
type SeriesTotals struct {
	Done            int      `json:"done"`
	Failed          int      `json:"failed"`
	Expired         int      `json:"expired"`
	Cancelled       int      `json:"cancelled"`
	WaitP50MS       *float64 `json:"wait_p50_ms"`
	WaitP95MS       *float64 `json:"wait_p95_ms"`
	ProcessingP50MS *float64 `json:"processing_p50_ms"`
	ProcessingP95MS *float64 `json:"processing_p95_ms"`
}

// A SeriesBucket is the statistics of a queue in the time that begins at Start. What waits is as the last sample in it has it, nil if there is none.
type SeriesBucket struct {
	Start time.Time `json:"start"`
	// Samples is how many minutes were sampled.
	Samples          int      `json:"samples"`
	Ready            *int     `json:"ready"`
	Scheduled        *int     `json:"scheduled"`
	Waiting          *int     `json:"waiting"`
	Leased           *int     `json:"leased"`
	OldestReadyAgeMS *float64 `json:"oldest_ready_age_ms"`
	// Estimated says that the counts are estimates.
	Estimated *bool `json:"estimated"`
	// MaxReady is the most ready events of all samples in the bucket.
	MaxReady *int `json:"max_ready"`
	SeriesTotals
	// Complete says that all is counted that ended in the bucket, up to now.
	Complete bool `json:"complete"`
}

// UnmarshalJSON implements [json.Unmarshaler].
func (s *QueueSeries) UnmarshalJSON(text []byte) error {
	type plain QueueSeries
	in := struct {
		*plain
		Bucket duration `json:"bucket"`
	}{plain: (*plain)(s)}
	err := json.Unmarshal(text, &in)
	s.Bucket = time.Duration(in.Bucket)
	return err
}

// MarshalJSON implements [json.Marshaler].
func (s QueueSeries) MarshalJSON() ([]byte, error) {
	type plain QueueSeries
	return encodeJSON(struct {
		plain
		Bucket duration `json:"bucket"`
	}{plain(s), duration(s.Bucket)})
}

// QueueStats returns the statistics of a queue over time. Those of several cells are added up; percentiles are the greatest of the cells'.
func (c *Client) QueueStats(ctx context.Context, queue string, p SeriesParams) (QueueSeries, error) {
	series, away, err := joined(c, func(at *Client, _ *int) (QueueSeries, error) {
		var series QueueSeries
		_, err := at.Do(ctx, Request{Path: queuePath(queue, "/stats"), Query: queryOf(p)}, &series)
		return series, err
	}, joinSeries)
	if len(away) > 0 {
		series.UnavailableCells, series.Complete = away, false
	}
	return series, err
}

// joinSeries adds the statistics that another cell has of a queue. Percentiles are the greatest of those of the cells, below which that share of all is in any case.
func joinSeries(into *QueueSeries, s QueueSeries) {
	joinBounds(&into.Since, &into.SampledAt, &into.CountedThrough, s.Since, s.SampledAt, s.CountedThrough)
	into.Complete = into.Complete && s.Complete
	into.Counted += s.Counted
	into.Totals.add(s.Totals)
	into.Buckets = joinSorted(into.Buckets, s.Buckets, func(a, b *SeriesBucket) int { return a.Start.Compare(b.Start) }, func(into *SeriesBucket, b SeriesBucket) {
		into.Samples = max(into.Samples, b.Samples)
		into.Ready, into.Scheduled, into.Waiting, into.Leased = total(into.Ready, b.Ready), total(into.Scheduled, b.Scheduled), total(into.Waiting, b.Waiting), total(into.Leased, b.Leased)
		into.OldestReadyAgeMS, into.MaxReady = greatest(into.OldestReadyAgeMS, b.OldestReadyAgeMS), total(into.MaxReady, b.MaxReady)
		if into.Estimated == nil || b.Estimated != nil && *b.Estimated {
			into.Estimated = b.Estimated
		}
		into.add(b.SeriesTotals)
		into.Complete = into.Complete && b.Complete
	})
}

// joinBounds joins what cells say of since when there are statistics, of their latest sample, and of the time up to which outcomes are counted: what holds for all of them.
func joinBounds(since, sampledAt, through **time.Time, otherSince, otherSampledAt, otherThrough *time.Time) {
	*since = earliest(*since, otherSince)
	for _, one := range []struct {
		into  **time.Time
		other *time.Time
	}{{sampledAt, otherSampledAt}, {through, otherThrough}} {
		if *one.into != nil && (one.other == nil || one.other.Before(**one.into)) {
			*one.into = one.other
		}
	}
}

func (t *SeriesTotals) add(o SeriesTotals) {
	t.Done += o.Done
	t.Failed += o.Failed
	t.Expired += o.Expired
	t.Cancelled += o.Cancelled
	t.WaitP50MS, t.WaitP95MS = greatest(t.WaitP50MS, o.WaitP50MS), greatest(t.WaitP95MS, o.WaitP95MS)
	t.ProcessingP50MS, t.ProcessingP95MS = greatest(t.ProcessingP50MS, o.ProcessingP50MS), greatest(t.ProcessingP95MS, o.ProcessingP95MS)
}

// OverviewParams say of which queues and of which time an overview is. Its zero value is the fifty queues with most failures in the last hour.
type OverviewParams struct {
	// From and To are widened to whole buckets; zero: an hour before To, and now.
	From time.Time `query:"from"`
	To   time.Time `query:"to"`
	// Bucket is whole minutes, up to a week; 0: five minutes. There can be 120 buckets.
	Bucket time.Duration `query:"bucket"`
	// Order is "failed", "waiting", "oldest" or "name"; empty: failed, the most events that failed or expired first.
	Order string `query:"order"`
	// Limit is up to 200 queues; 0: 50. Offset is how many queues to leave out.
	Limit  int `query:"limit"`
	Offset int `query:"offset"`
	// NameContains leaves queues out that do not have it in their names, in upper or lower case, also from the totals.
	NameContains string `query:"name_contains"`
}

// A QueuesOverview is the statistics of many queues, and of all of them together. For the times, Complete and Counted see [QueueSeries].
type QueuesOverview struct {
	From           time.Time     `json:"from"`
	To             time.Time     `json:"to"`
	Bucket         time.Duration `json:"bucket"`
	Since          *time.Time    `json:"since"`
	SampledAt      *time.Time    `json:"sampled_at"`
	CountedThrough *time.Time    `json:"counted_through"`
	// Live says that what waits is of now in Totals, too, and for the order; else these are of the latest sample.
	Live     bool `json:"live"`
	Complete bool `json:"complete"`
	Counted  int  `json:"counted"`
	// Total is how many queues there are, of those that the call is about; Totals are of all of them.
	Total    int              `json:"total"`
	Totals   OverviewFigures  `json:"totals"`
	Outcomes []OverviewBucket `json:"outcomes"`
	Queues   []OverviewQueue  `json:"queues"`
	// UnavailableCells are those of several cells that do not answer: their part is missing.
	UnavailableCells []int `json:"unavailable_cells,omitzero"`
}

// OverviewFigures are what waits now, and what ended in the time.
type OverviewFigures struct {
	Ready            int      `json:"ready"`
	Scheduled        int      `json:"scheduled"`
	Waiting          int      `json:"waiting"`
	Leased           int      `json:"leased"`
	OldestReadyAgeMS *float64 `json:"oldest_ready_age_ms"`
	Estimated        bool     `json:"estimated"`
	Done             int      `json:"done"`
	Failed           int      `json:"failed"`
	Expired          int      `json:"expired"`
	Cancelled        int      `json:"cancelled"`
}

// An OverviewBucket counts what ended in all queues in the time that begins at Start.
type OverviewBucket struct {
	Start     time.Time `json:"start"`
	Done      int       `json:"done"`
	Failed    int       `json:"failed"`
	Expired   int       `json:"expired"`
	Cancelled int       `json:"cancelled"`
	Complete  bool      `json:"complete"`
}

// An OverviewQueue is one queue of an overview.
type OverviewQueue struct {
	Queue string `json:"queue"`
	OverviewFigures
	Paused bool `json:"paused"`
	// Push is nil without one, else "enabled", "open" (its breaker is) or "disabled".
	Push            *string  `json:"push"`
	WaitP95MS       *float64 `json:"wait_p95_ms"`
	ProcessingP95MS *float64 `json:"processing_p95_ms"`
	// ReadySeries are the ready events at the end of each of the buckets of Outcomes, nil if none was sampled.
	ReadySeries []*int `json:"ready_series"`
	// FailedSeries are the events that failed or expired in each of these buckets, and LastFailedAt the latest minute in which one did; nil: none did.
	FailedSeries []int      `json:"failed_series"`
	LastFailedAt *time.Time `json:"last_failed_at"`
	// DeadLettersOf are the queues whose dead letters it takes, at most 100.
	DeadLettersOf []string `json:"dead_letters_of"`
}

// UnmarshalJSON implements [json.Unmarshaler].
func (o *QueuesOverview) UnmarshalJSON(text []byte) error {
	type plain QueuesOverview
	in := struct {
		*plain
		Bucket duration `json:"bucket"`
	}{plain: (*plain)(o)}
	err := json.Unmarshal(text, &in)
	o.Bucket = time.Duration(in.Bucket)
	return err
}

// MarshalJSON implements [json.Marshaler].
func (o QueuesOverview) MarshalJSON() ([]byte, error) {
	type plain QueuesOverview
	return encodeJSON(struct {
		plain
		Bucket duration `json:"bucket"`
	}{plain(o), duration(o.Bucket)})
}

// QueuesOverview returns statistics of many queues at once, those with problems first. Those of several cells are added up, of the first 200 queues of each; percentiles are the greatest of the
// cells'.
func (c *Client) QueuesOverview(ctx context.Context, p OverviewParams) (QueuesOverview, error) {
	ask := func(at *Client, p OverviewParams) (QueuesOverview, error) {
		var overview QueuesOverview
		_, err := at.Do(ctx, Request{Path: "/stats/queues", Query: queryOf(p)}, &overview)
		return overview, err
	}
	overview, err := ask(c, p)
	if partsOf(err) == nil {
		return overview, err
	}
	const most, usual = 200, 50
	limit, offset := cmp.Or(p.Limit, usual), p.Offset
	p.Limit, p.Offset = most, 0
	all, away, err := joined(c, func(at *Client, _ *int) (QueuesOverview, error) { return ask(at, p) }, joinOverview)
	slices.SortFunc(all.Queues, func(a, b OverviewQueue) int { return compareQueues(p.Order, &a, &b) })
	all.Queues = all.Queues[min(offset, len(all.Queues)):min(offset+limit, len(all.Queues))]
	if len(away) > 0 {
		all.UnavailableCells, all.Complete = away, false
	}
	return all, err
}

// compareQueues compares two queues of an overview in its order.
func compareQueues(order string, a, b *OverviewQueue) int {
	byCount, byAge := 0, 0
	switch order {
	case "", "failed":
		byCount, byAge = cmp.Compare(b.Failed+b.Expired, a.Failed+a.Expired), compareAges(a, b)
	case "waiting":
		byCount = cmp.Compare(b.Ready+b.Waiting, a.Ready+a.Waiting)
	case "oldest":
		byAge = compareAges(a, b)
	}
	return cmp.Or(byCount, byAge, strings.Compare(a.Queue, b.Queue))
}

// compareAges has the queue with the oldest ready event come first, and those without one last.
func compareAges(a, b *OverviewQueue) int {
	age := func(q *OverviewQueue) float64 {
		if q.OldestReadyAgeMS == nil {
			return -1
		}
		return *q.OldestReadyAgeMS
	}
	return cmp.Compare(age(b), age(a))
}

// joinOverview adds the overview of another cell.
func joinOverview(into *QueuesOverview, o QueuesOverview) {
	byName := func(a, b *OverviewQueue) int { return strings.Compare(a.Queue, b.Queue) }
	joinBounds(&into.Since, &into.SampledAt, &into.CountedThrough, o.Since, o.SampledAt, o.CountedThrough)
	into.Live, into.Complete = into.Live && o.Live, into.Complete && o.Complete
	into.Counted += o.Counted
	into.Total += o.Total
	into.Totals.add(o.Totals)
	into.Outcomes = joinSorted(into.Outcomes, o.Outcomes, func(a, b *OverviewBucket) int { return a.Start.Compare(b.Start) }, func(into *OverviewBucket, b OverviewBucket) {
		into.Done += b.Done
		into.Failed += b.Failed
		into.Expired += b.Expired
		into.Cancelled += b.Cancelled
		into.Complete = into.Complete && b.Complete
	})
	into.Queues = joinSorted(into.Queues, o.Queues, byName, func(q *OverviewQueue, other OverviewQueue) {
		into.Total-- // it is one queue
		q.add(other.OverviewFigures)
		q.Paused = q.Paused || other.Paused
		if q.Push == nil {
			q.Push = other.Push
		}
		q.WaitP95MS, q.ProcessingP95MS = greatest(q.WaitP95MS, other.WaitP95MS), greatest(q.ProcessingP95MS, other.ProcessingP95MS)
		for i := range min(len(q.ReadySeries), len(other.ReadySeries)) {
			q.ReadySeries[i] = total(q.ReadySeries[i], other.ReadySeries[i])
		}
		for i := range min(len(q.FailedSeries), len(other.FailedSeries)) {
			q.FailedSeries[i] += other.FailedSeries[i]
		}
		if at := other.LastFailedAt; at != nil && (q.LastFailedAt == nil || at.After(*q.LastFailedAt)) {
			q.LastFailedAt = at
		}
		q.DeadLettersOf = union(q.DeadLettersOf, other.DeadLettersOf)
	})
}

func (f *OverviewFigures) add(o OverviewFigures) {
	f.Ready += o.Ready
	f.Scheduled += o.Scheduled
	f.Waiting += o.Waiting
	f.Leased += o.Leased
	f.OldestReadyAgeMS, f.Estimated = greatest(f.OldestReadyAgeMS, o.OldestReadyAgeMS), f.Estimated || o.Estimated
	f.Done += o.Done
	f.Failed += o.Failed
	f.Expired += o.Expired
	f.Cancelled += o.Cancelled
}
