package load

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"
)

// respondToAll responds to whatever arrives on a connection with the same bytes, at next to no cost, until the end
// of the benchmark. Each request has to end in an empty line.
func respondToAll(b *testing.B, response string) (address string) {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		buffer, end := make([]byte, 4<<10), []byte("\r\n\r\n")
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			if bytes.HasSuffix(buffer[:n], end) {
				if _, err := io.WriteString(conn, response); err != nil {
					return
				}
			}
		}
	}()
	b.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return listener.Addr().String()
}

// claimed is the response to a claim as the server gives it.
const claimed = `{"events":[{"id":4711,"queue":"bench-abcdefgh-1","event_ts":"2026-01-02T15:04:05.123456Z","enqueued_at":"2026-01-02T15:04:05.123456Z",` +
	`"attempts":1,"vt":"2026-01-03T15:04:05.123456Z","claimed":["2026-01-02T15:04:05.123456Z"],"event":{"d":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA` +
	`AAAAAAAAAAAAAAAAAAAAAAAAAAAA"},"receipt":"1-0123456789abcdef"}]}` + "\n"

const claimHead = "HTTP/1.1 200 OK\r\nContent-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\nContent-Type: application/json\r\n" +
	"X-Content-Type-Options: nosniff\r\nX-Request-Id: ABCDEFGHIJKLMNOPQRSTUVWXYZ\r\nDate: Fri, 02 Jan 2026 15:04:05 GMT\r\nContent-Length: "

// BenchmarkRequest measures the cost of a request to the client, in this package's way and in net/http's. Both include the same
// responseing goroutine, of which the socket calls are the most part.
func BenchmarkRequest(b *testing.B) {
	response := claimHead + strconv.Itoa(len(claimed)) + "\r\n\r\n" + claimed
	b.Run("own", func(b *testing.B) {
		target, err := NewTarget("http://"+respondToAll(b, response), "")
		if err != nil {
			b.Fatal(err)
		}
		c, err := dial(b.Context(), target)
		if err != nil {
			b.Fatal(err)
		}
		defer c.close()
		request := target.appendRequest(nil, "POST", "/claim", nil)
		var leases []Lease
		cpu := OwnCPU()
		for b.Loop() {
			status, body, err := c.do(request, 0)
			if err != nil || status != 200 {
				b.Fatal(status, err)
			}
			if leases, err = parseClaim(leases[:0], body); err != nil || len(leases) != 1 {
				b.Fatal(leases, err)
			}
		}
		reportCPU(b, cpu)
	})
	b.Run("net/http's parser", func(b *testing.B) {
		target, err := NewTarget("http://"+respondToAll(b, response), "")
		if err != nil {
			b.Fatal(err)
		}
		c, err := dial(b.Context(), target)
		if err != nil {
			b.Fatal(err)
		}
		defer c.close()
		request := target.appendRequest(nil, "POST", "/claim", nil)
		reader := bufio.NewReader(c.net)
		var leases []Lease
		cpu := OwnCPU()
		for b.Loop() {
			if _, err := c.net.Write(request); err != nil {
				b.Fatal(err)
			}
			res, err := http.ReadResponse(reader, nil)
			if err != nil || res.StatusCode != 200 {
				b.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil {
				b.Fatal(err)
			}
			_ = res.Body.Close()
			if leases, err = parseClaim(leases[:0], body); err != nil || len(leases) != 1 {
				b.Fatal(leases, err)
			}
		}
		reportCPU(b, cpu)
	})
	b.Run("net/http's client", func(b *testing.B) {
		url := "http://" + respondToAll(b, response) + "/claim"
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport}
		var leases []Lease
		cpu := OwnCPU()
		for b.Loop() {
			request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
			if err != nil {
				b.Fatal(err)
			}
			res, err := client.Do(request)
			if err != nil || res.StatusCode != 200 {
				b.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			if err != nil {
				b.Fatal(err)
			}
			_ = res.Body.Close()
			if leases, err = parseClaim(leases[:0], body); err != nil || len(leases) != 1 {
				b.Fatal(leases, err)
			}
		}
		reportCPU(b, cpu)
	})
}

func reportCPU(b *testing.B, before time.Duration) {
	b.Helper()
	b.ReportMetric(float64((OwnCPU()-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
}
