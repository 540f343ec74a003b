package workloads

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Fanout is a log that is delivered into queues: into one by a subscription that begins where the log does; into several by as many subscriptions, each of
// which gets all of it; and into one by a subscription that is level while events are published. The same events inserted into a queue by a
// statement alone take turns with these. Every turn counts the events in its queues.
type Fanout struct {
	Events int `least:"1000" default:"100000" placeholder:"N" help:"How many events the log has, and how many are published or inserted in a turn."`
	Queues int `least:"2" default:"10" placeholder:"N" help:"Queues that get all of a tenth of the log."`
	Rounds int `default:"3" placeholder:"N" help:"How often each has its turn."`
}

// fanoutChunk is how many events are published or inserted by one statement, as many as the router delivers at once.
const fanoutChunk = 1000

func (*Fanout) name() string { return "fanout" }

func (*Fanout) check(cfg Config) error { return needOwnServers(cfg) }

// delivery is one way for events to get into queues.
type delivery struct {
	*turns
	take func(ctx context.Context, queues []string) error // returns when they are there
	each int                                              // events of each queue
	n    int                                              // queues
}

func (w *Fanout) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	conn := srv.db.conn
	payload := string(s.payload)
	tenth := w.Events / 10
	for _, log := range []struct {
		topic  string
		events int
	}{{"all", w.Events}, {"tenth", tenth}} {
		if err := w.publish(ctx, conn, log.topic, payload, log.events); err != nil {
			return err
		}
	}
	deliver := func(topic string) func(context.Context, []string) error {
		return func(ctx context.Context, queues []string) error {
			for _, queue := range queues {
				if err := srv.target.Deliver(ctx, queue, topic, "earliest"); err != nil {
					return err
				}
			}
			return w.awaitLevel(ctx, srv, queues)
		}
	}
	ways := []*delivery{
		{newTurns("from the beginning, one queue"), deliver("all"), w.Events, 1},
		{newTurns(fmt.Sprintf("from the beginning, %d queues", w.Queues)), deliver("tenth"), tenth, w.Queues},
		{newTurns("as it is published, one queue"), func(ctx context.Context, queues []string) error {
			if err := srv.target.Deliver(ctx, queues[0], queues[0], "latest"); err != nil {
				return err
			}
			if err := w.publish(ctx, conn, queues[0], payload, w.Events); err != nil {
				return err
			}
			return w.awaitLevel(ctx, srv, queues)
		}, w.Events, 1},
		{newTurns("inserted by SQL"), func(ctx context.Context, queues []string) error {
			for n := 0; n < w.Events; n += fanoutChunk {
				if _, err := conn.Exec(ctx, readyStatement, payload, queues[0], min(fanoutChunk, w.Events-n)); err != nil {
					return fmt.Errorf("inserting: %w", err)
				}
			}
			return nil
		}, w.Events, 1},
	}
	counters := newTurnReader(srv)
	balance := load.Balance{}
	for round := range w.Rounds + 1 {
		for _, way := range ways {
			s.progress.show("round %d of %d: %s", round, w.Rounds, way.label)
			if err := w.turn(ctx, s, srv, way, counters, round > 0, &balance); err != nil {
				return fmt.Errorf("%s: %w", way.label, err)
			}
		}
	}
	for _, way := range ways {
		result := way.result(false)
		result.Events = nil
		s.add(result)
	}
	s.add(&report.Result{Label: "delivered", Balance: &balance})
	s.compare("one queue over SQL", ways[0].over(ways[3].turns))
	s.compare("one queue, processor time over SQL", ways[0].costOver(ways[3].turns))
	return nil
}

// turn has events delivered into new queues, adds up the events there, and deletes them.
func (w *Fanout) turn(
	ctx context.Context, s *session, srv *server, way *delivery, counters *turnReader, counts bool, balance *load.Balance,
) error {
	queues := make([]string, way.n)
	for i := range queues {
		queues[i] = s.newQueue()
	}
	before, err := counters.read(ctx)
	if err != nil {
		return err
	}
	if err := way.take(ctx, queues); err != nil {
		return err
	}
	after, err := counters.read(ctx)
	if err != nil {
		return err
	}
	if counts {
		total := load.NewCounts()
		total.Events[load.Insert] = int64(way.each * way.n)
		way.add(total, int64(way.each*way.n), before, after)
	}
	for _, queue := range queues {
		var events, places int64
		if err := srv.db.conn.QueryRow(ctx, countDeliveredStatement, queue).Scan(&events, &places); err != nil {
			return fmt.Errorf("counting what was delivered: %w", err)
		}
		balance.Inserted += int64(way.each)
		balance.Acked += places
		balance.Lost += max(int64(way.each)-places, 0)
		balance.InsertedTwice += events - places
	}
	_, err = srv.db.conn.Exec(ctx, deleteQueuesStatement, queues)
	if err == nil {
		_, err = srv.db.conn.Exec(ctx, vacuumStatement)
	}
	return err
}

// publish appends events to the log, by the statement alone.
func (w *Fanout) publish(ctx context.Context, conn *pgx.Conn, topic, payload string, events int) error {
	for n := 0; n < events; n += fanoutChunk {
		if _, err := conn.Exec(ctx, publishedStatement, payload, topic, min(fanoutChunk, events-n)); err != nil {
			return fmt.Errorf("publishing: %w", err)
		}
	}
	return nil
}

// awaitLevel waits until the subscriptions of these names have no lag.
func (w *Fanout) awaitLevel(ctx context.Context, srv *server, names []string) error {
	for _, name := range names {
		for {
			lag, err := srv.target.Lag(ctx, name)
			if err != nil {
				return err
			}
			if lag == 0 {
				break
			}
			load.Pause(ctx, 20*time.Millisecond)
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}
