package clienttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/gatewaytest"
)

// An insert whose answer is lost is repeated under one key, and is stored once.
func TestInsertsWhoseAnswerIsLostAreStoredOnce(t *testing.T) {
	t.Parallel()
	s := serve(t)
	lossy := &losingTransport{next: new(http.Transport)}
	t.Cleanup(lossy.next.CloseIdleConnections)
	c := newClient(t, client.Config{URL: s.url, HTTPClient: &http.Client{Transport: lossy}, RetryFor: waitTimeout})
	ctx := soon(t)

	lossy.lose()
	inserted, err := c.Insert(ctx, client.NewEvent{Queue: "q", Payload: map[string]int{"n": 1}})
	if err != nil || !inserted.Replayed || inserted.Queue != "q" {
		t.Fatalf("%+v, %v", inserted, err)
	}
	lossy.lose()
	ids, err := c.InsertBatch(ctx, []client.NewEvent{{Queue: "q", Payload: struct{}{}}, {Queue: "q", Payload: struct{}{}}})
	if err != nil || len(ids) != 2 {
		t.Fatalf("%v, %v", ids, err)
	}
	lossy.lose()
	published, err := c.Publish(ctx, client.NewPublication{Topic: "order.placed", Payload: struct{}{}})
	if err != nil || !published.Replayed {
		t.Fatalf("%+v, %v", published, err)
	}
	lossy.lose()
	positions, err := c.PublishBatch(ctx, []client.NewPublication{{Topic: "order.placed", Payload: struct{}{}}, {Topic: "order.paid", Payload: struct{}{}}})
	if err != nil || len(positions) != 2 {
		t.Fatalf("%v, %v", positions, err)
	}
	lossy.lose()
	if _, err := c.CreateSchedule(ctx, client.NewSchedule{Payload: struct{}{}, Cron: "@yearly", Timezone: "UTC"}); err != nil {
		t.Fatal(err)
	}

	if got := count(t, c.ListEvents(ctx, client.EventFilter{Queue: "q"})); got != 3 {
		t.Errorf("%d events, want 3", got)
	}
	if got := count(t, c.Log(ctx, client.ReadParams{From: client.Earliest})); got != 3 {
		t.Errorf("%d events in the log, want 3", got)
	}
	if got := count(t, c.ListSchedules(ctx, client.ScheduleFilter{})); got != 1 {
		t.Errorf("%d schedules, want 1", got)
	}
}

func count[T any](t *testing.T, items func(func(T, error) bool)) (n int) {
	t.Helper()
	for _, err := range items {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// losingTransport loses answers: the server has carried out the request, and the client is told that the connection broke.
type losingTransport struct {
	next *http.Transport
	mu   sync.Mutex

	isLosing bool
}

// lose loses the next answer.
func (l *losingTransport) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isLosing = true
}

func (l *losingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.isLosing {
		l.isLosing = false
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return resp, err
}

func TestNumbersBeyondTwoToThe53Survive(t *testing.T) {
	t.Parallel()
	c := setup(t)
	ctx := soon(t)
	const large = 9_007_199_254_740_993 // 2^53 + 1
	inserted, err := c.Insert(ctx, client.NewEvent{Payload: json.RawMessage(`{"n":9007199254740993}`), Meta: json.RawMessage(`{"m":9007199254740995}`)})
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := c.Claim(ctx, client.ClaimParams{})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("%v, %v", claimed, err)
	}
	var typed struct{ N int64 }
	var loose map[string]any
	if err := errors.Join(claimed[0].Decode(&typed), claimed[0].Decode(&loose)); err != nil {
		t.Fatal(err)
	}
	if typed.N != large || fmt.Sprint(loose["n"]) != fmt.Sprint(large) || !strings.Contains(string(claimed[0].Meta), "9007199254740995") {
		t.Errorf("%d, %v, %s", typed.N, loose, claimed[0].Meta)
	}
	outcome, err := c.AckWithResult(ctx, inserted.ID, claimed[0].Receipt, map[string]int64{"n": large})
	if err != nil || outcome != client.OutcomeDone {
		t.Fatalf("%s, %v", outcome, err)
	}
	e, err := c.GetEvent(ctx, inserted.ID)
	if err != nil || string(e.Result) != `{"n":9007199254740993}` && string(e.Result) != `{"n": 9007199254740993}` {
		t.Errorf("%s, %v", e.Result, err)
	}
}

func TestWaitEventReturnsTheEventWithItsResult(t *testing.T) {
	t.Parallel()
	c := setup(t)
	ctx := soon(t)
	inserted, err := c.Insert(ctx, client.NewEvent{Payload: map[string]any{}})
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	if e, err := c.WaitEvent(short, inserted.ID); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("before the end: %+v, %v", e, err)
	}
	if _, err := c.WaitEvent(ctx, 1<<60); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("%v", err)
	}
	type answer struct {
		event client.Event
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		e, err := c.WaitEvent(ctx, inserted.ID)
		answers <- answer{e, err}
	}()
	claimed, err := c.Claim(ctx, client.ClaimParams{})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("%+v, %v", claimed, err)
	}
	if _, err := c.AckWithResult(ctx, claimed[0].ID, claimed[0].Receipt, map[string]int{"pages": 3}); err != nil {
		t.Fatal(err)
	}
	if got := <-answers; got.err != nil || got.event.Outcome != client.OutcomeDone || string(got.event.Result) != `{"pages":3}` {
		t.Errorf("%+v, %v", got.event, got.err)
	}
}

// Every call, once, against the server.
func TestLifeOfAnEvent(t *testing.T) {
	t.Parallel()
	c := setup(t)
	ctx := soon(t)
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.PutQueue(ctx, "q", client.QueueSettings{MaxAttempts: 4, InvisibleFor: time.Minute, Backoff: &client.Backoff{Kind: "exponential", Base: time.Hour}})
	fatal(err)
	policy, err := c.GetQueue(ctx, "q")
	fatal(err)
	want := client.QueueSettings{MaxAttempts: 4, InvisibleFor: time.Minute, Backoff: &client.Backoff{Kind: "exponential", Base: time.Hour, Factor: 2}}
	if diff := cmp.Diff(want, policy.Settings()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	ids, err := c.InsertBatch(ctx, []client.NewEvent{
		{Queue: "q", Type: "a", Payload: map[string]string{"html": "<&>"}, Key: "one", EventTS: time.Now().Add(-time.Hour), Priority: -1},
		{Queue: "q", Payload: struct{}{}, Delay: time.Hour, MaxAttempts: 1},
		{Queue: "q", Payload: struct{}{}, VT: time.Now().Add(time.Hour), ExpiresAt: time.Now().Add(2 * time.Hour), Source: "shop"},
	})
	fatal(err)
	claimed, err := c.Claim(ctx, client.ClaimParams{Queue: "q", Limit: 10, Wait: time.Second, Types: []string{"a"}, Worker: "w", Order: "random"})
	fatal(err)
	if len(claimed) != 1 || claimed[0].ID != ids[0] || claimed[0].Worker != "w" || claimed[0].Key != "one" || claimed[0].Priority != -1 {
		t.Fatalf("%+v", claimed)
	}
	first := claimed[0].Receipt
	vt, err := c.Extend(ctx, ids[0], first, 2*time.Hour)
	fatal(err)
	if !vt.After(claimed[0].VT) {
		t.Errorf("extended from %v to %v", claimed[0].VT, vt)
	}
	delay := time.Duration(0)
	nacked, err := c.Nack(ctx, ids[0], client.NackParams{Receipt: first, Delay: &delay, Error: "no luck"})
	fatal(err)
	if nacked.Outcome != "" || nacked.VT.IsZero() {
		t.Errorf("%+v", nacked)
	}
	claimed, err = c.Claim(ctx, client.ClaimParams{Queue: "q", Wait: 20 * time.Second})
	fatal(err)
	if err := c.Ack(ctx, ids[0], first); !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("an ack with the receipt of an earlier claim: %v", err)
	}
	results, err := c.AckBatch(ctx, []client.Ack{{ID: ids[0], Receipt: claimed[0].Receipt, Result: json.RawMessage(`{"ok":true}`)}, {ID: 1 << 60}})
	fatal(err)
	if results[0].Err() != nil || !errors.Is(results[1].Err(), client.ErrNotFound) {
		t.Errorf("%+v", results)
	}
	results, claimed, err = c.AckAndClaim(ctx, []client.Ack{{ID: ids[0], Receipt: claimed[0].Receipt}, {ID: 1 << 60}}, client.ClaimParams{Queue: "q", Types: []string{"none"}})
	fatal(err)
	if len(results) != 2 || results[0].Err() != nil || !errors.Is(results[1].Err(), client.ErrNotFound) || len(claimed) != 0 {
		t.Errorf("%+v, %+v", results, claimed)
	}
	attempts, err := c.ListAttempts(ctx, ids[0])
	fatal(err)
	if len(attempts) != 2 || attempts[0].Outcome != "nacked" || attempts[0].Error != "no luck" || attempts[1].EndedAt == nil {
		t.Errorf("%+v", attempts)
	}
	done, err := c.GetEvent(ctx, ids[0])
	fatal(err)
	if done.Outcome != client.OutcomeDone || done.ProcessingMS == nil || *done.ErrorCount != 1 || done.LastError != "no luck" {
		t.Errorf("%+v", done)
	}
	if _, err := c.GetEvent(ctx, 1<<60); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("%v", err)
	}
	for e, err := range c.ListHistory(ctx, client.HistoryFilter{Queue: "q", Outcome: client.OutcomeDone, From: time.Now().Add(-2 * time.Hour), MinDuration: time.Microsecond, Contains: json.RawMessage(`{"html":"<&>"}`)}) {
		fatal(err)
		if e.ID != ids[0] {
			t.Errorf("%+v", e)
		}
	}
	kept, err := c.Insert(ctx, client.NewEvent{Queue: "raw", Payload: json.RawMessage(`{"b": 1, "a": "<2>"}`), KeepRaw: time.Hour})
	fatal(err)
	if body, err := c.GetRawBody(ctx, kept.ID); err != nil || string(body) != `{"b": 1, "a": "<2>"}` {
		t.Errorf("%s, %v", body, err)
	}
	copied, err := c.Requeue(ctx, ids[0])
	fatal(err)
	matched, err := c.RequeueMatching(ctx, client.RequeueParams{HistoryFilter: client.HistoryFilter{Queue: "q"}, DryRun: true, Limit: 5})
	fatal(err)
	if copied == 0 || matched != (client.Requeued{}) {
		t.Errorf("%d, %+v", copied, matched)
	}
	buckets, err := c.HistoryStats(ctx, client.HistoryStatsParams{Queue: "q", Bucket: 24 * time.Hour})
	fatal(err)
	sum := 0
	for _, b := range buckets {
		sum += b.Done
	}
	if sum != 1 {
		t.Errorf("%+v", buckets)
	}
	states := map[string]int{}
	for e, err := range c.ListEvents(ctx, client.EventFilter{Queue: "q", PageSize: 1}) {
		fatal(err)
		states[e.State]++
	}
	if diff := cmp.Diff(map[string]int{client.StateReady: 1, client.StateScheduled: 2}, states); diff != "" {
		t.Error(diff)
	}
	for q, err := range c.ListQueues(ctx) {
		fatal(err)
		if q.Queue == "q" && (q.Ready != 1 || q.Scheduled != 2 || q.OldestReadyAge <= 0) {
			t.Errorf("%+v", q)
		}
	}
	var named []string
	for q, err := range c.FilterQueues(ctx, client.QueueFilter{NameContains: "Q"}) {
		fatal(err)
		named = append(named, q.Queue)
	}
	if !slices.Equal(named, []string{"q"}) {
		t.Errorf("queues with a q in their names: %v", named)
	}
	for i, group := range []string{"a/b c", ".."} {
		_, err := c.Insert(ctx, client.NewEvent{Queue: "grouped", Group: group, Payload: map[string]int{"n": i}})
		fatal(err)
		held, err := c.PutGroupIf(ctx, "grouped", group, client.GroupSettings{Hold: time.Hour, Concurrency: i + 1}, 0)
		fatal(err)
		if held.Group != group || held.BlockedBy == nil || held.BlockedBy.Reason != client.BlockedByHold || held.BlockedBy.Until == nil || held.Concurrency != i+1 || held.Waiting != 1 {
			t.Errorf("%+v", held)
		}
		if _, err := c.PutGroupIf(ctx, "grouped", group, client.GroupSettings{}, 0); !errors.Is(err, client.ErrPreconditionFailed) {
			t.Errorf("setting what is set: %v", err)
		}
		settings := held.Settings()
		settings.Paused = true
		_, err = c.PutGroupIf(ctx, "grouped", group, settings, held.Version)
		fatal(err)
	}
	tries := 0
	paced, err := c.ChangeGroup(ctx, "grouped", "..", func(s *client.GroupSettings) error {
		if tries++; tries == 1 { // somebody changes it meanwhile
			_, err := c.PutGroup(ctx, "grouped", "..", client.GroupSettings{Paused: true, Concurrency: 5})
			fatal(err)
		}
		s.Rate = &client.Rate{Limit: 2, Period: time.Second}
		return nil
	})
	if err != nil || tries != 2 || paced.Concurrency != 5 || !paced.Paused || paced.Rate == nil {
		t.Errorf("changed in %d tries: %+v, %v", tries, paced, err)
	}
	if same, err := c.ChangeGroup(ctx, "grouped", "..", func(*client.GroupSettings) error { return nil }); err != nil || same.Version != paced.Version {
		t.Errorf("what changes nothing: %+v, %v", same, err)
	}
	var groups []string
	for g, err := range c.ListGroups(ctx, "grouped", client.GroupFilter{State: "blocked", PageSize: 1}) {
		fatal(err)
		groups = append(groups, g.Group+" "+g.BlockedBy.Reason)
	}
	if !slices.Equal(groups, []string{".. paused", "a/b c paused"}) {
		t.Errorf("blocked are %v", groups)
	}
	fatal(c.DeleteGroup(ctx, "grouped", ".."))
	_, err = c.PutGroup(ctx, "grouped", "a/b c", client.GroupSettings{Concurrency: 3})
	fatal(err)
	if g, err := c.GetGroup(ctx, "grouped", ".."); err != nil || g.Version != 0 || g.Paused {
		t.Errorf("%+v, %v", g, err)
	}
	for g, err := range c.ListGroups(ctx, "grouped", client.GroupFilter{Sort: "waiting", PageSize: 1}) {
		fatal(err)
		if g.BlockedBy != nil {
			t.Errorf("%+v", g)
		}
	}
	if wasBlocked, err := c.UnblockGroup(ctx, "grouped", "a/b c"); err != nil || wasBlocked {
		t.Errorf("%v, %v", wasBlocked, err)
	}
	for _, call := range []func(context.Context, string) (client.Policy, error){c.PauseQueue, c.ResumeQueue} {
		_, err := call(ctx, "q")
		fatal(err)
	}
	if expired, err := c.Sweep(ctx, client.SweepParams{Queue: "q", MaxVTAge: -1}); err != nil || expired != 0 {
		t.Errorf("%d, %v", expired, err)
	}
	waiting, err := c.Insert(ctx, client.NewEvent{Queue: "run", Payload: map[string]int{"n": 1}, Delay: time.Hour})
	fatal(err)
	if vt, err := c.RunEvent(ctx, waiting.ID); err != nil || time.Until(vt) > time.Minute {
		t.Errorf("%v, %v", vt, err)
	}
	if run, err := c.RunQueue(ctx, "q", client.RunParams{NackedOnly: true}); err != nil || run != 0 {
		t.Errorf("%d, %v", run, err)
	}
	if moved, err := c.MoveEvents(ctx, "q", client.MoveParams{To: "elsewhere", Limit: 1}); err != nil || moved != 1 {
		t.Errorf("%d, %v", moved, err)
	}
	if purged, err := c.PurgeQueue(ctx, "q"); err != nil || purged != 2 {
		t.Errorf("%d, %v", purged, err)
	}
	if _, err := c.ListExecutions(ctx, client.ExecutionFilter{}); err != nil {
		t.Error(err)
	}
	if processes, err := c.ListProcesses(ctx); err != nil || len(processes) != max(1, gatewaytest.Cells(t)) {
		t.Errorf("%+v, %v", processes, err)
	}
	if err := errors.Join(c.Livez(ctx), c.Readyz(ctx)); err != nil {
		t.Error(err)
	}
	var raw json.RawMessage
	resp, err := c.Do(ctx, client.Request{Path: "/version"}, &raw)
	if err != nil || resp.Status != http.StatusOK || !json.Valid(raw) {
		t.Errorf("%+v, %s, %v", resp, raw, err)
	}
}
