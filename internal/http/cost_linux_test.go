package http

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/queue"
)

// A discarding response is written nowhere.
type discarding http.Header

func (d discarding) Header() http.Header         { return http.Header(d) }
func (d discarding) Write(b []byte) (int, error) { return len(b), nil }
func (d discarding) WriteHeader(int)             {}

// BenchmarkRequest measures what this package takes of the processor for each request, beside net/http, the service and the database: the handlers answer at once.
//
//	go test ./internal/http -run '^$' -bench BenchmarkRequest -benchmem
func BenchmarkRequest(b *testing.B) {
	s := New(Config{Service: new(queue.Service)})
	r := &router{mux: chi.NewRouter(), s: s, scopes: make(map[string]access.Scope), bound: make(map[string]*bind.Binding)}
	at := time.Now()
	lim := s.cfg.limits()
	lim.Bodies = s.bodies
	r.Post("/events", access.Publish, endpoint(s, lim, func(r *http.Request, req insertRequest) (reply, error) {
		logOf(r).add("id", int64(1042))
		return created(insertResponse{ID: 1042, Queue: req.Queue, VT: at}, eventPath(1042), false), nil
	}))
	r.Post("/claim", access.Claim, endpoint(s, lim, func(_ *http.Request, req claimRequestOfBenchmark) (reply, error) {
		return reply{body: eventList{{ID: 1042, Queue: req.Queue, EventTS: at, EnqueuedAt: at, VT: at, Claimed: []time.Time{at}, Attempts: 1, Payload: []byte(`{"a":1}`), Receipt: "1042.1.0123456789abcdef"}}}, nil
	}))
	r.Delete("/events/{id}", access.Claim, endpoint(s, lim, func(*http.Request, ackRequest) (reply, error) { return noContent, nil }))
	handler := s.wrap(r.mux, s.authenticate(checkOrigin(s.traceRequests(r.mux))))
	for _, call := range []struct{ name, method, target, body string }{
		{"insert", http.MethodPost, "/events?queue=mail", `{"d":"0123456789012345678901234567890123456789012345678901234567890123456789"}`},
		{"claim", http.MethodPost, "/claim", `{"queue":"mail","limit":1,"invisible_for":"24h"}`},
		{"ack", http.MethodDelete, "/events/1042?receipt=1042.1.0123456789abcdef", ""},
	} {
		b.Run(call.name, func(b *testing.B) {
			b.ReportAllocs()
			target, err := url.Parse(call.target)
			if err != nil {
				b.Fatal(err)
			}
			before := processor(b)
			for b.Loop() {
				req := http.Request{
					Method: call.method, URL: target, Host: "localhost", Header: http.Header{}, Body: io.NopCloser(bytes.NewReader([]byte(call.body))), ContentLength: int64(len(call.body)),
				}
				handler.ServeHTTP(make(discarding, 8), &req)
			}
			b.ReportMetric(float64((processor(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// claimRequestOfBenchmark is a claim that leaves no wait to the policy of its queue.
type claimRequestOfBenchmark struct{ claimOptions }

// processor returns the processor time that this process has taken.
func processor(tb testing.TB) time.Duration {
	tb.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
