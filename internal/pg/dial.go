package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	// maxLookup bounds the resolution of a name, which nobody waits for that long.
	maxLookup = time.Minute
)

// dialer makes the network connections of an endpoint, and knows which of its hosts answered last.
type dialer struct {
	timeout  time.Duration // for a connection, until its session is ready
	net      net.Dialer
	resolver pgconn.LookupFunc
	closed   func(*netConn) // called for each connection before it is closed

	mu      sync.Mutex
	lookups map[string]*lookup   // of each host, the latest
	hosts   map[string][]string  // the IP addresses of each host when it was last resolved
	peers   map[string]peerState // by address: host:port or the path of a socket
}

// peerState is what is known of an address.
type peerState struct {
	pending  time.Time // when the first unanswered attempt began; zero: there is none
	writable time.Time // when the latest session that can write began
	left     time.Time // when its server was left for a new primary
}

func (p peerState) isLeft() bool { return !p.left.IsZero() && time.Since(p.left) < leaveFor }

func newDialer(timeout time.Duration, resolver pgconn.LookupFunc, closed func(*netConn)) *dialer {
	return &dialer{
		timeout: timeout,
		net: net.Dialer{
			Timeout:         timeout,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
			Control:         setUserTimeout(tcpTimeout),
		},
		resolver: resolver,
		closed:   closed,
		lookups:  make(map[string]*lookup),
		hosts:    make(map[string][]string),
		peers:    make(map[string]peerState),
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

// lookup is one resolution of the name of a host.
type lookup struct {
	began time.Time
	done  chan struct{} // closed after it, when the fields below are set
	ended time.Time
	addrs []string
	err   error
}

func (l *lookup) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// isLate reports whether a resolution that is done has succeeded after a limit for which callers waited, and so recently that it can be used still.
func (l *lookup) isLate(limit time.Duration) bool {
	return l.err == nil && l.ended.Sub(l.began) > limit && time.Since(l.ended) < limit
}

// errNotResolved is why a host is passed over. The error of the resolver, which comes later, is not waited for.
var errNotResolved = errors.New("the name of the host was not resolved in time")

// resolve resolves a host and remembers the result for addresses. It takes the time of a connection at most, and none if the latest resolution has taken that
// already and goes on: pgconn resolves all hosts before it connects to the first, and a name that went away with its machine may take a resolver far longer than the
// server that is the primary by now takes to answer. The latest addresses are not used instead: they may be another server's by now.
func (d *dialer) resolve(ctx context.Context, host string) ([]string, error) {
	if net.ParseIP(host) != nil {
		return d.note(host, []string{host}), nil
	}
	l := d.look(ctx, host)
	if !l.isDone() {
		if err := ctx.Err(); err != nil { // which the timer might hide
			return nil, err
		}
		wait := time.NewTimer(time.Until(l.began.Add(d.timeout)))
		defer wait.Stop()
		select {
		case <-l.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-wait.C:
			return nil, fmt.Errorf("%s: %w", host, errNotResolved)
		}
	}
	if l.err != nil {
		return nil, l.err
	}
	return d.note(host, l.addrs), nil
}

// note remembers the addresses of a host.
func (d *dialer) note(host string, addrs []string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hosts[host] = addrs
	return addrs
}

// look returns the resolution of a host that is under way, or one that nobody has waited for until its end, and begins one if there is neither.
func (d *dialer) look(ctx context.Context, host string) *lookup {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l := d.lookups[host]; l != nil && (!l.isDone() || l.isLate(d.timeout)) {
		return l
	}
	l := &lookup{began: time.Now(), done: make(chan struct{})}
	d.lookups[host] = l
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxLookup)
	go func() {
		defer cancel()
		l.addrs, l.err = d.resolver(ctx, host)
		l.ended = time.Now()
		close(l.done)
	}()
	return l
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
