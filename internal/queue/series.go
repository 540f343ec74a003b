package queue

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

const (
	// sampleInterval is the time between two samples of the queues. They are taken at the start of each minute by the database's clock.
	sampleInterval = time.Minute
	// sampleTimeout bounds a sample, and the count of the outcomes of a minute.
	sampleTimeout = 20 * time.Second
	// settleTries is how often it is looked, a second apart, whether all transactions have ended that may have ended events in the minute before. SQL counts after 15 s
	// all the same.
	settleTries = 20
)

// Bounds of statistics of queues over time.
const (
	MaxSeriesBuckets   = 1500               // of SeriesParams
	MaxOverviewBuckets = 120                // of OverviewParams
	MaxOverviewPage    = 200                // queues of an Overview
	SampleRetention    = 7 * 24 * time.Hour // how long samples are kept
)

// SeriesParams asks for the statistics of a queue from From to To in Buckets, which are multiples of a minute. From and To are multiples of Bucket since
// 1970-01-01 UTC, and at most MaxSeriesBuckets apart.
type SeriesParams struct {
	Queue    string
	From, To time.Time
	Bucket   time.Duration
}

// Series is the statistics of a queue over time. Since, SampledAt and CountedThrough are nil when no process has sampled the queues yet.
type Series struct {
	Buckets        []SeriesBucket // oldest first; none of those that begin after now
	Total          SeriesBucket   // the outcomes and the durations of the whole time; it has no counts of what waits
	Since          *time.Time     // there are no statistics of the time before
	SampledAt      *time.Time     // the latest sample
	CountedThrough *time.Time     // outcomes are counted up to then
}

// A SeriesBucket is the statistics of a queue in a bucket. What waits is as the last sample in the bucket has it, and nil when the queues were not sampled in it.
type SeriesBucket struct {
	Start          time.Time
	Samples        int64 // minutes that were sampled
	Ready          *int64
	Scheduled      *int64
	Waiting        *int64
	Leased         *int64
	OldestReadyAge *time.Duration // nil, too, when none was ready
	IsEstimate     *bool          // the counts are estimates
	MaxReady       *int64         // the most of all samples in the bucket
	Done           int64
	Failed         int64
	Expired        int64
	Cancelled      int64
	WaitP50        *time.Duration // from when an event was due to its first claim, of the events that ended in the bucket; nil: there were none
	WaitP95        *time.Duration
	ProcessingP50  *time.Duration // from an event's last claim to its end as done or failed
	ProcessingP95  *time.Duration
	IsComplete     bool  // all that ended in the bucket, up to now, is counted
	Events         int64 // how many events of all queues were counted for that
}

// Series returns the statistics of a queue over time. It fails with an *InvalidError or ErrQueryTimeout.
func (s *Service) Series(ctx context.Context, p SeriesParams) (found Series, err error) {
	type row struct {
		Bucket *time.Time
		SeriesBucket
		Since, SampledAt, Through *time.Time
	}
	rows, err := collect[row](ctx, s, `
		select bucket, coalesce(bucket, $2) as start, samples, ready, scheduled, waiting, leased, oldest_ready_age, is_estimate, max_ready, done, failed, expired, cancelled,
			wait_p50, wait_p95, processing_p50, processing_p95, is_complete, events, since, sampled_at, through
		from agent_service.queue_series($1, $2, $3, $4, $5)`, p.Queue, p.From, p.To, p.Bucket, MaxSeriesBuckets)
	for _, r := range rows {
		found.Since, found.SampledAt, found.CountedThrough = r.Since, r.SampledAt, r.Through
		if r.Bucket == nil {
			found.Total = r.SeriesBucket
		} else {
			found.Buckets = append(found.Buckets, r.SeriesBucket)
		}
	}
	return found, wrap("reading statistics of a queue", err)
}

// OverviewOrder is the order of the queues of an Overview.
type OverviewOrder string

// The orders of an Overview.
const (
	OrderFailed  OverviewOrder = "failed"  // the most events that failed or expired first
	OrderWaiting OverviewOrder = "waiting" // the most events that are due first: ready, or waiting for their turn
	OrderOldest  OverviewOrder = "oldest"  // the oldest ready event first
	OrderName    OverviewOrder = "name"
)

// OverviewParams asks for statistics of many queues from From to To, as SeriesParams has them, at most MaxOverviewBuckets apart.
type OverviewParams struct {
	From, To time.Time
	Bucket   time.Duration
	Order    OverviewOrder
	Limit    int      // from 1 to MaxOverviewPage
	Offset   int      // how many queues to leave out
	Queues   []string // only those that one of these patterns stands for; nil: all

	NameContains string // only those with this in their names, in upper or lower case; empty: all
}

// Overview is the statistics of the queues that hold events, have a policy, or have had events in the last seven days.
type Overview struct {
	Total          int64           // how many queues there are
	All            OverviewQueue   // of all of them together, without push, durations and series
	Queues         []OverviewQueue // a page of them
	Outcomes       []SeriesBucket  // of all of them together: outcomes, IsComplete and Events alone
	IsLive         bool            // the counts of All are of now, as those of Queues always are; else they and the order are of the latest sample
	Since          *time.Time      // as in a Series
	SampledAt      *time.Time
	CountedThrough *time.Time
}

// OverviewQueue is what waits in a queue, and what ended in it.
type OverviewQueue struct {
	Queue          string
	Ready          int64
	Scheduled      int64
	Waiting        int64
	Leased         int64
	OldestReadyAge *time.Duration
	IsEstimate     bool
	Paused         bool
	Push           string // empty: it has none; enabled, open (its breaker is) or disabled
	Done           int64
	Failed         int64
	Expired        int64
	Cancelled      int64
	WaitP95        *time.Duration // as in a SeriesBucket
	ProcessingP95  *time.Duration
	ReadySeries    []*int64   // at the end of each bucket of Overview.Outcomes; nil: it was not sampled in that bucket
	FailedSeries   []int64    // events that failed or expired in each of these buckets
	LastFailedAt   *time.Time // the latest minute of that time in which one did; nil: none did
	DeadLettersOf  []string   // the queues whose dead letters it takes, at most 100
}

// Overview returns statistics of many queues at once. It fails with an *InvalidError or ErrQueryTimeout.
func (s *Service) Overview(ctx context.Context, p OverviewParams) (found Overview, err error) {
	type row struct {
		OverviewQueue
		Total                     *int64
		IsLive                    bool
		Since, SampledAt, Through *time.Time
	}
	type outcomes struct {
		Start                            time.Time
		Done, Failed, Expired, Cancelled int64
		IsComplete                       bool
		Events                           int64
	}
	err = s.bounded(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `
			select coalesce(queue, '') as queue, total, ready, scheduled, waiting, leased, oldest_ready_age, is_estimate, coalesce(paused, false) as paused,
				coalesce(push, '') as push, done, failed, expired, cancelled, wait_p95, processing_p95, ready_series, failed_series, last_failed_at,
				dead_letters_of, is_live, since, sampled_at, through
			from agent_service.queue_overview($1, $2, $3, $4, $5, $6, $7, $8, nullif($9, ''))`,
			p.From, p.To, p.Bucket, string(p.Order), p.Limit, p.Offset, p.Queues, MaxOverviewBuckets, p.NameContains)
		all, err := pg.Collect[row](rows)
		if err != nil {
			return err
		}
		for _, r := range all {
			if r.Total == nil {
				found.Queues = append(found.Queues, r.OverviewQueue)
				continue
			}
			found.Total, found.All, found.IsLive = *r.Total, r.OverviewQueue, r.IsLive
			found.Since, found.SampledAt, found.CountedThrough = r.Since, r.SampledAt, r.Through
		}
		rows, _ = tx.Query(ctx, `
			select bucket as start, done, failed, expired, cancelled, is_complete, events
			from agent_service.outcome_series($1, $2, $3, $4, $5, nullif($6, ''))`, p.From, p.To, p.Bucket, p.Queues, MaxOverviewBuckets, p.NameContains)
		buckets, err := pg.Collect[outcomes](rows)
		for _, b := range buckets {
			found.Outcomes = append(found.Outcomes, SeriesBucket{
				Start: b.Start, Done: b.Done, Failed: b.Failed, Expired: b.Expired, Cancelled: b.Cancelled, IsComplete: b.IsComplete, Events: b.Events,
			})
		}
		return err
	})
	return found, wrap("reading statistics of queues", err)
}

// sampleLoop samples the queues at the start of each minute, unless another process does it.
func (s *Service) sampleLoop() pg.Loop {
	return pg.Loop{Doing: "sampling queues", Pass: s.sampleQueues, Pause: sampleInterval, Retry: sampleInterval / 4, Next: func(context.Context) time.Duration {
		// Up to half a second after the minute has begun by the database's clock, as far as it is known.
		now := time.Now()
		if shown := s.server.expected(); shown != nil {
			now = *shown
		}
		return now.Truncate(sampleInterval).Add(sampleInterval).Sub(now) + pg.Jittered(sampleInterval/240)
	}}
}

// sampleQueues samples the queues, and counts the outcomes of the minutes that are over.
func (s *Service) sampleQueues(ctx context.Context) error {
	var isMine bool
	err := s.sampling(ctx, `select agent_service.sample_queues()`, &isMine)
	if err != nil && !errors.Is(err, ErrLocked) {
		return err
	}
	if err != nil || !isMine {
		return nil // another process does it, and counts the outcomes
	}
	if err := s.sampleGroups(ctx); err != nil {
		return err
	}
	for tries := 0; tries < settleTries; {
		var did string
		err := s.sampling(ctx, `select agent_service.count_outcomes()`, &did)
		if errors.Is(err, ErrQueryTimeout) {
			s.cfg.Logger.Warn().Msg("the outcomes of a minute could not be counted in time: statistics of queues leave them out")
			err = s.sampling(ctx, `select agent_service.count_outcomes(true)`, &did)
		}
		switch {
		case errors.Is(err, ErrLocked):
			return nil
		case err != nil:
			return err
		case did == "none":
			return nil
		case did == "waiting":
			tries++
			if !pg.Pause(ctx, time.Second) {
				return ctx.Err()
			}
		}
	}
	return nil
}

// sampleGroups counts the groups that wait. Where that takes too long, what was counted before stays.
func (s *Service) sampleGroups(ctx context.Context) error {
	var done string
	err := s.sampling(ctx, `select agent_service.sample_groups()`, &done)
	switch {
	case errors.Is(err, ErrLocked):
		return nil
	case errors.Is(err, ErrQueryTimeout):
		s.cfg.Logger.Warn().Msg("the groups that wait could not be counted in time")
		return nil
	}
	return err
}

// GroupSamples returns what the groups of queues wait for, of those queues among names that have groups. It is counted once a minute by one process. It fails with ErrQueryTimeout.
func (s *Service) GroupSamples(ctx context.Context, names []string) ([]GroupSample, error) {
	samples, err := collect[GroupSample](ctx, s, `
		select queue, concurrency, in_order, rate, hold, paused, longest
		from agent_service.list_group_samples($1)`, names)
	return samples, wrap("reading what groups wait for", err)
}

// A GroupSample counts the groups of a queue whose events wait, by what for: see Block. Of more than 1,000 groups the counts are estimates.
type GroupSample struct {
	Queue                                    string
	Concurrency, InOrder, Rate, Hold, Paused int64
	Longest                                  int64 // events that wait in the group that has the most, of up to 100,000
}

// sampling runs a statement of the samples, in bounded time.
func (s *Service) sampling(ctx context.Context, sql string, dest any) error {
	return wrap("sampling queues", pg.Bounded(ctx, s.loops, sampleTimeout, func(tx pgx.Tx) error { return tx.QueryRow(ctx, sql).Scan(dest) }))
}
