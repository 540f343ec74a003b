package pages

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// findings returns what an operator should look at, what does harm first. Of reads that fail it adds to what is unknown.
func (v *visit) findings(shown *ui.Overview, oldest []client.OverviewQueue, holders []client.Holder) (found []ui.Finding) {
	found = slices.Concat(v.failures(shown), v.stoppedPushes(shown, oldest), v.waitingTooLong(shown, oldest), laggingSubscriptions(shown.Subscriptions), v.held(holders, ui.Hidden{Name: "back", Value: "overview"}))
	slices.SortStableFunc(found, func(a, b ui.Finding) int {
		switch {
		case a.IsBad == b.IsBad:
			return 0
		case a.IsBad:
			return -1
		}
		return 1
	})
	return found
}

// about is a finding about a queue.
func about(q *client.OverviewQueue, text string) ui.Finding {
	return ui.Finding{Subject: q.Queue, Link: pathOf(q.Queue), Text: text}
}

// failures are the queues with failures, each with their causes.
func (v *visit) failures(shown *ui.Overview) (found []ui.Finding) {
	failing := slices.DeleteFunc(slices.Clone(shown.Stats.Queues), func(q client.OverviewQueue) bool { return q.Failed+q.Expired == 0 })
	if len(failing) == overviewQueues && shown.Stats.Total > overviewQueues {
		shown.Unknown = append(shown.Unknown, "which queues have failures beyond the "+strconv.Itoa(overviewQueues)+" with most of them")
	}
	causes := make([]string, len(failing))
	calls := make([]func(context.Context) error, len(failing))
	for i, q := range failing {
		causes[i] = causesOf(shown.Errors.Errors, q.Queue)
		calls[i] = func(ctx context.Context) error {
			if causes[i] != "" {
				return nil
			}
			own, err := v.api.HistoryErrors(ctx, client.CauseFilter{Queue: q.Queue, FinishedFrom: v.h.since(shown.Window), Limit: maxCauses})
			causes[i] = causesOf(own.Errors, q.Queue)
			return err
		}
	}
	for i, err := range together(v.r.Context(), calls...) {
		q := &failing[i]
		bad, outcome := q.Failed+q.Expired, client.OutcomeFailed
		if q.Failed == 0 {
			outcome = client.OutcomeExpired
		}
		f := about(q, " has "+ui.Count(bad, "failure", "failures")+" among "+ui.Count(bad+q.Done, "event", "events")+" of the "+shown.Window.Text)
		f.IsBad, f.Trend = true, shown.Failing(q)
		f.Button, f.Target = "See them", "history?"+url.Values{"queue": {q.Queue}, "outcome": {outcome}, "finished_from": {shown.Window.Name}}.Encode()
		if q.LastFailedAt != nil {
			f.When = []ui.Moment{{Text: "last", At: *q.LastFailedAt}}
		}
		switch f.More = causes[i]; {
		case f.More != "":
		case err != nil:
			f.More = "the cause is not known now: " + problemOf(err).Detail
		case q.Failed == 0:
			f.More = "no worker acked them before their leases, or their own time, had ended"
		default:
			f.More = "no worker has given an error"
		}
		found = append(found, f)
	}
	return found
}

// maxCauses is how many causes of a queue's failures stand in a line.
const maxCauses = 3

// causesOf returns the causes of a queue's failures in a line.
func causesOf(causes []client.Cause, queue string) string {
	var lines []string
	for _, c := range causes {
		line := ui.Short(200, c.Cause)
		switch {
		case !slices.Contains(c.Queues, queue):
			continue
		case len(lines) == maxCauses:
			return strings.Join(lines, " · ") + " · …"
		case len(c.Queues) == 1: // else the count is of several queues
			line += " (" + strconv.Itoa(c.Count) + ")"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, " · ")
}

// stoppedPushes are the queues whose push does not work, each once.
func (v *visit) stoppedPushes(shown *ui.Overview, oldest []client.OverviewQueue) []ui.Finding {
	var stopped []client.OverviewQueue
	for _, q := range slices.Concat(shown.Stats.Queues, oldest) {
		isKnown := slices.ContainsFunc(stopped, func(o client.OverviewQueue) bool { return o.Queue == q.Queue })
		if q.Push != nil && *q.Push != "enabled" && !isKnown {
			stopped = append(stopped, q)
		}
	}
	found := make([]ui.Finding, len(stopped))
	calls := make([]func(context.Context) error, len(stopped))
	for i := range stopped {
		q, f := &stopped[i], &found[i]
		*f = about(q, " does not push: ")
		f.IsBad, f.Trend, f.Button, f.Target = true, shown.Waiting(*q), "See the push", pathOf(q.Queue)+"/push"
		waiting := ui.Count(q.Ready+q.Scheduled+q.Waiting, "event waits", "events wait") + ", none is lost"
		calls[i] = func(ctx context.Context) error {
			p, err := v.api.GetPush(ctx, q.Queue)
			switch {
			case errors.Is(err, client.ErrNotFound): // it was deleted meanwhile
			case err != nil:
				f.Text += "why is not known now: " + problemOf(err).Detail
			case p.Status == "disabled":
				f.Text += "its endpoint was failing for too long, and the push is disabled"
				f.When = []ui.Moment{{Text: "disabled", At: p.DisabledAt}}
			default:
				f.Text += "its endpoint fails, and is tried with one event at a time"
				f.When = []ui.Moment{{Text: "failed first", At: p.FailingSince}, {Text: "next try", At: p.RetryAt}}
			}
			f.More = strings.TrimPrefix(ui.Short(300, p.LastError)+" · "+waiting, " · ")
			return nil
		}
	}
	together(v.r.Context(), calls...)
	return found
}

// waitingTooLong are the queues of dead letters, and those whose oldest ready event has waited for long although somebody should take it.
func (v *visit) waitingTooLong(shown *ui.Overview, oldest []client.OverviewQueue) (found []ui.Finding) {
	for i := range oldest {
		q := &oldest[i]
		age := ageOf(q.OldestReadyAgeMS)
		var f ui.Finding
		switch {
		case len(q.DeadLettersOf) > 0 && q.Ready > 0:
			f = about(q, ": "+ui.Count(q.Ready, "dead letter", "dead letters")+" of "+strings.Join(q.DeadLettersOf, ", "))
			f.More = "the oldest has been there for " + ui.Age(age)
			f.Button, f.Target = "See them", pathOf(q.Queue)+"/events?state=ready"
			if v.can(scopeManage) {
				f.Button, f.Target = "Redrive…", "redrives/new?"+url.Values{deadLetters: {q.Queue}}.Encode()
			}
		case age >= oldAge && !q.Paused && (q.Push == nil || *q.Push == "enabled"):
			f = about(q, ": the oldest of "+ui.Count(q.Ready, "ready event", "ready events")+" has waited for "+ui.Age(age))
			f.More = ui.Count(q.Leased, "event is", "events are") + " being worked on · workers may be too few, or gone"
			f.Button, f.Target = "See the queue", pathOf(q.Queue)
		default:
			continue
		}
		if at := slices.IndexFunc(shown.Stats.Queues, func(o client.OverviewQueue) bool { return o.Queue == q.Queue }); at >= 0 {
			f.Trend = shown.Waiting(shown.Stats.Queues[at])
		}
		found = append(found, f)
	}
	return found
}

// laggingSubscriptions are those that are full, or behind for long.
func laggingSubscriptions(subscriptions []client.Subscription) (found []ui.Finding) {
	for _, s := range subscriptions {
		lag := time.Duration(s.Lag.Seconds * float64(time.Second))
		if s.State == "full" || s.State != "paused" && s.Lag.Events > 0 && lag >= lagAge {
			path := "subscriptions/" + url.PathEscape(s.Name)
			found = append(found, ui.Finding{
				Subject: s.Name, Link: path, Text: ": the subscription is " + ui.Age(lag) + " behind", More: "state: " + s.State, Button: "See the subscription", Target: path,
			})
		}
	}
	return found
}

// held are what holds others back: groups that have stopped, and what the page of the fleet shows. The form that unblocks a group has these fields, too.
func (v *visit) held(holders []client.Holder, fields ...ui.Hidden) (found []ui.Finding) {
	for _, h := range holders {
		if h.Kind == "hidden_sessions" { // it says what cannot be known, which the page of the fleet shows
			continue
		}
		f := ui.Finding{Text: h.What, More: h.Advice, When: []ui.Moment{{Text: "since", At: h.Since}}, Button: "See what holds", Target: "fleet#live-holders"}
		if h.Kind == "stopped_group" {
			f.IsBad, f.Subject, f.Link, f.Text, f.When[0].Text = true, h.Queue, pathOf(h.Queue), ": "+h.What, "stopped"
			f.Button, f.Target = "See the event", eventPath(h.EventID)
			if v.can(scopeManage) {
				f.Form = &ui.Confirm{Action: pathOf(h.Queue) + "/groups", Button: "Unblock", Fields: append([]ui.Hidden{{Name: "group", Value: h.Name}, {Name: "do", Value: "unblock"}}, fields...)}
			}
		}
		found = append(found, f)
	}
	return found
}
