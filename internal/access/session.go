package access

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/queued/queued/internal/pg"
)

// The token of a session is qs_<secret><sum>: qs_[a-z2-7]{39}. The sum is as that of a key.
const (
	tokenSecretLength  = 32 // 160 bits
	sessionPrefix      = "qs_"
	sessionTokenLength = len(sessionPrefix) + tokenSecretLength + sumLength
)

// Bounds of sessions.
const (
	logInsPerMinute   = 20 // of a key in a process; as many at once
	lookUpsPerSecond  = 50 // of tokens that this process has not seen lately
	lookUpsBurst      = 100
	maxKnownSessions  = 10_000    // that are looked up however many unknown ones are
	knownSessionFor   = time.Hour // since it was last used
	sessionStatements = 2         // that look sessions up at a time
)

func logInLimiter() *rate.Limiter {
	return rate.NewLimiter(rate.Limit(logInsPerMinute)/60, logInsPerMinute)
}

// sessions are the sessions that this process has to do with. No session is let in without the database: one that has ended in another process has ended here.
type sessions struct {
	lookUps pg.LookUps[[sha256.Size]byte, map[[sha256.Size]byte]*sessionRow]
	limiter *rate.Limiter // of the look-ups of unknown tokens
	known   *recentHashes // of tokens that were good
	refused *recentHashes // of tokens that were not

	mu      sync.Mutex // guards the field below
	watched map[[sha256.Size]byte]map[*context.CancelCauseFunc]struct{}
}

// A sessionRow is a session as the database has it.
type sessionRow struct {
	TokenHash []byte
	Proof     []byte
	KeyID     string
	ExpiresAt time.Time
}

func (a *sessions) prepare(s *Service) {
	a.limiter = rate.NewLimiter(lookUpsPerSecond, lookUpsBurst)
	a.known, a.refused = newRecentHashes(maxKnownSessions, knownSessionFor), newRecentHashes(maxRefused, refusedFor)
	a.lookUps.Find, a.lookUps.Most, a.lookUps.Timeout = s.readSessions, sessionStatements, s.cfg.QueryTimeout
	a.watched = make(map[[sha256.Size]byte]map[*context.CancelCauseFunc]struct{})
}

// CreateSession begins a session of the key whose text this is, and returns its token, which cannot be had again, and when it expires. It fails as Authenticate does,
// with ErrRateLimited, and with ErrUnavailable. The token is empty where callers need no key, and therefore no session.
func (s *Service) CreateSession(ctx context.Context, keyText string) (token string, until time.Time, err error) {
	g, err := s.Authenticate(ctx, keyText)
	if err != nil || g.IsOpen {
		return "", time.Time{}, err
	}
	if _, ok := g.Take(); !ok || !g.logIns.Allow() {
		return "", time.Time{}, ErrRateLimited
	}
	token = withSum(sessionPrefix + randomText(tokenSecretLength))
	hash, textHash := hashOf(token), hashOf(keyText)
	if err := s.writes.Row(ctx, `select agent_service.create_session($1, $2, $3)`, []any{hash[:], proofOf(token, textHash[:]), g.KeyID}, &until); err != nil {
		if err = wrap("creating a session", err); errors.Is(err, ErrInactive) { // it was revoked, or has expired, just now
			err = ErrRevoked
		}
		return "", time.Time{}, err
	}
	s.sessions.known.add(&hash)
	return token, until.UTC(), nil
}

// AuthenticateSession returns the rights of the bearer of the token of a session: those that its key has now. It fails with ErrUnauthorized for a session that
// has ended or expired, or was begun with another text than the key has now; with ErrExpired or ErrRevoked as its key would; and with ErrUnavailable when the
// database cannot be asked. It never fails where callers need no key.
func (s *Service) AuthenticateSession(ctx context.Context, token string) (*Grant, error) {
	g, err := s.authenticateSession(ctx, token)
	if err != nil { // judged after the look-up, by which this process may have learned of the first key
		return s.withoutKey(err)
	}
	return g, nil
}

func (s *Service) authenticateSession(ctx context.Context, token string) (*Grant, error) {
	if !isSessionToken(token) {
		return nil, ErrUnauthorized
	}
	hash := hashOf(token)
	if s.sessions.refused.has(&hash) {
		return nil, ErrUnauthorized
	}
	if !s.sessions.mayLookUp(&hash) {
		return nil, ErrLookUps
	}
	found, err := s.sessions.lookUps.Get(ctx, hash)
	if err != nil {
		return nil, fmt.Errorf("%w: looking up a session: %w", pg.ErrUnavailable, err) // whatever failed, there may be a session
	}
	of, err := s.verifySession(ctx, &hash, token, found[hash])
	if err != nil {
		if errors.Is(err, ErrUnauthorized) {
			s.sessions.refuse(&hash)
		}
		return nil, err
	}
	s.sessions.known.add(&hash)
	g := *of
	g.session, g.ofKey = &hash, of
	if until := found[hash].ExpiresAt; g.until.IsZero() || until.Before(g.until) {
		g.until = endAt(until)
	}
	if g.ended == nil {
		g.ended = s.neverDone
	}
	return &g, nil
}

// EndSession ends the session with this token: at once in all processes, its open streams within 5 s. It may be repeated, and ends nothing where there is no such
// session. It fails with ErrUnavailable, and the session may go on then.
func (s *Service) EndSession(ctx context.Context, token string) error {
	if !isSessionToken(token) {
		return nil
	}
	hash := hashOf(token)
	if !s.sessions.mayLookUp(&hash) { // a session that is refused here may be good where QUEUED_API_KEY is another one
		return ErrLookUps
	}
	if err := s.writes.Exec(ctx, `select agent_service.end_session($1)`, hash[:]); err != nil {
		return wrap("ending a session", err)
	}
	s.sessions.refuse(&hash)
	s.sessions.end(hash)
	return nil
}

// EndSessions ends all sessions of the key of this id, empty for the key of the configuration, and returns how many: at once in all processes, their open
// streams within 5 s. Revoking a key ends them, too. It fails with ErrUnavailable.
func (s *Service) EndSessions(ctx context.Context, keyID string) (n int64, err error) {
	if err := s.writes.Row(ctx, `select agent_service.end_sessions($1)`, []any{keyID}, &n); err != nil {
		return 0, wrap("ending the sessions of a key", err)
	}
	return n, nil
}

func isSessionToken(token string) bool {
	return len(token) == sessionTokenLength && strings.HasPrefix(token, sessionPrefix) && hasSum(token)
}

// proofOf ties a session to the text of a key. Who has no token learns nothing of the text from it.
func proofOf(token string, textHash []byte) []byte {
	mac := hmac.New(sha256.New, []byte(token))
	_, _ = mac.Write(textHash)
	return mac.Sum(nil)
}

// verifySession returns the grant of the key of a session, nil if there is none. It fails as AuthenticateSession does.
func (s *Service) verifySession(ctx context.Context, hash *[sha256.Size]byte, token string, r *sessionRow) (*Grant, error) {
	if r == nil {
		return nil, ErrUnauthorized
	}
	isOf := func(textHash []byte) bool { return hmac.Equal(proofOf(token, textHash), r.Proof) }
	switch {
	case r.KeyID != "":
		return s.verify(ctx, r.KeyID, hash, isOf)
	case s.configured != nil && isOf(s.configuredHash[:]):
		return s.configured, nil
	}
	return nil, ErrUnauthorized
}

// readSessions returns those of the sessions with these hashes of tokens that have neither ended nor expired.
func (s *Service) readSessions(ctx context.Context, hashes [][sha256.Size]byte) (map[[sha256.Size]byte]*sessionRow, error) {
	asked := make([][]byte, len(hashes))
	for i := range hashes {
		asked[i] = hashes[i][:]
	}
	rows, _ := s.lookUpPool.Query(ctx, `select token_hash, proof, key_id, expires_at from agent_service.read_sessions($1)`, asked)
	all, err := pg.Collect[sessionRow](rows)
	if err != nil {
		return nil, err
	}
	found := make(map[[sha256.Size]byte]*sessionRow, len(all))
	for i := range all {
		found[[sha256.Size]byte(all[i].TokenHash)] = &all[i]
	}
	return found, nil
}

// mayLookUp reports whether the database may be asked for a token.
func (a *sessions) mayLookUp(hash *[sha256.Size]byte) bool {
	return a.known.has(hash) || a.limiter.Allow()
}

// refuse notes that a token is not good.
func (a *sessions) refuse(hash *[sha256.Size]byte) {
	a.known.remove(hash)
	a.refused.add(hash)
}

// watch has cancel called when this process knows that a session has ended, until leave is called.
func (a *sessions) watch(hash [sha256.Size]byte, cancel context.CancelCauseFunc) (leave func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.watched[hash] == nil {
		a.watched[hash] = make(map[*context.CancelCauseFunc]struct{})
	}
	a.watched[hash][&cancel] = struct{}{}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.watched[hash], &cancel)
		if len(a.watched[hash]) == 0 {
			delete(a.watched, hash)
		}
	}
}

// end ends what watches a session.
func (a *sessions) end(hash [sha256.Size]byte) {
	a.mu.Lock()
	watching := slices.Collect(maps.Keys(a.watched[hash]))
	a.mu.Unlock()
	for _, cancel := range watching {
		(*cancel)(ErrUnauthorized)
	}
}

// checkWatched ends what watches sessions that have ended, in this process or another one. It is one statement for all, and none while nothing is watched.
func (s *Service) checkWatched(ctx context.Context) error {
	s.sessions.mu.Lock()
	watched := slices.Collect(maps.Keys(s.sessions.watched))
	s.sessions.mu.Unlock()
	if len(watched) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	live, err := s.readSessions(ctx, watched)
	if err != nil {
		return wrap("looking whether sessions have ended", err)
	}
	for _, hash := range watched {
		if live[hash] == nil {
			s.sessions.refuse(&hash)
			s.sessions.end(hash)
		}
	}
	return nil
}
