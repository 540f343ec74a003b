package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// Defaults of [WorkerConfig].
const (
	DefaultConcurrency = 10
	DefaultLease       = time.Minute
	DefaultWait        = 20 * time.Second
	DefaultGrace       = 30 * time.Second
)

const (
	// maxClaim is how many events one claim can ask for, and maxTypes how many types.
	maxClaim = 1000
	maxTypes = 100
	// maxPending is how many events, beyond those that are worked on or claimed ahead, may wait for their ack before no more are claimed: while the server takes
	// no acks, their leases have to be extended.
	maxPending = 100
	// unknownDelay is how long an event waits whose type has no handler here: another worker may have one.
	unknownDelay = 30 * time.Second
	// stopLimit bounds each of the last steps of a stop.
	stopLimit = 5 * time.Second
	// maxGather bounds the time for which a claim waits for further slots while there is a backlog, and for which events that are claimed ahead should wait for theirs.
	maxGather = 100 * time.Millisecond
	// maxAhead is how many events are claimed ahead at most, for each slot, and aheadLimit how long they wait for a slot before they are released.
	maxAhead   = 3
	aheadLimit = time.Second
)

// ErrStopping is the cause of the end of a handler's context when the worker stops and its grace is over.
var ErrStopping = errors.New("client: the worker stops")

// WorkerConfig configures a [Worker]. Every zero value is a default.
type WorkerConfig struct {
	// Queue is where events are claimed; empty: [DefaultQueue].
	Queue string
	// Concurrency is how many events are worked on at a time; 0: [DefaultConcurrency]. While there is a backlog of events whose handlers take less time than a claim, up to three times as
	// many more are claimed ahead, for the time that a claim takes, and released if that becomes a second.
	Concurrency int
	// ClaimForFreeSlots has the worker claim no more events than it can begin to work on.
	ClaimForFreeSlots bool
	// ClaimInterval is at least how long after the answer to a claim the next one is sent, unless that answer had as many events as were asked for, so that more may wait, or had none, after Wait; 0: it is sent at once.
	// Where events come one by one it has the events of that time claimed, and mostly acked, with one request, at the price of waiting for it.
	ClaimInterval time.Duration
	// Lease is how long an event is held without a sign of life of the worker, which extends it at each third of that time: the time until
	// others take over the events of a dead worker. It is no limit of the work; 0: [DefaultLease].
	Lease time.Duration
	// Wait is how long a claim waits for events, up to [MaxWait]; 0: [DefaultWait].
	Wait time.Duration
	// Grace is how long handlers may go on when Run is to end; 0: [DefaultGrace], negative: not at all.
	Grace time.Duration
	// Types limits the worker to these types, at most 100; none: the types that have a handler, or all if one is for every type.
	Types []string
	// MaxAttempts leaves out events that were claimed so often, unless they or their queue say otherwise; 0: the server's setting.
	MaxAttempts int
	// Name is the worker's name in events, attempts and statistics; empty: the host's name and the process id.
	Name string
	// OnEnd is called when the server has been told how the work on an event ended, by several goroutines at once; nil: nothing is called. It has to
	// return soon: an ack waits for it.
	OnEnd func(Ended)
	// Logger gets errors and warnings; nil: nobody does.
	Logger *slog.Logger
}

// A Worker claims events of one queue, calls their handlers, and acks or nacks them.
type Worker struct {
	client *Client
	cfg    WorkerConfig

	mu        sync.Mutex
	handlers  map[string]handler
	isRunning bool
}

// NewWorker returns a worker without handlers. Add them with [Handle], then call [Worker.Run].
func (c *Client) NewWorker(cfg WorkerConfig) *Worker {
	cfg.Queue = cmp.Or(cfg.Queue, DefaultQueue)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, DefaultConcurrency)
	cfg.Lease = cmp.Or(cfg.Lease, DefaultLease)
	cfg.Wait = cmp.Or(cfg.Wait, DefaultWait)
	cfg.Grace = max(0, cmp.Or(cfg.Grace, DefaultGrace))
	if cfg.Name == "" {
		host, _ := os.Hostname() // a worker without a name works as well
		cfg.Name = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Worker{client: c, cfg: cfg, handlers: make(map[string]handler)}
}

func (w *Worker) handle(eventType string, h handler) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.isRunning {
		panic("client: Handle is called while the worker runs")
	}
	if w.handlers[eventType] != nil {
		panic(fmt.Sprintf("client: the type %q has two handlers", eventType))
	}
	w.handlers[eventType] = h
}

// begin checks the configuration and marks the worker as running.
func (w *Worker) begin() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.isRunning:
		return errors.New("client: the worker runs already")
	case len(w.handlers) == 0:
		return errors.New("client: the worker has no handler; see Handle")
	case w.cfg.Concurrency < 0 || w.cfg.ClaimInterval < 0 || w.cfg.Lease < 0 || w.cfg.Wait < 0 || w.cfg.Wait > MaxWait:
		return fmt.Errorf("client: Concurrency, ClaimInterval and Lease of a worker must not be negative, and Wait be from 0 to %v", MaxWait)
	}
	w.isRunning = true
	return nil
}

func (w *Worker) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.isRunning = false
}

// claimTypes returns the types to claim; nil: all. Events of other types are left to workers that have a handler for them: nobody's attempt is
// used up. With more types than a claim can name, all are claimed, and those without a handler are nacked.
func (w *Worker) claimTypes() []string {
	if len(w.cfg.Types) > 0 {
		return w.cfg.Types
	}
	if w.handlers[""] != nil || len(w.handlers) > maxTypes {
		return nil
	}
	types := make([]string, 0, len(w.handlers))
	for name := range w.handlers {
		types = append(types, name)
	}
	slices.Sort(types)
	return types
}

func (w *Worker) handlerOf(eventType string) handler {
	if h := w.handlers[eventType]; h != nil {
		return h
	}
	if h := w.handlers[""]; h != nil {
		return h
	}
	return func(context.Context, Event) (any, error) {
		return nil, RetryIn(unknownDelay, fmt.Errorf("the worker has no handler for the type %q", eventType))
	}
}

// Run works until ctx ends, and then stops: it claims no more, releases events that no handler has begun, whose attempt does not count, lets handlers go on for the
// grace, ends their contexts, and gives back the events left with a nack: a begun event has had an attempt. It then returns nil. It returns an error at once if the configuration is wrong, after such a stop if the server refuses
// its calls, such as [ErrUnauthorized], or if handlers ignore the end of their contexts. While the server cannot be reached, it waits. Run
// can be called again after it has returned.
//
// A claim whose answer is on its way when ctx ends may be lost; its events are claimed again when their leases have ended.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.begin(); err != nil {
		return err
	}
	defer w.end()
	handling, stopHandlers := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopHandlers(nil)
	settling, stopSettling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSettling()
	claiming, stopClaiming := context.WithCancelCause(ctx)
	defer stopClaiming(nil)

	patient := *w.client // the contexts end its calls
	patient.limits.retryFor = 100 * 365 * 24 * time.Hour
	r := &workerRun{
		Worker: w, client: &patient, handling: handling, settling: settling, refuse: stopClaiming,
		held: make(map[int64]*lease), freed: make(chan struct{}, 1), ackable: make(chan struct{}, 1), noMoreAcks: make(chan struct{}),
	}
	r.background.Go(r.heartbeat)
	r.background.Go(r.sendAcks)

	r.claim(claiming)
	var refusal error
	if ctx.Err() == nil {
		refusal = context.Cause(claiming)
	}

	giveUp := time.AfterFunc(w.cfg.Grace+3*stopLimit, stopSettling) // acks and nacks that the server does not answer
	defer giveUp.Stop()
	if !r.idleWithin(w.cfg.Grace) {
		stopHandlers(ErrStopping)
		r.idleWithin(stopLimit)
	}
	left := r.giveBack()
	close(r.noMoreAcks)
	r.awaitAcks(stopLimit)
	r.mu.Lock()
	stopSettling()
	r.mu.Unlock()
	r.background.Wait()
	if left > 0 {
		return fmt.Errorf("client: %d handlers ignore the end of their contexts", left)
	}
	return refusal
}

// A workerRun is one call of Run. Its goroutines are: the caller's, which claims; one for each handler; one that extends leases; one that
// sends acks; those that send acks and nacks to cells behind a gateway that are away, see goApart. mu guards the fields after it, and nothing is called with it held.
type workerRun struct {
	*Worker
	client     *Client                 // retries until the context of a call ends
	handling   context.Context         // of handlers
	settling   context.Context         // of calls about leases
	refuse     context.CancelCauseFunc // ends claiming
	freed      chan struct{}           // a slot is free
	ackable    chan struct{}           // acks are pending
	noMoreAcks chan struct{}           // closed when nothing adds acks any more
	background sync.WaitGroup          // the other goroutines

	mu      sync.Mutex
	held    map[int64]*lease // from the claim to the end of its ack or nack
	busy    int              // handlers, with their nacks
	wanted  int              // how many slots have to be free for the end of a handler to signal freed
	ahead   []*lease         // claimed, but there was no slot yet; in order
	worked  time.Duration    // how long an event takes a slot, by the latest ones; 0: none has ended
	pending []*lease         // to be acked
	apart   int              // to be acked or nacked on cells behind a gateway that are away
}

// claim claims events and starts their handlers until ctx ends.
func (r *workerRun) claim(ctx context.Context) {
	once := *r.client
	once.limits.retryFor = -1
	types := r.claimTypes()
	defer r.releaseAhead() //nolint:contextcheck // events are given back after ctx has ended
	var trouble claimTrouble
	var gather time.Duration // how long to wait for further slots
	var next time.Time       // no claim before
	for failures := 0; ; {
		free := r.awaitSlots(ctx, gather, next)
		if free == 0 {
			return
		}
		limit := min(free+r.aheadFor(gather), maxClaim)
		asked := time.Now()
		events, err := once.Claim(ctx, ClaimParams{
			Queue: r.cfg.Queue, Limit: limit, InvisibleFor: r.cfg.Lease, Wait: r.cfg.Wait, Types: types,
			MaxAttempts: r.cfg.MaxAttempts, Worker: r.cfg.Name,
		})
		if ctx.Err() != nil { // nothing is begun any more
			leases := make([]*lease, len(events))
			for i, e := range events {
				leases[i] = r.newLease(e, asked)
			}
			r.release(leases) //nolint:contextcheck // as above
			return
		}
		gather, next = gatherFor(limit, len(events), time.Since(asked)), time.Time{}
		if 0 < len(events) && len(events) < limit {
			next = time.Now().Add(r.cfg.ClaimInterval)
		}
		for _, e := range events {
			r.start(e, asked) //nolint:contextcheck // claimed events outlive ctx
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && isHopeless(err):
			r.refuse(err)
			return
		}
		r.logTrouble(&trouble, asked, err)
		if err == nil && (len(events) > 0 || time.Since(asked) >= r.cfg.Wait/2) {
			failures = 0
			continue
		}
		failures++ // also an empty answer that comes too soon, from a server that stops
		if sleep(ctx, pauseBefore(failures, err)) != nil {
			return
		}
	}
}

// claimTrouble is why claims fail, and since when. Its zero value: they don't.
type claimTrouble struct {
	reason string
	since  time.Time
}

// logTrouble logs when claims begin to fail, when they fail for another reason, and when they work again: not each of them.
func (r *workerRun) logTrouble(trouble *claimTrouble, asked time.Time, err error) {
	if err == nil {
		if trouble.reason != "" {
			r.cfg.Logger.Info("claiming works again", "queue", r.cfg.Queue, "after", time.Since(trouble.since).Round(time.Second))
		}
		*trouble = claimTrouble{}
		return
	}
	reason := "no answer" // or none of a queued: its text has ports and the like, which differ each time
	var e *Error
	if errors.As(err, &e) {
		reason = cmp.Or(e.Code, http.StatusText(e.Status))
	}
	if reason == trouble.reason {
		return
	}
	if trouble.reason == "" {
		trouble.since = asked
	}
	trouble.reason = reason
	r.cfg.Logger.Warn("claiming failed, and is tried again until it works", "queue", r.cfg.Queue, "error", err)
}

// isHopeless reports whether a call would be refused the next time, too.
func isHopeless(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		return doubtOf(err) == refused && e.Status < http.StatusInternalServerError
	}
	return doubtOf(err) == refused && !errors.Is(err, errNotJSON) // a proxy in trouble may say anything
}

// gatherFor returns how long the next claim waits for further slots, after one that has asked for events and got some: not at all unless it got all, and more may wait.
func gatherFor(asked, got int, took time.Duration) time.Duration {
	if got < asked {
		return 0
	}
	return min(took, maxGather)
}

// aheadFor returns how many events to claim beyond those that have a slot: with a backlog as many as there are handlers for in the time that a claim takes, or gather, since the slots
// would be idle while the next claim is under way.
func (r *workerRun) aheadFor(gather time.Duration) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if gather <= 0 || r.worked <= 0 || r.cfg.ClaimForFreeSlots {
		return 0
	}
	return int(min(int64(gather/r.worked), maxAhead)) * r.cfg.Concurrency
}

// awaitSlots waits until a handler can be started, and then for up to gather until all can be that one claim can get events for; and at least until next. It returns how many can be; 0: ctx has ended.
//
// With a backlog gather is what the last claim took, for which its slots were idle anyway: a claim of many events costs less for each. Where handlers take no longer than that, a claim gets
// as many events as there are slots; where they do, a slot is idle for at most twice as long as it was.
func (r *workerRun) awaitSlots(ctx context.Context, gather time.Duration, next time.Time) int {
	var early, late, stale <-chan time.Time // nil: next has come; no slot was free yet; no event was claimed ahead
	if rest := time.Until(next); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		early = timer.C
	}
	isLate := gather <= 0
	for ctx.Err() == nil {
		r.mu.Lock()
		isAhead := len(r.ahead) > 0
		free, wanted := r.cfg.Concurrency-r.busy, 1
		if len(r.pending)+r.apart >= (1+maxAhead)*r.cfg.Concurrency+maxPending {
			free = 0
		}
		if free > 0 && !isLate {
			wanted = min(r.cfg.Concurrency, maxClaim)
		}
		isEnough := free >= wanted && early == nil
		r.wanted = wanted
		if isEnough {
			r.wanted = 1
		}
		r.mu.Unlock()
		if isEnough {
			return free
		}
		if free > 0 && late == nil {
			timer := time.NewTimer(gather)
			defer timer.Stop()
			late = timer.C
		}
		if isAhead && stale == nil {
			timer := time.NewTimer(aheadLimit)
			defer timer.Stop()
			stale = timer.C
		}
		select {
		case <-r.freed:
		case <-early:
			early = nil
		case <-late:
			isLate = true
		case <-stale:
			r.releaseAhead() //nolint:contextcheck // what was claimed is not of ctx
		case <-ctx.Done():
		}
	}
	return 0
}

// start starts the handler of an event whose claim was sent at asked, or has it wait for a slot.
func (r *workerRun) start(e Event, asked time.Time) {
	l := r.newLease(e, asked)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[e.ID] = l
	if r.busy >= r.cfg.Concurrency {
		r.ahead = append(r.ahead, l)
		return
	}
	r.busy++
	go r.work(l)
}

// releaseAhead releases the events that were claimed ahead and still have no slot. No more are claimed ahead until handlers are known to be quick again.
func (r *workerRun) releaseAhead() {
	r.mu.Lock()
	ahead := r.ahead
	r.ahead = nil
	if len(ahead) > 0 {
		r.worked = aheadLimit
	}
	r.mu.Unlock()
	r.release(slices.DeleteFunc(ahead, func(l *lease) bool { return !l.settle() }))
}

// work calls the handler of an event and settles the event. Then its slot is for the next event.
func (r *workerRun) work(l *lease) {
	began := time.Now()
	var out outcome
	defer func() { // also when the handler ends the goroutine
		r.finish(l, out)
		r.leaveSlot(time.Since(began))
	}()
	if l.isStale() {
		r.extend(l)
	}
	if out.err = context.Cause(l.ctx); out.err == nil {
		l.isBegun = true
		r.handlerOf(l.event.Type).call(l.ctx, l.event, &out)
	}
}

// leaveSlot gives a slot that an event has had for so long to the next one that was claimed ahead, or frees it.
func (r *workerRun) leaveSlot(after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	const weight = 8 // of the events before, in the mean
	if r.worked == 0 {
		r.worked = after
	}
	r.worked = max(1, r.worked+(after-r.worked)/weight)
	if len(r.ahead) > 0 {
		go r.work(r.ahead[0])
		r.ahead = r.ahead[1:]
		return
	}
	r.busy--
	if r.cfg.Concurrency-r.busy >= r.wanted {
		wake(r.freed)
	}
}

// finish acks or nacks an event whose handler has returned.
func (r *workerRun) finish(l *lease, out outcome) {
	isStopped := errors.Is(context.Cause(l.ctx), ErrStopping)
	l.end(context.Canceled)
	switch {
	case !l.settle(): // given back meanwhile
	case out.err == nil:
		l.result = out.result
		r.ack(l)
	case isStopped && !l.isBegun:
		r.release([]*lease{l})
	case isStopped:
		r.nack(l, givenBack(out.err))
	default:
		r.nack(l, out.err)
	}
}

// givenBack returns the error of an event that the worker gives back because it stops.
func givenBack(err error) error { return RetryIn(0, fmt.Errorf("the worker stopped: %w", err)) }

// idleWithin waits until no handler runs, and reports whether that came in time.
func (r *workerRun) idleWithin(limit time.Duration) bool {
	return r.awaitWithin(limit, func() bool { return r.busy == 0 })
}

// awaitAcks waits until no lease is held.
func (r *workerRun) awaitAcks(limit time.Duration) {
	r.awaitWithin(limit, func() bool { return len(r.pending)+r.apart == 0 })
}

// awaitWithin waits until state, which mu guards, is true, and reports whether that came in time. Whatever changes the state signals freed.
func (r *workerRun) awaitWithin(limit time.Duration, state func() bool) bool {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		r.mu.Lock()
		isTrue := state()
		r.mu.Unlock()
		if isTrue {
			return true
		}
		select {
		case <-r.freed:
		case <-late.C:
			return false
		}
	}
}

// giveBack nacks the events whose handlers have not returned, and returns how many there are.
func (r *workerRun) giveBack() (n int) {
	r.mu.Lock()
	held := slices.Collect(maps.Values(r.held))
	r.mu.Unlock()
	var nacks sync.WaitGroup
	for _, l := range held {
		if l.settle() {
			n++
			nacks.Go(func() { r.nack(l, givenBack(ErrStopping)) })
		}
	}
	nacks.Wait()
	return n
}

// wake wakes the goroutine that waits on a channel of capacity one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
