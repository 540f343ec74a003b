package pages

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/duration"
	"github.com/queued/queued/internal/ui"
)

// eventsPage is how many events a page lists. Each has its payload, which the page does not show.
const eventsPage = 50

// maxSelected is how many events of a page can be requeued at once by their boxes.
const maxSelected = 100

// historyFields are the parameters of a page of history that filter it, which are those of GET /history.
var historyFields = []string{"queue", "type", "outcome", "worker", "source", "from", "to", "finished_from", "finished_to", "contains", "meta", "min_duration", "cause", "id"}

// pick returns the parameters of these names that have a value.
func pick(values url.Values, names []string) url.Values {
	picked := make(url.Values)
	for _, name := range names {
		setIf(picked, name, strings.TrimSpace(values.Get(name)))
	}
	return picked
}

// instantLayouts are the ways to write a time, which is in UTC unless it says otherwise.
var instantLayouts = []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"}

// parseInstant reads a time, or a duration that stands for the time so long ago. The zero time is none: for the client it stands for no time.
func parseInstant(text string, now time.Time) (time.Time, error) {
	text = strings.TrimSuffix(text, " UTC")
	for _, layout := range instantLayouts {
		if at, err := time.ParseInLocation(layout, text, time.UTC); err == nil {
			if at = at.UTC(); !isInstant(at) {
				return time.Time{}, fmt.Errorf("%q is out of range", text)
			}
			return at, nil
		}
	}
	ago, err := duration.Parse(text)
	if err != nil || ago < 0 {
		return time.Time{}, fmt.Errorf("%q is no time", text)
	}
	return now.Add(-ago).UTC().Truncate(time.Second), nil
}

// isInstant reports whether the API takes a time: the year in UTC has to be 1 to 9999.
func isInstant(at time.Time) bool { return !at.IsZero() && at.Year() >= 1 && at.Year() <= 9999 }

// instantFields are the parameters of filters that are times.
var instantFields = []string{"from", "to", "finished_from", "finished_to"}

// contentFields are the parameters of filters that are about what events carry.
var contentFields = []string{"contains", "meta"}

// parseFilter is the function parseFilter, for a viewer. Where payloads are hidden it fails for a filter that looks into them: its answer would say what they are.
func (v *visit) parseFilter(entered url.Values) (url.Values, error) {
	if v.h.cfg.HidePayloads && len(pick(entered, contentFields)) > 0 {
		return nil, errHidden
	}
	return parseFilter(entered, v.h.cfg.Now())
}

// parseFilter checks what the API could not say of a filter as it was entered, and returns it as the API takes it: with times for durations.
func parseFilter(entered url.Values, now time.Time) (url.Values, error) {
	query := make(url.Values)
	for name, values := range entered {
		query[name] = values
	}
	var wrong []client.FieldError
	report := func(field, detail string) { wrong = append(wrong, client.FieldError{Pointer: field, Detail: detail}) }
	for _, field := range instantFields {
		if text := entered.Get(field); text != "" {
			at, err := parseInstant(text, now)
			if err != nil {
				report(field, "must be a time such as 2026-02-03 04:05 (UTC) or 2026-02-03T04:05:06Z, or how long ago it was, such as 90m or 7d")
				continue
			}
			query.Set(field, at.Format(time.RFC3339Nano))
		}
	}
	for _, field := range contentFields {
		var object map[string]json.RawMessage
		if text := entered.Get(field); text != "" && (json.Unmarshal([]byte(text), &object) != nil || object == nil) {
			report(field, `must be a JSON object, such as {"user":{"id":4711}}`)
		}
	}
	if text := entered.Get("min_duration"); text != "" {
		took, err := duration.Parse(text)
		if err != nil || took < 0 {
			report("min_duration", "must be a duration such as 500ms, 90s or 5m")
		}
		query.Set("min_duration", took.String())
	}
	if text := entered.Get("id"); text != "" {
		if id, err := strconv.ParseInt(text, 10, 64); err != nil || id < 1 {
			report("id", "must be the id of an event, a number such as 1042")
		}
	}
	if len(wrong) > 0 {
		return nil, &client.Error{Status: http.StatusBadRequest, Title: "Validation failed", Errors: wrong}
	}
	return query, nil
}

// setInstants sets the times, in the order of instantFields, that a query of parseFilter has.
func setInstants(query url.Values, times ...*time.Time) {
	for i, field := range instantFields {
		if text := query.Get(field); text != "" {
			*times[i], _ = parseInstant(text, time.Time{}) // parseFilter has made it a time
		}
	}
}

// showHistory is the page of the events that have ended, newest event time first.
func showHistory(v *visit) (view, error) {
	entered := pick(v.r.URL.Query(), historyFields)
	shown := ui.History{Filter: entered, IsHidden: v.h.cfg.HidePayloads}
	for _, span := range [][2]string{{"last hour", "1h"}, {"24 hours", "1d"}, {"7 days", "7d"}, {"all", ""}} {
		shown.Spans = append(shown.Spans, ui.Span{Text: span[0], Since: span[1], IsCurrent: entered.Get("finished_from") == span[1]})
	}
	page := view{name: "history", title: "History", nav: "history", body: &shown}
	query, err := v.parseFilter(entered)
	if err != nil {
		return page, err
	}
	shown.Query = query
	shown.IsScan = !query.Has("from") && !query.Has("finished_from") && !query.Has("id") && len(pick(query, []string{"type", "worker", "source", "contains", "meta", "min_duration", "cause"})) > 0
	var next *string
	shown.Events, next, err = pageOf[client.Event](v, "/history", "events", query, eventsPage)
	shown.Pager = v.pagerOf(query, next)
	return page, err
}

// historyExport is the call that answers with all events of a filter.
func historyExport(v *visit) (string, url.Values, error) {
	if v.h.cfg.HidePayloads {
		return "", nil, errHidden
	}
	query, err := v.parseFilter(pick(v.r.URL.Query(), historyFields))
	if err != nil {
		return "", nil, err
	}
	format := v.query("format")
	if format != string(client.ExportCSV) && format != string(client.ExportLines) {
		return "", nil, invalid("format", "must be csv or ndjson")
	}
	query.Set("format", format)
	return "/history", query, nil
}

// selected returns the ids of the events whose boxes were checked.
func selected(values url.Values) ([]int64, error) {
	texts := values["id"]
	switch {
	case len(texts) == 0:
		return nil, problem(http.StatusBadRequest, "No event is selected", "Check the boxes of the events to requeue, or requeue all that match a filter.")
	case len(texts) > maxSelected:
		return nil, problem(http.StatusBadRequest, "Too many events are selected", fmt.Sprintf("%d are; at most %d can be requeued in this way. Requeue all that match a filter.", len(texts), maxSelected))
	}
	ids := make([]int64, 0, len(texts))
	for _, text := range texts {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id < 1 {
			return nil, invalid("id", "must be the id of an event, a number such as 1042")
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// historyPath is the path of the page of history that a question was asked from.
func historyPath(values url.Values) string {
	back, _ := url.ParseQuery(values.Get("back")) // what cannot be read leads to all of history
	if query := pick(back, historyFields); len(query) > 0 {
		return "history?" + query.Encode()
	}
	return "history"
}

// confirmRequeueSelected asks before the events are requeued whose boxes were checked.
func confirmRequeueSelected(v *visit) (view, error) {
	values := v.r.URL.Query()
	if v.form != nil {
		values = v.form
	}
	ids, err := selected(values)
	if err != nil {
		return view{}, err
	}
	fields := []ui.Hidden{{Name: "back", Value: values.Get("back")}}
	for _, id := range ids {
		fields = append(fields, ui.Hidden{Name: "id", Value: strconv.FormatInt(id, 10)})
	}
	return view{name: "confirm", title: "Requeue", nav: "history", body: ui.Confirm{
		Question:    "Requeue " + ui.Count(len(ids), "event", "events") + "?",
		Consequence: "This posts a new event for each of " + ui.EventIDs(ids) + " into the queue that it was in. Their records stay in history. Those that were requeued before are left out.",
		Button:      "Requeue", Action: "history/requeue", Back: historyPath(values), Fields: fields,
	}}, nil
}

// requeueSelected requeues events one by one. Each is requeued once, however often the form is sent.
func requeueSelected(v *visit) (string, error) {
	ids, err := selected(v.form)
	if err != nil {
		return "", err
	}
	requeued := 0
	for _, id := range ids {
		answer, err := v.api.RequeueMatching(v.r.Context(), client.RequeueParams{HistoryFilter: client.HistoryFilter{ID: id}})
		if err != nil {
			p := problemOf(err)
			return "", problem(p.Status, p.Title, fmt.Sprintf("%s The event %d could not be requeued; %s before it. Send the form again for the others: none is requeued twice.",
				p.Detail, id, ui.Count(requeued, "event was requeued", "events were requeued")))
		}
		requeued += answer.Requeued
	}
	return did(historyPath(v.form), "history.requeued", strconv.Itoa(requeued)), nil
}

// waitingFields are the parameters of the page of the events of a queue that filter it, which are those of GET /events.
var waitingFields = []string{"state", "group", "contains", "meta"}

// showWaitingEvents is the page of the events that are in a queue, in the order of GET /events.
func showWaitingEvents(v *visit) (view, error) {
	shown := ui.WaitingEvents{Queue: v.parameter("name"), Filter: pick(v.r.URL.Query(), waitingFields), IsHidden: v.h.cfg.HidePayloads}
	page := view{name: "waiting", title: "Events of " + shown.Queue, nav: "queues", isLive: true, body: &shown}
	query, err := v.parseFilter(shown.Filter)
	if err != nil {
		return page, err
	}
	setIf(query, "queue", shown.Queue)
	var next *string
	shown.Events, next, err = pageOf[client.Event](v, "/events", "events", query, eventsPage)
	shown.Pager = v.pagerOf(shown.Filter, next)
	return page, err
}

// causeFields are the parameters of the page of the causes of failures.
var causeFields = []string{"queue", "type", "from", "to", "finished_from", "finished_to"}

// showCauses is the page of the causes of failures, those of most failures first.
func showCauses(v *visit) (view, error) {
	shown := ui.Causes{Filter: pick(v.r.URL.Query(), causeFields)}
	page := view{name: "causes", title: "Causes of failures", nav: "history", body: &shown}
	query, err := v.parseFilter(shown.Filter)
	if err != nil {
		return page, err
	}
	shown.Query = query
	filter := client.CauseFilter{Queue: query.Get("queue"), Type: query.Get("type")}
	setInstants(query, &filter.From, &filter.To, &filter.FinishedFrom, &filter.FinishedTo)
	shown.Found, err = v.api.HistoryErrors(v.r.Context(), filter)
	return page, err
}
