package client

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// A QueueStats counts the events of a queue.
type QueueStats struct {
	Queue string `json:"queue"`
	// Ready events can be claimed now, scheduled ones later; waiting ones are due, and wait for their turn in their group; leased ones are being worked on.
	Ready     int `json:"ready"`
	Scheduled int `json:"scheduled"`
	Waiting   int `json:"waiting"`
	Leased    int `json:"leased"`
	// OldestReadyAge is how long the oldest ready event has been claimable; 0 if none is ready.
	OldestReadyAge  time.Duration `json:"oldest_ready_age"`
	DoneLastHour    int           `json:"done_last_hour"`
	FailedLastHour  int           `json:"failed_last_hour"`
	ExpiredLastHour int           `json:"expired_last_hour"`
	// Estimated says that some counts are estimates from a sample, which happens above about 100,000 events.
	Estimated bool `json:"estimated"`
	Paused    bool `json:"paused"`
	// DeadLettersOf are the queues whose dead letters it takes, at most 100.
	DeadLettersOf []string `json:"dead_letters_of"`
}

// MarshalJSON implements [json.Marshaler].
func (s QueueStats) MarshalJSON() ([]byte, error) {
	type plain QueueStats
	return encodeJSON(struct {
		plain
		OldestReadyAge nullDuration `json:"oldest_ready_age"`
	}{plain(s), nullDuration(s.OldestReadyAge)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (s *QueueStats) UnmarshalJSON(text []byte) error {
	type plain QueueStats
	in := struct {
		*plain
		OldestReadyAge nullDuration `json:"oldest_ready_age"`
	}{plain: (*plain)(s)}
	err := json.Unmarshal(text, &in)
	s.OldestReadyAge = time.Duration(in.OldestReadyAge)
	return err
}

// ListQueues returns every queue that has a policy or events, also in history, by name. An error is the last thing it returns.
func (c *Client) ListQueues(ctx context.Context) iter.Seq2[QueueStats, error] {
	return c.FilterQueues(ctx, QueueFilter{})
}

// A QueueFilter says which queues to list. The zero value takes all.
type QueueFilter struct {
	// NameContains is what their names have in them, in upper or lower case.
	NameContains string `query:"name_contains"`
}

type queueQuery struct {
	pageSize
	QueueFilter
}

// FilterQueues is ListQueues of the queues that the filter takes.
func (c *Client) FilterQueues(ctx context.Context, filter QueueFilter) iter.Seq2[QueueStats, error] {
	return listOfCells(ctx, c, "/queues", queueQuery{largePages, filter}, byQueue, func(p queuePage) page[QueueStats] { return page[QueueStats]{p.Queues, p.Next} })
}

type queuePage struct {
	Queues []QueueStats `json:"queues"`
	Next   *string      `json:"next"`
}

// QueueSettings are the policy of a queue. Where a field is zero, the parameters of the calls apply, or the defaults of the server.
type QueueSettings struct {
	// MaxAttempts is how often an event can be claimed unless it says so itself.
	MaxAttempts int `json:"max_attempts,omitzero"`
	// InvisibleFor is the length of a lease unless the claim says so.
	InvisibleFor time.Duration `json:"invisible_for,omitzero"`
	// Backoff is the delay after a nack that has none; nil: no delay.
	Backoff *Backoff `json:"backoff,omitzero"`
	// Paused: events can be inserted, but not claimed.
	Paused bool `json:"paused,omitzero"`
	// HistoryRetention is how long to keep the queue's history, from a second to a hundred years.
	HistoryRetention time.Duration `json:"history_retention,omitzero"`
	// DeadLetter is where events go, besides history, that end as failed or expired; nil: nowhere.
	DeadLetter *DeadLetter `json:"dead_letter,omitzero"`
	// Delay is that of events inserted without a delay and a vt, up to ten years.
	Delay time.Duration `json:"delay,omitzero"`
	// Wait is for how long claims wait that do not say, up to [MaxWait].
	Wait time.Duration `json:"wait,omitzero"`
	// GroupFrom is a JSON pointer into the payload, such as "/tenant", to the group of events that come without one; empty: they have none.
	GroupFrom string `json:"group_from,omitzero"`
	// Flow limits which events are leased at once; nil: nothing does.
	Flow *Flow `json:"flow,omitzero"`
}

// What becomes of a group in order when one of its events ends as failed, or as expired after it was claimed.
const (
	OnFailedContinue = "continue" // the next one has its turn
	OnFailedBlock    = "block"    // none has, until that one is requeued into its place, or the group is unblocked
)

// A Flow limits which events are leased at once, at every instant, whoever claims. Limits are up to 10,000.
type Flow struct {
	// Concurrency is how many of each group; 0: any number. See NewEvent.Group.
	Concurrency int `json:"concurrency"`
	// Total is how many of the queue; 0: any number.
	Total int `json:"total"`
	// Order: of each group only the first unfinished event can be claimed, by its id; a retry keeps its place. Events of groups cannot be delayed then, and Priority
	// does not count among them.
	Order bool `json:"order"`
	// OnFailed is [OnFailedContinue] or [OnFailedBlock], with Order; empty: OnFailedContinue.
	OnFailed string `json:"on_failed"`
	// Rate limits the claims of each group; nil: nothing does.
	Rate *Rate `json:"rate"`
	// Fair: groups take turns, the least recently served one first, one event each. Events without a group are one group, and Priority counts only among the events of a group.
	Fair bool `json:"fair"`
}

// A Rate limits how many events of a group are claimed in any window of time: Burst, and Limit more in each Period. Retries count. Events over the rate wait.
type Rate struct {
	// Limit is how many in each Period, up to 10,000.
	Limit int `json:"limit"`
	// Period is 10 ms to 24 h.
	Period time.Duration `json:"period"`
	// Burst is how many at once after a pause, up to 10,000; 0: one.
	Burst int `json:"burst,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (r Rate) MarshalJSON() ([]byte, error) {
	type plain Rate
	return encodeJSON(struct {
		plain
		Period duration `json:"period"`
	}{plain(r), duration(r.Period)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (r *Rate) UnmarshalJSON(data []byte) error {
	type plain Rate
	wire := struct {
		*plain
		Period duration `json:"period"`
	}{plain: (*plain)(r)}
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	r.Period = time.Duration(wire.Period)
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (f Flow) MarshalJSON() ([]byte, error) {
	return encodeJSON(struct {
		Concurrency *int    `json:"concurrency"`
		Total       *int    `json:"total"`
		Order       bool    `json:"order"`
		OnFailed    *string `json:"on_failed"`
		Rate        *Rate   `json:"rate"`
		Fair        bool    `json:"fair"`
	}{nullable(f.Concurrency), nullable(f.Total), f.Order, nullable(f.OnFailed), f.Rate, f.Fair})
}

// A DeadLetter says what becomes of events that end as failed or expired.
type DeadLetter struct {
	// Queue is where their dead letters go. It has no dead letters of its own.
	Queue string `json:"queue"`
}

// MarshalJSON implements [json.Marshaler].
func (s QueueSettings) MarshalJSON() ([]byte, error) {
	type plain QueueSettings
	return encodeJSON(struct {
		plain
		InvisibleFor     duration `json:"invisible_for,omitzero"`
		HistoryRetention duration `json:"history_retention,omitzero"`
		Delay            duration `json:"delay,omitzero"`
		Wait             duration `json:"wait,omitzero"`
	}{plain(s), duration(s.InvisibleFor), duration(s.HistoryRetention), duration(s.Delay), duration(s.Wait)})
}

// A Backoff is the delay after a nack, by the number of attempts.
type Backoff struct {
	// Kind is "constant": Base every time; "linear": Factor times Base more each time; or "exponential": multiplied by Factor each time.
	Kind string `json:"kind"`
	// Base is the delay after the first attempt.
	Base time.Duration `json:"base"`
	// Factor is from 1 to 1,000; 0: 2 if Kind is "exponential", else 1.
	Factor float64 `json:"factor"`
	// Max is the longest delay; 0: no bound.
	Max time.Duration `json:"max"`
	// Jitter is the share of the delay, 0 to 1, by which it varies at random in both directions.
	Jitter float64 `json:"jitter"`
}

// MarshalJSON implements [json.Marshaler].
func (b Backoff) MarshalJSON() ([]byte, error) {
	type plain Backoff
	return encodeJSON(struct {
		plain
		Base   duration     `json:"base"`
		Factor *float64     `json:"factor"`
		Max    nullDuration `json:"max"`
	}{plain(b), duration(b.Base), nullable(b.Factor), nullDuration(b.Max)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (b *Backoff) UnmarshalJSON(text []byte) error {
	type plain Backoff
	in := struct {
		*plain
		Base duration     `json:"base"`
		Max  nullDuration `json:"max"`
	}{plain: (*plain)(b)}
	err := json.Unmarshal(text, &in)
	b.Base, b.Max = time.Duration(in.Base), time.Duration(in.Max)
	return err
}

// A Policy is the settings of a queue, with its name.
type Policy struct {
	Queue            string        `json:"queue"`
	MaxAttempts      int           `json:"max_attempts"`
	InvisibleFor     time.Duration `json:"invisible_for"`
	Backoff          *Backoff      `json:"backoff"`
	Paused           bool          `json:"paused"`
	HistoryRetention time.Duration `json:"history_retention"`
	DeadLetter       *DeadLetter   `json:"dead_letter"`
	Delay            time.Duration `json:"delay"`
	Wait             time.Duration `json:"wait"`
	GroupFrom        string        `json:"group_from"`
	Flow             *Flow         `json:"flow"`
	// Version is another one after each change; 0: the queue has no policy.
	Version int64 `json:"version"`
	// UpdatedAt is when it was last set; nil: never.
	UpdatedAt *time.Time `json:"updated_at"`
}

// Settings returns the settings of the policy, to change some of them and pass them to [Client.PutQueue].
func (p *Policy) Settings() QueueSettings {
	return QueueSettings{
		MaxAttempts: p.MaxAttempts, InvisibleFor: p.InvisibleFor, Backoff: p.Backoff, Paused: p.Paused, HistoryRetention: p.HistoryRetention,
		DeadLetter: p.DeadLetter, Delay: p.Delay, Wait: p.Wait, GroupFrom: p.GroupFrom, Flow: p.Flow,
	}
}

// MarshalJSON implements [json.Marshaler].
func (p Policy) MarshalJSON() ([]byte, error) {
	type plain Policy
	return encodeJSON(struct {
		plain
		MaxAttempts      *int         `json:"max_attempts"`
		InvisibleFor     nullDuration `json:"invisible_for"`
		HistoryRetention nullDuration `json:"history_retention"`
		Delay            nullDuration `json:"delay"`
		Wait             nullDuration `json:"wait"`
		GroupFrom        *string      `json:"group_from"`
		Version          *int64       `json:"version"`
	}{
		plain(p), nullable(p.MaxAttempts), nullDuration(p.InvisibleFor), nullDuration(p.HistoryRetention), nullDuration(p.Delay), nullDuration(p.Wait),
		nullable(p.GroupFrom), nullable(p.Version),
	})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (p *Policy) UnmarshalJSON(text []byte) error {
	type plain Policy
	in := struct {
		*plain
		InvisibleFor     nullDuration `json:"invisible_for"`
		HistoryRetention nullDuration `json:"history_retention"`
		Delay            nullDuration `json:"delay"`
		Wait             nullDuration `json:"wait"`
	}{plain: (*plain)(p)}
	err := json.Unmarshal(text, &in)
	p.InvisibleFor, p.HistoryRetention = time.Duration(in.InvisibleFor), time.Duration(in.HistoryRetention)
	p.Delay, p.Wait = time.Duration(in.Delay), time.Duration(in.Wait)
	return err
}

// A Queue is the policy of a queue with the counts of its events, as [QueueStats] has them.
type Queue struct {
	Policy
	Ready           int           `json:"ready"`
	Scheduled       int           `json:"scheduled"`
	Waiting         int           `json:"waiting"`
	Leased          int           `json:"leased"`
	OldestReadyAge  time.Duration `json:"oldest_ready_age"`
	DoneLastHour    int           `json:"done_last_hour"`
	FailedLastHour  int           `json:"failed_last_hour"`
	ExpiredLastHour int           `json:"expired_last_hour"`
	Estimated       bool          `json:"estimated"`
	DeadLettersOf   []string      `json:"dead_letters_of"`
	// UnavailableCells are those of several cells that do not answer: their part is missing.
	UnavailableCells []int `json:"unavailable_cells,omitzero"`
}

// queueCounts are the counts of a Queue as the server has them.
type queueCounts struct {
	Ready           int          `json:"ready"`
	Scheduled       int          `json:"scheduled"`
	Waiting         int          `json:"waiting"`
	Leased          int          `json:"leased"`
	OldestReadyAge  nullDuration `json:"oldest_ready_age"`
	DoneLastHour    int          `json:"done_last_hour"`
	FailedLastHour  int          `json:"failed_last_hour"`
	ExpiredLastHour int          `json:"expired_last_hour"`
	Estimated       bool         `json:"estimated"`
	DeadLettersOf   []string     `json:"dead_letters_of"`

	UnavailableCells []int `json:"unavailable_cells,omitzero"`
}

// MarshalJSON implements [json.Marshaler]: one object, as the server has it.
func (q Queue) MarshalJSON() ([]byte, error) {
	policy, err := q.Policy.MarshalJSON()
	if err != nil {
		return nil, err
	}
	counts, err := encodeJSON(queueCounts{q.Ready, q.Scheduled, q.Waiting, q.Leased, nullDuration(q.OldestReadyAge), q.DoneLastHour, q.FailedLastHour, q.ExpiredLastHour, q.Estimated, q.DeadLettersOf, q.UnavailableCells})
	if err != nil {
		return nil, err
	}
	return slices.Concat(bytes.TrimSuffix(bytes.TrimSpace(policy), []byte("}")), []byte(","), bytes.TrimPrefix(counts, []byte("{"))), nil
}

// UnmarshalJSON implements [json.Unmarshaler].
func (q *Queue) UnmarshalJSON(text []byte) error {
	var c queueCounts
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	*q = Queue{q.Policy, c.Ready, c.Scheduled, c.Waiting, c.Leased, time.Duration(c.OldestReadyAge), c.DoneLastHour, c.FailedLastHour, c.ExpiredLastHour, c.Estimated, c.DeadLettersOf, c.UnavailableCells}
	return q.Policy.UnmarshalJSON(text)
}

// GetQueue returns the policy of a queue and its counts. A queue can have events and no policy: then it is the default one, and has version 0. It fails with
// [ErrQueueNotDeclared] if it has neither, and the server takes declared queues alone.
func (c *Client) GetQueue(ctx context.Context, name string) (Queue, error) {
	q, away, err := joined(c, func(at *Client, _ *int) (Queue, error) {
		var q Queue
		_, err := at.Do(ctx, Request{Path: queuePath(name, "")}, &q)
		return q, err
	}, func(into *Queue, q Queue) {
		into.Ready += q.Ready
		into.Scheduled += q.Scheduled
		into.Waiting += q.Waiting
		into.Leased += q.Leased
		into.OldestReadyAge = max(into.OldestReadyAge, q.OldestReadyAge)
		into.DoneLastHour += q.DoneLastHour
		into.FailedLastHour += q.FailedLastHour
		into.ExpiredLastHour += q.ExpiredLastHour
		into.Estimated = into.Estimated || q.Estimated
		into.DeadLettersOf = union(into.DeadLettersOf, q.DeadLettersOf)
	})
	q.UnavailableCells = away
	return q, err
}

// PutQueue replaces the whole policy of a queue, at once and for every process, whatever it was before.
func (c *Client) PutQueue(ctx context.Context, name string, settings QueueSettings) (Policy, error) {
	return c.policy(ctx, Request{Method: http.MethodPut, Path: queuePath(name, ""), Body: settings})
}

// PutQueueIf is PutQueue if the policy has that version, or, with version 0, if the queue has none. Otherwise it returns [ErrPreconditionFailed]; so
// it does, too, when it is repeated after an answer that was lost, and its change was made.
func (c *Client) PutQueueIf(ctx context.Context, name string, settings QueueSettings, version int64) (Policy, error) {
	header := ifMatch(version)
	if version == 0 {
		header.Set("If-None-Match", "*")
	}
	return c.policy(ctx, Request{Method: http.MethodPut, Path: queuePath(name, ""), Header: header, Body: settings})
}

// PatchQueue changes the settings of a queue that patch has, by their names in JSON, such as "max_attempts"; nil removes a value, and a map changes a part of a setting,
// as in {"flow": {"concurrency": 5}}. What others change at the same time is kept. If ifVersion is not 0, it changes that version or returns [ErrPreconditionFailed].
func (c *Client) PatchQueue(ctx context.Context, name string, ifVersion int64, patch map[string]any) (Policy, error) {
	return c.policy(ctx, Request{Method: http.MethodPatch, Path: queuePath(name, ""), Header: ifMatch(ifVersion), Body: patch, Repeatable: ifVersion == 0})
}

// PauseQueue makes the events of a queue unclaimable until it is resumed. They can still be inserted, and claimed ones acked.
func (c *Client) PauseQueue(ctx context.Context, name string) (Policy, error) {
	return c.policy(ctx, Request{Method: http.MethodPost, Path: queuePath(name, "/pause"), Repeatable: true})
}

// ResumeQueue ends a pause and wakes waiting claims.
func (c *Client) ResumeQueue(ctx context.Context, name string) (Policy, error) {
	return c.policy(ctx, Request{Method: http.MethodPost, Path: queuePath(name, "/resume"), Repeatable: true})
}

func (c *Client) policy(ctx context.Context, req Request) (Policy, error) {
	var p Policy
	_, err := c.Do(ctx, req, &p)
	return p, err
}

// PurgeQueue moves the events of a queue that nobody has a lease on into history as cancelled, and returns how many. An uncertain call is not
// repeated.
func (c *Client) PurgeQueue(ctx context.Context, name string) (purged int, err error) {
	return sumOfCells(c, 0, func(at *Client, _ int) (int, error) {
		var answer purgedEvents
		_, err := at.Do(ctx, Request{Method: http.MethodPost, Path: queuePath(name, "/purge")}, &answer)
		return answer.Purged, err
	})
}

type purgedEvents struct {
	Purged int `json:"purged"`
}

// DeleteParams say when a queue may be deleted. The zero value: when it has no events.
type DeleteParams struct {
	// Purge moves the events of the queue into history as cancelled first. None may be under a lease.
	Purge bool
	// IfVersion is the version that the policy must have; 0: any, or no policy at all.
	IfVersion int64
}

// DeleteQueue deletes a queue, its policy and its push, and returns how many events it has moved into history, which stays. It
// returns [ErrQueueNotEmpty], [ErrQueueLeased] or [ErrQueueInUse] if the queue has to stay, and [ErrNotFound] if there is none: so it does, too, when it is
// repeated after an answer that was lost.
func (c *Client) DeleteQueue(ctx context.Context, name string, p DeleteParams) (purged int, err error) {
	var answer purgedEvents
	req := Request{Method: http.MethodDelete, Path: queuePath(name, ""), Header: ifMatch(p.IfVersion)}
	if p.Purge {
		req.Query = url.Values{"purge": {"true"}}
	}
	_, err = c.Do(ctx, req, &answer)
	return answer.Purged, err
}

// MoveParams say which events to move, and where. To is required.
type MoveParams struct {
	// To is the queue that the events go to.
	To string `json:"to"`
	// Types limits the move to events of some types, at most 100; none: all, and events without a type.
	Types []string `json:"types,omitzero"`
	// Limit is how many events to move at most; 0: all.
	Limit int `json:"limit,omitzero"`
}

// MoveEvents moves the events of a queue that nobody has a lease on into another queue, and returns how many. They keep their ids, attempts and
// options. Events that are moved when the call fails stay moved, and an uncertain call is not repeated: its count would be lost.
func (c *Client) MoveEvents(ctx context.Context, from string, p MoveParams) (moved int, err error) {
	return sumOfCells(c, p.Limit, func(at *Client, limit int) (int, error) {
		p.Limit = limit
		var answer movedEvents
		_, err := at.Do(ctx, Request{Method: http.MethodPost, Path: queuePath(from, "/move"), Body: p}, &answer)
		return answer.Moved, err
	})
}

type movedEvents struct {
	Moved int `json:"moved"`
}

// RunParams say which events [Client.RunQueue] makes claimable. The zero value is all that wait.
type RunParams struct {
	// Types limits the call to events of some types, at most 100; none: all, and events without a type.
	Types []string `json:"types,omitzero"`
	// NackedOnly limits it to events that wait after a nack: those that were inserted for a later time stay scheduled.
	NackedOnly bool `json:"nacked_only,omitzero"`
	// Limit is how many events to run at most; 0: all.
	Limit int `json:"limit,omitzero"`
}

// RunQueue makes the events of a queue claimable now that wait for their time, in the order in which they would have become so, and returns how
// many. Leased events stay as they are. Events that are run when the call fails stay so, and an uncertain call is not repeated: its count would be lost.
func (c *Client) RunQueue(ctx context.Context, name string, p RunParams) (run int, err error) {
	return sumOfCells(c, p.Limit, func(at *Client, limit int) (int, error) {
		p.Limit = limit
		var answer runEvents
		_, err := at.Do(ctx, Request{Method: http.MethodPost, Path: queuePath(name, "/run"), Body: p}, &answer)
		return answer.Run, err
	})
}

type runEvents struct {
	Run int `json:"run"`
}

func queuePath(name, call string) string { return "/queues/" + escape(name) + call }
