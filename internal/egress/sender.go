package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a request.
const (
	maxResponseHeader = 64 << 10 // bytes, with those of all 1xx responses before it
	maxResponseBody   = 64 << 10 // bytes that are read; of more, the connection is given up
	maxIdlePerHost    = 1000     // connections that are kept: as many as one endpoint may have requests in flight
	dialTimeout       = 30 * time.Second
	// idleTimeout is how long a connection is kept that nothing is sent on. Many servers close theirs after 5 s, such as Node.js and Apache do by
	// default: a request that is on its way then fails, and may have been worked on.
	idleTimeout = 4 * time.Second
)

// SenderConfig says how requests go out.
type SenderConfig struct {
	Guard   *Guard         // decides which URLs and addresses may be called
	Proxy   *url.URL       // as ParseProxy returns it; nil: none. The proxy then looks up names and decides which addresses may be called
	Version string         // of the program, for the field User-Agent
	Roots   *x509.CertPool // the authorities of certificates; nil: those of the system
	// Resolver looks up names; nil: that of the system.
	Resolver *net.Resolver
}

// A Sender sends requests to endpoints that others have configured. It follows no redirect, keeps no cookie and reads no proxy from the environment.
// It may be used by several goroutines at a time.
type Sender struct {
	guard     *Guard
	userAgent []string
	// One for each scheme, because the addresses that may be dialled depend on it.
	http, https *http.Transport
}

// NewSender returns a sender. Close ends its idle connections.
func NewSender(cfg SenderConfig) *Sender {
	s := &Sender{guard: cfg.Guard, userAgent: []string{"queued/" + cfg.Version}}
	s.http, s.https = s.transport("http", cfg), s.transport("https", cfg)
	return s
}

func (s *Sender) transport(scheme string, cfg SenderConfig) *http.Transport {
	dialer := net.Dialer{Timeout: dialTimeout, Resolver: cfg.Resolver}
	t := &http.Transport{
		DialContext:            dialer.DialContext, // to the proxy
		TLSClientConfig:        &tls.Config{RootCAs: cfg.Roots, ClientSessionCache: tls.NewLRUClientSessionCache(0), MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTimeout,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    maxIdlePerHost,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		ForceAttemptHTTP2:      true, // which a dialer of one's own otherwise turns off
		WriteBufferSize:        8 << 10,
	}
	if cfg.Proxy != nil {
		t.Proxy = http.ProxyURL(cfg.Proxy)
		t.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, response *http.Response) error {
			if response.StatusCode != http.StatusOK {
				return &Error{Reason: fmt.Sprintf("the proxy refused to connect: HTTP %d", response.StatusCode)}
			}
			return nil
		}
		return t
	}
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		guarded := dialer
		guarded.ControlContext = s.guard.Control(scheme, host)
		return guarded.DialContext(ctx, network, address)
	}
	return t
}

// Close closes the connections that no request uses.
func (s *Sender) Close() {
	s.http.CloseIdleConnections()
	s.https.CloseIdleConnections()
}

// A Request is a POST.
type Request struct {
	URL     string
	Header  http.Header // whose names are canonical; the sender adds User-Agent
	Body    []byte
	Timeout time.Duration // from the look-up of the name to the end of the response; more than zero
}

// Send makes one request. Whatever the endpoint has answered is a Response, also if that is no success. Otherwise the error is ctx's if that has ended, or an *Error:
// no answer came, or none that can be read. A request that failed may have been worked on, unless the error wraps ErrUnsendable.
//
// A request is sent once, except where the endpoint cannot have seen it: nothing was written to a connection that was kept, or HTTP/2 says that the
// request was not worked on. HTTP/2's PROTOCOL_ERROR counts as that, by the standard library.
func (s *Sender) Send(ctx context.Context, req Request) (Response, error) {
	started := time.Now()
	if err := checkFields(req.Header); err != nil {
		return Response{}, err
	}
	target, err := s.guard.ParseURL(req.URL)
	if err != nil {
		return Response{}, &Error{"the URL " + err.Error(), err}
	}
	transport := s.https
	if target.Scheme == "http" {
		transport = s.http
	}
	var progress progress
	limited, cancel := context.WithTimeout(ctx, req.Timeout)
	defer cancel()
	limited = httptrace.WithClientTrace(limited, &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { progress.connected.Store(true) },
		WroteRequest: func(info httptrace.WroteRequestInfo) { progress.sent.Store(info.Err == nil) },
	})
	// RoundTrip, not a Client: nothing is followed, and nothing kept.
	answer, err := transport.RoundTrip(s.newRequest(limited, target, req))
	if err != nil {
		if cause := ctx.Err(); cause != nil {
			return Response{}, cause
		}
		return Response{}, explain(err, target, req.Timeout, limited.Err() != nil, &progress)
	}
	defer func() { _ = answer.Body.Close() }()
	response := Response{Status: answer.StatusCode, RetryAfter: retryAfter(answer.Header, time.Now()), location: answer.Header.Get("Location")}
	response.Excerpt = readExcerpt(answer)
	response.Took = time.Since(started)
	return response, nil
}

// progress is how far a request has come. It is written by goroutines of the transport, also after its end.
type progress struct{ connected, sent atomic.Bool }

func (s *Sender) newRequest(ctx context.Context, target *url.URL, req Request) *http.Request {
	header := make(http.Header, len(req.Header)+1)
	maps.Copy(header, req.Header)
	header["User-Agent"] = s.userAgent
	body := func() (io.ReadCloser, error) {
		if len(req.Body) == 0 {
			return http.NoBody, nil
		}
		return io.NopCloser(bytes.NewReader(req.Body)), nil
	}
	first, _ := body()
	return (&http.Request{
		Method: http.MethodPost, URL: target, Host: target.Host, Header: header,
		Body: first, GetBody: body, ContentLength: int64(len(req.Body)),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
}

var bodyBuffers = sync.Pool{New: func() any { return new([4 << 10]byte) }}

// readExcerpt reads a body, so that its connection can be kept, to its end, to the limit, or until the request's context ends: a failure then
// changes nothing of the status that came before.
func readExcerpt(answer *http.Response) string {
	buffer := bodyBuffers.Get().(*[4 << 10]byte)
	defer bodyBuffers.Put(buffer)
	var kept, total int
	for total <= maxResponseBody {
		// The excerpt stays at the beginning; the rest is overwritten.
		n, err := answer.Body.Read(buffer[kept:])
		kept, total = min(kept+n, maxExcerpt), total+n
		if err != nil {
			break
		}
	}
	if answer.Header.Get("Content-Encoding") != "" { // though nothing of the kind was asked for
		return ""
	}
	return printable(buffer[:kept], maxExcerpt)
}

// isTimeout reports whether an error says that something took too long.
func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
