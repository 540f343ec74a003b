package queue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/queued/queued/internal/groupcommit"
	"github.com/queued/queued/internal/pg"
)

// A Publication is an event for the log: see package topic. All but Topic and Event may be zero.
type Publication struct {
	Topic          string
	Event          json.RawMessage
	Meta           json.RawMessage // a JSON object
	Key            string
	IdempotencyKey string
	KeyFor         time.Duration // how long the IdempotencyKey is remembered; zero: Config.KeyRetention
	KeyScope       string        // idempotency keys of different scopes never stand for the same publication; empty: none
	Subscription   string        // the only one that gets it
	VerifiedSource string        // the source that has verified who sent it, whose name Meta has as verified_source; empty: none has, and Meta must not say so
	OnDuplicate    OnDuplicate   // what becomes of another publication with the IdempotencyKey; empty: Match, with Meta compared, too
}

const (
	scopeSeparator = "\x1f" // as in SQL, where events with a scope are inserted
	maxKey         = 255    // characters of an idempotency key
)

// RememberedKey returns the idempotency key by which a publication is remembered, empty if it has none: that of no other scope is equal.
func (p *Publication) RememberedKey() string {
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

// Published is what became of a Publication.
type Published struct {
	Position     int64
	PublishedAt  time.Time
	Deduplicated bool // its idempotency key was known: this is what the first one became
}

// Publish appends all of publications to the log or, on any error, none; results are in their order. Publications share commits with inserts, acks and
// claims. It fails as Insert does.
func (s *Service) Publish(ctx context.Context, publications []Publication) ([]Published, error) {
	if len(publications) == 0 {
		return nil, nil
	}
	bytes := len(publications) * itemOverhead
	for i := range publications {
		bytes += len(publications[i].Event) + len(publications[i].Meta)
	}
	op := &operation{Ticket: groupcommit.NewTicket(len(publications), bytes), publications: publications}
	if err := s.write(ctx, op); err != nil {
		return nil, err
	}
	return op.published, nil
}

// An Appended is an event of the log, as readers of it get it.
type Appended struct {
	Position     int64
	PublishedAt  time.Time
	Topic        string
	Event        json.RawMessage
	Meta         json.RawMessage // nil: none
	Key          string          // empty: none
	Subscription string          // the only one that gets it; empty: all who read
}

// A LogFollower is told what commits of this service append to the log. Neither function may block.
type LogFollower struct {
	Wants    func() bool             // whether Appended is to get events, which costs the database something
	Appended func(events []Appended) // called after each commit that has appended; events are what it has appended, as far as that is known
}

// FollowLog has a follower told, in place of the one before.
func (s *Service) FollowLog(f LogFollower) { s.follower.Store(&f) }

// KeyRetention is how long the idempotency keys of events and publications are remembered.
func (s *Service) KeyRetention() time.Duration { return s.cfg.KeyRetention }

// addPublications appends the publications of all operations to the log. This has to come last: readers of the log wait from here on until the
// commit.
func (tx *transaction) addPublications(ops []*operation) {
	var all, kept []pendingPublication
	for _, op := range ops {
		if len(op.publications) > 0 {
			op.published = make([]Published, len(op.publications))
		}
		for i := range op.publications {
			p := pendingPublication{&op.publications[i], op, &op.published[i]}
			if p.IdempotencyKey != "" && p.KeyFor != 0 {
				kept = append(kept, p)
			} else {
				all = append(all, p)
			}
		}
	}
	tx.appendLog(all, tx.svc.cfg.KeyRetention)
	for len(kept) > 0 { // what has a retention of its own takes a statement for each
		keyFor := kept[0].KeyFor
		var same, others []pendingPublication
		for _, p := range kept {
			if p.KeyFor == keyFor {
				same = append(same, p)
			} else {
				others = append(others, p)
			}
		}
		tx.appendLog(same, keyFor)
		kept = others
	}
}

// pendingPublication is a publication on its way into the log.
type pendingPublication struct {
	*Publication
	op     *operation
	result *Published
}

// appendLog appends publications whose idempotency keys are remembered for the same time.
func (tx *transaction) appendLog(all []pendingPublication, keyRetention time.Duration) {
	n := len(all)
	if n == 0 {
		return
	}
	tx.publishes = true
	follower := tx.svc.follower.Load()
	isFollowed := follower != nil && follower.Wants()
	topics, events := make([]string, n), make([]string, n)
	var keys, metas, idempotencyKeys, subscriptions, verifiedSources []*string // nil when no publication has one
	var firsts []*bool
	for i, p := range all {
		topics[i], events[i] = p.Topic, string(p.Event)
		set(&keys, n, i, pg.OrNull(p.Key))
		set(&metas, n, i, jsonArg(p.Meta))
		set(&idempotencyKeys, n, i, pg.OrNull(p.RememberedKey()))
		set(&subscriptions, n, i, pg.OrNull(p.Subscription))
		set(&verifiedSources, n, i, pg.OrNull(p.VerifiedSource))
		set(&firsts, n, i, pg.OrNull(p.OnDuplicate == First))
	}
	sql := `select position, published_at, replayed, null, null from agent.append_log($1, $2::text[]::jsonb[], $3, $4::text[]::jsonb[], $5, $6, $7, $8, $9)`
	if isFollowed { // by somebody who gets JSON as it was stored
		sql = `
			select position, published_at, replayed, event, meta
			from (select $2::text[]::jsonb[] as events, $4::text[]::jsonb[] as metas offset 0) as n
			cross join lateral rows from (agent.append_log($1, n.events, $3, n.metas, $5, $6, $7, $8, $9), unnest(n.events, n.metas))
				as a (position, published_at, replayed, event, meta)`
	}
	i, e := 0, Appended{} // of the row
	tx.query(sql, []any{topics, events, keys, metas, idempotencyKeys, subscriptions, keyRetention, firsts, verifiedSources}, func(r *pg.RowReader) {
		if i < n {
			p, in := all[i].result, all[i].Publication
			e = Appended{Topic: in.Topic, Key: in.Key, Subscription: in.Subscription}
			err := r.Read(&p.Position, &p.PublishedAt, &p.Deduplicated, (*[]byte)(&e.Event), (*[]byte)(&e.Meta))
			if err != nil {
				all[i].op.unreadable(err)
			} else if isFollowed && !p.Deduplicated && p.Position != 0 {
				e.Position, e.PublishedAt = p.Position, p.PublishedAt
				tx.appended = append(tx.appended, e)
			}
		}
		i++
	}, func() {
		for _, p := range all {
			if p.result.Position == 0 {
				p.op.unreadable(errNoAnswer)
			}
		}
	})
}
