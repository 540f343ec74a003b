package topic

import (
	"context"
	"encoding/json"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
)

// Publish appends all of publications to the log or, on any error, none, and returns when that is committed. Results are in their order. Publications
// share commits with inserts, acks and claims of this process. It fails with an *InvalidError, ErrKeyReused, ErrUnrepresentable, ErrOverloaded, and
// with ErrUnavailable or ctx's error when it is unknown whether they were published.
func (s *Service) Publish(ctx context.Context, publications []Publication) ([]Published, error) {
	published, err := s.cfg.Queue.Publish(ctx, publications)
	for _, p := range published {
		if !p.Deduplicated {
			s.published.Add(1)
		}
	}
	return published, err
}

// PublishLater has an event published after a delay, or at a time if at is not nil, exactly once. Until then it waits in the queue DelayedQueue.
// It fails as Publish does.
func (s *Service) PublishLater(ctx context.Context, p Publication, delay time.Duration, at *time.Time) (Delayed, error) {
	if p.IdempotencyKey != "" {
		return s.publishLaterOnce(ctx, p, delay, at)
	}
	body, err := json.Marshal(struct {
		Topic        string          `json:"topic"`
		Event        json.RawMessage `json:"event"`
		Key          string          `json:"key,omitempty"`
		Meta         json.RawMessage `json:"meta,omitempty"`
		Subscription string          `json:"subscription,omitempty"`
	}{p.Topic, p.Event, p.Key, p.Meta, p.Subscription})
	if err != nil {
		return Delayed{}, &InvalidError{Field: "event", Detail: "must be a JSON object"}
	}
	inserted, err := s.cfg.Queue.Insert(ctx, []queue.InsertParams{{Event: body, Queue: DelayedQueue, Delay: delay, VT: at}})
	if err != nil {
		return Delayed{}, err
	}
	s.delayed.Send()
	return Delayed{ID: inserted[0].ID, At: inserted[0].VT}, nil
}

// publishLaterOnce is PublishLater with an idempotency key, which stands for publications at once, too.
func (s *Service) publishLaterOnce(ctx context.Context, p Publication, delay time.Duration, at *time.Time) (Delayed, error) {
	var wait *time.Duration
	if at == nil {
		wait = &delay
	}
	var d Delayed
	var id, position *int64
	var waitsUntil, publishedAt *time.Time
	err := s.writes.Row(ctx, `select id, at, replayed, position, published_at from agent.publish_later($1, $2, $3, $4, $5, $6, $7, $8, $9)`, []any{
		p.Topic, string(p.Event), pg.OrNull(p.Key), pg.OrNull(string(p.Meta)), p.RememberedKey(), pg.OrNull(p.Subscription), wait, at, s.cfg.Queue.KeyRetention(),
	}, &id, &waitsUntil, &d.Deduplicated, &position, &publishedAt)
	switch {
	case err != nil:
		return Delayed{}, wrap("publishing later", err)
	case position != nil && publishedAt != nil:
		d.Published = &Published{Position: *position, PublishedAt: *publishedAt, Deduplicated: true}
	case id != nil && waitsUntil != nil:
		d.ID, d.At = *id, *waitsUntil
		s.delayed.Send()
	}
	return d, nil
}

// duePublications is how many publications one transaction publishes.
const duePublications = 500

// publishDue publishes the publications that are due.
func (s *Service) publishDue(ctx context.Context) error {
	for {
		var published int
		if err := s.loops.QueryRow(ctx, `select agent.publish_due($1)`, duePublications).Scan(&published); err != nil {
			return wrap("publishing what is due", err)
		}
		if published > 0 {
			s.tail.requestRead()
		}
		if published < duePublications {
			return nil
		}
	}
}

// untilDue returns how long to wait for the next publication that is due, at most the poll interval: another process may have got one meanwhile.
func (s *Service) untilDue(ctx context.Context) time.Duration {
	var next *time.Duration
	if err := s.loops.QueryRow(ctx, `select agent.next_publication()`).Scan(&next); err != nil || next == nil {
		return s.cfg.PollInterval
	}
	return min(max(*next, 0), s.cfg.PollInterval)
}
