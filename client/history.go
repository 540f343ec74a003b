package client

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// A HistoryFilter says which events of history. Its zero value is all. Queue, Outcome, From, To and ID use an index, and so do FinishedFrom and
// FinishedTo where up to 200,000 events have finished between them; the others read the events that are left, so narrow the times when you use them.
type HistoryFilter struct {
	Queue string `json:"queue,omitzero" query:"queue"`
	// Outcome is [OutcomeDone], [OutcomeFailed], [OutcomeExpired] or [OutcomeCancelled].
	Outcome string `json:"outcome,omitzero" query:"outcome"`
	// From, inclusive, and To, exclusive, bound EventTS.
	From time.Time `json:"from,omitzero" query:"from"`
	To   time.Time `json:"to,omitzero" query:"to"`
	// FinishedFrom, inclusive, and FinishedTo, exclusive, bound FinishedAt.
	FinishedFrom time.Time `json:"finished_from,omitzero" query:"finished_from"`
	FinishedTo   time.Time `json:"finished_to,omitzero" query:"finished_to"`
	// Contains and Meta are JSON objects that the payload or the metadata contains, as PostgreSQL's operator @> has it.
	Contains json.RawMessage `json:"contains,omitzero" query:"contains"`
	Meta     json.RawMessage `json:"meta,omitzero" query:"meta"`
	ID       int64           `json:"id,omitzero" query:"id"`
	Type     string          `json:"type,omitzero" query:"type"`
	Source   string          `json:"source,omitzero" query:"source"`
	// Worker is the one that claimed the event last.
	Worker string `json:"worker,omitzero" query:"worker"`
	// MinDuration leaves out events whose last attempt took less, and those that are neither done nor failed.
	MinDuration time.Duration `json:"min_duration,omitzero" query:"min_duration"`
	// Cause is that of the last error of events that failed or expired, as [Client.HistoryErrors] has it.
	Cause string `json:"cause,omitzero" query:"cause"`
	// PageSize is how many events one request of [Client.ListHistory] asks for, up to 1,000; 0: 100.
	PageSize int `json:"-" query:"limit"`
}

// ListHistory returns the events of history that the filter takes, newest EventTS first. It reads page after page as the loop goes on: every
// event that was in history when it began is returned once. An error is the last thing it returns.
func (c *Client) ListHistory(ctx context.Context, filter HistoryFilter) iter.Seq2[Event, error] {
	return c.events(ctx, "/history", filter, byEventTS)
}

// Requeue inserts a copy of an event in history into its queue, and returns the id of the copy. It fails with [ErrRequeued] as long as a copy of the event is in a
// queue, and once one is done. An uncertain call is not repeated.
func (c *Client) Requeue(ctx context.Context, id int64) (copyID int64, err error) {
	var requeued requeuedEvent
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: historyPath(id)}, &requeued)
	return requeued.ID, err
}

type requeuedEvent struct {
	ID int64 `json:"id"`
}

// RequeueParams say which events to requeue. At least one field of the filter is required.
type RequeueParams struct {
	HistoryFilter
	// Limit is how many events to requeue at most, up to 1,000; 0: 1,000.
	Limit int `json:"limit,omitzero"`
	// DryRun counts the events and changes nothing.
	DryRun bool `json:"dry_run,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (p RequeueParams) MarshalJSON() ([]byte, error) {
	type filter HistoryFilter
	return encodeJSON(struct {
		filter
		MinDuration duration `json:"min_duration,omitzero"`
		Limit       int      `json:"limit,omitzero"`
		DryRun      bool     `json:"dry_run,omitzero"`
	}{filter(p.HistoryFilter), duration(p.MinDuration), p.Limit, p.DryRun})
}

// maxRequeue is how many events a call requeues at most.
const maxRequeue = 1000

// Requeued counts the events that matched a filter, and those that were requeued.
type Requeued struct {
	Matched  int `json:"matched"`
	Requeued int `json:"requeued"`
}

// RequeueMatching requeues the events of history that match the filter and were not requeued before, oldest first. Call it until Requeued is
// 0. An uncertain call is not repeated: its count would be lost.
func (c *Client) RequeueMatching(ctx context.Context, p RequeueParams) (Requeued, error) {
	var all Requeued
	_, err := sumOfCells(c, cmp.Or(p.Limit, maxRequeue), func(at *Client, limit int) (int, error) {
		p.Limit = limit
		var requeued Requeued
		_, err := at.Do(ctx, Request{Method: http.MethodPost, Path: "/history/requeue", Body: p}, &requeued)
		all.Matched += requeued.Matched
		all.Requeued += requeued.Requeued
		return max(requeued.Matched, requeued.Requeued), err
	})
	return all, err
}

// HistoryStatsParams say which events to count. Its zero value is the last 24 hours of all queues, by the hour.
type HistoryStatsParams struct {
	Queue string `query:"queue"`
	// From and To bound EventTS; zero: the 24 hours before To, and now.
	From time.Time `query:"from"`
	To   time.Time `query:"to"`
	// Bucket is from a second to a year; 0: an hour. There can be 2,000 buckets.
	Bucket time.Duration `query:"bucket"`
}

// A HistoryBucket counts the events of history whose EventTS is in a time that begins at Start.
type HistoryBucket struct {
	Start     time.Time `json:"start"`
	Done      int       `json:"done"`
	Failed    int       `json:"failed"`
	Expired   int       `json:"expired"`
	Cancelled int       `json:"cancelled"`
}

// HistoryStats counts the events of history by time and outcome, oldest first, empty buckets included. Of several cells it counts those that answer, and returns a
// [MissingCellsError] beside them if one does not.
func (c *Client) HistoryStats(ctx context.Context, p HistoryStatsParams) ([]HistoryBucket, error) {
	stats, away, err := joined(c, func(at *Client, _ *int) (historyStats, error) {
		var stats historyStats
		_, err := at.Do(ctx, Request{Path: "/history/stats", Query: queryOf(p)}, &stats)
		return stats, err
	}, func(into *historyStats, other historyStats) {
		into.Buckets = joinSorted(into.Buckets, other.Buckets, func(a, b *HistoryBucket) int { return a.Start.Compare(b.Start) }, func(into *HistoryBucket, b HistoryBucket) {
			into.Done += b.Done
			into.Failed += b.Failed
			into.Expired += b.Expired
			into.Cancelled += b.Cancelled
		})
	})
	return stats.Buckets, missing(err, away)
}

type historyStats struct {
	Buckets []HistoryBucket `json:"buckets"`
}
