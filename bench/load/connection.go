package load

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	dialTimeout = 10 * time.Second
	// replyTimeout is how long a response may take beyond the wait that was asked for. The server gives up
	// on a statement after 30 s and says so.
	replyTimeout = 40 * time.Second
	// maxReply is more than a claim of 1,000 events of 64 KiB needs.
	maxReply = 1 << 30
)

// Target is the address of a server, with the header of every request to it.
type Target struct {
	Address string // host and port
	host    string
	tls     *tls.Config // nil for plain HTTP
	key     string
}

// NewTarget reads the URL of a server. Its API key may be empty.
func NewTarget(text, key string) (*Target, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the URL of a server; expected one such as http://127.0.0.1:8080", text)
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, fmt.Errorf("%q has a path; queued serves at the root of its host, such as http://127.0.0.1:8080", text)
	}
	t := &Target{host: u.Host, key: key}
	port := u.Port()
	switch {
	case u.Scheme == "https":
		t.tls = &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
		if port == "" {
			port = "443"
		}
	case port == "":
		port = "80"
	}
	t.Address = net.JoinHostPort(u.Hostname(), port)
	return t, nil
}

// Get requests a page over a connection of its own. It fails with a *StatusError when the status is not 200.
func (t *Target) Get(ctx context.Context, path string) ([]byte, error) {
	return t.call(ctx, "GET", path, nil, 200)
}

// call makes one request over a connection of its own, and returns the body of the response. It fails with a *StatusError when the status is another than those.
func (t *Target) call(ctx context.Context, method, path string, body []byte, want ...int) ([]byte, error) {
	c, err := dial(ctx, t)
	if err != nil {
		return nil, err
	}
	defer c.close()
	status, answer, err := c.do(t.appendRequest(nil, method, path, body), 0)
	switch {
	case err != nil:
		return nil, fmt.Errorf("asking %s for %s: %w", t.Address, path, err)
	case status == 401:
		return nil, fmt.Errorf("the server at %s requires an API key: give the right one with --api-key or QUEUED_API_KEY", t.Address)
	case !slices.Contains(want, status):
		return nil, &StatusError{Path: path, Status: status, Code: problemCode(answer)}
	}
	return bytes.Clone(answer), nil
}

// StatusError is a response with another status than that of success.
type StatusError struct {
	Path   string
	Status int
	Code   string // of the problem; empty: none
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: status %d %s", e.Path, e.Status, e.Code)
}

// appendRequest appends the bytes of a request to dst. A nil body is none.
func (t *Target) appendRequest(dst []byte, method, path string, body []byte) []byte {
	dst = append(dst, method...)
	dst = append(dst, ' ')
	dst = append(dst, path...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, t.host...)
	if t.key != "" {
		dst = append(dst, "\r\nAuthorization: Bearer "...)
		dst = append(dst, t.key...)
	}
	if body != nil {
		dst = append(dst, "\r\nContent-Type: application/json\r\nContent-Length: "...)
		dst = strconv.AppendInt(dst, int64(len(body)), 10)
	}
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, body...)
}

// connection is one keep-alive connection, used by one goroutine. The requests are prepared bytes, the
// responses are read by fasthttp's parser, in place. A claim costs 13 µs of CPU this way, the sockets of both ends included, and
// 25 µs with net/http's client (BenchmarkRequest).
type connection struct {
	net      net.Conn
	reader   *bufio.Reader
	response fasthttp.Response
	deadline time.Time
}

func dial(ctx context.Context, t *Target) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", t.Address)
	if err != nil {
		return nil, fmt.Errorf("the server at %s cannot be reached: %w", t.Address, err)
	}
	if t.tls != nil {
		secured := tls.Client(raw, t.tls)
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, fmt.Errorf("the server at %s: %w", t.Address, err)
		}
		raw = secured
	}
	return &connection{net: raw, reader: bufio.NewReader(raw)}, nil
}

// do sends a prepared request and returns the response, whose body is valid until the next call. After
// an error the connection is of no more use.
func (c *connection) do(request []byte, wait time.Duration) (status int, body []byte, err error) {
	// Moving the deadline costs more than it is worth at each request.
	if limit := time.Now().Add(wait + replyTimeout); limit.Sub(c.deadline) > time.Second {
		if err := c.net.SetDeadline(limit); err != nil {
			return 0, nil, err
		}
		c.deadline = limit
	}
	if _, err := c.net.Write(request); err != nil {
		return 0, nil, err
	}
	c.response.Reset()
	if err := c.response.ReadLimitBody(c.reader, maxReply); err != nil {
		return 0, nil, err
	}
	return c.response.StatusCode(), c.response.Body(), nil
}

func (c *connection) close() { _ = c.net.Close() }
