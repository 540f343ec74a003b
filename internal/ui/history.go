package ui

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// History is the page of the events that have ended.
type History struct {
	// Filter is what was entered, and Query the same with times for "an hour ago", for links: every link is about the same events.
	Filter, Query url.Values
	Events        []client.Event
	Pager         Pager
	IsHidden      bool // payloads are: there are no downloads
	// IsScan says that the filter reads events one by one, with no time that they are newer than.
	IsScan bool
	Spans  []Span
}

// A Span is a link to the events since a time.
type Span struct {
	Text, Since string
	IsCurrent   bool
}

// Has reports whether the page has a filter.
func (h *History) Has() bool { return len(h.Query) > 0 }

// CanRedrive reports whether all events that match can be requeued: there is a filter, and it is not the id of one event.
func (h *History) CanRedrive() bool { return h.Has() && !h.Query.Has("id") }

// WaitingEvents is the page of the events that are in one queue.
type WaitingEvents struct {
	Queue    string
	Filter   url.Values
	Events   []client.Event
	Pager    Pager
	IsHidden bool
}

// Causes is the page of the causes of failures.
type Causes struct {
	Filter, Query url.Values
	Found         client.HistoryErrors
}

// Redrives is the page of all redrives.
type Redrives struct {
	State    string // of those that are listed; empty: any
	Redrives []Redrive
	Pager    Pager
}

// A Redrive is a redrive on its page.
type Redrive struct {
	client.Redrive
	IsHidden bool // payloads are: a filter that looks into them is not shown
}

// NewRedrive is the question before a redrive.
type NewRedrive struct {
	Redrive
	Query url.Values // that the question was asked by
	Key   string     // of the form, so that sending it twice makes one redrive
	Back  string
}

// HasFinished reports whether the redrive goes on no more by itself.
func (r Redrive) HasFinished() bool { return r.HasEnded() }

// Left is how many events are left to look at, at least.
func (r Redrive) Left() int64 { return max(0, r.Matched-r.Requeued-r.Skipped) }

// Speed is how many events a second went on average; 0: unknown. It changes only as events go.
func (r Redrive) Speed() float64 {
	took := r.UpdatedAt.Sub(r.CreatedAt).Seconds()
	if took < 1 || r.State == client.RedrivePaused {
		return 0
	}
	return float64(r.Requeued) / took
}

// Words says which events a redrive is about, to stand after "the events".
func (r Redrive) Words() string {
	f := r.Filter
	words := []string{"of all queues"}
	if f.Queue != "" {
		words[0] = "of " + f.Queue
	}
	if r.Queue != "" {
		words[0] = "that wait in " + r.Queue + " as dead letters"
	}
	add := func(text, value string) {
		if value != "" {
			words = append(words, text+" "+value)
		}
	}
	add("that ended as", f.Outcome)
	add("of type", f.Type)
	add("from source", f.Source)
	add("claimed last by", f.Worker)
	add("that failed or expired with the error", f.Cause)
	if r.looksIntoHidden() {
		add("that a hidden filter", "of payloads or metadata matches")
	} else {
		add("whose payload contains", string(f.Contains))
		add("whose metadata contain", string(f.Meta))
	}
	if f.MinDuration > 0 {
		add("whose last attempt took at least", Duration(f.MinDuration))
	}
	add("that ended from", timeText(f.FinishedFrom))
	add("that ended before", timeText(f.FinishedTo))
	add("with an event time from", timeText(f.From))
	add("with an event time before", timeText(f.To))
	return strings.Join(words, ", ")
}

// Target says where the events go.
func (r Redrive) Target() string {
	switch {
	case r.To != "" && r.To != client.Origin:
		return r.To
	case r.Queue != "":
		return "the queue that each came from"
	}
	return "the queue of each"
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.999 UTC")
}

// MatchedText is how many events match.
func (r Redrive) MatchedText() string {
	if r.Estimate {
		return "about " + Count(r.Matched, "event", "events")
	}
	return Count(r.Matched, "event", "events")
}

// looksIntoHidden reports whether the filter is about what pages do not show.
func (r Redrive) looksIntoHidden() bool {
	return r.IsHidden && (r.Filter.Contains != nil || r.Filter.Meta != nil)
}

// HistoryQuery returns the parameters of the page of history that shows the events of a redrive; nil: none may show them.
func (r Redrive) HistoryQuery() url.Values {
	if r.looksIntoHidden() {
		return nil
	}
	return RedriveQuery(r.Filter)
}

// RedriveQuery returns the parameters of the page of history that shows the events of a filter.
func RedriveQuery(f client.RedriveFilter) url.Values {
	query := make(url.Values)
	set := func(name, value string) {
		if value != "" {
			query.Set(name, value)
		}
	}
	set("queue", f.Queue)
	set("outcome", f.Outcome)
	set("type", f.Type)
	set("source", f.Source)
	set("worker", f.Worker)
	set("cause", f.Cause)
	set("contains", string(f.Contains))
	set("meta", string(f.Meta))
	for name, at := range map[string]time.Time{"from": f.From, "to": f.To, "finished_from": f.FinishedFrom, "finished_to": f.FinishedTo} {
		if !at.IsZero() {
			query.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	if f.MinDuration > 0 {
		query.Set("min_duration", f.MinDuration.String())
	}
	return query
}

// EventIDs writes ids with commas between, the first ten of them.
func EventIDs(ids []int64) string {
	var texts []string
	for _, id := range ids[:min(len(ids), 10)] {
		texts = append(texts, strconv.FormatInt(id, 10))
	}
	if more := len(ids) - 10; more > 0 {
		texts = append(texts, Count(more, "other", "others"))
	}
	return strings.Join(texts, ", ")
}
