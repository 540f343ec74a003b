package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queued/queued/internal/certtest"
	"github.com/queued/queued/internal/pgtest"
)

// secured is a running queued that serves TLS, with its files.
type secured struct {
	*program
	authority *certtest.Authority
	dir       string
}

// serveTLS serves a new database over TLS. environ may have DIR for the directory of the files: cert.pem, key.pem and ca.pem.
func serveTLS(t *testing.T, environ ...string) *secured {
	t.Helper()
	s := &secured{authority: certtest.New(t, "Test CA"), dir: t.TempDir()}
	s.issue(t, "first")
	certtest.Write(t, s.dir, "ca.pem", s.authority.PEM())
	for i, entry := range environ {
		environ[i] = strings.ReplaceAll(entry, "DIR", s.dir)
	}
	s.program = setup(t, append(environ, "QUEUED_TLS_CERT="+filepath.Join(s.dir, "cert.pem"), "QUEUED_TLS_KEY="+filepath.Join(s.dir, "key.pem"))...)
	return s
}

// issue replaces the server's certificate.
func (s *secured) issue(t *testing.T, name string) {
	t.Helper()
	cert, key := s.authority.Issue(certtest.Request{Name: name, Hosts: []string{"127.0.0.1", "queue.example"}})
	certtest.Write(t, s.dir, "cert.pem", cert)
	certtest.Write(t, s.dir, "key.pem", key)
}

// client returns a client that speaks HTTP/2 over one connection, and that shows a certificate of the authority, if it is given one.
func (s *secured) client(t *testing.T, authority *certtest.Authority) *http.Client {
	t.Helper()
	config := &tls.Config{RootCAs: s.authority.Pool(), MinVersion: tls.VersionTLS12}
	if authority != nil {
		pair, err := tls.X509KeyPair(authority.Issue(certtest.Request{Name: "mailer"}))
		if err != nil {
			t.Fatal(err)
		}
		// Not Certificates: of these the client shows only those that the server asks for.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 2 * waitTimeout}
}

// open sends a request over client, and returns the response with its body still open until the test ends.
func (s *secured) open(client *http.Client, method, path, body string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "https://"+s.addr+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	s.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// ask sends a request over client and returns the response, which must have the status.
func (s *secured) ask(client *http.Client, status int, method, path, body string) answer {
	s.t.Helper()
	res := s.open(client, method, path, body) //nolint:bodyclose // open closes it
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if res.StatusCode != status {
		s.t.Fatalf("%s %s answered %d %s, want %d", method, path, res.StatusCode, text, status)
	}
	return answer{res.StatusCode, string(text), res.Header}
}

// shown returns the name in the certificate that a new connection is shown.
func (s *secured) shown() string {
	s.t.Helper()
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: waitTimeout}, Config: &tls.Config{RootCAs: s.authority.Pool(), MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(s.t.Context(), "tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
}

func TestTLSServesHTTP2AndHTTP1(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, "QUEUED_ACCESS_LOG=all")
	if url := s.waitFor("serving")["url"]; url != "https://"+s.addr {
		t.Errorf("it says that it serves at %v", url)
	}
	client := s.client(t, nil)
	if res := s.open(client, http.MethodGet, "/version", ""); res.Proto != "HTTP/2.0" || res.TLS.Version != tls.VersionTLS13 { //nolint:bodyclose // open closes it
		t.Errorf("a new client gets %s over %s", res.Proto, tls.VersionName(res.TLS.Version))
	}
	s.ask(client, http.StatusCreated, http.MethodPost, "/events", `{"n":1}`)
	if got := s.ask(client, http.StatusOK, http.MethodPost, "/claim", "").body; !strings.Contains(got, `"n":1`) {
		t.Errorf("claimed %s", got)
	}
	if got := s.ask(client, http.StatusOK, http.MethodGet, "/metrics", "").body; !strings.Contains(got, "\nqueued_tls_certificate_expiration_timestamp_seconds 1.") ||
		!strings.Contains(got, "\nqueued_tls_reload_failures_total 0\n") {
		t.Error("the metrics of the certificate are missing")
	}

	if strings.Contains(s.output(), `"client":`) {
		t.Error("requests are logged with a client's certificate, and none was asked for")
	}

	old := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.authority.Pool(), MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}}
	t.Cleanup(old.CloseIdleConnections)
	if res := s.open(&http.Client{Transport: old}, http.MethodGet, "/version", ""); res.Proto != "HTTP/1.1" || res.TLS.Version != tls.VersionTLS12 { //nolint:bodyclose // open closes it
		t.Errorf("a client that knows no HTTP/2 gets %s over %s", res.Proto, tls.VersionName(res.TLS.Version))
	}
	tooOld := tls.Dialer{Config: &tls.Config{RootCAs: s.authority.Pool(), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}}
	if conn, err := tooOld.DialContext(t.Context(), "tcp", s.addr); err == nil {
		_ = conn.Close()
		t.Error("TLS 1.1 is accepted")
	}
}

func TestPlainHTTPAtTheTLSPortIsAnsweredReadably(t *testing.T) {
	t.Parallel()
	s := serveTLS(t)
	got := s.want(http.StatusBadRequest, http.MethodGet, "/livez", "")
	if !strings.Contains(got.body, "Client sent an HTTP request to an HTTPS server") {
		t.Errorf("got %q", got.body)
	}
}

func TestHealthcheckAsksOverTLSWhateverTheNameInTheCertificate(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, "QUEUED_TLS_CLIENT_CA=DIR/ca.pem")
	certificate := "QUEUED_TLS_CERT=" + filepath.Join(s.dir, "cert.pem")
	check := startProgram(t, []string{"healthcheck"}, []string{"QUEUED_LISTEN=" + s.addr, certificate})
	if code := check.wait(); code != exitOK || check.stdout.String() != "ready\n" {
		t.Errorf("exit code %d, %q, %q", code, check.stdout.String(), check.output())
	}
	plain := startProgram(t, []string{"healthcheck"}, []string{"QUEUED_LISTEN=" + s.addr})
	if code := plain.wait(); code != exitFailure || !strings.Contains(plain.output(), "an HTTPS server") {
		t.Errorf("without the certificate's setting: exit code %d, %q", code, plain.output())
	}
}

func TestChangedCertificateIsShownToNewConnections(t *testing.T) {
	t.Parallel()
	s := serveTLS(t)
	client := s.client(t, nil)
	s.ask(client, http.StatusOK, http.MethodGet, "/livez", "")
	s.issue(t, "second")
	s.waitFor("the certificate has changed and was read again")
	if got := s.shown(); got != "second" {
		t.Errorf("a new connection is shown the certificate of %q", got)
	}
	certtest.Write(t, s.dir, "cert.pem", []byte("half a certif"))
	kept := s.waitFor("the certificate's files have changed and cannot be used; the certificate that was read before stays")
	if text, _ := kept["error"].(string); !strings.HasPrefix(text, "QUEUED_TLS_CERT: ") || kept["kept"] != "CN=second" {
		t.Errorf("the log says %v", kept)
	}
	if got := s.shown(); got != "second" {
		t.Errorf("after a broken change a new connection is shown the certificate of %q", got)
	}
	if got := s.ask(client, http.StatusOK, http.MethodGet, "/metrics", "").body; !strings.Contains(got, "\nqueued_tls_reload_failures_total 1\n") {
		t.Error("the failure is not counted")
	}
}

func TestClientCAIsRequiredOfEveryCallButHealthChecks(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, "QUEUED_TLS_CLIENT_CA=DIR/ca.pem", "QUEUED_ACCESS_LOG=all", "QUEUED_API_KEY=a-key-of-the-tests")
	foreign := certtest.New(t, "Test CA")
	for name, client := range map[string]*http.Client{"no certificate": s.client(t, nil), "one of another authority": s.client(t, foreign)} {
		s.ask(client, http.StatusOK, http.MethodGet, "/livez", "")
		s.ask(client, http.StatusOK, http.MethodGet, "/readyz", "")
		for _, call := range []string{"GET /queues", "POST /claim", "GET /metrics", "GET /docs", "GET /nothing"} {
			method, path, _ := strings.Cut(call, " ")
			if got := s.ask(client, http.StatusUnauthorized, method, path, "").decode(t); got["code"] != "client_certificate_required" {
				t.Errorf("%s, %s: got %v", name, call, got)
			}
		}
	}
	if got := s.ask(s.client(t, foreign), http.StatusUnauthorized, http.MethodGet, "/queues", "").decode(t)["detail"]; !strings.Contains(fmt.Sprint(got), "unknown authority") {
		t.Errorf("a certificate of another authority is answered %q", got)
	}
	// The key is needed besides.
	known := s.client(t, s.authority)
	if got := s.ask(known, http.StatusUnauthorized, http.MethodGet, "/queues", "").decode(t)["code"]; got != "unauthorized" {
		t.Errorf("without a key: %v", got)
	}
	s.waitForLine("the client's subject", func(line string) bool {
		return strings.Contains(line, `"client":"CN=mailer"`) && strings.Contains(line, `"code":"unauthorized"`)
	})

	certtest.Write(t, s.dir, "ca.pem", foreign.PEM())
	s.waitFor("the certificate has changed and was read again")
	if got := s.ask(known, http.StatusUnauthorized, http.MethodGet, "/queues", "").decode(t)["code"]; got != "client_certificate_required" {
		t.Errorf("a connection of an authority that was removed is answered %v", got)
	}
}

func TestWrongTLSSettingsAreUsageErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority := certtest.New(t, "CA")
	cert, key := authority.Issue(certtest.Request{Name: "s", Hosts: []string{"queue.example"}})
	expired, expiredKey := authority.Issue(certtest.Request{Name: "s", Hosts: []string{"queue.example"}, NotAfter: time.Now().Add(-time.Second)})
	for name, content := range map[string][]byte{"cert": cert, "key": key, "expired": expired, "expired.key": expiredKey} {
		certtest.Write(t, dir, name, content)
	}
	for want, environ := range map[string][]string{
		"QUEUED_TLS_CERT: a certificate needs its private key; set QUEUED_TLS_KEY, too":   {"QUEUED_TLS_CERT=DIR/cert"},
		"QUEUED_TLS_KEY: a private key needs its certificate; set QUEUED_TLS_CERT, too":   {"QUEUED_TLS_KEY=DIR/key"},
		"QUEUED_TLS_CLIENT_CA: client certificates need TLS; set QUEUED_TLS_CERT and":     {"QUEUED_TLS_CLIENT_CA=DIR/cert"},
		"QUEUED_TLS_KEY: the key in DIR/expired.key does not belong to the certificate":   {"QUEUED_TLS_CERT=DIR/cert", "QUEUED_TLS_KEY=DIR/expired.key"},
		"QUEUED_TLS_CERT: the certificate in DIR/expired expired on ":                     {"QUEUED_TLS_CERT=DIR/expired", "QUEUED_TLS_KEY=DIR/expired.key"},
		"QUEUED_TLS_KEY: open DIR/none: no such file or directory":                        {"QUEUED_TLS_CERT=DIR/cert", "QUEUED_TLS_KEY=DIR/none"},
		"QUEUED_TLS_CLIENT_CA: DIR/key has no certificate; it takes PEM":                  {"QUEUED_TLS_CERT=DIR/cert", "QUEUED_TLS_KEY=DIR/key", "QUEUED_TLS_CLIENT_CA=DIR/key"},
		"QUEUED_TLS_CERT: open DIR/none: no such file or directory\nQUEUED_TLS_KEY: open": {"QUEUED_TLS_CERT=DIR/none", "QUEUED_TLS_KEY=DIR/nothing"},
	} {
		for i, entry := range environ {
			environ[i] = strings.ReplaceAll(entry, "DIR", dir)
		}
		code, _, stderr := runHere(t, nil, append(environ, "QUEUED_LISTEN=127.0.0.1:0"))
		if code != exitUsage || !strings.HasPrefix(stderr, "queued: "+strings.ReplaceAll(want, "DIR", dir)) {
			t.Errorf("%q: exit code %d and %q, want %q", environ, code, stderr, want)
		}
	}
}

func TestWelcomeOverTLSNamesTheCertificate(t *testing.T) {
	t.Parallel()
	s := &secured{authority: certtest.New(t, "CA"), dir: t.TempDir()}
	s.issue(t, "first")
	p := startProgram(t, nil, []string{
		"QUEUED_DATABASE_URL=" + pgtest.New(t).ServiceURL, "QUEUED_LOG_FORMAT=console",
		"QUEUED_TLS_CERT=" + filepath.Join(s.dir, "cert.pem"), "QUEUED_TLS_KEY=" + filepath.Join(s.dir, "key.pem"),
	})
	p.waitForLine("Ctrl-C", func(line string) bool { return strings.Contains(line, "Ctrl-C stops it") })
	for _, want := range []string{"queued is ready at https://127.0.0.1:", "The certificate is for queue.example, 127.0.0.1."} {
		if !strings.Contains(p.output(), want) {
			t.Errorf("it does not say %q", want)
		}
	}
}

// traceConnections reports the connections that a client's requests use.
func traceConnections(ctx context.Context, addresses chan<- string) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { addresses <- info.Conn.LocalAddr().String() }})
}

// TestSlowReaderOfOneStreamHoldsUpNoOther fills a stream that is not read, and has other calls answered over its connection meanwhile.
func TestSlowReaderOfOneStreamHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	s := serveTLS(t)
	client := s.client(t, nil)
	connections := make(chan string, 1000)
	send := func(method, path, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(traceConnections(t.Context(), connections), method, "https://"+s.addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		if err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
	slow := send(http.MethodGet, "/stream?topic=big", "")                      //nolint:bodyclose // send closes it
	other := bufio.NewReader(send(http.MethodGet, "/stream?topic=*", "").Body) //nolint:bodyclose // send closes it
	big := `{"text":"` + strings.Repeat("x", 512<<10) + `"}`
	const count = 24 // 12 MiB: three times what this client takes of one stream without reading it
	for n := range count {
		if res := send(http.MethodPost, "/topics/big", big); res.StatusCode != http.StatusCreated { //nolint:bodyclose // send closes it
			t.Fatalf("publication %d: %s", n, res.Status)
		}
	}
	seen := 0
	for seen < count {
		line, err := other.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "event: big") {
			seen++
		}
	}
	// Claims, too, and those that wait.
	if res := send(http.MethodPost, "/claim", `{"wait":"10ms"}`); res.StatusCode != http.StatusOK { //nolint:bodyclose // send closes it
		t.Errorf("a claim was answered %s", res.Status)
	}
	close(connections)
	first := <-connections
	for address := range connections {
		if address != first {
			t.Fatalf("the requests took several connections: the test shows nothing")
		}
	}
	// The slow reader gets everything, once it reads.
	reader := bufio.NewReader(slow.Body)
	for seen = 0; seen < count; {
		line, err := reader.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "event: big") {
			seen++
		}
	}
}

// TestSIGTERMEndsHTTP2InOrder has a waiting claim, a stream and a half-sent request on one connection when the server is told to stop.
func TestSIGTERMEndsHTTP2InOrder(t *testing.T) {
	t.Parallel()
	s := serveTLS(t)
	client := s.client(t, nil)
	stream := s.open(client, http.MethodGet, "/stream", "") //nolint:bodyclose // open closes it
	body, half := io.Pipe()
	type result struct {
		status int
		body   string
		err    error
	}
	do := func(path string, body io.Reader) (answered <-chan result, sent <-chan struct{}) {
		done, wrote := make(chan result, 1), make(chan struct{})
		trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { close(wrote) }}
		req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodPost, "https://"+s.addr+path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		go func() {
			res, err := client.Do(req)
			if err != nil {
				done <- result{err: err}
				return
			}
			text, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			done <- result{res.StatusCode, string(text), err}
		}()
		return done, wrote
	}
	post, _ := do("/events", body)
	claim, sent := do("/claim", strings.NewReader(`{"wait":"60s","queue":"nothing-here"}`))
	if _, err := io.WriteString(half, `{"sent":`); err != nil { // the client takes it when the request has gone out
		t.Fatal(err)
	}
	<-sent
	s.ask(client, http.StatusOK, http.MethodGet, "/livez", "") // the server has read the others, which came before on the same connection
	s.signal(syscall.SIGTERM)
	told := time.Now()
	got := <-claim
	if took := time.Since(told); took > 20*time.Second {
		t.Errorf("the claim was answered %s after the signal", took)
	}
	if got.err != nil || got.status != http.StatusOK || !strings.Contains(got.body, `"events":[]`) {
		t.Errorf("the waiting claim got %+v", got)
	}
	if text, err := io.ReadAll(stream.Body); err != nil || !strings.HasSuffix(string(text), "\n\n") || !strings.Contains(string(text), "retry: ") {
		t.Errorf("the stream ended with %v: %q", err, text)
	}
	if _, err := io.WriteString(half, `"in two parts"}`); err != nil {
		t.Fatal(err)
	}
	_ = half.Close()
	if got := <-post; got.err != nil || got.status != http.StatusCreated {
		t.Errorf("the request in progress got %+v", got)
	}
	if code := s.wait(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
