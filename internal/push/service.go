package push

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"github.com/queued/queued/internal/deliverylog"
	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/seal"
	"github.com/queued/queued/internal/trace"
)

// Defaults and bounds.
const (
	DefaultQueryTimeout = 5 * time.Second  // of one statement
	DefaultLeaseMargin  = 15 * time.Second // by which the lease of an event is longer than a request may take
	DefaultThreshold    = 5                // failures in a row after which the breaker opens
	DefaultBreakerPause = 30 * time.Second // before its first probe
	DefaultHoldPause    = time.Second      // of the first hold whose length the endpoint does not say
	DefaultMaxPause     = time.Hour        // between two probes, and of a hold

	recordInterval = 5 * time.Second // between two records of how endpoints do, and after a report of this process that failed

	testsPerSec = 1 // of one process
	testsBurst  = 10
	settlePause = 250 * time.Millisecond
	stopGrace   = 3 * time.Second // for requests in flight when Run ends
	maxCounted  = 1000            // queues that are counted by name
	otherQueues = "other"

	// applyTimeout bounds how much longer the answer to a change takes because the worker here takes it up.
	applyTimeout = time.Second
)

// Config holds the settings of a Service. Database, Queue, Sender and Guard are required.
type Config struct {
	Database     *pg.Database
	Queue        *queue.Service
	Sender       *egress.Sender
	Guard        *egress.Guard
	Sealer       *seal.Sealer     // nil: nothing is pushed, and no push can be put
	PollInterval time.Duration    // between two looks whether pushes or processes have changed; zero: pg.DefaultReplicaPoll
	QueryTimeout time.Duration    // zero: DefaultQueryTimeout
	LeaseMargin  time.Duration    // zero: DefaultLeaseMargin
	Threshold    int              // zero: DefaultThreshold
	BreakerPause time.Duration    // zero: DefaultBreakerPause
	HoldPause    time.Duration    // zero: DefaultHoldPause
	MaxPause     time.Duration    // zero: DefaultMaxPause
	IsQuiet      bool             // Run pushes nothing
	Tracer       *trace.Tracer    // nil: there are no spans
	Now          func() time.Time // nil: time.Now
	Logger       zerolog.Logger   // zero: silent
}

func (c Config) withDefaults() Config {
	c.QueryTimeout = cmp.Or(c.QueryTimeout, DefaultQueryTimeout)
	c.LeaseMargin = cmp.Or(c.LeaseMargin, DefaultLeaseMargin)
	c.Threshold = cmp.Or(c.Threshold, DefaultThreshold)
	c.BreakerPause = cmp.Or(c.BreakerPause, DefaultBreakerPause)
	c.HoldPause = cmp.Or(c.HoldPause, DefaultHoldPause)
	c.MaxPause = cmp.Or(c.MaxPause, DefaultMaxPause)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Service pushes the events of queues to endpoints. It is safe for concurrent use, and any number of them, in any number of processes, may share one database.
type Service struct {
	cfg        Config
	pool       *pg.Pool // for reads
	writes     pg.Writes
	pools      pg.Pools
	workerName string // in the attempts of events
	pushes     pg.Replica[set]
	mustReport pg.Signal // there may be something to report
	tests      *rate.Limiter
	attempts   *deliverylog.Buffer[attemptRow] // that are not written yet

	sending context.Context //nolint:containedctx // of the requests in flight, which outlive the workers that have claimed their events
	cut     context.CancelFunc

	mu         sync.Mutex
	workers    map[string]*worker
	ending     []*worker // that were stopped and have requests in flight
	isRunning  bool
	isDraining bool
	isReported bool                 // this process is known as one that pushes
	sealed     map[string]sealedRow // by queue
	isWarned   bool
	results    map[string]map[string]int64 // by queue and verdict
}

// Open returns a Service on a migrated database, and fails with ErrUnavailable when the database cannot be reached. It pushes nothing yet: see Run. Close it.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	s := &Service{
		cfg: cfg, workerName: "push:" + cfg.Queue.Name(), mustReport: pg.NewSignal(), tests: rate.NewLimiter(testsPerSec, testsBurst),
		workers: make(map[string]*worker), sealed: make(map[string]sealedRow), results: make(map[string]map[string]int64),
		attempts: deliverylog.New[attemptRow](deliveredLimit, undeliveredLimit),
	}
	s.sending, s.cut = context.WithCancel(context.Background())
	var err error
	s.pools, err = cfg.Database.OpenPools(ctx, append([]pg.PoolSpec{{To: &s.pool, Config: pg.ControlPool}},
		s.writes.Specs(pg.ControlPool, cfg.QueryTimeout)...)...)
	if err != nil {
		s.cut()
		return nil, err
	}
	s.pushes.Database, s.pushes.Pool, s.pushes.Names, s.pushes.Doing = cfg.Database, s.pool, []string{"push", "pusher"}, "reading the pushes"
	s.pushes.Timeout, s.pushes.Poll = cfg.QueryTimeout, cfg.PollInterval
	s.pushes.Read, s.pushes.Swapped = s.read, s.assign
	return s, nil
}

// Run pushes until ctx ends or the service is drained. When it returns nothing is in flight; an event whose request took too long for that is sent again when its
// lease has run out. Faults of the database are logged and tried again; Run returns nil once ctx has ended.
func (s *Service) Run(ctx context.Context) error {
	if s.cfg.IsQuiet {
		<-ctx.Done()
	} else {
		s.mu.Lock()
		s.isRunning = true
		s.mu.Unlock()
		s.pushes.Run(ctx, s.cfg.Logger,
			pg.Loop{Doing: "reporting that this process pushes", Pass: s.report, Pause: recordInterval, Wakes: s.mustReport.Received},
			pg.Loop{Doing: "recording how endpoints do", Pass: s.recordSeen, Pause: recordInterval, DelayFirst: true},
			pg.Loop{Doing: "logging attempts", Pass: s.writeAttempts, Pause: logInterval, Retry: recordInterval, DelayFirst: true, Completes: true},
		)
	}
	s.Drain()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	err := s.Wait(ending)
	s.cut()
	if err != nil {
		_ = s.Wait(context.WithoutCancel(ctx)) // they end at once
	}
	if err := s.recordSeen(ending); err != nil {
		s.cfg.Logger.Warn().Func(failure.Of(err)).Msg("how endpoints did lately was not recorded")
	}
	if err := s.writeAttempts(ending); err != nil {
		s.cfg.Logger.Warn().Func(failure.Of(err)).Msg("the last attempts of pushes were not logged")
	}
	return nil
}

// Drain has nothing claimed any more. Requests in flight go on: see Wait. It may be repeated.
func (s *Service) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isDraining = true
	for _, w := range s.workers {
		w.stop()
	}
	s.mustReport.Send()
}

// Wait returns when nothing is in flight after Drain, or with ctx's error.
func (s *Service) Wait(ctx context.Context) error {
	s.mu.Lock()
	running := slices.Clone(s.ending)
	for _, w := range s.workers {
		running = append(running, w)
	}
	s.mu.Unlock()
	for _, w := range running {
		select {
		case <-w.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Close closes the connections, by the end of ctx. Run must have returned.
func (s *Service) Close(ctx context.Context) error {
	s.cut()
	return s.pools.CloseBy(ctx)
}

// A set is all pushes, and the processes that share them out, as the database had them at one time.
type set struct {
	rows      []row
	processes []string // ids, this one among them
	place     int64    // the database that they were read from, see pg.Database.Place
}

// read returns the pushes and the processes as the database has them now.
func (s *Service) read(ctx context.Context, _ *set) (after *set, err error) {
	after = &set{place: s.cfg.Database.Place()}
	if after.rows, err = s.readPushes(ctx, nil); err != nil {
		return nil, err
	}
	after.processes, err = s.readProcesses(ctx)
	return after, err
}

// pushesLocked reports whether this service pushes. The caller holds mu.
func (s *Service) pushesLocked() bool { return s.cfg.Sealer != nil && s.isRunning && !s.isDraining }

// report has other processes know whether this one pushes, and owners of pushes why it does not.
func (s *Service) report(ctx context.Context) error {
	s.mu.Lock()
	isPusher := s.pushesLocked()
	mustReport := isPusher != s.isReported
	var sealed []sealedRow
	for _, r := range s.sealed {
		if !r.isRecorded {
			sealed = append(sealed, r)
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	if mustReport {
		if err := s.cfg.Queue.ReportPusher(ctx, isPusher); err != nil {
			return err
		}
		s.mu.Lock()
		s.isReported = isPusher
		s.mu.Unlock()
	}
	for _, r := range sealed {
		if err := s.recordSealed(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// assign has a worker for each push that this process owns, and for no other.
func (s *Service) assign(_, now *set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = slices.DeleteFunc(s.ending, (*worker).isDone)
	if s.cfg.Sealer == nil && len(now.rows) > 0 && !s.isWarned {
		s.isWarned = true
		s.cfg.Logger.Warn().Int("queues", len(now.rows)).Msg("this process pushes no events: QUEUED_SECRET_KEY is not set")
	}
	owned := make(map[string]*row)
	for i := range now.rows {
		if r := &now.rows[i]; s.pushesLocked() && !r.IsDisabled && ownerOf(r.Queue, now.processes) == s.cfg.Queue.Name() {
			owned[r.Queue] = r
		}
	}
	for name, w := range s.workers {
		if owned[name] == nil {
			s.end(w)
		}
	}
	sealed := make(map[string]sealedRow)
	for name, r := range owned {
		if err := s.apply(r); err != nil {
			before, isKnown := s.sealed[name]
			if !isKnown {
				s.cfg.Logger.Error().Err(err).Str("queue", name).Msg("the events of a queue cannot be pushed")
			}
			sealed[name] = sealedRow{r, err, before.isRecorded}
		}
	}
	s.sealed = sealed
	s.mustReport.Send()
}

// applyChange has the workers here take over a change that this process has made, as long as the database answers within applyTimeout.
func (s *Service) applyChange(ctx context.Context) {
	s.mu.Lock()
	isRunning := s.isRunning
	s.mu.Unlock()
	if !isRunning {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	s.pushes.RenewNow(ctx)
}

// end has a worker claim nothing more. The caller holds mu.
func (s *Service) end(w *worker) {
	w.stop()
	s.ending = append(s.ending, w)
	delete(s.workers, w.queue)
}

func (w *worker) isDone() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// apply has the worker of a queue take over a row, or starts it. It fails when the secrets of the push cannot be opened; nothing is pushed then.
// The caller holds mu.
func (s *Service) apply(r *row) error {
	w := s.workers[r.Queue]
	var e *endpoint
	if w != nil {
		w.mu.Lock()
		e = w.endpoint
		w.mu.Unlock()
	}
	if before := e; before == nil || !before.isSame(r) {
		var err error
		if e, err = r.open(s.cfg.Sealer, before); err != nil {
			if w != nil {
				s.end(w)
			}
			return err
		}
	}
	st := r.state(s.cfg.Now())
	if w == nil {
		s.workers[r.Queue] = s.startWorker(r.Queue, e, st)
	} else {
		w.update(e, st)
	}
	return nil
}

// A sealedRow is a push whose secrets cannot be opened.
type sealedRow struct {
	*row
	err        error
	isRecorded bool // the push says so
}

// recordSealed tells the owner of a push why it does not push.
func (s *Service) recordSealed(ctx context.Context, r sealedRow) error {
	err := s.writes.Exec(ctx, `select agent_service.record_push_seen($1, $2, $3, $4, $5, $6, $7)`, []string{r.Queue}, []int64{r.Epoch}, []int{r.Failures},
		[]*time.Duration{r.FailingFor}, []*time.Duration{nil}, []string{r.err.Error()}, []*time.Duration{nil})
	if err != nil {
		return wrap("recording that a push cannot be opened", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, isHere := s.sealed[r.Queue]; isHere {
		r.isRecorded = true
		s.sealed[r.Queue] = r
	}
	return nil
}

// readPushes returns all pushes, or that of one queue.
func (s *Service) readPushes(ctx context.Context, name *string) ([]row, error) {
	rows, _ := s.pool.Query(ctx, `select `+rowColumns+` from agent_service.read_pushes($1)`, name)
	found, err := pg.Collect[row](rows)
	return found, wrap("reading the pushes", err)
}

// readProcesses returns the ids of the processes that push, this one among them.
func (s *Service) readProcesses(ctx context.Context) ([]string, error) {
	rows, _ := s.pool.Query(ctx, `select id from agent_service.list_pushers(null) as p (id)`)
	type pusher struct{ ID string }
	found, err := pg.Collect[pusher](rows)
	if err != nil {
		return nil, wrap("listing the processes that push", err)
	}
	ids := []string{s.cfg.Queue.Name()}
	for _, p := range found {
		if p.ID != ids[0] {
			ids = append(ids, p.ID)
		}
	}
	return ids, nil
}

// reread has a worker whose state has an epoch take over its push from the database.
func (s *Service) reread(ctx context.Context, w *worker, epoch int64) error {
	rows, err := s.readPushes(ctx, &w.queue)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.state.epoch != epoch: // it has taken over what was read later, maybe
	case len(rows) > 0 && !rows[0].IsDisabled:
		w.takeOver(rows[0].state(s.cfg.Now()))
	default:
		w.state.disabledReason = "disabled"
		w.isUnrecorded, w.isAhead = false, false
		s.pushes.Doubt() // so that assign stops the worker
	}
	return nil
}

// recordChange has the database know of a change of a state. It returns the new epoch; nil: the state has changed since.
func (s *Service) recordChange(ctx context.Context, name string, st *state, now time.Time) (epoch *int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	var failingFor, pause, retryIn *time.Duration
	if !st.failingSince.IsZero() {
		failingFor = new(now.Sub(st.failingSince))
	}
	if st.isOpen {
		pause = &st.pause
	}
	if st.until.After(now) {
		retryIn = new(st.until.Sub(now))
	}
	err = s.writes.Row(ctx, `select agent_service.record_push_change($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		[]any{name, st.epoch, st.isOpen, pg.OrNull(st.disabledReason), st.failures, failingFor, pg.OrNull(st.lastError), pause, retryIn}, &epoch)
	return epoch, wrap("recording a change of a push", err)
}

// recordSeen has the database know of failures and successes that have changed nothing.
func (s *Service) recordSeen(ctx context.Context) error {
	s.mu.Lock()
	workers := slices.Clone(s.ending)
	for _, w := range s.workers {
		workers = append(workers, w)
	}
	s.mu.Unlock()
	var (
		names                            []string
		epochs                           []int64
		failures                         []int
		failingFor, failedAgo, successes []*time.Duration
		errs                             []*string
		recorded                         []*worker
	)
	now := s.cfg.Now()
	since := func(at time.Time) *time.Duration {
		if at.IsZero() {
			return nil
		}
		return new(max(0, now.Sub(at)))
	}
	for _, w := range workers {
		w.mu.Lock()
		if w.isUnseen && !w.isUnrecorded {
			w.isUnseen = false
			st := &w.state
			names, epochs, failures, recorded = append(names, w.queue), append(epochs, st.epoch), append(failures, st.failures), append(recorded, w)
			failingFor, failedAgo = append(failingFor, since(st.failingSince)), append(failedAgo, since(st.lastFailure))
			successes, errs = append(successes, since(st.lastSuccess)), append(errs, pg.OrNull(st.lastError))
		}
		w.mu.Unlock()
	}
	if len(names) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	err := s.writes.Exec(ctx, `select agent_service.record_push_seen($1, $2, $3, $4, $5, $6, $7)`, names, epochs, failures, failingFor, failedAgo, errs, successes)
	if err != nil {
		for _, w := range recorded {
			w.mu.Lock()
			w.isUnseen = true
			w.mu.Unlock()
		}
		return wrap("recording how endpoints do", err)
	}
	return wrap("reading the database's clock", s.cfg.Database.ReadClock(ctx, s.pool)) // while there are leases to compare with it
}

// firstIDs returns, for each of these events, the first of those that it is a copy of: itself, unless it was requeued.
func (s *Service) firstIDs(ctx context.Context, events []queue.Event) ([]int64, error) {
	ids := make([]int64, len(events))
	var copied []int64 // the events that these are copies of
	for i := range events {
		ids[i] = events[i].ID
		if from := events[i].RequeuedFrom; from != nil {
			copied = append(copied, *from)
		}
	}
	if len(copied) == 0 {
		return ids, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	type chain struct{ ID, FirstID int64 }
	rows, _ := s.pool.Query(ctx, `select id, first_id from agent_service.first_events($1)`, copied)
	chains, err := pg.Collect[chain](rows)
	if err != nil {
		return nil, wrap("looking for the first of requeued events", err)
	}
	first := make(map[int64]int64, len(chains))
	for _, c := range chains {
		first[c.ID] = c.FirstID
	}
	for i := range events {
		if from := events[i].RequeuedFrom; from != nil {
			ids[i] = first[*from]
		}
	}
	return ids, nil
}

// timesOf returns the durations of the states of an endpoint.
func (s *Service) timesOf(e *endpoint) times {
	return times{s.cfg.Threshold, s.cfg.BreakerPause, s.cfg.HoldPause, s.cfg.MaxPause, e.disableAfter}
}

// pauseSettling waits before a call about an event is made again, and reports whether that makes sense: the service still runs.
func (s *Service) pauseSettling(ctx context.Context) bool {
	return s.sending.Err() == nil && pg.Pause(ctx, pg.Jittered(settlePause))
}

// count counts the verdict on a request.
func (s *Service) count(name string, v verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := s.results[name]
	if counts == nil {
		if len(s.results) >= maxCounted {
			name = otherQueues
			counts = s.results[name]
		}
		if counts == nil {
			counts = make(map[string]int64)
			s.results[name] = counts
		}
	}
	counts[string(v)]++
}

// A Count is how many pushes of a queue came to a result since the service was opened.
type Count struct {
	Queue, Result string
	Pushes        int64
}

// Counts returns how many events this service has pushed, by queue and result; the queues beyond the first 1,000 together as "other".
func (s *Service) Counts() []Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Count
	for name, counts := range s.results {
		for result, n := range counts {
			all = append(all, Count{name, result, n})
		}
	}
	slices.SortFunc(all, func(a, b Count) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Result, b.Result))
	})
	return all
}

// Statuses returns up to limit pushes by queue, as this process knows them: whether each pushes, is open or disabled. Those that do not push come first. A hold, which ends by itself soon, is not told apart.
func (s *Service) Statuses(limit int) map[string]Status {
	statuses := make(map[string]Status)
	known := s.pushes.Load()
	if known == nil { // a process that pushes nothing has none
		return statuses
	}
	rows := known.rows
	for _, isStopped := range []bool{true, false} {
		for i := range rows {
			switch r := &rows[i]; {
			case isStopped != (r.IsDisabled || r.IsOpen):
			case len(statuses) == limit:
				return statuses
			case r.IsDisabled:
				statuses[r.Queue] = StatusDisabled
			case r.IsOpen:
				statuses[r.Queue] = StatusOpen
			default:
				statuses[r.Queue] = StatusEnabled
			}
		}
	}
	return statuses
}

// InFlight returns how many requests of this service are in flight.
func (s *Service) InFlight() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.workers {
		w.mu.Lock()
		n += w.sending
		w.mu.Unlock()
	}
	return n
}
