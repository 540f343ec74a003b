package access

import (
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
		pg.Loop{Doing: "reading the keys", Pass: s.renew, Pause: s.cfg.PollInterval}.Run(ctx, s.cfg.Logger)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func TestPollIsShorterThanWhatIsPromised(t *testing.T) {
	t.Parallel()
	if longest := DefaultPollInterval * 5 / 4; longest > 4*time.Second { // a loop pauses for a quarter more at most
		t.Errorf("a process without notifications learns of a revocation after %s", longest)
	}
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
	if err := s.renew(t.Context()); err != nil {
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
