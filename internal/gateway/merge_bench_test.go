package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// A page of 100 events, passed on from one cell, and merged of those of four. The cells, which answer at once, and the client are in the same process.
//
//	go test ./internal/gateway -run '^$' -bench PageOfHistory -benchtime 2000x
func BenchmarkPageOfHistory(b *testing.B) {
	const cells = 4
	cfg := Config{Logger: zerolog.Nop(), Cells: map[int]*url.URL{}}
	for number := range cells {
		rows := make([]string, 100)
		for i := range rows {
			at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC).Add(-time.Duration(i*cells+number) * time.Millisecond).Format(time.RFC3339Nano)
			rows[i] = fmt.Sprintf(`{"id":%d,"queue":"q","event_ts":%q,"event":{"text":%q},"cursor":"%0100d"}`, int64(number)<<idBits+int64(i)+1, at, strings.Repeat("x", 300), i)
		}
		mux := http.NewServeMux()
		answer := func(pattern, body string) {
			mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
		}
		answer("GET /livez", `{}`)
		answer("GET /cell", fmt.Sprintf(`{"cell":%d,"keys_version":1,"epoch":"e"}`, number))
		answer("GET /cell/queues", `{"queues":[],"next":null}`)
		answer("GET /cell/keys", `{"keys":[],"next":null,"version":1,"epoch":"e","complete":true}`)
		answer("GET /cells", `{"cells":[]}`)
		answer("GET /placements", `{"placements":[{"queue":"q","cells":[0],"former":[],"keys":null,"past":[],"version":1}],"next":null,"version":1,"epoch":"e","complete":true}`)
		mux.HandleFunc("GET /history", func(w http.ResponseWriter, r *http.Request) {
			limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
			_, _ = io.WriteString(w, `{"events":[`+strings.Join(rows[:limit], ",")+`],"next":"x"}`)
		})
		server := httptest.NewServer(mux)
		b.Cleanup(server.Close)
		base, err := url.Parse(server.URL)
		if err != nil {
			b.Fatal(err)
		}
		cfg.Cells[number] = base
	}
	g, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	running := make(chan struct{})
	go func() {
		defer close(running)
		g.Run(ctx)
	}()
	front := httptest.NewServer(g.Handler())
	b.Cleanup(func() {
		front.Close()
		cancel()
		<-running
		g.Close()
	})
	get := func(tb testing.TB, path string) (n int64) {
		tb.Helper()
		req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, front.URL+path, nil)
		if err != nil {
			tb.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			tb.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if n, err = io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			tb.Fatalf("%s answered %d, %v", path, resp.StatusCode, err)
		}
		return n
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(waitTimeout); ; {
		up := 0
		for _, at := range g.cells() {
			if at.isUp() {
				up++
			}
		}
		if up == cells && g.ready() == nil {
			break
		}
		select {
		case <-tick.C:
		case <-late:
			b.Fatal("the cells cannot be used")
		}
	}
	for name, path := range map[string]string{"passed on": "/history?queue=q&limit=100", "merged of four": "/history?limit=100"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				b.SetBytes(get(b, path))
			}
		})
	}
}
