package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// A KeyStore is where keys are managed: a server, or its database.
type KeyStore interface {
	// About says which it is.
	About() string
	// IsOpen reports whether callers of the server, or of all servers on the database, need no key yet. A server to which none is sent counts as open:
	// another one refuses the call.
	IsOpen() bool
	// Each of these is as the method of [client.Client].
	ListKeys(ctx context.Context) iter.Seq2[client.AccessKey, error]
	CreateKey(ctx context.Context, k client.NewKey) (client.IssuedKey, error)
	GetKey(ctx context.Context, id string) (client.AccessKey, error)
	RotateKey(ctx context.Context, id string, grace time.Duration) (client.IssuedKey, error)
	RevokeKey(ctx context.Context, id string) error
	// ChangeKey applies a change to a key.
	ChangeKey(ctx context.Context, id string, change KeyChange) (client.AccessKey, error)
}

// A KeyChange is a change of a key; settings whose field is nil stay.
type KeyChange struct {
	Name   *string
	Scopes *[]string
	// Queues and Topics are patterns; a nil slice: everything.
	Queues, Topics *[]string
	// ExpiresAt is when the key ends; zero: never.
	ExpiresAt *time.Time
	// RateLimit bounds the requests; a nil pointer: not at all.
	RateLimit **client.RateLimit
}

// serverKeys are the keys of a server.
type serverKeys struct {
	*client.Client
	url    string
	isOpen bool
}

// KeysOfServer returns the keys of the server of a command, over HTTP. Call the function after the last use.
func (s *connection) KeysOfServer(env *Env) (KeyStore, func(), error) {
	s.env = env
	conn, err := s.client()
	if err != nil {
		return nil, nil, err
	}
	return serverKeys{conn, s.URL, s.Key == ""}, conn.Close, nil
}

// About implements KeyStore.
func (s serverKeys) About() string { return "the server " + s.url }

// IsOpen implements KeyStore.
func (s serverKeys) IsOpen() bool { return s.isOpen }

// ChangeKey implements KeyStore.
func (s serverKeys) ChangeKey(ctx context.Context, id string, change KeyChange) (client.AccessKey, error) {
	patch := map[string]any{}
	if change.Name != nil {
		patch["name"] = *change.Name
	}
	for name, list := range map[string]*[]string{"scopes": change.Scopes, "queues": change.Queues, "topics": change.Topics} {
		if list != nil {
			patch[name] = *list
		}
	}
	if change.ExpiresAt != nil {
		patch["expires_at"] = *change.ExpiresAt
		if change.ExpiresAt.IsZero() {
			patch["expires_at"] = nil
		}
	}
	if change.RateLimit != nil {
		patch["rate_limit"] = *change.RateLimit
	}
	return s.PatchKey(ctx, id, 0, patch)
}

// newNothingError returns the error of a command that finds nothing there; its exit code is 3.
func newNothingError(text string) error { return &nothingError{text} }

// ErrNoKey is the error of a [KeyStore] that has no key of an id.
var ErrNoKey = newNothingError("no key has this id; \"queued keys list\" lists them")

var keysView = view[client.AccessKey]{
	columns: columns("ID", "NAME…", "SCOPES", "QUEUES…", "TOPICS…", "LAST USED@?", "STATUS", "ENDS@?"),
	row: func(k client.AccessKey) []string {
		return []string{
			k.ID, k.Name, strings.Join(k.Scopes, ","), patterns(k.Queues), patterns(k.Topics), cmp.Or(moment(k.LastUsedAt), "never"), k.Status,
			cmp.Or(moment(k.RevokedAt), moment(k.ExpiresAt), "never"),
		}
	},
	empty: "no keys",
}

func patterns(list []string) string {
	switch {
	case list == nil:
		return "all"
	case len(list) == 0:
		return "none"
	}
	return strings.Join(list, ",")
}

func keyFields(k client.AccessKey) [][2]string {
	limit := "none"
	if r := k.RateLimit; r != nil {
		limit = fmt.Sprintf("%s a second in each process, %d at once", strconv.FormatFloat(r.PerSecond, 'g', -1, 64), r.Burst)
	}
	return [][2]string{
		{"id", k.ID},
		{"name", k.Name},
		{"scopes", strings.Join(k.Scopes, ",")},
		{"queues", patterns(k.Queues)},
		{"topics", patterns(k.Topics)},
		{"rate limit", limit},
		{"status", k.Status},
		{"expires@", cmp.Or(moment(k.ExpiresAt), "never")},
		{"old text until@", moment(k.PreviousUntil)},
		{"revoked@", moment(k.RevokedAt)},
		{"last used@", cmp.Or(moment(k.LastUsedAt), "never")},
		{"made@", moment(k.CreatedAt)},
		{"changed@", moment(k.UpdatedAt)},
	}
}

// issue writes a new text of a key: that alone on standard output, so that scripts can take it, and the rest on standard error; or all of it in
// the format that was asked for.
func issue(env *Env, output, did string, k client.IssuedKey, about string) error {
	env.notef("%s the key %s (%s) with the scopes %s, in %s. It is not shown again.", did, k.ID, k.Name, strings.Join(k.Scopes, ","), about)
	if output == formatAuto {
		_, err := fmt.Fprintln(env.Stdout, k.Key)
		return err
	}
	return show(env, output, k, func(k client.IssuedKey) [][2]string {
		return append([][2]string{{"key", k.Key}}, keyFields(k.AccessKey)...)
	})
}

// KeysList lists keys.
type KeysList struct {
	server `embed:""`
}

// Help returns the text below the usage.
func (*KeysList) Help() string { return examples(`queued keys list`, `queued keys list -o json`) }

// Manage lists the keys.
func (c *KeysList) Manage(ctx context.Context, env *Env, keys KeyStore) error {
	return list(env, c.Output, keysView, keys.ListKeys(ctx))
}

// KeyShow shows a key.
type KeyShow struct {
	server `embed:""`
	ID     string `arg:"" help:"The id of the key: its eight characters after qk_."`
}

// Help returns the text below the usage.
func (*KeyShow) Help() string { return examples(`queued keys show xq3mfz4a`) }

// Manage shows the key.
func (c *KeyShow) Manage(ctx context.Context, env *Env, keys KeyStore) error {
	k, err := keys.GetKey(ctx, c.ID)
	if err != nil {
		return err
	}
	return show(env, c.Output, k, keyFields)
}

// keyLimits are the restrictions of a key, as flags.
type keyLimits struct {
	Queue     []string      `placeholder:"PATTERN" help:"Queues that it may use: names, or beginnings before *; several with commas."`
	Topic     []string      `placeholder:"PATTERN" help:"Topics that it may use, in which * stands for one word and ** at the end for one or more."`
	ExpiresIn time.Duration `placeholder:"DURATION" min:"1s" help:"After what time it expires, such as 30d."`
	Rate      float64       `placeholder:"N" min:"0.001" max:"1000000" help:"Requests per second that it may make in each process."`
	Burst     int           `placeholder:"N" min:"1" max:"1000000" help:"Requests that it may make at once under --rate; by default those of a second."`
}

// check fails if the flags don't go together.
func (l *keyLimits) check() error {
	if l.Burst > 0 && l.Rate == 0 {
		return usagef("--burst: is for keys with --rate")
	}
	return nil
}

// rateLimit returns the limit; nil: none.
func (l *keyLimits) rateLimit() *client.RateLimit {
	if l.Rate == 0 {
		return nil
	}
	return &client.RateLimit{PerSecond: l.Rate, Burst: cmp.Or(l.Burst, max(1, int(math.Ceil(l.Rate))))}
}

// KeyCreate creates a key.
type KeyCreate struct {
	server    `embed:""`
	Name      string   `help:"What the key is for; by default its scopes."`
	Scope     []string `required:"" placeholder:"SCOPE" enum:"publish,claim,read,manage,metrics,admin" help:"What the key may do: publish, claim, read, manage, metrics or admin; several with commas."`
	keyLimits `embed:""`
}

// Help returns the text below the usage.
func (*KeyCreate) Help() string {
	return examples(
		`queued keys create --scope admin --name ops`,
		`export QUEUED_KEY=$(queued keys create --scope publish --queue 'orders.*' --expires-in 90d)`,
	) + "\nWithout --queue and --topic it may use all queues and topics. The text of the key is all that goes to standard output unless --output is given."
}

// Manage creates the key and writes its text.
func (c *KeyCreate) Manage(ctx context.Context, env *Env, keys KeyStore) error {
	if err := c.check(); err != nil {
		return err
	}
	k := client.NewKey{Name: cmp.Or(c.Name, strings.Join(c.Scope, ",")), Scopes: c.Scope, Queues: c.Queue, Topics: c.Topic, RateLimit: c.rateLimit()}
	if c.ExpiresIn > 0 {
		k.ExpiresAt = env.Now().Add(c.ExpiresIn)
	}
	isFirst := keys.IsOpen()
	issued, err := keys.CreateKey(ctx, k)
	if err != nil {
		return err
	}
	err = issue(env, c.Output, "created", issued, keys.About())
	if isFirst {
		env.notef("It is the first key: from now on every call needs a key, sent as \"Authorization: Bearer KEY\"; commands take it from QUEUED_KEY.")
	}
	return err
}

// KeySet changes a key.
type KeySet struct {
	server       `embed:""`
	ID           string   `arg:"" help:"The id of the key: its eight characters after qk_."`
	Name         *string  `help:"What the key is for."`
	Scope        []string `placeholder:"SCOPE" enum:"publish,claim,read,manage,metrics,admin" help:"What the key may do: publish, claim, read, manage, metrics or admin; several with commas."`
	keyLimits    `embed:""`
	Unrestricted bool `help:"Let it use all queues and topics."`
	NoExpiry     bool `help:"Let it never expire."`
	NoRate       bool `help:"Let it make as many requests as it likes."`
}

// Help returns the text below the usage.
func (*KeySet) Help() string {
	return examples(`queued keys set xq3mfz4a --scope publish,claim --expires-in 90d`, `queued keys set xq3mfz4a --unrestricted --no-rate`) +
		"\nWhat no flag names stays as it is."
}

// Manage changes the key and shows it.
func (c *KeySet) Manage(ctx context.Context, env *Env, keys KeyStore) error {
	if err := c.check(); err != nil {
		return err
	}
	switch {
	case c.Unrestricted && (c.Queue != nil || c.Topic != nil), c.NoExpiry && c.ExpiresIn > 0, c.NoRate && c.Rate > 0:
		return usagef("--unrestricted, --no-expiry and --no-rate take away what --queue and --topic, --expires-in and --rate set; want one of each two")
	}
	change := KeyChange{Name: c.Name}
	if c.Scope != nil {
		change.Scopes = &c.Scope
	}
	if c.Unrestricted || c.Queue != nil {
		change.Queues = &c.Queue
	}
	if c.Unrestricted || c.Topic != nil {
		change.Topics = &c.Topic
	}
	if c.NoExpiry {
		change.ExpiresAt = new(time.Time)
	} else if c.ExpiresIn > 0 {
		change.ExpiresAt = new(env.Now().Add(c.ExpiresIn))
	}
	if c.NoRate || c.Rate > 0 {
		change.RateLimit = new(c.rateLimit())
	}
	if change == (KeyChange{}) {
		return usagef("keys set needs something to change, such as --scope")
	}
	k, err := keys.ChangeKey(ctx, c.ID, change)
	if err != nil {
		return err
	}
	return show(env, c.Output, k, keyFields)
}

// KeyRotate gives a key another text.
type KeyRotate struct {
	server `embed:""`
	ID     string        `arg:"" help:"The id of the key: its eight characters after qk_."`
	Grace  time.Duration `default:"24h" placeholder:"DURATION" min:"0s" max:"8760h" help:"How long the text before is accepted; 0s: no more."`
}

// Help returns the text below the usage.
func (*KeyRotate) Help() string {
	return examples(`queued keys rotate xq3mfz4a --grace 7d`) + "\nThe text of the key is all that goes to standard output unless --output is given."
}

// Manage rotates the key and writes its text.
func (c *KeyRotate) Manage(ctx context.Context, env *Env, keys KeyStore) error {
	if c.Grace < 0 {
		return usagef("--grace must not be negative")
	}
	grace := c.Grace
	if grace == 0 {
		grace = -1 // which is none for package client
	}
	issued, err := keys.RotateKey(ctx, c.ID, grace)
	if err != nil {
		return err
	}
	return issue(env, c.Output, "rotated", issued, keys.About())
}

// KeyRevoke revokes a key.
type KeyRevoke struct {
	server `embed:""`
	ID     string `arg:"" help:"The id of the key: its eight characters after qk_."`
}

// Help returns the text below the usage.
func (*KeyRevoke) Help() string { return examples(`queued keys revoke xq3mfz4a`) }

// Manage revokes the key.
func (c *KeyRevoke) Manage(ctx context.Context, env *Env, keys KeyStore) error {
	if err := keys.RevokeKey(ctx, c.ID); err != nil {
		if errors.Is(err, client.ErrNotFound) {
			return ErrNoKey
		}
		return err
	}
	env.notef("revoked the key %s in %s; it holds everywhere within 5 s", c.ID, keys.About())
	return nil
}
