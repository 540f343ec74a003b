package pg

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// tcpTimeout is how long sent data may be unacknowledged by TCP. It detects lost servers and networks. The kernel of a server that
	// hangs still acknowledges.
	tcpTimeout = 10 * time.Second
	// closeTimeout bounds the closing of a connection.
	closeTimeout = time.Second
	// leaveFor is how long a server that has lost its role as primary is not dialled, not even for cancel requests.
	leaveFor = 15 * time.Second
)

// dialer makes the network connections of an endpoint, and knows which of its hosts answered last.
type dialer struct {
	timeout time.Duration // for a connection, until its session is ready
	net     net.Dialer
	lookup  pgconn.LookupFunc
	closed  func(*netConn) // called for each connection before it is closed

	mu    sync.Mutex
	hosts map[string][]string  // the IP addresses of each host when it was last resolved
	peers map[string]peerState // by address: host:port or the path of a socket
}

// peerState is what is known of an address.
type peerState struct {
	pending  time.Time // when the first unanswered attempt began; zero: there is none
	writable time.Time // when the latest session that can write began
	left     time.Time // when its server was left for a new primary
}

func (p peerState) isLeft() bool { return !p.left.IsZero() && time.Since(p.left) < leaveFor }

func newDialer(timeout time.Duration, lookup pgconn.LookupFunc, closed func(*netConn)) *dialer {
	return &dialer{
		timeout: timeout,
		net: net.Dialer{
			Timeout:         timeout,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
			Control:         setUserTimeout(tcpTimeout),
		},
		lookup: lookup,
		closed: closed,
		hosts:  make(map[string][]string),
		peers:  make(map[string]peerState),
	}
}

var errLeft = errors.New("the server at this address is no longer the primary")

// dial opens a connection with a limit on its deadlines, which removeLimit removes when the session is ready.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	isLeft := false
	d.update(address, func(peer *peerState) {
		isLeft = peer.isLeft()
		if !isLeft && peer.pending.IsZero() {
			peer.pending = time.Now()
		}
	})
	if isLeft {
		return nil, errLeft
	}
	inner, err := d.net.DialContext(ctx, network, address)
	if err != nil {
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			d.noteAnswer(address, false)
		}
		return nil, err
	}
	c := &netConn{Conn: inner, address: address, closed: d.closed, latest: time.Now().Add(d.timeout)}
	return c, inner.SetDeadline(c.latest)
}

// noteAnswer notes that an address has answered, and whether its server takes writes.
func (d *dialer) noteAnswer(address string, isWritable bool) {
	d.update(address, func(peer *peerState) {
		peer.pending = time.Time{}
		if isWritable {
			peer.writable, peer.left = time.Now(), time.Time{}
		}
	})
}

// leave has the server at an address not dialled for leaveFor.
func (d *dialer) leave(address string) {
	d.update(address, func(peer *peerState) { peer.left = time.Now() })
}

// update changes what is known of an address.
func (d *dialer) update(address string, change func(*peerState)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	peer := d.peers[address]
	change(&peer)
	d.peers[address] = peer
}

// resolve resolves a host and remembers the result for addresses.
func (d *dialer) resolve(ctx context.Context, host string) ([]string, error) {
	addrs, err := d.lookup(ctx, host)
	if err == nil {
		d.mu.Lock()
		d.hosts[host] = addrs
		d.mu.Unlock()
	}
	return addrs, err
}

// sortHosts sorts the hosts of cfg: the one that was writable last comes first, those that did not answer come last.
func (d *dialer) sortHosts(cfg *pgx.ConnConfig) {
	if len(cfg.Fallbacks) == 0 {
		return
	}
	hosts := append([]*pgconn.FallbackConfig{{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}}, cfg.Fallbacks...)
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.SortStableFunc(hosts, func(a, b *pgconn.FallbackConfig) int {
		silentA, writableA := d.hostState(a)
		silentB, writableB := d.hostState(b)
		return cmp.Or(cmp.Compare(silentA, silentB), writableB.Compare(writableA))
	})
	cfg.Host, cfg.Port, cfg.TLSConfig, cfg.Fallbacks = hosts[0].Host, hosts[0].Port, hosts[0].TLSConfig, hosts[1:]
}

// hostState returns 1 for a host that does not answer or was left, else 0, and when it was writable last. The caller holds mu.
func (d *dialer) hostState(f *pgconn.FallbackConfig) (silent int, writable time.Time) {
	for _, address := range d.addresses(f) {
		peer := d.peers[address]
		if peer.isLeft() || !peer.pending.IsZero() && time.Since(peer.pending) > d.timeout/2 {
			silent = 1
		}
		if peer.writable.After(writable) {
			writable = peer.writable
		}
	}
	return silent, writable
}

// addresses returns the known addresses of a host of the URL. The caller holds mu.
func (d *dialer) addresses(f *pgconn.FallbackConfig) []string {
	if network, address := pgconn.NetworkAddress(f.Host, f.Port); network == "unix" {
		return []string{address}
	}
	var all []string
	for _, ip := range d.hosts[f.Host] {
		all = append(all, net.JoinHostPort(ip, strconv.Itoa(int(f.Port))))
	}
	return all
}

// netConn is a network connection with a limit on its deadlines.
type netConn struct {
	net.Conn
	address string
	closed  func(*netConn)
	session // what the Database knows of it, which the Database guards

	mu     sync.Mutex
	latest time.Time // the latest deadline; zero: no limit
}

// removeLimit removes the limit and the deadline.
func (c *netConn) removeLimit() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = time.Time{}
	return c.Conn.SetDeadline(time.Time{})
}

// limit has the connection fail from t on, whatever deadlines are set.
func (c *netConn) limit(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest.IsZero() || t.Before(c.latest) {
		c.latest = t
	}
	_ = c.Conn.SetDeadline(c.latest)
}

// SetDeadline sets a deadline within the limit.
func (c *netConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.latest.IsZero() && (t.IsZero() || t.After(c.latest)) {
		t = c.latest
	}
	return c.Conn.SetDeadline(t)
}

// Close closes the connection.
func (c *netConn) Close() error {
	c.closed(c)
	return c.Conn.Close()
}

// netConnOf returns the network connection of a session, which a dialer has made.
func netConnOf(conn *pgconn.PgConn) *netConn {
	inner := conn.Conn()
	if tls, ok := inner.(interface{ NetConn() net.Conn }); ok {
		inner = tls.NetConn()
	}
	return inner.(*netConn)
}
