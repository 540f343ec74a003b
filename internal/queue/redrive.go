package queue

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// redriveChannel is the channel of notifications that there may be a redrive to go on with.
const redriveChannel = "agent_redrive"

const (
	// redriveRest is how long a process relies on notifications that there is a redrive.
	redriveRest = time.Hour
	// takenPause is how long a process waits while others make all steps that are due.
	takenPause = 100 * time.Millisecond
	// redrivePoll is how long it does when notifications may not arrive.
	redrivePoll = 10 * time.Second
)

// Origin is the target of a redrive of dead letters that each go to the queue where they came from.
const Origin = "origin"

// RedriveState is where a redrive stands.
type RedriveState string

// The states of a redrive.
const (
	RedriveRunning   RedriveState = "running"
	RedrivePaused    RedriveState = "paused"
	RedriveCancelled RedriveState = "cancelled"
	RedriveDone      RedriveState = "done"
	RedriveFailed    RedriveState = "failed" // for the reason that it has; it can be resumed
)

// RedriveParams says which events a redrive requeues, where to, and how many a second.
type RedriveParams struct {
	HistoryFilter           // of what is in history; its ID does not count
	DeadLetterQueue string  // the dead letters that wait in it instead, of which From, To, Contains, Meta, Type and Source are the filter; empty: none
	ToQueue         string  // where they go; empty: each to its own queue, and a dead letter to its Origin
	Rate            float64 // events a second; zero: as fast as goes beside other work
	IdempotencyKey  string  // up to 255 characters; empty: none
}

// Redrive is a RedriveParams and what has become of it. Its Queues are the patterns of the queues that its creator may use.
type Redrive struct {
	RedriveParams
	ID         int64
	CreatedAt  time.Time
	CreatedBy  string // as the audit has it
	State      RedriveState
	Reason     string // why it has failed, or why the latest event was skipped that raised an error; empty: neither
	Matched    int64  // when it was created
	IsEstimate bool   // Matched is an estimate
	Requeued   int64
	Skipped    int64 // events that matched and were not requeued: somebody else has done it, or no queue may hold them
	UpdatedAt  time.Time
	FinishedAt *time.Time
}

// redriveColumns are the columns of a Redrive.
const redriveColumns = `id, created_at, created_by, coalesce(idempotency_key, '') as idempotency_key, dead_letter_queue, queue, outcome, from_ts as "from",
	to_ts as "to", finished_from, finished_to, contains, type, source, worker, min_duration, meta, coalesce(cause, '') as cause, queues, to_queue, rate, state, reason, matched, is_estimate, requeued, skipped,
	updated_at, finished_at`

// CreateRedrive creates a redrive, which processes that Run go on with, and returns it. isDeduplicated reports that the key stands for it already. It fails with ErrKeyReused,
// ErrTooManyRedrives, an *InvalidError, or an *UndeclaredError about ToQueue. The key counts for the actor of the call alone.
func (s *Service) CreateRedrive(ctx context.Context, p RedriveParams) (made Redrive, isDeduplicated bool, err error) {
	return s.createRedrive(ctx, p, false)
}

// CountRedrive returns how many events a redrive would match, and whether that is an estimate. It fails as CreateRedrive does.
func (s *Service) CountRedrive(ctx context.Context, p RedriveParams) (matched int64, isEstimate bool, err error) {
	counted, _, err := s.createRedrive(ctx, p, true)
	return counted.Matched, counted.IsEstimate, err
}

func (s *Service) createRedrive(ctx context.Context, p RedriveParams, isDryRun bool) (Redrive, bool, error) {
	type created struct {
		Redrive
		IsDeduplicated bool
	}
	required := "true"
	if p.ToQueue != "" && p.ToQueue != Origin {
		required = s.RequireQueue("$12")
	}
	var made created
	asked := time.Now()
	err := s.bounded(ctx, func(tx pgx.Tx) (err error) {
		rows, _ := tx.Query(ctx, `
			select coalesce(r.id, 0) as `+redriveColumns+`, c.is_replayed as is_deduplicated
			from agent.create_redrive(nullif($1, ''), nullif($2, ''), $3, $4, $5, nullif($6, ''), nullif($7, ''), nullif($8, ''), $9, $10, nullif($11, ''), nullif($12, ''),
				nullif($13::float8, 0), nullif($14, ''), $15, $16, $17, $18, nullif($19, '')) c, lateral (select (c.redrive).*) r where `+required,
			p.Queue, string(p.Outcome), p.From, p.To, pg.JSONArg(p.Contains), p.Type, p.Source, p.Worker, p.MinDuration, pg.JSONArg(p.Meta), p.DeadLetterQueue,
			p.ToQueue, p.Rate, p.IdempotencyKey, isDryRun, p.Queues, p.FinishedFrom, p.FinishedTo, p.Cause)
		made, err = pg.CollectOne[created](rows)
		return err
	})
	return made.Redrive, made.IsDeduplicated, s.noteRefusal(asked, wrap("creating a redrive", err))
}

// RedrivesParams asks for one page of the redrives, the latest first.
type RedrivesParams struct {
	State  RedriveState // empty: any
	Limit  int          // zero: DefaultPage
	Cursor string       // a RedrivesPage.Next, or empty for the first page
	Queues []string     // only those all of whose queues one of these patterns stands for; nil: all
}

// RedrivesPage is one page of the redrives. Next is the cursor of the following page, empty at the end.
type RedrivesPage struct {
	Redrives []Redrive
	Next     string
}

// Redrives lists redrives that have not ended, or did so within 30 days. It fails with ErrBadCursor.
func (s *Service) Redrives(ctx context.Context, p RedrivesParams) (page RedrivesPage, err error) {
	page.Redrives, page.Next, err = pg.ReadPage("redrives", p.Cursor, p.Limit, func(after pg.Cursor, n int) ([]Redrive, error) {
		return shortCall(ctx, &s.pools, pg.Collect[Redrive], `select `+redriveColumns+` from agent.list_redrives($1, $2, nullif($3, ''), $4)`,
			n, after.ID, string(p.State), p.Queues)
	}, func(r *Redrive) pg.Cursor { return pg.Cursor{ID: &r.ID} })
	return page, wrap("listing redrives", err)
}

// GetRedrive returns a redrive. It fails with ErrRedriveNotFound, also for one that is about a queue which none of the patterns of queues (nil: all) stands for.
func (s *Service) GetRedrive(ctx context.Context, id int64, queues []string) (Redrive, error) {
	return s.redriveOf(ctx, "reading a redrive", `agent.get_redrive($1, $2)`, id, queues)
}

// CountRedrives returns how many redrives are in each of the states RedriveRunning, RedrivePaused and RedriveFailed.
func (s *Service) CountRedrives(ctx context.Context) (map[RedriveState]int64, error) {
	type count struct {
		State    RedriveState
		Redrives int64
	}
	counts, err := collect[count](ctx, s, `select state, redrives from agent_service.count_redrives()`)
	byState := make(map[RedriveState]int64, len(counts))
	for _, c := range counts {
		byState[c.State] = c.Redrives
	}
	return byState, wrap("counting redrives", err)
}

// PauseRedrive pauses a redrive and returns it: no more events go until ResumeRedrive. It fails as GetRedrive does, and with ErrRedriveEnded.
func (s *Service) PauseRedrive(ctx context.Context, id int64, queues []string) (Redrive, error) {
	return s.redriveOf(ctx, "pausing a redrive", `agent.pause_redrive($1, $2)`, id, queues)
}

// ResumeRedrive goes on with a redrive that is paused or has failed, and returns it. It fails as PauseRedrive does.
func (s *Service) ResumeRedrive(ctx context.Context, id int64, queues []string) (Redrive, error) {
	return s.redriveOf(ctx, "resuming a redrive", `agent.resume_redrive($1, $2)`, id, queues)
}

// CancelRedrive ends a redrive and returns it: no more events go, and those that went stay where they are. It fails as PauseRedrive does.
func (s *Service) CancelRedrive(ctx context.Context, id int64, queues []string) (Redrive, error) {
	return s.redriveOf(ctx, "cancelling a redrive", `agent.cancel_redrive($1, $2)`, id, queues)
}

func (s *Service) redriveOf(ctx context.Context, doing, call string, id int64, queues []string) (Redrive, error) {
	r, err := shortCall(ctx, &s.pools, pg.CollectOne[Redrive], `select `+redriveColumns+` from `+call, id, queues)
	return r, wrap(doing, err)
}

// redrives is what the loop of redrives knows.
type redrives struct {
	added pg.Signal      // there may be a redrive to go on with
	wait  *time.Duration // until the next step is due; nil: there is no redrive that runs. The loop's
	pause atomic.Int64   // the latest pause of the loop, in nanoseconds
}

// redriveLoop makes the steps of redrives that this process goes on with. While there is none, it asks the database when notifications tell of one, and once an hour.
func (s *Service) redriveLoop() pg.Loop {
	return pg.Loop{
		Doing: "redriving", Pass: s.redriveStep, Pause: redrivePoll, Retry: time.Second, Wakes: s.redrives.added.Received,
		Next: func(context.Context) time.Duration {
			pause := redrivePoll
			switch {
			case s.redrives.wait != nil:
				pause = *s.redrives.wait
			case s.db.IsListening():
				pause = redriveRest
			}
			s.redrives.pause.Store(int64(pause))
			return pause
		},
	}
}

// redriveSubscriber is told when a redrive is created, paused, resumed or cancelled.
func (s *Service) redriveSubscriber() pg.Subscriber {
	return pg.Subscriber{
		Channel:  redriveChannel,
		Started:  s.redrives.added.Send,
		Received: func(string) { s.redrives.added.Send() },
		Failed:   func(error) { s.redrives.added.Send() }, // it polls from now on
	}
}

// redriveStep makes one step of a redrive that is due. After it the database is left to others for as long as it took, at least.
func (s *Service) redriveStep(ctx context.Context) error {
	start := time.Now()
	rows, _ := s.loops.Query(ctx, `select id, coalesce(state, '') as state, reason, queues, counts, wait from agent_service.redrive_step($1, $2)`,
		s.name, s.cfg.DeclaredOnly)
	step, err := pg.CollectOne[struct {
		ID     *int64
		State  RedriveState
		Reason string
		Queues []string
		Counts []int64
		Wait   *time.Duration
	}](rows)
	if err != nil {
		return wrap("making a step of a redrive", err)
	}
	ready := make(map[string]bool, len(step.Queues))
	for i, queue := range step.Queues {
		s.counters.add(queue, &Counters{Requeued: step.Counts[i], Redriven: step.Counts[i]})
		ready[queue] = true
	}
	s.wake(ready)
	if step.ID != nil {
		pg.Worked(ctx)
	}
	if step.ID != nil && step.State != RedriveRunning {
		s.cfg.Logger.Info().Int64("redrive", *step.ID).Str("state", string(step.State)).Str("reason", step.Reason).Msg("a redrive has ended")
	}
	if s.redrives.wait = step.Wait; step.Wait != nil {
		isTaken := step.ID == nil && *step.Wait == 0 // another process makes the step that is due
		*s.redrives.wait = max(*step.Wait, time.Since(start))
		if isTaken {
			*s.redrives.wait = max(*s.redrives.wait, takenPause)
		}
	}
	return nil
}
