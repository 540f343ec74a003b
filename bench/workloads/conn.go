package workloads

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	dialTimeout = 10 * time.Second
	// replyTimeout is how long an answer may take beyond the wait that was asked for. The server gives up
	// on a statement after 30 s and says so.
	replyTimeout = 40 * time.Second
	// maxReply is more than a claim of 1,000 events of 64 KiB needs.
	maxReply = 1 << 30
)

// endpoint is where a server is, and how requests to it begin and end.
type endpoint struct {
	address string
	host    string
	tls     *tls.Config // nil for plain HTTP
	key     string
}

// newEndpoint reads the URL of a server.
func newEndpoint(text, key string) (*endpoint, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%q is no URL of a server; write it like http://127.0.0.1:8080", text)
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return nil, fmt.Errorf("%q has a path; queued serves at the root of its host, such as http://127.0.0.1:8080", text)
	}
	e := &endpoint{host: u.Host, key: key}
	port := u.Port()
	switch {
	case u.Scheme == "https":
		e.tls = &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
		if port == "" {
			port = "443"
		}
	case port == "":
		port = "80"
	}
	e.address = net.JoinHostPort(u.Hostname(), port)
	return e, nil
}

// request prepares the bytes of a request whose body follows or, when it is nil, that has none.
func (e *endpoint) request(method, path string, body []byte) []byte {
	return e.appendRequest(nil, method, path, body)
}

func (e *endpoint) appendRequest(dst []byte, method, path string, body []byte) []byte {
	dst = append(dst, method...)
	dst = append(dst, ' ')
	dst = append(dst, path...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, e.host...)
	if e.key != "" {
		dst = append(dst, "\r\nAuthorization: Bearer "...)
		dst = append(dst, e.key...)
	}
	if body != nil {
		dst = append(dst, "\r\nContent-Type: application/json\r\nContent-Length: "...)
		dst = strconv.AppendInt(dst, int64(len(body)), 10)
	}
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, body...)
}

// conn is one keep-alive connection, used by one goroutine. The requests are prepared bytes, the
// answers are read by fasthttp's parser, in place. A claim costs 13 µs of CPU so, the sockets of both ends included, and
// 25 µs with net/http's client (BenchmarkRequest).
type conn struct {
	at       *endpoint
	net      net.Conn
	reader   *bufio.Reader
	answer   fasthttp.Response
	deadline time.Time
}

// dial opens a connection to the server.
func dial(ctx context.Context, at *endpoint) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "tcp", at.address)
	if err != nil {
		return nil, fmt.Errorf("no server can be reached at %s: %w", at.address, err)
	}
	if at.tls != nil {
		secured := tls.Client(raw, at.tls)
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, fmt.Errorf("the server at %s: %w", at.address, err)
		}
		raw = secured
	}
	return &conn{at: at, net: raw, reader: bufio.NewReader(raw)}, nil
}

// do sends a prepared request and returns the answer, whose body is good until the next call. After
// an error the connection is of no more use.
func (c *conn) do(request []byte, wait time.Duration) (status int, body []byte, err error) {
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
	c.answer.Reset()
	if err := c.answer.ReadLimitBody(c.reader, maxReply); err != nil {
		return 0, nil, err
	}
	return c.answer.StatusCode(), c.answer.Body(), nil
}

// cut ends whatever is under way on the connection with an error, and whatever comes.
func (c *conn) cut() { _ = c.net.Close() }

func (c *conn) close() { _ = c.net.Close() }
