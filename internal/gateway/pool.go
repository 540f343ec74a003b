package gateway

import (
	"crypto/sha256"
	"net/http"
	"sync"
)

// What callers share has a limit as a whole, and one for each of them: nobody can take all of it.

// A holder is who holds a part of a pool: a caller whom home knows, by the hash of what it has said of itself; all others together; or the gateway.
type holder [sha256.Size]byte

var (
	strangers = holder{}  // an eighth of a pool is theirs
	itself    = holder{1} // the gateway, which asks home for callers: an eighth, too
)

// A pool is places or bytes that callers share. One caller holds three quarters at most.
type pool struct {
	limit int64

	mu   sync.Mutex
	used int64
	held map[holder]int64
}

// share returns how much of the pool a holder may have.
func (p *pool) share(h holder) int64 {
	if h == strangers || h == itself {
		return (p.limit + 7) / 8
	}
	return (3*p.limit + 3) / 4
}

// take takes n, and reports whether there were so many.
func (p *pool) take(h holder, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used+n > p.limit || p.held[h]+n > p.share(h) {
		return false
	}
	if p.held == nil {
		p.held = make(map[holder]int64)
	}
	p.used += n
	p.held[h] += n
	return true
}

// give gives n back.
func (p *pool) give(h holder, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
	if p.held[h] -= n; p.held[h] == 0 {
		delete(p.held, h)
	}
}

// inUse returns how much is taken.
func (p *pool) inUse() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// takePlace takes one of the places of a cell, and returns what gives it back. It fails with a *problem.
func (g *Gateway) takePlace(places *pool, at *cell, h holder) (leave func(), err error) {
	if places.take(h, 1) {
		return func() { places.give(h, 1) }, nil
	}
	g.metrics.refused.WithLabelValues(at.label).Inc()
	return nil, full("Cell " + at.label + " holds as many calls as it may, in all or of this caller. Nothing was done; retry with growing pauses.")
}

// hashOfCaller returns the hash of what the caller of r says of itself.
func hashOfCaller(r *http.Request) holder {
	return sha256.Sum256([]byte(r.Header.Get("Authorization")))
}
