package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pg"
)

const (
	// flushTimeout bounds one flush. It is the flusher's own: a caller that gives up does not take
	// its neighbours along.
	flushTimeout = 10 * time.Second

	// maxFlushBytes bounds the payloads that calls share a flush with, as a batch over HTTP is
	// bounded unless configured otherwise, and those that one claim returns. A call that is larger has a flush to itself.
	maxFlushBytes = 8 << 20

	// flushLockTimeout is how long a flush waits for a row that somebody else has locked. The part
	// that needs the row then waits by itself, lest everyone wait with it.
	flushLockTimeout = 100 * time.Millisecond

	// crowd is how many events must wait for a further writer to be worth its while: two
	// writers with half as much each do less than one.
	crowd = 100
)

// flusher lets concurrent inserts, acks and claims share a transaction. A flush starts whenever a
// writer is free and takes what has gathered since the last one began, so that a lone call waits for nobody and a crowd
// pays for one round trip and one commit. A caller is answered when its part is committed.
type flusher struct {
	svc     *Service
	pool    *pg.Pool // a connection for each writer
	writers int      // flushes at once, at most
	work    sync.WaitGroup
	alone   chan struct{} // holds a token for each part that waits for a lock by itself, on the service's own pool

	mu      sync.Mutex
	waiting []*part // in order of arrival
	items   int     // events in waiting
	running int     // writers at work
	closed  bool
}

// newFlusher returns a flusher with connections of its own, one for each writer, so that nothing which takes long stands in
// its way.
func newFlusher(ctx context.Context, s *Service, writers int32) (*flusher, error) {
	pool, err := s.db.NewPool(ctx, pg.PoolConfig{MaxConns: int(writers), LockTimeout: flushLockTimeout})
	if err != nil {
		return nil, err
	}
	return &flusher{svc: s, pool: pool, writers: int(writers), alone: make(chan struct{}, max(1, s.pool.Config().MaxConns/2))}, nil
}

// A part is what one call does in a flush: all of it, or nothing when it fails. It is made of one of
// inserts, acks and claim.
type part struct {
	inserts []InsertParams
	acks    []Ack
	claim   *ClaimParams
	workers []string // who each event is claimed for, in order; nil: not said
	from    marked   // where the claim begins
	offered bool     // whether the claim came along with an insert
	handed  int      // events that are handed over to it as they are inserted
	bytes   int      // of payloads and results

	// What came of it, to be read after done has been received from: in the order of inserts and acks.
	inserted []Inserted
	acked    []AckResult
	claimed  []Event
	surplus  []Lease            // claimed as well, but too large to hold
	upTo     map[lane]time.Time // the vt that the last event claimed from each lane had before
	done     chan error         // of capacity one: answering never blocks
}

func (p *part) size() int { return max(1, len(p.inserts)+len(p.acks)) }

// do has p flushed and returns the error that kept it from being. When ctx ends first, inserts and acks may be
// flushed or not, and their results must not be read. A claim is never left in the dark: what it took would stay leased.
func (f *flusher) do(ctx context.Context, p *part) error {
	for i := range p.inserts {
		p.bytes += len(p.inserts[i].Event)
	}
	for i := range p.acks {
		p.bytes += len(p.acks[i].Result)
	}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return fmt.Errorf("writing to the queue: %w", pg.ErrClosed)
	}
	f.waiting = append(f.waiting, p)
	f.items += p.size()
	if f.running == 0 || f.running < f.writers && f.items >= crowd {
		f.running++
		f.work.Add(1)
		go f.write() //nolint:contextcheck // it serves many callers, and outlives each of them
	}
	f.mu.Unlock()
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		if !f.forget(p) && p.claim != nil {
			return <-p.done
		}
		return ctx.Err()
	}
}

// forget takes back a part, unless it is being flushed already, and reports whether it did.
func (f *flusher) forget(p *part) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.waiting, p)
	if i >= 0 {
		f.waiting = slices.Delete(f.waiting, i, i+1)
		f.items -= p.size()
	}
	return i >= 0
}

// close refuses further parts, and waits until those that are there have been answered.
func (f *flusher) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.work.Wait()
}

// write flushes until nothing waits any more.
func (f *flusher) write() {
	defer f.work.Done()
	for {
		parts := f.next()
		if len(parts) == 0 {
			return
		}
		f.flush(parts)
	}
}

// next takes the parts of the next flush: those that have waited longest, as far as the limits go.
func (f *flusher) next() []*part {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, items, bytes := 0, 0, 0
	for _, p := range f.waiting {
		items, bytes = items+p.size(), bytes+p.bytes
		if n > 0 && (items > MaxBatch || bytes > maxFlushBytes) {
			items -= p.size()
			break
		}
		n++
	}
	parts := slices.Clone(f.waiting[:n])
	f.waiting = slices.Delete(f.waiting, 0, n)
	f.items -= items
	if n == 0 {
		f.running--
	}
	return parts
}

// flush runs parts in one transaction and answers them. When the database refuses it for what a part is, nothing of
// it was written, and the halves are tried by themselves, so that in the end the bad part fails alone. When it is
// unknown what was written, all of them hear so.
func (f *flusher) flush(parts []*part) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	parts = f.withOffers(parts)
	err := f.svc.runParts(ctx, f.pool, parts)
	switch {
	case err == nil:
		for _, p := range parts {
			p.done <- nil
		}
	case len(parts) > 1 && isRefused(err):
		half := len(parts) / 2
		f.flush(parts[:half:half]) // what it adds must not go over the others
		f.flush(parts[half:])
	case hasLost(err):
		f.work.Add(1)
		go f.flushAlone(parts[0])
	default:
		for _, p := range parts {
			p.done <- err
		}
	}
}

// withOffers adds the claims of those who wait for what parts insert.
func (f *flusher) withOffers(parts []*part) []*part {
	var asked map[string]bool
	for _, p := range parts {
		for i := range p.inserts {
			e := &p.inserts[i]
			queue := cmp.Or(e.Queue, Default)
			if e.Delay != 0 || e.VT != nil || asked[queue] {
				continue
			}
			if asked == nil {
				asked = make(map[string]bool, 1)
			}
			asked[queue] = true
			if offer := f.svc.takeOffer(queue); offer != nil {
				parts = append(parts, offer)
			}
		}
	}
	return parts
}

// flushAlone runs a part that has to wait for somebody's lock. However many such parts there are, they leave half of the service's
// connections to the other calls.
func (f *flusher) flushAlone(p *part) {
	defer f.work.Done()
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	select {
	case f.alone <- struct{}{}:
		defer func() { <-f.alone }()
		p.done <- f.svc.runParts(ctx, f.svc.pool, []*part{p})
	case <-ctx.Done():
		p.done <- wrap("waiting for other locked events", ctx.Err())
	}
}

// isRefused reports whether a transaction failed for what some part of it is, so that others may succeed without it.
func isRefused(err error) bool {
	if errors.Is(err, ErrInvalid) || errors.Is(err, ErrKeyReused) || hasLost(err) {
		return true
	}
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || len(pgErr.Code) != 5 {
		return false
	}
	switch pgErr.Code[:2] { // data exception, integrity constraint violation, program limit exceeded, raised by a trigger
	case "22", "23", "54", "P0":
		return true
	}
	return false
}

// hasLost reports whether a transaction lost against another one, and was undone for that: it waited too long for
// a lock, or the two waited for each other, or history got a partition for what was on its way into another one.
func hasLost(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case "55P03", "40P01": // lock_not_available, deadlock_detected
		return true
	case "23514": // check_violation: a partition's constraint
		return pgErr.SchemaName == "agent" && strings.HasPrefix(pgErr.TableName, "event_hist_")
	}
	return false
}
