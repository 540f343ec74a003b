package crowd

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds what happens at once, on a busy machine.
const limit = time.Minute

// serve starts a server that keeps room beyond most connections. Requests to /wait wait until the test ends or release is closed.
func serve(t *testing.T, most int, isTLS bool) (server *httptest.Server, arrived, release chan struct{}) {
	t.Helper()
	arrived, release = make(chan struct{}, 100), make(chan struct{})
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			arrived <- struct{}{}
			<-release
		}
		_, _ = io.WriteString(w, "answer")
	}))
	Watch(server.Config, most, zerolog.Nop())
	if isTLS {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server, arrived, release
}

// open opens a connection and sends text.
func open(t *testing.T, server *httptest.Server, text string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// get makes a request on a connection and reads its answer.
func get(conn net.Conn) error {
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return err
	}
	return read(conn)
}

func read(conn net.Conn) error {
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.ReadAll(resp.Body)
	return err
}

// wantClosed checks that the server has closed a connection that has had no request.
func wantClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection that should have been closed is open: %v", err)
	}
}

func TestTheOldestConnectionsWithoutARequestAreClosed(t *testing.T) {
	t.Parallel()
	server, arrived, release := serve(t, 10, false)
	busy := open(t, server, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
	<-arrived
	kept := open(t, server, "")
	if err := get(kept); err != nil {
		t.Fatal(err)
	}
	var slow []net.Conn
	for range 50 {
		slow = append(slow, open(t, server, "GET / HTTP/1.1\r\nHost: ")) // and never the rest
	}
	if err := get(open(t, server, "")); err != nil {
		t.Errorf("a client that comes after them gets %v", err)
	}
	for _, conn := range slow[:40] {
		wantClosed(t, conn)
	}
	if err := get(kept); err != nil {
		t.Errorf("a connection that was idle gets %v", err)
	}
	close(release)
	if err := read(busy); err != nil {
		t.Errorf("a request that was under way gets %v", err)
	}
}

func TestIdleConnectionsAreClosedWhenThereAreNoOthers(t *testing.T) {
	t.Parallel()
	server, arrived, release := serve(t, 3, false)
	defer close(release)
	idle := make([]net.Conn, 2)
	for i := range idle {
		idle[i] = open(t, server, "")
		if err := get(idle[i]); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		open(t, server, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
		<-arrived
	}
	wantClosed(t, idle[0])
	if err := get(idle[1]); err != nil {
		t.Errorf("the connection that was idle for less long gets %v", err)
	}
	for range 3 { // no connection is without a request but this one: it is served all the same
		open(t, server, "GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
		<-arrived
	}
}

func TestHandshakesThatAreNotMadeAreClosed(t *testing.T) {
	t.Parallel()
	server, _, _ := serve(t, 5, true)
	var slow []net.Conn
	for range 20 {
		slow = append(slow, open(t, server, ""))
	}
	resp, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	for _, conn := range slow[:15] {
		wantClosed(t, conn)
	}
}

func TestConnectionsThatEndAreForgotten(t *testing.T) {
	t.Parallel()
	server, _, _ := serve(t, 4, false)
	first := open(t, server, "")
	if err := get(first); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		conn := open(t, server, "")
		if err := get(conn); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		_, _ = io.ReadAll(conn)
	}
	if err := get(first); err != nil {
		t.Errorf("the first connection gets %v", err)
	}
}
