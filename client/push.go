package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// PushSettings say where the events of a queue are pushed to. URL is required; where another field is zero, the default of the server applies.
type PushSettings struct {
	// URL is where each event is sent to by a POST.
	URL string `json:"url"`
	// Format of the body: "standard", which is {"type", "timestamp", "data"}, "cloudevents" or "event", the event itself.
	Format string `json:"format,omitzero"`
	// Headers are further header fields, which are never shown again; nil: those of the push stay; empty: none.
	Headers map[string]string `json:"headers,omitzero"`
	// Timeout of a request, from a second to five minutes.
	Timeout time.Duration `json:"timeout,omitzero"`
	// MaxInFlight is how many requests may be under way at a time, up to 1,000.
	MaxInFlight int `json:"max_in_flight,omitzero"`
	// Rate bounds the requests; nil: no limit.
	Rate *RateLimit `json:"rate,omitzero"`
	// FinalStatuses are those after which an event is not tried again.
	FinalStatuses []int `json:"final_statuses,omitzero"`
	// DisableAfter is how long the endpoint may fail until nothing is pushed any more, from 12 hours to a year.
	DisableAfter time.Duration `json:"disable_after,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (s PushSettings) MarshalJSON() ([]byte, error) {
	type plain PushSettings
	return encodeJSON(struct {
		plain
		Timeout      duration `json:"timeout,omitzero"`
		DisableAfter duration `json:"disable_after,omitzero"`
	}{plain(s), duration(s.Timeout), duration(s.DisableAfter)})
}

// A Push is where the events of a queue are pushed to, and how the endpoint does.
type Push struct {
	Queue  string `json:"queue"`
	URL    string `json:"url"`
	Format string `json:"format"`
	// Headers are the names of the further header fields.
	Headers       []string      `json:"headers"`
	Timeout       time.Duration `json:"timeout"`
	MaxInFlight   int           `json:"max_in_flight"`
	Rate          *RateLimit    `json:"rate,omitzero"`
	FinalStatuses []int         `json:"final_statuses"`
	DisableAfter  time.Duration `json:"disable_after"`
	// Status is "enabled"; "held" or "open" while the endpoint has asked for a pause or fails; or "disabled".
	Status string `json:"status"`
	// Failures in a row, the first of them, and the last.
	Failures      int       `json:"failures"`
	FailingSince  time.Time `json:"failing_since,omitzero"`
	LastFailureAt time.Time `json:"last_failure_at,omitzero"`
	LastError     string    `json:"last_error,omitzero"`
	LastSuccessAt time.Time `json:"last_success_at,omitzero"`
	// RetryAt is before when nothing is pushed; zero: there is no such time.
	RetryAt        time.Time `json:"retry_at,omitzero"`
	DisabledAt     time.Time `json:"disabled_at,omitzero"`
	DisabledReason string    `json:"disabled_reason,omitzero"`
	// Secret is the secret that requests are signed with: of a push that was created, or whose secret was rotated, by this call; else empty. It is not shown again.
	Secret string `json:"secret,omitzero"`
	// Secrets are those that sign, the current one first.
	Secrets []PushSecret `json:"secrets"`
	// Version grows with every change of the settings.
	Version   int64     `json:"version"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// UnmarshalJSON implements [json.Unmarshaler].
func (p *Push) UnmarshalJSON(text []byte) error {
	type plain Push
	in := struct {
		*plain
		Timeout      duration `json:"timeout"`
		DisableAfter duration `json:"disable_after"`
	}{plain: (*plain)(p)}
	err := json.Unmarshal(text, &in)
	p.Timeout, p.DisableAfter = time.Duration(in.Timeout), time.Duration(in.DisableAfter)
	return err
}

// MarshalJSON implements [json.Marshaler].
func (p Push) MarshalJSON() ([]byte, error) {
	type plain Push
	return encodeJSON(struct {
		plain
		Timeout      duration `json:"timeout"`
		DisableAfter duration `json:"disable_after"`
	}{plain(p), duration(p.Timeout), duration(p.DisableAfter)})
}

// A PushSecret is a secret without its text.
type PushSecret struct {
	CreatedAt time.Time `json:"created_at"`
	// LiveUntil is until when it signs; zero: it is the current one.
	LiveUntil time.Time `json:"live_until,omitzero"`
}

// PutPush sets where the events of a queue are pushed to. The push has its secret if the call has created it: if the answer to that was lost, rotate the
// secret. If ifVersion is not 0, it changes that version or returns [ErrPreconditionFailed].
func (c *Client) PutPush(ctx context.Context, queue string, settings PushSettings, ifVersion int64) (Push, error) {
	return c.push(ctx, Request{Method: http.MethodPut, Path: pushPath(queue, ""), Header: ifMatch(ifVersion), Body: settings})
}

// CreatePush is PutPush for a queue that is not pushed. Otherwise it returns [ErrPreconditionFailed]: so it does, too, when it is repeated after an answer that was lost.
func (c *Client) CreatePush(ctx context.Context, queue string, settings PushSettings) (Push, error) {
	return c.push(ctx, Request{Method: http.MethodPut, Path: pushPath(queue, ""), Header: ifAbsent(), Body: settings})
}

func (c *Client) push(ctx context.Context, req Request) (Push, error) {
	var p Push
	_, err := c.Do(ctx, req, &p)
	return p, err
}

// GetPush returns where the events of a queue are pushed to, or [ErrNotFound].
func (c *Client) GetPush(ctx context.Context, queue string) (Push, error) {
	return c.push(ctx, Request{Path: pushPath(queue, "")})
}

// DeletePush ends the push of a queue. Its events and its policy stay. If ifVersion is not 0, it deletes that version or returns [ErrPreconditionFailed].
func (c *Client) DeletePush(ctx context.Context, queue string, ifVersion int64) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: pushPath(queue, ""), Header: ifMatch(ifVersion)}, nil)
	return err
}

// RotatePushSecret gives a push another secret. Those before it go on signing for keep more at most; 0: 24 hours, negative: not at all. An uncertain
// call is not repeated: rotate again.
func (c *Client) RotatePushSecret(ctx context.Context, queue string, keep time.Duration) (Push, error) {
	var body rotateSecretRequest
	if keep != 0 {
		d := duration(max(0, keep))
		body.Keep = &d
	}
	return c.push(ctx, Request{Method: http.MethodPost, Path: pushPath(queue, "/secret"), Body: body})
}

type rotateSecretRequest struct {
	Keep *duration `json:"keep,omitzero"`
}

// A PushTest is the result of a test event.
type PushTest struct {
	// Delivered says that Status is 2xx.
	Delivered bool `json:"delivered"`
	// Status is 0 if no answer came; Error says why then.
	Status int    `json:"status,omitzero"`
	Error  string `json:"error,omitzero"`
	// MS is how long it took, in milliseconds.
	MS int64 `json:"ms"`
	// Excerpt is the beginning of the body of the answer.
	Excerpt string `json:"excerpt,omitzero"`
}

// TestPush sends an event of the type "queued.push.test" to the endpoint of a queue, and returns the result. Nothing is stored.
func (c *Client) TestPush(ctx context.Context, queue string) (PushTest, error) {
	var result PushTest
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: pushPath(queue, "/test")}, &result)
	return result, err
}

// EnablePush has a push begin anew at once that is disabled, or whose endpoint failed or asked for a pause.
func (c *Client) EnablePush(ctx context.Context, queue string) (Push, error) {
	return c.push(ctx, Request{Method: http.MethodPost, Path: pushPath(queue, "/enable"), Repeatable: true})
}

func pushPath(queue, call string) string { return "/queues/" + escape(queue) + "/push" + call }
