package pages

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/duration"
	"github.com/queued/queued/internal/ui"
)

// deadLetters is the parameter that names the queue whose dead letters a redrive is about; without it a redrive is about history.
const deadLetters = "dead_letters"

// redrivesPage is how many redrives a page lists.
const redrivesPage = 50

// redriveFields are the parameters of a question about a redrive.
var redriveFields = append([]string{deadLetters}, historyFields...)

// listRedrives is the page of all redrives, the latest first.
func listRedrives(v *visit) (view, error) {
	filter := pick(v.r.URL.Query(), []string{"state"})
	redrives, next, err := pageOf[client.Redrive](v, "/redrives", "redrives", filter, redrivesPage)
	if err != nil {
		return view{}, err
	}
	shown := ui.Redrives{State: filter.Get("state"), Redrives: v.redrivesShown(redrives), Pager: v.pager(next)}
	return view{name: "redrives", title: "Redrives", nav: "redrives", isLive: true, body: &shown}, nil
}

// listRedrivesOf reads the latest redrives in a state.
func listRedrivesOf(ctx context.Context, v *visit, state string, limit int) (shown []ui.Redrive, err error) {
	redrives, _, err := listOf[client.Redrive](ctx, v.api, "/redrives", "redrives", url.Values{"state": {state}, "limit": {strconv.Itoa(limit)}})
	return v.redrivesShown(redrives), err
}

// redrivesShown returns redrives as pages show them.
func (v *visit) redrivesShown(redrives []client.Redrive) (shown []ui.Redrive) {
	for _, r := range redrives {
		shown = append(shown, ui.Redrive{Redrive: r, IsHidden: v.h.cfg.HidePayloads})
	}
	return shown
}

// redrive reads the redrive that the visit is about.
func (v *visit) redrive() (ui.Redrive, error) {
	id, err := v.id()
	if err != nil {
		return ui.Redrive{}, err
	}
	r, err := v.api.GetRedrive(v.r.Context(), id)
	return ui.Redrive{Redrive: r, IsHidden: v.h.cfg.HidePayloads}, err
}

// showRedrive is the page of one redrive.
func showRedrive(v *visit) (view, error) {
	r, err := v.redrive()
	if err != nil {
		return view{}, err
	}
	return view{name: "redrive", title: fmt.Sprintf("Redrive %d", r.ID), nav: "redrives", isLive: true, body: r}, nil
}

// newRedrive returns the redrive that a question or its form is about.
func (v *visit) newRedrive(values url.Values) (client.NewRedrive, error) {
	query, err := v.parseFilter(pick(values, redriveFields))
	if err != nil {
		return client.NewRedrive{}, err
	}
	if query.Has("id") {
		return client.NewRedrive{}, invalid("id", "must not be given: one event is requeued from its own page")
	}
	r := client.NewRedrive{Queue: query.Get(deadLetters), Filter: client.RedriveFilter{
		Queue: query.Get("queue"), Outcome: query.Get("outcome"), Type: query.Get("type"), Source: query.Get("source"), Worker: query.Get("worker"), Cause: query.Get("cause"),
	}}
	for field, object := range map[string]*json.RawMessage{"contains": &r.Filter.Contains, "meta": &r.Filter.Meta} {
		if text := query.Get(field); text != "" {
			*object = json.RawMessage(text)
		}
	}
	setInstants(query, &r.Filter.From, &r.Filter.To, &r.Filter.FinishedFrom, &r.Filter.FinishedTo)
	if text := query.Get("min_duration"); text != "" {
		r.Filter.MinDuration, _ = duration.Parse(text) // parseFilter has made it a duration
		if r.Filter.MinDuration == 0 {                 // which is none for the client: the redrive would be about events that nobody claimed, too
			return client.NewRedrive{}, invalid("min_duration", "must be more than 0")
		}
	}
	return r, nil
}

// askRedrive is the question before all events that match a filter, or the dead letters of a queue, are requeued, with their number.
func askRedrive(v *visit) (view, error) {
	values := v.r.URL.Query()
	if v.form != nil {
		values = v.form
	}
	r, err := v.newRedrive(values)
	if err != nil {
		return view{}, err
	}
	matched, isEstimate, err := v.api.CountRedrive(v.r.Context(), r)
	if err != nil {
		return view{}, err
	}
	shown := ui.NewRedrive{
		Redrive: ui.Redrive{Redrive: client.Redrive{Queue: r.Queue, Filter: r.Filter, Matched: matched, Estimate: isEstimate}},
		Query:   ui.RedriveQuery(r.Filter), Key: rand.Text(), Back: "history",
	}
	nav := "history"
	if len(shown.Query) > 0 {
		shown.Back += "?" + shown.Query.Encode()
	}
	if r.Queue != "" {
		shown.Query.Set(deadLetters, r.Queue)
		shown.Back, nav = "queues/"+url.PathEscape(r.Queue), "queues"
	}
	return view{name: "redrive-new", title: "Requeue", nav: nav, body: shown}, nil
}

func createRedrive(v *visit) (string, error) {
	r, err := v.newRedrive(v.form)
	if err != nil {
		return "", err
	}
	r.To, r.IdempotencyKey = v.form.Get("target"), v.idempotencyKey()
	if r.Rate, err = v.decimal("rate"); err != nil || r.Rate <= 0 && v.form.Get("rate") != "" {
		return "", invalid("rate", "must be a number of events a second, more than 0; empty: no limit")
	}
	made, err := v.api.CreateRedrive(v.r.Context(), r)
	return did(redrivePath(made.ID), "redrive.created", ""), err
}

func redrivePath(id int64) string { return "redrives/" + strconv.FormatInt(id, 10) }

// changeRedrive calls the API about the redrive that the visit is about. what names what was done.
func (v *visit) changeRedrive(change func(context.Context, int64) (client.Redrive, error), what string) (string, error) {
	id, err := v.id()
	if err != nil {
		return "", err
	}
	_, err = change(v.r.Context(), id)
	return did(redrivePath(id), what, ""), err
}

func pauseRedrive(v *visit) (string, error) {
	return v.changeRedrive(v.api.PauseRedrive, "redrive.paused")
}

func resumeRedrive(v *visit) (string, error) {
	return v.changeRedrive(v.api.ResumeRedrive, "redrive.resumed")
}

// confirmCancelRedrive asks before a redrive is ended.
func confirmCancelRedrive(v *visit) (view, error) {
	r, err := v.redrive()
	if err != nil {
		return view{}, err
	}
	if r.State == client.RedriveDone || r.State == client.RedriveCancelled {
		return view{}, problem(http.StatusConflict, "The redrive has ended", fmt.Sprintf("The redrive %d is %s: there is nothing to cancel.", r.ID, r.State))
	}
	return view{name: "confirm", title: "Cancel", nav: "redrives", body: ui.Confirm{
		Question: fmt.Sprintf("Cancel the redrive %d?", r.ID),
		Consequence: fmt.Sprintf("It has requeued %s of %s. These stay requeued, and the others stay where they are. A redrive that was cancelled cannot be resumed; one that is paused can.",
			ui.Count(r.Requeued, "event", "events"), r.MatchedText()),
		Button: "Cancel the redrive", Action: redrivePath(r.ID) + "/cancel", Back: redrivePath(r.ID),
	}}, nil
}

func cancelRedrive(v *visit) (string, error) {
	return v.changeRedrive(v.api.CancelRedrive, "redrive.cancelled")
}
