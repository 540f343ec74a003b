package pages

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// event reads the event that the visit is about.
func (v *visit) event() (client.Event, error) {
	id, err := v.id()
	if err != nil {
		return client.Event{}, err
	}
	return v.api.GetEvent(v.r.Context(), id)
}

// showEvent is the page of one event, which waits or is in history.
func showEvent(v *visit) (view, error) {
	e, err := v.event()
	if err != nil {
		return view{}, err
	}
	ctx := v.r.Context()
	shown := ui.Event{Event: e, IsHidden: v.h.cfg.HidePayloads, Schedule: ui.NewOccurrence(e.Occurrence), Cause: ui.NewDeathCause(e.Meta)}
	if e.Attempts > 0 {
		if shown.Timeline, err = v.api.ListAttempts(ctx, e.ID); err != nil {
			return view{}, err
		}
	}
	if e.State == client.StateReady {
		q, err := v.api.GetQueue(ctx, e.Queue)
		if err != nil {
			return view{}, err
		}
		shown.IsPaused = q.Paused
	}
	if !shown.IsHidden {
		shown.Data, shown.MetaData, shown.Answer = ui.NewJSONText(e.Payload), ui.NewJSONText(e.Meta), ui.NewJSONText(e.Result)
		if renderedFor(v.r) == nil { // the part of the page that has it does not change
			if shown.Raw, err = v.rawBody(e.ID); err != nil {
				return view{}, err
			}
		}
	}
	nav := "queues"
	if shown.HasEnded() {
		nav = "history"
	}
	return view{name: "event", title: fmt.Sprintf("Event %d", e.ID), nav: nav, isLive: true, body: &shown}, nil
}

// rawBody returns what an event came in as, without the bytes; nil: it is not kept.
func (v *visit) rawBody(id int64) (*ui.RawBody, error) {
	answer, err := v.api.Do(v.r.Context(), client.Request{Method: http.MethodHead, Path: fmt.Sprintf("/events/%d/raw", id), Header: http.Header{"Accept": {"*/*"}}}, nil)
	if failed, ok := errors.AsType[*client.Error](err); ok && failed.Status == http.StatusNotFound {
		return nil, nil //nolint:nilnil // as the comment says
	}
	if err != nil {
		return nil, err
	}
	raw := &ui.RawBody{MediaType: answer.Header.Get("Content-Type")}
	raw.Size, _ = strconv.ParseInt(answer.Header.Get("Content-Length"), 10, 64)
	raw.KeptUntil, _ = http.ParseTime(answer.Header.Get("Expires"))
	return raw, nil
}

// errHidden is the problem of a download of what pages do not show, and of a filter that looks into it.
var errHidden = problem(http.StatusForbidden, "Payloads are hidden", "The server runs with QUEUED_UI_PAYLOADS=hidden: these pages show what has become of events, and neither show nor search what they carry.")

// downloadPayload answers with the whole payload of an event.
func downloadPayload(v *visit, w http.ResponseWriter) error {
	if v.h.cfg.HidePayloads {
		return errHidden
	}
	e, err := v.event()
	if err != nil {
		return err
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="event-%d.json"`, e.ID))
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.Itoa(len(e.Payload)))
	_, _ = w.Write(e.Payload) // a browser that has gone misses nothing but this
	return nil
}

// rawBodyOf is the call that answers with what an event came in as.
func rawBodyOf(v *visit) (string, url.Values, error) {
	id, err := v.id()
	if err == nil && v.h.cfg.HidePayloads {
		err = errHidden
	}
	return fmt.Sprintf("/events/%d/raw", id), nil, err
}

// eventPath is the path of the page of an event.
func eventPath(id int64) string { return "events/" + strconv.FormatInt(id, 10) }

func runEvent(v *visit) (string, error) {
	id, err := v.id()
	if err != nil {
		return "", err
	}
	_, err = v.api.RunEvent(v.r.Context(), id)
	return did(eventPath(id), "event.run", ""), err
}

// confirmCancel asks before an event is taken out of its queue.
func confirmCancel(v *visit) (view, error) {
	e, err := v.event()
	if err != nil {
		return view{}, err
	}
	ask := ui.Confirm{Action: eventPath(e.ID) + "/cancel", Back: eventPath(e.ID), Fields: []ui.Hidden{{Name: "seen", Value: standing(&e)}}}
	from := fmt.Sprintf("event %d, which waits in %s", e.ID, e.Queue)
	switch {
	case e.Outcome != "":
		return view{}, problem(http.StatusConflict, "The event has ended", fmt.Sprintf("The event %d is in history as %s, so there is nothing to take out of its queue.", e.ID, e.Outcome))
	case e.State == client.StateLeased:
		holder := "A worker"
		if e.Worker != "" {
			holder = "The worker " + e.Worker
		}
		ask.Question, ask.Button = fmt.Sprintf("Mark the event %d as done?", e.ID), "Mark as done"
		ask.Consequence = holder + " has it until " + e.VT.UTC().Format("2006-01-02 15:04:05 UTC") + ". This moves it into history as done, without a result. " +
			"The worker is not stopped: what it does goes on, and its own ack is refused. This cannot be undone; the event can be requeued from history as a new one."
	case e.Attempts > 0 && !v.isNacked(&e):
		ask.Question, ask.Button = fmt.Sprintf("Mark the event %d as done?", e.ID), "Mark as done"
		ask.Consequence = "This moves " + from + ", into history as done, because the lease of its last attempt has ended and nobody has given it back. " +
			"This cannot be undone; the event can be requeued from history as a new one."
	default:
		ask.Question, ask.Button = fmt.Sprintf("Cancel the event %d?", e.ID), "Cancel the event"
		ask.Consequence = "This moves " + from + ", into history as cancelled: no worker gets it. This cannot be undone; the event can be requeued from history as a new one."
	}
	return view{name: "confirm", title: ask.Question, nav: "queues", body: ask}, nil
}

// isNacked reports whether the last attempt at an event has ended by a nack.
func (v *visit) isNacked(e *client.Event) bool {
	attempts, err := v.api.ListAttempts(v.r.Context(), e.ID)
	return err == nil && len(attempts) > 0 && attempts[len(attempts)-1].Outcome == "nacked"
}

// standing is what a question about an event depends on.
func standing(e *client.Event) string {
	return fmt.Sprintf("%s%s %d %d", e.State, e.Outcome, e.Attempts, e.RequeuedAs)
}

// asSeen returns the event of a question that was answered, or an error if the question would be another one now.
func (v *visit) asSeen() (client.Event, error) {
	e, err := v.event()
	if err == nil && v.form.Get("seen") != standing(&e) {
		err = problem(http.StatusConflict, "The event has changed", "It is no longer as it was when the question was asked, so nothing was done. Read the question again.")
	}
	return e, err
}

func cancelEvent(v *visit) (string, error) {
	e, err := v.asSeen()
	if err != nil {
		return "", err
	}
	return did(eventPath(e.ID), "event.ended", ""), v.api.Ack(v.r.Context(), e.ID, "")
}

// confirmRequeue asks before an event of history is posted once more.
func confirmRequeue(v *visit) (view, error) {
	e, err := v.event()
	if err != nil {
		return view{}, err
	}
	if e.Outcome == "" {
		return view{}, problem(http.StatusConflict, "The event has not ended", fmt.Sprintf("The event %d waits in %s. Events can be requeued once they are in history.", e.ID, e.Queue))
	}
	consequence := fmt.Sprintf("This posts a new event into %s, with the payload, type and priority of this one, which workers can claim at once. The record of this one stays in history as %s.", e.Queue, e.Outcome)
	if e.RequeuedAs != 0 {
		if latest, err := v.api.GetEvent(v.r.Context(), e.RequeuedAs); err == nil && (latest.Outcome == "" || latest.Outcome == client.OutcomeDone) {
			return view{}, problem(http.StatusConflict, "The event was requeued before", fmt.Sprintf("Its latest copy, the event %d, is %s%s.", latest.ID, latest.State, latest.Outcome))
		}
		consequence += fmt.Sprintf(" It was requeued before: its latest copy is the event %d.", e.RequeuedAs)
	}
	if e.Outcome == client.OutcomeDone {
		consequence += " It is done: its work would be done twice."
	}
	return view{name: "confirm", title: "Requeue", nav: "history", body: ui.Confirm{
		Question: fmt.Sprintf("Requeue the event %d?", e.ID), Consequence: consequence, Button: "Requeue",
		Action: eventPath(e.ID) + "/requeue", Back: eventPath(e.ID), Fields: []ui.Hidden{{Name: "seen", Value: standing(&e)}},
	}}, nil
}

func requeueEvent(v *visit) (string, error) {
	e, err := v.asSeen()
	if err != nil {
		return "", err
	}
	id, err := v.api.Requeue(v.r.Context(), e.ID)
	return did(eventPath(id), "event.requeued", strconv.FormatInt(e.ID, 10)), err
}

// findEvent leads to the page of the event whose id was entered.
func findEvent(v *visit, w http.ResponseWriter) error {
	text := strings.TrimPrefix(strings.TrimSpace(v.query("id")), "#")
	id, err := strconv.ParseInt(strings.ReplaceAll(text, ",", ""), 10, 64)
	if err != nil || id < 1 {
		return problem(http.StatusBadRequest, "Not an event id", strconv.Quote(ui.Short(40, text))+" is not an id: ids of events are numbers, such as 1042. The history can be searched by what events carry.")
	}
	redirect(w, v.r, eventPath(id))
	return nil
}
