package ui

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/queued/queued/client"
)

// Event is the page of one event.
type Event struct {
	client.Event
	Timeline []client.Attempt
	IsPaused bool // the queue of an event that is ready
	IsHidden bool // the texts are not shown, nor Raw
	// Data, MetaData and Answer are the payload, the metadata and the result; nil: there is none.
	Data, MetaData, Answer *JSONText
	Raw                    *RawBody    // nil: it is not kept
	Schedule               *Occurrence // that has made the event; nil: none
	Cause                  *DeathCause // of a dead letter; nil: unknown
}

// A RawBody is what an event came in as.
type RawBody struct {
	Size      int64
	MediaType string
	KeptUntil time.Time
}

// An Occurrence is one of a schedule, as events have it.
type Occurrence struct {
	ScheduleID   int64     `json:"schedule_id"`
	NominalAt    time.Time `json:"nominal_at"`
	ScheduledFor time.Time `json:"scheduled_for"`
}

// NewOccurrence returns the occurrence that an event has; nil: it has none.
func NewOccurrence(text json.RawMessage) *Occurrence {
	var o Occurrence
	if len(text) == 0 || json.Unmarshal(text, &o) != nil || o.ScheduleID == 0 {
		return nil
	}
	return &o
}

// A DeathCause is why an event is a dead letter.
type DeathCause struct {
	Queue    string `json:"queue"` // that it was in
	Outcome  string `json:"outcome"`
	Attempts int    `json:"attempts"`
	Error    string `json:"error"`
}

// NewDeathCause returns why an event is a dead letter, as its metadata say; nil: they do not.
func NewDeathCause(meta json.RawMessage) *DeathCause {
	var m struct {
		DeadLetter *DeathCause `json:"dead_letter"`
	}
	if json.Unmarshal(meta, &m) != nil || m.DeadLetter == nil || m.DeadLetter.Queue == "" {
		return nil
	}
	return m.DeadLetter
}

// HasEnded reports whether the event has left its queue.
func (e *Event) HasEnded() bool { return e.Outcome != "" }

// StateText returns the state or the outcome.
func (e *Event) StateText() string {
	if e.HasEnded() {
		return e.Outcome
	}
	return e.State
}

// AttemptsText returns how many of its attempts an event has had.
func (e *Event) AttemptsText() string {
	if e.MaxAttempts > 0 {
		return number(e.Attempts) + " of " + number(e.MaxAttempts)
	}
	return number(e.Attempts)
}

// IDText returns the id without commas.
func (e *Event) IDText() string { return strconv.FormatInt(e.ID, 10) }
