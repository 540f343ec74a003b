package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

const (
	// flushTimeout bounds one flush. It is the flusher's own: a caller that gives up does not take
	// its neighbours along. It is less than a request may take, so that those who wait behind it can still be answered.
	flushTimeout = 10 * time.Second

	// hangs is how long a flush must have taken before it found the database unavailable for those who wait behind it to fail as well. A database
	// that refuses at once may be back at the next try.
	hangs = time.Second

	// maxFlushBytes bounds the payloads that calls share a flush with, as a batch over HTTP is
	// bounded unless configured otherwise, and those that one claim returns. A call that is larger has a flush to itself.
	maxFlushBytes = 8 << 20

	// flushLockTimeout is how long a flush waits for a row that somebody else has locked. The parts
	// that may have to wait for it are then run apart, lest everyone wait with them.
	flushLockTimeout = 100 * time.Millisecond

	// secondWriterThreshold is how many events must wait for a further writer to be worth its while: two
	// writers with half as much each do less than one.
	secondWriterThreshold = 100

	// maxPendingOperations is how many calls may wait to be written; Config.MaxPendingBytes bounds their bytes.
	maxPendingOperations = 20_000

	// itemOverhead is what an event or an ack takes in memory besides its payload, in bytes, about.
	itemOverhead = 128
)

// flusher lets concurrent inserts, acks and claims share a transaction. A flush starts whenever a
// writer is free and takes what has gathered since the last one began, so that a lone call waits for nobody and many
// pay for one round trip and one commit. A caller is answered when its part is committed.
type flusher struct {
	svc     *Service
	pool    *pg.Pool // a connection for each writer
	writers int      // flushes at once, at most
	work    sync.WaitGroup
	apart   chan struct{} // holds a token for each part that is run apart

	mu      sync.Mutex
	waiting []*part // in order of arrival
	items   int     // events in waiting
	pending load    // of every part that is not answered yet: waiting, being flushed, or run apart
	running int     // writers at work
	closed  bool
}

// load is what parts ask of the process.
type load struct {
	operations int
	bytes      int
}

func newFlusher(s *Service) *flusher {
	return &flusher{
		svc: s, pool: s.writers, writers: int(s.writers.Config().MaxConns),
		apart: make(chan struct{}, max(1, s.calls.Config().MaxConns/2)),
	}
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
	bytes   int      // of payloads and results, and what each takes besides

	// What came of it, to be read after done has been received from: in the order of inserts and acks.
	inserted []Inserted
	acked    []AckResult
	claimed  []Event
	surplus  []Lease            // claimed as well, but too large to hold
	upTo     map[lane]time.Time // the vt that the last event claimed from each lane had before
	err      error              // why what was committed for it could not be read; nil: it could
	done     chan error         // of capacity one: answering never blocks
}

func (p *part) size() int { return max(1, len(p.inserts)+len(p.acks)) }

// mayWait reports whether the part may have to wait for a lock of another transaction: on an event that it acks, or on a key that somebody else is
// using for the first time.
func (p *part) mayWait() bool {
	return len(p.acks) > 0 || slices.ContainsFunc(p.inserts, func(e InsertParams) bool { return e.Key != "" })
}

// do has inserts or acks flushed and returns the error that kept them from being. When ctx ends first they may be
// flushed or not, and their results must not be read.
func (f *flusher) do(ctx context.Context, p *part) error {
	if err := f.add(p); err != nil { //nolint:contextcheck // a flush serves many callers, and outlives each of them
		return err
	}
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
		f.forget(p)
		return wrap("writing to the queue", ctx.Err())
	}
}

// add has parts flushed, in one transaction if they are few. Each is answered through its done. It fails with ErrOverloaded when too much waits already;
// claims are always let in, as there are few of them and they are what makes the backlog smaller.
func (f *flusher) add(parts ...*part) error {
	more := load{operations: len(parts)}
	items := 0
	for _, p := range parts {
		p.bytes = p.size() * itemOverhead
		for i := range p.inserts {
			p.bytes += len(p.inserts[i].Event)
		}
		for i := range p.acks {
			p.bytes += len(p.acks[i].Result)
		}
		more.bytes += p.bytes
		items += p.size()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch sum := (load{f.pending.operations + more.operations, f.pending.bytes + more.bytes}); {
	case f.closed:
		return fmt.Errorf("writing to the queue: %w", pg.ErrClosed)
	case parts[0].claim == nil && f.pending.operations > 0 && (sum.operations > maxPendingOperations || sum.bytes > f.svc.cfg.MaxPendingBytes):
		return fmt.Errorf("%w: %d calls with %d bytes wait to be written", ErrOverloaded, f.pending.operations, f.pending.bytes)
	default:
		f.pending = sum
	}
	f.waiting = append(f.waiting, parts...)
	f.items += items
	if f.running == 0 || f.running < f.writers && f.items >= secondWriterThreshold {
		f.running++
		f.work.Add(1)
		go f.write()
	}
	return nil
}

// answer tells the caller of a part what became of it.
func (f *flusher) answer(p *part, err error) {
	f.mu.Lock()
	f.pending.operations--
	f.pending.bytes -= p.bytes
	f.mu.Unlock()
	if err == nil && p.err != nil {
		err = p.err
		if !errors.Is(err, pg.ErrUnconfirmed) || len(p.claimed)+len(p.surplus) > 0 {
			f.releaseUnanswered(p)
		}
	}
	p.done <- err
}

// releaseUnanswered gives back what a claim took whose answer cannot be read in full, or was not confirmed.
func (f *flusher) releaseUnanswered(p *part) {
	leases := p.surplus
	for i := range p.claimed {
		leases = append(leases, Lease{ID: p.claimed[i].ID, Receipt: p.claimed[i].Receipt})
	}
	leases = slices.DeleteFunc(leases, func(l Lease) bool { return l.Receipt == "" })
	p.claimed, p.surplus = nil, nil
	f.svc.cfg.Logger.Error().Err(p.err).Int("released", len(leases)).Msg("what a transaction has committed cannot be answered")
	if len(leases) > 0 {
		f.work.Go(func() {
			if err := f.svc.Release(context.Background(), leases); err != nil {
				f.svc.logUnreleased(err, p.claim.Queue, len(leases))
			}
		})
	}
}

// forget takes back a part, unless it is being flushed already.
func (f *flusher) forget(p *part) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.waiting, p)
	if i >= 0 {
		f.waiting = slices.Delete(f.waiting, i, i+1)
		f.items -= p.size()
		f.pending.operations--
		f.pending.bytes -= p.bytes
	}
}

// failWaiting answers every part that waits: behind a flush that took too long none would fare better.
func (f *flusher) failWaiting(err error) {
	f.mu.Lock()
	waiting := f.waiting
	f.waiting, f.items = nil, 0
	f.mu.Unlock()
	for _, p := range waiting {
		f.answer(p, err)
	}
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
// unknown what was written, all of them are answered so.
func (f *flusher) flush(parts []*part) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	parts = f.withOffers(parts)
	began := time.Now()
	err := f.svc.runParts(ctx, f.pool, parts)
	switch {
	case err == nil:
		for _, p := range parts {
			f.answer(p, nil)
		}
	case pg.LostRace(err):
		f.flushAround(ctx, parts)
	case len(parts) > 1 && pg.Rejected(err):
		half := len(parts) / 2
		f.flush(parts[:half:half]) // what it adds must not go over the others
		f.flush(parts[half:])
	default:
		for _, p := range parts {
			f.answer(p, err)
		}
		if errors.Is(err, ErrUnavailable) && time.Since(began) > hangs {
			f.failWaiting(fmt.Errorf("writing to the queue: %w: it did not answer those before in time, and nothing of this call was written", ErrUnavailable))
		}
	}
}

// flushAround has the parts that may wait for a lock run apart, and goes on with the others.
func (f *flusher) flushAround(ctx context.Context, parts []*part) {
	apart := f.blocked(ctx, parts)
	if len(apart) == 0 { // by a key, or by something that is not known here
		apart = slices.DeleteFunc(slices.Clone(parts), func(p *part) bool { return !p.mayWait() })
	}
	if len(apart) == 0 {
		apart = parts
	}
	rest := slices.DeleteFunc(slices.Clone(parts), func(p *part) bool { return slices.Contains(apart, p) })
	for _, p := range apart {
		f.work.Go(func() { f.flushAlone(p) }) //nolint:contextcheck // it has a time of its own
	}
	if len(rest) > 0 {
		f.flush(rest) //nolint:contextcheck // it has a time of its own
	}
}

// blocked returns the parts with an ack of an event that somebody else has locked.
func (f *flusher) blocked(ctx context.Context, parts []*part) []*part {
	owners := make(map[int64][]*part)
	for _, p := range parts {
		for i := range p.acks {
			owners[p.acks[i].ID] = append(owners[p.acks[i].ID], p)
		}
	}
	if len(owners) == 0 {
		return nil
	}
	rows, _ := f.pool.Query(ctx, `select agent.locked_events($1)`, slices.Collect(maps.Keys(owners)))
	locked, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil { // then all that may wait are run apart
		return nil
	}
	var blocked []*part
	for _, id := range locked {
		for _, p := range owners[id] {
			if !slices.Contains(blocked, p) {
				blocked = append(blocked, p)
			}
		}
	}
	return blocked
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
				f.mu.Lock()
				f.pending.operations++
				f.mu.Unlock()
				parts = append(parts, offer)
			}
		}
	}
	return parts
}

// flushAlone runs a part by itself: at once if nothing is in its way, else when it has waited for what is.
func (f *flusher) flushAlone(p *part) {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	f.answer(p, f.svc.short(ctx, func(pool *pg.Pool) error {
		if pool == f.svc.calls { // half of which are left to the other calls, however many parts are run apart
			select {
			case f.apart <- struct{}{}:
				defer func() { <-f.apart }()
			case <-ctx.Done():
				return wrap("writing to the queue", ctx.Err())
			}
		}
		return f.svc.runParts(ctx, pool, []*part{p})
	}))
}
