package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// enough is the timeout of requests that are answered.
const enough = 30 * time.Second

// newSender returns a sender that may call loopback, with changes to its configuration.
func newSender(tb testing.TB, change func(*SenderConfig)) *Sender {
	tb.Helper()
	cfg := SenderConfig{Guard: newGuard(tb, "127.0.0.1", "::1"), Version: "1.2.3"}
	if change != nil {
		change(&cfg)
	}
	s := NewSender(cfg)
	tb.Cleanup(s.Close)
	return s
}

// receiver serves requests with handle.
func receiver(tb testing.TB, handle http.HandlerFunc) *httptest.Server {
	tb.Helper()
	server := httptest.NewServer(handle)
	tb.Cleanup(server.Close)
	return server
}

// post sends a body to a URL and returns what Send returns.
func post(tb testing.TB, s *Sender, url string) (Response, error) {
	tb.Helper()
	return s.Send(tb.Context(), Request{URL: url, Header: make(http.Header), Body: []byte(`{"n":1}`), Timeout: enough})
}

// mustPost is post of what must be answered.
func mustPost(tb testing.TB, s *Sender, url string) Response {
	tb.Helper()
	response, err := post(tb, s, url)
	if err != nil {
		tb.Fatal(err)
	}
	return response
}

// reasonOf returns the text of an error that must be an *Error.
func reasonOf(tb testing.TB, err error) string {
	tb.Helper()
	known, ok := errors.AsType[*Error](err)
	if !ok {
		tb.Fatalf("got %v, want an *Error", err)
	}
	return known.Reason
}

func TestRequestArrivesAsItWasSigned(t *testing.T) {
	t.Parallel()
	signer, signedAt := newSigner(t, NewSecret()), time.Now()
	body := []byte(`{"type":"order.paid","data":{"a":"ü"}}`)
	server := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		got, _ := io.ReadAll(r.Body)
		want := make(http.Header)
		if err := signer.Sign(want, "42", signedAt, got); err != nil {
			t.Error(err)
		}
		for name := range want {
			if r.Header.Get(name) != want.Get(name) {
				t.Errorf("the receiver cannot verify it: %s is %q, want %q", name, r.Header.Get(name), want.Get(name))
			}
		}
		if r.Method != http.MethodPost || r.URL.RequestURI() != "/hook/%2F?a=b" || r.ContentLength != int64(len(body)) {
			t.Errorf("got %s %s with %d bytes", r.Method, r.URL.RequestURI(), r.ContentLength)
		}
		for name, want := range map[string]string{"User-Agent": "queued/1.2.3", "X-Mine": "yes", "Accept-Encoding": ""} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "taken\r\n\x1b[31m  \xff\u202e ü")
	})
	header := Headers(map[string]string{"x-mine": "yes"})
	if err := signer.Sign(header, "42", signedAt, body); err != nil {
		t.Fatal(err)
	}
	response, err := newSender(t, nil).Send(t.Context(), Request{URL: server.URL + "/hook/%2F?a=b", Header: header, Body: body, Timeout: enough})
	if err != nil || !response.OK() || response.Status != http.StatusAccepted || response.Failure() != "" || response.Took <= 0 {
		t.Errorf("got %+v, %v", response, err)
	}
	if want := "taken   [31m  \ufffd  ü"; response.Excerpt != want {
		t.Errorf("excerpt %q, want %q", response.Excerpt, want)
	}
	if header.Get("User-Agent") != "" {
		t.Error("the caller's header was changed")
	}
}

func TestOnly2xxIsOK(t *testing.T) {
	t.Parallel()
	server := receiver(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(http.StatusNoContent)
		case "/302":
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data", http.StatusFound)
		case "/304":
			w.WriteHeader(http.StatusNotModified)
		case "/410":
			http.Error(w, "gone\nfor good", http.StatusGone)
		case "/503":
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	s := newSender(t, nil)
	for path, want := range map[string]string{
		"/204": "", "/302": "HTTP 302: redirects are not followed; this one leads to http://169.254.169.254/latest/meta-data",
		"/304": "HTTP 304", "/410": "HTTP 410: gone for good", "/503": "HTTP 503",
	} {
		response := mustPost(t, s, server.URL+path)
		if got := response.Failure(); got != want || response.OK() != (want == "") {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
		if path == "/503" && response.RetryAfter != 2*time.Minute {
			t.Errorf("%s: retry after %s", path, response.RetryAfter)
		}
	}
}

func TestAddressesThatMayNotBeCalledAreNotDialled(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	server := receiver(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) })
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s := newSender(t, func(cfg *SenderConfig) { cfg.Guard = newGuard(t) })
	for _, url := range []string{server.URL, "https://127.0.0.1:" + port, "https://localhost:" + port, "https://[::ffff:7f00:1]:" + port} {
		_, err := post(t, s, url)
		if !errors.Is(err, ErrNotAllowed) || !strings.HasPrefix(reasonOf(t, err), "the URL ") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if n := calls.Load(); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

func TestRequestEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	server := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	_, err := newSender(t, nil).Send(ctx, Request{URL: server.URL, Timeout: enough})
	if _, isFailure := errors.AsType[*Error](err); isFailure || !errors.Is(err, context.Canceled) { // the endpoint has not failed
		t.Errorf("got %v", err)
	}
}

// rootsOf returns the authorities that trust a server with TLS.
func rootsOf(server *httptest.Server) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return roots
}

// discard is the log of servers whose clients give up.
var discard = log.New(io.Discard, "", 0)
