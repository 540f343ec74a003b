package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"strconv"
	"time"
)

// A NewSchedule is a schedule to create. Payload is required, and one of At, RRule and Cron.
type NewSchedule struct {
	// Payload is the payload of each event inserted or published: anything that encodes to a JSON object.
	Payload any `json:"event"`
	// Name is for people.
	Name string `json:"name,omitzero"`
	// Owner is whose time zone the schedule follows if Timezone is empty; see [Client.PutOwner].
	Owner string `json:"owner,omitzero"`
	// Queue is where events are inserted; empty: [DefaultQueue], unless there is a Topic.
	Queue string `json:"queue,omitzero"`
	// Topic is where events are published, instead of being inserted. Queue, Type, Priority and Group cannot be given with it.
	Topic    string `json:"topic,omitzero"`
	Type     string `json:"type,omitzero"`
	Priority int32  `json:"priority,omitzero"`
	// Group is that of its events, see NewEvent.Group; empty: none of their own.
	Group string `json:"group,omitzero"`
	// At is a local date-time, such as "2027-03-28T09:00:00", or an instant with Z or an offset. With RRule it is the rule's DTSTART.
	At string `json:"at,omitzero"`
	// RRule is a recurrence rule of RFC 5545, such as "FREQ=MONTHLY;BYDAY=-1FR".
	RRule string `json:"rrule,omitzero"`
	// Cron is a cron expression, such as "30 7 * * 1-5".
	Cron string `json:"cron,omitzero"`
	// Timezone is a name of the IANA database, such as "Europe/Berlin"; empty: the owner's.
	Timezone string `json:"timezone,omitzero"`
	// Starts and Ends bound the occurrences; both are written like At.
	Starts string `json:"starts,omitzero"`
	Ends   string `json:"ends,omitzero"`
	// Count is how many occurrences there are; 0: no bound.
	Count int `json:"count,omitzero"`
	// Gap, "forward" (the default), "next" or "skip", decides on local times that a zone skips. Overlap, "first" (the default) or
	// "last", decides which of two equal local times is meant. Leap, "feb28" (the default), "mar1" or "skip", decides on 29 February.
	Gap     string `json:"gap,omitzero"`
	Overlap string `json:"overlap,omitzero"`
	Leap    string `json:"leap,omitzero"`
	// Misfire decides on occurrences that were missed: "once" (the default), "all" or "skip".
	Misfire string `json:"misfire,omitzero"`
	// IdempotencyKey makes the call safe to repeat; empty: the client makes one, see Config.RetryFor.
	IdempotencyKey string `json:"idempotency_key,omitzero"`
}

// A Schedule is a rule for events to come.
type Schedule struct {
	ID       int64           `json:"id"`
	Name     string          `json:"name,omitzero"`
	Owner    string          `json:"owner,omitzero"`
	Queue    string          `json:"queue,omitzero"`
	Topic    string          `json:"topic,omitzero"`
	Type     string          `json:"type,omitzero"`
	Priority int32           `json:"priority"`
	Group    string          `json:"group,omitzero"`
	Payload  json.RawMessage `json:"event"`
	At       string          `json:"at,omitzero"`
	RRule    string          `json:"rrule,omitzero"`
	Cron     string          `json:"cron,omitzero"`
	Timezone string          `json:"timezone,omitzero"`
	Starts   string          `json:"starts,omitzero"`
	Ends     string          `json:"ends,omitzero"`
	Count    int             `json:"count,omitzero"`
	Gap      string          `json:"gap"`
	Overlap  string          `json:"overlap"`
	Leap     string          `json:"leap"`
	Misfire  string          `json:"misfire"`
	// Kind is "once", "rrule" or "cron".
	Kind string `json:"kind"`
	// Zone is the time zone in effect: the schedule's own, or its owner's, or UTC.
	Zone string `json:"zone"`
	// Status is "active", "paused", "completed" or "cancelled". StatusReason is why the server paused it.
	Status       string `json:"status"`
	StatusReason string `json:"status_reason,omitzero"`
	// Fired is how many occurrences became events or were published.
	Fired int64 `json:"fired"`
	// Version increases with each change by a caller.
	Version int64 `json:"version"`
	// NextLocal and NextAt are the local time and the instant of the next occurrence; nil if there is none.
	NextLocal *string    `json:"next_local"`
	NextAt    *time.Time `json:"next_at"`
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
	// LastOccurrence is the last one that has come, with what became of it. Nil: none has, or the server keeps it no more, or the call changed the schedule.
	LastOccurrence *Occurrence `json:"last_occurrence,omitzero"`
}

// CreateSchedule creates a schedule. The call is retried under s.IdempotencyKey, or under a key that the client makes.
func (c *Client) CreateSchedule(ctx context.Context, s NewSchedule) (Schedule, error) {
	if s.IdempotencyKey == "" && c.makesKeys() {
		s.IdempotencyKey = newKey()
	}
	return c.schedule(ctx, Request{Method: http.MethodPost, Path: "/schedules", Body: s, Repeatable: s.IdempotencyKey != ""})
}

func (c *Client) schedule(ctx context.Context, req Request) (Schedule, error) {
	var s Schedule
	_, err := c.Do(ctx, req, &s)
	return s, err
}

// A ScheduleFilter says which schedules to list. Its zero value is all.
type ScheduleFilter struct {
	Owner string `query:"owner"`
	Queue string `query:"queue"`
	// Status is "active", "paused", "completed" or "cancelled".
	Status string `query:"status"`
	// DueBefore lists schedules whose next occurrence is before it, in the order of these.
	DueBefore time.Time `query:"due_before"`
	// PageSize is how many schedules one request asks for, up to 1,000; 0: 100.
	PageSize int `query:"limit"`
}

// ListSchedules returns schedules in the order of their creation. An error is the last thing it returns.
func (c *Client) ListSchedules(ctx context.Context, filter ScheduleFilter) iter.Seq2[Schedule, error] {
	return listOf(ctx, c, "/schedules", filter, func(p schedulePage) page[Schedule] { return page[Schedule]{p.Schedules, p.Next} })
}

type schedulePage struct {
	Schedules []Schedule `json:"schedules"`
	Next      *string    `json:"next"`
}

// PreviewParams say which occurrences to preview.
type PreviewParams struct {
	NewSchedule
	// After is when to begin; zero: now.
	After time.Time `json:"after,omitzero"`
	// N is how many, up to 1,000; 0: 10.
	N int `json:"n,omitzero"`
}

// An Instant is one time, local and in UTC.
type Instant struct {
	Local string    `json:"local"`
	UTC   time.Time `json:"utc"`
	// Note is "skipped" for a local time that the clocks of the zone skip, which Gap has moved, "repeated" for one that they show twice, of which Overlap has
	// chosen one, and else empty.
	Note string `json:"note,omitzero"`
}

// PreviewSchedule returns the next occurrences that a schedule would have. It stores nothing, and needs no Payload.
func (c *Client) PreviewSchedule(ctx context.Context, p PreviewParams) ([]Instant, error) {
	if p.Payload == nil {
		p.Payload = struct{}{}
	}
	var preview schedulePreview
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/schedules/preview", Body: p, Repeatable: true}, &preview)
	return preview.Instants, err
}

type schedulePreview struct {
	Instants []Instant `json:"instants"`
}

// GetSchedule returns a schedule, or [ErrNotFound].
func (c *Client) GetSchedule(ctx context.Context, id int64) (Schedule, error) {
	return c.schedule(ctx, Request{Path: schedulePath(id, "")})
}

// PatchSchedule changes the fields of a schedule that patch has, by their names in JSON, such as "cron"; nil removes a value. If ifVersion is
// not 0, it changes that version or returns [ErrPreconditionFailed].
func (c *Client) PatchSchedule(ctx context.Context, id, ifVersion int64, patch map[string]any) (Schedule, error) {
	return c.schedule(ctx, Request{
		Method: http.MethodPatch, Path: schedulePath(id, ""), Header: ifMatch(ifVersion), Body: patch, Repeatable: ifVersion == 0,
	})
}

// DeleteSchedule cancels a schedule: it does not fire again, and can still be read. If ifVersion is not 0, it cancels that version or
// returns [ErrPreconditionFailed].
func (c *Client) DeleteSchedule(ctx context.Context, id, ifVersion int64) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: schedulePath(id, ""), Header: ifMatch(ifVersion)}, nil)
	return err
}

// PauseSchedule makes a schedule not fire until it is resumed.
func (c *Client) PauseSchedule(ctx context.Context, id int64) (Schedule, error) {
	return c.schedule(ctx, Request{Method: http.MethodPost, Path: schedulePath(id, "/pause"), Repeatable: true})
}

// ResumeSchedule ends a pause. The schedule's Misfire decides on missed occurrences.
func (c *Client) ResumeSchedule(ctx context.Context, id int64) (Schedule, error) {
	return c.schedule(ctx, Request{Method: http.MethodPost, Path: schedulePath(id, "/resume"), Repeatable: true})
}

// An Occurrence is one time at which a schedule fired, or should have fired.
type Occurrence struct {
	// NominalAt is its local time, which identifies it within the schedule; ScheduledFor the instant at which it was due, which identifies it if the rule comes within
	// days, as the same local time may come twice.
	NominalAt    string    `json:"nominal_at"`
	ScheduledFor time.Time `json:"scheduled_for"`
	// Manual: it is an extra one, fired by a call.
	Manual bool `json:"manual"`
	// Status is "pending", "processing", "completed", "failed", "cancelled", "skipped" or "published".
	Status string `json:"status"`
	// EventID is its event, or Topic where it was published.
	EventID int64  `json:"event_id,omitzero"`
	Topic   string `json:"topic,omitzero"`
	// FiredAt is when the event was inserted or published, ExecutedAt when it was acked or failed.
	FiredAt       time.Time `json:"fired_at,omitzero"`
	ExecutedAt    time.Time `json:"executed_at,omitzero"`
	FailureReason string    `json:"failure_reason,omitzero"`
	// RetryCount is the number of attempts after the first.
	RetryCount int `json:"retry_count"`
}

// RunSchedule fires an extra occurrence now. An uncertain call is not repeated.
func (c *Client) RunSchedule(ctx context.Context, id int64) (Occurrence, error) {
	var o Occurrence
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: schedulePath(id, "/run")}, &o)
	return o, err
}

// ListOccurrences returns the past occurrences of a schedule, latest first. An error is the last thing it returns.
func (c *Client) ListOccurrences(ctx context.Context, id int64) iter.Seq2[Occurrence, error] {
	return listOf(ctx, c, schedulePath(id, "/occurrences"), largePages, func(p occurrencePage) page[Occurrence] {
		return page[Occurrence]{p.Occurrences, p.Next}
	})
}

// Upcoming returns the next n occurrences of a schedule, up to 1,000.
func (c *Client) Upcoming(ctx context.Context, id int64, n int) ([]Instant, error) {
	var p occurrencePage
	query := queryOf(pageSize{1})
	query.Set("n", strconv.Itoa(n))
	_, err := c.Do(ctx, Request{Path: schedulePath(id, "/occurrences"), Query: query}, &p)
	return p.Upcoming, err
}

type occurrencePage struct {
	Occurrences []Occurrence `json:"occurrences"`
	Upcoming    []Instant    `json:"upcoming"`
	Next        *string      `json:"next"`
}

// An Owner is a person or thing whose time zone schedules follow.
type Owner struct {
	ID       string `json:"id"`
	Timezone string `json:"timezone"`
	// Attributes is a JSON object.
	Attributes json.RawMessage `json:"attributes"`
	// Version increases with each change.
	Version   int64     `json:"version"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// ListOwners returns owners by id. An error is the last thing it returns.
func (c *Client) ListOwners(ctx context.Context) iter.Seq2[Owner, error] {
	return listOf(ctx, c, "/owners", largePages, func(p ownerPage) page[Owner] { return page[Owner]{p.Owners, p.Next} })
}

type ownerPage struct {
	Owners []Owner `json:"owners"`
	Next   *string `json:"next"`
}

// GetOwner returns an owner, or [ErrNotFound].
func (c *Client) GetOwner(ctx context.Context, id string) (Owner, error) {
	return c.owner(ctx, Request{Path: "/owners/" + escape(id)})
}

// PutOwner creates an owner, or replaces its time zone and attributes: a JSON object, or nil for an empty one. Schedules that follow it do so
// at once. If ifVersion is not 0, it replaces that version or returns [ErrPreconditionFailed].
func (c *Client) PutOwner(ctx context.Context, id, timezone string, attributes json.RawMessage, ifVersion int64) (Owner, error) {
	return c.owner(ctx, Request{
		Method: http.MethodPut, Path: "/owners/" + escape(id), Header: ifMatch(ifVersion), Body: putOwnerRequest{timezone, attributes},
	})
}

type putOwnerRequest struct {
	Timezone   string          `json:"timezone"`
	Attributes json.RawMessage `json:"attributes,omitzero"`
}

func (c *Client) owner(ctx context.Context, req Request) (Owner, error) {
	var o Owner
	_, err := c.Do(ctx, req, &o)
	return o, err
}

// DeleteOwner deletes an owner and cancels its schedules. If ifVersion is not 0, it deletes that version or returns
// [ErrPreconditionFailed].
func (c *Client) DeleteOwner(ctx context.Context, id string, ifVersion int64) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: "/owners/" + escape(id), Header: ifMatch(ifVersion)}, nil)
	return err
}

func schedulePath(id int64, call string) string {
	return "/schedules/" + strconv.FormatInt(id, 10) + call
}
