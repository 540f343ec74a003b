package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Defaults of [Config].
const (
	DefaultTimeout     = 30 * time.Second
	DefaultRetryFor    = 30 * time.Second
	DefaultMaxResponse = 64 << 20
)

// Config says how to reach a server. Only URL is required.
type Config struct {
	// URL is where the server is, such as "https://queued.example" or "http://127.0.0.1:8080"; it may have a path.
	URL string
	// Key is the API key; empty: calls are sent without one.
	Key string
	// HTTPClient sends the requests; nil: one of the client's own, which [Client.Close] closes. Its Timeout should be 0, because it would
	// end long polls and streams. An error of its Transport with a method Permanent() bool that returns true is not worth another try.
	HTTPClient *http.Client
	// UserAgent names the program in the server's log; empty: "queued-client".
	UserAgent string
	// Timeout bounds one try of a call, besides the time that the call asks the server to wait; 0: [DefaultTimeout], negative: no bound.
	Timeout time.Duration
	// RetryFor bounds the time from the first try of a call to its last; 0: [DefaultRetryFor], negative: calls are tried once, and no
	// idempotency keys are made.
	RetryFor time.Duration
	// MaxResponse bounds a response, and one event of a stream, in bytes; 0: [DefaultMaxResponse].
	MaxResponse int64
	// SendInsertsAlone has [Client.Insert] send each event with a request of its own. Otherwise events that are inserted while others are on their way go with the next
	// request. None waits for a timer, and what one goroutine inserts is sent at once.
	SendInsertsAlone bool
	// SendPublicationsAlone is the same for [Client.Publish].
	SendPublicationsAlone bool
}

// A Client calls a server. Many goroutines can use one.
type Client struct {
	base   string // URL without a slash at its end
	key    string
	agent  string
	http   *http.Client
	owned  *http.Transport // nil if http is the caller's
	limits limits
	// isPart: it asks one of several cells for its part of an answer, which the others need not wait for while that cell is away.
	isPart bool
	// inserts and publications have the events of several goroutines sent together; nil: each has a request of its own.
	inserts      *coalescer[NewEvent, Inserted]
	publications *coalescer[NewPublication, Published]
}

// limits bound a call.
type limits struct {
	timeout, retryFor time.Duration
	maxResponse       int64
}

// New returns a client. It sends nothing yet: an error says that cfg is wrong.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("client: the URL of the server: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("client: the URL of the server is %q; want one such as http://127.0.0.1:8080", cfg.URL)
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return nil, errors.New("client: the URL of the server must have no user, query or fragment; the API key goes into Key")
	case strings.ContainsAny(cfg.Key, "\r\n"):
		return nil, errors.New("client: the API key must not have line breaks")
	case cfg.MaxResponse < 0:
		return nil, errors.New("client: MaxResponse must not be negative")
	}
	c := &Client{
		base:  strings.TrimRight(u.String(), "/"),
		key:   cfg.Key,
		agent: cmp.Or(cfg.UserAgent, "queued-client"),
		http:  cfg.HTTPClient,
		limits: limits{
			timeout:     cmp.Or(cfg.Timeout, DefaultTimeout),
			retryFor:    cmp.Or(cfg.RetryFor, DefaultRetryFor),
			maxResponse: cmp.Or(cfg.MaxResponse, DefaultMaxResponse),
		},
	}
	if c.http == nil {
		c.owned = new(http.Transport)
		if standard, ok := http.DefaultTransport.(*http.Transport); ok {
			c.owned = standard.Clone()
		}
		c.owned.MaxIdleConns, c.owned.MaxIdleConnsPerHost = 0, 100 // all of them lead to one host
		c.http = &http.Client{Transport: c.owned}
	}
	if !cfg.SendInsertsAlone {
		c.inserts = &coalescer[NewEvent, Inserted]{c: c, alone: c.insertAlone, together: c.insertTogether}
	}
	if !cfg.SendPublicationsAlone {
		c.publications = &coalescer[NewPublication, Published]{c: c, alone: c.publishAlone, together: c.publishTogether}
	}
	return c, nil
}

// Close closes the connections that no call uses, and with them their goroutines. The client can still be used.
func (c *Client) Close() {
	if c.owned != nil {
		c.owned.CloseIdleConnections()
	}
}

// makesKeys reports whether calls are sent under idempotency keys that the client makes.
func (c *Client) makesKeys() bool { return c.limits.retryFor >= 0 }

// A Request is a call of any route, for [Client.Do].
type Request struct {
	// Method is the HTTP method; empty: GET.
	Method string
	// Path is the path of the call, such as "/events/1042"; [url.PathEscape] escapes names in it.
	Path string
	// Query has the parameters of the query.
	Query url.Values
	// Header has further header fields, such as If-Match.
	Header http.Header
	// Body is sent as JSON unless it is nil; a [json.RawMessage] is sent as it is.
	Body any
	// Wait is how long the request asks the server to wait at most. The time limit of each try is that much longer.
	Wait time.Duration
	// Repeatable says that the call may be repeated when it is not known whether the server has carried it out: after a broken connection,
	// or status 502, 503 or 504. GET and HEAD always are, PUT and DELETE unless there is an If-Match; set it for other calls that do the same
	// when they are made twice, or that have an idempotency key. A call that was certainly not carried out is repeated in any case.
	Repeatable bool

	cellsApart bool // the error of a cell behind a gateway is returned at once: calls to others need not wait for that cell
}

// A Response is the answer of the server without the body.
type Response struct {
	Status int
	Header http.Header
}

// Replayed reports whether the request had been made before under its idempotency key: nothing was stored this time.
func (r *Response) Replayed() bool { return r.Header.Get("Idempotency-Replayed") == "true" }

// Do calls any route, also one that this package has no method for, and decodes the response into out, unless that is nil. With a
// [*json.RawMessage] out gets the body as it is. A status of 400 or more is an [*Error]. Calls are retried as Config.RetryFor and
// Request.Repeatable say, with growing pauses, and not before a Retry-After of the server.
func (c *Client) Do(ctx context.Context, req Request, out any) (*Response, error) {
	body, err := req.encode()
	if err != nil {
		return nil, err
	}
	return repeat(ctx, c, req, func() (*Response, error) { return c.try(ctx, req, body, out) })
}

// repeat tries a call until it succeeds, or another try is not allowed or worth it.
func repeat[T any](ctx context.Context, c *Client, req Request, try func() (T, error)) (answer T, err error) {
	deadline := time.Now().Add(c.limits.retryFor)
	for n := 1; ; n++ {
		answer, err = try()
		if err == nil || ctx.Err() != nil {
			return answer, err
		}
		if d := doubtOf(err); d == refused || d == uncertain && !req.isRepeatable() {
			return answer, err
		}
		if (req.cellsApart || c.isPart) && cellOf(err) != nil {
			return answer, err
		}
		pause := pauseBefore(n, err)
		if time.Now().Add(pause).After(deadline) || sleep(ctx, pause) != nil {
			return answer, err
		}
	}
}

func (r *Request) method() string { return cmp.Or(r.Method, http.MethodGet) }

// isRepeatable reports whether the call can be made twice and have the effect of one.
func (r *Request) isRepeatable() bool {
	switch r.method() {
	case http.MethodGet, http.MethodHead:
		return true
	case http.MethodPut, http.MethodDelete:
		return r.Header.Get("If-Match") == "" // the first call may have changed the version
	}
	return r.Repeatable
}

func (r *Request) encode() ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	body, err := encodeJSON(r.Body)
	if err != nil {
		return nil, fmt.Errorf("client: the body of %s %s: %w", r.method(), r.Path, err)
	}
	return body, nil
}

// newRequest returns the request as net/http sends it.
func (c *Client) newRequest(ctx context.Context, req Request, body []byte) (*http.Request, error) {
	target := c.base + req.Path
	if len(req.Query) > 0 {
		target += "?" + req.Query.Encode()
	}
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, req.method(), target, reader)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	maps.Copy(r.Header, req.Header)
	r.Header.Set("User-Agent", c.agent)
	if r.Header.Get("Accept") == "" {
		r.Header.Set("Accept", "application/json, application/problem+json")
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	return r, nil
}

// errNotJSON is in the error of a response that cannot be decoded.
var errNotJSON = errors.New("the response is not what the contract says")

// try makes a call once.
func (c *Client) try(ctx context.Context, req Request, body []byte, out any) (*Response, error) {
	if c.limits.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.limits.timeout+req.Wait, errNoAnswer)
		defer cancel()
	}
	r, err := c.newRequest(ctx, req, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := c.readAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("client: the response of %s %s: %w", req.method(), req.Path, causeOf(ctx, err))
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return nil, errorOf(req.method(), req.Path, resp, text)
	}
	answer := &Response{Status: resp.StatusCode, Header: resp.Header}
	if out == nil || resp.StatusCode == http.StatusNoContent {
		return answer, nil
	}
	if raw, ok := out.(*json.RawMessage); ok {
		*raw = text
		return answer, nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("client: %s %s, status %d: %w: %w", req.method(), req.Path, resp.StatusCode, errNotJSON, err)
	}
	return answer, nil
}

// readAll reads a body up to the limit of a response.
func (c *Client) readAll(body io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(body, c.limits.maxResponse+1))
	if err == nil && int64(len(text)) > c.limits.maxResponse {
		err = ErrResponseTooLarge
	}
	return text, err
}

// causeOf returns err with the reason why ctx has ended, if that is why.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}
