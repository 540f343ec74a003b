package pages

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

const (
	// oldAge is how long the oldest ready event of a queue has waited when the overview names it.
	oldAge = 5 * time.Minute
	// lagAge is how far behind a subscription is when the overview names it.
	lagAge = time.Minute
	// overviewQueues is how many queues the overview lists, those with problems first.
	overviewQueues = 25
)

// showOverview is the page of how everything is: what is wrong, what waits and what ended.
func showOverview(v *visit) (view, error) {
	window, err := v.window()
	if err != nil {
		return view{}, err
	}
	shown := &ui.Overview{Query: v.parameters(), Window: window}
	ctx := v.r.Context()
	var oldest client.QueuesOverview
	var holders client.Holders
	errs := together(ctx,
		func(ctx context.Context) (err error) {
			shown.Stats, err = v.api.QueuesOverview(ctx, overviewOf(shown.Window, "failed", overviewQueues, 0))
			return err
		},
		func(ctx context.Context) (err error) {
			thisMinute := ui.Window{Length: time.Minute, Bucket: time.Minute} // what ended is in the first call
			oldest, err = v.api.QueuesOverview(ctx, overviewOf(thisMinute, "oldest", 10, 0))
			return err
		},
		func(ctx context.Context) (err error) {
			shown.Errors, err = v.api.HistoryErrors(ctx, client.CauseFilter{FinishedFrom: time.Now().Add(-shown.Window.Length).Truncate(time.Minute), Limit: 5})
			return err
		},
		func(ctx context.Context) (err error) {
			shown.Subscriptions, _, err = listOf[client.Subscription](ctx, v.api, "/subscriptions", "subscriptions", url.Values{"limit": {"200"}})
			return err
		},
		func(ctx context.Context) (err error) {
			due := time.Now().Add(shown.Window.Length).UTC().Truncate(time.Minute).Format(time.RFC3339)
			shown.Schedules, _, err = listOf[client.Schedule](ctx, v.api, "/schedules", "schedules", url.Values{"status": {"active"}, "due_before": {due}, "limit": {"5"}})
			return err
		},
		func(ctx context.Context) (err error) {
			holders, err = v.api.ListHolders(ctx)
			return err
		},
	)
	if err := cmp.Or(errs[0], errs[1]); err != nil {
		return view{}, err
	}
	for i, what := range map[int]string{2: "the causes of failures", 3: "subscriptions", 4: "schedules", 5: "what holds others back"} {
		if errs[i] != nil && !isForbidden(errs[i]) {
			shown.Unknown = append(shown.Unknown, what+": "+problemOf(errs[i]).Detail)
		}
	}
	slices.Sort(shown.Unknown)
	shown.Findings = findings(shown, oldest.Queues, holders.Holders)
	shown.Subscriptions = slices.DeleteFunc(shown.Subscriptions, func(s client.Subscription) bool { return s.Lag.Events == 0 })
	slices.SortFunc(shown.Subscriptions, func(a, b client.Subscription) int { return cmp.Compare(b.Lag.Seconds, a.Lag.Seconds) })
	shown.Subscriptions = shown.Subscriptions[:min(len(shown.Subscriptions), 5)]
	return view{name: "overview", title: "Overview", nav: "", isLive: true, body: shown}, nil
}

// overviewOf are the parameters of an overview of a window up to now. The minute is whole, so that those who look at the same time share an answer.
func overviewOf(w ui.Window, order string, limit, offset int) client.OverviewParams {
	to := time.Now().UTC().Truncate(time.Minute).Add(time.Minute)
	return client.OverviewParams{From: to.Add(-w.Length), To: to, Bucket: w.Bucket, Order: order, Limit: limit, Offset: offset}
}

// together makes calls at the same time, and returns the error of each.
func together(ctx context.Context, calls ...func(context.Context) error) []error {
	errs := make([]error, len(calls))
	var group sync.WaitGroup
	for i, call := range calls {
		group.Go(func() { errs[i] = call(ctx) })
	}
	group.Wait()
	return errs
}

// isForbidden reports whether the viewer's key may not make a call: what it would show is left out.
func isForbidden(err error) bool {
	answer, ok := errors.AsType[*client.Error](err)
	return ok && answer.Status == http.StatusForbidden
}

// findings returns what an operator should look at, what does harm first.
func findings(shown *ui.Overview, oldest []client.OverviewQueue, holders []client.Holder) (found []ui.Finding) {
	for _, q := range shown.Stats.Queues {
		if bad := q.Failed + q.Expired; bad > 0 {
			outcome := client.OutcomeFailed
			if q.Failed == 0 {
				outcome = client.OutcomeExpired
			}
			found = append(found, ui.Finding{
				IsBad: true, Subject: q.Queue, Link: "queues/" + url.PathEscape(q.Queue),
				Text:   " has " + ui.Count(bad, "failure", "failures") + " among " + ui.Count(bad+q.Done, "event", "events") + " of the " + shown.Window.Text,
				More:   causesOf(shown.Errors.Errors, q.Queue),
				Button: "See them", Target: "history?" + url.Values{"queue": {q.Queue}, "outcome": {outcome}, "finished_from": {shown.Window.Name}}.Encode(),
			})
		}
	}
	for _, q := range withPush(shown.Stats.Queues, oldest) {
		text := " does not push: its endpoint was failing for too long, and the push is disabled"
		if *q.Push == "open" {
			text = " does not push for now: its endpoint fails, and is tried with one event at a time"
		}
		found = append(found, ui.Finding{
			IsBad: true, Subject: q.Queue, Link: "queues/" + url.PathEscape(q.Queue), Text: text, More: ui.Count(q.Ready+q.Scheduled+q.Waiting, "event waits", "events wait") + ", none is lost",
			Button: "See the push", Target: "queues/" + url.PathEscape(q.Queue) + "/push",
		})
	}
	for _, q := range oldest {
		if age := ageOf(q.OldestReadyAgeMS); age >= oldAge && !q.Paused && (q.Push == nil || *q.Push == "enabled") {
			found = append(found, ui.Finding{
				Subject: q.Queue, Link: "queues/" + url.PathEscape(q.Queue), Text: ": the oldest of " + ui.Count(q.Ready, "ready event", "ready events") + " has waited for " + ui.Age(age),
				More:   ui.Count(q.Leased, "event is", "events are") + " being worked on · workers may be too few, or gone",
				Button: "See the queue", Target: "queues/" + url.PathEscape(q.Queue),
			})
		}
	}
	for _, s := range shown.Subscriptions {
		lag := time.Duration(s.Lag.Seconds * float64(time.Second))
		if s.State == "full" || s.State != "paused" && s.Lag.Events > 0 && lag >= lagAge {
			found = append(found, ui.Finding{
				Subject: s.Name, Link: "subscriptions/" + url.PathEscape(s.Name), Text: ": the subscription is " + ui.Age(lag) + " behind", More: "state: " + s.State,
				Button: "See the subscription", Target: "subscriptions/" + url.PathEscape(s.Name),
			})
		}
	}
	for _, h := range holders {
		if h.Kind == "hidden_sessions" { // it says what cannot be known, which the page of the fleet shows
			continue
		}
		found = append(found, ui.Finding{Text: h.What, More: h.Advice, Button: "See what holds", Target: "fleet#holders"})
	}
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

// causesOf returns the causes of a queue's failures in a line.
func causesOf(causes []client.Cause, queue string) string {
	var lines []string
	for _, c := range causes {
		switch {
		case !slices.Contains(c.Queues, queue):
		case len(c.Queues) == 1:
			lines = append(lines, c.Cause+" ("+strconv.Itoa(c.Count)+")")
		default: // the count is of several queues
			lines = append(lines, c.Cause)
		}
	}
	return strings.Join(lines, " · ")
}

// withPush returns the queues whose push does not work, each once.
func withPush(lists ...[]client.OverviewQueue) (found []client.OverviewQueue) {
	for _, q := range slices.Concat(lists...) {
		isKnown := slices.ContainsFunc(found, func(o client.OverviewQueue) bool { return o.Queue == q.Queue })
		if q.Push != nil && *q.Push != "enabled" && !isKnown {
			found = append(found, q)
		}
	}
	return found
}

func ageOf(ms *float64) time.Duration {
	if ms == nil {
		return 0
	}
	return time.Duration(*ms * float64(time.Millisecond))
}
