package clienttest

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/pgtest"
)

// BenchmarkGathering measures the processor time that an event takes of the client, of the server and of PostgreSQL together: inserted or published one by one by 64 goroutines,
// gathered and alone, beside batches of 100 by 4 goroutines. They take turns.
//
//	go run ./internal/pgtest/run -flavour plain -durable -- go test ./internal/clienttest -run '^$' -bench Gathering -benchtime 60000x
func BenchmarkGathering(b *testing.B) {
	const size, rounds = 100, 6
	payload := json.RawMessage(`{"d":"` + strings.Repeat("x", 90) + `"}`)
	events, publications := make([]client.NewEvent, size), make([]client.NewPublication, size)
	for i := range size {
		events[i] = client.NewEvent{Payload: payload, Queue: "bench"}
		publications[i] = client.NewPublication{Topic: "bench", Payload: payload}
	}
	type kind struct {
		name       string
		goroutines int
		events     int // of a call
		call       func(ctx context.Context, c *client.Client) error
		alone      bool
	}
	insert := func(ctx context.Context, c *client.Client) error { _, err := c.Insert(ctx, events[0]); return err }
	publish := func(ctx context.Context, c *client.Client) error {
		_, err := c.Publish(ctx, publications[0])
		return err
	}
	for _, of := range []struct {
		name  string
		kinds []kind
	}{
		{"insert", []kind{
			{"batch", 4, size, func(ctx context.Context, c *client.Client) error { _, err := c.InsertBatch(ctx, events); return err }, false},
			{"gathered", 64, 1, insert, false},
			{"alone", 64, 1, insert, true},
		}},
		{"publish", []kind{
			{"batch", 4, size, func(ctx context.Context, c *client.Client) error {
				_, err := c.PublishBatch(ctx, publications)
				return err
			}, false},
			{"gathered", 64, 1, publish, false},
			{"alone", 64, 1, publish, true},
		}},
	} {
		b.Run(of.name, func(b *testing.B) {
			s := serve(b)
			conn := pgtest.Connect(b, s.db.URL)
			backend := pgtest.Query[int](b, conn, `select pg_backend_pid()`)
			postmaster := statOf(b, backend).parent
			var requests atomic.Int64
			transport := &http.Transport{MaxIdleConnsPerHost: 100} // as the client has it
			b.Cleanup(transport.CloseIdleConnections)
			counting := &http.Client{Transport: transportFunc(func(r *http.Request) (*http.Response, error) {
				requests.Add(1)
				return transport.RoundTrip(r)
			})}
			together := newClient(b, client.Config{URL: s.url, HTTPClient: counting})
			alone := newClient(b, client.Config{URL: s.url, HTTPClient: counting, SendInsertsAlone: true, SendPublicationsAlone: true})
			load := func(k *kind, n int) {
				c := together
				if k.alone {
					c = alone
				}
				var left atomic.Int64
				left.Store(int64(n))
				var all sync.WaitGroup
				for range k.goroutines {
					all.Go(func() {
						for left.Add(-int64(k.events)) > -int64(k.events) {
							if err := k.call(b.Context(), c); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
			}
			sent := make(map[string]int64)              // requests
			spent := make(map[string]*[3]time.Duration) // of the client, the server and PostgreSQL
			for i := range of.kinds {
				load(&of.kinds[i], 2000)
				spent[of.kinds[i].name] = new([3]time.Duration)
			}
			read := func() (now [3]time.Duration) {
				return [3]time.Duration{statOf(b, os.Getpid()).used, statOf(b, s.cmd.Process.Pid).used, childrenOf(b, postmaster)}
			}
			b.ResetTimer()
			for round := range rounds {
				for i := range of.kinds {
					k := &of.kinds[(i+round)%len(of.kinds)]
					before, sentBefore := read(), requests.Load()
					load(k, max(b.N/rounds, size))
					for who, at := range read() {
						spent[k.name][who] += at - before[who]
					}
					sent[k.name] += requests.Load() - sentBefore
				}
			}
			b.StopTimer()
			perEvent := func(d time.Duration) float64 {
				return float64(d.Microseconds()) / float64(max(b.N/rounds, size)*rounds)
			}
			sum := func(s *[3]time.Duration) time.Duration { return s[0] + s[1] + s[2] }
			for name, took := range spent {
				for who, part := range []string{"client", "server", "postgresql"} {
					b.ReportMetric(perEvent(took[who]), name+"-"+part+"-us/event")
				}
				b.ReportMetric(float64(max(b.N/rounds, size)*rounds)/float64(sent[name]), name+"-events/request")
				if name != "batch" && sum(spent["batch"]) > 0 {
					b.ReportMetric(float64(sum(took))/float64(sum(spent["batch"])), name+"/batch")
				}
			}
		})
	}
}

// A processStat is what /proc tells of a process.
type processStat struct {
	parent      int
	used, ended time.Duration // processor time of its own, and of its children that have ended
}

// statOf returns the zero value for a process that there is not.
func statOf(tb testing.TB, pid int) processStat {
	tb.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return processStat{}
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // from the third on, see proc(5)
	number := func(at int) int64 {
		n, err := strconv.ParseInt(string(fields[at-3]), 10, 64)
		if err != nil {
			tb.Fatal(err)
		}
		return n
	}
	const tick = time.Second / 100
	return processStat{parent: int(number(4)), used: time.Duration(number(14)+number(15)) * tick, ended: time.Duration(number(16)+number(17)) * tick}
}

// childrenOf returns the processor time of all children that a process has, and has had.
func childrenOf(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	sum := statOf(tb, pid).ended
	entries, err := os.ReadDir("/proc")
	if err != nil {
		tb.Fatal(err)
	}
	for _, entry := range entries {
		child, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if stat := statOf(tb, child); stat.parent == pid {
			sum += stat.used
		}
	}
	return sum
}
