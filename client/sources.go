package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// SourceSettings are a source of webhooks to put: who sends them, and how a delivery is handled. Kind, and Queue or Topic, are required.
type SourceSettings struct {
	// Kind is how the sender proves who it is: "slack", "github", "stripe", "standard", "hmac", "token", "basic" or "cloudevents".
	Kind string `json:"kind"`
	// Queue is where its events go, or Topic where they are published.
	Queue string `json:"queue,omitzero"`
	Topic string `json:"topic,omitzero"`
	// Type, Key, EventTS, Priority and Group are templates, such as "shop.{/kind}" or "{header:X-Id}"; empty: those of the kind.
	Type     string `json:"type,omitzero"`
	Key      string `json:"key,omitzero"`
	EventTS  string `json:"event_ts,omitzero"`
	Priority string `json:"priority,omitzero"`
	Group    string `json:"group,omitzero"`
	// Signature is that of the kind "hmac".
	Signature *SourceSignature `json:"signature,omitzero"`
	// Header is the field that has the token of the kind "token"; empty: Authorization.
	Header string `json:"header,omitzero"`
	// Secrets are 1 to 5, of which any may have signed. Nil: those that the source has stay.
	Secrets []string `json:"secrets,omitzero"`
	// DedupFor is how long the key of a delivery is remembered; 0: 168 hours.
	DedupFor time.Duration `json:"dedup_for,omitzero"`
	// Tolerance is how far the timestamp of a signature may be from now; 0: 5 minutes.
	Tolerance time.Duration `json:"tolerance,omitzero"`
	// KeepRaw is how long the bytes of a delivery are kept; 0: they are not.
	KeepRaw time.Duration `json:"keep_raw,omitzero"`
	// Headers are fields to keep in the metadata of the event.
	Headers []string `json:"headers,omitzero"`
	// MaxBody is how many bytes a delivery may have; 0: the server's limit.
	MaxBody   int        `json:"max_body,omitzero"`
	RateLimit *RateLimit `json:"rate_limit,omitzero"`
	// Paused: deliveries are answered with 503, so that their sender tries again.
	Paused bool `json:"paused,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (s SourceSettings) MarshalJSON() ([]byte, error) {
	type plain SourceSettings
	return encodeJSON(struct {
		plain
		DedupFor  duration `json:"dedup_for,omitzero"`
		Tolerance duration `json:"tolerance,omitzero"`
		KeepRaw   duration `json:"keep_raw,omitzero"`
	}{plain(s), duration(s.DedupFor), duration(s.Tolerance), duration(s.KeepRaw)})
}

// A SourceSignature says where a signature is, and which bytes it signs.
type SourceSignature struct {
	// Header is the field that has it.
	Header string `json:"header"`
	// Algorithm is "sha256", the default, or "sha512"; Encoding "hex", the default, or "base64".
	Algorithm string `json:"algorithm,omitzero"`
	Encoding  string `json:"encoding,omitzero"`
	// Prefix is the text before it, such as "sha256=".
	Prefix string `json:"prefix,omitzero"`
	// Timestamp is the field with the time at which it was signed, in seconds since 1970; empty: there is none.
	Timestamp string `json:"timestamp,omitzero"`
}

// A Source is a sender of webhooks, without its secrets, and the counts of its deliveries.
type Source struct {
	Name      string           `json:"name"`
	Kind      string           `json:"kind"`
	Queue     string           `json:"queue,omitzero"`
	Topic     string           `json:"topic,omitzero"`
	Type      string           `json:"type,omitzero"`
	Key       string           `json:"key,omitzero"`
	EventTS   string           `json:"event_ts,omitzero"`
	Priority  string           `json:"priority,omitzero"`
	Group     string           `json:"group,omitzero"`
	Signature *SourceSignature `json:"signature,omitzero"`
	Header    string           `json:"header,omitzero"`
	// SecretCount is how many secrets it has.
	SecretCount int           `json:"secret_count"`
	DedupFor    time.Duration `json:"dedup_for"`
	Tolerance   time.Duration `json:"tolerance"`
	KeepRaw     time.Duration `json:"keep_raw,omitzero"`
	Headers     []string      `json:"headers"`
	MaxBody     int           `json:"max_body,omitzero"`
	RateLimit   *RateLimit    `json:"rate_limit,omitzero"`
	Paused      bool          `json:"paused"`
	// Received counts the deliveries that were taken, Duplicates those of them whose key was known, and Rejected those that were not taken.
	Received       int64     `json:"received"`
	Duplicates     int64     `json:"duplicates"`
	Rejected       int64     `json:"rejected"`
	LastReceivedAt time.Time `json:"last_received_at,omitzero"`
	// LastRejected is the latest delivery that was not taken; nil: there was none.
	LastRejected *SourceRejection `json:"last_rejected,omitzero"`
	// LastProblem is the latest delivery whose event has an empty field, because a template met no value; nil: there was none.
	LastProblem *SourceProblem `json:"last_problem,omitzero"`
	// Version grows with every change.
	Version   int64     `json:"version"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// UnmarshalJSON implements [json.Unmarshaler].
func (s *Source) UnmarshalJSON(text []byte) error {
	type plain Source
	in := struct {
		*plain
		DedupFor  duration `json:"dedup_for"`
		Tolerance duration `json:"tolerance"`
		KeepRaw   duration `json:"keep_raw"`
	}{plain: (*plain)(s)}
	err := json.Unmarshal(text, &in)
	s.DedupFor, s.Tolerance, s.KeepRaw = time.Duration(in.DedupFor), time.Duration(in.Tolerance), time.Duration(in.KeepRaw)
	return err
}

// MarshalJSON implements [json.Marshaler].
func (s Source) MarshalJSON() ([]byte, error) {
	type plain Source
	return encodeJSON(struct {
		plain
		DedupFor  duration `json:"dedup_for"`
		Tolerance duration `json:"tolerance"`
		KeepRaw   duration `json:"keep_raw,omitzero"`
	}{plain(s), duration(s.DedupFor), duration(s.Tolerance), duration(s.KeepRaw)})
}

// A SourceRejection is a delivery that was not taken.
type SourceRejection struct {
	At        time.Time `json:"at"`
	Code      string    `json:"code"`
	RequestID string    `json:"request_id"`
}

// A SourceProblem is a delivery whose event has an empty field.
type SourceProblem struct {
	At        time.Time `json:"at"`
	Detail    string    `json:"detail"`
	RequestID string    `json:"request_id"`
}

// PutSource creates a source, or replaces it. If ifVersion is not 0, it replaces that version or returns [ErrPreconditionFailed].
func (c *Client) PutSource(ctx context.Context, name string, settings SourceSettings, ifVersion int64) (Source, error) {
	var s Source
	_, err := c.Do(ctx, Request{Method: http.MethodPut, Path: "/sources/" + escape(name), Header: ifMatch(ifVersion), Body: settings}, &s)
	return s, err
}

// CreateSource creates a source, or returns [ErrPreconditionFailed] if there is one of that name: so it does, too, when it is repeated after an answer that was lost.
func (c *Client) CreateSource(ctx context.Context, name string, settings SourceSettings) (Source, error) {
	var s Source
	_, err := c.Do(ctx, Request{Method: http.MethodPut, Path: "/sources/" + escape(name), Header: ifAbsent(), Body: settings}, &s)
	return s, err
}

// GetSource returns a source, or [ErrNotFound].
func (c *Client) GetSource(ctx context.Context, name string) (Source, error) {
	var s Source
	_, err := c.Do(ctx, Request{Path: "/sources/" + escape(name)}, &s)
	return s, err
}

// ListSources returns the sources by name. An error is the last thing it returns.
func (c *Client) ListSources(ctx context.Context) iter.Seq2[Source, error] {
	return listOf(ctx, c, "/sources", largePages, func(p sourcePage) page[Source] { return page[Source]{p.Sources, p.Next} })
}

type sourcePage struct {
	Sources []Source `json:"sources"`
	Next    *string  `json:"next"`
}

// DeleteSource deletes a source. If ifVersion is not 0, it deletes that version or returns [ErrPreconditionFailed].
func (c *Client) DeleteSource(ctx context.Context, name string, ifVersion int64) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: "/sources/" + escape(name), Header: ifMatch(ifVersion)}, nil)
	return err
}

// A TrialDelivery is a delivery to try.
type TrialDelivery struct {
	Headers map[string]string `json:"headers,omitzero"`
	Body    string            `json:"body,omitzero"`
	// Query is that of the URL.
	Query string `json:"query,omitzero"`
	// At is when it came in; zero: now.
	At time.Time `json:"at,omitzero"`
}

// A TriedDelivery is the result that a delivery would have.
type TriedDelivery struct {
	// Verified: it is from the source.
	Verified bool `json:"verified"`
	// Rejected is why it would not be taken; nil: it would be.
	Rejected *struct {
		Code   string `json:"code"`
		Detail string `json:"detail"`
	} `json:"rejected,omitzero"`
	// Challenge is the text that Slack would get back.
	Challenge string `json:"challenge,omitzero"`
	// Mapped is the event that it would become.
	Mapped *MappedDelivery `json:"mapped,omitzero"`
	// Batch are the events of a batch of CloudEvents, in the place of Mapped.
	Batch []MappedDelivery `json:"batch,omitzero"`
}

// A MappedDelivery is the event that a delivery becomes.
type MappedDelivery struct {
	Event    json.RawMessage `json:"event"`
	Type     string          `json:"type,omitzero"`
	Key      string          `json:"key,omitzero"`
	EventTS  time.Time       `json:"event_ts,omitzero"`
	Priority int             `json:"priority"`
	Group    string          `json:"group,omitzero"`
	Meta     json.RawMessage `json:"meta,omitzero"`
	// Problems are templates that met no value, or one that does not fit.
	Problems []string `json:"problems"`
}

// TestSource returns the result that a delivery would have. Nothing is stored.
func (c *Client) TestSource(ctx context.Context, name string, d TrialDelivery) (TriedDelivery, error) {
	var tried TriedDelivery
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/sources/" + escape(name) + "/test", Body: d, Repeatable: true}, &tried)
	return tried, err
}
