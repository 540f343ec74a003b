// Package body reads the bodies of requests into memory, within a budget that all requests of a process share, and writes large answers within another one. It
// keeps slow or many clients from taking all memory: nothing else bounds how many requests arrive at a time.
package body

import (
	"cmp"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// The errors of bodies that are refused for want of memory. Nothing of such a request was looked at.
var (
	// ErrFull: the bodies of other requests take all of the budget.
	ErrFull = errors.New("the bodies of other requests take all the memory that there is for them")
	// ErrTooSlow: it arrived slowly, while others needed its memory.
	ErrTooSlow = errors.New("the body arrived slowly, and others needed its memory")
)

// Defaults and bounds.
const (
	// DefaultLimit is that of a Budget, in bytes.
	DefaultLimit = 128 << 20
	// DefaultUnverifiedTime is how long the body of a sender who is not known yet may take to arrive.
	DefaultUnverifiedTime = 10 * time.Second
	// unverifiedShare is the part of the budget that bodies of senders who are not known yet may take together.
	unverifiedShare = 1.0 / 8
	// perUnverified counts for each of those beside its bytes: about the memory of its connection. It bounds how many there are.
	perUnverified = 16 << 10

	// A body that takes longer than its grace and the time that its bytes take at slowest gives way to others that need its memory.
	grace           = time.Second
	unverifiedGrace = 250 * time.Millisecond
	slowest         = 256 << 10 // bytes per second
)

// Config says how much memory bodies may take. The zero value is the default of everything.
type Config struct {
	Limit      int64 // bytes that all bodies take together; zero: DefaultLimit, or two of Largest where that is more
	Largest    int64 // bytes of the largest body that is ever read
	Unverified int64 // bytes of the largest body that is ever read of a sender who is not known yet: one fits in whatever the limit is
	// UnverifiedTime is how long such a body may take to arrive; zero: DefaultUnverifiedTime.
	UnverifiedTime time.Duration
}

// MinLimit is the least limit of a Budget for bodies of this many bytes: one that grows is copied.
func MinLimit(largest int64) int64 { return 2 * largest }

// A Budget bounds the bytes that bodies take, as they arrive: bytes that have not arrived count nothing. It is safe for concurrent use.
type Budget struct {
	limit, share   int64
	unverifiedTime time.Duration
	now            func() time.Time

	used                          atomic.Int64
	full, unverifiedFull, gaveWay atomic.Int64

	mu         sync.Mutex
	unverified int64              // bytes of used
	arriving   map[*Hold]struct{} // those that can give way
}

// NewBudget returns a budget.
func NewBudget(cfg Config) *Budget {
	b := &Budget{limit: cmp.Or(cfg.Limit, max(DefaultLimit, MinLimit(cfg.Largest))), now: time.Now, arriving: make(map[*Hold]struct{})}
	b.unverifiedTime = cmp.Or(cfg.UnverifiedTime, DefaultUnverifiedTime)
	b.share = min(b.limit, max(int64(float64(b.limit)*unverifiedShare), MinLimit(cfg.Unverified)+perUnverified))
	return b
}

// Stats are the counts of a budget.
type Stats struct {
	Limit, UnverifiedLimit        int64 // bytes
	Verified, Unverified          int64 // bytes that are in memory now
	Full, UnverifiedFull, TooSlow int64 // bodies that were refused
}

// Stats returns the counts of the budget.
func (b *Budget) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Stats{
		Limit: b.limit, UnverifiedLimit: b.share, Verified: max(0, b.used.Load()-b.unverified), Unverified: b.unverified,
		Full: b.full.Load(), UnverifiedFull: b.unverifiedFull.Load(), TooSlow: b.gaveWay.Load(),
	}
}

// take adds n bytes to those of h, or fails with ErrFull or ErrTooSlow.
func (b *Budget) take(h *Hold, n int64) error {
	if !h.isArriving && !h.isUnverified { // nobody else knows of it
		if b.used.Add(n) <= b.limit {
			h.bytes += n
			return nil
		}
		b.used.Add(-n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.gaveWay {
		return ErrTooSlow
	}
	for h.isUnverified && b.unverified+n > b.share {
		if !b.evict(h, true) {
			b.unverifiedFull.Add(1)
			return ErrFull
		}
	}
	for b.used.Add(n) > b.limit {
		b.used.Add(-n)
		if !b.evict(h, true) && !b.evict(h, false) {
			b.full.Add(1)
			return ErrFull
		}
	}
	h.bytes += n
	if h.isUnverified {
		b.unverified += n
	}
	return nil
}

// evict has the body that is the furthest behind its time give way, of those that are unverified or not, and reports whether there was one. It is called
// with mu held.
func (b *Budget) evict(by *Hold, isUnverified bool) bool {
	var latest *Hold
	var most time.Duration
	now := b.now()
	for h := range b.arriving {
		if h == by || h.isUnverified != isUnverified {
			continue
		}
		allowed := time.Duration(h.bytes) * time.Second / slowest
		if isUnverified {
			allowed += unverifiedGrace
		} else {
			allowed += grace
		}
		if late := now.Sub(h.started) - allowed; late > most {
			latest, most = h, late
		}
	}
	if latest == nil {
		return false
	}
	latest.gaveWay = true
	b.gaveWay.Add(1)
	b.forget(latest, latest.bytes) // the memory is free as soon as its goroutine has seen that
	delete(b.arriving, latest)
	latest.interrupt()
	return true
}

// forget takes n bytes off those of h. For a body that others know of, it is called with mu held.
func (b *Budget) forget(h *Hold, n int64) {
	h.bytes -= n
	b.used.Add(-n)
	if h.isUnverified {
		b.unverified -= n
	}
}
