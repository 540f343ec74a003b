package access

import (
	"context"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// busyTimeout bounds what tests wait for: on a busy machine it takes longer than users would wait.
const busyTimeout = time.Minute

// openOn returns a service on a database, which is not running.
func openOn(t *testing.T, db *pgtest.DB, configure ...func(*Config)) *Service {
	t.Helper()
	connections, err := pg.Open(t.Context(), pg.Config{URL: db.ServiceURL})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Database: connections, QueryTimeout: busyTimeout}
	for _, set := range configure {
		set(&cfg)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return s
}

// runUntilEnd runs a service until the test ends.
func runUntilEnd(t *testing.T, s *Service) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// create creates a key.
func create(t *testing.T, s *Service, p CreateParams) (id, text string) {
	t.Helper()
	if p.Name == "" {
		p.Name = "test"
	}
	if p.Scopes == nil {
		p.Scopes = []Scope{Admin}
	}
	k, text, err := s.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return k.ID, text
}

// authenticate returns the grant of a text, which must have one.
func authenticate(t *testing.T, s *Service, text string) *Grant {
	t.Helper()
	g, err := s.Authenticate(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// run runs a statement as the owner of the schema.
func run(t *testing.T, db *pgtest.DB, statement string, args ...any) {
	t.Helper()
	if _, err := pgtest.Connect(t, db.URL).Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}
