package topic

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pg"
)

const (
	// firstRetry and lastRetry are how long a reader that cannot go on rests: because its queue is full, or because it was refused.
	firstRetry = 20 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// catchUp delivers to those who are not in step, each by a position of its own, in turns: subscriptions that begin in the past, that were paused, or whose
// queues are full, and replays. A subscription that is level joins those in step.
type catchUp struct {
	r      *router
	states map[int64]*catchUpState // of routes, by their ids
}

// A catchUpState is the progress of a route that is behind, and how long it rests.
type catchUpState struct {
	until             time.Time
	joins             time.Time // not before
	pause             time.Duration
	failure           string // why it was refused
	scanned           int64  // there is nothing to deliver from its position up to here
	number            int64  // of that position
	position          int64  // the same
	room              int    // so many events may be delivered before those that are ready are counted again
	isBehind          bool   // retention has dropped the next events, which the tail may still have
	mustReloadFilters bool   // they changed while it was matched: those to match with are read after the events
}

// pass lets each of those who are behind go on, until none can.
func (c *catchUp) pass(ctx context.Context) error {
	limiter := c.r.svc.routes.Limiter()
	for isMore := true; isMore; {
		isMore = false
		isIdle, hasAsked := true, false
		behind := c.r.listBehind()
		states := make(map[int64]*catchUpState, len(behind))
		for _, rt := range behind {
			states[rt.ID] = c.states[rt.ID]
			if states[rt.ID] == nil {
				states[rt.ID] = &catchUpState{}
			}
		}
		c.states = states
		for i := range behind {
			rt, state := &behind[i], states[behind[i].ID]
			if time.Now().Before(state.until) {
				continue
			}
			state.until = time.Time{} // unless it rests again: untilDue takes a time that is set for a rest that is not over
			before := *state
			hasMoved, err := c.step(ctx, rt, state)
			hasAsked = true
			isIdle = isIdle && (!hasMoved || *state == before)
			switch {
			case err != nil && !isRefused(ctx, err):
				return err
			case err != nil:
				if state.failure != err.Error() {
					c.r.svc.cfg.Logger.Error().Func(failure.Of(err)).Str("subscription", rt.Name).Msg("a subscription cannot be delivered into its queue; it is tried again")
				}
				state.failure = err.Error()
				state.wait()
			case hasMoved:
				state.failure, state.pause = "", 0
				isMore = true
			}
		}
		if !isIdle || !hasAsked {
			pg.Worked(ctx)
		}
		if isMore {
			if err := limiter.Pause(ctx, isIdle); err != nil {
				return err
			}
		}
	}
	return nil
}

// untilDue is how long until one of those that rest goes on.
func (c *catchUp) untilDue(context.Context) time.Duration {
	wait := c.r.svc.cfg.PollInterval
	for _, state := range c.states {
		if !state.until.IsZero() {
			wait = min(wait, max(time.Until(state.until), time.Millisecond))
		}
	}
	return wait
}

// wait makes a route rest, longer each time.
func (state *catchUpState) wait() {
	state.pause = min(max(2*state.pause, firstRetry), lastRetry)
	state.until = time.Now().Add(state.pause)
}

// listBehind returns the routes that are not in step, if this process routes.
func (r *router) listBehind() (behind []route) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rt := range r.routes {
		if !rt.IsInStep && !rt.IsPaused {
			behind = append(behind, *rt)
		}
	}
	return behind
}

// routeState is where a route that is not in step has come.
type routeState struct {
	Subscription   int64 // its id
	FiltersVersion int64
	MaxWaiting     int
	Number         int64
	Position       int64
	Until          *int64 // where a replay ends
}

// step delivers the next events to one route, or lets it join those in step. It reports whether the route has got on.
func (c *catchUp) step(ctx context.Context, rt *route, state *catchUpState) (hasMoved bool, err error) {
	end, isShared := c.r.shared()
	if rt.IsReplay {
		hasMoved, _, err = c.advance(ctx, rt, state, math.MaxInt64)
		return hasMoved, err
	}
	if !isShared {
		end = math.MaxInt64
	}
	hasMoved, canJoin, err := c.advance(ctx, rt, state, end)
	if err != nil || !canJoin || time.Now().Before(state.joins) {
		return hasMoved, err
	}
	room, err := c.r.countRoom(ctx, rt)
	if err != nil || room < rt.MaxWaiting/2 { // it would soon leave again
		state.joins = time.Now().Add(lastRetry)
		return hasMoved, err
	}
	return c.join(ctx, rt, state)
}

// countRoom returns how many events may be delivered into the queue of a route.
func (r *router) countRoom(ctx context.Context, rt *route) (room int, err error) {
	err = r.svc.loops.QueryRow(ctx, `select $2 - ready from agent_service.count_ready(array[$1::text], array[$2::int4])`, rt.Queue, rt.MaxWaiting).Scan(&room)
	return room, wrap("counting ready events", err)
}

// advance delivers the next events to one route up to a position. It reports whether the route has got on, and whether it is level and may join
// those in step.
func (c *catchUp) advance(ctx context.Context, rt *route, state *catchUpState, end int64) (hasMoved, canJoin bool, err error) {
	svc := c.r.svc
	rows, _ := svc.loops.Query(ctx, `select subscription, filters_version, max_waiting, number, position, until from agent_service.get_route($1)`, rt.ID)
	st, err := pg.CollectOne[routeState](rows)
	if errors.Is(err, pgx.ErrNoRows) { // the router has not noticed yet that it is gone, paused or in step
		state.until = time.Now().Add(firstRetry)
		return false, false, nil
	}
	if err != nil {
		return false, false, wrap("catching up", err)
	}
	if state.number != st.Number || state.position != st.Position {
		state.number, state.position, state.scanned = st.Number, st.Position, st.Position
	}
	if st.Until != nil {
		end = *st.Until
	}
	if state.scanned >= end {
		return false, state.scanned == st.Position && st.Position == end, nil
	}
	if state.room = min(state.room, st.MaxWaiting); state.room <= 0 {
		if state.room, err = c.r.countRoom(ctx, rt); err != nil {
			return false, false, err
		}
		if state.room <= 0 {
			state.wait()
			return false, false, nil
		}
	}
	b, set, isLevel, err := c.nextBatch(ctx, rt, state, &st, end)
	if err != nil {
		return false, false, err
	}
	if b.end == st.Position && !b.hasGap {
		return false, isLevel, nil
	}
	if len(b.positions) == 0 && !b.hasGap && !isLevel && b.end-st.Position < scanEvents {
		state.scanned = b.end
		return true, false, nil
	}
	var version *int64
	if !state.mustReloadFilters {
		version = &set.version
	}
	var status *string
	var number int64
	err = svc.loops.QueryRow(ctx, `select status, number from agent_service.deliver_alone($1, $2, $3, $4, $5, $6, $7)`,
		rt.ID, st.Number, version, b.end, b.hasGap, b.positions, b.matched).Scan(&status, &number)
	if err != nil {
		state.isBehind, state.room = pg.LostRace(err), 0 // it may have been delivered nevertheless
		return false, false, wrap("catching up", err)
	}
	state.mustReloadFilters, state.isBehind = status != nil, false
	if status != nil {
		state.until = time.Now().Add(firstRetry)
		return false, false, nil
	}
	state.number, state.position, state.scanned, state.room = number, b.end, b.end, state.room-len(b.positions)
	if number == 0 {
		c.r.changed() // the replay has ended
	}
	svc.announceDelivered(b)
	return true, isLevel, nil
}

// nextBatch returns the next events for a route up to a position, the filters that they were matched with, and whether there is no more for now.
func (c *catchUp) nextBatch(ctx context.Context, rt *route, state *catchUpState, st *routeState, end int64) (b *batch, set *filterSet, isLevel bool, err error) {
	svc := c.r.svc
	p, at, err := svc.readAfter(ctx, state.scanned, state.isBehind)
	if err != nil {
		return nil, nil, false, err
	}
	if state.mustReloadFilters {
		set, err = svc.loadFilters(ctx, rt.Name, st.Subscription)
	} else {
		set, err = svc.filterSet(ctx, rt.Name, st.Subscription, st.FiltersVersion)
	}
	if err != nil {
		return nil, nil, false, err
	}
	b = newBatch(p)
	if set == nil { // it was deleted meanwhile
		b.end = st.Position
		return b, nil, false, nil
	}
	reader := &subscribedReader{svc: svc, set: set}
	for i := range p.scanned {
		e := at(i)
		if e.Position > end {
			break
		}
		if matched, isWanted := reader.match(e); isWanted {
			if len(b.positions) == state.room || b.isFull() {
				return b, set, false, nil
			}
			b.add(rt, e, namesOf(matched))
		}
		b.end = e.Position
	}
	b.end = min(p.next, end)
	return b, set, p.isLevel || b.end == end, nil
}

// namesOf returns the JSON array of the names of filters.
func namesOf(names []string) string {
	if len(names) == 0 {
		return "[]"
	}
	text, _ := json.Marshal(names) // texts always encode
	return string(text)
}

// shared returns up to where those in step have come, and whether there are any.
func (r *router) shared() (position int64, isShared bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.position, len(r.inStep) > 0
}

// join lets a subscription join those in step, which wait meanwhile, so that it comes as far as they have.
func (c *catchUp) join(ctx context.Context, rt *route, state *catchUpState) (hasJoined bool, err error) {
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.routes[rt.ID]
	if r.confirmedAt.IsZero() || known == nil || known.IsInStep {
		return false, nil
	}
	end := int64(math.MaxInt64)
	if len(r.inStep) > 0 {
		end = r.position
	}
	for {
		hasMoved, canJoin, err := c.advance(ctx, rt, state, end)
		if err != nil || !hasMoved && !canJoin {
			return false, err
		}
		if canJoin {
			break
		}
	}
	rows, _ := r.svc.loops.Query(ctx, `select number, position from agent_service.join_step($1, $2, $3)`, r.number, rt.ID, state.number)
	joined, err := pg.CollectOne[struct{ Number, Position int64 }](rows)
	if errors.Is(err, pgx.ErrNoRows) {
		state.wait()
		return false, nil
	}
	if err != nil {
		r.forget()
		return false, wrap("joining those in step", err)
	}
	r.number, r.position, r.scanned = joined.Number, joined.Position, joined.Position
	known.IsInStep = true
	r.inStep[known.Name] = known
	if err := r.indexFilters(ctx, []int64{rt.ID}, make(map[int32]*match.Filter)); err != nil {
		r.forget()
		return false, err
	}
	r.woken.Send()
	return true, nil
}
