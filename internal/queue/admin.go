package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/watermark"
)

// moveBatch is how many events one statement of a sweep or a purge moves, so that each commit stays short.
const moveBatch = 1000

// policy reads the policy that a function returns.
func policy(ctx context.Context, p *pools, from string, args ...any) (Policy, error) {
	type columns struct {
		Policy
		BackoffKind   *BackoffKind
		BackoffBase   time.Duration
		BackoffFactor *float64
		BackoffMax    *time.Duration
		BackoffJitter float64
		DeadLetters   *string
		Flow
		rateColumns
	}
	c, err := shortCall(ctx, p, pg.CollectOne[columns], `
		select name as queue, max_attempts, invisible_for, paused, history_retention as retention, version, updated_at, delay, wait, group_from,
			backoff_kind, backoff_base, backoff_factor, backoff_max, backoff_jitter, dead_letter_queue as dead_letters,
			flow_concurrency, flow_total, flow_order, flow_on_failed, flow_fair,
			flow_rate_limit as rate_limit, flow_rate_period as rate_period, flow_rate_burst as rate_burst
		from `+from, args...)
	if c.BackoffKind != nil {
		c.Backoff = &Backoff{*c.BackoffKind, c.BackoffBase, c.BackoffFactor, c.BackoffMax, c.BackoffJitter}
	}
	if c.DeadLetters != nil {
		c.DeadLetter = &DeadLetter{*c.DeadLetters}
	}
	if c.Rate = c.rate(); c.Flow != (Flow{}) {
		c.Policy.Flow = &c.Flow
	}
	return c.Policy, err
}

// PutPolicy sets the whole policy of p.Queue, at once for every process, and returns it with its defaults filled in. It fails with an *InvalidError,
// with ErrDeadLetterChain, with an *UndeclaredError about the dead-letter queue, and with ErrStale if the precondition is not met.
func (s *Service) PutPolicy(ctx context.Context, p Policy, only Precondition) (Policy, error) {
	object := map[string]any{"paused": p.Paused}
	if p.MaxAttempts != nil {
		object["max_attempts"] = *p.MaxAttempts
	}
	putInterval(object, "invisible_for", p.InvisibleFor)
	putInterval(object, "history_retention", p.Retention)
	putInterval(object, "delay", p.Delay)
	putInterval(object, "wait", p.Wait)
	if p.GroupFrom != nil {
		object["group_from"] = *p.GroupFrom
	}
	if p.DeadLetter != nil {
		object["dead_letter"] = map[string]string{"queue": p.DeadLetter.Queue}
	}
	if p.Flow != nil {
		object["flow"] = map[string]any{"concurrency": p.Flow.Concurrency, "total": p.Flow.Total, "order": p.Flow.Order, "on_failed": p.Flow.OnFailed, "rate": p.Flow.Rate.object(), "fair": p.Flow.Fair}
	}
	if b := p.Backoff; b != nil {
		backoff := map[string]any{"kind": b.Kind, "jitter": b.Jitter}
		putInterval(backoff, "base", &b.Base)
		putInterval(backoff, "max", b.Max)
		if b.Factor != nil {
			backoff["factor"] = *b.Factor
		}
		object["backoff"] = backoff
	}
	body, err := json.Marshal(object)
	if err != nil { // a factor or jitter that is no number
		return Policy{}, &InvalidError{Field: "backoff", Detail: "must be of finite numbers"}
	}
	asked := time.Now()
	put, err := policy(ctx, &s.pools, `agent.put_queue($1, $2, $3, $4, $5) where `+s.RequireQueue("dead_letter_queue"),
		p.Queue, string(body), only.Versions, only.Exists, only.Absent)
	if err != nil {
		return Policy{}, s.noteRefusal(asked, wrap("setting a queue's policy", err))
	}
	s.waits.forget(p.Queue)
	s.declared.add(p.Queue)
	s.wakeHere(map[string]bool{p.Queue: true})
	return put, nil
}

// putInterval puts a duration into an object as PostgreSQL reads it.
func putInterval(object map[string]any, name string, d *time.Duration) {
	if d != nil {
		object[name] = interval(*d)
	}
}

// GetPolicy returns the policy of a queue; one with nothing in it for a queue that has none.
func (s *Service) GetPolicy(ctx context.Context, queue string) (Policy, error) {
	p, err := policy(ctx, &s.pools, `agent.get_queue($1)`, queue)
	return p, wrap("reading a queue's policy", err)
}

// Queue returns the policy of a queue, and its counts as Queues has them; of the queues whose dead letters it takes, those that one of the patterns of queues (nil: all)
// stands for. It fails with ErrQueryTimeout.
func (s *Service) Queue(ctx context.Context, name string, lately time.Duration, queues []string) (Policy, QueueStats, error) {
	p, err := s.GetPolicy(ctx, name)
	if err != nil {
		return p, QueueStats{}, err
	}
	stats, err := collect[QueueStats](ctx, s, `select `+statsColumns+` from agent.queue_stats(nullif($1, interval '0'), _names => array[$2], _queues => $3)`, lately, name, queues)
	if err != nil || len(stats) == 0 {
		return p, QueueStats{}, wrap("counting a queue", err)
	}
	return p, stats[0], nil
}

// Pause has a queue hand out nothing, at once and in every process, until Resume. Leases that run go on. It fails with an *UndeclaredError.
func (s *Service) Pause(ctx context.Context, queue string) error {
	return s.noteRefusal(time.Now(), wrap("pausing a queue", s.pause(ctx, queue, true)))
}

// Resume ends a pause. It fails as Pause does.
func (s *Service) Resume(ctx context.Context, queue string) error {
	asked := time.Now()
	err := s.pause(ctx, queue, false)
	s.wakeHere(map[string]bool{queue: true})
	return s.noteRefusal(asked, wrap("resuming a queue", err))
}

func (s *Service) pause(ctx context.Context, queue string, isPaused bool) error {
	return s.short(ctx, func(pool *pg.Pool) error {
		_, err := pool.Exec(ctx, `select agent.pause_queue($1, $2) where `+s.RequireQueue("$1"), queue, isPaused)
		return err
	})
}

// Purge moves every event of a queue that nobody has a lease on to history as Cancelled, and returns how many. When it fails
// midway, events that it has moved stay so.
func (s *Service) Purge(ctx context.Context, queue string) (total int64, err error) {
	for {
		var n int64
		if err := s.loops.QueryRow(ctx, `select agent.purge_queue($1, $2)`, queue, moveBatch).Scan(&n); err != nil {
			return total, wrap("purging a queue", err)
		}
		total += n
		if n < moveBatch {
			return total, nil
		}
	}
}

// Delete deletes a queue that nothing names any more, its policy and its push, and returns how many events it has moved to history as Cancelled: with purge all, and none
// may be leased; without it there must not be any. History stays. It fails with ErrQueueNotFound, ErrQueueNotEmpty, ErrQueueInUse, ErrQueueLeased,
// and with ErrStale if versions (nil: any) has not that of the policy. When it fails midway, the queue is there, and events that it has moved stay so.
func (s *Service) Delete(ctx context.Context, queue string, purge bool, versions []int64) (purged int64, err error) {
	for {
		var n int64
		var isDeleted bool
		err := s.loops.QueryRow(ctx, `select purged, is_deleted from agent.delete_queue($1, $2, $3, $4)`, queue, purge, versions, moveBatch).Scan(&n, &isDeleted)
		err = refused(wrap("deleting a queue", err))
		purged += n
		if errors.Is(err, ErrQueueNotFound) && purged > 0 { // there were no more than the events
			err, isDeleted = nil, true
		}
		if err != nil {
			return purged, err
		}
		if isDeleted {
			s.forgetQueue(queue)
			return purged, nil
		}
	}
}

// refused returns an error with the detail that the database gave for refusing to delete a queue.
func refused(err error) error {
	pgErr, isAnswer := errors.AsType[*pgconn.PgError](err)
	if !isAnswer {
		return err
	}
	for _, known := range []error{ErrQueueNotEmpty, ErrQueueInUse, ErrQueueLeased} {
		if errors.Is(err, known) {
			return &RefusedError{Err: known, Detail: pgErr.Detail}
		}
	}
	return err
}

// forgetQueue forgets this process's counts of a queue that was deleted, and wakes those who wait for its events.
func (s *Service) forgetQueue(queue string) {
	s.counters.forget(queue)
	s.declared.forget(queue)
	queues := map[string]bool{queue: true}
	s.watermarks.MarkStale(queues)
	s.wakeHere(queues)
}

// Move moves events of a queue that nobody has a lease on into another one, and returns how many: up to limit (zero: all), of these types (none:
// whatever the type). They keep their ids, attempts and options, and can be claimed behind the events that wait there. When it fails midway, events that it has moved stay so. It fails
// with an *InvalidError, and with an *UndeclaredError about to.
func (s *Service) Move(ctx context.Context, from, to string, types []string, limit int) (total int64, err error) {
	for {
		batch := int64(moveBatch)
		if limit > 0 {
			batch = min(batch, int64(limit)-total)
		}
		var n int64
		asked := time.Now()
		if err := s.loops.QueryRow(ctx, `select agent.move_events($1, $2, $3, $4) where `+s.RequireQueue("$2"), from, to, batch, types).Scan(&n); err != nil {
			return total, s.noteRefusal(asked, wrap("moving events", err))
		}
		if n > 0 {
			s.wakeHere(map[string]bool{to: true})
		}
		if total += n; n < batch || total == int64(limit) {
			return total, nil
		}
	}
}

// RunEvent makes an event that waits for its time claimable now, and returns since when it is. One that is claimable stays as it is. It fails with
// ErrNotFound, also for an event of a queue that none of the patterns of queues (nil: all) stands for, with ErrLeased and ErrEnded.
func (s *Service) RunEvent(ctx context.Context, id int64, queues []string) (vt time.Time, err error) {
	var lane watermark.Lane
	err = s.row(ctx, `select vt, queue, coalesce(type, ''), priority from agent.run_event($1, _notify => false, _queues => $2)`, []any{id, queues},
		&vt, &lane.Queue, &lane.Type, &lane.Priority)
	if err != nil {
		return time.Time{}, wrap("running an event", err)
	}
	s.watermarks.Lower(time.Now(), lane, vt)
	s.wake(map[string]bool{lane.Queue: true})
	return vt, nil
}

// RunQueue makes the events of a queue claimable now that wait for their time, in the order in which they would have become so, and returns how
// many. Events inserted or nacked meanwhile are left alone, and so are those that another transaction has locked. When it fails midway, events that it has made
// claimable stay so. It fails with an *InvalidError.
func (s *Service) RunQueue(ctx context.Context, p RunParams) (total int64, err error) {
	var (
		began    *time.Time // and where the last transaction has come to
		priority *int32
		after    *pg.Timestamp
		afterID  *int64
	)
	for {
		batch := int64(moveBatch)
		if p.Limit > 0 {
			batch = min(batch, int64(p.Limit)-total)
		}
		var n int64
		err := s.loops.QueryRow(ctx, `select run, began, priority, vt, id from agent_service.run_events($1, $2, $3, $4, $5, $6, $7, $8)`,
			p.Queue, batch, p.Types, p.NackedOnly, began, priority, after, afterID).Scan(&n, &began, &priority, &after, &afterID)
		if err != nil {
			return total, wrap("running a queue", err)
		}
		if n > 0 {
			s.wake(map[string]bool{p.Queue: true})
		}
		if total += n; priority == nil || total == int64(p.Limit) {
			return total, nil
		}
	}
}

// Sweep moves events to history, as Failed those whose last attempt has ended by a nack and as Expired the others, and returns how many. No running lease is touched. When it fails midway, events that it has
// moved stay so.
func (s *Service) Sweep(ctx context.Context, p SweepParams) (total int64, err error) {
	for {
		rows, _ := s.loops.Query(ctx, `select queue, expired, failed, put_off, coalesce(reason, ''), dead_lettered from agent_service.sweep_events($1, $2, nullif($3, ''), $4)`,
			cmp.Or(p.MaxAttempts, s.cfg.MaxAttempts), p.MaxVTAge, p.Queue, moveBatch)
		var (
			queue, reason string
			n, failed     int64
			putOff        int64
			deadLettered  int64
			batch         int64
		)
		_, err := pgx.ForEachRow(rows, []any{&queue, &n, &failed, &putOff, &reason, &deadLettered}, func() error {
			batch += n + failed + putOff
			total += n + failed
			if putOff > 0 {
				s.cfg.Logger.Error().Str("queue", queue).Str("reason", reason).
					Msg("history does not take an event that is to expire: it is left alone for an hour")
				return nil
			}
			s.counters.add(queue, &Counters{Expired: n, Failed: failed, DeadLettered: deadLettered})
			return nil
		})
		if err != nil {
			return total, wrap("sweeping", err)
		}
		if batch < moveBatch {
			return total, nil
		}
	}
}

// Requeue copies one event of history back into its queue and returns the copy's id. It fails with ErrNotFound, also for an event of a queue
// that none of the patterns of queues (nil: all) stands for, with a *RequeuedError and with an *UndeclaredError.
func (s *Service) Requeue(ctx context.Context, id int64, queues []string) (copied int64, err error) {
	var queue string
	asked := time.Now()
	err = s.row(ctx, `select id, queue from agent.requeue_event($1, _notify => false, _queues => $2) where `+s.RequireQueue("queue"), []any{id, queues}, &copied, &queue)
	if err != nil {
		err = wrap("requeueing an event", err)
		if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); isAnswer && errors.Is(err, ErrRequeued) {
			copied, _ = strconv.ParseInt(pgErr.Detail, 10, 64) // the database has written it
			return 0, &RequeuedError{Copy: copied}
		}
		return 0, s.noteRefusal(asked, err)
	}
	s.counters.add(queue, &Counters{Requeued: 1})
	s.wake(map[string]bool{queue: true})
	return copied, nil
}

// RequeueMatching requeues by filter. It fails with ErrQueryTimeout or an *UndeclaredError, and then has requeued nothing.
func (s *Service) RequeueMatching(ctx context.Context, p RequeueParams) (result RequeueResult, err error) {
	type requeued struct {
		Queue             string
		Matched, Requeued int64
	}
	if !p.DryRun { // it locks the events that it requeues
		select {
		case s.requeues <- struct{}{}:
			defer func() { <-s.requeues }()
		case <-ctx.Done():
			return RequeueResult{}, wrap("requeueing events", ctx.Err())
		}
	}
	asked := time.Now()
	byQueue, err := collect[requeued](ctx, s, `
		select queue, matched, requeued
		from agent.requeue_events(nullif($1, ''), nullif($2, ''), $3, $4, $5, $6, $7, $8, _notify => false,
			_type => nullif($9, ''), _source => nullif($10, ''), _worker => nullif($11, ''), _min_duration => $12, _meta => $13, _queues => $14,
			_finished_from => $15, _finished_to => $16, _cause => nullif($17, ''))
		where `+s.RequireQueue("queue"),
		p.Queue, string(p.Outcome), p.From, p.To, pg.JSONArg(p.Contains), p.ID, min(cmp.Or(p.Limit, MaxBatch), MaxBatch), p.DryRun,
		p.Type, p.Source, p.Worker, p.MinDuration, pg.JSONArg(p.Meta), p.Queues, p.FinishedFrom, p.FinishedTo, p.Cause)
	if err != nil {
		return RequeueResult{}, s.noteRefusal(asked, wrap("requeueing events", err))
	}
	readyQueues := make(map[string]bool)
	for _, q := range byQueue {
		result.Matched += q.Matched
		result.Requeued += q.Requeued
		if q.Requeued > 0 {
			s.counters.add(q.Queue, &Counters{Requeued: q.Requeued})
			readyQueues[q.Queue] = true
		}
	}
	s.wake(readyQueues)
	return result, nil
}
