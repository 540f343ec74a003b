//go:build unix

package main

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
)

// TestClientsThatSendNothingKeepNobodyOut opens more connections to a server and a gateway than they may open files, sends a part of a request on each, and calls both.
func TestClientsThatSendNothingKeepNobodyOut(t *testing.T) {
	t.Parallel()
	const connections, key = 1000, "a-key-of-more-than-sixteen-bytes"
	limited := func(command string, environ ...string) *program {
		p := startBeside(t, append(environ, "QUEUED_LISTEN=127.0.0.1:0", "QUEUED_LOG_FORMAT=json", "QUEUED_MAX_CONNS=4"), "sh", "-c", `ulimit -n 300; exec "$0" `+command, binary(t))
		p.addr, _ = p.waitFor("serving")["addr"].(string)
		p.wantReady()
		return p
	}
	server := limited("serve", "QUEUED_DATABASE_URL="+pgtest.New(t).ServiceURL, "QUEUED_API_KEY="+key)
	gateway := limited("gateway", "QUEUED_CELLS=0=http://"+server.addr, "QUEUED_KEY="+key)
	for _, p := range []*program{server, gateway} {
		claimed := make(chan int, 1)
		go func() {
			got, err := p.send(http.MethodPost, "/claim", `{"queue":"q","wait":"60s"}`, "Authorization: Bearer "+key)
			if err != nil {
				t.Error(err)
			}
			claimed <- got.status
		}()
		for range connections {
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", p.addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			_, _ = io.WriteString(conn, "POST /events HTTP/1.1\r\nHost: ")
		}
		began := time.Now()
		p.want(http.StatusCreated, http.MethodPost, "/events?queue=q", `{}`, "Authorization: Bearer "+key)
		t.Logf("a call beside %d connections took %s", connections, time.Since(began))
		if status := <-claimed; status != http.StatusOK {
			t.Errorf("the claim that waited is answered %d", status)
		}
		p.waitFor("there are too many connections for the files that the process may open: those that have sent no request are closed, the oldest first")
	}
}
