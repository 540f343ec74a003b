package topic

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
)

// Publish appends all of publications to the log or, on any error, none, and returns when that is committed. Results are in their order. Publications
// share commits with inserts, acks and claims of this process. It fails with an *InvalidError, ErrKeyReused, ErrUnrepresentable, ErrOverloaded, and
// with ErrUnavailable or ctx's error when it is unknown whether they were published.
func (s *Service) Publish(ctx context.Context, publications []Publication) ([]Published, error) {
	if len(publications) == 0 {
		return nil, nil
	}
	op := &publishing{JointTicket: queue.JointTicket{Items: len(publications)}, publications: publications}
	for i := range publications {
		op.Bytes += len(publications[i].Event) + len(publications[i].Meta)
		op.NeedsLock = op.NeedsLock || publications[i].IdempotencyKey != ""
	}
	if err := s.publishing.Do(ctx, op); err != nil {
		return nil, err
	}
	for _, p := range op.published {
		if !p.Deduplicated {
			s.published.Add(1)
		}
	}
	return op.published, nil
}

// PublishEach publishes each of publications on its own, as queue.Service.InsertEach inserts events; results are in their order.
func (s *Service) PublishEach(ctx context.Context, publications []Publication) ([]PublishResult, error) {
	return queue.ByHalves(publications, func(publications []Publication) ([]PublishResult, error) {
		published, err := s.Publish(ctx, publications)
		results := make([]PublishResult, len(published))
		for i := range published {
			results[i].Published = published[i]
		}
		return results, err
	}, func(err error) PublishResult { return PublishResult{Err: err} })
}

const (
	scopeSeparator = "\x1f" // as in SQL, where events with a scope are inserted
	maxKey         = 255    // characters of an idempotency key
)

// rememberedKey returns the idempotency key by which a publication is remembered, empty if it has none: that of no other scope is equal.
func (p *Publication) rememberedKey() string {
	if p.IdempotencyKey == "" || p.KeyScope == "" && !strings.Contains(p.IdempotencyKey, scopeSeparator) {
		return p.IdempotencyKey
	}
	key := p.KeyScope + scopeSeparator + p.IdempotencyKey
	if utf8.RuneCountInString(key) > maxKey {
		sum := sha256.Sum256([]byte(key))
		key = p.KeyScope + scopeSeparator + "sha256:" + hex.EncodeToString(sum[:])
	}
	return key
}

// publishing is the operation of one call of Publish in a group commit.
type publishing struct {
	queue.JointTicket
	publications []Publication
	published    []Published // in the order of publications
}

// pendingPublication is a publication on its way into the log.
type pendingPublication struct {
	*Publication
	op     *publishing
	result *Published
}

// addPublications has the publications of all operations of a commit appended to the log, and passes them on after it.
func (s *Service) addPublications(tx queue.QueryFunc, ops []*publishing) (committed func()) {
	var all, kept []pendingPublication
	for _, op := range ops {
		op.published = make([]Published, len(op.publications))
		for i := range op.publications {
			p := pendingPublication{&op.publications[i], op, &op.published[i]}
			if p.IdempotencyKey != "" && p.KeyFor != 0 {
				kept = append(kept, p)
			} else {
				all = append(all, p)
			}
		}
	}
	isFollowed := s.tail.isFollowed()
	var appended []Event // if somebody follows the log
	s.addToLog(tx, all, s.cfg.Queue.KeyRetention(), isFollowed, &appended)
	for len(kept) > 0 { // each retention takes a statement of its own
		keyFor := kept[0].KeyFor
		var same, others []pendingPublication
		for _, p := range kept {
			if p.KeyFor == keyFor {
				same = append(same, p)
			} else {
				others = append(others, p)
			}
		}
		s.addToLog(tx, same, keyFor, isFollowed, &appended)
		kept = others
	}
	return func() { s.passOn(appended) }
}

// addToLog has publications appended whose idempotency keys are remembered for the same time. The events appended are added to appended, if somebody
// follows the log: that costs the database something.
func (*Service) addToLog(tx queue.QueryFunc, all []pendingPublication, keyRetention time.Duration, isFollowed bool, appended *[]Event) {
	n := len(all)
	if n == 0 {
		return
	}
	topics, events := make([]string, n), make([]string, n)
	var keys, metas, idempotencyKeys, subscriptions, verifiedSources []*string // nil when no publication has one
	var firsts []*bool
	for i, p := range all {
		topics[i], events[i] = p.Topic, string(p.Event)
		pg.SetArg(&keys, n, i, pg.OrNull(p.Key))
		pg.SetArg(&metas, n, i, pg.JSONArg(p.Meta))
		pg.SetArg(&idempotencyKeys, n, i, pg.OrNull(p.rememberedKey()))
		pg.SetArg(&subscriptions, n, i, pg.OrNull(p.Subscription))
		pg.SetArg(&verifiedSources, n, i, pg.OrNull(p.VerifiedSource))
		pg.SetArg(&firsts, n, i, pg.OrNull(p.OnDuplicate == queue.First))
	}
	sql := `select position, published_at, replayed, null, null from agent_service.append_log($1, $2::text[]::jsonb[], $3, $4::text[]::jsonb[], $5, $6, $7, $8, $9)`
	if isFollowed { // by somebody who gets JSON as it was stored
		sql = `
			select position, published_at, replayed, event, meta
			from (select $2::text[]::jsonb[] as events, $4::text[]::jsonb[] as metas offset 0) as n
			cross join lateral rows from (agent_service.append_log($1, n.events, $3, n.metas, $5, $6, $7, $8, $9), unnest(n.events, n.metas))
				as a (position, published_at, replayed, event, meta)`
	}
	i, e := 0, Event{} // of the row
	tx(sql, []any{topics, events, keys, metas, idempotencyKeys, subscriptions, keyRetention, firsts, verifiedSources}, func(r *pg.RowReader) {
		if i < n {
			p, in := all[i].result, all[i].Publication
			e = Event{Topic: in.Topic, Key: in.Key, Subscription: in.Subscription}
			err := r.Read(&p.Position, &p.PublishedAt, &p.Deduplicated, (*[]byte)(&e.Event), (*[]byte)(&e.Meta))
			if err != nil {
				all[i].op.Unreadable(err)
			} else if isFollowed && !p.Deduplicated && p.Position != 0 {
				e.Position, e.PublishedAt = p.Position, p.PublishedAt
				*appended = append(*appended, e)
			}
		}
		i++
	}, func() {
		for _, p := range all {
			if p.result.Position == 0 {
				p.op.Unanswered()
			}
		}
	})
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
	err := s.writes.Row(ctx, `select id, at, replayed, position, published_at from agent_service.publish_later($1, $2, $3, $4, $5, $6, $7, $8, $9)`, []any{
		p.Topic, string(p.Event), pg.OrNull(p.Key), pg.OrNull(string(p.Meta)), p.rememberedKey(), pg.OrNull(p.Subscription), wait, at, s.cfg.Queue.KeyRetention(),
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
	if s.isNoneDue { // unless there is a new one, which untilDue finds
		return nil
	}
	for {
		var published int
		if err := s.loops.QueryRow(ctx, `select agent_service.publish_due($1)`, duePublications).Scan(&published); err != nil {
			return wrap("publishing what is due", err)
		}
		if published > 0 {
			pg.Worked(ctx)
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
	err := s.loops.QueryRow(ctx, `select agent_service.next_publication()`).Scan(&next)
	s.isNoneDue = err == nil && (next == nil || *next > s.cfg.PollInterval)
	if err != nil || next == nil {
		return pg.Jittered(s.cfg.PollInterval)
	}
	return min(max(*next, 0), pg.Jittered(s.cfg.PollInterval))
}
