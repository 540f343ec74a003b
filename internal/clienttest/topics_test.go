package clienttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/client"
)

func TestLogIsReadInOrder(t *testing.T) {
	t.Parallel()
	c := setup(t)
	ctx := soon(t)
	publications := make([]client.NewPublication, 250)
	for i := range publications {
		publications[i] = client.NewPublication{Topic: []string{"order.placed", "order.paid"}[i%2], Payload: map[string]int{"n": i}, Key: fmt.Sprint(i), Meta: json.RawMessage(`{"m":1}`)}
	}
	positions, err := c.PublishBatch(ctx, publications)
	if err != nil {
		t.Fatal(err)
	}
	var read []int64
	for e, err := range c.Log(ctx, client.ReadParams{Limit: 7, Wait: time.Second}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Key != fmt.Sprint(len(read)) || string(e.Meta) != `{"m":1}` && string(e.Meta) != `{"m": 1}` {
			t.Errorf("%+v", e)
		}
		read = append(read, e.Position)
		if len(read) == len(positions) {
			break
		}
	}
	if !slices.Equal(read, positions) {
		t.Errorf("read %v, published %v", read, positions)
	}
	filtered := client.ReadParams{LogFilter: client.LogFilter{Topics: []string{"order.paid"}, Match: json.RawMessage(`{"n":[{"numeric":[">=",100]}]}`)}}
	if n := count(t, c.Log(ctx, filtered)); n != 75 {
		t.Errorf("the filter takes %d events, want 75", n)
	}
	if n := count(t, c.Log(ctx, client.ReadParams{From: client.After(positions[199])})); n != 50 {
		t.Errorf("%d events are after the position, want 50", n)
	}
	if n := count(t, c.Log(ctx, client.ReadParams{From: client.Since(time.Now().Add(time.Hour))})); n != 0 {
		t.Errorf("%d events are of the future", n)
	}
	e, err := c.GetPublished(ctx, positions[3])
	if err != nil || e.Key != "3" {
		t.Errorf("%+v, %v", e, err)
	}
	if n := count(t, c.ListTopics(ctx)); n != 2 {
		t.Errorf("%d topics, want 2", n)
	}
	matched, err := c.Match(ctx, client.MatchParams{Filter: client.LogFilter{Topics: []string{"a.*"}}, Events: []client.MatchEvent{{Topic: "a.b", Payload: struct{}{}}, {Topic: "b.c", Payload: struct{}{}}}})
	if err != nil || !slices.Equal(matched.Matched, []bool{true, false}) {
		t.Errorf("%v, %v", matched, err)
	}
	later, err := c.Publish(ctx, client.NewPublication{Topic: "order.paid", Payload: struct{}{}, Delay: time.Hour})
	if err != nil || later.ID == 0 || later.Position != 0 || later.At.IsZero() {
		t.Errorf("%+v, %v", later, err)
	}
	settings, err := c.GetLogSettings(ctx)
	if err != nil {
		t.Fatal(err)
	}
	settings.Retention = 48 * time.Hour
	changed, err := c.PutLogSettings(ctx, settings)
	if err != nil || changed.Retention != 48*time.Hour || changed.ETag == settings.ETag {
		t.Errorf("%+v, %v", changed, err)
	}
	if _, err := c.PutLogSettings(ctx, settings); !errors.Is(err, client.ErrPreconditionFailed) {
		t.Errorf("%v", err)
	}
}

// A stream goes on after the last event when the server was killed meanwhile: nothing is missed, and nothing comes twice.
func TestStreamGoesOnWhereItWasCutOff(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := s.client()
	ctx := soon(t)
	subscription := client.SubscriptionSettings{Filters: []client.SubscribedFilter{{Name: "all"}}}
	if _, err := c.PutSubscription(ctx, "reader", subscription, 0); err != nil {
		t.Fatal(err)
	}
	publish := func(n int) {
		t.Helper()
		if _, err := c.Publish(ctx, client.NewPublication{Topic: "tick", Payload: map[string]int{"n": n}}); err != nil {
			t.Fatal(err)
		}
	}
	publish(0)
	var names [][]string
	var got []int
	streams := map[string]func(func(client.PublishedEvent, error) bool){
		"of the log": c.Stream(ctx, client.StreamParams{From: client.Earliest}), "of a subscription": c.StreamSubscription(ctx, "reader", client.Earliest),
	}
	for _, name := range []string{"of the log", "of a subscription"} {
		got, names = nil, nil
		for e, err := range streams[name] {
			if err != nil {
				t.Fatal(err)
			}
			var p struct{ N int }
			if err := e.Decode(&p); err != nil {
				t.Fatal(err)
			}
			got, names = append(got, p.N), append(names, e.Matched)
			if name == "of a subscription" {
				if len(got) == 4 {
					break
				}
				continue
			}
			if len(got) == 4 {
				break
			}
			if len(got) == 2 {
				s.kill()
				s.restart()
			}
			publish(len(got))
		}
		if !slices.Equal(got, []int{0, 1, 2, 3}) {
			t.Errorf("the stream %s had %v", name, got)
		}
	}
	if diff := cmp.Diff([][]string{{"all"}, {"all"}, {"all"}, {"all"}}, names); diff != "" {
		t.Error(diff)
	}
}

func TestStreamEndsWithItsContextAndItsLoop(t *testing.T) {
	t.Parallel()
	c := setup(t)
	if _, err := c.Publish(soon(t), client.NewPublication{Topic: "a", Payload: struct{}{}}); err != nil {
		t.Fatal(err)
	}
	for _, err := range c.Stream(soon(t), client.StreamParams{From: client.Earliest}) {
		if err != nil {
			t.Error(err)
		}
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	for _, err := range c.Stream(ctx, client.StreamParams{From: client.Earliest}) {
		last = err
		cancel()
	}
	if !errors.Is(last, context.Canceled) {
		t.Errorf("%v", last)
	}
}

func TestSubscriptionIsReadAndCommitted(t *testing.T) {
	t.Parallel()
	c := setup(t)
	ctx := soon(t)
	settings := client.SubscriptionSettings{
		Filters: []client.SubscribedFilter{{Name: "large", LogFilter: client.LogFilter{Topics: []string{"order.*"}, Match: json.RawMessage(`{"total":[{"numeric":[">",9]}]}`)}, ExpiresAfter: time.Hour}},
		Start:   client.Earliest, ExpiresAfter: 2 * time.Hour, MaxWaiting: 5,
	}
	made, err := c.PutSubscription(ctx, "s", settings, 0)
	if err != nil || made.ExpiresAfter != 2*time.Hour || made.Filters[0].ExpiresAfter != time.Hour || made.MaxWaiting != 5 {
		t.Fatalf("%+v, %v", made, err)
	}
	if _, err := c.PutSubscription(ctx, "s", client.SubscriptionSettings{Filters: made.Filters}, made.Version+1); !errors.Is(err, client.ErrPreconditionFailed) {
		t.Errorf("%v", err)
	}
	for _, total := range []int{5, 10, 15} {
		if _, err := c.Publish(ctx, client.NewPublication{Topic: "order.placed", Payload: map[string]int{"total": total}}); err != nil {
			t.Fatal(err)
		}
	}
	read, err := c.ReadSubscription(ctx, "s", client.SubscriptionRead{Limit: 1, Wait: 20 * time.Second, Lease: time.Minute})
	if err != nil || len(read.Events) != 1 || !slices.Equal(read.Events[0].Matched, []string{"large"}) || read.LeasedUntil.IsZero() {
		t.Fatalf("%+v, %v", read, err)
	}
	held, err := c.ReadSubscription(ctx, "s", client.SubscriptionRead{})
	if err != nil || held.HeldUntil.IsZero() || held.Cursor != "" {
		t.Errorf("%+v, %v", held, err)
	}
	position, err := c.CommitCursor(ctx, "s", read.Cursor)
	if err != nil || position != read.Events[0].Position {
		t.Errorf("%d, %v", position, err)
	}
	if position, err = c.SeekSubscription(ctx, "s", client.Latest); err != nil || position == 0 {
		t.Errorf("%d, %v", position, err)
	}
	if _, err := c.CommitCursor(ctx, "s", read.Cursor); !errors.Is(err, client.ErrCursorLost) {
		t.Errorf("%v", err)
	}
	if _, err := c.ReplaySubscription(ctx, "s", client.Replay{From: client.Earliest, To: client.Since(time.Now())}); !errors.Is(err, client.ErrWrongDelivery) {
		t.Errorf("%v", err)
	}
	filter, err := c.PutFilter(ctx, "s", client.SubscribedFilter{Name: "more", LogFilter: client.LogFilter{Topics: []string{"user.**"}}, ExpiresAfter: time.Minute})
	if err != nil || filter.Name != "more" || filter.ExpiresAfter != time.Minute {
		t.Errorf("%+v, %v", filter, err)
	}
	if err := c.DeleteFilter(ctx, "s", "more"); err != nil {
		t.Error(err)
	}
	for _, call := range []func(context.Context, string) (client.Subscription, error){c.PauseSubscription, c.ResumeSubscription, c.GetSubscription} {
		if s, err := call(ctx, "s"); err != nil || s.Name != "s" {
			t.Errorf("%+v, %v", s, err)
		}
	}
	if n := count(t, c.ListSubscriptions(ctx)); n != 1 {
		t.Errorf("%d subscriptions, want 1", n)
	}
	if err := c.DeleteSubscription(ctx, "s", 0); err != nil {
		t.Error(err)
	}
	if _, err := c.GetSubscription(ctx, "s"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func TestSchedulesAreMadeChangedAndEnded(t *testing.T) {
	t.Parallel()
	c := setup(t)
	ctx := soon(t)
	owner, err := c.PutOwner(ctx, "ada", "Europe/London", json.RawMessage(`{"name":"Ada"}`), 0)
	if err != nil || owner.Version != 1 {
		t.Fatalf("%+v, %v", owner, err)
	}
	made, err := c.CreateSchedule(ctx, client.NewSchedule{Name: "n", Owner: "ada", Queue: "q", Payload: map[string]int{"a": 1}, Cron: "30 7 * * 1-5", Count: 3})
	if err != nil || made.Zone != "Europe/London" || made.NextAt == nil || made.Count != 3 {
		t.Fatalf("%+v, %v", made, err)
	}
	changed, err := c.PatchSchedule(ctx, made.ID, made.Version, map[string]any{"name": nil, "timezone": "UTC"})
	if err != nil || changed.Name != "" || changed.Zone != "UTC" {
		t.Errorf("%+v, %v", changed, err)
	}
	if _, err := c.PatchSchedule(ctx, made.ID, made.Version, map[string]any{"name": "late"}); !errors.Is(err, client.ErrPreconditionFailed) {
		t.Errorf("%v", err)
	}
	for _, call := range []func(context.Context, int64) (client.Schedule, error){c.PauseSchedule, c.ResumeSchedule, c.GetSchedule} {
		if s, err := call(ctx, made.ID); err != nil || s.ID != made.ID {
			t.Errorf("%+v, %v", s, err)
		}
	}
	fired, err := c.RunSchedule(ctx, made.ID)
	if err != nil || !fired.Manual || fired.EventID == 0 {
		t.Errorf("%+v, %v", fired, err)
	}
	if n := count(t, c.ListOccurrences(ctx, made.ID)); n != 1 {
		t.Errorf("%d occurrences, want 1", n)
	}
	upcoming, err := c.Upcoming(ctx, made.ID, 2)
	if err != nil || len(upcoming) != 2 || !upcoming[0].UTC.Equal(*changed.NextAt) {
		t.Errorf("%v, %v", upcoming, err)
	}
	preview, err := c.PreviewSchedule(ctx, client.PreviewParams{NewSchedule: client.NewSchedule{Cron: "@daily", Timezone: "UTC"}, N: 3, After: time.Unix(0, 0)})
	if err != nil || len(preview) != 3 || preview[0].Local != "1970-01-02T00:00:00" {
		t.Errorf("%v, %v", preview, err)
	}
	if n := count(t, c.ListSchedules(ctx, client.ScheduleFilter{Owner: "ada", DueBefore: time.Now().Add(240 * time.Hour)})); n != 1 {
		t.Errorf("%d schedules, want 1", n)
	}
	if err := c.DeleteSchedule(ctx, made.ID, 0); err != nil {
		t.Error(err)
	}
	if _, err := c.RunSchedule(ctx, made.ID); !errors.Is(err, client.ErrScheduleEnded) {
		t.Errorf("%v", err)
	}
	if n := count(t, c.ListOwners(ctx)); n != 1 {
		t.Errorf("%d owners, want 1", n)
	}
	if o, err := c.GetOwner(ctx, "ada"); err != nil || o.Timezone != "Europe/London" {
		t.Errorf("%+v, %v", o, err)
	}
	if err := c.DeleteOwner(ctx, "ada", owner.Version); err != nil {
		t.Error(err)
	}
}
