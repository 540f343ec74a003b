package queue

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// purgeBatch is how many events one statement of a purge moves, so that each commit stays short.
const purgeBatch = 1000

// policyColumns are those of agent.queue, in scanPolicy's order.
const policyColumns = `name, max_attempts, invisible_for, backoff_kind, backoff_base, backoff_factor, backoff_max, coalesce(backoff_jitter, 0), paused,
	history_retention, updated_at`

func scanPolicy(row pgx.Row) (p Policy, err error) {
	var (
		kind   *BackoffKind
		base   *time.Duration
		factor *float64
		most   *time.Duration
		jitter float64
	)
	err = row.Scan(&p.Queue, &p.MaxAttempts, &p.InvisibleFor, &kind, &base, &factor, &most, &jitter, &p.Paused, &p.Retention, &p.UpdatedAt)
	if err == nil && kind != nil {
		p.Backoff = &Backoff{Kind: *kind, Base: *base, Factor: factor, Max: most, Jitter: jitter}
	}
	return p, err
}

// PutPolicy sets the whole policy of p.Queue, at once for every process, and returns it with its defaults filled in. It fails with an *InvalidError.
func (s *Service) PutPolicy(ctx context.Context, p Policy) (Policy, error) {
	policy := map[string]any{"paused": p.Paused}
	if p.MaxAttempts != nil {
		policy["max_attempts"] = *p.MaxAttempts
	}
	putInterval(policy, "invisible_for", p.InvisibleFor)
	putInterval(policy, "history_retention", p.Retention)
	if b := p.Backoff; b != nil {
		backoff := map[string]any{"kind": b.Kind, "jitter": b.Jitter}
		putInterval(backoff, "base", &b.Base)
		putInterval(backoff, "max", b.Max)
		if b.Factor != nil {
			backoff["factor"] = *b.Factor
		}
		policy["backoff"] = backoff
	}
	body, err := json.Marshal(policy)
	if err != nil { // a factor or jitter that is no number
		return Policy{}, &InvalidError{Field: "backoff", Detail: "must be of finite numbers"}
	}
	put, err := scanPolicy(s.loops.QueryRow(ctx, `select `+policyColumns+` from agent.put_queue($1, $2)`, p.Queue, string(body)))
	if err != nil {
		return Policy{}, wrap("setting a queue's policy", err)
	}
	s.wakeHere(map[string]bool{p.Queue: true})
	return put, nil
}

// putInterval puts a duration into an object as PostgreSQL reads it.
func putInterval(object map[string]any, name string, d *time.Duration) {
	if d != nil {
		object[name] = strconv.FormatFloat(d.Seconds(), 'f', 6, 64) + " s"
	}
}

// GetPolicy returns the policy of a queue; one with nothing in it for a queue that has none.
func (s *Service) GetPolicy(ctx context.Context, queue string) (Policy, error) {
	p, err := scanPolicy(s.calls.QueryRow(ctx, `select `+policyColumns+` from agent.get_queue($1)`, queue))
	return p, wrap("reading a queue's policy", err)
}

// Pause has a queue hand out nothing, at once and in every process, until Resume. Leases that run go on.
func (s *Service) Pause(ctx context.Context, queue string) error {
	_, err := s.loops.Exec(ctx, `select agent.pause_queue($1)`, queue)
	return wrap("pausing a queue", err)
}

// Resume ends a pause.
func (s *Service) Resume(ctx context.Context, queue string) error {
	_, err := s.loops.Exec(ctx, `select agent.pause_queue($1, false)`, queue)
	if err == nil {
		s.wakeHere(map[string]bool{queue: true})
	}
	return wrap("resuming a queue", err)
}

// Purge moves every event of a queue that nobody has a lease on to history as Cancelled, and returns how many. When it fails
// midway, what it has moved so far stays so.
func (s *Service) Purge(ctx context.Context, queue string) (total int64, err error) {
	for {
		var n int64
		if err := s.loops.QueryRow(ctx, `select agent.purge_queue($1, $2)`, queue, purgeBatch).Scan(&n); err != nil {
			return total, wrap("purging a queue", err)
		}
		total += n
		if n < purgeBatch {
			return total, nil
		}
	}
}
