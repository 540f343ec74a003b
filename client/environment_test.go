package client

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"time"
)

// The tests of this module need no server: internal/clienttest, in the module of the server, has those that do. It also runs the examples
// and the tests of the contract that are here, with what they need in these variables.
const (
	urlEnv      = "QUEUED_TEST_URL"      // the URL of a new server, for one example
	contractEnv = "QUEUED_TEST_CONTRACT" // the file with the contract
)

func TestMain(m *testing.M) {
	if os.Getenv(urlEnv) == "" {
		if err := flag.Set("test.skip", "^Example"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// waitTimeout bounds every wait of a test. It is long, for a busy machine and the race detector.
const waitTimeout = 2 * time.Minute

func newClient(tb testing.TB, cfg Config) *Client {
	tb.Helper()
	c, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// answering returns a client of a server that answers with handler.
func answering(t *testing.T, cfg Config, handler http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	cfg.URL = srv.URL
	return newClient(t, cfg)
}

// problem answers with a problem document.
func problem(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "code": code, "detail": "so it is", "request_id": "R1"})
}

// lockedBuffer is a buffer that many goroutines can use.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// soon returns a context that ends with the test, or after waitTimeout.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	t.Cleanup(cancel)
	return ctx
}
