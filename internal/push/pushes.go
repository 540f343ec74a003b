package push

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/seal"
	"github.com/queued/queued/internal/trace"
)

// DefaultKeep is how long the secret before a rotation goes on signing.
const DefaultKeep = 24 * time.Hour

// Put sets where the events of a queue are pushed to. It returns the push and, if that is new, its secret, which cannot be had again. It fails with an
// *InvalidError, a *queue.UndeclaredError, ErrStale and ErrNoSealer.
func (s *Service) Put(ctx context.Context, p PutParams) (push Push, secret string, err error) {
	if s.cfg.Sealer == nil {
		return Push{}, "", ErrNoSealer
	}
	if err := s.cfg.Guard.CheckURL(p.URL); err != nil {
		return Push{}, "", &InvalidError{Field: "url", Detail: err.Error()}
	}
	var (
		headers []byte
		names   []string
	)
	if p.Headers != nil {
		if field, detail := egress.CheckHeaders(p.Headers); detail != "" {
			at := "headers"
			if field != "" {
				at += "/" + field
			}
			return Push{}, "", &InvalidError{Field: at, Detail: detail}
		}
		names = []string{} // not null: it says that there are none
		for _, name := range slices.Sorted(maps.Keys(p.Headers)) {
			names = append(names, http.CanonicalHeaderKey(name))
		}
		if len(names) > 0 {
			text, _ := json.Marshal(p.Headers) // texts
			headers = s.cfg.Sealer.Seal(string(text), seal.PushHeaders.Owner(p.Queue))
		}
	}
	var perSecond *float64
	var burst *int
	if p.Rate != nil {
		perSecond, burst = &p.Rate.PerSecond, &p.Rate.Burst
	}
	if p.FinalStatuses == nil {
		p.FinalStatuses = []int{}
	}
	secret = egress.NewSecret()
	var isNew bool
	push, err = s.change(ctx, p.Queue, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select agent_service.put_push($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) where `+s.cfg.Queue.RequireQueue("$1"),
			p.Queue, p.URL, string(p.Format), p.Timeout, p.MaxInFlight, perSecond, burst, p.FinalStatuses, p.DisableAfter, headers, names,
			s.cfg.Sealer.Seal(secret, seal.PushSecret.Owner(p.Queue)), p.IfVersions, p.IfExists, p.IfAbsent).Scan(&isNew)
	})
	if err != nil {
		return Push{}, "", wrap("setting a push", err)
	}
	if !isNew {
		secret = ""
	}
	return push, secret, nil
}

// change changes the push of a queue, and returns it as it is then, whatever others do to it at the same time. Requests that this process makes when it has
// returned go by the change; other processes hear of it within moments.
func (s *Service) change(ctx context.Context, name string, do func(pgx.Tx) error) (push Push, err error) {
	err = s.writes.Do(ctx, func(pool *pg.Pool) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := do(tx); err != nil {
				return err
			}
			rows, _ := tx.Query(ctx, selectPush, name)
			push, err = pushOf(rows)
			return err
		})
	})
	if err == nil {
		s.applyChange(ctx)
	}
	return push, err
}

const selectPush = `select ` + infoColumns + ` from agent.list_pushes(1, null, $1)`

func pushOf(rows pgx.Rows) (Push, error) {
	found, err := pg.Collect[infoRow](rows)
	switch {
	case err != nil:
		return Push{}, err
	case len(found) == 0:
		return Push{}, ErrNotFound
	}
	return found[0].push()
}

// Get returns the push of a queue. It fails with ErrNotFound.
func (s *Service) Get(ctx context.Context, name string) (Push, error) {
	rows, _ := s.pool.Query(ctx, selectPush, name)
	push, err := pushOf(rows)
	return push, wrap("getting a push", err)
}

// Delete ends the push of a queue if its version is one of ifVersions (nil: whatever it is). Its events and its policy stay. It fails with
// ErrNotFound and ErrStale.
func (s *Service) Delete(ctx context.Context, name string, ifVersions []int64) error {
	err := s.writes.Exec(ctx, `select agent.delete_push($1, $2)`, name, ifVersions)
	if err == nil {
		s.applyChange(ctx)
	}
	return wrap("deleting a push", err)
}

// RotateSecret gives a push another secret and returns that, which cannot be had again. Those before it go on signing for keep more at most; five
// secrets sign at a time. It fails with ErrNotFound, ErrNoSealer and an *InvalidError.
func (s *Service) RotateSecret(ctx context.Context, name string, keep time.Duration) (push Push, secret string, err error) {
	if s.cfg.Sealer == nil {
		return Push{}, "", ErrNoSealer
	}
	secret = egress.NewSecret()
	sealed := s.cfg.Sealer.Seal(secret, seal.PushSecret.Owner(name))
	push, err = s.change(ctx, name, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select agent_service.rotate_push_secret($1, $2, $3)`, name, sealed, keep)
		return err
	})
	if err != nil {
		return Push{}, "", wrap("rotating the secret of a push", err)
	}
	return push, secret, nil
}

// Enable has a push begin anew: it is disabled no more, its breaker is closed, nothing holds it, and events that wait because the endpoint failed go out
// now. It may be repeated, and is to be where it fails for another reason than ErrNotFound: the push may have begun anew, and some events wait still.
func (s *Service) Enable(ctx context.Context, name string) (Push, error) {
	push, err := s.change(ctx, name, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `select agent.enable_push($1)`, name)
		return err
	})
	if err == nil {
		_, err = s.cfg.Queue.RunQueue(ctx, queue.RunParams{Queue: name, NackedOnly: true})
	}
	return push, wrap("enabling a push", err)
}

// Test sends an event of the type TestType to the endpoint of a queue, signed like any other, and returns the result. It stores nothing and
// changes no state. It fails with ErrNotFound, ErrNoSealer, seal.ErrSealed, and with a *TestLimitError when there were too many.
func (s *Service) Test(ctx context.Context, name string) (TestResult, error) {
	if s.cfg.Sealer == nil {
		return TestResult{}, ErrNoSealer
	}
	rows, err := s.readPushes(ctx, &name)
	switch {
	case err != nil:
		return TestResult{}, err
	case len(rows) == 0:
		return TestResult{}, ErrNotFound
	}
	e, err := rows[0].open(s.cfg.Sealer, nil)
	if err != nil {
		return TestResult{}, err
	}
	if r := s.tests.Reserve(); r.Delay() > 0 {
		wait := r.Delay()
		r.Cancel()
		return TestResult{}, &TestLimitError{wait}
	}
	e.timeout = min(e.timeout, TestTimeout)                                 // its caller waits
	payload, _ := json.Marshal(map[string]any{"queue": name, "test": true}) // a text and a bool
	at := s.cfg.Database.Now().UTC().Truncate(time.Millisecond)
	event := queue.Event{Queue: name, Type: TestType, Source: "queued", EventTS: at, EnqueuedAt: at, Payload: payload}
	started := time.Now()
	response, err := s.request(ctx, e, &event, 0, "test_"+rand.Text(), trace.Context{})
	if err != nil {
		return TestResult{Took: time.Since(started), Error: err.Error()}, ctx.Err()
	}
	return TestResult{Status: response.Status, Took: response.Took, Excerpt: response.Excerpt}, nil
}
