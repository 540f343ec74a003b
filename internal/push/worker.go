package push

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/ratelimit"
	"github.com/queued/queued/internal/rounds"
	"github.com/queued/queued/internal/trace"
)

const (
	// claimWait is how long a claim waits for events. It ends sooner when something about the push changes.
	claimWait = 10 * time.Minute
	// faultPause is the pause after a fault of the database.
	faultPause = time.Second
	// sendMargin is how long before the end of its lease a request has ended at the latest.
	sendMargin = time.Second
	// freeRefusals is how often an endpoint may ask to be left alone when it gets an event, before that counts as an attempt: from then on
	// if it has taken others meanwhile. An endpoint with a rate limit may say 429 to any event, and more often.
	freeRefusals      = 3
	freeRefusalsOf429 = 30
	// maxRefused bounds how many events a worker remembers that the endpoint has refused so.
	maxRefused = 1000
	// settlingFactor bounds how many events, for each that may be in flight, wait for their acks and nacks to be written.
	settlingFactor = 4
)

// A worker pushes the events of one queue. One goroutine claims; each event has one of its own until it is acked or nacked.
type worker struct {
	svc     *Service
	queue   string
	stop    context.CancelFunc
	done    chan struct{}
	changed pg.Signal // the goroutine that claims has something to look at
	sends   sync.WaitGroup

	mu           sync.Mutex
	endpoint     *endpoint
	state        state
	isUnrecorded bool // the state has changed since it was recorded
	isUnseen     bool // there is something to record besides changes
	isAhead      bool // the database had an earlier state when it was read: maybe that is the newer one
	sending      int  // requests in flight
	settling     int  // events whose acks and nacks are being written
	endClaim     context.CancelFunc
	accepted     int64 // events that the endpoint has taken
	refused      map[int64]*refusal
	avoided      []int64 // refused events, which the next claim leaves alone to learn whether others are taken
}

// A refusal counts how often the endpoint has asked to be left alone when it got an event.
type refusal struct {
	times    int
	accepted int64 // of the worker, when it was refused first
}

// startWorker starts a worker.
func (s *Service) startWorker(name string, e *endpoint, st state) *worker {
	ctx, stop := context.WithCancel(context.Background())
	w := &worker{
		svc: s, queue: name, stop: stop, done: make(chan struct{}), changed: pg.NewSignal(), endpoint: e, state: st, refused: make(map[int64]*refusal),
	}
	go w.run(ctx)
	return w
}

// run claims and sends until ctx ends, and then waits for the requests in flight.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	defer w.sends.Wait()
	limiter := w.svc.cfg.Database.Rounds.Loop("pushing").Limiter()
	reported := ""
	for ctx.Err() == nil {
		isIdle, err := w.pass(ctx)
		_ = limiter.Pause(ctx, isIdle) // it fails when ctx has ended
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if err.Error() != reported {
				w.svc.cfg.Logger.Error().Func(failure.Of(err)).Str("queue", w.queue).Msg("pushing failed; it is tried again")
			}
			reported = err.Error()
			pg.Pause(ctx, pg.Jittered(faultPause))
		case reported != "":
			reported = ""
			w.svc.cfg.Logger.Info().Str("queue", w.queue).Msg("pushing works again")
		}
	}
}

// pass records a change, claims events and sends them, or waits until it can. isIdle reports that it has done neither: see package rounds.
func (w *worker) pass(ctx context.Context) (isIdle bool, err error) {
	if err := w.record(ctx); err != nil {
		return false, err
	}
	r := w.capacity()
	if r.limit == 0 {
		w.wait(ctx, r.wait)
		return r.wait >= 0 && r.wait < rounds.MinWait, nil
	}
	began := time.Now()
	events, err := w.claim(ctx, r)
	if err != nil || len(events) == 0 {
		return time.Since(began) < rounds.MinWait, err
	}
	ids, err := w.svc.firstIDs(ctx, events)
	if err != nil {
		w.release(ctx, events)
		return false, err
	}
	if r.endpoint.limiter != nil {
		r.endpoint.limiter.AllowN(w.svc.cfg.Now(), len(events))
	}
	for i := range events {
		if w.begin(ctx, r, &events[i], ids[i]) {
			continue
		}
		w.release(ctx, events[i:])
		if i == 0 { // so that a clock that is wrong makes no loop without a pause
			w.wait(ctx, settlePause)
		}
		break
	}
	return false, nil
}

// A capacity is how many events may be claimed at a time.
type capacity struct {
	limit    int           // events
	wait     time.Duration // if that is none: when to look again; negative: when something changes
	endpoint *endpoint
	round    int
	avoided  []int64
}

// capacity returns how many events can be sent at once.
func (w *worker) capacity() capacity {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.svc.cfg.Now()
	r := capacity{wait: -1, endpoint: w.endpoint, round: w.state.round, avoided: w.avoided}
	switch {
	case w.state.disabledReason != "":
		return r
	case !w.state.mayPush(now):
		r.wait = w.state.until.Sub(now)
		return r
	}
	most := w.endpoint.maxInFlight
	limit := min(most-w.sending, settlingFactor*most-w.sending-w.settling, queue.MaxBatch)
	if w.state.isOpen { // a probe
		limit = 1 - w.sending
	}
	if limit <= 0 {
		return r
	}
	if limiter := w.endpoint.limiter; limiter != nil {
		if wait := ratelimit.Wait(limiter, now); wait > 0 {
			r.wait = wait
			return r
		}
		limit = min(limit, int(limiter.TokensAt(now)))
	}
	r.limit = limit
	return r
}

// wait returns after d (negative: ever), or when something has changed.
func (w *worker) wait(ctx context.Context, d time.Duration) {
	var due <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
	case <-w.changed:
	case <-due:
	}
}

// claim claims as many events as the capacity allows, and waits for the first. A change of the state, or of the endpoint, ends the wait.
func (w *worker) claim(ctx context.Context, r capacity) ([]queue.Event, error) {
	claiming, end := context.WithCancel(ctx)
	defer end()
	w.mu.Lock()
	if w.state.round != r.round || w.endpoint != r.endpoint {
		w.mu.Unlock()
		return nil, nil
	}
	w.endClaim = end
	w.mu.Unlock()
	p := queue.ClaimParams{
		Queue: w.queue, Limit: r.limit, InvisibleFor: r.endpoint.timeout + w.svc.cfg.LeaseMargin, Wait: claimWait, Worker: w.svc.workerName,
	}
	if len(r.avoided) > 0 { // others first, if there are any
		p.ExcludeIDs, p.Wait = r.avoided, 0
	}
	started := time.Now()
	events, err := w.svc.cfg.Queue.Claim(claiming, p)
	w.mu.Lock()
	w.endClaim = nil
	if len(r.avoided) > 0 {
		w.avoided = nil
	}
	w.mu.Unlock()
	if claiming.Err() != nil && len(events) == 0 {
		return nil, nil
	}
	if err == nil && len(events) == 0 && p.Wait > 0 && time.Since(started) < faultPause { // the queue service waits for nothing any more
		w.wait(ctx, faultPause)
	}
	return events, err
}

// interrupt has the claim under way end, because something has changed. The caller holds mu.
func (w *worker) interrupt() {
	if w.endClaim != nil {
		w.endClaim()
	}
	w.changed.Send()
}

// release gives events back that were not sent.
func (w *worker) release(ctx context.Context, events []queue.Event) {
	if err := w.svc.cfg.Queue.Release(ctx, queue.LeasesOf(events)); err != nil {
		w.svc.cfg.Logger.Error().Func(failure.Of(err)).Str("queue", w.queue).Int("events", len(events)).
			Msg("claims could not be released: they stay leased until they run out")
	}
}

// begin starts to send an event, unless nothing may be sent any more.
func (w *worker) begin(ctx context.Context, r capacity, event *queue.Event, first int64) bool { //nolint:contextcheck // a request that has begun is brought to its end
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.svc.pushes.Load().place != w.svc.cfg.Database.Place() { // this may be a copy that took the place of the database, which must not be pushed
		w.svc.pushes.Wake()
		return false
	}
	// An endpoint that was replaced while the claim waited gets nothing more.
	if ctx.Err() != nil || w.endpoint != r.endpoint || !w.state.mayPush(w.svc.cfg.Now()) || w.state.isOpen && w.sending > 0 {
		return false
	}
	// A request that cannot end before the lease does is not started: while it ran, another process might send the event, too.
	leftOver := event.VT.Sub(w.svc.cfg.Database.Now()) - sendMargin
	if leftOver < r.endpoint.timeout {
		return false
	}
	w.sending++
	round := w.state.round
	sending, cancel := context.WithTimeout(w.svc.sending, leftOver)
	w.sends.Go(func() {
		defer cancel()
		w.deliver(sending, r.endpoint, round, *event, first)
	})
	return true
}

// deliver sends an event and acks, nacks or releases it.
func (w *worker) deliver(ctx context.Context, e *endpoint, round int, event queue.Event, first int64) {
	o, isOver := w.svc.send(ctx, e, &event, first)
	if isOver { // the process ends, or it stood still: the lease runs out, and the event is sent again then
		w.ended(false)
		return
	}
	o.holdsGroup = w.holdGroup(context.WithoutCancel(ctx), &event, &o)
	settle := w.note(e, round, &event, &o)
	w.svc.count(w.queue, o.verdict)
	w.ended(true)
	end := settle(context.WithoutCancel(ctx))
	w.svc.logAttempt(&event, &o, end)
	w.mu.Lock()
	w.settling--
	w.mu.Unlock()
	w.changed.Send()
}

// ended notes that a request is in flight no more.
func (w *worker) ended(isSettling bool) {
	w.mu.Lock()
	w.sending--
	if isSettling {
		w.settling++
	}
	w.mu.Unlock()
	w.changed.Send()
}

// An attemptEnd is what became of an event after an attempt to push it.
type attemptEnd struct {
	outcome AttemptOutcome
	nextAt  time.Time // when it is due again; zero: it is not, or that is not known
}

// note takes an outcome into the state, and returns the function that settles the event. It changes the verdict of an event that is refused again and again
// while others are taken.
func (w *worker) note(e *endpoint, round int, event *queue.Event, o *outcome) (settle func(context.Context) attemptEnd) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o.verdict == throttled && !o.holdsGroup && w.isAtFault(event.ID, o.isFailure) {
		o.verdict = failed
	}
	if o.verdict == delivered {
		w.accepted++
		w.avoided = nil
	}
	if o.verdict != throttled && o.verdict != failed {
		delete(w.refused, event.ID)
	}
	w.isUnseen = w.isUnseen || !o.isUnsent
	if !o.isUnsent && !o.holdsGroup && w.state.note(w.svc.cfg.Now(), round, *o, w.svc.timesOf(e)) {
		w.isUnrecorded = true
		w.interrupt()
	}
	switch o.verdict {
	case delivered:
		return func(ctx context.Context) attemptEnd { return w.ack(ctx, event, o) }
	case throttled, gone:
		end := attemptEnd{outcome: AttemptHeld}
		switch {
		case o.holdsGroup:
			end.nextAt = w.svc.cfg.Now().Add(o.retryIn)
		case w.state.disabledReason == "":
			end.nextAt = w.state.until
		}
		return func(ctx context.Context) attemptEnd {
			w.release(ctx, []queue.Event{*event})
			return end
		}
	}
	return func(ctx context.Context) attemptEnd { return w.nack(ctx, event, o) }
}

// holdGroup has the group of an event be left alone for as long as the endpoint has asked for with a 429, and reports whether it has: if the event has a group, and its queue limits groups. Then events of
// others are pushed on.
func (w *worker) holdGroup(ctx context.Context, event *queue.Event, o *outcome) bool {
	if o.status != http.StatusTooManyRequests || o.retryIn == 0 || event.Group == "" {
		return false
	}
	isHeld, err := w.svc.cfg.Queue.HoldGroup(ctx, w.queue, event.Group, o.retryIn)
	if err != nil {
		w.svc.cfg.Logger.Error().Func(failure.Of(err)).Str("queue", w.queue).Int64("id", event.ID).Msg("a group could not be held: nothing of the queue is pushed meanwhile")
	}
	return isHeld
}

// isAtFault notes that the endpoint has refused an event for now, and reports whether that is because of the event: it was refused more than
// freeRefusals times, or with 429 more than freeRefusalsOf429 times, and others were taken in between. The caller holds mu.
func (w *worker) isAtFault(id int64, isFailure bool) bool {
	n := w.refused[id]
	if n == nil {
		if len(w.refused) >= maxRefused {
			clear(w.refused)
		}
		n = &refusal{accepted: w.accepted}
		w.refused[id] = n
	}
	n.times++
	if n.times <= freeRefusals {
		return false
	}
	if w.accepted > n.accepted && (isFailure || n.times > freeRefusalsOf429) {
		return true
	}
	if !slices.Contains(w.avoided, id) {
		w.avoided = append(slices.Clip(w.avoided), id)
	}
	return false
}

// ack acks an event that was delivered.
func (w *worker) ack(ctx context.Context, event *queue.Event, o *outcome) attemptEnd {
	result, _ := json.Marshal(map[string]int64{"status": int64(o.status), "ms": o.took.Milliseconds()}) // two numbers
	isSettled := w.settle(ctx, event, func(ctx context.Context) error {
		results, err := w.svc.cfg.Queue.Ack(ctx, []queue.Ack{{Lease: leaseOf(event), Result: result}})
		if err == nil {
			err = results[0].Err
		}
		return err
	})
	if !isSettled {
		return attemptEnd{outcome: AttemptLeaseLost}
	}
	return attemptEnd{outcome: AttemptDelivered}
}

// nack nacks an event that was not.
func (w *worker) nack(ctx context.Context, event *queue.Event, o *outcome) attemptEnd {
	var result queue.NackResult
	isSettled := w.settle(ctx, event, func(ctx context.Context) (err error) {
		result, err = w.svc.cfg.Queue.Nack(ctx, queue.NackParams{Lease: leaseOf(event), Error: o.detail, Final: o.verdict == final})
		return err
	})
	switch {
	case !isSettled:
		return attemptEnd{outcome: AttemptLeaseLost}
	case result.Outcome != "":
		return attemptEnd{outcome: AttemptFailed}
	}
	return attemptEnd{AttemptRetried, result.VT}
}

func leaseOf(event *queue.Event) queue.Lease {
	return queue.Lease{ID: event.ID, Receipt: event.Receipt}
}

// settle makes a call about an event until it succeeds, and reports whether it has, as long as the event has its lease: a delivered event that is not acked would be sent
// again.
func (w *worker) settle(ctx context.Context, event *queue.Event, call func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, event.VT.Sub(w.svc.cfg.Database.Now()))
	defer cancel()
	for {
		err := call(ctx)
		switch {
		case err == nil:
			return true
		case errors.Is(err, queue.ErrLeaseLost), errors.Is(err, queue.ErrNotFound): // it was taken away, by whoever may do that
			w.svc.cfg.Logger.Debug().Str("queue", w.queue).Int64("id", event.ID).Msg("the lease of an event that was pushed is lost")
			return false
		case !errors.Is(err, queue.ErrUnavailable) || ctx.Err() != nil || !w.svc.pauseSettling(ctx):
			w.svc.cfg.Logger.Error().Func(failure.Of(err)).Str("queue", w.queue).Int64("id", event.ID).
				Msg("what came of a push could not be written: the event is pushed again when its lease has run out")
			return false
		}
	}
}

// record has the database know of a change of the state.
func (w *worker) record(ctx context.Context) error {
	w.mu.Lock()
	s, now, isUnrecorded, isAhead := w.state, w.svc.cfg.Now(), w.isUnrecorded, w.isAhead
	w.mu.Unlock()
	switch {
	case isAhead:
		return w.svc.reread(ctx, w, s.epoch)
	case !isUnrecorded:
		return nil
	}
	epoch, err := w.svc.recordChange(ctx, w.queue, &s, now)
	if err != nil {
		return err
	}
	if epoch == nil { // something else has changed it
		return w.svc.reread(ctx, w, s.epoch)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.epoch == s.epoch {
		w.state.epoch = *epoch
		w.isUnrecorded = w.state.round != s.round
	}
	return nil
}

// update takes over the push from the database: a changed endpoint, and a state that something else has changed.
func (w *worker) update(e *endpoint, st state) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hasChanged := false
	if w.endpoint != e {
		w.endpoint = e
		hasChanged = true
	}
	switch {
	case st.epoch > w.state.epoch:
		w.replaceState(st)
		hasChanged = true
	case st.epoch < w.state.epoch:
		// It was read before the latest change was recorded; or the push is another one, or a failover has lost changes. Only the goroutine that
		// records can tell.
		w.isAhead = true
		hasChanged = true
	}
	if hasChanged {
		w.interrupt()
	}
}

// takeOver takes over a state that was read after the latest change was recorded. The caller holds mu.
func (w *worker) takeOver(st state) {
	w.isAhead = false
	if st.epoch != w.state.epoch {
		w.replaceState(st)
		w.interrupt()
	}
}

// replaceState replaces the state by that of the database. The caller holds mu.
func (w *worker) replaceState(st state) {
	st.round = w.state.round + 1
	w.state, w.isUnrecorded, w.isUnseen, w.isAhead = st, false, false, false
	w.avoided = nil
	clear(w.refused)
}

// send makes one request, and returns the outcome. isOver: ctx has ended meanwhile.
func (s *Service) send(ctx context.Context, e *endpoint, event *queue.Event, first int64) (o outcome, isOver bool) {
	o.at = s.cfg.Database.Now()
	started := time.Now()
	span := s.startSpan(ctx, event)
	response, err := s.request(ctx, e, event, first, webhookID(first), span.Context())
	o.took = time.Since(started)
	defer func() { endSpan(span, e, &o, isOver) }()
	switch {
	case ctx.Err() != nil && err != nil:
		return o, true
	case errors.Is(err, errMessage): // trying again would not help, and the endpoint has not seen it
		o.verdict, o.isUnsent, o.detail = final, true, err.Error()
	case err != nil:
		o.verdict, o.isFailure, o.detail = failed, true, err.Error()
	default:
		o.status, o.detail, o.excerpt = response.Status, response.Failure(), response.Excerpt
		o.judge(&response, e)
	}
	return o, false
}

// startSpan starts the span of a request, which is a part of the trace of its event.
func (s *Service) startSpan(ctx context.Context, event *queue.Event) trace.Span {
	if !s.cfg.Tracer.IsOn() {
		return trace.Span{}
	}
	return s.cfg.Tracer.Start(ctx, &trace.Operation{
		Kind: trace.Push, Name: "push", Destination: event.Queue, Messages: []trace.Message{{ID: event.ID, Context: trace.OfMeta(event.Meta)}},
	})
}

// endSpan ends it with the outcome. isOver: nobody knows of one.
func endSpan(span trace.Span, e *endpoint, o *outcome, isOver bool) {
	if span.IsZero() {
		return
	}
	if u, err := url.Parse(e.url); err == nil {
		span.SetResponse(u.Hostname(), o.status)
	}
	failure := ""
	switch {
	case isOver:
		failure = "interrupted"
	case o.verdict != delivered:
		if failure = strconv.Itoa(o.status); o.status == 0 {
			failure = "no_response"
		}
	}
	if !isOver {
		span.SetOutcome(string(o.verdict))
	}
	span.End(failure)
}

// errMessage is wrapped by errors of events of which no request can be made.
var errMessage = errors.New("no request can be made of the event")

// request sends an event to an endpoint, as the webhook of this id, and with a trace context; a zero one: that of the event, if it has one.
func (s *Service) request(ctx context.Context, e *endpoint, event *queue.Event, first int64, id string, traced trace.Context) (egress.Response, error) {
	header, body, err := e.messageOf(event, first)
	if err == nil && !traced.IsZero() {
		delete(header, "Tracestate")
		traced.AddTo(header)
	}
	if err == nil {
		var signer *egress.Signer
		if signer, err = e.signer(s.cfg.Database.Now()); err == nil {
			err = signer.Sign(header, id, s.cfg.Now(), body)
		}
	}
	if err != nil {
		return egress.Response{}, fmt.Errorf("%w: %w", errMessage, err)
	}
	response, err := s.cfg.Sender.Send(ctx, egress.Request{URL: e.url, Header: header, Body: body, Timeout: e.timeout})
	if errors.Is(err, egress.ErrUnsendable) {
		err = fmt.Errorf("%w: %w", errMessage, err)
	}
	return response, err
}

// judge sets the verdict on an answer.
func (o *outcome) judge(r *egress.Response, e *endpoint) {
	switch {
	case r.OK():
		o.verdict = delivered
	case slices.Contains(e.finalStatuses, r.Status):
		o.verdict = final
	case r.Status == http.StatusGone:
		o.verdict, o.isFailure = gone, true
	case r.Status == http.StatusTooManyRequests:
		o.verdict, o.retryIn = throttled, r.RetryAfter
	case r.Status == http.StatusServiceUnavailable || r.RetryAfter > 0:
		o.verdict, o.isFailure, o.retryIn = throttled, true, r.RetryAfter
	default:
		o.verdict, o.isFailure = failed, true
	}
}
