package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"time"
)

// The states of a redrive.
const (
	RedriveRunning   = "running"
	RedrivePaused    = "paused"
	RedriveCancelled = "cancelled"
	RedriveDone      = "done"
	RedriveFailed    = "failed" // for a Reason; it can be resumed
)

// Origin is the queue where each dead letter came from, as the target of a redrive.
const Origin = "origin"

// A RedriveFilter says which events a redrive requeues: those that match all fields that are not zero.
type RedriveFilter struct {
	Queue string `json:"queue,omitzero"`
	// Outcome is [OutcomeDone], [OutcomeFailed], [OutcomeExpired] or [OutcomeCancelled].
	Outcome string `json:"outcome,omitzero"`
	// From, inclusive, and To, exclusive, bound EventTS.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// FinishedFrom, inclusive, and FinishedTo, exclusive, bound FinishedAt.
	FinishedFrom time.Time `json:"finished_from,omitzero"`
	FinishedTo   time.Time `json:"finished_to,omitzero"`
	// Contains and Meta are JSON objects that the payload or the metadata contains, as PostgreSQL's operator @> has it.
	Contains json.RawMessage `json:"contains,omitzero"`
	Meta     json.RawMessage `json:"meta,omitzero"`
	Type     string          `json:"type,omitzero"`
	Source   string          `json:"source,omitzero"`
	// Worker is the one that claimed the event last.
	Worker string `json:"worker,omitzero"`
	// MinDuration leaves out events whose last attempt took less, and those that are neither done nor failed.
	MinDuration time.Duration `json:"min_duration,omitzero"`
	// Cause is that of the last error of events that failed or expired, as [Client.HistoryErrors] has it.
	Cause string `json:"cause,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (f RedriveFilter) MarshalJSON() ([]byte, error) {
	type filter RedriveFilter
	return encodeJSON(struct {
		filter
		MinDuration duration `json:"min_duration,omitzero"`
	}{filter(f), duration(f.MinDuration)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (f *RedriveFilter) UnmarshalJSON(text []byte) error {
	type filter RedriveFilter
	wire := struct {
		*filter
		MinDuration duration `json:"min_duration,omitzero"`
	}{filter: (*filter)(f)}
	err := json.Unmarshal(text, &wire)
	f.MinDuration = time.Duration(wire.MinDuration)
	return err
}

// A NewRedrive is a redrive to create. It needs a Filter, or the Queue of dead letters.
type NewRedrive struct {
	// Queue is the one whose dead letters are redriven, instead of events of history. From, To, Contains, Meta, Type and Source can be their Filter.
	Queue  string        `json:"queue,omitzero"`
	Filter RedriveFilter `json:"filter,omitzero"`
	// To is where the events go; empty: each to its own queue, and a dead letter to its [Origin].
	To string `json:"to,omitzero"`
	// Rate is how many events a second go at most; 0: as many as the database does beside other work.
	Rate float64 `json:"rate,omitzero"`
	// IdempotencyKey makes the call safe to repeat; empty: the client makes one, see Config.RetryFor.
	IdempotencyKey string `json:"idempotency_key,omitzero"`
}

// A Redrive requeues events in the background.
type Redrive struct {
	ID int64 `json:"id"`
	// Queue is the one whose dead letters are redriven; empty: events of history are.
	Queue  string        `json:"queue,omitzero"`
	Filter RedriveFilter `json:"filter"`
	To     string        `json:"to,omitzero"`
	Rate   float64       `json:"rate,omitzero"`
	// State is [RedriveRunning], [RedrivePaused], [RedriveCancelled], [RedriveDone] or [RedriveFailed].
	State string `json:"state"`
	// Reason is why it has failed, or why the latest event was skipped that raised an error; empty: neither.
	Reason string `json:"reason,omitzero"`
	// Matched is how many events matched when it was created; with Estimate, about.
	Matched  int64 `json:"matched"`
	Estimate bool  `json:"estimate"`
	// Requeued is how many events have gone, and Skipped how many matched and did not go.
	Requeued   int64      `json:"requeued"`
	Skipped    int64      `json:"skipped"`
	CreatedAt  time.Time  `json:"created_at"`
	UpdatedAt  time.Time  `json:"updated_at"`
	FinishedAt *time.Time `json:"finished_at,omitzero"`
	// Others are the redrives on other cells behind a gateway that were created with it, each with an id of its own. Only [Client.CreateRedrive] returns them.
	Others []int64 `json:"others,omitzero"` // of this package: no server says so
}

// HasEnded reports whether the redrive is done, was cancelled, or has failed.
func (r Redrive) HasEnded() bool { return r.State != RedriveRunning && r.State != RedrivePaused }

// CreateRedrive creates a redrive, which goes on in the background, whatever becomes of the caller. The call is retried under r.IdempotencyKey, or under a key that the
// client makes.
func (c *Client) CreateRedrive(ctx context.Context, r NewRedrive) (Redrive, error) {
	if r.IdempotencyKey == "" && c.makesKeys() {
		r.IdempotencyKey = newKey()
	}
	create := func(at *Client) (Redrive, error) {
		return at.redrive(ctx, Request{Method: http.MethodPost, Path: "/redrives", Body: createRedriveRequest{NewRedrive: r}, Repeatable: r.IdempotencyKey != ""})
	}
	first, err := create(c)
	numbers := partsOf(err)
	if numbers == nil {
		return first, err
	}
	r.Rate /= float64(len(numbers)) // together they are as fast as one
	for i, number := range numbers {
		made, err := create(c.Cell(number))
		switch {
		case err != nil:
			return first, fmt.Errorf("cell %d: %w", number, err)
		case i == 0:
			first = made
		default:
			first.Others = append(first.Others, made.ID)
		}
	}
	return first, nil
}

// createRedriveRequest is the body of a call that creates a redrive or counts what it would match.
type createRedriveRequest struct {
	NewRedrive
	DryRun bool `json:"dry_run,omitzero"`
}

func (c *Client) redrive(ctx context.Context, req Request) (Redrive, error) {
	var r Redrive
	_, err := c.Do(ctx, req, &r)
	return r, err
}

// CountRedrive returns how many events a redrive would match, and whether that is an estimate. It changes nothing.
func (c *Client) CountRedrive(ctx context.Context, r NewRedrive) (matched int64, isEstimate bool, err error) {
	counted, away, err := joined(c, func(at *Client, _ *int) (Redrive, error) {
		return at.redrive(ctx, Request{Method: http.MethodPost, Path: "/redrives", Body: createRedriveRequest{r, true}, Repeatable: true})
	}, func(into *Redrive, other Redrive) {
		into.Matched += other.Matched
		into.Estimate = into.Estimate || other.Estimate
	})
	return counted.Matched, counted.Estimate, missing(err, away)
}

// A RedriveListing says which redrives to list. Its zero value is all.
type RedriveListing struct {
	// State is one of those of [Redrive]; empty: any.
	State string `query:"state"`
	// PageSize is how many redrives one request asks for, up to 1,000; 0: 100.
	PageSize int `query:"limit"`
}

// ListRedrives returns redrives, the latest first: those that have not ended, or did so within 30 days. An error is the last thing it returns.
func (c *Client) ListRedrives(ctx context.Context, listing RedriveListing) iter.Seq2[Redrive, error] {
	return listOfCells(ctx, c, "/redrives", listing, byAge, func(p redrivePage) page[Redrive] { return page[Redrive]{p.Redrives, p.Next} })
}

type redrivePage struct {
	Redrives []Redrive `json:"redrives"`
	Next     *string   `json:"next"`
}

// GetRedrive returns a redrive. It fails with [ErrNotFound].
func (c *Client) GetRedrive(ctx context.Context, id int64) (Redrive, error) {
	return c.redrive(ctx, Request{Path: redrivePath(id, "")})
}

// PauseRedrive pauses a redrive: when it returns, no more events go. It fails with [ErrNotFound] and [ErrRedriveEnded].
func (c *Client) PauseRedrive(ctx context.Context, id int64) (Redrive, error) {
	return c.redrive(ctx, Request{Method: http.MethodPost, Path: redrivePath(id, "/pause"), Repeatable: true})
}

// ResumeRedrive goes on with a redrive that is paused or has failed. It fails with [ErrNotFound] and [ErrRedriveEnded].
func (c *Client) ResumeRedrive(ctx context.Context, id int64) (Redrive, error) {
	return c.redrive(ctx, Request{Method: http.MethodPost, Path: redrivePath(id, "/resume"), Repeatable: true})
}

// CancelRedrive ends a redrive: when it returns, no more events go. It fails with [ErrNotFound] and [ErrRedriveEnded].
func (c *Client) CancelRedrive(ctx context.Context, id int64) (Redrive, error) {
	return c.redrive(ctx, Request{Method: http.MethodPost, Path: redrivePath(id, "/cancel"), Repeatable: true})
}

func redrivePath(id int64, call string) string {
	return "/redrives/" + strconv.FormatInt(id, 10) + call
}
