package egress

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queued/queued/internal/certtest"
)

// never is the timeout of requests that are never answered in full.
const never = 5 * time.Second

// listener accepts connections and hands each to serve, with the head and the body of the first request on it read, unless readsNothing.
func listener(t *testing.T, readsNothing bool, serve func(conn *net.TCPConn, in *bufio.Reader)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				in := bufio.NewReader(conn)
				if readsNothing || readRequest(in) == nil {
					serve(conn.(*net.TCPConn), in)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return "http://" + l.Addr().String()
}

// readRequest reads a request and its body.
func readRequest(in *bufio.Reader) error {
	r, err := http.ReadRequest(in)
	if err == nil {
		_, err = io.Copy(io.Discard, r.Body)
	}
	return err
}

// untilClosed waits until the client has closed its end.
func untilClosed(in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) }

func TestFailuresAreToldInPlainWords(t *testing.T) {
	t.Parallel()
	const refused = "http://127.0.0.1:1" // a port that nobody uses any more
	endless := func(first, each string) func(*net.TCPConn, *bufio.Reader) {
		return func(conn *net.TCPConn, _ *bufio.Reader) {
			_, err := io.WriteString(conn, first)
			for err == nil {
				_, err = io.WriteString(conn, each)
			}
		}
	}
	for name, c := range map[string]struct {
		url     string
		timeout time.Duration
		body    int
		want    string
	}{
		"no answer": {
			listener(t, false, func(_ *net.TCPConn, in *bufio.Reader) { untilClosed(in) }), never, 10, "timed out after 5s: no answer came",
		},
		"half an answer": {
			listener(t, false, func(conn *net.TCPConn, in *bufio.Reader) {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX: ")
				untilClosed(in)
			}), never, 10, "timed out after 5s: no answer came",
		},
		"nobody reads": {
			listener(t, true, func(_ *net.TCPConn, _ *bufio.Reader) { <-t.Context().Done() }), never, 64 << 20, "timed out after 5s: the request could not be sent in full",
		},
		"nobody speaks TLS": {
			"https" + strings.TrimPrefix(listener(t, true, func(_ *net.TCPConn, in *bufio.Reader) { untilClosed(in) }), "http"), never, 10,
			"timed out after 5s: no connection was made",
		},
		"nobody listens": {refused, enough, 10, "the connection was refused"},
		"reset": {
			listener(t, false, func(conn *net.TCPConn, _ *bufio.Reader) { _ = conn.SetLinger(0) }), enough, 10, "the connection was reset before an answer came",
		},
		"closed": {
			listener(t, false, func(*net.TCPConn, *bufio.Reader) {}), enough, 10, "the connection was closed before an answer came",
		},
		"half-closed": {
			listener(t, false, func(conn *net.TCPConn, in *bufio.Reader) {
				_ = conn.CloseWrite()
				untilClosed(in)
			}), enough, 10, "the connection was closed before an answer came",
		},
		"half-closed in the header": {
			listener(t, false, func(conn *net.TCPConn, in *bufio.Reader) {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX: y\r\n")
				_ = conn.CloseWrite()
				untilClosed(in)
			}), enough, 10, "the connection was closed before an answer came",
		},
		"another protocol": {
			listener(t, false, func(conn *net.TCPConn, in *bufio.Reader) {
				_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH\x1b[2J\r\n")
				untilClosed(in)
			}), enough, 10, `the request failed: net/http: HTTP/1.x transport connection broken: malformed HTTP response`,
		},
		"endless header": {
			listener(t, false, endless("HTTP/1.1 200 OK\r\n", "X-Filler: "+strings.Repeat("x", 1000)+"\r\n")), enough, 10, "server response headers exceeded 65536 bytes",
		},
		"endless line of a header": {
			listener(t, false, endless("HTTP/1.1 200 OK\r\nX: ", strings.Repeat("x", 1000))), enough, 10, "server response headers exceeded 65536 bytes",
		},
		"endless status line": {
			listener(t, false, endless("HTTP/1.1 200 ", strings.Repeat("x", 1000))), enough, 10, "server response headers exceeded 65536 bytes",
		},
		"endless 1xx": {
			listener(t, false, endless("", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")), enough, 10, "server response headers exceeded 65536 bytes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSender(t, nil)
			_, err := s.Send(t.Context(), Request{URL: c.url, Body: make([]byte, c.body), Timeout: c.timeout})
			if got := reasonOf(t, err); !strings.Contains(got, c.want) || strings.ContainsAny(got, "\n\r\x1b") || strings.Contains(got, "127.0.0.1") {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestFew1xxResponsesAreSkipped(t *testing.T) {
	t.Parallel()
	server := receiver(t, func(w http.ResponseWriter, _ *http.Request) {
		for range 20 {
			w.WriteHeader(http.StatusEarlyHints)
		}
		w.WriteHeader(http.StatusCreated)
	})
	if response := mustPost(t, newSender(t, nil), server.URL); response.Status != http.StatusCreated {
		t.Errorf("got %+v", response)
	}
}

func TestBodyOfAResponseIsReadUpToALimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		write   func(w http.ResponseWriter, flush func())
		timeout time.Duration
		excerpt string
	}{
		"endless": {func(w http.ResponseWriter, _ func()) {
			written := 0
			for err := error(nil); err == nil; written++ {
				_, err = w.Write(make([]byte, 1<<10))
			}
			if written > 64<<10 { // buffers of both ends take some
				t.Errorf("%d KiB of the response were taken", written)
			}
		}, enough, ""},
		"dripping": {func(w http.ResponseWriter, flush func()) {
			_, _ = io.WriteString(w, "wait…")
			flush()
		}, never, "wait…"},
		"broken off": {func(w http.ResponseWriter, flush func()) {
			_, _ = io.WriteString(w, "half")
			flush()
			panic(http.ErrAbortHandler)
		}, enough, "half"},
		"just the limit": {func(w http.ResponseWriter, _ func()) { _, _ = w.Write(make([]byte, maxResponseBody)) }, enough, ""},
		"long":           {func(w http.ResponseWriter, _ func()) { _, _ = io.WriteString(w, strings.Repeat("äö", 300)+"x") }, enough, strings.Repeat("äö", 256)},
		"compressed": {func(w http.ResponseWriter, _ func()) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "\x1f\x8b")
		}, enough, ""},
	} {
		for _, isHTTP2 := range []bool{false, true} {
			t.Run(map[bool]string{false: "HTTP1", true: "HTTP2"}[isHTTP2]+"/"+name, func(t *testing.T) {
				t.Parallel()
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/next" {
						return
					}
					c.write(w, func() { _ = http.NewResponseController(w).Flush() })
					if c.timeout == never {
						<-r.Context().Done()
					}
				}))
				server.EnableHTTP2 = isHTTP2
				server.StartTLS()
				t.Cleanup(server.Close)
				s := newSender(t, func(cfg *SenderConfig) { cfg.Roots = rootsOf(server) })
				response, err := s.Send(t.Context(), Request{URL: server.URL, Body: []byte("{}"), Timeout: c.timeout})
				if err != nil || response.Status != http.StatusOK || response.Excerpt != c.excerpt {
					t.Errorf("got %+v, %v", response, err)
				}
				if response := mustPost(t, s, server.URL+"/next"); !response.OK() {
					t.Errorf("the next request: %+v", response)
				}
			})
		}
	}
}

func TestBadTLSIsToldInPlainWords(t *testing.T) {
	t.Parallel()
	authority, stranger := certtest.New(t, "authority"), certtest.New(t, "stranger")
	hour := time.Hour
	serve := func(t *testing.T, by *certtest.Authority, req certtest.Request, change func(*tls.Config)) string {
		t.Helper()
		pair, err := tls.X509KeyPair(by.Issue(req))
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a request arrived") }))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		if change != nil {
			change(server.TLS)
		}
		server.Config.ErrorLog = discard
		server.StartTLS()
		t.Cleanup(server.Close)
		return server.URL
	}
	local := []string{"127.0.0.1"}
	for name, c := range map[string]struct {
		by     *certtest.Authority
		req    certtest.Request
		change func(*tls.Config)
		want   string
	}{
		"expired":          {authority, certtest.Request{Hosts: local, NotBefore: time.Now().Add(-2 * hour), NotAfter: time.Now().Add(-hour)}, nil, "the TLS certificate of 127.0.0.1 has expired or is not yet valid"},
		"not yet valid":    {authority, certtest.Request{Hosts: local, NotBefore: time.Now().Add(hour), NotAfter: time.Now().Add(2 * hour)}, nil, "the TLS certificate of 127.0.0.1 has expired or is not yet valid"},
		"another name":     {authority, certtest.Request{Hosts: []string{"a.example", "b.example"}}, nil, "the TLS certificate is not for 127.0.0.1, but for a.example, b.example"},
		"another address":  {authority, certtest.Request{Hosts: []string{"127.0.0.2"}}, nil, "the TLS certificate is not for 127.0.0.1"},
		"of a stranger":    {stranger, certtest.Request{Hosts: local}, nil, "the TLS certificate of 127.0.0.1 is signed by an authority that is not trusted"},
		"for clients":      {authority, certtest.Request{Name: "client"}, nil, "the TLS certificate"},
		"old protocol":     {authority, certtest.Request{Hosts: local}, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }, "the TLS handshake with 127.0.0.1 failed: tls: "},
		"wants to see one": {authority, certtest.Request{Hosts: local}, func(c *tls.Config) { c.ClientAuth = tls.RequireAnyClientCert }, "the TLS handshake with 127.0.0.1 failed: tls: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSender(t, func(cfg *SenderConfig) { cfg.Roots = authority.Pool() })
			_, err := post(t, s, serve(t, c.by, c.req, c.change))
			if got := reasonOf(t, err); !strings.HasPrefix(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		plain := httptest.NewUnstartedServer(http.NotFoundHandler())
		plain.Config.ErrorLog = discard
		plain.Start()
		t.Cleanup(plain.Close)
		_, err := post(t, newSender(t, nil), strings.Replace(plain.URL, "http", "https", 1))
		if got, want := reasonOf(t, err), "127.0.0.1 does not speak TLS at this port"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// A receiver that closes a connection which was kept: what arrived there is not sent again, by whomever.
func TestNoRequestIsSentTwice(t *testing.T) {
	t.Parallel()
	var arrived atomic.Int32
	connections := make(chan struct{}, 10)
	url := listener(t, true, func(conn *net.TCPConn, in *bufio.Reader) {
		connections <- struct{}{}
		for n := 0; readRequest(in) == nil; n++ {
			arrived.Add(1)
			if n > 0 {
				return // the second request of each connection is read, and not answered
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	s := newSender(t, nil)
	for i, wantOK := range []bool{true, false, true, false} {
		_, err := post(t, s, url)
		if (err == nil) != wantOK {
			t.Errorf("request %d: %v", i, err)
		}
		if !wantOK {
			t.Logf("request %d: %s", i, reasonOf(t, err))
		}
		if n := int(arrived.Load()); n != i+1 {
			t.Errorf("after request %d, %d have arrived", i, n)
		}
	}
	if len(connections) != 2 {
		t.Errorf("%d connections, want 2", len(connections))
	}
}

func TestConnectionsThatWereClosedWhileIdleAreReplaced(t *testing.T) {
	t.Parallel()
	var arrived atomic.Int32
	server := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		arrived.Add(1)
		if r.URL.Path == "/last" {
			w.Header().Set("Connection", "close")
		}
	})
	s := newSender(t, nil)
	mustPost(t, s, server.URL+"/last")
	mustPost(t, s, server.URL+"/") // on a new connection, as the server has said that it closes the other
	for range 5 {
		server.CloseClientConnections()
		sent, before := int32(0), arrived.Load()
		// The sender may learn of the end of the connection only by sending on it; that is a failure then.
		for err := errors.New("not sent"); err != nil; sent++ {
			_, err = post(t, s, server.URL)
		}
		if n := arrived.Load() - before; n > sent || sent > 2 {
			t.Errorf("%d requests were sent, and %d arrived", sent, n)
		}
	}
}

// As many requests as one endpoint may have in flight, on as many connections, which the next ones use again.
func TestThousandRequestsAtATimeKeepTheirConnections(t *testing.T) {
	t.Parallel()
	const inFlight = 1000
	var connections atomic.Int32
	var arrived atomic.Int32
	waves := []chan struct{}{make(chan struct{}), make(chan struct{})}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n := arrived.Add(1)
		wave := waves[(n-1)/inFlight]
		if n%inFlight == 0 {
			close(wave)
		}
		<-wave
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	s := newSender(t, nil)
	for range waves {
		var sending sync.WaitGroup
		for range inFlight {
			sending.Go(func() {
				if response, err := post(t, s, server.URL); err != nil || !response.OK() {
					t.Errorf("%+v, %v", response, err)
				}
			})
		}
		sending.Wait()
	}
	if n := connections.Load(); n > inFlight+inFlight/10 {
		t.Errorf("%d connections for twice %d requests: they are not used again", n, inFlight)
	}
}

func TestNothingOfAResponseIsKept(t *testing.T) {
	t.Parallel()
	server := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		if cookies := r.Cookies(); len(cookies) > 0 {
			t.Errorf("it has the cookies %v", cookies)
		}
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "b", Path: "/"})
	})
	s := newSender(t, nil)
	for range 2 {
		mustPost(t, s, server.URL)
	}
}
