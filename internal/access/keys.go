package access

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// DefaultGrace is how long the text of a key is accepted after a rotation.
const DefaultGrace = 24 * time.Hour

const infoColumns = `id, name, scopes, queues, topics, rate_per_second, rate_burst, previous_until, expires_at, revoked_at, last_used_at, version, created_at, updated_at`

// info returns the fields of a key that may be shown.
func (r *row) info() Key {
	k := Key{
		ID: r.ID, Name: r.Name, Queues: r.Queues, Topics: r.Topics, Rate: r.rate(), PreviousUntil: r.PreviousUntil, ExpiresAt: r.ExpiresAt, RevokedAt: r.RevokedAt,
		LastUsedAt: r.LastUsedAt, Version: r.Version, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
	}
	for _, scope := range r.Scopes {
		k.Scopes = append(k.Scopes, Scope(scope))
	}
	return k
}

// one runs a function that changes a key and returns the fields of one key that may be shown.
func (s *Service) one(ctx context.Context, doing, from string, args ...any) (Key, error) {
	r, err := pg.WriteOne[row](ctx, &s.writes, `select `+infoColumns+` from `+from, args...)
	if err != nil {
		return Key{}, wrap(doing, err)
	}
	s.keys.RenewNow(ctx)
	return r.info(), nil
}

// Create creates a key and returns its text, which cannot be had again. It fails with an *InvalidError, and with ErrNotFirst.
func (s *Service) Create(ctx context.Context, p CreateParams) (key Key, text string, err error) {
	text = newKeyText("")
	hash := hashOf(text)
	var perSecond *float64
	var burst *int
	if p.Rate != nil {
		perSecond, burst = &p.Rate.PerSecond, &p.Rate.Burst
	}
	key, err = s.one(ctx, "creating a key", `agent_service.create_api_key($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		keyID(text), p.Name, texts(p.Scopes), hash[:], []byte(verifierOf(text)), p.Queues, p.Topics, p.ExpiresAt, perSecond, burst, p.IsFirst)
	if err != nil {
		return Key{}, "", err
	}
	return key, text, nil
}

func texts(scopes []Scope) []string {
	out := make([]string, len(scopes))
	for i, scope := range scopes {
		out[i] = string(scope)
	}
	return out
}

// Status returns "active", "revoked" or "expired", by the time of the database.
func (s *Service) Status(k *Key) string {
	switch {
	case k.RevokedAt != nil:
		return "revoked"
	case k.ExpiresAt != nil && !s.now().Before(*k.ExpiresAt):
		return "expired"
	}
	return "active"
}

// Get returns a key. It fails with ErrNotFound.
func (s *Service) Get(ctx context.Context, id string) (Key, error) {
	rows, _ := s.pool.Query(ctx, `select `+infoColumns+` from agent.list_api_keys(1, null, $1)`, id)
	found, err := pg.Collect[row](rows)
	switch {
	case err != nil:
		return Key{}, wrap("getting a key", err)
	case len(found) == 0:
		return Key{}, ErrNotFound
	}
	return found[0].info(), nil
}

// List returns a page of keys, by id; revoked ones for 90 days more. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) List(ctx context.Context, limit int, cursor string) (page Page, err error) {
	page.Keys, page.Next, err = pg.ReadPage("keys", cursor, limit, func(after pg.Cursor, n int) (keys []Key, err error) {
		err = pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, `select `+infoColumns+` from agent.list_api_keys($1, $2)`, n, after.Name)
			found, err := pg.Collect[row](rows)
			for i := range found {
				keys = append(keys, found[i].info())
			}
			return err
		})
		return keys, wrap("listing keys", err)
	}, func(k *Key) pg.Cursor { return pg.Cursor{Name: &k.ID} })
	return page, err
}

// Update changes a key if its version is one of ifVersions (nil: whatever it is). It fails with ErrNotFound, ErrStale, ErrInactive, ErrLastAdmin and an *InvalidError.
func (s *Service) Update(ctx context.Context, id string, c Change, ifVersions []int64) (Key, error) {
	changes := make(map[string]any)
	if c.Name != nil {
		changes["name"] = *c.Name
	}
	if c.Scopes != nil {
		changes["scopes"] = *c.Scopes
	}
	if c.Queues != nil {
		changes["queues"] = *c.Queues
	}
	if c.Topics != nil {
		changes["topics"] = *c.Topics
	}
	if c.ExpiresAt != nil {
		changes["expires_at"] = *c.ExpiresAt
	}
	if c.Rate != nil {
		changes["rate_per_second"], changes["rate_burst"] = nil, nil
		if r := *c.Rate; r != nil {
			changes["rate_per_second"], changes["rate_burst"] = r.PerSecond, r.Burst
		}
	}
	body, err := json.Marshal(changes)
	if err != nil { // a rate that is no number
		return Key{}, &InvalidError{Field: "rate_limit", Detail: "must be of finite numbers"}
	}
	return s.one(ctx, "changing a key", `agent.update_api_key($1, $2, $3)`, id, string(body), ifVersions)
}

// Rotate gives a key another text and returns that, which cannot be had again. The one before is accepted for grace more. It fails with ErrNotFound,
// ErrInactive and an *InvalidError.
func (s *Service) Rotate(ctx context.Context, id string, grace time.Duration) (key Key, text string, err error) {
	text = newKeyText(id)
	hash := hashOf(text)
	key, err = s.one(ctx, "rotating a key", `agent_service.rotate_api_key($1, $2, $3, $4)`, id, hash[:], []byte(verifierOf(text)), grace)
	if err != nil {
		return Key{}, "", err
	}
	return key, text, nil
}

// Revoke revokes a key for ever: at once in this process, within 5 s in all others. It may be repeated. It fails with ErrNotFound and ErrLastAdmin.
func (s *Service) Revoke(ctx context.Context, id string) error {
	if err := s.writes.Exec(ctx, `select agent.revoke_api_key($1)`, id); err != nil {
		return wrap("revoking a key", err)
	}
	s.keys.RenewNow(ctx)
	return nil
}
