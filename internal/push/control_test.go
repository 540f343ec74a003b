package push

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/seal"
)

func TestBreakerOpensProbesAndCloses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	r := receive(t, status(http.StatusInternalServerError))
	p.put("mail", r, func(params *PutParams) { params.MaxInFlight = 1 })
	p.atOnce(1000)
	ids := p.insert(numbered("mail", 3)...)
	push := p.status(StatusOpen)
	if push.Failures < 5 || push.FailingSince == nil || push.LastError == nil || *push.LastError != "HTTP 500" {
		t.Errorf("an open push is %+v", push)
	}
	r.takeAll()
	p.outcome(queue.Done, ids...)
	if push = p.status(StatusEnabled); push.Failures != 0 || push.LastSuccessAt == nil {
		t.Errorf("a closed push is %+v", push)
	}
	topics(t, db, "queued.push.opened", "queued.push.closed")
}

func TestOpenBreakerOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	never := func(c *Config) { c.BreakerPause = time.Hour }
	p := start(t, db, never)
	r := receive(t, status(http.StatusInternalServerError))
	p.put("mail", r)
	p.atOnce(1000)
	ids := p.insert(numbered("mail", 1)...)
	p.status(StatusOpen)
	p.stop()
	calls := len(r.seen())

	other := start(t, db, never)
	r.takeAll()
	until(t, "the other process has a worker", func() bool { return other.worker("mail") != nil })
	if room := other.worker("mail").capacity(); room.limit != 0 || room.wait < 50*time.Minute {
		t.Errorf("the other process may push %d, and looks again after %s", room.limit, room.wait)
	}
	if _, err := other.Enable(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	other.outcome(queue.Done, ids...)
	if n := len(r.seen()); n != calls+1 {
		t.Errorf("%d calls after the restart, want 1", n-calls)
	}
	topics(t, db, "queued.push.opened", "queued.push.closed")
}

// worker returns the worker of a queue, nil if this process does not push it.
func (s *Service) worker(name string) *worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.workers[name]
}

func TestFailingForDisableAfterDisables(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	r := receive(t, status(http.StatusInternalServerError))
	p.put("mail", r)
	p.atOnce(100000)
	id := p.insert(numbered("mail", 1)...)[0]
	p.status(StatusOpen)
	// It has failed for long, as another process has seen.
	run(t, db, `update agent.push_state set epoch = epoch + 1, failing_since = now() - interval '121 hours'; select agent_private.change_replica_version('push')`)
	push := p.status(StatusDisabled)
	if !strings.Contains(*push.DisabledReason, "120h0m0s: HTTP 500") || p.event(id).Outcome != "" {
		t.Errorf("disabled because %q", *push.DisabledReason)
	}
	topics(t, db, "queued.push.opened", "queued.push.disabled")
}

func TestHeldEventsUseUpNoAttempt(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInternalServerError} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			t.Parallel()
			p := start(t, pgtest.New(t), func(c *Config) { c.MaxPause = time.Hour; c.Threshold = 1000 })
			r := receive(t, func(w http.ResponseWriter, _ call) {
				w.Header().Set("Retry-After", "1800")
				w.WriteHeader(code)
			})
			p.put("mail", r)
			ids := p.insert(numbered("mail", 20)...)
			push := p.status(StatusHeld)
			if left := time.Until(*push.RetryAt); left < 20*time.Minute || left > 31*time.Minute {
				t.Errorf("it is held for %s", left)
			}
			until(t, "all are ready", func() bool {
				return !slices.ContainsFunc(ids, func(id int64) bool { return p.event(id).State != queue.Ready })
			})
			for _, id := range ids {
				if e := p.event(id); e.Attempts != 0 {
					t.Errorf("event %d has used up %d attempts", id, e.Attempts)
				}
			}
			if n := len(r.seen()); n > 10 {
				t.Errorf("%d calls at an endpoint that takes 10 at a time", n)
			}
			r.takeAll()
			if _, err := p.Enable(t.Context(), "mail"); err != nil {
				t.Fatal(err)
			}
			p.outcome(queue.Done, ids...)
		})
	}
}

func TestEventThatIsRefusedWhileOthersAreTakenEnds(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{"503": http.StatusServiceUnavailable, "429": http.StatusTooManyRequests} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, pgtest.New(t))
			r := receive(t, func(w http.ResponseWriter, c call) {
				if c.n == 0 {
					w.WriteHeader(code)
				}
			})
			p.put("mail", r, func(params *PutParams) { params.MaxInFlight = 1 })
			p.atOnce(3)
			events := numbered("mail", 6)
			events[0].Priority = -1 // it goes before the others whenever it can
			ids := p.insert(events...)
			e := p.outcome(queue.Failed, ids[0])[0]
			if *e.LastError != "HTTP "+name || e.Attempts != 3 {
				t.Errorf("after %d attempts: %s", e.Attempts, *e.LastError)
			}
			p.outcome(queue.Done, ids[1:]...)
		})
	}
}

func TestRefusalsOfAllAreNobodysFault(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t), func(c *Config) { c.MaxPause = 2 * time.Millisecond; c.BreakerPause = time.Millisecond })
	refusals := 0
	r := receive(t, func(w http.ResponseWriter, _ call) {
		if refusals++; refusals <= 60 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	p.put("mail", r, func(params *PutParams) { params.MaxInFlight = 1 })
	for _, e := range p.outcome(queue.Done, p.insert(numbered("mail", 3)...)...) {
		if e.Attempts != 1 {
			t.Errorf("event %d has used up %d attempts", e.ID, e.Attempts)
		}
	}
}

func TestPausedQueueIsNotPushed(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	r := receive(t, nil)
	p.put("mail", r)
	if err := p.queue.Pause(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	ids := p.insert(numbered("mail", 2)...)
	p.put("other", r)
	p.outcome(queue.Done, p.insert(numbered("other", 1)...)...)
	if n := len(r.seen()); n != 1 {
		t.Errorf("a paused queue was pushed: %d calls", n)
	}
	if err := p.queue.Resume(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	p.outcome(queue.Done, ids...)
}

func TestNoMoreAreInFlightOrClaimedThanMayBe(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	proceed := make(chan struct{})
	r := receive(t, func(http.ResponseWriter, call) { <-proceed })
	r.arrived = make(chan call, 100)
	p.put("mail", r, func(params *PutParams) { params.MaxInFlight = 3 })
	ids := p.insert(numbered("mail", 9)...)
	for range 3 {
		<-r.arrived
	}
	leased := 0
	for _, id := range ids {
		if p.event(id).State == queue.Leased {
			leased++
		}
	}
	if n := p.InFlight(); n != 3 || leased != 3 || len(r.arrived) > 0 {
		t.Errorf("%d are in flight, %d leased; want 3", n, leased)
	}
	close(proceed)
	p.outcome(queue.Done, ids...)
}

func TestRateIsKept(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	r := receive(t, nil)
	p.put("mail", r, func(params *PutParams) { params.Rate = &Rate{PerSecond: 0.001, Burst: 4} })
	ids := p.insert(numbered("mail", 9)...)
	p.outcome(queue.Done, ids[:4]...)
	w := p.worker("mail")
	if room := w.capacity(); room.limit != 0 || room.wait < 10*time.Minute {
		t.Errorf("there is room for %d, again after %s", room.limit, room.wait)
	}
	if e := p.event(ids[4]); e.State != queue.Ready || len(r.seen()) != 4 {
		t.Errorf("the fifth is %s after %d calls", e.State, len(r.seen()))
	}
	p.put("mail", r, func(params *PutParams) { params.Rate = &Rate{PerSecond: 1000, Burst: 2} })
	p.outcome(queue.Done, ids...)
}

func TestRotationLosesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	r := receive(t, nil)
	r.arrived = make(chan call, 1000)
	first := p.put("mail", r)
	ids := p.insert(numbered("mail", 200)...)
	<-r.arrived
	_, second, err := p.RotateSecret(t.Context(), "mail", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r.trust(second)
	ids = append(ids, p.insert(numbered("mail", 50)...)...)
	p.outcome(queue.Done, ids...)
	last := func() call {
		p.outcome(queue.Done, p.insert(numbered("mail", 1)...)...)
		seen := r.seen()
		return seen[len(seen)-1]
	}
	if c := last(); !verifies(c.header, c.body, first) || !verifies(c.header, c.body, second) {
		t.Error("after the rotation not both secrets sign")
	}
	push, err := p.Get(t.Context(), "mail")
	if err != nil || len(push.Secrets) != 2 || push.Secrets[0].LiveUntil != nil || time.Until(*push.Secrets[1].LiveUntil) < 50*time.Minute {
		t.Errorf("the secrets are %+v, %v", push.Secrets, err)
	}

	// Without a time the secrets before end at once.
	_, third, err := p.RotateSecret(t.Context(), "mail", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.trust(third)
	if c := last(); !verifies(c.header, c.body, third) || verifies(c.header, c.body, first) || verifies(c.header, c.body, second) {
		t.Error("after the rotation not only the third secret signs")
	}
	// The four latest before the current one are kept.
	for range 7 {
		_, secret, err := p.RotateSecret(t.Context(), "mail", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		r.trust(secret)
	}
	if push, err = p.Get(t.Context(), "mail"); err != nil || len(push.Secrets) != 5 {
		t.Errorf("%d secrets are live, %v", len(push.Secrets), err)
	}
	p.outcome(queue.Done, p.insert(numbered("mail", 5)...)...)
}

// A secret ends at its time: nobody has to look then.
func TestSecretEndsAtItsTime(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	r := receive(t, nil)
	p.put("mail", r)
	_, current, err := p.RotateSecret(t.Context(), "mail", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r.trust(current)
	rows, err := p.readPushes(t.Context(), new("mail"))
	if err != nil || len(rows) != 1 {
		t.Fatalf("got %+v, %v", rows, err)
	}
	e, err := rows[0].open(p.cfg.Sealer, nil)
	if err != nil || len(e.secrets) != 2 || e.secrets[0].text != current {
		t.Fatalf("got %+v, %v", e, err)
	}
	now := p.cfg.Database.Now()
	for _, signs := range []struct {
		after time.Duration
		want  int
	}{{0, 2}, {59 * time.Minute, 2}, {61 * time.Minute, 1}} {
		signer, err := e.signer(now.Add(signs.after))
		header := make(http.Header)
		if err != nil || signer.Sign(header, "evt_1", now, nil) != nil {
			t.Fatal(err)
		}
		if n := len(strings.Fields(header.Get("Webhook-Signature"))); n != signs.want || !verifies(header, nil, current) {
			t.Errorf("after %s %d secrets sign, want %d, the current one among them", signs.after, n, signs.want)
		}
	}
	// Another end makes it another endpoint.
	if _, _, err := p.RotateSecret(t.Context(), "mail", time.Minute); err != nil {
		t.Fatal(err)
	}
	rows, err = p.readPushes(t.Context(), new("mail"))
	if err != nil || len(rows) != 1 || len(rows[0].Secrets) != 3 {
		t.Fatalf("got %+v, %v", rows, err)
	}
	rows[0].Secrets, rows[0].SecretsUntil = rows[0].Secrets[1:], append([]*time.Time{nil}, rows[0].SecretsUntil[2:]...)
	if e.isSame(&rows[0]) {
		t.Error("an endpoint whose secret ends sooner is the same")
	}
}

func TestPutKeepsRemovesAndHidesHeaders(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	r := receive(t, nil)
	p.put("mail", r, func(params *PutParams) { params.Headers = map[string]string{"authorization": "Bearer hunter2"} })
	sent := func() string {
		p.outcome(queue.Done, p.insert(numbered("mail", 1)...)...)
		seen := r.seen()
		return seen[len(seen)-1].header.Get("Authorization")
	}
	if got := sent(); got != "Bearer hunter2" {
		t.Errorf("sent %q", got)
	}
	p.put("mail", r, func(params *PutParams) { params.MaxInFlight = 5 })
	push, err := p.Get(t.Context(), "mail")
	if err != nil || !slices.Equal(push.HeaderNames, []string{"Authorization"}) || push.MaxInFlight != 5 || push.Version != 2 {
		t.Errorf("got %+v, %v", push, err)
	}
	until(t, "the worker has the change", func() bool {
		w := p.worker("mail")
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.endpoint.maxInFlight == 5
	})
	if got := sent(); got != "Bearer hunter2" {
		t.Errorf("sent %q after a change of something else", got)
	}
	dump := pgtest.Query[string](t, pgtest.Connect(t, db.URL), `
		select (select string_agg(p::text, ' ') from agent.push p) || (select string_agg(s::text, ' ') from agent.push_secret s) || (select string_agg(a::text, ' ') from agent.audit a)`)
	if strings.Contains(dump, "hunter2") || strings.Contains(dump, "whsec_") {
		t.Errorf("a secret is in the database: %s", dump)
	}
	p.put("mail", r, func(params *PutParams) { params.Headers = map[string]string{} })
	if push, err = p.Get(t.Context(), "mail"); err != nil || len(push.HeaderNames) > 0 {
		t.Errorf("got %+v, %v", push, err)
	}
	until(t, "the header is sent no more", func() bool { return sent() == "" })
}

func TestPutSetsWhatThePolicyDoesNotSay(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	r := receive(t, nil)
	p.put("mail", r)
	policy, err := p.queue.GetPolicy(t.Context(), "mail")
	if err != nil {
		t.Fatal(err)
	}
	if b := policy.Backoff; *policy.MaxAttempts != 10 || b.Kind != queue.Exponential || b.Base != 5*time.Second || *b.Factor != 4 || *b.Max != 10*time.Hour || b.Jitter != 0.2 {
		t.Errorf("the policy is %+v with the backoff %+v", policy, policy.Backoff)
	}
	p.atOnce(3)
	p.put("mail", r, func(params *PutParams) { params.MaxInFlight = 7 })
	if policy, err = p.queue.GetPolicy(t.Context(), "mail"); err != nil || *policy.MaxAttempts != 3 || policy.Backoff.Kind != queue.Constant {
		t.Errorf("the policy has become %+v, %v", policy, err)
	}
	if err := p.Delete(t.Context(), "mail", nil); err != nil {
		t.Fatal(err)
	}
	if policy, err = p.queue.GetPolicy(t.Context(), "mail"); err != nil || *policy.MaxAttempts != 3 {
		t.Errorf("without a push the policy is %+v, %v", policy, err)
	}
}

func TestPushThatIsMadeAnewBeginsAnew(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, neverLooks, func(c *Config) { c.BreakerPause = time.Hour })
	r := receive(t, status(http.StatusInternalServerError))
	p.put("mail", r)
	p.atOnce(1000)
	id := p.insert(numbered("mail", 1)...)[0]
	p.status(StatusOpen)
	r.takeAll()
	secret := egress.NewSecret()
	r.trust(secret)
	err := pgx.BeginFunc(t.Context(), pgtest.Connect(t, db.URL), func(tx pgx.Tx) error { // so that it sees the result alone
		_, err := tx.Exec(t.Context(), `select agent.delete_push('mail')`)
		if err == nil {
			_, err = tx.Exec(t.Context(), `select agent_service.put_push('mail', $1, 'standard', '1 minute', 10, null, null, '{}', '120 hours', null, null, $2)`,
				r.URL, p.cfg.Sealer.Seal(secret, seal.PushSecret.Owner("mail")))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	p.outcome(queue.Done, id)
	p.status(StatusEnabled)
}

func TestChangeOfAnEarlierEpochIsNotRecorded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, neverLooks, func(c *Config) { c.BreakerPause = time.Hour })
	r := receive(t, status(http.StatusInternalServerError))
	p.put("mail", r)
	p.atOnce(1000)
	until(t, "there is a worker", func() bool { return p.worker("mail") != nil })
	run(t, db, `alter table agent.push_state disable trigger change_replica`) // so that nobody is told
	run(t, db, `update agent.push_state set epoch = epoch + 1, disabled_at = now(), disabled_reason = 'by another process'`)
	id := p.insert(numbered("mail", 1)...)[0]
	until(t, "there is no worker", func() bool { return p.worker("mail") == nil })
	if push := p.status(StatusDisabled); *push.DisabledReason != "by another process" || p.event(id).Outcome != "" {
		t.Errorf("got %+v", push)
	}
	topics(t, db)
}

func TestDeletedPushPushesNothing(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t))
	r := receive(t, nil)
	p.put("mail", r)
	until(t, "there is a worker", func() bool { return p.worker("mail") != nil })
	if err := p.Delete(t.Context(), "mail", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "there is no worker", func() bool { return p.worker("mail") == nil })
	p.insert(numbered("mail", 1)...)
	if err := p.Delete(t.Context(), "mail", nil); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if _, err := p.Get(t.Context(), "mail"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if len(r.seen()) > 0 {
		t.Errorf("%d calls", len(r.seen()))
	}
}

func TestSecretsThatCannotBeOpenedAreSaidSo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	r := receive(t, nil)
	p.put("mail", r)
	p.stop()
	other, err := seal.NewSealer("another key of more than sixteen bytes")
	if err != nil {
		t.Fatal(err)
	}
	p = start(t, db, func(c *Config) { c.Sealer = other })
	until(t, "the push says why", func() bool {
		push, err := p.Get(t.Context(), "mail")
		return err == nil && push.LastError != nil && strings.Contains(*push.LastError, "QUEUED_SECRET_KEY")
	})
	if _, err := p.Test(t.Context(), "mail"); !errors.Is(err, seal.ErrSealed) {
		t.Errorf("got %v, want ErrSealed", err)
	}
}

func TestTestEventIsSignedStoredNowhereAndBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	r := receive(t, func(w http.ResponseWriter, _ call) {
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte("no\ncoffee"))
	})
	p.put("mail", r)
	result, err := p.Test(t.Context(), "mail")
	if err != nil || result.Status != http.StatusTeapot || result.Excerpt != "no coffee" || result.Error != "" {
		t.Errorf("got %+v, %v", result, err)
	}
	var body struct {
		Type string
		Data struct {
			Queue string
			Test  bool
		}
	}
	if c := r.seen()[0]; json.Unmarshal(c.body, &body) != nil || body.Type != TestType || body.Data.Queue != "mail" || !body.Data.Test || !strings.HasPrefix(c.id, "test_") {
		t.Errorf("the receiver got %s as %s", c.body, c.id)
	}
	if n := pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select (select count(*) from agent.event) + (select count(*) from agent.event_hist)`); n != 0 {
		t.Errorf("%d events are stored", n)
	}
	r.Close()
	if result, err = p.Test(t.Context(), "mail"); err != nil || result.Status != 0 || result.Error == "" {
		t.Errorf("got %+v, %v", result, err)
	}
	var limit *TestLimitError
	for range 10 * testsBurst { // more of them are allowed while a busy machine makes them
		if _, err = p.Test(t.Context(), "mail"); err != nil {
			break
		}
	}
	if !errors.As(err, &limit) || limit.RetryIn <= 0 || limit.RetryIn > time.Second {
		t.Errorf("got %v, want a limit", err)
	}
	if push := p.status(StatusEnabled); push.Failures > 0 {
		t.Errorf("tests count as failures: %+v", push)
	}
}

func TestNothingIsLostWhenAProcessStops(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	proceed := make(chan struct{})
	r := receive(t, func(http.ResponseWriter, call) { <-proceed })
	r.arrived = make(chan call, 100)
	p.put("mail", r, func(params *PutParams) { params.MaxInFlight = 2 })
	ids := p.insert(numbered("mail", 6)...)
	<-r.arrived
	<-r.arrived
	p.Drain()
	waited := make(chan error, 1)
	go func() { waited <- p.Wait(context.WithoutCancel(t.Context())) }()
	close(proceed)
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		want := queue.Done
		if i >= 2 {
			want = ""
		}
		if e := p.event(id); e.Outcome != want || i >= 2 && e.Attempts != 0 {
			t.Errorf("event %d is %q after %d attempts", i, e.Outcome, e.Attempts)
		}
	}
	p.stop()
	other := start(t, db)
	other.outcome(queue.Done, ids...)
	if n := len(r.seen()); n != 6 {
		t.Errorf("%d calls for 6 events", n)
	}
}

func TestProcessesShareOutQueuesAndTakeThemOver(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	one, two := start(t, db, neverLooks), start(t, db, neverLooks)
	r := receive(t, nil)
	names := make([]string, 12)
	for i := range names {
		names[i] = "q" + string(rune('a'+i))
		one.put(names[i], r)
	}
	count := func(p *process) (n int) {
		for _, name := range names {
			if p.worker(name) != nil {
				n++
			}
		}
		return n
	}
	until(t, "each queue has one owner", func() bool {
		for _, name := range names {
			if (one.worker(name) == nil) == (two.worker(name) == nil) {
				return false
			}
		}
		return true
	})
	if count(one) == 0 || count(two) == 0 {
		t.Logf("one owns %d, two %d: all to one is possible, and rare", count(one), count(two))
	}
	one.stop()
	until(t, "the other process owns all", func() bool { return count(two) == len(names) })
	var ids []int64
	for _, name := range names {
		ids = append(ids, two.insert(numbered(name, 2)...)...)
	}
	two.outcome(queue.Done, ids...)
}

func TestSubscriptionGetsChangesOfPushes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := pgtest.Connect(t, db.URL)
	if ok := pgtest.Query[bool](t, conn, `select 'queued.push.disabled' ~ agent_private.topic_regex(array['queued.push.*'])`); !ok {
		t.Error("queued.push.* does not stand for queued.push.disabled")
	}
	if _, err := conn.Exec(t.Context(), `select agent.publish('queued.push.disabled', '{}')`); err == nil {
		t.Error("anybody can publish to queued.push.disabled")
	}
}
