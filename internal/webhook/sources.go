package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
)

// An infoRow is a source as the database shows it.
type infoRow struct {
	Name                  string
	Kind                  string
	Queue                 *string
	Topic                 *string
	Type                  *string
	Key                   *string
	EventTS               *string
	Priority              *string
	GroupKey              *string
	Signature             *json.RawMessage
	Header                *string
	Secrets               int32
	DedupFor              time.Duration
	Tolerance             time.Duration
	KeepRaw               *time.Duration
	Headers               []string
	MaxBody               *int32
	RatePerSecond         *float64
	RateBurst             *int32
	Paused                bool
	Version               int64
	CreatedAt             time.Time
	UpdatedAt             time.Time
	Received              int64
	Duplicates            int64
	Rejected              int64
	LastReceivedAt        *time.Time
	LastRejectedAt        *time.Time
	LastRejectedCode      *string
	LastRejectedRequestID *string
	LastProblemAt         *time.Time
	LastProblem           *string
	LastProblemRequestID  *string
}

const infoColumns = columns + `, received, duplicates, rejected, last_received_at, last_rejected_at, last_rejected_code,
	last_rejected_request_id, last_problem_at, last_problem, last_problem_request_id`

func (r *infoRow) source() Source {
	s := Source{
		Name: r.Name, SecretCount: int(r.Secrets), Version: r.Version, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		Received: r.Received, Duplicates: r.Duplicates, Rejected: r.Rejected, LastReceivedAt: r.LastReceivedAt,
		Params: Params{
			Kind: Kind(r.Kind), Queue: value(r.Queue), Topic: value(r.Topic), Type: value(r.Type), Key: value(r.Key), EventTS: value(r.EventTS),
			Priority: value(r.Priority), Group: value(r.GroupKey), Header: value(r.Header), DedupFor: r.DedupFor, Tolerance: r.Tolerance, KeepRaw: value(r.KeepRaw), Headers: r.Headers,
			MaxBody: int(value(r.MaxBody)), Paused: r.Paused,
		},
	}
	if r.Signature != nil {
		s.Signature = new(Signature)
		_ = json.Unmarshal(*r.Signature, s.Signature) // a value that SQL has put there is not shown
	}
	if r.RatePerSecond != nil && r.RateBurst != nil {
		s.Rate = &Rate{*r.RatePerSecond, int(*r.RateBurst)}
	}
	if r.LastRejectedAt != nil {
		s.LastRejected = &Rejection{*r.LastRejectedAt, value(r.LastRejectedCode), value(r.LastRejectedRequestID)}
	}
	if r.LastProblemAt != nil {
		s.LastProblem = &Problem{*r.LastProblemAt, value(r.LastProblem), value(r.LastProblemRequestID)}
	}
	return s
}

// settings are the columns of a source but its secrets.
func (p *Params) settings() ([]byte, error) {
	settings := map[string]any{
		"kind": p.Kind, "queue": pg.OrNull(p.Queue), "topic": pg.OrNull(p.Topic), "type": pg.OrNull(p.Type), "key": pg.OrNull(p.Key),
		"event_ts": pg.OrNull(p.EventTS), "priority": pg.OrNull(p.Priority), "group_key": pg.OrNull(p.Group), "signature": p.Signature, "header": pg.OrNull(p.Header),
		"dedup_for": interval(p.DedupFor), "tolerance": interval(p.Tolerance), "keep_raw": interval(p.KeepRaw), "headers": p.Headers,
		"max_body": pg.OrNull(p.MaxBody), "paused": p.Paused,
	}
	if p.Signature == nil {
		delete(settings, "signature")
	}
	if p.Rate != nil {
		settings["rate_per_second"], settings["rate_burst"] = p.Rate.PerSecond, p.Rate.Burst
	}
	return json.Marshal(settings)
}

// interval is a duration as PostgreSQL reads an interval; nil: zero.
func interval(d time.Duration) *string {
	if d == 0 {
		return nil
	}
	return new(fmt.Sprintf("%d microseconds", d.Microseconds()))
}

// placeholders stand for secrets that stay as they are, in checks of everything else.
var placeholders = []string{"c2VjcmV0"}

// check returns an *InvalidError for the first setting that a source may not have.
func (p *Params) check() error {
	checked := *p
	if checked.Secrets == nil {
		checked.Secrets = placeholders
	}
	_, _, err := checked.compile()
	return err
}

// Put creates or replaces a source; isNew says which. Secrets that are left out stay. It does so only where the source is
// as the precondition says. It fails with an *InvalidError, a *queue.UndeclaredError, ErrStale and ErrSealing.
func (s *Service) Put(ctx context.Context, name string, p Params, only queue.Precondition) (put Source, isNew bool, err error) {
	if err := p.check(); err != nil {
		return Source{}, false, err
	}
	if s.cfg.Sealer == nil {
		return Source{}, false, fmt.Errorf("%w: there is no key for them", ErrSealing)
	}
	settings, err := p.settings()
	if err != nil {
		return Source{}, false, &InvalidError{Field: "rate_limit", Detail: "must be of finite numbers"}
	}
	var sealed [][]byte
	if p.Secrets != nil {
		for _, secret := range p.Secrets {
			sealed = append(sealed, s.cfg.Sealer.Seal(secret, owner(name)))
		}
	} else if !only.Absent { // of a new one the database says that it needs secrets
		if err := s.checkKept(ctx, name, &p); err != nil {
			return Source{}, false, err
		}
	}
	type putRow struct {
		infoRow
		IsNew bool
	}
	r, err := pg.WriteOne[putRow](ctx, &s.writes,
		`select (p.source).*, p.is_new from agent_service.put_source($1, $2, $3, $4, $5, $6) p where `+s.cfg.Queue.RequireQueue("(p.source).queue"),
		name, string(settings), sealed, only.Versions, only.Exists, only.Absent)
	if err != nil {
		return Source{}, false, wrap("putting a source", err)
	}
	s.sources.RenewNow(ctx)
	return r.source(), r.IsNew, nil
}

// checkKept returns an *InvalidError if the secrets that a source has do not fit its new settings.
func (s *Service) checkKept(ctx context.Context, name string, p *Params) error {
	rows, _ := s.pool.Query(ctx, `select `+columns+` from agent_service.read_sources($1)`, name)
	found, err := pg.Collect[row](rows)
	if err != nil || len(found) == 0 {
		return wrap("reading a source", err) // of a new one the database says that it needs secrets
	}
	kept := *p
	if kept.Secrets, err = s.open(name, found[0].Secrets); err != nil {
		return nil //nolint:nilerr // they stay as they are; other sources' and this one's receiving say so
	}
	_, _, err = kept.compile()
	return err
}

// Get returns a source. It fails with ErrNotFound.
func (s *Service) Get(ctx context.Context, name string) (Source, error) {
	rows, _ := s.pool.Query(ctx, `select `+infoColumns+` from agent.list_sources(1, _name => $1)`, name)
	r, err := pg.CollectOne[infoRow](rows)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Source{}, ErrNotFound
	case err != nil:
		return Source{}, wrap("getting a source", err)
	}
	return r.source(), nil
}

// List returns a page of sources by name, of those that go to queues and topics within these patterns; nil: all. It fails with ErrBadCursor or
// ErrQueryTimeout.
func (s *Service) List(ctx context.Context, limit int, cursor string, queues, topics []string) (page Page, err error) {
	page.Sources, page.Next, err = pg.ReadPage("sources", cursor, limit, func(after pg.Cursor, n int) (all []Source, err error) {
		err = pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, `select `+infoColumns+` from agent.list_sources($1, $2, $3, $4)`, n, after.Name, queues, topics)
			found, err := pg.Collect[infoRow](rows)
			for i := range found {
				all = append(all, found[i].source())
			}
			return err
		})
		return all, wrap("listing sources", err)
	}, func(s *Source) pg.Cursor { return pg.Cursor{Name: &s.Name} })
	return page, err
}

// Delete deletes a source, and its counts. It fails with ErrNotFound and ErrStale.
func (s *Service) Delete(ctx context.Context, name string, ifVersions []int64) error {
	if err := s.writes.Exec(ctx, `select agent.delete_source($1, $2)`, name, ifVersions); err != nil {
		return wrap("deleting a source", err)
	}
	s.sources.RenewNow(ctx)
	return nil
}

// Test returns the result that a delivery would have at a time (zero: now). It counts and stores nothing. It fails with ErrNotFound, ErrSealing and ErrUnavailable.
func (s *Service) Test(ctx context.Context, name string, d Delivery, at time.Time) (Trial, error) {
	h, err := s.find(ctx, name)
	if err == nil {
		err = h.problem
	}
	if err != nil {
		return Trial{}, err
	}
	now := s.cfg.Now()
	if at.IsZero() {
		at = now
	}
	var t Trial
	if err := h.verifier.Verify(d.Header, d.Body, at); err != nil {
		t.Refusal = asRefusal(err)
		return t, nil
	}
	t.Mapped, t.IsBatch, t.Err = h.mapAll(&d, now)
	return t, nil
}
