package egress

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// BenchmarkSend signs and sends requests of 1 KiB, 64 at a time, to a receiver in this process, which reads and answers them.
func BenchmarkSend(b *testing.B) {
	for name, start := range map[string]func(*httptest.Server){
		"http1":  (*httptest.Server).Start,
		"https1": (*httptest.Server).StartTLS,
		"https2": func(server *httptest.Server) {
			server.EnableHTTP2 = true
			server.StartTLS()
		},
	} {
		b.Run(name, func(b *testing.B) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(w, "ok")
			}))
			server.Config.ErrorLog = discard // of handshakes of connections that turned out to be needless
			start(server)
			defer server.Close()
			s := newSender(b, func(cfg *SenderConfig) {
				if server.TLS != nil {
					cfg.Roots = rootsOf(server)
				}
			})
			signer, err := NewSigner(NewSecret())
			if err != nil {
				b.Fatal(err)
			}
			body := []byte(`{"data":"` + strings.Repeat("x", 1<<10) + `"}`)
			send := func() {
				header := http.Header{"Content-Type": {"application/json"}}
				if err := signer.Sign(header, "1", time.Now(), body); err != nil {
					b.Error(err)
				}
				if response, err := s.Send(b.Context(), Request{URL: server.URL, Header: header, Body: body, Timeout: enough}); err != nil || !response.OK() {
					b.Errorf("%+v, %v", response, err)
				}
			}
			var warming sync.WaitGroup // connections are made
			for range 64 {
				warming.Go(send)
			}
			warming.Wait()
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					send()
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
