package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The cost of a gateway is that of a process of its own: the cell behind it and its clients are other processes, which are this test program in other roles.
//
//	go test ./internal/gateway -run '^$' -bench Passing -benchtime 100000x -count 3
//	go test ./internal/gateway -run '^$' -bench Waiting -benchtime 1x
const roleVariable = "QUEUED_TEST_ROLE"

func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(roleVariable); role {
	case "":
		flag.Parse()
		if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
			_ = f.Value.Set("16") // most tests wait, for cells to be found out as away
		}
		os.Exit(m.Run())
	case "cell":
		err = playCell(os.Stdin, os.Stdout)
	case "load":
		err = playLoad(os.Args[1:], os.Stdout)
	case "wait":
		err = playWaiters(os.Args[1:], os.Stdin, os.Stdout)
	default:
		err = errors.New("no such role: " + role)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// inRole starts this program in a role, until the end of the test. It returns what the role reads and writes, a line at a time.
func inRole(tb testing.TB, role string, args ...string) (in io.WriteCloser, out *bufio.Reader) {
	tb.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	reader, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return in, bufio.NewReader(reader)
}

// aloneHost is the host that a cell is called by which is the only one.
const aloneHost = "127.0.0.3"

// playCell answers as a cell does, at once, but for claims with a wait, and writes its address. It ends with its input.
func playCell(in io.Reader, out io.Writer) error {
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		return err
	}
	answer := []byte(`{"id":1042}` + "\n")
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case r.URL.Path == "/cell":
			number := map[bool]int{true: 1}[strings.HasPrefix(r.Host, "127.0.0.2")]
			_, _ = fmt.Fprintf(w, `{"cell":%d}`, number)
			return
		case r.URL.Query().Get("wait") != "": // of the gateway, which follows what changes
			<-r.Context().Done()
			return
		case r.URL.Path == "/placements" && strings.HasPrefix(r.Host, aloneHost):
			_, _ = io.WriteString(w, `{"placements":[],"version":1,"complete":true}`)
			return
		case r.URL.Path == "/placements":
			_, _ = io.WriteString(w, `{"placements":[{"queue":"mail","cells":[1],"former":[],"version":1}],"version":1,"complete":true}`)
			return
		case r.URL.Path == "/claim" && bytes.Contains(body, []byte("wait")):
			<-r.Context().Done()
			return
		}
		h := w.Header()
		h["X-Request-Id"], h["Content-Type"], h["X-Content-Type-Options"] = r.Header["X-Request-Id"], []string{"application/json"}, []string{"nosniff"}
		h["Content-Length"] = []string{strconv.Itoa(len(answer))}
		_, _ = w.Write(answer)
	})}
	go func() { _ = server.Serve(listener) }()
	_, _ = fmt.Fprintln(out, listener.Addr().(*net.TCPAddr).Port)
	_, _ = io.Copy(io.Discard, in)
	return server.Close()
}

// playLoad makes calls: URL, method, path, body, number of calls, connections.
func playLoad(args []string, out io.Writer) error {
	base, method, path, body := args[0], args[1], args[2], args[3]
	n, _ := strconv.ParseInt(args[4], 10, 64)
	connections, _ := strconv.Atoi(args[5])
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}}
	var left atomic.Int64
	left.Store(n)
	var failed atomic.Pointer[error]
	var running sync.WaitGroup
	for range connections {
		running.Go(func() {
			for left.Add(-1) >= 0 {
				req, err := http.NewRequestWithContext(context.Background(), method, base+path, strings.NewReader(body))
				if err == nil {
					req.Header.Set("Authorization", "Bearer "+callerKey)
					var resp *http.Response
					if resp, err = client.Do(req); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
						if resp.StatusCode != http.StatusOK {
							err = errors.New(resp.Status)
						}
					}
				}
				if err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
			}
		})
	}
	running.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	_, _ = fmt.Fprintln(out, "done")
	return nil
}

// playWaiters sends claims that wait: URL, number. It ends with its input.
func playWaiters(args []string, in io.Reader, out io.Writer) error {
	address := strings.TrimPrefix(args[0], "http://")
	n, _ := strconv.Atoi(args[1])
	const body = `{"queue":"mail","limit":10,"wait":"60s"}`
	for range n {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(conn, "POST /claim HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nUser-Agent: a-worker/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", callerKey, len(body), body); err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
	}
	_, _ = fmt.Fprintln(out, "sent")
	_, _ = io.Copy(io.Discard, in)
	return nil
}

// processor returns the processor time that this process has taken.
func processor(tb testing.TB) time.Duration {
	tb.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// fronts are what is measured: a gateway in front of one cell, of two cells, and a bare ReverseProxy with the same transport.
func fronts(tb testing.TB) map[string]func(tb testing.TB) string {
	tb.Helper()
	in, out := inRole(tb, "cell")
	_ = in
	line, err := out.ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	port := strings.TrimSpace(line)
	serve := func(tb testing.TB, handler http.Handler) string {
		tb.Helper()
		server := httptest.NewServer(handler)
		tb.Cleanup(func() {
			server.CloseClientConnections()
			server.Close()
		})
		return server.URL
	}
	gatewayTo := func(cells map[int]*url.URL) func(tb testing.TB) string {
		return func(tb testing.TB) string {
			tb.Helper()
			g, err := New(Config{Cells: cells, Key: gatewayKey, files: 1 << 20})
			if err != nil {
				tb.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				g.Run(ctx)
			}()
			tb.Cleanup(func() {
				g.Close()
				cancel()
				<-ended
			})
			for g.ready() != nil {
				runtime.Gosched()
			}
			g.AwaitFirstLook(ctx)
			return serve(tb, g.Handler())
		}
	}
	// One process is both cells: by the host it tells which it is asked as.
	at := func(host string) *url.URL { return &url.URL{Scheme: "http", Host: host + ":" + port} }
	return map[string]func(tb testing.TB) string{
		"bare": func(tb testing.TB) string {
			tb.Helper()
			transport := newCell(&Config{MaxCalls: 1, MaxWaits: 1}, 1, at("127.0.0.1"), context.Background()).transport
			tb.Cleanup(transport.CloseIdleConnections)
			return serve(tb, &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, BufferPool: newCopyBuffers(), Rewrite: func(p *httputil.ProxyRequest) {
				p.SetURL(at("127.0.0.1"))
				p.SetXForwarded()
			}})
		},
		"one cell":  gatewayTo(map[int]*url.URL{0: at(aloneHost)}),
		"two cells": gatewayTo(map[int]*url.URL{0: at("127.0.0.1"), 1: at("127.0.0.2")}),
	}
}

// BenchmarkPassing measures the processor time of the gateway for each call, beside that of a bare ReverseProxy.
func BenchmarkPassing(b *testing.B) {
	debug.SetGCPercent(200) // as the program does
	fronts := fronts(b)
	event := `{"event":"` + strings.Repeat("x", 200) + `"}`
	for _, call := range []struct{ name, method, path, body string }{
		{"insert", "POST", "/events?queue=mail", event},
		{"claim", "POST", "/claim", `{"queue":"mail","limit":10}`},
		{"ack", "DELETE", "/events/" + idOf(1) + "?receipt=abcdefgh", ""},
	} {
		for _, name := range []string{"bare", "one cell", "two cells"} {
			b.Run(call.name+"/"+name, func(b *testing.B) {
				base := fronts[name](b)
				load := func(n int) {
					_, out := inRole(b, "load", base, call.method, call.path, call.body, strconv.Itoa(n), "32")
					if line, err := out.ReadString('\n'); err != nil || line != "done\n" {
						b.Fatalf("%q, %v", line, err)
					}
				}
				load(3000)
				before := processor(b)
				b.ResetTimer()
				load(b.N)
				b.StopTimer()
				b.ReportMetric(float64((processor(b)-before).Nanoseconds())/1e3/float64(b.N), "cpu-us/call")
			})
		}
	}
}

// BenchmarkWaiting measures the memory of a gateway that claims wait at, beside that of a bare ReverseProxy: 10,000, or as many as there may be open files for.
func BenchmarkWaiting(b *testing.B) {
	debug.SetGCPercent(200) // as the program does
	fronts := fronts(b)
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		b.Fatal(err)
	}
	claims := min(10_000, int(files.Cur)/2-100)
	for _, name := range []string{"bare", "one cell", "two cells"} {
		b.Run(name, func(b *testing.B) {
			base := fronts[name](b)
			runtime.GC()
			before := goroutines()
			beforeMemory := memory(b)
			in, out := inRole(b, "wait", base, strconv.Itoa(claims))
			if line, err := out.ReadString('\n'); err != nil || line != "sent\n" {
				b.Fatalf("%q, %v", line, err)
			}
			for goroutines() < before+3*claims { // the connection's, and those of the connection to the cell
				runtime.Gosched()
			}
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			b.ReportMetric(float64(stats.StackInuse)/float64(claims)/1024, "KiB-stack/claim")
			b.ReportMetric(float64(claims), "claims")
			b.ReportMetric(float64(memory(b)-beforeMemory)/float64(claims)/1024, "KiB/claim")
			b.ReportMetric(float64(resident(b))/(1<<20), "MiB-resident")
			_ = in.Close()
		})
	}
}

func goroutines() int { return runtime.NumGoroutine() }

// memory returns what the heap and the stacks take.
func memory(tb testing.TB) uint64 {
	tb.Helper()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapInuse + stats.StackInuse
}

// resident returns what the process takes.
func resident(tb testing.TB) int64 {
	tb.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		tb.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
