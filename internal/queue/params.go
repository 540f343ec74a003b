package queue

import (
	"encoding/json"
	"time"
)

// InsertParams is one event to enqueue.
type InsertParams struct {
	Event json.RawMessage // a JSON object
	Queue string          // empty: Default
	Delay time.Duration   // from now until the event can be claimed; not negative
	VT    *time.Time      // when the event can be claimed, instead of a delay
}

// Inserted is what became of one InsertParams.
type Inserted struct {
	ID    int64
	Queue string
	VT    time.Time
}

// ClaimParams says what to claim and for how long.
type ClaimParams struct {
	Queue        string        // empty: Default
	Limit        int           // events at most; zero: 1
	MaxAttempts  int           // events already claimed this often are left alone; zero: Config.MaxAttempts
	InvisibleFor time.Duration // the length of the lease; zero: DefaultInvisibleFor
	Wait         time.Duration // how long to hold on for the first event; zero: not at all
	Order        Order         // empty: FIFO
}

// AckResult is what became of one lease of an Ack.
type AckResult struct {
	ID      int64
	Outcome Outcome // Done or Cancelled when Err is nil
	Err     error   // nil, ErrNotFound or ErrLeaseLost
}

// NackParams gives a claimed event back.
type NackParams struct {
	Lease
	Delay time.Duration // from now until the event can be claimed again; not negative
	Error string        // kept as the event's last error; empty: the last one stays
	Final bool          // move it to history as Failed instead
}

// NackResult says where a nacked event went: Outcome is Failed after a final nack, otherwise
// empty and VT says when the event can be claimed again.
type NackResult struct {
	VT      time.Time
	Outcome Outcome
}

// SweepParams says what an explicit sweep expires.
type SweepParams struct {
	MaxAttempts int            // expire what was claimed this often; zero: Config.MaxAttempts
	MaxVTAge    *time.Duration // expire what has been claimable for longer; nil: by attempts alone
	Queue       string         // empty: every queue
}

// ListParams filters the events that wait.
type ListParams struct {
	Queue  string // empty: every queue
	State  State  // empty: every state
	Limit  int    // zero: DefaultPage
	Cursor string // a Page.Next, or empty for the first page
}

// HistoryFilter selects events in history; zero fields select everything.
type HistoryFilter struct {
	Queue    string
	Outcome  Outcome
	From, To *time.Time      // bounds of event_ts: From inclusive, To exclusive
	Contains json.RawMessage // a JSON object the event contains, as jsonb's @> has it
	ID       *int64
}

// HistoryParams asks for one page of history, newest event_ts first.
type HistoryParams struct {
	HistoryFilter
	Limit  int    // zero: DefaultPage
	Cursor string // a Page.Next, or empty for the first page
}

// StatsParams asks for counts of history per time bucket.
type StatsParams struct {
	Bucket   time.Duration // at least a second; aligned to the epoch
	From, To time.Time     // bounds of event_ts: From inclusive, To exclusive
	Queue    string        // empty: every queue
}

// StatsBucket counts the events of history whose event_ts lies in [Start, Start + bucket).
type StatsBucket struct {
	Start                            time.Time
	Done, Failed, Expired, Cancelled int64
}

// RequeueParams puts events of history back by filter, oldest first. Events that were
// requeued before are passed over, so that a repeated call goes on where the last one stopped.
type RequeueParams struct {
	HistoryFilter
	Limit  int  // events at most; zero: MaxBatch
	DryRun bool // count only
}

// RequeueResult says how many events matched the filter and how many of them went back.
type RequeueResult struct {
	Matched, Requeued int64
}

// QueueStats describes one queue.
type QueueStats struct {
	Queue                    string
	Ready, Scheduled, Leased int64
	OldestReadyAge           *time.Duration // how long the longest-waiting ready event has been claimable; nil: none is
	DoneLately               int64          // left as done lately
	ExpiredLately            int64          // left as expired lately
	Estimated                bool           // there is so much that some of the counts are estimates
}
