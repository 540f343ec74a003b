package access

import (
	"errors"
	"regexp"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

func TestKeyWithOneWrongCharacterIsNoticedByItself(t *testing.T) {
	t.Parallel()
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	text := newKeyText("")
	if !regexp.MustCompile(`^qk_[a-z2-7]{8}_[a-z2-7]{33}$`).MatchString(text) || keyID(text) == "" {
		t.Fatalf("made %q", text)
	}
	for i := range text {
		for _, c := range []byte(alphabet + "_A-1 ") {
			if wrong := text[:i] + string(c) + text[i+1:]; wrong != text && keyID(wrong) != "" {
				t.Errorf("%q was taken for a key", wrong)
			}
		}
		if keyID(text[:i]) != "" || keyID(text[:i]+text[i+1:]) != "" {
			t.Errorf("a part of the key was taken for a key")
		}
	}
	if newKeyText("") == text {
		t.Error("two keys are the same")
	}
}

func TestMistypedKeyIsRefusedWithoutALookUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	_, text := create(t, s, CreateParams{})
	wrong := text[:len(text)-1] + map[bool]string{true: "b", false: "a"}[text[len(text)-1] == 'a']
	if err := s.pools.CloseBy(t.Context()); err != nil { // a look-up would fail otherwise
		t.Fatal(err)
	}
	for _, wrong := range []string{wrong, "", "x", "Bearer", text + "a"} {
		if _, err := s.Authenticate(t.Context(), wrong); !errors.Is(err, ErrUnauthorized) {
			t.Errorf("%q: got %v, want ErrUnauthorized", wrong, err)
		}
	}
	authenticate(t, s, text) // known keys go on
	if _, err := s.Authenticate(t.Context(), newKeyText("")); !errors.Is(err, pg.ErrUnavailable) || errors.Is(err, ErrUnauthorized) {
		t.Errorf("an unknown key without the database: got %v, want ErrUnavailable", err)
	}
}

func TestKeysOfOtherProcessesAreLookedUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	here, there := openOn(t, db), openOn(t, db) // neither runs
	create(t, here, CreateParams{})
	id, text := create(t, there, CreateParams{Scopes: []Scope{Read}, Queues: []string{"a.*"}})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if g, err := here.Authenticate(t.Context(), text); err != nil || g.KeyID != id || !g.Has(Read) || g.Has(Claim) || !g.AllowsQueue("a.b") || g.AllowsQueue("b") || g.AllowsTopic("a") {
				t.Errorf("got %+v, %v", g, err)
			}
		})
	}
	all.Wait()
	_, rotated, err := there.Rotate(t.Context(), id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	authenticate(t, here, rotated)
	authenticate(t, here, text)
	if _, err := here.Authenticate(t.Context(), newKeyText(id)); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("another secret under a known id: got %v, want ErrUnauthorized", err)
	}
}

func TestLookUpsAreBounded(t *testing.T) {
	t.Parallel()
	s := openOn(t, pgtest.New(t), func(c *Config) { c.IsRequired = true })
	s.keys.Limiter.SetLimit(0) // how fast the database answers is not for this test
	bounded, burst := 0, s.keys.Limiter.Burst()
	for range 3 * burst {
		switch _, err := s.Authenticate(t.Context(), newKeyText("")); {
		case errors.Is(err, ErrLookUps) && errors.Is(err, pg.ErrUnavailable):
			bounded++
		case !errors.Is(err, ErrUnauthorized):
			t.Fatal(err)
		}
	}
	if bounded != 2*burst {
		t.Errorf("%d unknown keys were looked up, want %d", 3*burst-bounded, burst)
	}
	same := newKeyText("")
	s.keys.Limiter.SetLimit(rate.Inf)
	if _, err := s.Authenticate(t.Context(), same); !errors.Is(err, ErrUnauthorized) {
		t.Fatal(err)
	}
	s.keys.Limiter.SetLimit(0)
	s.keys.Limiter.SetBurst(0)
	if _, err := s.Authenticate(t.Context(), same); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("a key that was refused is looked up again: %v", err)
	}
}

// The zero time of Go is a time like others: a key that ends then has ended, and so has the text before a rotation.
func TestKeyThatEndsAtTheZeroTimeHasEnded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	create(t, s, CreateParams{})
	ended, text := create(t, s, CreateParams{Scopes: []Scope{Read}})
	if _, err := s.Update(t.Context(), ended, Change{ExpiresAt: new(new(time.Time{}))}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), text); !errors.Is(err, ErrExpired) {
		t.Errorf("got %v, want ErrExpired", err)
	}
	id, before := create(t, s, CreateParams{Scopes: []Scope{Read}})
	if _, _, err := s.Rotate(t.Context(), id, time.Hour); err != nil {
		t.Fatal(err)
	}
	authenticate(t, s, before)
	run(t, db, `update agent.api_key set previous_until = '0001-01-01 00:00+00' where id = $1`, id)
	other, _ := create(t, s, CreateParams{Scopes: []Scope{Read}})
	if err := s.Revoke(t.Context(), other); err != nil { // which reads all keys again
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), before); !errors.Is(err, ErrExpired) {
		t.Errorf("got %v for the text before the rotation, want ErrExpired", err)
	}
}

func TestEndedKeysSayWhich(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	create(t, s, CreateParams{})
	expired, expiredText := create(t, s, CreateParams{Scopes: []Scope{Read}, ExpiresAt: new(time.Now().Add(time.Hour))})
	revoked, revokedText := create(t, s, CreateParams{Scopes: []Scope{Read}})
	authenticate(t, s, expiredText)
	run(t, db, `update agent.api_key set expires_at = now() where id = $1`, expired)
	if err := s.Revoke(t.Context(), revoked); err != nil { // which reads all keys again
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), expiredText); !errors.Is(err, ErrExpired) {
		t.Errorf("got %v, want ErrExpired", err)
	}
	if _, err := s.Authenticate(t.Context(), revokedText); !errors.Is(err, ErrRevoked) {
		t.Errorf("got %v, want ErrRevoked", err)
	}
	if _, _, err := s.Rotate(t.Context(), expired, time.Hour); !errors.Is(err, ErrInactive) {
		t.Errorf("rotating an expired key: got %v, want ErrInactive", err)
	}
	if _, err := s.Update(t.Context(), revoked, Change{Name: new("x")}, nil); !errors.Is(err, ErrInactive) {
		t.Errorf("changing a revoked key: got %v, want ErrInactive", err)
	}
	if err := s.Revoke(t.Context(), revoked); err != nil {
		t.Errorf("revoking again: %v", err)
	}
	if err := s.Revoke(t.Context(), "aaaaaaaa"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}

func TestNoEndOfKeysOpensTheServerAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	if s.IsRequired() || !authenticate(t, s, "").IsOpen || !authenticate(t, s, "anything").IsOpen {
		t.Fatal("a key is needed before there is one")
	}
	create(t, s, CreateParams{IsFirst: true})
	if _, _, err := s.Create(t.Context(), CreateParams{Name: "second", Scopes: []Scope{Admin}, IsFirst: true}); !errors.Is(err, ErrNotFirst) {
		t.Errorf("a second first key: got %v, want ErrNotFirst", err)
	}
	run(t, db, `update agent.api_key set expires_at = now()`)
	for range 2 {
		if err := s.keys.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*Service{s, openOn(t, db)} {
			if !s.IsRequired() || s.HasLiveAdmin() {
				t.Errorf("required %t, a live admin %t", s.IsRequired(), s.HasLiveAdmin())
			}
			if _, err := s.Authenticate(t.Context(), ""); !errors.Is(err, ErrUnauthorized) {
				t.Errorf("got %v, want ErrUnauthorized", err)
			}
		}
		run(t, db, `delete from agent.api_key`) // as the pruning of revoked keys does
	}
	run(t, db, `update agent.access set is_required = false`) // as a backup of an earlier time may have it
	if err := s.keys.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Authenticate(t.Context(), ""); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("a running server was opened: %v", err)
	}
}

func TestLastAdminKeyStays(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := openOn(t, db)
	first, _ := create(t, s, CreateParams{})
	second, _ := create(t, s, CreateParams{})
	var ended sync.WaitGroup
	errs := make([]error, 2)
	for i, id := range []string{first, second} { // of two at the same time, one fails
		ended.Go(func() { errs[i] = s.Revoke(t.Context(), id) })
	}
	ended.Wait()
	if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs...), ErrLastAdmin) {
		t.Errorf("got %v", errs)
	}
	last := first
	if errs[0] == nil {
		last = second
	}
	for what, change := range map[string]Change{"scopes": {Scopes: &[]Scope{Read}}, "expiry": {ExpiresAt: new(new(time.Now().Add(-time.Hour)))}} {
		if _, err := s.Update(t.Context(), last, change, nil); !errors.Is(err, ErrLastAdmin) {
			t.Errorf("%s: got %v, want ErrLastAdmin", what, err)
		}
	}
}

func TestBadKeysAreRefused(t *testing.T) {
	t.Parallel()
	s := openOn(t, pgtest.New(t))
	for field, p := range map[string]CreateParams{
		"name":       {Scopes: []Scope{Admin}},
		"scopes":     {Name: "n", Scopes: []Scope{"root"}},
		"queues":     {Name: "n", Scopes: []Scope{Read}, Queues: []string{"a*b"}},
		"topics":     {Name: "n", Scopes: []Scope{Read}, Topics: []string{"a.**.b"}},
		"rate_limit": {Name: "n", Scopes: []Scope{Read}, Rate: &Rate{PerSecond: -1, Burst: 1}},
		"expires_at": {Name: "n", Scopes: []Scope{Read}, ExpiresAt: new(time.Now().Add(-time.Minute))},
	} {
		var invalid *InvalidError
		if _, _, err := s.Create(t.Context(), p); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	for _, p := range []CreateParams{{Scopes: []Scope{Admin}, Queues: []string{"a"}}, {Scopes: []Scope{Read}, Queues: []string{"queued.*"}}, {}} {
		p.Name = "n"
		if _, _, err := s.Create(t.Context(), p); !errors.Is(err, pg.ErrInvalid) {
			t.Errorf("%+v: got %v, want ErrInvalid", p, err)
		}
	}
}

func TestKeysThatWereRestoredWithoutTheirTriggersCount(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	run(t, db, `alter table agent.api_key disable trigger user; insert into agent.api_key (id, name, scopes, hash, verifier)
		values ('aaaaaaaa', 'n', '{admin}', sha256('a'), sha256('b'))`) // as pg_restore --data-only --disable-triggers does
	if s := openOn(t, db); !s.IsRequired() {
		t.Error("callers need no key")
	}
}
