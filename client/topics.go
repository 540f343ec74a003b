package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// A NewPublication is an event to publish. Topic and Payload are required.
type NewPublication struct {
	// Topic is a dotted name of the kind of event, such as "order.placed".
	Topic string `json:"topic"`
	// Payload is the event: anything that encodes to a JSON object.
	Payload any `json:"event"`
	// Key is a key of your own that readers get, such as the id of an order.
	Key string `json:"key,omitzero" query:"key"`
	// Subscription is the only subscription that gets the event; empty: everybody can read it.
	Subscription string `json:"subscription,omitzero" query:"subscription"`
	// IdempotencyKey makes the call safe to repeat; empty: the client makes one, see Config.RetryFor.
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	// Meta is a JSON object of at most 16 KiB that readers get beside the event. Only [Client.PublishBatch] takes it.
	Meta json.RawMessage `json:"meta,omitzero"`
	// Delay and At say when to publish the event, within ten years; neither: now. Only [Client.Publish] takes them, and one of them.
	Delay time.Duration `json:"-" query:"delay"`
	At    time.Time     `json:"-" query:"at"`
}

// Published is the result of a publication.
type Published struct {
	// Position is the place of the event in the log; 0 if it is published later.
	Position    int64     `json:"position,omitzero"`
	Topic       string    `json:"topic,omitzero"`
	PublishedAt time.Time `json:"published_at,omitzero"`
	// ID and At are of an event that is published later: its id in the queue "queued.publish", and when.
	ID int64     `json:"id,omitzero"`
	At time.Time `json:"at,omitzero"`
	// Replayed says that the event was published before under its idempotency key; this is the first answer.
	Replayed bool `json:"-"`
}

// Publish appends an event to the log, now or later. The call is retried under p.IdempotencyKey, or under a key that the client makes. Publications of many goroutines at
// a time are sent together, see Config.SendPublicationsAlone; each has its own result and error all the same. When ctx ends while an event is on its way, it may be published.
func (c *Client) Publish(ctx context.Context, p NewPublication) (Published, error) {
	if p.Meta != nil {
		return Published{}, errors.New("client: Meta is for PublishBatch")
	}
	payload, err := encodeJSON(p.Payload)
	if err != nil {
		return Published{}, fmt.Errorf("client: the payload: %w", err)
	}
	if p.IdempotencyKey == "" && c.makesKeys() {
		p.IdempotencyKey = newKey()
	}
	p.Payload = json.RawMessage(payload)
	if c.publications == nil || p.IdempotencyKey == "" || p.Delay != 0 || !p.At.IsZero() || len(payload) > maxCoalescedPayload {
		return c.publishAlone(ctx, p)
	}
	return c.publications.send(ctx, p, len(payload))
}

// publishAlone publishes an event whose payload is encoded, with a request of its own.
func (c *Client) publishAlone(ctx context.Context, p NewPublication) (Published, error) {
	var published Published
	header := make(http.Header)
	if p.IdempotencyKey != "" {
		header.Set("Idempotency-Key", p.IdempotencyKey)
	}
	resp, err := c.Do(ctx, Request{
		Method: http.MethodPost, Path: "/topics/" + escape(p.Topic), Query: queryOf(p), Header: header, Body: p.Payload,
		Repeatable: p.IdempotencyKey != "",
	}, &published)
	if err == nil {
		published.Replayed = resp.Replayed()
	}
	return published, err
}

// PublishBatch appends up to 1,000 events to the log, all or none, and returns their positions in the same order. The call is retried under
// the idempotency keys of the events, or under keys that the client makes.
func (c *Client) PublishBatch(ctx context.Context, publications []NewPublication) ([]int64, error) {
	keyed := make([]NewPublication, len(publications))
	for i, p := range publications {
		if p.Delay != 0 || !p.At.IsZero() {
			return nil, errors.New("client: Delay and At are for Publish")
		}
		if p.IdempotencyKey == "" && c.makesKeys() {
			p.IdempotencyKey = newKey()
		}
		keyed[i] = p
	}
	var published publishedBatch
	_, err := c.Do(ctx, Request{
		Method: http.MethodPost, Path: "/publish", Body: publishBatchRequest{keyed},
		Repeatable: allHave(keyed, func(p NewPublication) string { return p.IdempotencyKey }),
	}, &published)
	return published.Positions, err
}

type publishBatchRequest struct {
	Events []NewPublication `json:"events"`
}

type publishedBatch struct {
	Positions []int64           `json:"positions,omitzero"` // of an atomic batch
	Results   []publishedResult `json:"results,omitzero"`   // of another one
}

// A PublishedEvent is an event of the log.
type PublishedEvent struct {
	// Position is its place in the log. Who reads on after it misses nothing.
	Position    int64           `json:"position"`
	Topic       string          `json:"topic"`
	PublishedAt time.Time       `json:"published_at"`
	Key         string          `json:"key,omitzero"`
	Meta        json.RawMessage `json:"meta,omitzero"`
	Payload     json.RawMessage `json:"event"`
	// Matched has the names of the filters of a subscription that want the event; nil if it was not read by a subscription.
	Matched []string `json:"matched,omitzero"`
}

// Decode decodes the payload. Numbers in values of type any become a [json.Number], which keeps all digits.
func (e *PublishedEvent) Decode(into any) error { return decodePayload(e.Payload, into) }

// A Place is a place in the log: [Earliest], [Latest], [After] a position, or [Since] a time. Its zero value is the default of each call.
type Place struct {
	position string // digits, "earliest" or "latest"
	at       time.Time
}

// Both ends of the log.
var (
	Earliest = Place{position: "earliest"}
	Latest   = Place{position: "latest"}
)

// After is the place after a position.
func After(position int64) Place { return Place{position: strconv.FormatInt(position, 10)} }

// Since is the place before the first event that was published at a time or later.
func Since(at time.Time) Place { return Place{at: at} }

// IsZero reports whether p is the zero value.
func (p Place) IsZero() bool { return p.position == "" && p.at.IsZero() }

// MarshalJSON implements [json.Marshaler].
func (p Place) MarshalJSON() ([]byte, error) {
	switch {
	case !p.at.IsZero():
		return json.Marshal(timeText(p.at))
	case p == Earliest || p == Latest:
		return json.Marshal(p.position)
	case p.position == "":
		return nil, errors.New("the place is missing")
	}
	return []byte(p.position), nil
}

// addTo adds the place to the query of a read.
func (p Place) addTo(query url.Values) {
	if p.position != "" {
		query.Set("after", p.position)
	}
	if !p.at.IsZero() {
		query.Set("at", timeText(p.at))
	}
}

// A LogFilter says which events of the log. Its zero value is all.
type LogFilter struct {
	// Topics are topics, or patterns in which "*" stands for one word, and "**" at the end for one or more; at most 256. Only those that begin
	// with "queued." take the service's own topics.
	Topics []string `json:"topics,omitzero" query:"topic"`
	// Match is a pattern of the payload, in Amazon EventBridge's pattern language.
	Match json.RawMessage `json:"match,omitzero" query:"match"`
}

// ReadParams say which events of the log to read.
type ReadParams struct {
	LogFilter
	// From is where to begin; zero: at [Earliest].
	From Place
	// Limit is how many events to read at most, up to 1,000; 0: 100.
	Limit int `query:"limit"`
	// Wait is how long to wait for the first event, up to [MaxWait].
	Wait time.Duration `query:"wait"`
	// Last reads so many events at the end of the log, up to 1,000, in order. From, Limit and Wait are zero then. 0: it does not.
	Last int `query:"last"`
}

// A LogPage is a part of the log.
type LogPage struct {
	Events []PublishedEvent `json:"events"`
	// Next is after which position to read on; Head is up to where the log was complete. There may be more until Next is Head.
	Next int64 `json:"next"`
	Head int64 `json:"head"`
	// Complete is about [ReadParams].Last: false says that the log has so much else that no more events were looked for.
	Complete bool `json:"complete,omitzero"`
	// Gap is the part of the log that is missing before the events; nil: none.
	Gap *Gap `json:"gap,omitzero"`
	// HeldBy is the transaction that keeps the log from going on, if one has for longer than a second; nil: none.
	HeldBy *LogHolder `json:"held_by,omitzero"`
}

// A Gap is a part of the log that is missing: after After, up to and including Until. As an error it comes in
// its place to a loop over [Client.Stream] or [Client.Log], which can go on.
type Gap struct {
	After int64 `json:"after"`
	Until int64 `json:"until"`
	// Reason is "retention" for events that were dropped before they were read. "lost": After was given out by a server that has lost the positions it gave
	// out since, or by the original of a restored database. "beyond_head": After was never given out by this log, which is read on after Until, its head.
	Reason string `json:"reason"`
}

// Error implements error.
func (g *Gap) Error() string {
	switch g.Reason {
	case "lost":
		return fmt.Sprintf("client: what was published after position %d and before %d is lost", g.After, g.Until)
	case "beyond_head":
		return fmt.Sprintf("client: position %d is not of this log, which is read on after %d", g.After, g.Until)
	}
	return fmt.Sprintf("client: the log no longer has what was published after position %d, up to %d", g.After, g.Until)
}

// A LogHolder is a transaction that keeps the log from going on.
type LogHolder struct {
	Position int64 `json:"position"`
	// PID is the process id of its session in PostgreSQL, or Prepared the name of the prepared transaction.
	PID      int    `json:"pid,omitzero"`
	Prepared string `json:"prepared,omitzero"`
	// Age is how long it has run, and Query the latest query of its session.
	Age   time.Duration `json:"age"`
	Query string        `json:"query,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (h LogHolder) MarshalJSON() ([]byte, error) {
	type plain LogHolder
	return encodeJSON(struct {
		plain
		Age duration `json:"age"`
	}{plain(h), duration(h.Age)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (h *LogHolder) UnmarshalJSON(text []byte) error {
	type plain LogHolder
	in := struct {
		*plain
		Age duration `json:"age"`
	}{plain: (*plain)(h)}
	err := json.Unmarshal(text, &in)
	h.Age = time.Duration(in.Age)
	return err
}

// ReadLog returns a part of the log, in order.
func (c *Client) ReadLog(ctx context.Context, p ReadParams) (LogPage, error) {
	query := queryOf(p)
	p.From.addTo(query)
	var read LogPage
	_, err := c.Do(ctx, Request{Path: "/log", Query: query, Wait: p.Wait}, &read)
	return read, err
}

// Log returns the events of the log from p.From to its end, in order. With p.Wait it ends when nothing was published for so long. It returns a
// [*Gap] as an error, after which the loop can go on; any other error is the last thing it returns.
func (c *Client) Log(ctx context.Context, p ReadParams) iter.Seq2[PublishedEvent, error] {
	return func(yield func(PublishedEvent, error) bool) {
		for {
			read, err := c.ReadLog(ctx, p)
			if err != nil {
				yield(PublishedEvent{}, err)
				return
			}
			if read.Gap != nil && !yield(PublishedEvent{}, read.Gap) {
				return
			}
			for _, e := range read.Events {
				if !yield(e, nil) {
					return
				}
			}
			if len(read.Events) == 0 && read.Next >= read.Head {
				return
			}
			p.From = After(read.Next)
		}
	}
}

// GetPublished returns the event at a position, or [ErrNotFound].
func (c *Client) GetPublished(ctx context.Context, position int64) (PublishedEvent, error) {
	var e PublishedEvent
	_, err := c.Do(ctx, Request{Path: "/log/" + strconv.FormatInt(position, 10)}, &e)
	return e, err
}

// A Topic is a topic that has events in the log.
type Topic struct {
	Topic string `json:"topic"`
	// Events is how many.
	Events       int64     `json:"events"`
	LastPosition int64     `json:"last_position"`
	LastAt       time.Time `json:"last_at"`
}

// ListTopics returns the topics that have events in the log, by name. An error is the last thing it returns.
func (c *Client) ListTopics(ctx context.Context) iter.Seq2[Topic, error] {
	return listOf(ctx, c, "/topics", largePages, func(p topicPage) page[Topic] { return page[Topic]{p.Topics, p.Next} })
}

type topicPage struct {
	Topics []Topic `json:"topics"`
	Next   *string `json:"next"`
}

// MatchParams say which events to try a filter on: Events, or the Last events of the log, up to 1,000 of either.
type MatchParams struct {
	Filter LogFilter    `json:"filter"`
	Events []MatchEvent `json:"events,omitzero"`
	Last   int          `json:"last,omitzero"`
}

// A MatchEvent is an event to try a filter on.
type MatchEvent struct {
	Topic   string `json:"topic"`
	Payload any    `json:"event"`
}

// Matched says which events a filter takes, in their order.
type Matched struct {
	Matched []bool `json:"matched"`
	// Positions are of the events, if these are of the log.
	Positions []int64 `json:"positions,omitzero"`
}

// Match says which events a filter takes, before it is used.
func (c *Client) Match(ctx context.Context, p MatchParams) (Matched, error) {
	var m Matched
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/match", Body: p, Repeatable: true}, &m)
	return m, err
}

// LogSettings say how long the log is kept. Where a field is zero, its default applies.
type LogSettings struct {
	// Retention is how long a closed segment is kept, and Hold how long at most while a subscription has not read it.
	Retention time.Duration `json:"retention,omitzero"`
	Hold      time.Duration `json:"hold,omitzero"`
	// SegmentInterval and SegmentSize are the age, and the number of events, at which a segment is closed.
	SegmentInterval time.Duration `json:"segment_interval,omitzero"`
	SegmentSize     int64         `json:"segment_size,omitzero"`
	// UpdatedAt is when they were set. It is not sent.
	UpdatedAt time.Time `json:"updated_at,omitzero"`
	// ETag is the version, which [Client.PutLogSettings] replaces unless it is empty.
	ETag string `json:"-"`
}

// MarshalJSON implements [json.Marshaler].
func (s LogSettings) MarshalJSON() ([]byte, error) { return encodeJSON(s.wire()) }

func (s LogSettings) wire() logSettings {
	return logSettings{duration(s.Retention), duration(s.Hold), duration(s.SegmentInterval), s.SegmentSize, s.UpdatedAt}
}

// UnmarshalJSON implements [json.Unmarshaler].
func (s *LogSettings) UnmarshalJSON(text []byte) error {
	var in logSettings
	err := json.Unmarshal(text, &in)
	*s = LogSettings{
		Retention: time.Duration(in.Retention), Hold: time.Duration(in.Hold), SegmentInterval: time.Duration(in.SegmentInterval),
		SegmentSize: in.SegmentSize, UpdatedAt: in.UpdatedAt,
	}
	return err
}

type logSettings struct {
	Retention       duration  `json:"retention,omitzero"`
	Hold            duration  `json:"hold,omitzero"`
	SegmentInterval duration  `json:"segment_interval,omitzero"`
	SegmentSize     int64     `json:"segment_size,omitzero"`
	UpdatedAt       time.Time `json:"updated_at,omitzero"`
}

// GetLogSettings returns the settings of the log.
func (c *Client) GetLogSettings(ctx context.Context) (LogSettings, error) {
	return c.logSettings(ctx, Request{Path: "/log/settings"})
}

// PutLogSettings sets all settings of the log, at once and for every process. If s.ETag is not empty, it replaces that version or returns
// [ErrPreconditionFailed].
func (c *Client) PutLogSettings(ctx context.Context, s LogSettings) (LogSettings, error) {
	header := make(http.Header)
	if s.ETag != "" {
		header.Set("If-Match", s.ETag)
	}
	s.UpdatedAt = time.Time{}
	return c.logSettings(ctx, Request{Method: http.MethodPut, Path: "/log/settings", Header: header, Body: s})
}

func (c *Client) logSettings(ctx context.Context, req Request) (LogSettings, error) {
	var s LogSettings
	resp, err := c.Do(ctx, req, &s)
	if err == nil {
		s.ETag = resp.Header.Get("ETag")
	}
	return s, err
}
