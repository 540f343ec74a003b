package pages

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
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
	// overviewQueues is how many queues the overview lists, those with problems first, and of how many of those with the oldest ready events it looks for problems.
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
			shown.Stats, err = v.api.QueuesOverview(ctx, v.h.overviewOf(shown.Window, "failed", overviewQueues, 0))
			return err
		},
		func(ctx context.Context) (err error) {
			thisMinute := ui.Window{Length: time.Minute, Bucket: time.Minute} // what ended is in the first call
			oldest, err = v.api.QueuesOverview(ctx, v.h.overviewOf(thisMinute, "oldest", overviewQueues, 0))
			return err
		},
		func(ctx context.Context) (err error) {
			shown.Errors, err = v.api.HistoryErrors(ctx, client.CauseFilter{FinishedFrom: v.h.since(shown.Window), Limit: 100})
			return err
		},
		func(ctx context.Context) (err error) {
			shown.Subscriptions, _, err = listOf[client.Subscription](ctx, v.api, "/subscriptions", "subscriptions", url.Values{"limit": {"200"}})
			return err
		},
		func(ctx context.Context) (err error) {
			due := v.h.cfg.Now().Add(shown.Window.Length).UTC().Truncate(time.Minute).Format(time.RFC3339)
			shown.Schedules, _, err = listOf[client.Schedule](ctx, v.api, "/schedules", "schedules", url.Values{"status": {"active"}, "due_before": {due}, "limit": {"5"}})
			return err
		},
		func(ctx context.Context) (err error) {
			holders, err = v.api.ListHolders(ctx)
			return err
		},
		func(ctx context.Context) (err error) {
			shown.Redrives, err = listRedrivesOf(ctx, v, client.RedriveRunning, 5)
			return err
		},
	)
	if err := cmp.Or(errs[0], errs[1]); err != nil {
		return view{}, err
	}
	for i, what := range map[int]string{2: "the causes of failures", 3: "subscriptions", 4: "schedules", 5: "what holds others back", 6: "redrives"} {
		if errs[i] != nil && !isForbidden(errs[i]) {
			shown.Unknown = append(shown.Unknown, what+": "+problemOf(errs[i]).Detail)
		}
	}
	shown.Findings = v.findings(shown, oldest.Queues, holders.Holders)
	slices.Sort(shown.Unknown)
	shown.Errors.Errors = shown.Errors.Errors[:min(len(shown.Errors.Errors), 5)]
	shown.Subscriptions = slices.DeleteFunc(shown.Subscriptions, func(s client.Subscription) bool { return s.Lag.Events == 0 })
	slices.SortFunc(shown.Subscriptions, func(a, b client.Subscription) int { return cmp.Compare(b.Lag.Seconds, a.Lag.Seconds) })
	shown.Subscriptions = shown.Subscriptions[:min(len(shown.Subscriptions), 5)]
	return view{name: "overview", title: "Overview", nav: "", isLive: true, body: shown}, nil
}

// overviewOf are the parameters of an overview of a window up to now. The minute is whole, so that those who look at the same time share an answer.
func (h *Handler) overviewOf(w ui.Window, order string, limit, offset int) client.OverviewParams {
	to := h.cfg.Now().UTC().Truncate(time.Minute).Add(time.Minute)
	return client.OverviewParams{From: to.Add(-w.Length), To: to, Bucket: w.Bucket, Order: order, Limit: limit, Offset: offset}
}

// since is when a window begins.
func (h *Handler) since(w ui.Window) time.Time {
	return h.cfg.Now().Add(-w.Length).Truncate(time.Minute)
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

func ageOf(ms *float64) time.Duration {
	if ms == nil {
		return 0
	}
	return time.Duration(*ms * float64(time.Millisecond))
}
