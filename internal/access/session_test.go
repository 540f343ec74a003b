package access

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

// logIn begins a session.
func logIn(t *testing.T, s *Service, keyText string) (token string) {
	t.Helper()
	token, until, err := s.CreateSession(t.Context(), keyText)
	if err != nil {
		t.Fatal(err)
	}
	if left := until.Sub(s.now()); (left - 12*time.Hour).Abs() > busyTimeout {
		t.Errorf("the session expires in %s", left)
	}
	return token
}

// wantSession checks what a service answers to a token.
func wantSession(t *testing.T, s *Service, token string, want error) *Grant {
	t.Helper()
	g, err := s.AuthenticateSession(t.Context(), token)
	if !errors.Is(err, want) || (g == nil) != (want != nil) {
		t.Errorf("the session: got %+v, %v, want %v", g, err, want)
	}
	return g
}

func TestSessionHasTheRightsOfItsKeyInEveryProcess(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	here, there := openOn(t, db), openOn(t, db) // neither runs
	create(t, here, CreateParams{})
	id, text := create(t, here, CreateParams{Scopes: []Scope{Read}, Queues: []string{"a.*"}, Rate: &Rate{PerSecond: 0.001, Burst: 3}})
	token := logIn(t, here, text)
	if !regexp.MustCompile(`^qs_[a-z2-7]{39}$`).MatchString(token) {
		t.Errorf("the token is %q", token)
	}
	for _, s := range []*Service{here, there} {
		g := wantSession(t, s, token, nil)
		if g.KeyID != id || g.Actor() != "key:"+id || g.IsOpen || !g.Has(Read) || g.Has(Claim) || !g.AllowsQueue("a.b") || g.AllowsQueue("b") || g.AllowsTopic("a") {
			t.Errorf("the session has %+v", g)
		}
		if limit, ok := g.Take(); limit == nil || !ok {
			t.Error("the session has not the rate limit of its key")
		}
	}
	if one, another := wantSession(t, here, token, nil), wantSession(t, here, logIn(t, here, text), nil); one == another || one.OfKey() != another.OfKey() {
		t.Error("two sessions do not share the grant of their key, or share more than that")
	}
	if _, err := here.Update(t.Context(), id, Change{Scopes: &[]Scope{Claim}}, nil); err != nil {
		t.Fatal(err)
	}
	if g := wantSession(t, here, token, nil); g.Has(Read) || !g.Has(Claim) {
		t.Error("the session keeps the rights that its key had")
	}
	if _, err := here.Authenticate(t.Context(), token); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("the token as a key: %v", err)
	}
	if _, err := here.AuthenticateToken(token); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("the token as one for streams: %v", err)
	}
	if _, err := here.AuthenticateSession(t.Context(), text); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("the key as a token: %v", err)
	}
}

func TestLogOutHoldsInEveryProcessAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	here := openOn(t, db)
	there := openOn(t, db, func(c *Config) { c.PollInterval = 50 * time.Millisecond })
	runUntilEnd(t, there)
	_, text := create(t, here, CreateParams{})
	ended, other := logIn(t, here, text), logIn(t, here, text)
	var watched []context.Context
	for _, s := range []*Service{here, there} {
		for _, token := range []string{ended, ended, other} {
			ctx, stop := wantSession(t, s, token, nil).Watch(t.Context())
			defer stop()
			watched = append(watched, ctx)
		}
	}
	for range 2 { // it may be repeated
		if err := here.EndSession(t.Context(), ended); err != nil {
			t.Fatal(err)
		}
	}
	wantSession(t, here, ended, ErrUnauthorized)
	wantSession(t, there, ended, ErrUnauthorized)
	wantSession(t, there, other, nil)
	for i, ctx := range watched {
		if i%3 == 2 {
			if ctx.Err() != nil {
				t.Errorf("what another session watches ended: %v", context.Cause(ctx))
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(busyTimeout):
			t.Fatalf("what is watched did not end: %d", i)
		}
		if cause := context.Cause(ctx); !errors.Is(cause, ErrUnauthorized) {
			t.Errorf("it ended because of %v", cause)
		}
	}
	page, err := here.Audit(t.Context(), AuditParams{Action: "session.*"})
	if err != nil || len(page.Actions) != 3 {
		t.Fatalf("the audit has %+v, %v", page.Actions, err)
	}
	end, begin := page.Actions[0], page.Actions[2]
	if id := keyID(text); end.Action != "session.end" || begin.Action != "session.create" || end.Actor != "key:"+id || begin.Actor != "key:"+id || begin.Target != id ||
		string(begin.Detail) != string(end.Detail) || !regexp.MustCompile(`^{"session": "[0-9a-f]{16}"}$`).Match(end.Detail) {
		t.Errorf("the audit has %+v and %+v", begin, end)
	}
	if n := len(here.sessions.watched); n != 2 {
		t.Errorf("%d sessions are watched before those who watch have left", n)
	}
}

func TestWatchedSessionsAreForgotten(t *testing.T) {
	t.Parallel()
	s := openOn(t, pgtest.New(t))
	_, text := create(t, s, CreateParams{})
	g := wantSession(t, s, logIn(t, s, text), nil)
	_, stopFirst := g.Watch(t.Context())
	_, stopSecond := g.Watch(t.Context())
	stopFirst()
	if len(s.sessions.watched) != 1 {
		t.Error("a session is not watched any more though one stream is left")
	}
	stopSecond()
	stopSecond()
	if len(s.sessions.watched) != 0 {
		t.Error("a session is remembered that nobody watches")
	}
}

func TestSessionEndsWithItsKey(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(t *testing.T, s *Service, db *pgtest.DB, id string)
		want error // where it was done
		late error // in a process that has not heard of it
	}{
		"revoked": {func(t *testing.T, s *Service, _ *pgtest.DB, id string) {
			t.Helper()
			if err := s.Revoke(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}, ErrUnauthorized, ErrUnauthorized},
		"expired": {func(t *testing.T, s *Service, _ *pgtest.DB, id string) {
			t.Helper()
			if _, err := s.Update(t.Context(), id, Change{ExpiresAt: new(new(time.Now().Add(-time.Hour)))}, nil); err != nil {
				t.Fatal(err)
			}
		}, ErrExpired, nil},
		"rotated": {func(t *testing.T, s *Service, _ *pgtest.DB, id string) {
			t.Helper()
			if _, _, err := s.Rotate(t.Context(), id, 0); err != nil {
				t.Fatal(err)
			}
		}, ErrExpired, nil},
		"rotated twice": {func(t *testing.T, s *Service, _ *pgtest.DB, id string) {
			t.Helper()
			for range 2 {
				if _, _, err := s.Rotate(t.Context(), id, time.Hour); err != nil {
					t.Fatal(err)
				}
			}
		}, ErrUnauthorized, nil},
		"deleted": {func(t *testing.T, s *Service, db *pgtest.DB, id string) {
			t.Helper()
			run(t, db, `delete from agent.api_key where id = $1`, id)
			if err := s.keys.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, ErrUnauthorized, nil},
		"ended for all": {func(t *testing.T, s *Service, _ *pgtest.DB, id string) {
			t.Helper()
			for _, want := range []int64{1, 0} {
				if n, err := s.EndSessions(t.Context(), id); err != nil || n != want {
					t.Errorf("ended %d, %v, want %d", n, err, want)
				}
			}
		}, ErrUnauthorized, ErrUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			here, there := openOn(t, db), openOn(t, db) // neither runs
			_, other := create(t, here, CreateParams{})
			if err := there.keys.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			id, text := create(t, here, CreateParams{Scopes: []Scope{Read}})
			token, others := logIn(t, here, text), logIn(t, here, other)
			wantSession(t, there, token, nil)
			watched, stop := wantSession(t, here, token, nil).Watch(t.Context())
			defer stop()
			test.end(t, here, db, id)
			wantSession(t, there, token, test.late)
			if err := there.keys.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, s := range []*Service{here, there} {
				wantSession(t, s, token, test.want)
				wantSession(t, s, others, nil)
			}
			if err := here.checkWatched(t.Context()); err != nil {
				t.Fatal(err)
			}
			select {
			case <-watched.Done():
			case <-time.After(busyTimeout):
				t.Error("what is watched did not end")
			}
		})
	}
}

func TestSessionOfARotatedKeyLastsForTheGrace(t *testing.T) {
	t.Parallel()
	s := openOn(t, pgtest.New(t))
	id, text := create(t, s, CreateParams{})
	token := logIn(t, s, text)
	k, rotated, err := s.Rotate(t.Context(), id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if g := wantSession(t, s, token, nil); !g.until.Equal(*k.PreviousUntil) {
		t.Errorf("the session is good until %s, and the text it was begun with until %s", g.until, *k.PreviousUntil)
	}
	if g := wantSession(t, s, logIn(t, s, rotated), nil); !g.until.After(*k.PreviousUntil) {
		t.Errorf("a session of the new text is good until %s", g.until)
	}
}

func TestSessionsOfTheConfiguredKeyEndWithIt(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	open := func(key string) *Service { return openOn(t, db, func(c *Config) { c.Key, c.IsRequired = key, true }) }
	const text = "a key of 16 characters"
	s := open(text)
	token := logIn(t, s, text)
	g := wantSession(t, open(text), token, nil)
	if !g.Has(Admin) || g.KeyID != "" || g.Actor() != "QUEUED_API_KEY" || g.until.IsZero() {
		t.Errorf("the session has %+v", g)
	}
	other := open("another one of 16")
	wantSession(t, other, token, ErrUnauthorized)
	wantSession(t, open(""), token, ErrUnauthorized)
	conn := pgtest.Connect(t, db.URL)
	hash := hashOf(text)
	if pgtest.Query[bool](t, conn, `select exists (select from agent_private.session s where $1 in (s.proof, s.token_hash))`, hash[:]) {
		t.Error("the database has the hash of the configured key, by which guesses could be checked")
	}
	if err := other.EndSession(t.Context(), token); err != nil { // though it was refused there just now
		t.Fatal(err)
	}
	wantSession(t, s, token, ErrUnauthorized)
	page, err := s.Audit(t.Context(), AuditParams{Actor: "QUEUED_API_KEY", Target: "QUEUED_API_KEY"})
	if err != nil || len(page.Actions) != 2 {
		t.Errorf("the audit has %+v, %v", page.Actions, err)
	}
	logIn(t, s, text)
	if n, err := s.EndSessions(t.Context(), ""); err != nil || n != 1 {
		t.Errorf("ended %d, %v", n, err)
	}
}

func TestSessionsEndByTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	_, text := create(t, s, CreateParams{})
	expired, live := logIn(t, s, text), logIn(t, s, text)
	hash := hashOf(expired)
	run(t, db, `update agent_private.session set expires_at = clock_timestamp() where token_hash = $1`, hash[:])
	wantSession(t, s, expired, ErrUnauthorized)
	wantSession(t, s, live, nil)
	if err := s.prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select count(*) from agent_private.session`); n != 1 {
		t.Errorf("%d sessions are left, want 1", n)
	}
	run(t, db, `update agent_private.session set expires_at = clock_timestamp() + interval '2 s'`)
	watched, stop := wantSession(t, s, live, nil).Watch(t.Context())
	defer stop()
	select {
	case <-watched.Done():
	case <-time.After(busyTimeout):
		t.Fatal("what is watched goes on after the session has expired")
	}
	if cause := context.Cause(watched); !errors.Is(cause, ErrExpired) {
		t.Errorf("it ended because of %v", cause)
	}
}

func TestSessionsOfAnotherPlaceAreNotGood(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	_, text := create(t, s, CreateParams{})
	token := logIn(t, s, text)
	conn := pgtest.Connect(t, db.URL)
	if !pgtest.Query[bool](t, conn, `select bool_and(place = agent_private.session_place()) from agent_private.session`) {
		t.Error("the place is another one in the next session of the database")
	}
	run(t, db, `create or replace function agent_private.current_timeline() returns int8 language sql as 'select 4711::int8'`) // as after a failover, or a restore
	wantSession(t, s, token, ErrUnauthorized)
	again := logIn(t, s, text)
	wantSession(t, s, again, nil)
	run(t, db, `create or replace function agent_private.database_identity(out system_identifier int8, out database_oid oid, out table_oid oid)
		language sql as 'select 1::int8, 2::oid, 3::oid'`) // as in a restored dump
	wantSession(t, s, again, ErrUnauthorized)
}

func TestHostileTokensAreRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	_, text := create(t, s, CreateParams{})
	token := logIn(t, s, text)
	for _, wrong := range []string{
		"", "qs_", token[:len(token)-1], token + "a", strings.ToUpper(token), "\x00" + token[1:], "qk_" + token[3:], strings.Repeat("a", len(token)), strings.Repeat("a", 1<<20),
		token[:10] + "'" + token[11:], token[:len(token)-1] + "\xff", token + "; x=1", text,
	} {
		wantSession(t, s, wrong, ErrUnauthorized)
		if err := s.EndSession(t.Context(), wrong); err != nil {
			t.Errorf("ending %.50q: %v", wrong, err)
		}
	}
	wantSession(t, s, token, nil)

	s.sessions.limiter = rate.NewLimiter(0, 2) // so many that nobody knows
	guess := func() string { return withSum(sessionPrefix + randomText(tokenSecretLength)) }
	first := guess()
	for range 5 {
		wantSession(t, s, first, ErrUnauthorized) // which is looked up once
	}
	wantSession(t, s, guess(), ErrUnauthorized)
	wantSession(t, s, guess(), ErrLookUps)
	if err := s.EndSession(t.Context(), guess()); !errors.Is(err, ErrLookUps) {
		t.Errorf("ending a session that nobody knows: %v", err)
	}
	wantSession(t, s, token, nil) // those who are known go on
	if err := s.EndSession(t.Context(), token); err != nil {
		t.Error(err)
	}
}

func TestSessionsWithoutTheDatabaseAreUnavailable(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	before := openOn(t, db) // which is patient
	_, text := create(t, before, CreateParams{})
	token := logIn(t, before, text)
	s := openOn(t, db, func(c *Config) { c.QueryTimeout = 2 * time.Second })
	if err := s.pools.CloseBy(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.AuthenticateSession(t.Context(), token); !errors.Is(err, pg.ErrUnavailable) || errors.Is(err, ErrUnauthorized) {
			t.Errorf("a session: got %v, want ErrUnavailable", err)
		}
	}
	if _, _, err := s.CreateSession(t.Context(), text); !errors.Is(err, pg.ErrUnavailable) {
		t.Errorf("a log-in: got %v, want ErrUnavailable", err)
	}
	if err := s.EndSession(t.Context(), token); !errors.Is(err, pg.ErrUnavailable) {
		t.Errorf("a log-out: got %v, want ErrUnavailable", err)
	}
	if _, err := s.EndSessions(t.Context(), ""); !errors.Is(err, pg.ErrUnavailable) {
		t.Errorf("log-outs: got %v, want ErrUnavailable", err)
	}
	if _, err := s.AuthenticateSession(t.Context(), "x"); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("no token: got %v, want ErrUnauthorized", err)
	}
}

func TestRefusedLogIns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	if token, _, err := s.CreateSession(t.Context(), "x"); token != "" || err != nil {
		t.Errorf("where nobody needs a key: %q, %v", token, err)
	}
	if g, err := s.AuthenticateSession(t.Context(), "x"); err != nil || !g.IsOpen {
		t.Errorf("where nobody needs a key: %+v, %v", g, err)
	}
	create(t, s, CreateParams{})
	ended, expired := create(t, s, CreateParams{Scopes: []Scope{Read}})
	if _, err := s.Update(t.Context(), ended, Change{ExpiresAt: new(new(time.Now().Add(-time.Hour)))}, nil); err != nil {
		t.Fatal(err)
	}
	revoked, revokedText := create(t, s, CreateParams{Scopes: []Scope{Read}})
	if err := s.Revoke(t.Context(), revoked); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]error{"": ErrUnauthorized, "x": ErrUnauthorized, newKeyText(""): ErrUnauthorized, expired: ErrExpired, revokedText: ErrRevoked} {
		if token, _, err := s.CreateSession(t.Context(), text); !errors.Is(err, want) || token != "" {
			t.Errorf("%q: got %q, %v, want %v", text, token, err, want)
		}
	}
	if err := s.record(t.Context()); err != nil {
		t.Fatal(err)
	}
	page, err := s.Audit(t.Context(), AuditParams{Action: "access.refuse"})
	if err != nil || len(page.Actions) != 2 {
		t.Errorf("the audit has %+v, %v", page.Actions, err)
	}

	id, text := create(t, s, CreateParams{Scopes: []Scope{Read}, Rate: &Rate{PerSecond: 0.001, Burst: 1}})
	logIn(t, s, text)
	if _, _, err := s.CreateSession(t.Context(), text); !errors.Is(err, ErrRateLimited) {
		t.Errorf("beyond the rate limit of the key: %v", err)
	}
	if _, err := s.Update(t.Context(), id, Change{Rate: new((*Rate)(nil))}, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 * logInsPerMinute {
		_, _, err = s.CreateSession(t.Context(), text)
	}
	if _, changed := s.Update(t.Context(), id, Change{Name: new("other")}, nil); changed != nil {
		t.Fatal(changed)
	}
	if _, _, after := s.CreateSession(t.Context(), text); !errors.Is(err, ErrRateLimited) || !errors.Is(after, ErrRateLimited) {
		t.Errorf("beyond the log-ins of a key: %v, and after a change of it %v", err, after)
	}
}

func TestLogInWithAKeyThatWasJustRevokedIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	here, there := openOn(t, db), openOn(t, db) // neither runs
	create(t, here, CreateParams{})
	id, text := create(t, here, CreateParams{Scopes: []Scope{Read}})
	authenticate(t, there, text)
	if err := here.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	authenticate(t, there, text) // it has not heard of it
	if token, _, err := there.CreateSession(t.Context(), text); !errors.Is(err, ErrRevoked) || token != "" {
		t.Errorf("got %q, %v, want ErrRevoked", token, err)
	}
	if n := pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select count(*) from agent.audit where action = 'session.create'`); n != 0 {
		t.Error("the log-in is recorded")
	}
}

func TestKeyHasBoundedSessions(t *testing.T) {
	t.Parallel()
	const most = 100
	db := pgtest.New(t)
	s, other := openOn(t, db), openOn(t, db)
	_, text := create(t, s, CreateParams{})
	_, neighbour := create(t, s, CreateParams{})
	oldest, kept := logIn(t, s, text), logIn(t, s, neighbour)
	for _, s := range []*Service{s, other} {
		authenticate(t, s, text).logIns.SetBurst(1000)
		authenticate(t, s, text).logIns.SetLimit(rate.Inf)
	}
	var all sync.WaitGroup
	for i := range most {
		all.Go(func() {
			if _, _, err := []*Service{s, other}[i%2].CreateSession(t.Context(), text); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select count(*) from agent_private.session where key_id = $1`, keyID(text)); n != most {
		t.Errorf("the key has %d sessions, want %d", n, most)
	}
	wantSession(t, s, oldest, ErrUnauthorized)
	wantSession(t, s, kept, nil)
}

// TestSessionsUnderRaces logs in, uses and ends sessions in two processes, beside a rotation and then the revocation of the key: what has ended is never good again.
func TestSessionsUnderRaces(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	services := []*Service{openOn(t, db), openOn(t, db)}
	for _, s := range services {
		runUntilEnd(t, s)
	}
	create(t, services[0], CreateParams{})
	id, text := create(t, services[0], CreateParams{Scopes: []Scope{Read}})
	for _, s := range services {
		authenticate(t, s, text).logIns.SetBurst(1000)
		s.sessions.limiter = rate.NewLimiter(rate.Inf, 0)
	}
	var (
		mu      sync.Mutex
		revoked bool
		all     sync.WaitGroup
	)
	isRevoked := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return revoked
	}
	tokens := make(chan string, 1000)
	for i := range 4 {
		s, other := services[i%2], services[(i+1)%2]
		all.Go(func() {
			for range 20 {
				mayFail := isRevoked()
				token, _, err := s.CreateSession(t.Context(), text)
				if err != nil {
					if !errors.Is(err, ErrRevoked) || !isRevoked() {
						t.Errorf("a log-in: %v", err)
					}
					return
				}
				if mayFail {
					t.Error("a log-in with a revoked key")
				}
				tokens <- token
				if _, err := other.AuthenticateSession(t.Context(), token); err != nil && !isRevoked() {
					t.Errorf("a session that was just begun: %v", err)
				}
				if err := other.EndSession(t.Context(), token); err != nil {
					t.Errorf("a log-out: %v", err)
				}
				if _, err := s.AuthenticateSession(t.Context(), token); !errors.Is(err, ErrUnauthorized) {
					t.Errorf("a session that has ended: %v", err)
				}
			}
		})
	}
	if _, _, err := services[1].Rotate(t.Context(), id, time.Hour); err != nil {
		t.Fatal(err)
	}
	all.Go(func() {
		for range 10 {
			token := <-tokens
			if _, err := services[0].AuthenticateSession(t.Context(), token); err != nil && !errors.Is(err, ErrUnauthorized) {
				t.Errorf("a session beside its end: %v", err)
			}
		}
		mu.Lock()
		revoked = true
		err := services[0].Revoke(t.Context(), id)
		mu.Unlock()
		if err != nil {
			t.Error(err)
		}
	})
	all.Wait()
	if n := pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select count(*) from agent_private.session`); n != 0 {
		t.Errorf("%d sessions of a revoked key are left", n)
	}
}
