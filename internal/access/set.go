package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
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
	grant := Grant{KeyID: r.ID, KeyName: r.Name, KeyVersion: r.Version, actor: "key:" + r.ID, scopes: scopes, counted: k.counted, logIns: logInLimiter(), ended: ended, svc: s}
	if before != nil {
		grant.logIns = before.current.logIns
	}
	grant.queues, grant.topics = normalize(r.Queues, r.Topics)
	if r.ExpiresAt != nil {
		grant.until = endAt(*r.ExpiresAt)
	}
	k.current = &grant
	if r.PreviousUntil != nil {
		previous := grant
		if previous.until.IsZero() || r.PreviousUntil.Before(previous.until) {
			previous.until = endAt(*r.PreviousUntil)
		}
		k.previous = &previous
	}
	return k
}

// endAt returns the time at which a grant ends: t, or the time after it if t is the zero time, with which a grant would never end.
func endAt(t time.Time) time.Time {
	if t.IsZero() {
		return t.Add(1)
	}
	return t
}

// isSame reports whether what r says of the key is what k has, but for when it was used.
func (k *cachedKey) isSame(r *row) bool {
	a, b := k.row, *r
	a.LastUsedAt, b.LastUsedAt = nil, nil
	return reflect.DeepEqual(&a, &b)
}

// verify returns the grant of the key for the text whose hash isOf knows. It fails with ErrUnauthorized, ErrRevoked or ErrExpired.
func (k *cachedKey) verify(isOf func(textHash []byte) bool, now time.Time) (*Grant, error) {
	switch {
	case isOf(k.Hash):
		return k.current, k.liveAt(k.current, now)
	case k.previous != nil && isOf(k.PreviousHash):
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
	byID    map[string]*cachedKey
	refused *recentHashes // of texts that were looked up since: they are those of no key
}

// maxRefused bounds the texts that a set remembers. It is for callers that go on with a wrong key, not for those who try many.
const maxRefused = 1024

// refusedFor is how long a text is remembered: keys may have been restored without another version.
const refusedFor = 3 * time.Second

// recentHashes remembers hashes for a time, as many as there may be.
type recentHashes struct {
	most  int
	lasts time.Duration

	mu sync.Mutex
	at map[[sha256.Size]byte]time.Time // when each was added last
}

func newRecentHashes(most int, lasts time.Duration) *recentHashes {
	return &recentHashes{most: most, lasts: lasts, at: make(map[[sha256.Size]byte]time.Time)}
}

// has reports whether a hash was added lately.
func (r *recentHashes) has(hash *[sha256.Size]byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, isKnown := r.at[*hash]
	if isKnown && time.Since(at) >= r.lasts {
		delete(r.at, *hash)
		isKnown = false
	}
	return isKnown
}

// add remembers a hash, unless there are too many.
func (r *recentHashes) add(hash *[sha256.Size]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.at) >= r.most {
		maps.DeleteFunc(r.at, func(_ [sha256.Size]byte, at time.Time) bool { return time.Since(at) >= r.lasts })
	}
	if _, isKnown := r.at[*hash]; isKnown || len(r.at) < r.most {
		r.at[*hash] = time.Now()
	}
}

func (r *recentHashes) remove(hash *[sha256.Size]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.at, *hash)
}

// now returns the time of the database, about.
func (s *Service) now() time.Time { return s.cfg.Database.Now() }

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
	g, err := s.verify(ctx, id, &hash, func(textHash []byte) bool { return subtle.ConstantTimeCompare(hash[:], textHash) == 1 })
	if errors.Is(err, ErrUnauthorized) {
		return s.withoutKey(err)
	}
	return g, err
}

// verify returns the grant of the key with this id for the text whose hash isOf knows, and looks the key up if that is needed. No text under which a wrong one
// is remembered is looked up again soon. It fails as Authenticate does.
func (s *Service) verify(ctx context.Context, id string, remembered *[sha256.Size]byte, isOf func(textHash []byte) bool) (*Grant, error) {
	keys := s.keys.Load()
	g, err := keys.verify(id, isOf, s.now())
	if errors.Is(err, ErrUnauthorized) && !keys.refused.has(remembered) {
		g, err = s.lookUp(ctx, id, remembered, isOf) // it is new, or was rotated just now, or it is wrong
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

// verify returns the grant of the key with this id, see cachedKey. It fails with ErrUnauthorized, ErrRevoked or ErrExpired.
func (k *set) verify(id string, isOf func(textHash []byte) bool, now time.Time) (*Grant, error) {
	if known := k.byID[id]; known != nil {
		return known.verify(isOf, now)
	}
	return nil, ErrUnauthorized
}

// lookUp is verify for a text that the set does not know.
func (s *Service) lookUp(ctx context.Context, id string, remembered *[sha256.Size]byte, isOf func(textHash []byte) bool) (*Grant, error) {
	if err := s.keys.LookUp(ctx, id); err != nil {
		if errors.Is(err, pg.ErrLookUps) {
			return nil, ErrLookUps
		}
		return nil, fmt.Errorf("%w: %w", pg.ErrUnavailable, err) // whatever failed, the caller may have a key
	}
	keys := s.keys.Load() // which has the key, if there is one
	g, err := keys.verify(id, isOf, s.now())
	if errors.Is(err, ErrUnauthorized) {
		keys.refused.add(remembered)
	}
	return g, err
}

// hasOthers reports whether the database has one of these keys that is not in memory, or was changed since.
func (s *Service) hasOthers(ctx context.Context, current *set, ids []string) (bool, error) {
	rows, _ := s.lookUpPool.Query(ctx, `select `+columns+` from unnest($1::text[]) as asked (key) cross join lateral agent_service.read_api_keys(asked.key)`, ids)
	found, err := pg.Collect[row](rows)
	for i := range found {
		if known := current.byID[found[i].ID]; known == nil || !known.isSame(&found[i]) {
			return true, err
		}
	}
	return false, err
}

// columns are those of a row.
const columns = `id, name, scopes, queues, topics, rate_per_second, rate_burst, hash, verifier, previous_hash, previous_verifier, previous_until, expires_at, revoked_at,
	last_used_at, version, created_at, updated_at`

// read returns the keys as the database has them now. before are those of the latest time, nil at first.
func (s *Service) read(ctx context.Context, before *set) (*set, error) {
	var isRequired bool
	if err := s.lookUpPool.QueryRow(ctx, `select agent_service.is_key_required()`).Scan(&isRequired); err != nil {
		return nil, err
	}
	rows, _ := s.lookUpPool.Query(ctx, `select `+columns+` from agent_service.read_api_keys()`)
	found, err := pg.Collect[row](rows)
	if err != nil {
		return nil, err
	}
	after := &set{byID: make(map[string]*cachedKey, len(found)), refused: newRecentHashes(maxRefused, refusedFor)}
	for _, r := range found {
		var known *cachedKey
		if before != nil {
			known = before.byID[r.ID]
		}
		if known != nil && known.isSame(&r) {
			after.byID[r.ID] = known
			continue
		}
		after.byID[r.ID] = s.cache(r, known)
	}
	if isRequired || len(found) > 0 { // keys that were restored without their triggers count, too
		s.require()
	}
	return after, nil
}

// endReplaced ends the grants of keys that are not in the set any more as they were.
func (*Service) endReplaced(before, after *set) {
	if before == nil {
		return
	}
	for id, known := range before.byID {
		switch now := after.byID[id]; {
		case now == known:
		case now == nil || now.RevokedAt != nil:
			known.end(ErrRevoked)
		default:
			known.end(ErrChanged)
		}
	}
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

// An Expiration is when a live key expires.
type Expiration struct {
	ID, Name string
	At       time.Time
}

// Expirations returns up to limit live keys that expire, the next first.
func (s *Service) Expirations(limit int) []Expiration {
	now := s.now()
	var all []Expiration
	for id, k := range s.keys.Load().byID {
		if k.ExpiresAt != nil && k.liveAt(k.current, now) == nil {
			all = append(all, Expiration{id, k.Name, *k.ExpiresAt})
		}
	}
	slices.SortFunc(all, func(a, b Expiration) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	return all[:min(limit, len(all))]
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
