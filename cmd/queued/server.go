package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	httpapi "github.com/queued/queued/internal/http"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
)

// door is the HTTP server. It stands open from the start on, and lets requests in once there is somebody to serve them.
type door struct {
	server  *http.Server
	handler atomic.Pointer[http.Handler]
	served  *part
}

// openDoor serves on listener, at first what starting has to say.
func openDoor(listener net.Listener, starting *httpapi.Server, queryTimeout time.Duration) *door {
	d := &door{server: starting.HTTPServer()}
	d.let(starting)
	d.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*d.handler.Load()).ServeHTTP(w, r) })
	d.server.WriteTimeout += queryTimeout // however long a query may take, it has to be answered
	d.served = start(func() error { return d.server.Serve(listener) })
	return d
}

// let has api answer from now on.
func (d *door) let(api *httpapi.Server) {
	handler := api.Handler()
	d.handler.Store(&handler)
}

// shut cuts off whatever is still under way.
func (d *door) shut() {
	_ = d.server.Close() // nobody is there to be told
	<-d.served.done
}

// server is everything that runs while the queue is served.
type server struct {
	settings  *settings
	svc       *queue.Service
	schedules *schedule.Service
	api       *httpapi.Server
	door      *door
	closing   func() context.Context // how long what is closed after the door may take, in all
	db        *database
	logger    zerolog.Logger
}

// errUnasked stands for the error of a part that ended without one, and without being told to.
var errUnasked = errors.New("nobody asked it to")

// run serves until ctx ends or a part fails, then shuts down and returns what
// failed. It calls ready once requests are answered.
func (s *server) run(ctx context.Context, ready func()) error {
	// The parts end in an order of their own, not all at once with ctx.
	loopsCtx, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLoops()
	loops := start(func() error {
		g, ctx := errgroup.WithContext(loopsCtx)
		g.Go(func() error { return s.svc.Run(ctx) })
		g.Go(func() error { return s.schedules.Run(ctx) })
		return g.Wait()
	})
	s.door.let(s.api)
	served := s.door.served
	ready()

	var failure error
	select {
	case <-ctx.Done():
		s.logger.Info().Msg("stopping: finishing what is under way; a second signal ends it at once")
	case <-loops.done:
		failure = fmt.Errorf("the loops ended: %w", cmp.Or(loops.err, errUnasked))
	case <-served.done:
		failure = fmt.Errorf("serving HTTP ended: %w", cmp.Or(served.err, errUnasked))
	case <-s.db.died():
		failure = s.db.server.Err()
	}
	if failure != nil {
		s.logger.Error().Str("error", redact(failure.Error())).Msg("stopping because a part failed")
	}

	s.api.Drain()
	if failure == nil {
		select {
		case <-time.After(s.settings.DrainDelay):
		case <-s.db.died():
		}
	}
	s.svc.Drain()
	err := s.closeDoor(ctx, s.door.server)
	<-served.done

	stopLoops()
	select {
	case <-loops.done:
	case <-s.closing().Done():
		err = errors.Join(err, fmt.Errorf("%w: the loops did not end", errUnclean))
	}
	return errors.Join(failure, err)
}

// closeDoor lets the requests under way finish, and cuts off those that take too long.
func (s *server) closeDoor(ctx context.Context, door *http.Server) error {
	limit := s.settings.ShutdownTimeout
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if err := door.Shutdown(ctx); err != nil {
		_ = door.Close()
		return fmt.Errorf("%w: requests still under way after %s were cut off (QUEUED_SHUTDOWN_TIMEOUT)", errUnclean, limit)
	}
	return nil
}

// part is something that runs beside others.
type part struct {
	done chan struct{} // closed when it has ended
	err  error         // why; to be read after done
}

// start runs f as a part.
func start(f func() error) *part {
	p := &part{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = f()
	}()
	return p
}
