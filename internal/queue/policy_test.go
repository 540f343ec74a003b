package queue_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func (b env) policy(t *testing.T, p queue.Policy) queue.Policy {
	t.Helper()
	p.Queue = queue.Default
	put, err := b.PutPolicy(t.Context(), p, queue.Precondition{})
	if err != nil {
		t.Fatal(err)
	}
	return put
}

func TestPolicyIsStoredAndReplacedWhole(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	want := queue.Policy{
		MaxAttempts: new(4), InvisibleFor: new(90 * time.Second), Retention: new(60 * 24 * time.Hour), Paused: true,
		Backoff: &queue.Backoff{Kind: queue.Exponential, Base: 1500 * time.Millisecond, Factor: new(3.0), Max: new(time.Hour), Jitter: 0.25},
	}
	b.policy(t, want)
	got, err := b.GetPolicy(t.Context(), queue.Default)
	if err != nil {
		t.Fatal(err)
	}
	if got.UpdatedAt == nil || *got.MaxAttempts != 4 || *got.InvisibleFor != 90*time.Second || *got.Retention != 60*24*time.Hour || !got.Paused ||
		got.Backoff.Kind != queue.Exponential || got.Backoff.Base != 1500*time.Millisecond || *got.Backoff.Factor != 3 || *got.Backoff.Max != time.Hour || got.Backoff.Jitter != 0.25 {
		t.Errorf("got %+v, %+v", got, got.Backoff)
	}
	if got := b.policy(t, queue.Policy{}); got.MaxAttempts != nil || got.InvisibleFor != nil || got.Backoff != nil || got.Paused || got.Retention != nil {
		t.Errorf("omitted fields were kept: %+v", got)
	}
	if none, err := b.GetPolicy(t.Context(), "never"); err != nil || none.UpdatedAt != nil || none.Queue != "never" {
		t.Errorf("a queue without a policy: %+v, %v", none, err)
	}
}

func TestInvalidPolicyIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	backoff := queue.Backoff{Kind: queue.Constant, Base: time.Second}
	for field, p := range map[string]queue.Policy{
		"max_attempts":      {MaxAttempts: new(0)},
		"invisible_for":     {InvisibleFor: new(time.Duration(0))},
		"history_retention": {Retention: new(-time.Hour)},
		"backoff/kind":      {Backoff: &queue.Backoff{Kind: "sometimes", Base: time.Second}},
		"backoff/base":      {Backoff: &queue.Backoff{Kind: queue.Linear, Base: -time.Second}},
		"backoff/factor":    {Backoff: &queue.Backoff{Kind: queue.Linear, Base: backoff.Base, Factor: new(0.5)}},
		"backoff/max":       {Backoff: &queue.Backoff{Kind: queue.Linear, Base: backoff.Base, Max: new(-time.Second)}},
		"backoff/jitter":    {Backoff: &queue.Backoff{Kind: queue.Linear, Base: backoff.Base, Jitter: 1.5}},
	} {
		p.Queue = queue.Default
		var invalid *queue.InvalidError
		if _, err := b.PutPolicy(t.Context(), p, queue.Precondition{}); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := b.PutPolicy(t.Context(), queue.Policy{Queue: "no name"}, queue.Precondition{}); !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("an invalid name: %v", err)
	}
}

func TestAuditHasThePolicyWithoutNeedlessDigits(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.policy(t, queue.Policy{Retention: new(24 * time.Hour), InvisibleFor: new(1500 * time.Millisecond)})
	const want = `{"paused": false, "invisible_for": "1.5 s", "history_retention": "86400 s"}`
	if got := pgtest.Query[string](t, b.sql, `select detail::text from agent.audit where action = 'queue.put'`); got != want {
		t.Errorf("the audit has %s, want %s", got, want)
	}
}

func TestNackDelayFollowsThePolicysBackoff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		backoff queue.Backoff
		want    [4]time.Duration
	}{
		"constant":    {queue.Backoff{Kind: queue.Constant, Base: time.Minute}, [4]time.Duration{time.Minute, time.Minute, time.Minute, time.Minute}},
		"linear":      {queue.Backoff{Kind: queue.Linear, Base: time.Minute}, [4]time.Duration{time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute}},
		"exponential": {queue.Backoff{Kind: queue.Exponential, Base: time.Minute}, [4]time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute}},
		"bounded": {
			queue.Backoff{Kind: queue.Exponential, Base: time.Minute, Factor: new(1000.0), Max: new(2 * time.Hour)},
			[4]time.Duration{time.Minute, 2 * time.Hour, 2 * time.Hour, 2 * time.Hour},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.policy(t, queue.Policy{Backoff: &c.backoff})
			id := b.insertEvents(t, queue.InsertParams{})[0]
			for i, want := range c.want {
				e := b.claimOne(t)
				before := now(t, b.sql)
				r, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(e), Error: "no"})
				if err != nil {
					t.Fatal(err)
				}
				if d := r.VT.Sub(before) - want; d < 0 || d > 20*time.Second {
					t.Errorf("after attempt %d, the delay is %v, want %v", i+1, r.VT.Sub(before), want)
				}
				b.endLease(t, id)
			}
			e := b.claimOne(t)
			if r, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(e), Delay: new(time.Duration(0))}); err != nil || r.VT.After(now(t, b.sql)) {
				t.Errorf("a nack with a delay: %+v, %v", r, err)
			}
		})
	}
}

func TestJitterVariesTheDelayUpToTheMaximum(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.policy(t, queue.Policy{Backoff: &queue.Backoff{Kind: queue.Constant, Base: 100 * time.Second, Jitter: 0.5, Max: new(120 * time.Second)}})
	low, high := time.Hour, time.Duration(0)
	for range 200 {
		d := pgtest.Query[time.Duration](t, b.sql, `select agent_private.backoff(q, 1) from agent.queue q`)
		low, high = min(low, d), max(high, d)
	}
	if low < 50*time.Second || low > 60*time.Second || high < 110*time.Second || high >= 120*time.Second {
		t.Errorf("delays from %v to %v", low, high)
	}
}

func TestNackOnTheLastAttemptFailsTheEvent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy *int
		event  int
	}{
		"by the policy":                     {new(2), 0},
		"by the event":                      {nil, 2},
		"by the event, whatever the policy": {new(9), 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.policy(t, queue.Policy{MaxAttempts: c.policy})
			id := b.insertEvents(t, queue.InsertParams{MaxAttempts: c.event})[0]
			if r, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(b.claimOne(t)), Error: "first"}); err != nil || r.Outcome != "" {
				t.Fatalf("the first nack: %+v, %v", r, err)
			}
			last := queue.NackParams{Lease: lease(b.claimOne(t)), Error: "second"}
			for range 2 { // the second is a repetition
				if r, err := b.Nack(t.Context(), last); err != nil || r.Outcome != queue.Failed {
					t.Errorf("the last nack: %+v, %v", r, err)
				}
			}
			e := b.get(t, id)
			if e.Outcome != queue.Failed || *e.LastError != "second" || e.ErrorCount != 2 || e.Retryable == nil || !*e.Retryable || e.Processing == nil {
				t.Errorf("in history: %+v", e)
			}
			if c := b.Counters()[0]; c.Nacked != 1 || c.Failed != 1 {
				t.Errorf("counted %+v", c)
			}
		})
	}
}

func TestNackSaysThatTheAttemptsOfTheServiceAreUsedUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy *int
		event  int
		wants  bool
	}{
		"by the service": {nil, 0, true},
		"more by policy": {new(9), 0, false},
		"more by event":  {nil, 9, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(c *queue.Config) { c.MaxAttempts = 2 })
			b.policy(t, queue.Policy{MaxAttempts: c.policy})
			b.insertEvents(t, queue.InsertParams{MaxAttempts: c.event})
			if r, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(b.claimOne(t))}); err != nil || r.IsExhausted {
				t.Errorf("the first nack: %+v, %v", r, err)
			}
			last := queue.NackParams{Lease: lease(b.claimOne(t))}
			for range 2 { // the second is a repetition
				if r, err := b.Nack(t.Context(), last); err != nil || r.IsExhausted != c.wants || r.Outcome != "" || r.VT.IsZero() {
					t.Errorf("the last nack: %+v, %v", r, err)
				}
			}
		})
	}
}

func TestNackThatIsNotRetryableFailsTheEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.insertEvents(t, queue.InsertParams{})[0]
	p := queue.NackParams{Lease: lease(b.claimOne(t)), Error: "never", Retryable: new(false)}
	for range 2 {
		if r, err := b.Nack(t.Context(), p); err != nil || r.Outcome != queue.Failed {
			t.Errorf("nacked: %+v, %v", r, err)
		}
	}
	if e := b.get(t, id); e.Retryable == nil || *e.Retryable || e.ErrorCount != 1 {
		t.Errorf("in history: %+v", e)
	}
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: p.Lease}); !errors.Is(err, queue.ErrLeaseLost) {
		t.Errorf("a nack without final: %v", err)
	}
}

func TestEndedLeasesCountTowardsThePolicysMaxAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.policy(t, queue.Policy{MaxAttempts: new(5), InvisibleFor: new(time.Hour)})
	id := b.insertEvents(t, queue.InsertParams{})[0]
	for range 5 {
		e := b.claim(t, queue.ClaimParams{MaxAttempts: 1}, 1)[0]
		checkNear(t, "the end of the lease", e.VT, now(t, b.sql).Add(time.Hour))
		b.endLease(t, id)
		if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxAttempts: 1}); err != nil || n != 0 && e.Attempts < 5 {
			t.Fatalf("swept %d after attempt %d, %v", n, e.Attempts, err)
		}
	}
	if e := b.get(t, id); e.Outcome != queue.Expired || e.ErrorCount != 5 {
		t.Errorf("the event is %+v", e)
	}
	handed, _ := insertWhileWaiting(t, b, queue.ClaimParams{}, queue.InsertParams{Event: json.RawMessage(`{}`)})
	checkNear(t, "the end of a lease on what was handed over", handed[0].VT, now(t, b.sql).Add(time.Hour))
	vt, err := b.Extend(t.Context(), lease(handed[0]), 0)
	if err != nil {
		t.Fatal(err)
	}
	checkNear(t, "the end of a lease that was extended", vt, now(t, b.sql).Add(time.Hour))
}

func TestEachSettingOfAPolicyIsPartOfItsVersion(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	backoff := func() *queue.Backoff { return &queue.Backoff{Kind: queue.Exponential, Base: time.Second} }
	versions := make(map[int64]string)
	for _, c := range []struct {
		change string
		policy queue.Policy
	}{
		{"none yet", queue.Policy{Backoff: backoff()}},
		{"attempts", queue.Policy{Backoff: backoff(), MaxAttempts: new(3)}},
		{"lease", queue.Policy{Backoff: backoff(), InvisibleFor: new(time.Hour)}},
		{"kind", queue.Policy{Backoff: &queue.Backoff{Kind: queue.Linear, Base: time.Second, Factor: new(2.0)}}},
		{"base", queue.Policy{Backoff: &queue.Backoff{Kind: queue.Linear, Base: time.Minute, Factor: new(2.0)}}},
		{"factor", queue.Policy{Backoff: &queue.Backoff{Kind: queue.Linear, Base: time.Minute, Factor: new(3.0)}}},
		{"maximum", queue.Policy{Backoff: &queue.Backoff{Kind: queue.Linear, Base: time.Minute, Factor: new(3.0), Max: new(time.Hour)}}},
		{"jitter", queue.Policy{Backoff: &queue.Backoff{Kind: queue.Linear, Base: time.Minute, Factor: new(3.0), Max: new(time.Hour), Jitter: 0.5}}},
		{"no backoff", queue.Policy{}},
		{"pause", queue.Policy{Paused: true}},
		{"retention", queue.Policy{Paused: true, Retention: new(48 * time.Hour)}},
		{"dead letters", queue.Policy{Paused: true, Retention: new(48 * time.Hour), DeadLetter: &queue.DeadLetter{Queue: "dead"}}},
		{"delay", queue.Policy{Paused: true, Retention: new(48 * time.Hour), DeadLetter: &queue.DeadLetter{Queue: "dead"}, Delay: new(time.Minute)}},
		{"wait", queue.Policy{Paused: true, Retention: new(48 * time.Hour), DeadLetter: &queue.DeadLetter{Queue: "dead"}, Delay: new(time.Minute), Wait: new(time.Second)}},
	} {
		put := b.policy(t, c.policy)
		if same := versions[put.Version]; same != "" || put.Version == 0 {
			t.Errorf("%s: the version is %d as after %s", c.change, put.Version, same)
		}
		versions[put.Version] = c.change
		if again := b.policy(t, c.policy); again.Version != put.Version {
			t.Errorf("%s: put again, the version is %d, want %d", c.change, again.Version, put.Version)
		}
	}
}

func TestJitterSpreadsDelaysBelowTheMaximum(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.policy(t, queue.Policy{Backoff: &queue.Backoff{Kind: queue.Exponential, Base: time.Second, Max: new(time.Minute), Jitter: 0.2}})
	delays := pgtest.Query[[]time.Duration](t, b.sql, `select array_agg(agent_private.backoff(q, 20)) from agent.queue q cross join generate_series(1, 50)`)
	for i, d := range delays {
		if d < 48*time.Second || d > time.Minute || slices.Index(delays, d) != i {
			t.Errorf("the delay %d is %s, not one of its own from 48s to 1m", i, d)
		}
	}
}

func TestHistoryIsPrunedByThePolicysRetention(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.policy(t, queue.Policy{Retention: new(48 * time.Hour)})
	for i, days := range []int{1, 3, 4, 30} {
		insertOldHistory(t, b.sql, int64(i), days)
	}
	b.exec(t, `update agent.event_hist set queue = 'default' where id <> 3`)
	if n := pgtest.Query[int](t, b.sql, `select agent.prune_history(1)`); n != 1 {
		t.Errorf("pruned %d events, want 1", n)
	}
	if n := pgtest.Query[int](t, b.sql, `select agent.prune_history()`); n != 1 {
		t.Errorf("pruned %d events", n)
	}
	if left := pgtest.Query[[]int64](t, b.sql, `select array_agg(id order by id) from agent.event_hist`); len(left) != 2 || left[0] != 0 || left[1] != 3 {
		t.Errorf("the remaining events are %v", left)
	}
}

func TestQueueWithOnlyAPolicyIsListed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.policy(t, queue.Policy{Paused: true})
	b.insertEvents(t, queue.InsertParams{Queue: "other"})
	stats, err := b.queues(t, 0)
	if err != nil || len(stats) != 2 || stats[0].Queue != queue.Default || !stats[0].Paused || stats[1].Paused {
		t.Errorf("got %+v, %v", stats, err)
	}
}
