package access

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// A usage is a process's record of the use of a key, however often the key is changed.
type usage struct {
	usedAt   *atomic.Int64 // Unix time in nanoseconds; zero: not since the service began
	recorded *atomic.Int64 // the usedAt that the database has
	limiter  *rate.Limiter // nil: there is no limit
	places   *rate.Limiter // of queues that the key places
}

func newUsage(limit *Rate, usedAt *time.Time) *usage {
	u := &usage{usedAt: new(atomic.Int64), recorded: new(atomic.Int64), limiter: limiterOf(limit, nil), places: rate.NewLimiter(rate.Limit(PlacesPerHour)/3600, PlacesPerHour)}
	if usedAt != nil {
		u.usedAt.Store(usedAt.UnixNano())
		u.recorded.Store(usedAt.UnixNano())
	}
	return u
}

// with returns the usage of the same key under a limit. An equal limit keeps its count.
func (u *usage) with(limit *Rate) *usage {
	return &usage{usedAt: u.usedAt, recorded: u.recorded, limiter: limiterOf(limit, u.limiter), places: u.places}
}

// useResolution is how exactly the use of a key is known: most calls of a busy key then write nothing to memory that others share.
const useResolution = time.Second

func (u *usage) note(now time.Time) {
	if at := now.UnixNano(); at-u.usedAt.Load() > int64(useResolution) {
		u.usedAt.Store(at)
	}
}

// maxRefusals bounds the actors and reasons that are gathered between two writings. The audit must not become a way to fill the disk.
const maxRefusals = 100

type refusal struct{ actor, reason string }

// Refuse counts that a known caller was refused for a reason: expired, revoked, forbidden. It goes into the audit within a minute, once for all that gather
// until then.
func (s *Service) Refuse(g *Grant, reason string) {
	if g.Actor() == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := refusal{g.actor, reason}
	if _, isKnown := s.refusals[r]; isKnown || len(s.refusals) < maxRefusals {
		s.refusals[r]++
	}
}

// record writes when keys were used last, and refused calls, in two statements for all.
func (s *Service) record(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	var (
		ids      []string
		ats      []time.Time
		recorded []*usage
	)
	for id, k := range s.keys.Load().byID {
		if at := k.counted.usedAt.Load(); at > k.counted.recorded.Load() {
			ids, ats, recorded = append(ids, id), append(ats, time.Unix(0, at)), append(recorded, k.counted)
		}
	}
	if len(ids) > 0 {
		if err := s.writes.Exec(ctx, `select agent_service.record_key_use($1, $2)`, ids, ats); err != nil {
			return wrap("recording the use of keys", err)
		}
		for i, u := range recorded {
			u.recorded.Store(ats[i].UnixNano())
		}
	}
	return s.recordRefusals(ctx)
}

func (s *Service) recordRefusals(ctx context.Context) error {
	s.mu.Lock()
	gathered := s.refusals
	s.refusals = make(map[refusal]int)
	s.mu.Unlock()
	if len(gathered) == 0 {
		return nil
	}
	var actors, reasons, details []string
	for r, times := range gathered {
		detail, err := json.Marshal(map[string]int{"times": times})
		if err != nil {
			return err
		}
		actors, reasons, details = append(actors, r.actor), append(reasons, r.reason), append(details, string(detail))
	}
	err := s.writes.Exec(ctx, `select agent_service.record_refusals($1, $2, $3::text[]::jsonb[])`, actors, reasons, details)
	return wrap("recording refusals", err)
}
