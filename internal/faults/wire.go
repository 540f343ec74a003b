//go:build unix

package faults

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Wire leads to a server, and can lose the answers of commits: the server has committed, and the client finds its connection closed. It is for
// connections without TLS.
type Wire struct {
	t                *testing.T
	url              string // of the server
	network, address string
	listener         net.Listener
	running          sync.WaitGroup

	mu    sync.Mutex
	loses func(transaction string) bool
	conns map[net.Conn]struct{} // nil: it has ended
}

// StartWire starts a Wire to the server at a URL. It ends with the test.
func StartWire(t *testing.T, serverURL string) *Wire {
	t.Helper()
	cfg, err := pgconn.ParseConfig(serverURL)
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{t: t, url: serverURL, conns: make(map[net.Conn]struct{})}
	w.network, w.address = pgconn.NetworkAddress(cfg.Host, cfg.Port)
	if w.listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w.running.Go(w.accept)
	t.Cleanup(func() {
		_ = w.listener.Close()
		w.mu.Lock()
		for conn := range w.conns {
			_ = conn.Close()
		}
		w.conns = nil
		w.mu.Unlock()
		w.running.Wait()
	})
	return w
}

// URL is that of the server, through the wire.
func (w *Wire) URL() string { return w.Through(w.url) }

// Through is a URL of the server, of whatever role and database, through the wire.
func (w *Wire) Through(serverURL string) string {
	w.t.Helper()
	u, err := url.Parse(serverURL)
	if err != nil {
		w.t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(w.listener.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	parameters := u.Query()
	parameters.Del("host")
	parameters.Del("port")
	u.Host, u.RawQuery = net.JoinHostPort(host, port), parameters.Encode()
	return u.String()
}

// Lose makes the wire ask, after each commit, whether to lose the answer: of the transaction it gets all statements, one a line. Nil: it loses none.
func (w *Wire) Lose(loses func(transaction string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loses = loses
}

func (w *Wire) isLost(transaction string) bool {
	w.mu.Lock()
	loses := w.loses
	w.mu.Unlock()
	return loses != nil && loses(transaction)
}

func (w *Wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := new(net.Dialer).DialContext(w.t.Context(), w.network, w.address)
		if err != nil {
			_ = client.Close()
			continue
		}
		w.mu.Lock()
		hasEnded := w.conns == nil
		if !hasEnded {
			w.conns[client], w.conns[server] = struct{}{}, struct{}{}
		}
		w.mu.Unlock()
		s := &wireSession{wire: w, client: client, server: server, prepared: make(map[string]string)}
		if hasEnded {
			s.close()
			return
		}
		w.running.Go(s.forwardRequests)
		w.running.Go(s.forwardAnswers)
	}
}

// A wireSession is one session through the wire.
type wireSession struct {
	wire           *Wire
	client, server net.Conn
	prepared       map[string]string // statements by name; belongs to forwardRequests

	mu       sync.Mutex
	requests []string // that are not answered: the statements of each
}

func (s *wireSession) close() {
	_, _ = s.client.Close(), s.server.Close()
	s.wire.mu.Lock()
	defer s.wire.mu.Unlock()
	delete(s.wire.conns, s.client)
	delete(s.wire.conns, s.server)
}

// message is one of PostgreSQL's protocol; the first of a client has no kind.
type message struct {
	kind byte
	body []byte
}

// readMessage reads a message that has a kind, or else the first of a client.
func readMessage(from io.Reader, hasKind bool) (m message, err error) {
	var head [5]byte
	start := head[:]
	if !hasKind {
		start = head[1:]
	}
	if _, err := io.ReadFull(from, start); err != nil {
		return m, err
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length < 4 || length > 1<<30 {
		return m, errors.New("not a message of PostgreSQL's protocol")
	}
	m = message{head[0], make([]byte, length-4)}
	_, err = io.ReadFull(from, m.body)
	return m, err
}

// appendTo appends the message as it is sent.
func (m message) appendTo(b []byte) []byte {
	if m.kind != 0 {
		b = append(b, m.kind)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.body)+4))
	return append(b, m.body...)
}

// forwardRequests passes on the messages of the client, and notes which statements it runs.
func (s *wireSession) forwardRequests() {
	defer s.close()
	var request strings.Builder
	for hasKind := false; ; {
		m, err := readMessage(s.client, hasKind)
		if err != nil {
			return
		}
		if !hasKind {
			const sslRequest, gssRequest = 80877103, 80877104
			if code := binary.BigEndian.Uint32(m.body); code == sslRequest || code == gssRequest {
				if _, err := s.client.Write([]byte{'N'}); err != nil {
					return
				}
				continue
			}
			hasKind = true
		}
		texts := bytes.Split(m.body, []byte{0})
		switch m.kind {
		case 'P': // parse: the name of the statement and its text
			s.prepared[string(texts[0])] = string(texts[1])
		case 'B': // bind: the name of the portal, and that of the statement
			request.WriteString(s.prepared[string(texts[1])] + "\n")
		case 'Q': // query
			request.WriteString(string(texts[0]) + "\n")
		}
		if m.kind == 'Q' || m.kind == 'S' { // sync
			s.mu.Lock()
			s.requests = append(s.requests, request.String())
			s.mu.Unlock()
			request.Reset()
		}
		if _, err := s.server.Write(m.appendTo(nil)); err != nil {
			return
		}
	}
}

// forwardAnswers passes on the messages of the server, the answer of a request at once: when it is complete, the transaction is committed, or goes on.
func (s *wireSession) forwardAnswers() {
	defer s.close()
	var (
		held        []byte // of the answer so far
		transaction strings.Builder
		isUndone    bool
	)
	for isBegun := false; ; {
		m, err := readMessage(s.server, true)
		if err != nil {
			return
		}
		held = m.appendTo(held)
		s.mu.Lock()
		isAnswer := isBegun && len(s.requests) > 0
		isComplete := m.kind == 'Z' // ready for the next query
		if isComplete && isAnswer {
			transaction.WriteString(s.requests[0])
			s.requests = s.requests[1:]
		}
		s.mu.Unlock()
		isUndone = isUndone || m.kind == 'E' || m.kind == 'C' && bytes.HasPrefix(m.body, []byte("ROLLBACK"))
		if isAnswer && !isComplete {
			continue
		}
		if isComplete && m.body[0] == 'I' { // in no transaction
			if isAnswer && !isUndone && s.wire.isLost(transaction.String()) {
				return
			}
			transaction.Reset()
			isUndone = false
		}
		isBegun = isBegun || isComplete
		if _, err := s.client.Write(held); err != nil {
			return
		}
		held = held[:0]
	}
}
