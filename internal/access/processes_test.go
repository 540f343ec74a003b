package access

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

// poll has a service read the keys as its Run does, but without notifications.
func poll(t *testing.T, s *Service) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pg.Loop{Doing: "reading the keys", Pass: s.keys.Renew, Pause: cmp.Or(s.cfg.PollInterval, pg.DefaultReplicaPoll)}.Run(ctx, s.cfg.Logger)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func TestRevocationHoldsInEveryProcess(t *testing.T) {
	t.Parallel()
	for name, follow := range map[string]func(*testing.T, *Service){"with notifications": runUntilEnd, "without notifications": poll} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			here, there := openOn(t, db), openOn(t, db, func(c *Config) {
				if name == "with notifications" {
					c.PollInterval = time.Hour
				}
			})
			create(t, here, CreateParams{})
			id, text := create(t, here, CreateParams{Scopes: []Scope{Read}})
			follow(t, there)
			grant := authenticate(t, there, text)
			watched, stop := grant.Watch(t.Context())
			defer stop()
			revoked := time.Now()
			if err := here.Revoke(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			if _, err := here.Authenticate(t.Context(), text); !errors.Is(err, ErrRevoked) {
				t.Errorf("where it was revoked: got %v, want ErrRevoked", err)
			}
			select {
			case <-watched.Done():
			case <-time.After(busyTimeout):
				t.Fatal("what is watched in another process did not end")
			}
			t.Logf("after %s", time.Since(revoked).Round(time.Millisecond))
			if cause := context.Cause(watched); !errors.Is(cause, ErrRevoked) {
				t.Errorf("it ended because of %v, want ErrRevoked", cause)
			}
			if _, err := there.Authenticate(t.Context(), text); !errors.Is(err, ErrRevoked) {
				t.Errorf("in another process: got %v, want ErrRevoked", err)
			}
		})
	}
}

func TestFirstKeyClosesEveryProcess(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	here, there := openOn(t, db), openOn(t, db)
	runUntilEnd(t, there)
	watched, stop := authenticate(t, there, "").Watch(t.Context())
	defer stop()
	create(t, here, CreateParams{IsFirst: true})
	select {
	case <-watched.Done():
	case <-time.After(busyTimeout):
		t.Fatal("a caller without a key was not let go")
	}
	if _, err := there.Authenticate(t.Context(), ""); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("got %v, want ErrUnauthorized", err)
	}
}

func TestWatchEndsWithTheKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	create(t, s, CreateParams{})
	end := func(what string, p CreateParams, do func(id string) error, want error) {
		t.Helper()
		p.Scopes = []Scope{Read}
		id, text := create(t, s, p)
		watched, stop := authenticate(t, s, text).Watch(t.Context())
		defer stop()
		if err := do(id); err != nil {
			t.Fatal(err)
		}
		select {
		case <-watched.Done():
		case <-time.After(busyTimeout):
			t.Fatalf("%s: it did not end", what)
		}
		if cause := context.Cause(watched); !errors.Is(cause, want) {
			t.Errorf("%s: it ended because of %v, want %v", what, cause, want)
		}
	}
	nothing := func(string) error { return nil }
	end("expiry", CreateParams{ExpiresAt: new(time.Now().Add(2 * time.Second))}, nothing, ErrExpired)
	end("narrowing", CreateParams{}, func(id string) error {
		_, err := s.Update(t.Context(), id, Change{Topics: &[]string{"a"}}, nil)
		return err
	}, ErrChanged)
	end("revocation", CreateParams{}, func(id string) error { return s.Revoke(t.Context(), id) }, ErrRevoked)
}

func TestRotationKeepsTheTextBeforeForItsGrace(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	id, first := create(t, s, CreateParams{})
	_, second, err := s.Rotate(t.Context(), id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	authenticate(t, s, first)
	authenticate(t, s, second)
	run(t, db, `update agent.api_key set previous_until = now()`)
	if err := s.keys.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), first); !errors.Is(err, ErrExpired) {
		t.Errorf("after the grace: got %v, want ErrExpired", err)
	}
	_, third, err := s.Rotate(t.Context(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), second); !errors.Is(err, ErrExpired) {
		t.Errorf("without a grace: got %v, want ErrExpired", err)
	}
	authenticate(t, s, third)
	if _, err := s.Authenticate(t.Context(), first); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("the text before the one before: got %v, want ErrUnauthorized", err)
	}
}

func TestUseAndRefusalsAreRecordedInBatches(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	create(t, s, CreateParams{})
	used, text := create(t, s, CreateParams{Scopes: []Scope{Read}})
	unused, _ := create(t, s, CreateParams{Scopes: []Scope{Read}})
	revoked, revokedText := create(t, s, CreateParams{Scopes: []Scope{Read}})
	if err := s.Revoke(t.Context(), revoked); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		authenticate(t, s, text).Take()
		if _, err := s.Authenticate(t.Context(), revokedText); !errors.Is(err, ErrRevoked) {
			t.Fatal(err)
		}
	}
	keys := s.keys.Load()
	for range 2 { // the second has nothing to write
		if err := s.record(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.keys.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.keys.Load() != keys {
		t.Error("the keys have another version because one was used")
	}
	if k, err := s.Get(t.Context(), used); err != nil || k.LastUsedAt == nil || time.Since(*k.LastUsedAt) > busyTimeout {
		t.Errorf("the key that was used is %+v, %v", k, err)
	}
	if k, err := s.Get(t.Context(), unused); err != nil || k.LastUsedAt != nil {
		t.Errorf("the key that was not used is %+v, %v", k, err)
	}
	page, err := s.Audit(t.Context(), AuditParams{Action: "access.*"})
	if err != nil || len(page.Actions) != 1 || page.Actions[0].Actor != "key:"+revoked || page.Actions[0].Target != "revoked" || string(page.Actions[0].Detail) != `{"times": 10}` {
		t.Errorf("the refusals are %+v, %v", page.Actions, err)
	}
	for i := range 10 * maxRefusals {
		s.Refuse(&Grant{actor: "key:" + string(rune('a'+i%26)) + string(rune('a'+i/26))}, "forbidden")
	}
	if len(s.refusals) > maxRefusals {
		t.Errorf("%d refusals are kept", len(s.refusals))
	}
}

func TestRateLimitIsKeptThroughChanges(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	create(t, s, CreateParams{})
	id, text := create(t, s, CreateParams{Scopes: []Scope{Read}, Rate: &Rate{PerSecond: 0.001, Burst: 2}})
	take := func() bool {
		limit, ok := authenticate(t, s, text).Take()
		if limit == nil || limit.Burst != 2 || (limit.Retry > 0) == ok || limit.Window < time.Second {
			t.Errorf("the limit is %+v, %t", limit, ok)
		}
		return ok
	}
	for n := range 4 {
		if got := take(); got != (n < 2) {
			t.Errorf("the request %d of a burst of 2: %t", n+1, got)
		}
	}
	if _, err := s.Update(t.Context(), id, Change{Name: new("other")}, nil); err != nil {
		t.Fatal(err)
	}
	if take() {
		t.Error("a change of the name has given the key another burst")
	}
	if _, err := s.Update(t.Context(), id, Change{Rate: new(new(Rate{PerSecond: 1, Burst: 2}))}, nil); err != nil {
		t.Fatal(err)
	}
	if !take() {
		t.Error("another limit does not hold")
	}
	if _, err := s.Update(t.Context(), id, Change{Rate: new((*Rate)(nil))}, nil); err != nil {
		t.Fatal(err)
	}
	if limit, ok := authenticate(t, s, text).Take(); limit != nil || !ok {
		t.Errorf("without a limit: %+v, %t", limit, ok)
	}
}

func TestPruneDeletesWhatIsOld(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	create(t, s, CreateParams{})
	old, _ := create(t, s, CreateParams{Scopes: []Scope{Read}})
	recent, _ := create(t, s, CreateParams{Scopes: []Scope{Read}})
	expired, _ := create(t, s, CreateParams{Scopes: []Scope{Read}})
	late, _ := create(t, s, CreateParams{Scopes: []Scope{Read}})
	run(t, db, `update agent.api_key set revoked_at = now() - case id when $1 then interval '91 days' else interval '89 days' end where id in ($1, $2)`, old, recent)
	run(t, db, `update agent.api_key set expires_at = now() - case id when $1 then interval '91 days' else interval '89 days' end where id in ($1, $2)`, expired, late)
	run(t, db, `update agent.audit set at = now() - interval '91 days' where target = $1`, old)
	if err := s.prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{old, expired} {
		if _, err := s.Get(t.Context(), id); !errors.Is(err, ErrNotFound) {
			t.Errorf("the old key: %v, want ErrNotFound", err)
		}
	}
	for _, id := range []string{recent, late} {
		if _, err := s.Get(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if page, err := s.Audit(t.Context(), AuditParams{Target: old}); err != nil || len(page.Actions) != 0 {
		t.Errorf("the audit still has %+v, %v", page.Actions, err)
	}
	if page, err := s.Audit(t.Context(), AuditParams{Target: recent}); err != nil || len(page.Actions) == 0 {
		t.Errorf("the audit has lost what is recent: %v", err)
	}
}

func TestKeyThatIsDeletedWhileItIsLookedUpLetsNobodyIn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	here, there := openOn(t, db), openOn(t, db) // neither runs
	create(t, there, CreateParams{})
	id, text := create(t, there, CreateParams{Scopes: []Scope{Read}})
	isFound := false
	here.keys.Differs = func(ctx context.Context, current *set, ids []string) (bool, error) {
		differs, err := here.hasOthers(ctx, current, ids)
		isFound = isFound || differs
		run(t, db, `delete from agent.api_key where id = $1`, id) //nolint:contextcheck // it is that of the test
		return differs, err
	}
	if g, err := here.Authenticate(t.Context(), text); !errors.Is(err, ErrUnauthorized) || !isFound {
		t.Errorf("got %+v, %v, found %t, want ErrUnauthorized", g, err, isFound)
	}
}

func TestWhoManagesAllQueuesPlacesAnyNumber(t *testing.T) {
	t.Parallel()
	s := openOn(t, pgtest.New(t))
	for _, test := range []struct {
		params CreateParams
		want   bool // there is a limit
	}{
		{CreateParams{Scopes: []Scope{Admin}}, false},
		{CreateParams{Scopes: []Scope{Publish}}, true},
		{CreateParams{Scopes: []Scope{Publish, Manage}}, false},
		{CreateParams{Scopes: []Scope{Publish, Manage}, Queues: []string{"q*"}, Topics: []string{"q.**"}}, true},
	} {
		_, text := create(t, s, test.params)
		retry := time.Duration(0)
		for range PlacesPerHour + 10 {
			if retry = authenticate(t, s, text).TakePlace(); retry > 0 {
				break
			}
		}
		if retry > 0 != test.want || retry > 4*time.Second { // one more comes in 3.6 s
			t.Errorf("%v: retry after %v", test.params, retry)
		}
	}
}
