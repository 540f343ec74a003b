package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/queued/queued/internal/pg"
)

// A row is a key as the database has it.
type row struct {
	ID               string
	Name             string
	Scopes           []string
	Queues           []string
	Topics           []string
	RatePerSecond    *float64
	RateBurst        *int32
	Hash             []byte
	Verifier         []byte
	PreviousHash     []byte
	PreviousVerifier []byte
	PreviousUntil    *time.Time
	ExpiresAt        *time.Time
	RevokedAt        *time.Time
	LastUsedAt       *time.Time
	Version          int64
	CreatedAt        time.Time
	UpdatedAt        time.Time
}

// rate returns the limit of the key, nil when there is none.
func (r *row) rate() *Rate {
	if r.RatePerSecond == nil || r.RateBurst == nil {
		return nil
	}
	return &Rate{PerSecond: *r.RatePerSecond, Burst: int(*r.RateBurst)}
}

// A cachedKey is a key in memory. It is immutable; a change makes another one in its place.
type cachedKey struct {
	row
	counted  *usage
	current  *Grant
	previous *Grant // of the text before the latest rotation; nil: it was never rotated
	end      context.CancelCauseFunc
}

// cache returns the key of a row in memory. before is the same key as it was, or nil.
func (s *Service) cache(r row, before *cachedKey) *cachedKey {
	k := &cachedKey{row: r}
	if before != nil {
		k.counted = before.counted.with(r.rate())
	} else {
		k.counted = newUsage(r.rate(), r.LastUsedAt)
	}
	ended, end := context.WithCancelCause(context.Background())
	k.end = end
	scopes := make([]Scope, len(r.Scopes))
	for i, scope := range r.Scopes {
		scopes[i] = Scope(scope)
	}
	grant := Grant{KeyID: r.ID, actor: "key:" + r.ID, scopes: scopes, counted: k.counted, ended: ended, svc: s}
	grant.queues, grant.topics = normalize(r.Queues, r.Topics)
	if r.ExpiresAt != nil {
		grant.until = *r.ExpiresAt
	}
	k.current = &grant
	if r.PreviousUntil != nil {
		previous := grant
		if previous.until.IsZero() || r.PreviousUntil.Before(previous.until) {
			previous.until = *r.PreviousUntil
		}
		k.previous = &previous
	}
	return k
}

// isSame reports whether what r says of the key is what k has, but for when it was used.
func (k *cachedKey) isSame(r *row) bool {
	a, b := k.row, *r
	a.LastUsedAt, b.LastUsedAt = nil, nil
	return reflect.DeepEqual(&a, &b)
}

// verify returns the grant of the key for a text that has its id. It fails with ErrUnauthorized, ErrRevoked or ErrExpired.
func (k *cachedKey) verify(hash *[sha256.Size]byte, now time.Time) (*Grant, error) {
	switch {
	case subtle.ConstantTimeCompare(hash[:], k.Hash) == 1:
		return k.current, k.liveAt(k.current, now)
	case k.previous != nil && subtle.ConstantTimeCompare(hash[:], k.PreviousHash) == 1:
		return k.previous, k.liveAt(k.previous, now)
	}
	return nil, ErrUnauthorized
}

// liveAt returns why a grant of the key is worth nothing any more, or nil.
func (k *cachedKey) liveAt(g *Grant, now time.Time) error {
	switch {
	case k.RevokedAt != nil:
		return ErrRevoked
	case !g.until.IsZero() && !now.Before(g.until):
		return ErrExpired
	}
	return nil
}

// A set is all keys as the database had them at one time. It is immutable but for the texts that it remembers.
type set struct {
	version    string
	isRequired bool
	byID       map[string]*cachedKey
	refused    map[[sha256.Size]byte]bool // texts that were looked up since, and are those of no key
}

// maxRefused bounds the texts that a set remembers. It is for callers that go on with a wrong key, not for those who try many.
const maxRefused = 1024

// now returns the time of the database, about.
func (s *Service) now() time.Time { return time.Now().Add(time.Duration(s.clock.Load())) }

// Authenticate returns what a caller may do who has sent this text, or none, which is empty. It fails with ErrUnauthorized, ErrExpired or ErrRevoked, and with
// ErrUnavailable when a text that may be that of a new key cannot be looked up. Known keys need no database.
func (s *Service) Authenticate(ctx context.Context, text string) (*Grant, error) {
	if text == "" {
		if s.IsRequired() {
			return nil, ErrUnauthorized
		}
		return s.open, nil
	}
	hash := hashOf(text)
	if s.configured != nil && subtle.ConstantTimeCompare(hash[:], s.configuredHash[:]) == 1 {
		return s.configured, nil
	}
	id := keyID(text)
	if id == "" {
		return s.withoutKey(ErrUnauthorized)
	}
	keys := s.keys.Load()
	if k := keys.byID[id]; k != nil {
		if g, err := k.verify(&hash, s.now()); !errors.Is(err, ErrUnauthorized) {
			return s.refused(g, err)
		}
	}
	s.mu.Lock()
	isRefused := s.keys.Load().refused[hash]
	s.mu.Unlock()
	if isRefused {
		return s.withoutKey(ErrUnauthorized)
	}
	g, err := s.lookUp(ctx, id, &hash) // it is new, or was rotated just now, or it is wrong
	if errors.Is(err, ErrUnauthorized) {
		return s.withoutKey(err)
	}
	return s.refused(g, err)
}

// withoutKey returns the grant of callers that have no key, where that is enough: what they send besides does not matter then.
func (s *Service) withoutKey(err error) (*Grant, error) {
	if !s.IsRequired() {
		return s.open, nil
	}
	return nil, err
}

// refused notes that a key was refused.
func (s *Service) refused(g *Grant, err error) (*Grant, error) {
	if err == nil {
		return g, nil
	}
	if g != nil {
		s.Refuse(g, reasonOf(err))
	}
	return nil, err
}

func reasonOf(err error) string {
	switch {
	case errors.Is(err, ErrRevoked):
		return "revoked"
	case errors.Is(err, ErrExpired):
		return "expired"
	}
	return "unauthorized"
}

// A lookedUp is what a look-up has found: the row of the key, or nothing. began is the set from before it.
type lookedUp struct {
	began *set
	found []row
}

// errSuperseded is the result of a look-up that may be older than the set is by now.
var errSuperseded = errors.New("the keys were read anew")

// lookUp is Authenticate for a text that the set does not know. Calls for the same id share a look-up.
func (s *Service) lookUp(ctx context.Context, id string, hash *[sha256.Size]byte) (*Grant, error) {
	if !s.lookUps.Allow() {
		return nil, ErrLookUps
	}
	for {
		result := s.asked.DoChan(id, func() (any, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.QueryTimeout)
			defer cancel()
			began := s.keys.Load()
			rows, _ := s.pool.Query(ctx, `select `+columns+` from agent_service.read_api_keys($1)`, id)
			found, err := pg.Collect[row](rows)
			if err != nil {
				return nil, wrap("looking up a key", err)
			}
			return lookedUp{began, found}, nil
		})
		select {
		case r := <-result:
			switch {
			case errors.Is(r.Err, pg.ErrUnavailable):
				return nil, r.Err
			case r.Err != nil:
				return nil, fmt.Errorf("%w: %w", pg.ErrUnavailable, r.Err)
			}
			if g, err := s.adopt(r.Val.(lookedUp), id, hash); !errors.Is(err, errSuperseded) {
				return g, err
			}
		case <-ctx.Done():
			return nil, wrap("looking up a key", ctx.Err())
		}
	}
}

// adopt takes the result of a look-up into the set, and verifies a text. It fails with errSuperseded when it has found a key and the set was read anew since
// the look-up began: the key may have been deleted meanwhile, and a grant of a key that is not in the set would never end.
func (s *Service) adopt(l lookedUp, id string, hash *[sha256.Size]byte) (*Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, keys := s.now(), s.keys.Load()
	known := keys.byID[id]
	if known != nil {
		if g, err := known.verify(hash, now); !errors.Is(err, ErrUnauthorized) {
			return g, err
		}
	}
	isCurrent := keys.version == l.began.version
	if len(l.found) == 0 || known != nil && l.found[0].Version <= known.Version {
		if len(keys.refused) < maxRefused && isCurrent {
			keys.refused[*hash] = true
		}
		return nil, ErrUnauthorized
	}
	if !isCurrent {
		return nil, errSuperseded
	}
	k := s.cache(l.found[0], known)
	byID := make(map[string]*cachedKey, len(keys.byID)+1)
	for other, key := range keys.byID {
		byID[other] = key
	}
	byID[id] = k
	if known != nil {
		known.end(ErrChanged)
	}
	s.keys.Store(&set{version: keys.version, isRequired: true, byID: byID, refused: keys.refused})
	return k.verify(hash, now)
}

// columns are those of a row.
const columns = `id, name, scopes, queues, topics, rate_per_second, rate_burst, hash, verifier, previous_hash, previous_verifier, previous_until, expires_at, revoked_at,
	last_used_at, version, created_at, updated_at`

// renew reads the keys from the database, if they have changed since.
func (s *Service) renew(ctx context.Context) error {
	s.renewing.Lock()
	defer s.renewing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	var (
		version    string
		isRequired bool
		at         time.Time
	)
	asked := time.Now()
	if err := s.pool.QueryRow(ctx, `select version::text, is_required, at from agent_service.get_access()`).Scan(&version, &isRequired, &at); err != nil {
		return wrap("reading the version of the keys", err)
	}
	s.clock.Store(int64(at.Sub(asked.Add(time.Since(asked) / 2))))
	before := s.keys.Load()
	if before != nil && before.version == version {
		s.forgetRefused(before)
		return nil
	}
	// The keys are at least as new as the version; what changes now is read the next time.
	rows, _ := s.pool.Query(ctx, `select `+columns+` from agent_service.read_api_keys()`)
	found, err := pg.Collect[row](rows)
	if err != nil {
		return wrap("reading the keys", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.keys.Load() // look-ups may have added to it
	next := &set{version: version, isRequired: isRequired, byID: make(map[string]*cachedKey, len(found)), refused: make(map[[sha256.Size]byte]bool)}
	for _, r := range found {
		var known *cachedKey
		if before != nil {
			known = before.byID[r.ID]
		}
		if known != nil && known.isSame(&r) {
			next.byID[r.ID] = known
			continue
		}
		next.byID[r.ID] = s.cache(r, known)
	}
	s.keys.Store(next)
	if before != nil {
		for id, known := range before.byID {
			switch now := next.byID[id]; {
			case now == known:
			case now == nil || now.RevokedAt != nil:
				known.end(ErrRevoked)
			default:
				known.end(ErrChanged)
			}
		}
	}
	if isRequired || len(found) > 0 { // keys that were restored without their triggers count, too
		s.require()
	}
	return nil
}

// forgetRefused has texts looked up again that were refused: the set may have been restored from an older state without another version.
func (s *Service) forgetRefused(keys *set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(keys.refused)
}

// require has callers need a key from now on, for as long as the service lives.
func (s *Service) require() {
	if !s.isRequired.Swap(true) {
		s.endOpen(ErrUnauthorized)
	}
}

// IsRequired reports whether callers need a key: there is one in the configuration, or there has been one in the database.
func (s *Service) IsRequired() bool { return s.isRequired.Load() }

// HasLiveAdmin reports whether there is an admin key that is worth something.
func (s *Service) HasLiveAdmin() bool {
	if s.configured != nil {
		return true
	}
	now := s.now()
	for _, k := range s.keys.Load().byID {
		if k.current.Has(Admin) && k.liveAt(k.current, now) == nil {
			return true
		}
	}
	return false
}

// Count returns how many keys are live.
func (s *Service) Count() (n int) {
	now := s.now()
	for _, k := range s.keys.Load().byID {
		if k.liveAt(k.current, now) == nil {
			n++
		}
	}
	return n
}
