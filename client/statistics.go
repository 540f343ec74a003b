package client

import (
	"context"
	"encoding/json"
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
	// UnavailableCells are, of the answer of a gateway, the cells whose part is missing.
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

// QueueStats returns the statistics of a queue over time.
func (c *Client) QueueStats(ctx context.Context, queue string, p SeriesParams) (QueueSeries, error) {
	var series QueueSeries
	_, err := c.Do(ctx, Request{Path: queuePath(queue, "/stats"), Query: queryOf(p)}, &series)
	return series, err
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
	// UnavailableCells are, of the answer of a gateway, the cells whose part is missing.
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

// QueuesOverview returns statistics of many queues at once, those with problems first.
func (c *Client) QueuesOverview(ctx context.Context, p OverviewParams) (QueuesOverview, error) {
	var overview QueuesOverview
	_, err := c.Do(ctx, Request{Path: "/stats/queues", Query: queryOf(p)}, &overview)
	return overview, err
}
