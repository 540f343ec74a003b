package pg

import (
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
	// tcpTimeout is how long a connection lives whose other side confirms nothing. It is for servers and networks that vanish: one that
	// hangs goes on confirming what it is sent.
	tcpTimeout = 10 * time.Second
	// closeTimeout is how long a server may take to say goodbye to a connection that is given up.
	closeTimeout = time.Second
	// leftFor is how long the address of a server that was left for another is not dialled, to send it cancel requests among others.
	leftFor = 15 * time.Second
)

// dialer makes the network connections, and knows which of a URL's hosts answered last.
type dialer struct {
	timeout time.Duration // until a session must be ready
	net     net.Dialer
	lookup  pgconn.LookupFunc

	mu    sync.Mutex
	hosts map[string][]string  // the addresses that a host was last resolved to
	peers map[string]peerState // by address, as host:port or the path of a socket
}

// peerState is what is known of an address.
type peerState struct {
	pending time.Time // when the attempt began that nothing was heard of yet; zero: there is none
	good    time.Time // when a session began there that may write
	left    time.Time // when its server was left for another
}

func newDialer(timeout time.Duration, lookup pgconn.LookupFunc) *dialer {
	return &dialer{
		timeout: timeout,
		net: net.Dialer{
			Timeout:         timeout,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
			Control:         setUserTimeout(tcpTimeout),
		},
		lookup: lookup,
		hosts:  make(map[string][]string),
		peers:  make(map[string]peerState),
	}
}

var errLeft = errors.New("the server at this address was just left for another one")

// dial opens a connection that ends by itself unless settle is called in time.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d.mu.Lock()
	peer := d.peers[address]
	if !peer.left.IsZero() && time.Since(peer.left) < leftFor {
		d.mu.Unlock()
		return nil, errLeft
	}
	if peer.pending.IsZero() {
		peer.pending = time.Now()
	}
	d.peers[address] = peer
	d.mu.Unlock()

	inner, err := d.net.DialContext(ctx, network, address)
	if err != nil {
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			d.answered(address, false)
		}
		return nil, err
	}
	c := &netConn{Conn: inner, address: address}
	c.bound = time.Now().Add(d.timeout)
	return c, inner.SetDeadline(c.bound)
}

// answered notes that something was heard from an address, and whether one may write there.
func (d *dialer) answered(address string, good bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	peer := d.peers[address]
	peer.pending = time.Time{}
	if good {
		peer.good, peer.left = time.Now(), time.Time{}
	}
	d.peers[address] = peer
}

// leave notes that the server at an address was left for another one.
func (d *dialer) leave(address string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	peer := d.peers[address]
	peer.left = time.Now()
	d.peers[address] = peer
}

// resolve remembers what a host was resolved to.
func (d *dialer) resolve(ctx context.Context, host string) ([]string, error) {
	addrs, err := d.lookup(ctx, host)
	if err == nil {
		d.mu.Lock()
		d.hosts[host] = addrs
		d.mu.Unlock()
	}
	return addrs, err
}

// order puts the host that was good last to the front of cfg, and those that did not answer to its end.
func (d *dialer) order(cfg *pgx.ConnConfig) {
	if len(cfg.Fallbacks) == 0 {
		return
	}
	hosts := append([]*pgconn.FallbackConfig{{Host: cfg.Host, Port: cfg.Port, TLSConfig: cfg.TLSConfig}}, cfg.Fallbacks...)
	d.mu.Lock()
	type rank struct {
		isSilent bool
		good     time.Time
	}
	rankOf := func(f *pgconn.FallbackConfig) (r rank) {
		for _, address := range d.addresses(f) {
			peer := d.peers[address]
			r.isSilent = r.isSilent || !peer.pending.IsZero() && time.Since(peer.pending) > d.timeout/2 ||
				!peer.left.IsZero() && time.Since(peer.left) < leftFor
			if peer.good.After(r.good) {
				r.good = peer.good
			}
		}
		return r
	}
	slices.SortStableFunc(hosts, func(a, b *pgconn.FallbackConfig) int {
		x, y := rankOf(a), rankOf(b)
		if x.isSilent != y.isSilent {
			if x.isSilent {
				return 1
			}
			return -1
		}
		return y.good.Compare(x.good)
	})
	d.mu.Unlock()
	cfg.Host, cfg.Port, cfg.TLSConfig, cfg.Fallbacks = hosts[0].Host, hosts[0].Port, hosts[0].TLSConfig, hosts[1:]
}

// addresses returns those that a host of the URL is known to have. The caller holds mu.
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

// netConn is a network connection whose end can be set for good.
type netConn struct {
	net.Conn
	address string

	mu    sync.Mutex
	bound time.Time // no deadline is set beyond this; zero: any may be
}

// settle lifts the bound: the session is ready.
func (c *netConn) settle() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bound = time.Time{}
	return c.Conn.SetDeadline(time.Time{})
}

// endBy has the connection end at t at the latest, whatever deadlines are set.
func (c *netConn) endBy(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bound.IsZero() || t.Before(c.bound) {
		c.bound = t
	}
	_ = c.Conn.SetDeadline(c.bound)
}

// SetDeadline sets a deadline within the bound.
func (c *netConn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.bound.IsZero() && (t.IsZero() || t.After(c.bound)) {
		t = c.bound
	}
	return c.Conn.SetDeadline(t)
}

// netConnOf returns the network connection of a session, nil for one that was not made here.
func netConnOf(conn *pgconn.PgConn) *netConn {
	inner := conn.Conn()
	if tls, ok := inner.(interface{ NetConn() net.Conn }); ok {
		inner = tls.NetConn()
	}
	c, _ := inner.(*netConn)
	return c
}
