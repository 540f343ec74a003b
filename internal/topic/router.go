package topic

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pg"
)

const (
	// routeLease is how long a process routes after it has last said so: when it dies, another one goes on after that time.
	routeLease = 3 * time.Second
	// renewAfter is the time after which it says so again. Until then it takes its lease for granted; were it wrong, the database would refuse it.
	renewAfter = routeLease / 3
	// flushInterval is how long the position of the router stays behind events that nobody wants.
	flushInterval = time.Second
	// deliveries and deliveryBytes bound the deliveries of one transaction, but for the last event in it.
	maxDeliveries    = 5000
	maxDeliveryBytes = 16 << 20
)

// A router delivers the log into the queues of subscriptions. Those that are level share one position, and their events are found by one index of all
// their filters. The others go by positions of their own, see catchup.go. Of all processes one routes at a time.
//
// Its copy of the database's state holds only as long as each change of it was made, or noticed, by the router itself: it forgets everything, and reads it
// again, after each error, since the call may have been committed nevertheless, and whenever the position has another number than it knows.
type router struct {
	svc     *Service
	process int64     // tells it from those of other processes
	woken   pg.Signal // the log has grown, or the routes have changed
	behind  pg.Signal // the same, for those that are not in step

	delivered atomic.Int64
	isRouting atomic.Bool
	isChanged atomic.Bool // the routes, by this process

	mu                sync.Mutex // guards the fields below; held while a batch is delivered
	restsUntil        time.Time  // nothing is to be delivered until then, or another process does it
	confirmedAt       time.Time  // when the lease was last extended, before the call; zero: it does not route
	flushedAt         time.Time  // when the position was last moved
	number            int64      // of the position
	position          int64      // everything up to there is delivered
	scanned           int64      // and there is nothing to deliver up to here, as far as the routes are up to date
	version           int64      // of the routes; zero: they are not known
	isBehind          bool       // retention has dropped the next events, which the tail may still have
	filtersValidUntil int64      // events up to here were published before the routes were read
	changes           []int64    // that version is made of; nil: they are not known
	routes            map[int64]*route
	replays           map[int64]*route  // those of the routes
	inStep            map[string]*route // those of the routes that are in step, by name
	index             *match.Index      // of the filters of the routes in step
	wanted            []*wantedFilter   // by the id in the index; nil: the id is free
	freeIDs           []int32
	ready             map[string]int // by queue: how many events are ready, at most
	joined            *group         // in the tail, while there are routes in step

	ids    []int32 // reused by each event
	hits   []hit
	events uint64 // that were matched
}

// A route is a subscription that is delivered, or a replay.
type route struct {
	ID             int64
	Subscription   int64  // its id
	Name           string // of the subscription
	FiltersVersion int64
	Queue          string
	MaxWaiting     int
	IsReplay       bool
	IsPaused       bool
	IsInStep       bool

	filters []int32 // in the index, while it is in step
	event   uint64  // the last one that it gets: see router.events
	hit     int     // its place among the hits of that event
}

// A wantedFilter is a filter in the index.
type wantedFilter struct {
	route         *route
	name          string
	soleMatchJSON string // stored as the names of the filters where it alone wants an event
}

// A hit is a subscription that gets an event, and the filters that want it.
type hit struct {
	route *route
	names []*wantedFilter
}

// RouterStats describe the router of this process.
type RouterStats struct {
	IsRouting bool  // it is this one among all processes
	Delivered int64 // events, by this process
}

// RouterStats describes the router.
func (s *Service) RouterStats() RouterStats {
	return RouterStats{s.router.isRouting.Load(), s.router.delivered.Load()}
}

func newRouter(s *Service) *router {
	return &router{svc: s, process: newToken(), woken: pg.NewSignal(), behind: pg.NewSignal(), index: match.NewIndex(nil)}
}

// wake makes the router look at the log. It never blocks.
func (r *router) wake() {
	r.woken.Send()
	r.behind.Send()
}

// changed makes the router look at subscriptions that this process has changed. It never blocks.
func (r *router) changed() {
	r.isChanged.Store(true)
	r.wake()
}

// pass delivers the log to the routes in step, as far as it goes.
func (r *router) pass(ctx context.Context) error {
	limiter := r.svc.routes.Limiter()
	for {
		r.mu.Lock()
		before := r.progress()
		isMore, err := r.step(ctx)
		hasMoved := r.progress() != before
		r.mu.Unlock()
		if hasMoved {
			pg.Worked(ctx)
		}
		if !isMore || err != nil {
			return err
		}
		if err := limiter.Pause(ctx, !hasMoved); err != nil {
			return err
		}
	}
}

// A routerProgress differs after a step that got something done.
type routerProgress struct{ number, position, scanned, version int64 }

// progress returns how far the router has come. The caller holds mu.
func (r *router) progress() routerProgress {
	return routerProgress{r.number, r.position, r.scanned, r.version}
}

// untilDue is how long the router may rest.
func (r *router) untilDue(context.Context) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if wait := time.Until(r.restsUntil); wait > 0 {
		return wait
	}
	return pg.Jittered(min(r.svc.cfg.PollInterval, renewAfter))
}

// release ends the lease, so that another process goes on at once.
func (r *router) release(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.confirmedAt.IsZero() {
		return nil
	}
	r.stop(0)
	_, err := r.svc.loops.Exec(ctx, `select agent_service.end_routing($1)`, r.process)
	return wrap("ending the lease of the router", err)
}

// stop makes this process route no more, and rest for a time.
func (r *router) stop(rest time.Duration) {
	if r.joined != nil {
		r.svc.tail.leave(r.joined)
	}
	r.restsUntil, r.confirmedAt, r.joined = time.Now().Add(rest), time.Time{}, nil
	r.forget()
	r.isRouting.Store(false)
}

// forget drops the known state of the routes, and has begin ask where the router is.
func (r *router) forget() {
	r.version, r.filtersValidUntil, r.changes, r.routes, r.replays, r.inStep, r.ready = 0, 0, nil, nil, nil, nil, nil
	r.index, r.wanted, r.freeIDs = match.NewIndex(nil), nil, nil
}

// begin reports whether this process routes, and extends its lease where that is due.
func (r *router) begin(ctx context.Context) (bool, error) {
	now := time.Now()
	isChanged := r.isChanged.Swap(false)
	if isChanged {
		pg.Worked(ctx)
	}
	if now.Before(r.restsUntil) && !isChanged {
		pg.Worked(ctx)
		return false, nil
	}
	if !isChanged && r.version != 0 && !r.confirmedAt.IsZero() && now.Sub(r.confirmedAt) < renewAfter {
		return true, nil
	}
	rows, _ := r.svc.loops.Query(ctx, `select held_for, was_held, number, position, version from agent_service.begin_routing($1, $2, $3)`,
		r.process, routeLease, r.number)
	begun, err := pg.CollectOne[struct {
		HeldFor                   *time.Duration
		WasHeld                   bool
		Number, Position, Version int64
	}](rows)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		r.stop(r.svc.cfg.PollInterval)
		return false, nil
	case err != nil:
		r.forget()
		return false, wrap("beginning to route", err)
	case begun.HeldFor != nil:
		r.stop(*begun.HeldFor)
		return false, nil
	}
	if r.confirmedAt.IsZero() {
		r.flushedAt = now
	}
	r.confirmedAt = now
	r.isRouting.Store(true)
	if !begun.WasHeld || begun.Position != r.position { // subscriptions may have joined or left
		r.forget()
	}
	r.number, r.position = begun.Number, begun.Position
	if begun.Version == r.version {
		return true, nil
	}
	r.scanned = r.position
	if err := r.load(ctx); err != nil {
		r.forget()
		return false, err
	}
	return true, nil
}

// load reads the routes that have changed.
func (r *router) load(ctx context.Context) error {
	filtersValidUntil := r.svc.tail.reach()
	rows, _ := r.svc.loops.Query(ctx, `select version, known, changed from agent_service.route_changes($1)`, r.changes)
	now, err := pg.CollectOne[struct {
		Version        int64
		Known, Changed []int64
	}](rows)
	if err != nil {
		return wrap("reading what is to be delivered", err)
	}
	gone := r.takeOut(now.Changed)
	rows, _ = r.svc.loops.Query(ctx, `select id, subscription, name, filters_version, queue, max_waiting, is_replay, is_paused, is_in_step
		from agent_service.read_routes($1)`, now.Changed) // now or later: a change in between makes the version another one
	var renewed, paused []int64
	for next, err := range pg.Each[route](rows) {
		if err != nil {
			return wrap("reading what is to be delivered", err)
		}
		r.routes[next.ID] = &next
		if next.IsReplay {
			r.replays[next.ID] = &next
		}
		delete(r.ready, next.Queue)
		if !next.IsInStep {
			continue
		}
		r.inStep[next.Name] = &next
		if next.IsPaused {
			paused = append(paused, next.ID)
		}
		if before := gone[next.ID]; before != nil && before.IsInStep && before.FiltersVersion == next.FiltersVersion {
			next.filters, before.filters = before.filters, nil
			for _, id := range next.filters {
				r.wanted[id].route = &next
			}
		} else {
			renewed = append(renewed, next.ID)
		}
	}
	changes := make(map[int32]*match.Filter)
	for _, before := range gone {
		r.unindex(before, changes)
	}
	if err := r.indexFilters(ctx, renewed, changes); err != nil {
		return err
	}
	r.version, r.changes, r.filtersValidUntil = now.Version, now.Known, filtersValidUntil
	r.behind.Send()
	if len(paused) > 0 {
		_, err := r.leave(ctx, paused)
		return err
	}
	return nil
}

// takeOut takes out and returns the routes of subscriptions, or with nil all of them. Their filters stay in the index.
func (r *router) takeOut(subscriptions []int64) (gone map[int64]*route) {
	if subscriptions == nil {
		gone = r.routes
		r.routes, r.inStep, r.replays, r.ready = make(map[int64]*route), make(map[string]*route), make(map[int64]*route), make(map[string]int)
		return gone
	}
	gone = make(map[int64]*route)
	for _, id := range subscriptions {
		if rt := r.routes[id]; rt != nil {
			gone[id] = rt
			if r.inStep[rt.Name] == rt {
				delete(r.inStep, rt.Name)
			}
			delete(r.routes, id)
		}
	}
	for id, rt := range r.replays {
		if slices.Contains(subscriptions, rt.Subscription) {
			gone[id] = rt
			delete(r.routes, id)
			delete(r.replays, id)
		}
	}
	return gone
}

// unindex takes the filters of a route out of the index, by changes to it.
func (r *router) unindex(rt *route, changes map[int32]*match.Filter) {
	for _, id := range rt.filters {
		changes[id], r.wanted[id] = nil, nil
		r.freeIDs = append(r.freeIDs, id)
	}
	rt.filters = nil
}

// indexFilters reads the filters of routes in step, and makes changes and them to the index.
func (r *router) indexFilters(ctx context.Context, ids []int64, changes map[int32]*match.Filter) error {
	rows, _ := r.svc.loops.Query(ctx, `select id, filters_version, name, topics, match from agent_service.list_filters($1)`, ids)
	type row struct {
		ID, FiltersVersion int64
		Name               *string
		Topics             []string
		Match              json.RawMessage
	}
	for f, err := range pg.Each[row](rows) {
		if err != nil {
			return wrap("reading what is to be delivered", err)
		}
		rt := r.routes[f.ID]
		rt.FiltersVersion = f.FiltersVersion
		if f.Name == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		compiled, err := match.Parse(f.Topics, f.Match)
		if err != nil {
			r.svc.logUnknownFilter(rt.Name, *f.Name, err)
			continue
		}
		id := int32(len(r.wanted)) // of MaxAllFilters at most
		if n := len(r.freeIDs); n > 0 {
			id, r.freeIDs = r.freeIDs[n-1], r.freeIDs[:n-1]
		} else {
			r.wanted = append(r.wanted, nil)
		}
		r.wanted[id], changes[id] = &wantedFilter{rt, *f.Name, namesOf([]string{*f.Name})}, compiled
		rt.filters = append(rt.filters, id)
	}
	if len(changes) > 0 {
		r.index = r.index.Update(changes)
	}
	return nil
}

// leave gives routes in step positions of their own, and returns how many of them have left: not those that somebody is changing.
func (r *router) leave(ctx context.Context, ids []int64) (int, error) {
	rows, _ := r.svc.loops.Query(ctx, `select number, subscriptions from agent_service.leave_router($1, $2)`, r.number, ids)
	left, err := pg.CollectOne[struct {
		Number        int64
		Subscriptions []int64
	}](rows)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		r.forget()
		return 0, wrap("taking subscriptions out of step", err)
	}
	r.number = left.Number
	changes := make(map[int32]*match.Filter)
	for _, id := range left.Subscriptions {
		rt := r.routes[id]
		r.unindex(rt, changes)
		rt.IsInStep = false
		delete(r.inStep, rt.Name)
	}
	r.index = r.index.Update(changes)
	r.behind.Send()
	return len(left.Subscriptions), nil
}

// step delivers the next events to the routes in step, and reports whether there may be more. The caller holds mu.
func (r *router) step(ctx context.Context) (isMore bool, err error) {
	if isRouting, err := r.begin(ctx); err != nil || !isRouting {
		return false, err
	}
	if len(r.inStep) == 0 {
		if r.joined != nil {
			r.svc.tail.leave(r.joined)
			r.joined = nil
		}
		pg.Worked(ctx)
		return false, nil
	}
	if r.joined == nil {
		r.joined = r.svc.tail.join(nil) // so that the tail is fed
	}
	b, isLevel, err := r.nextBatch(ctx)
	if err != nil {
		return false, err
	}
	if len(b.positions) == 0 && !b.hasGap {
		r.scanned = b.end
		if !isLevel || r.scanned == r.position || time.Since(r.flushedAt) < flushInterval {
			return !isLevel, nil
		}
	}
	full, err := r.findFull(ctx, b)
	if err != nil {
		return false, err
	}
	if len(full) > 0 {
		if left, err := r.leave(ctx, full); err != nil || left > 0 {
			return true, err
		}
	}
	return r.deliver(ctx, b, isLevel)
}

// deliver delivers a batch, and reports whether there may be more.
func (r *router) deliver(ctx context.Context, b *batch, isLevel bool) (isMore bool, err error) {
	now := time.Now()
	var version *int64
	if b.end > r.filtersValidUntil {
		version = &r.version
	}
	var status *string
	var number int64
	err = r.svc.loops.QueryRow(ctx, `select status, number from agent_service.deliver_in_step($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
		r.process, routeLease, r.number, version, b.end, b.hasGap, b.subscriptions, b.positions, b.matched).Scan(&status, &number)
	switch {
	case err != nil && len(b.positions) > 0 && isRefused(ctx, err):
		// One of them cannot get its events. Each by itself, the others can.
		r.svc.cfg.Logger.Error().Func(failure.Of(err)).Msg("subscriptions cannot be delivered together, so each of them is by itself")
		left, leaving := r.leave(ctx, slices.Compact(slices.Sorted(slices.Values(b.subscriptions))))
		if left == 0 {
			return false, wrap("delivering", errors.Join(err, leaving))
		}
		return true, nil
	case err != nil:
		r.isBehind = pg.LostRace(err)
		r.forget()
		return false, wrap("delivering", err)
	case status != nil:
		r.confirmedAt, r.scanned = now.Add(-renewAfter), r.position
		return true, nil
	}
	r.confirmedAt, r.flushedAt = now, now
	r.number, r.position, r.scanned, r.isBehind = number, b.end, b.end, false
	for rt, n := range b.counts {
		r.ready[rt.Queue] += n
	}
	r.svc.announceDelivered(b)
	return !isLevel, nil
}

// isRefused reports whether the database has refused the rows themselves, whoever writes them and when.
func isRefused(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !pg.IsUnavailable(err) && !pg.LostRace(err)
}

// announceDelivered counts the deliveries, and wakes those who wait for them.
func (s *Service) announceDelivered(b *batch) {
	if len(b.positions) == 0 {
		return
	}
	s.router.delivered.Add(int64(len(b.positions)))
	queues := make([]string, 0, len(b.counts))
	for rt := range b.counts {
		queues = append(queues, rt.Queue)
	}
	s.cfg.Queue.Wake(queues)
}

// findFull returns the routes whose queues do not have the room for a batch.
func (r *router) findFull(ctx context.Context, b *batch) (full []int64, err error) {
	for isCounted := false; ; isCounted = true {
		full = nil
		var queues []string
		var limits []int
		added := make(map[string]int)
		for rt, n := range b.counts {
			ready, isKnown := r.ready[rt.Queue]
			if isKnown && ready+added[rt.Queue]+n <= rt.MaxWaiting {
				added[rt.Queue] += n
				continue
			}
			full = append(full, rt.ID)
			queues, limits = append(queues, rt.Queue), append(limits, rt.MaxWaiting)
		}
		if len(full) == 0 || isCounted {
			return full, nil
		}
		rows, _ := r.svc.loops.Query(ctx, `select queue, ready from agent_service.count_ready($1, $2)`, queues, limits)
		type row struct {
			Queue string
			Ready int
		}
		for _, queue := range queues {
			r.ready[queue] = 0
		}
		for counted, err := range pg.Each[row](rows) {
			if err != nil {
				return nil, wrap("counting ready events", err)
			}
			r.ready[counted.Queue] = max(r.ready[counted.Queue], counted.Ready)
		}
	}
}

// A batch is the deliveries of one transaction.
type batch struct {
	end           int64 // it delivers the events up to there
	hasGap        bool
	subscriptions []int64
	positions     []int64
	matched       []string // JSON arrays of names of filters
	counts        map[*route]int
	bytes         int
}

// newBatch returns a batch for a part of the log, without any deliveries yet.
func newBatch(p logSlice) *batch {
	return &batch{end: p.next, hasGap: p.gap != nil, subscriptions: []int64{}, positions: []int64{}, matched: []string{}, counts: make(map[*route]int)}
}

func (b *batch) add(rt *route, e *Event, matched string) {
	b.subscriptions, b.positions, b.matched = append(b.subscriptions, rt.ID), append(b.positions, e.Position), append(b.matched, matched)
	b.counts[rt]++
	b.bytes += e.size()
}

func (b *batch) isFull() bool {
	return len(b.positions) >= maxDeliveries || b.bytes >= maxDeliveryBytes
}

// readAfter returns the events of the log after a position: from the tail if that reaches back so far. With isKept they are those that the database
// still has, and the tail may not.
func (s *Service) readAfter(ctx context.Context, position int64, isKept bool) (p logSlice, at func(i int) *Event, err error) {
	if p, _, isThere := s.tail.after(nil, position, readEvents, readBytes); isThere && !isKept {
		return p, func(i int) *Event { return &p.entries[i].Event }, nil
	}
	read, err := s.readPage(ctx, position, readEvents, readBytes, nil)
	return read.logSlice, func(i int) *Event { return &read.events[i] }, err
}

// nextBatch returns the next deliveries for the routes in step, and whether there is no more for now.
func (r *router) nextBatch(ctx context.Context) (b *batch, isLevel bool, err error) {
	p, at, err := r.svc.readAfter(ctx, r.scanned, r.isBehind)
	if err != nil {
		return nil, false, err
	}
	b = newBatch(p)
	for i := range p.scanned {
		e := at(i)
		r.match(b, e)
		if b.isFull() && i < p.scanned-1 {
			b.end = e.Position
			return b, false, nil
		}
	}
	return b, p.isLevel, nil
}

// match adds to a batch those routes in step that get an event: an event for one subscription alone is for that one, whatever its filters are.
func (r *router) match(b *batch, e *Event) {
	r.events++
	r.hits = r.hits[:0]
	if e.Subscription != "" {
		if rt := r.inStep[e.Subscription]; rt != nil {
			r.hit(rt, nil)
		} else {
			return
		}
	}
	r.ids = r.index.Match(e.Topic, e.Event, r.ids[:0])
	for _, id := range r.ids {
		if w := r.wanted[id]; e.Subscription == "" || w.route.Name == e.Subscription {
			r.hit(w.route, w)
		}
	}
	for i := range r.hits {
		b.add(r.hits[i].route, e, r.hits[i].matched())
	}
}

// hit adds to the hits that a route gets the event, because of a filter unless that is nil.
func (r *router) hit(rt *route, w *wantedFilter) {
	if rt.event != r.events {
		rt.event, rt.hit = r.events, len(r.hits)
		r.hits = append(r.hits, hit{route: rt})
	}
	if w != nil {
		r.hits[rt.hit].names = append(r.hits[rt.hit].names, w)
	}
}

// matched returns the JSON array of the names of the filters.
func (h *hit) matched() string {
	if len(h.names) == 1 {
		return h.names[0].soleMatchJSON
	}
	names := make([]string, len(h.names))
	for i, w := range h.names {
		names[i] = w.name
	}
	slices.Sort(names)
	return namesOf(names)
}
