package queue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

const (
	// endInterval is the time between two looks for events that others than this process have ended, give or take a quarter. Once all callers have
	// waited for longer than endAge times that, it is their age divided by endAge, up to longEndInterval.
	endInterval     = 200 * time.Millisecond
	endAge          = 10
	longEndInterval = time.Second
	// endShare bounds what the looks take of a connection: the pause after one is so many times as long as it took. At endInterval, a look may
	// take 10 ms, which is enough for some thousand events.
	endShare = 20
	// maxEndPause bounds that pause: a look may have waited for a connection.
	maxEndPause = 2 * time.Second
	// endTimeout bounds one look.
	endTimeout = 5 * time.Second
)

// endWaits are the callers that wait for the end of an event. What this process acks or nacks wakes them at once; a goroutine that runs while there are
// any looks for all of them whether others have ended an event.
type endWaits struct {
	svc     *Service
	count   atomic.Int64  // of callers: while there are none, an ack looks no further
	drained chan struct{} // closed when callers must not wait any more

	joined pg.Signal // a caller has come

	mu        sync.Mutex
	byID      map[int64]map[endWait]struct{}
	joinedAt  time.Time // when the last caller came
	isLooking bool      // the goroutine runs
}

// An endWait receives when its event may have ended, or an error when that cannot be known. Its capacity is one: sending never blocks.
type endWait chan error

func newEndWaits(s *Service) *endWaits {
	return &endWaits{svc: s, drained: make(chan struct{}), joined: pg.NewSignal(), byID: make(map[int64]map[endWait]struct{})}
}

// WaitEvent returns an event as Get does once it is in history, or as it is when it is not there after so long, or when the service drains. It fails as Get
// does, and with ErrUnavailable as soon as the database cannot be asked.
func (s *Service) WaitEvent(ctx context.Context, id int64, wait time.Duration) (Event, error) {
	if wait <= 0 || !s.joinEnd() {
		return s.Get(ctx, id)
	}
	defer s.work.Done()
	w := s.ends.join(id)
	defer s.ends.leave(id, w)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for isLast := false; ; {
		e, err := s.Get(ctx, id) // after join: an end since then wakes this caller
		if err != nil || e.Outcome != "" || isLast {
			return e, err
		}
		select {
		case err := <-w:
			if err != nil {
				return Event{}, err
			}
		case <-timer.C:
			isLast = true
		case <-s.ends.drained:
			isLast = true
		case <-ctx.Done():
			return Event{}, wrap("waiting for the end of an event", ctx.Err())
		}
	}
}

// joinEnd reports whether a caller may wait. Close waits until it calls s.work.Done.
func (s *Service) joinEnd() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.work.Add(1)
	return true
}

// EndWaits returns how many callers of this process wait for the end of an event.
func (s *Service) EndWaits() int64 { return s.ends.count.Load() }

func (e *endWaits) join(id int64) endWait {
	w := make(endWait, 1)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.count.Add(1)
	e.joinedAt = time.Now()
	e.joined.Send()
	if e.byID[id] == nil {
		e.byID[id] = make(map[endWait]struct{}, 1)
	}
	e.byID[id][w] = struct{}{}
	if !e.isLooking {
		e.isLooking = true
		e.svc.work.Go(e.look)
	}
	return w
}

func (e *endWaits) leave(id int64, w endWait) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.count.Add(-1)
	delete(e.byID[id], w)
	if len(e.byID[id]) == 0 {
		delete(e.byID, id)
	}
}

// wake tells the callers that wait for these events that they have ended.
func (e *endWaits) wake(ids ...int64) {
	if e.count.Load() == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range ids {
		e.tell(id, nil)
	}
}

// wakeAcked tells the callers that wait for what operations have acked.
func (e *endWaits) wakeAcked(ops []*operation) {
	if e.count.Load() == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, op := range ops {
		for i := range op.acked {
			if op.acked[i].Err == nil {
				e.tell(op.acked[i].ID, nil)
			}
		}
	}
}

// tell tells the callers that wait for an event. The caller holds mu.
func (e *endWaits) tell(id int64, err error) {
	for w := range e.byID[id] {
		select {
		case w <- err:
		default: // it has been told and not come to it
		}
	}
}

// look looks for the ends of all events that callers wait for, in one statement each time, until there are no callers.
func (e *endWaits) look() {
	pause := pg.Jittered(endInterval)
	for e.pause(pause) {
		e.mu.Lock()
		interval := min(max(endInterval, time.Since(e.joinedAt)/endAge), longEndInterval)
		ids := make([]int64, 0, len(e.byID))
		for id := range e.byID {
			ids = append(ids, id)
		}
		e.isLooking = len(ids) > 0
		e.mu.Unlock()
		if len(ids) == 0 {
			return
		}
		began := time.Now()
		ended, err := e.find(ids)
		pause = max(pg.Jittered(interval), min(endShare*time.Since(began), maxEndPause))
		if err == nil {
			e.wake(ended...)
			continue
		}
		e.mu.Lock()
		for _, id := range ids {
			e.tell(id, err)
		}
		e.mu.Unlock()
	}
}

// pause pauses for d, or for endInterval from when a caller comes, and reports whether the looks go on.
func (e *endWaits) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	end := time.Now().Add(d)
	for {
		select {
		case <-timer.C:
			return true
		case <-e.joined:
			timer.Reset(min(time.Until(end), pg.Jittered(endInterval)))
		case <-e.drained:
			return false
		}
	}
}

// find returns those of these events that are in no queue.
func (e *endWaits) find(ids []int64) (ended []int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	rows, _ := e.svc.loops.Query(ctx, `select id from agent_service.find_ended($1) as e (id)`, ids)
	ended, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: the database did not answer within %v", ErrUnavailable, endTimeout)
	}
	return ended, wrap("looking for the ends of events", err)
}

// drain has callers wait no more. The caller holds Service.mu.
func (e *endWaits) drain() {
	select {
	case <-e.drained:
	default:
		close(e.drained)
	}
}
