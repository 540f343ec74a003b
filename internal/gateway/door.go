package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/http/pages"
)

const (
	// sessionTime is how long home's word on a session counts for what is no request of its own, and no longer than until home's keys change: a session that has ended ends here
	// within two of these.
	sessionTime = time.Second
	// sessionLast is how long what goes on in a session goes on while home does not answer.
	sessionLast = 10 * time.Second
	// maxSessions bounds the sessions that are remembered.
	maxSessions = 10_000
)

// A door lets viewers of pages in whom home lets in.
type door struct {
	g *Gateway

	mu    sync.Mutex
	known map[[sha256.Size]byte]*sessionLook // by the hash of the token
}

func newDoor(g *Gateway) *door { return &door{g: g, known: make(map[[sha256.Size]byte]*sessionLook)} }

// A session is what home says of one.
type session struct {
	Result     string   `json:"result"`
	KeyID      string   `json:"key_id"`
	Name       string   `json:"name"`
	Scopes     []string `json:"scopes"`
	Version    int64    `json:"version"`
	RetryAfter int      `json:"retry_after"` // seconds
}

// A sessionLook is a look at a session. It is under way until done is closed.
type sessionLook struct {
	done  chan struct{}
	at    time.Time // when it began
	keys  mark      // of home, as the gateway knew of it then
	found session
	err   error
}

// refusal returns why a session, or a log-in, is refused, as pages know it; nil: it is not.
func refusal(result string, retryAfter int) error {
	switch result {
	case "accepted", "open":
		return nil
	case "expired":
		return pages.ErrExpired
	case "revoked":
		return pages.ErrRevoked
	case "rate_limited":
		return &pages.RateLimitedError{Retry: time.Duration(retryAfter) * time.Second}
	}
	return pages.ErrUnauthorized
}

// Admit implements pages.Door. Each request is counted at home.
func (d *door) Admit(r *http.Request, token string) (pages.Viewer, error) {
	look := &sessionLook{done: make(chan struct{}), at: time.Now(), keys: d.g.keysMark()}
	close(look.done)
	look.found, look.err = d.ask(r.Context(), token, true)
	if look.err != nil {
		return nil, look.err
	}
	err := refusal(look.found.Result, look.found.RetryAfter)
	if errors.As(err, new(*pages.RateLimitedError)) {
		return nil, err
	}
	d.keep(sha256.Sum256([]byte(token)), look)
	if err != nil {
		return nil, err
	}
	return &viewer{d, token, look.found}, nil
}

// Look implements pages.Door.
func (d *door) Look(ctx context.Context, token string) (pages.Viewer, error) {
	found, err := d.look(ctx, token)
	if err == nil {
		err = refusal(found.Result, found.RetryAfter)
	}
	if err != nil {
		return nil, err
	}
	return &viewer{d, token, found}, nil
}

// LogIn implements pages.Door.
func (d *door) LogIn(ctx context.Context, key string) (token string, until time.Time, err error) {
	body, err := json.Marshal(map[string]string{"key": key})
	if err != nil {
		return "", time.Time{}, err
	}
	var begun struct {
		Result     string    `json:"result"`
		Token      string    `json:"token"`
		ExpiresAt  time.Time `json:"expires_at"`
		RetryAfter int       `json:"retry_after"`
	}
	if err := d.call(ctx, http.MethodPost, "/cell/sessions", "", body, &begun); err != nil {
		return "", time.Time{}, err
	}
	return begun.Token, begun.ExpiresAt, refusal(begun.Result, begun.RetryAfter)
}

// LogOut implements pages.Door.
func (d *door) LogOut(ctx context.Context, token string) error {
	if err := d.call(ctx, http.MethodDelete, "/cell/session", token, nil, nil); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, sha256.Sum256([]byte(token)))
	return nil
}

// look returns what home says of a session, from memory if that is young enough. Those who ask for the same meanwhile wait for one answer.
func (d *door) look(ctx context.Context, token string) (session, error) {
	hash := sha256.Sum256([]byte(token))
	d.mu.Lock()
	look := d.known[hash]
	d.mu.Unlock()
	if !d.isFresh(look) {
		look = d.begin(ctx, hash, token)
	}
	select {
	case <-look.done:
		return look.found, look.err
	case <-ctx.Done():
		return session{}, context.Cause(ctx)
	}
}

// isFresh reports whether a look at a session still counts; nil: there was none.
func (d *door) isFresh(look *sessionLook) bool {
	return look != nil && time.Since(look.at) < sessionTime && look.keys == d.g.keysMark()
}

// begin has home asked about a session, unless it is asked already.
func (d *door) begin(ctx context.Context, hash [sha256.Size]byte, token string) *sessionLook {
	d.mu.Lock()
	defer d.mu.Unlock()
	if look := d.known[hash]; d.isFresh(look) {
		return look
	}
	look := &sessionLook{done: make(chan struct{}), at: time.Now(), keys: d.g.keysMark()}
	d.put(hash, look)
	go func() { // others may wait for it, too; call bounds its time
		defer close(look.done)
		look.found, look.err = d.ask(context.WithoutCancel(ctx), token, false)
		if look.err != nil {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.known[hash] == look { // the next one asks again
				delete(d.known, hash)
			}
		}
	}()
	return look
}

// keep remembers a look that has ended.
func (d *door) keep(hash [sha256.Size]byte, look *sessionLook) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.put(hash, look)
}

// put remembers a look. The caller holds mu.
func (d *door) put(hash [sha256.Size]byte, look *sessionLook) {
	if len(d.known) >= maxSessions {
		maps.DeleteFunc(d.known, func(_ [sha256.Size]byte, known *sessionLook) bool { return time.Since(known.at) >= sessionTime })
	}
	if len(d.known) >= maxSessions {
		clear(d.known)
	}
	d.known[hash] = look
}

// ask asks home about a session. counts says that it is for a request of its own.
func (d *door) ask(ctx context.Context, token string, counts bool) (found session, err error) {
	path := "/cell/session"
	if counts {
		path += "?counts=true"
	}
	err = d.call(ctx, http.MethodGet, path, token, nil, &found)
	return found, err
}

// errHomeAway is the problem of a viewer while home cannot say who it is.
var errHomeAway = &client.Error{
	Status: http.StatusServiceUnavailable, Title: "Cell unavailable", RetryAfter: time.Second,
	Detail: "Home, cell 0, which knows keys and log-ins, does not answer. Nothing was done. Try again in some seconds; a log-in goes on.",
}

// call makes a call of home about sessions. It fails with errHomeAway, or with the overload of home.
func (d *door) call(ctx context.Context, method, path, token string, body []byte, out any) error {
	at := d.g.home()
	if !at.isUp() || !at.calls.enter() {
		return errHomeAway
	}
	defer at.calls.leave()
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	header := at.ownHeader()
	header["X-Request-Id"] = []string{callOf(ctx).id}
	if body != nil {
		header["Content-Type"] = []string{"application/json"}
	}
	if len(token) <= maxToken && token != "" {
		header["Queued-Session"] = []string{token}
	}
	err := at.do(ctx, method, path, header, bytes.NewReader(body), out)
	if err == nil {
		return nil
	}
	if refused, ok := errors.AsType[*answered](err); ok && refused.code() == overloaded.code {
		return pages.ErrLookUps
	}
	if !errors.Is(err, context.Canceled) {
		at.log.Error().Func(failure.Of(err)).Msg("home could not be asked about the log-in of a page")
	}
	return errHomeAway
}

// maxToken is the length of the longest token that home takes, in bytes. No session has a longer one.
const maxToken = 255

// code returns the code of the problem that the cell has answered with; empty: it is none.
func (a *answered) code() string {
	var doc document
	_ = json.Unmarshal(a.body, &doc) // what is no problem has no code
	return doc.Code
}

// A viewer is who looks at pages, as home has said.
type viewer struct {
	door  *door
	token string
	session
}

// KeyID implements pages.Viewer.
func (v *viewer) KeyID() string { return v.session.KeyID }

// KeyName implements pages.Viewer.
func (v *viewer) KeyName() string { return v.Name }

// IsOpen implements pages.Viewer.
func (v *viewer) IsOpen() bool { return v.Result == "open" }

// Has implements pages.Viewer.
func (v *viewer) Has(scope string) bool {
	return slices.Contains(v.Scopes, scope) || slices.Contains(v.Scopes, "admin")
}

// rights are what viewers with the same rights have in common.
type rights struct {
	keyID   string
	version int64
	result  string
	scopes  string
}

func (s *session) rights() rights {
	return rights{s.KeyID, s.Version, s.Result, strings.Join(s.Scopes, " ")}
}

// Rights implements pages.Viewer.
func (v *viewer) Rights() any { return v.rights() }

// Watch implements pages.Viewer. While home does not answer, the session goes on for sessionLast.
func (v *viewer) Watch(ctx context.Context) (watched context.Context, cancel context.CancelFunc) {
	watched, cancelWith := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(sessionTime)
		defer tick.Stop()
		for confirmed := time.Now(); ; {
			select {
			case <-watched.Done():
				return
			case <-tick.C:
			}
			switch found, err := v.door.look(watched, v.token); {
			case err == nil && found.rights() != v.rights():
				cancelWith(pages.ErrUnauthorized)
			case err == nil:
				confirmed = time.Now()
			case time.Since(confirmed) >= sessionLast:
				cancelWith(err)
			}
		}
	}()
	return watched, func() { cancelWith(context.Canceled) }
}
