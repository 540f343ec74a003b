package client

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// DefaultQueue is the queue of events and claims that name none.
const DefaultQueue = "default"

// States of an event in its queue.
const (
	StateReady     = "ready"     // it can be claimed now
	StateScheduled = "scheduled" // it can be claimed from its VT on
	StateLeased    = "leased"    // it is claimed, and its lease ends at its VT
	StateWaiting   = "waiting"   // it waits for its turn in its group
)

// Outcomes of an event in history.
const (
	OutcomeDone      = "done"      // acked
	OutcomeFailed    = "failed"    // nacked for the last time
	OutcomeExpired   = "expired"   // its attempts were used up, or it was over age
	OutcomeCancelled = "cancelled" // deleted before it was claimed or while it waited for its retry, or purged
)

// Values of NewEvent.OnDuplicate.
const (
	OnDuplicateMatch = "match" // a request under a known idempotency key must say the same; the default
	OnDuplicateFirst = "first" // it gets the first response, whatever it says
	// OnDuplicateReplace has an event that nobody has claimed take the place of the one under the key, with its id. One that was claimed and waits again is cancelled for it,
	// and one that is leased is left alone.
	OnDuplicateReplace = "replace"
	// OnDuplicateSupersede is OnDuplicateReplace, but that one that is leased is cancelled, too: its worker has lost the lease.
	OnDuplicateSupersede = "supersede"
)

// Values of NewEvent.KeyUntil.
const (
	KeyUntilClaimed  = "claimed"  // the first claim of the event
	KeyUntilFinished = "finished" // the end of the event
)

// A NewEvent is an event to insert. Only Payload is required.
type NewEvent struct {
	// Payload is the event: anything that encodes to a JSON object. A [json.RawMessage] is sent as it is.
	Payload any `json:"event"`
	// Queue is where it waits; empty: [DefaultQueue].
	Queue string `json:"queue,omitzero" query:"queue"`
	// Type is its type, such as "mail.welcome", by which a [Worker] finds the handler; at most 255 characters.
	Type string `json:"type,omitzero" query:"type"`
	// Source says where it comes from; at most 255 characters.
	Source string `json:"source,omitzero" query:"source"`
	// Key is its idempotency key in its queue, at most 255 characters: an event that was inserted under it before is not stored again. If it
	// is empty the client makes one, so that the call can be retried; see Config.RetryFor.
	Key string `json:"key,omitzero" query:"key"`
	// Group is the group that it belongs to, of which the queue may limit how many are claimed at once, see [Flow]; at most 255 bytes; empty: none.
	Group string `json:"group,omitzero" query:"group"`
	// OnDuplicate says how a different event under a known Key is answered; empty: [OnDuplicateMatch].
	OnDuplicate string `json:"on_duplicate,omitzero" query:"on_duplicate"`
	// KeyUntil says how long Key stands: until [KeyUntilClaimed], until [KeyUntilFinished], or for a duration, such as "10m"; empty: for as long as the server keeps keys.
	KeyUntil string `json:"key_until,omitzero" query:"key_until"`
	// MaxWait is, with [OnDuplicateReplace] and [OnDuplicateSupersede], how long after the first insert under Key the event becomes claimable at the latest, however often its Delay has begun anew; 0:
	// there is no bound.
	MaxWait time.Duration `json:"max_wait,omitzero" query:"max_wait"`
	// Delay is how long from now it becomes claimable, at most ten years; 0: at once. Cannot be combined with VT.
	Delay time.Duration `json:"delay,omitzero" query:"delay"`
	// VT is when it becomes claimable; zero: at once.
	VT time.Time `json:"vt,omitzero" query:"vt"`
	// Priority: lower numbers are claimed first.
	Priority int32 `json:"priority,omitzero" query:"priority"`
	// MaxAttempts is how often it can be claimed; 0: as its queue's policy says, or the claim, or the server.
	MaxAttempts int `json:"max_attempts,omitzero" query:"max_attempts"`
	// ExpiresAt is when it goes into history as expired unless it is done before; zero: never.
	ExpiresAt time.Time `json:"expires_at,omitzero" query:"expires_at"`
	// EventTS is the time of the event; zero: "event_ts" in the payload, or else the time of the insert.
	EventTS time.Time `json:"event_ts,omitzero" query:"event_ts"`
	// Meta is a JSON object of at most 16 KiB that goes along with the payload; nil: none.
	Meta json.RawMessage `json:"meta,omitzero" query:"meta"`
	// KeepRaw is how long to keep the bytes of the payload as they were sent, for [Client.GetRawBody]; 0: they are not kept. Only
	// [Client.Insert] takes it.
	KeepRaw time.Duration `json:"-" query:"keep_raw"`
}

// MarshalJSON implements [json.Marshaler].
func (e NewEvent) MarshalJSON() ([]byte, error) {
	type plain NewEvent
	return encodeJSON(struct {
		plain
		Delay   duration `json:"delay,omitzero"`
		MaxWait duration `json:"max_wait,omitzero"`
	}{plain(e), duration(e.Delay), duration(e.MaxWait)})
}

// Inserted is the result of an insert.
type Inserted struct {
	ID    int64  `json:"id"`
	Queue string `json:"queue"`
	// VT is when the event becomes claimable.
	VT time.Time `json:"vt"`
	// Replayed says that the event was inserted before under its key; this is the first answer.
	Replayed bool `json:"-"`
}

// An Event is an event with its bookkeeping. Which of the last groups of fields it has depends on where it is.
type Event struct {
	ID    int64  `json:"id"`
	Queue string `json:"queue"`
	// Payload is the event as it was sent, but for blanks and the order of names. It is null if the event cannot be read, and Unreadable says why.
	Payload    json.RawMessage `json:"event"`
	Unreadable string          `json:"unreadable,omitzero"`
	Type       string          `json:"type,omitzero"`
	Source     string          `json:"source,omitzero"`
	// Key is its idempotency key.
	Key string `json:"key,omitzero"`
	// Group is the group that it belongs to; empty: none.
	Group string `json:"group,omitzero"`
	// BlockedBy is what its group waits for, of an event in [StateWaiting] that [Client.GetEvent] has returned; nil: its turn comes with the next claim.
	BlockedBy *BlockedBy `json:"blocked_by,omitzero"`
	Priority  int32      `json:"priority"`
	// EventTS is the time of the event: as the insert or the payload said, or else EnqueuedAt.
	EventTS    time.Time `json:"event_ts"`
	EnqueuedAt time.Time `json:"enqueued_at"`
	// VT is when it becomes, or became, claimable. Of a leased event it is the end of the lease. One that waits for its turn in its group is not claimable before that.
	VT time.Time `json:"vt"`
	// Attempts is how often it has been claimed. Claimed has when, oldest first: of more than 100 the first and the latest 99.
	Attempts    int         `json:"attempts"`
	Claimed     []time.Time `json:"claimed"`
	MaxAttempts int         `json:"max_attempts,omitzero"`
	ExpiresAt   time.Time   `json:"expires_at,omitzero"`
	// Worker is the name of the worker that has, or had, the latest lease.
	Worker string `json:"worker,omitzero"`
	// LastError is the error of the latest nack.
	LastError string          `json:"last_error,omitzero"`
	Meta      json.RawMessage `json:"meta,omitzero"`
	// Occurrence is of the schedule that made the event: an object with schedule_id, nominal_at and scheduled_for; nil: none did.
	Occurrence json.RawMessage `json:"occurrence,omitzero"`
	// Publication is the publication that a subscription has delivered as this event; nil if the event was inserted otherwise.
	Publication *Publication `json:"publication,omitzero"`
	// RequeuedFrom is the event in history that this one is a copy of; 0: none.
	RequeuedFrom int64 `json:"requeued_from,omitzero"`
	// DeadLetterOf is the event in history that this one is the dead letter of; 0: none. The member dead_letter of Meta says why.
	DeadLetterOf int64 `json:"dead_letter_of,omitzero"`

	// Receipt is the proof of the claim. Only events that [Client.Claim] returns have one.
	Receipt string `json:"receipt,omitzero"`

	// State is [StateReady], [StateScheduled], [StateLeased] or [StateWaiting], while the event is in its queue.
	State string `json:"state,omitzero"`
	// ErrorCount is how many attempts ended without success. Claimed events have none.
	ErrorCount *int `json:"error_count,omitzero"`

	// Outcome is how the event left its queue: [OutcomeDone], [OutcomeFailed], [OutcomeExpired] or [OutcomeCancelled]. Events in history
	// have it, and the fields below. Status is the same.
	Outcome          string    `json:"outcome,omitzero"`
	Status           string    `json:"status,omitzero"`
	FinishedAt       time.Time `json:"finished_at,omitzero"`
	FirstAttemptedAt time.Time `json:"first_attempted_at,omitzero"`
	LastAttemptedAt  time.Time `json:"last_attempted_at,omitzero"`
	// ProcessingMS is how long the last attempt took, in milliseconds; nil unless the event is done or failed.
	ProcessingMS *float64 `json:"processing_ms,omitzero"`
	// Result is the result that the ack has stored.
	Result json.RawMessage `json:"result,omitzero"`
	// Retryable is whether another attempt could succeed, as the last nack said; nil: it did not say.
	Retryable *bool `json:"retryable,omitzero"`
	// RequeuedAs is the latest copy of the event that was requeued; 0: none.
	RequeuedAs int64 `json:"requeued_as,omitzero"`
	// DeadLetteredAs is the dead letter of the event; 0: it has none.
	DeadLetteredAs int64 `json:"dead_lettered_as,omitzero"`
}

// Decode decodes the payload. Numbers in values of type any become a [json.Number], which keeps all digits.
func (e *Event) Decode(into any) error { return decodePayload(e.Payload, into) }

// A Publication says where an event that a subscription has delivered comes from.
type Publication struct {
	Subscription string    `json:"subscription"`
	Position     int64     `json:"position"`
	Topic        string    `json:"topic"`
	PublishedAt  time.Time `json:"published_at"`
	// Matched has the names of the filters that want the event, sorted.
	Matched []string `json:"matched"`
}

// Insert inserts an event. The call is retried under e.Key, or under a key that the client makes. Inserts of many goroutines at a time are sent together, see
// Config.SendInsertsAlone; each has its own result and error all the same. When ctx ends while an event is on its way, it may be inserted.
func (c *Client) Insert(ctx context.Context, e NewEvent) (Inserted, error) {
	if e.Key == "" && c.makesKeys() {
		e.Key = newKey()
	}
	payload, err := encodeJSON(e.Payload)
	if err != nil {
		return Inserted{}, fmt.Errorf("client: the payload: %w", err)
	}
	e.Payload = json.RawMessage(payload)
	if c.inserts == nil || e.Key == "" || e.KeepRaw != 0 || len(payload) > maxCoalescedPayload {
		return c.insertAlone(ctx, e)
	}
	return c.inserts.send(ctx, e, len(payload)+len(e.Meta))
}

// insertAlone inserts an event whose payload is encoded, with a request of its own.
func (c *Client) insertAlone(ctx context.Context, e NewEvent) (Inserted, error) {
	var inserted Inserted
	resp, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/events", Query: queryOf(e), Body: e.Payload, Repeatable: e.Key != ""}, &inserted)
	if err == nil {
		inserted.Replayed = resp.Replayed()
	}
	return inserted, err
}

// InsertBatch inserts up to 1,000 events, all or none, and returns their ids in the same order. The call is retried under the keys of the
// events, or under keys that the client makes. An event that was inserted before under its key is not stored again; its first id is
// returned. Behind a gateway events that go to several cells are refused: [Client.InsertEach] is for them.
func (c *Client) InsertBatch(ctx context.Context, events []NewEvent) ([]int64, error) {
	keyed, err := c.keyed(events)
	if err != nil {
		return nil, err
	}
	var inserted insertedBatch
	_, err = c.Do(ctx, Request{
		Method: http.MethodPost, Path: "/events/batch", Body: insertBatchRequest{keyed}, Repeatable: allHave(keyed, func(e NewEvent) string { return e.Key }),
	}, &inserted)
	return inserted.IDs, err
}

// InsertEach inserts up to 1,000 events with one call, each on its own, and returns what [Client.Insert] would have returned for each, in the same order, or an error of the whole call. It
// is retried as InsertBatch is.
func (c *Client) InsertEach(ctx context.Context, events []NewEvent) ([]Inserted, []error, error) {
	keyed, err := c.keyed(events)
	if err != nil {
		return nil, nil, err
	}
	return c.insertTogether(ctx, keyed)
}

// keyed returns events with keys, if the client makes any.
func (c *Client) keyed(events []NewEvent) ([]NewEvent, error) {
	keyed := make([]NewEvent, len(events))
	together := "{" + newKey() + "}" // keys with the same part in braces go to one cell of a queue that gateways spread over several
	for i, e := range events {
		if e.KeepRaw != 0 {
			return nil, errors.New("client: KeepRaw is for Insert")
		}
		if e.Key == "" && c.makesKeys() {
			e.Key = fmt.Sprint(together, i)
		}
		keyed[i] = e
	}
	return keyed, nil
}

type insertBatchRequest struct {
	Events []NewEvent `json:"events"`
}

type insertedBatch struct {
	IDs     []int64          `json:"ids,omitzero"`     // of an atomic batch
	Results []insertedResult `json:"results,omitzero"` // of another one
}

// keyDigits writes bytes as text whose order is theirs.
var keyDigits = base32.HexEncoding.WithPadding(base32.NoPadding)

// newKey returns an idempotency key that nobody else has: the time in milliseconds, and then 80 random bits. Keys of one time are neighbours in the index of the database, where each
// random key would change another page.
func newKey() string { return keyAt(time.Now()) }

func keyAt(now time.Time) string {
	var key [2 + 16]byte
	binary.BigEndian.PutUint64(key[:8], uint64(now.UnixMilli()))
	_, _ = rand.Read(key[8:]) // it never fails
	return "client-" + keyDigits.EncodeToString(key[2:])
}

// allHave reports whether each item has a key.
func allHave[T any](items []T, key func(T) string) bool {
	for _, item := range items {
		if key(item) == "" {
			return false
		}
	}
	return true
}

// GetEvent returns an event that is in its queue or in history, or [ErrNotFound].
func (c *Client) GetEvent(ctx context.Context, id int64) (Event, error) {
	var e Event
	_, err := c.Do(ctx, Request{Path: eventPath(id, "")}, &e)
	return e, err
}

// WaitEvent returns an event once it has ended, that is, once it is in history, with its Outcome and, if its ack had one, its Result. It asks the server again and
// again until then. It returns [ErrNotFound] if there is no such event, and ctx's error if ctx ends before the event does.
func (c *Client) WaitEvent(ctx context.Context, id int64) (Event, error) {
	for failures := 0; ; {
		wait, asked := MaxWait, time.Now()
		if deadline, ok := ctx.Deadline(); ok {
			wait = min(wait, max(0, time.Until(deadline)).Truncate(time.Microsecond))
		}
		var e Event
		_, err := c.Do(ctx, Request{Path: eventPath(id, ""), Query: url.Values{"wait": {wait.String()}}, Wait: wait}, &e)
		if err != nil || e.Outcome != "" {
			return e, err
		}
		failures++ // an answer that comes too soon is from a server that stops
		if time.Since(asked) >= wait/2 {
			failures = 0
		}
		if failures > 0 || wait == 0 {
			if err := sleep(ctx, pauseBefore(max(failures, 1), nil)); err != nil {
				return Event{}, err
			}
		}
	}
}

// RunEvent makes an event claimable now that waits for its time, and returns since when it is. An event that is claimable stays as it is. It
// returns [ErrLeased] if the event is leased, and [ErrEnded] if it has left its queue. It can be repeated.
func (c *Client) RunEvent(ctx context.Context, id int64) (time.Time, error) {
	var run runEvent
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: eventPath(id, "/run"), Repeatable: true}, &run)
	return run.VT, err
}

type runEvent struct {
	ID int64     `json:"id"`
	VT time.Time `json:"vt"`
}

// GetRawBody returns the bytes that an event came in as, if its insert asked to keep them, or [ErrNotFound].
func (c *Client) GetRawBody(ctx context.Context, id int64) ([]byte, error) {
	var body json.RawMessage
	_, err := c.Do(ctx, Request{Path: eventPath(id, "/raw"), Header: http.Header{"Accept": {"*/*"}}}, &body)
	return body, err
}

// An EventFilter says which events to list. Its zero value is all.
type EventFilter struct {
	Queue string `query:"queue"`
	// State is [StateReady], [StateScheduled], [StateLeased] or [StateWaiting].
	State string `query:"state"`
	// Group is one of the groups of Queue, which must be given with it.
	Group string `query:"group"`
	// Contains and Meta are JSON objects that the payload or the metadata contains, as PostgreSQL's operator @> has it.
	Contains json.RawMessage `query:"contains"`
	Meta     json.RawMessage `query:"meta"`
	// PageSize is how many events one request asks for, up to 1,000; 0: 100.
	PageSize int `query:"limit"`
}

// ListEvents returns the events that wait in queues, in the order in which they become claimable. It reads page after page as the loop goes
// on; an error is the last thing it returns.
func (c *Client) ListEvents(ctx context.Context, filter EventFilter) iter.Seq2[Event, error] {
	return c.events(ctx, "/events", filter, byVT)
}

// events lists the events at a path, which are in an order.
func (c *Client) events(ctx context.Context, path string, filter any, o order[Event]) iter.Seq2[Event, error] {
	return listOfCells(ctx, c, path, filter, o, func(p eventPage) page[Event] { return page[Event]{p.Events, p.Next} })
}

type eventPage struct {
	Events []Event `json:"events"`
	Next   *string `json:"next"`
}

// An Attempt is one claim of an event.
type Attempt struct {
	// Attempt is its number, from 1.
	Attempt   int       `json:"attempt"`
	Worker    string    `json:"worker,omitzero"`
	StartedAt time.Time `json:"started_at"`
	// EndedAt is when it ended, and DurationMS how long it took, in milliseconds; nil while it runs.
	EndedAt    *time.Time `json:"ended_at"`
	DurationMS *float64   `json:"duration_ms"`
	// Outcome is "running", "done", "nacked", "failed" or "lease_ended".
	Outcome string `json:"outcome"`
	// Error is that of the nack.
	Error string `json:"error,omitzero"`
}

// ListAttempts returns the attempts of an event that is in its queue or in history, oldest first: at most the latest 21.
func (c *Client) ListAttempts(ctx context.Context, id int64) ([]Attempt, error) {
	var list attemptList
	_, err := c.Do(ctx, Request{Path: eventPath(id, "/attempts")}, &list)
	return list.Attempts, err
}

type attemptList struct {
	Attempts []Attempt `json:"attempts"`
}
