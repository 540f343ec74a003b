package pages

import (
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/duration"
	"github.com/queued/queued/internal/ui"
)

// listKeys is the page of all keys, by id.
func listKeys(v *visit) (view, error) {
	keys, next, err := pageOf[client.AccessKey](v, "/keys", "keys", nil, pageSize)
	if err != nil {
		return view{}, err
	}
	return view{name: "keys", title: "Keys", nav: "keys", isLive: true, body: ui.Keys{Keys: keys, Pager: v.pager(next)}}, nil
}

// newKey is the form of a new key.
func newKey(v *visit) (view, error) {
	form := &ui.KeyForm{Nonce: rand.Text(), IsFirst: v.isOpen()}
	if form.IsFirst {
		form.AccessKey.Scopes = []string{client.ScopeAdmin}
	}
	return view{name: "key", title: "New key", nav: "keys", body: form}, nil
}

// showKey is the page of one key.
func showKey(v *visit) (view, error) {
	k, err := v.api.GetKey(v.r.Context(), v.parameter("id"))
	if err != nil {
		return view{}, err
	}
	form := &ui.KeyForm{AccessKey: k, Nonce: rand.Text(), IsOwn: v.isOwnKey(k.ID)}
	return view{name: "key", title: k.Name, nav: "keys", isLive: true, body: form}, nil
}

// createKey creates a key, and shows its text.
func createKey(v *visit) (view, error) {
	limit, err := v.rateLimit()
	if err != nil {
		return view{}, err
	}
	queues, topics, err := v.restrictions()
	if err != nil {
		return view{}, err
	}
	expires, err := v.expiry()
	if err != nil {
		return view{}, err
	}
	if !expires.IsZero() && !expires.After(v.h.cfg.Now()) {
		return view{}, invalid("expires", "is over; leave it empty for a key that does not expire")
	}
	isFirst := v.isOpen()
	k, err := v.api.CreateKey(v.r.Context(), client.NewKey{
		Name: v.form.Get("name"), Scopes: v.form["scope"], Queues: queues, Topics: topics, ExpiresAt: expires, RateLimit: limit,
	})
	return issued(k, ui.IssuedKey{IssuedKey: k, IsFirst: isFirst}), err
}

// rotateKey gives a key another text, and shows it.
func rotateKey(v *visit) (view, error) {
	if v.form.Get("grace") == "" {
		return view{}, invalid("grace", "is missing: such as 24h, or 0s")
	}
	grace, err := v.duration("grace")
	if err != nil {
		return view{}, err
	}
	if grace == 0 {
		grace = -1 // which is none for the client
	}
	k, err := v.api.RotateKey(v.r.Context(), v.parameter("id"), grace)
	return issued(k, ui.IssuedKey{IssuedKey: k, IsRotated: true, IsKept: grace > 0}), err
}

// issued is the page of a new text of a key.
func issued(k client.IssuedKey, shown ui.IssuedKey) view {
	return view{name: "key-issued", title: k.Name, nav: "keys", body: shown}
}

// storeKey changes a key. Whoever has changed it meanwhile is not overwritten.
func storeKey(v *visit) (string, error) {
	version, err := v.number("version", 64)
	if err != nil {
		return "", err
	}
	limit, err := v.rateLimit()
	if err != nil {
		return "", err
	}
	queues, topics, err := v.restrictions()
	if err != nil {
		return "", err
	}
	expires, err := v.expiry()
	if err != nil {
		return "", err
	}
	patch := map[string]any{"name": v.form.Get("name"), "scopes": append([]string{}, v.form["scope"]...), "queues": nil, "topics": nil, "expires_at": nil, "rate_limit": nil}
	if queues != nil || topics != nil {
		patch["queues"], patch["topics"] = queues, topics
	}
	if !expires.IsZero() {
		patch["expires_at"] = expires.Format(time.RFC3339Nano)
	}
	if limit != nil {
		patch["rate_limit"] = limit
	}
	_, err = v.api.PatchKey(v.r.Context(), v.parameter("id"), version, patch)
	return did(v.keyPath(), "key.changed", ""), err
}

// keyPath is the path of the page of the key that the visit is about.
func (v *visit) keyPath() string { return "keys/" + url.PathEscape(v.parameter("id")) }

// confirmRevoke asks before a key is revoked.
func confirmRevoke(v *visit) (view, error) {
	k, err := v.api.GetKey(v.r.Context(), v.parameter("id"))
	if err != nil {
		return view{}, err
	}
	consequence := "From then on no call with this key is let in, and the log-ins with it end: here at once, in other processes within 5 seconds. This cannot be undone."
	switch {
	case k.LastUsedAt.IsZero():
		consequence += " The key was not used, or within the last minute."
	default:
		consequence += " The key was last used at " + k.LastUsedAt.UTC().Format("2006-01-02 15:04 UTC") + "."
	}
	if v.isOwnKey(k.ID) {
		consequence += " It is the key that you are logged in with: you will be logged out."
	}
	isLast, err := v.isLastAdmin(k)
	if err != nil {
		return view{}, err
	}
	if isLast {
		consequence += " It is the last admin key that is live: the server refuses to revoke it. Create another admin key first."
	}
	return view{name: "confirm", title: "Revoke " + k.Name, nav: "keys", body: ui.Confirm{
		Question: "Revoke the key " + k.Name + " (" + k.ID + ")?", Consequence: consequence, Button: "Revoke", Action: v.keyPath() + "/revoke", Back: v.keyPath(),
	}}, nil
}

// isLastAdmin reports whether there is no other live admin key in the database. It reads the keys until it finds one.
func (v *visit) isLastAdmin(k client.AccessKey) (bool, error) {
	isAdmin := func(k client.AccessKey) bool {
		return k.Status == "active" && slices.Contains(k.Scopes, client.ScopeAdmin)
	}
	if !isAdmin(k) {
		return false, nil
	}
	for other, err := range v.api.ListKeys(v.r.Context()) {
		if err != nil {
			return false, err
		}
		if other.ID != k.ID && isAdmin(other) {
			return false, nil
		}
	}
	return true, nil
}

func revokeKey(v *visit) (string, error) {
	err := v.api.RevokeKey(v.r.Context(), v.parameter("id"))
	return did(v.keyPath(), "key.revoked", ""), err
}

// restrictions returns the queues and topics that were entered; nil: the key may use all.
func (v *visit) restrictions() (queues, topics []string, err error) {
	if v.form.Get("uses") != "some" {
		return nil, nil, nil
	}
	queues, topics = patternsOf(v.form.Get("queues")), patternsOf(v.form.Get("topics"))
	if len(queues)+len(topics) == 0 {
		return nil, nil, invalid("queues", "name one at least, or a topic; or let the key use everything")
	}
	return queues, topics, nil
}

// patternsOf returns the patterns in a text, which stand on lines of their own, or between commas or spaces. It is never nil.
func patternsOf(text string) []string {
	return append([]string{}, strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(", \t\r\n", c) })...)
}

// expiry returns the time that was entered, or that is so far from now; zero: none was.
func (v *visit) expiry() (time.Time, error) {
	text := strings.TrimSpace(v.form.Get("expires"))
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := duration.Parse(text); err == nil && d > 0 {
		return v.h.cfg.Now().Add(d).UTC().Truncate(time.Second), nil
	}
	at, err := time.Parse(time.RFC3339Nano, inUTC(text))
	if err != nil || !isInstant(at.UTC()) {
		return time.Time{}, invalid("expires", "must be a time in UTC such as 2027-01-31T00:00:00Z, or how long from now, such as 90d")
	}
	return at.UTC(), nil
}

// rateLimit returns the limit that was entered; nil: none was.
func (v *visit) rateLimit() (*client.RateLimit, error) {
	burst, err := v.number("burst", 32)
	if err != nil {
		return nil, err
	}
	if strings.TrimSpace(v.form.Get("per_second")) == "" {
		if burst != 0 {
			return nil, invalid("per_second", "is missing: a limit has the requests of a second, too")
		}
		return nil, nil //nolint:nilnil // there is no limit
	}
	perSecond, err := v.decimal("per_second")
	if err != nil {
		return nil, err
	}
	return &client.RateLimit{PerSecond: perSecond, Burst: int(burst)}, nil
}

// maxNonces bounds the forms that a process remembers.
const maxNonces = 10_000

// nonces are the forms that were sent. A page that is answered with a secret is no redirect: browsers send its form again when it is loaded anew.
type nonces struct {
	mu   sync.Mutex
	sent map[string]struct{}
}

// take notes that a form is sent, and returns false when it was before, as far as this process knows. An empty nonce is that of no form.
func (n *nonces) take(nonce string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, isSent := n.sent[nonce]; isSent {
		return false
	}
	if n.sent == nil || len(n.sent) >= maxNonces {
		n.sent = make(map[string]struct{})
	}
	if nonce != "" && len(nonce) <= 64 {
		n.sent[nonce] = struct{}{}
	}
	return true
}

// release lets a form be sent again, which has done nothing.
func (n *nonces) release(nonce string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sent, nonce)
}

// reveal serves a form whose answer has a secret, which no address has: it is shown this once. When the form fails, the page again is shown, with the problem.
func (h *Handler) reveal(do, again page) http.HandlerFunc {
	return h.trial(func(v *visit) (view, error) {
		nonce := v.form.Get("nonce")
		if !h.sent.take(nonce) {
			return view{}, problem(http.StatusConflict, "Sent before", "The form was sent before, and what it asks for was done then. Its secret is not shown again.")
		}
		defer h.reads.clear() // whoever did something sees it done
		shown, err := do(v)
		if err != nil {
			h.sent.release(nonce)
		}
		return shown, err
	}, again)
}
