// Package crowd keeps room for new connections at an HTTP server. A client that connects and sends no request holds a connection until a time limit of the server ends it. When there are as
// many connections as the process may open files, nobody else is let in. So beyond a number of connections the oldest one without a request is closed: first those that never had a
// request, then those that are idle between two.
package crowd

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// reportEvery is how often the log says, at most, that connections are closed.
const reportEvery = time.Minute

// A crowd is the connections of a server.
type crowd struct {
	most int
	log  zerolog.Logger

	mu       sync.Mutex
	open     map[net.Conn]*conn
	fresh    *list.List // connections that never had a request, the oldest first
	idle     *list.List // connections between two requests, the one that is idle for longest first
	closed   int        // connections, since the log last said so
	reported time.Time
}

// A conn is an open connection.
type conn struct {
	of       net.Conn
	requests int           // under way
	list     *list.List    // that it is in; nil while a request is under way, and once it is closed
	place    *list.Element // in list
}

type connKey struct{}

// Watch has a server close connections without a request when it has more than most. It is called before the server serves.
func Watch(server *http.Server, most int, log zerolog.Logger) {
	c := &crowd{most: most, log: log, open: make(map[net.Conn]*conn), fresh: list.New(), idle: list.New()}
	connContext, connState, handler := server.ConnContext, server.ConnState, server.Handler
	server.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		if connContext != nil {
			ctx = connContext(ctx, nc)
		}
		return context.WithValue(ctx, connKey{}, c.add(nc))
	}
	server.ConnState = func(nc net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			c.remove(nc)
		}
		if connState != nil {
			connState(nc, state)
		}
	}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at, ok := r.Context().Value(connKey{}).(*conn); ok {
			c.begin(at)
			defer c.end(at)
		}
		handler.ServeHTTP(w, r)
	})
}

// add adds a connection, and closes another one if there are too many.
func (c *crowd) add(nc net.Conn) *conn {
	added := &conn{of: nc}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= c.most {
		c.closeOne()
	}
	c.open[nc] = added
	added.enter(c.fresh)
	return added
}

// closeOne closes the connection that has been without a request for longest, if there is one. The caller holds mu.
func (c *crowd) closeOne() {
	oldest := c.fresh.Front()
	if oldest == nil {
		oldest = c.idle.Front()
	}
	if oldest == nil {
		return
	}
	victim := oldest.Value.(*conn)
	victim.leave()
	delete(c.open, victim.of)
	_ = underlying(victim.of).Close() // a request that arrives just now breaks off, as when a connection fails
	c.closed++
	if time.Since(c.reported) > reportEvery {
		c.log.Warn().Int("connections", c.most).Int("closed", c.closed).
			Msg("there are too many connections for the files that the process may open: those that have sent no request are closed, the oldest first")
		c.closed, c.reported = 0, time.Now()
	}
}

// underlying returns the connection below TLS, which says no goodbye when it is closed.
func underlying(nc net.Conn) net.Conn {
	if secured, ok := nc.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return nc
}

func (c *crowd) remove(nc net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if gone := c.open[nc]; gone != nil {
		gone.leave()
		delete(c.open, nc)
	}
}

// begin notes that a request is under way on a connection.
func (c *crowd) begin(at *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at.requests++
	at.leave()
}

// end notes that a request is answered.
func (c *crowd) end(at *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.requests--; at.requests == 0 && c.open[at.of] == at {
		at.enter(c.idle)
	}
}

// enter puts the connection at the end of a list.
func (at *conn) enter(in *list.List) {
	at.list, at.place = in, in.PushBack(at)
}

// leave takes the connection from the list that it is in.
func (at *conn) leave() {
	if at.list != nil {
		at.list.Remove(at.place)
		at.list, at.place = nil, nil
	}
}

// maxFiles is how many files are reckoned with at most.
const maxFiles = 1 << 20
