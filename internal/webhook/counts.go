package webhook

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// results are those of deliveries, for metrics.
var results = [...]string{"received", "duplicate", "challenge", "rejected", "invalid", "rate_limited", "paused", "failed"}

const (
	received = iota
	duplicate
	challenge
	rejected
	invalid
	rateLimited
	paused
	failed
)

// maxLabels bounds the sources that have metrics of their own; the rest have those of Others together.
const maxLabels = 1000

// Others is the name under which the sources beyond the first thousand are counted.
const Others = "other"

// A tally counts deliveries of a source that are not counted in the database yet.
type tally struct {
	Name       string     `json:"name"`
	Received   int64      `json:"received"`
	Duplicates int64      `json:"duplicates"`
	Rejected   int64      `json:"rejected"`
	ReceivedAt *time.Time `json:"last_received_at"`

	RejectedAt        *time.Time `json:"last_rejected_at"`
	RejectedCode      *string    `json:"last_rejected_code"`
	RejectedRequestID *string    `json:"last_rejected_request_id"`

	ProblemAt        *time.Time `json:"last_problem_at"`
	Problem          *string    `json:"last_problem"`
	ProblemRequestID *string    `json:"last_problem_request_id"`
}

// count counts a delivery of a source that there is.
func (s *Service) count(name string, result int, note func(t *tally, now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	label := s.labels[name]
	if label == nil {
		if len(s.labels) >= maxLabels {
			name := Others
			label = s.labels[name]
			if label == nil {
				label = new([len(results)]int64)
				s.labels[name] = label
			}
		} else {
			label = new([len(results)]int64)
			s.labels[name] = label
		}
	}
	label[result]++
	if note == nil {
		return
	}
	t := s.tallies[name]
	if t == nil {
		t = &tally{Name: name}
		s.tallies[name] = t
	}
	note(t, time.Now())
}

// reject counts a delivery that was refused.
func (s *Service) reject(name string, result int, code, requestID string) {
	s.count(name, result, func(t *tally, now time.Time) {
		t.Rejected++
		t.RejectedAt, t.RejectedCode, t.RejectedRequestID = &now, &code, &requestID
	})
}

// merge adds the counts of an earlier tally.
func (t *tally) merge(before *tally) {
	t.Received += before.Received
	t.Duplicates += before.Duplicates
	t.Rejected += before.Rejected
	if t.ReceivedAt == nil {
		t.ReceivedAt = before.ReceivedAt
	}
	if t.RejectedAt == nil {
		t.RejectedAt, t.RejectedCode, t.RejectedRequestID = before.RejectedAt, before.RejectedCode, before.RejectedRequestID
	}
	if t.ProblemAt == nil {
		t.ProblemAt, t.Problem, t.ProblemRequestID = before.ProblemAt, before.Problem, before.ProblemRequestID
	}
}

// record writes the tallies, in one statement for all sources.
func (s *Service) record(ctx context.Context) error {
	s.mu.Lock()
	taken := s.tallies
	s.tallies = make(map[string]*tally)
	s.mu.Unlock()
	if len(taken) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	var counts []string
	for _, name := range slices.Sorted(maps.Keys(taken)) {
		text, err := json.Marshal(taken[name])
		if err != nil {
			return err
		}
		counts = append(counts, string(text))
	}
	err := s.writes.Exec(ctx, `select agent_service.count_deliveries($1::text[]::jsonb[])`, counts)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, before := range taken {
		if t := s.tallies[name]; t != nil {
			t.merge(before)
		} else {
			s.tallies[name] = before
		}
	}
	return wrap("counting deliveries", err)
}

// Each calls visit with this process's counts of each source, by result. At most a thousand sources have counts of their own.
func (s *Service) Each(visit func(source, result string, n int64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, counts := range s.labels {
		for i, n := range counts {
			if n > 0 {
				visit(name, results[i], n)
			}
		}
	}
}
