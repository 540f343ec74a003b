package pages

import (
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// shownFilters is how many filters of a subscription its page shows.
const shownFilters = 100

// listSubscriptions is the page of all subscriptions, by name.
func listSubscriptions(v *visit) (view, error) {
	subscriptions, next, err := pageOf[client.Subscription](v, "/subscriptions", "subscriptions", nil, pageSize)
	if err != nil {
		return view{}, err
	}
	shown := ui.Subscriptions{Subscriptions: subscriptions, Pager: v.pager(next)}
	return view{name: "subscriptions", title: "Subscriptions", nav: "subscriptions", isLive: true, body: shown}, nil
}

// showSubscription is the page of one subscription.
func showSubscription(v *visit) (view, error) {
	s, err := v.subscription()
	if err != nil {
		return view{}, err
	}
	s.FilterCount = len(s.Filters)
	s.Filters = s.Filters[:min(len(s.Filters), shownFilters)]
	return view{name: "subscription", title: s.Name, nav: "subscriptions", isLive: true, body: ui.Subscription{Subscription: s}}, nil
}

// subscription returns the subscription that the visit is about.
func (v *visit) subscription() (client.Subscription, error) {
	return v.api.GetSubscription(v.r.Context(), v.parameter("name"))
}

// subscriptionPath is the path of the page of the subscription that the visit is about.
func (v *visit) subscriptionPath() string {
	return "subscriptions/" + url.PathEscape(v.parameter("name"))
}

func pauseSubscription(v *visit) (string, error) {
	_, err := v.api.PauseSubscription(v.r.Context(), v.parameter("name"))
	return did(v.subscriptionPath(), "subscription.paused", ""), err
}

func resumeSubscription(v *visit) (string, error) {
	_, err := v.api.ResumeSubscription(v.r.Context(), v.parameter("name"))
	return did(v.subscriptionPath(), "subscription.resumed", ""), err
}

// place returns a place of the log that was entered: earliest, latest, a position, or a time.
func (v *visit) place(field string) (client.Place, error) {
	text := v.form.Get(field)
	switch text {
	case "earliest":
		return client.Earliest, nil
	case "latest":
		return client.Latest, nil
	}
	if position, err := strconv.ParseInt(text, 10, 64); err == nil && position >= 0 {
		return client.After(position), nil
	}
	if at, err := time.Parse(time.RFC3339, inUTC(text)); err == nil {
		return client.Since(at), nil
	}
	return client.Place{}, invalid(field, "must be earliest, latest, a position, or a time such as 2026-11-24T09:00:00Z")
}

// confirmSeek asks before a subscription goes on from another place.
func confirmSeek(v *visit) (view, error) {
	s, err := v.subscription()
	if err != nil {
		return view{}, err
	}
	to, err := v.place("to")
	if err != nil {
		return view{}, err
	}
	text := fmt.Sprintf("It is at position %d, and %s after it in the log. ", s.Position, ui.Count(s.Lag.Events, "place is", "places are"))
	if to == client.Latest {
		text += "It goes on at the end of the log: it gets none of those."
	} else {
		text += "What lies between is passed over, or, if the new place is before the old one, got once more."
		if s.Deliver != nil { // the API counts, for subscriptions that are delivered
			if n, err := v.api.ReplaySubscription(v.r.Context(), s.Name, client.Replay{From: to, To: client.After(s.Position), DryRun: true}); err == nil {
				text += fmt.Sprintf(" It gets %s again.", ui.Count(n, "event", "events"))
			}
		}
	}
	text += " Cursors that its readers have are void then."
	return v.confirmInPlace("Move "+s.Name+" to "+v.form.Get("to")+"?", text, "Move", "/seek/confirmed", ui.Hidden{Name: "to", Value: v.form.Get("to")})
}

func seekSubscription(v *visit) (string, error) {
	to, err := v.place("to")
	if err != nil {
		return "", err
	}
	position, err := v.api.SeekSubscription(v.r.Context(), v.parameter("name"), to)
	return did(v.subscriptionPath(), "subscription.sought", strconv.FormatInt(position, 10)), err
}

// confirmReplay asks before a part of the log is delivered once more, with the number of events.
func confirmReplay(v *visit) (view, error) {
	s, err := v.subscription()
	if err != nil {
		return view{}, err
	}
	if s.Deliver == nil {
		return view{}, invalid("from", "is for subscriptions that are delivered into a queue; move this one with seek")
	}
	if v.form.Get("to") == "" { // the number stays right while more is published
		v.form.Set("to", strconv.FormatInt(s.Head, 10))
	}
	n, err := v.replay(true)
	if err != nil {
		return view{}, err
	}
	text := fmt.Sprintf("This inserts %s of the log, from %s to %s, into the queue %s once more, in the background. Workers get each of them again.",
		ui.Count(n, "event", "events"), v.form.Get("from"), v.form.Get("to"), s.Deliver.Queue)
	return v.confirmInPlace("Replay "+ui.Count(n, "event", "events")+" to "+s.Name+"?", text, "Replay", "/replay/confirmed",
		ui.Hidden{Name: "from", Value: v.form.Get("from")}, ui.Hidden{Name: "to", Value: v.form.Get("to")})
}

// replay has the part of the log that was entered delivered once more, or only counted.
func (v *visit) replay(isTrial bool) (int64, error) {
	from, err := v.place("from")
	if err != nil {
		return 0, err
	}
	r := client.Replay{From: from, DryRun: isTrial}
	if v.form.Get("to") != "" {
		if r.To, err = v.place("to"); err != nil {
			return 0, err
		}
	}
	return v.api.ReplaySubscription(v.r.Context(), v.parameter("name"), r)
}

func replaySubscription(v *visit) (string, error) {
	n, err := v.replay(false)
	return did(v.subscriptionPath(), "subscription.replayed", strconv.FormatInt(n, 10)), err
}

// confirmUnsubscribe asks before a subscription is deleted.
func confirmUnsubscribe(v *visit) (view, error) {
	s, err := v.subscription()
	if err != nil {
		return view{}, err
	}
	text := fmt.Sprintf("This forgets its position and %s, and cannot be undone: %s after its position, which it gets no more. The log keeps them.",
		ui.Count(len(s.Filters), "filter", "filters"), ui.Count(s.Lag.Events, "place of the log is", "places of the log are"))
	if s.Deliver != nil {
		text += " Events that it has delivered stay in the queue " + s.Deliver.Queue + "."
	}
	return v.confirmInPlace("Delete "+s.Name+"?", text, "Delete", "/delete", ui.Hidden{Name: "version", Value: strconv.FormatInt(s.Version, 10)})
}

// deleteSubscription deletes a subscription, if it is still the version that the question was about.
func deleteSubscription(v *visit) (string, error) {
	version, err := v.number("version", 64)
	if err != nil {
		return "", err
	}
	return did("subscriptions", "subscription.deleted", ""), v.api.DeleteSubscription(v.r.Context(), v.parameter("name"), version)
}

// confirmInPlace is a question about the subscription of the visit, whose answer is sent to a path below its page.
func (v *visit) confirmInPlace(question, text, button, to string, fields ...ui.Hidden) (view, error) {
	return view{name: "confirm", title: question, nav: "subscriptions", body: ui.Confirm{
		Question: question, Consequence: text, Button: button, Action: v.subscriptionPath() + to, Back: v.subscriptionPath(), Fields: fields,
	}}, nil
}
