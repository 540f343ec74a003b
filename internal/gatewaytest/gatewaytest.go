// Package gatewaytest puts gateways in front of the servers of tests, so that the suites which speak HTTP run through one:
//
//	QUEUED_TEST_GATEWAY=1 go test ./internal/http ./internal/cli ./internal/clienttest
//	go run ./internal/gatewaytest/run -cells 1      # the same, compared with the list of what must differ
//
// The variable says how many cells are behind each gateway. The list is in differences.go.
package gatewaytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/gateway"
)

// Env is how many cells the servers of tests are, behind a gateway. Without it there is no gateway.
const Env = "QUEUED_TEST_GATEWAY"

// Cells returns how many cells there are; 0: tests speak to their server themselves.
func Cells(tb testing.TB) int {
	tb.Helper()
	text := os.Getenv(Env)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		tb.Fatalf("%s is %q; want a number of cells", Env, text)
	}
	return n
}

// Key is the key of gateways in front of several cells, whose other keys come and go.
const Key = "the-key-of-the-gateway-of-the-tests"

// Admit has requests with Key answered by forGateway, once the service of handler requires keys, and all others by handler. A service that requires none does not look at it.
func Admit(handler, forGateway http.Handler, service *access.Service) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if service.IsRequired() && r.Header.Get("Authorization") == "Bearer "+Key {
			forGateway.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// SpreadEnv is set to have the first use of a queue place it on all cells. Gateways place it on one.
const SpreadEnv = "QUEUED_TEST_GATEWAY_SPREAD"

// Spread has the first use of each queue at home place it on all cells, if SpreadEnv is set.
func Spread(handler http.Handler, home *cell.Service) http.Handler {
	if os.Getenv(SpreadEnv) == "" {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, isPlacement := strings.CutSuffix(r.URL.Path, "/placement")
		queue, isQueue := strings.CutPrefix(path, "/queues/")
		if r.Method != http.MethodPost || !isPlacement || !isQueue {
			handler.ServeHTTP(w, r)
			return
		}
		if _, err := home.Placement(r.Context(), queue); errors.Is(err, cell.ErrNotPlaced) {
			body, _ := io.ReadAll(r.Body) // home says what is wrong with half of it
			r.Body = io.NopCloser(bytes.NewReader(body))
			first := httptest.NewRecorder()
			handler.ServeHTTP(first, r)
			if first.Code == http.StatusOK {
				_, _ = home.Place(r.Context(), cell.PlaceParams{Queue: queue, KeysNow: true}) // else it stays on one
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		handler.ServeHTTP(w, r)
	})
}

// useLimit is how long a gateway may take until it uses its cells. Some tests have servers that refuse it for good.
const useLimit = 3 * time.Second

// Start starts a gateway with these settings in front of the cells that have these URLs, in the order of their numbers, and returns its server once it uses all of them. It ends with the test.
// The server speaks HTTP/2 over TLS, or HTTP/1.1 without.
func Start(tb testing.TB, cfg gateway.Config, http2 bool, urls ...string) *httptest.Server {
	tb.Helper()
	cfg.Cells = make(map[int]*url.URL, len(urls))
	for number, text := range urls {
		base, err := gateway.ParseURL(text)
		if err != nil {
			tb.Fatal(err)
		}
		cfg.Cells[number] = base
	}
	cfg.Registry = prometheus.NewRegistry()
	g, err := gateway.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	listener := httptest.NewUnstartedServer(nil)
	listener.Config = g.HTTPServer()
	if http2 {
		listener.EnableHTTP2 = true
		listener.StartTLS()
	} else {
		listener.Start()
	}
	running, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		g.Run(running)
	}()
	tb.Cleanup(func() {
		g.Drain()
		listener.Close()
		stop()
		<-ended
		g.Close()
	})
	for deadline := time.Now().Add(useLimit); ; <-time.After(5 * time.Millisecond) {
		if used(tb, cfg.Registry) == len(urls) && isReady(tb, listener) || time.Now().After(deadline) {
			return listener
		}
	}
}

// used returns how many cells a gateway uses.
func used(tb testing.TB, registry *prometheus.Registry) (n int) {
	tb.Helper()
	families, err := registry.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "queued_cell_up" {
			for _, metric := range family.GetMetric() {
				n += int(metric.GetGauge().GetValue())
			}
		}
	}
	return n
}

func isReady(tb testing.TB, listener *httptest.Server) bool {
	tb.Helper()
	request, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, listener.URL+"/readyz", http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	response, err := listener.Client().Do(request)
	if err != nil {
		tb.Fatal(fmt.Errorf("asking the gateway whether it is ready: %w", err))
	}
	_ = response.Body.Close()
	return response.StatusCode == 200
}
