package pg

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/loop"
)

const (
	// listenRetry is the pause before the next try after the listening connection failed.
	listenRetry = time.Second
	// quietFor is how long nothing may be heard before the server is asked whether it is there: how soon a server that hangs is
	// noticed, together with pingTimeout.
	quietFor = 2 * time.Second
	// listenTestInterval is the time between two tests of whether notifications are heard, and listenTestLimit how long one may take
	// to arrive.
	listenTestInterval = time.Minute
	listenTestLimit    = 5 * time.Second
)

// A Listener hears the notifications of one channel.
type Listener struct {
	Database *Database
	Pool     *Pool // through which it notifies itself, to see whether it hears
	Channel  string
	Begin    func()               // called each time it has begun to listen: what was announced before went unheard
	Heard    func(payload string) // called for each notification
	Failed   func(err error)      // called when the connection failed; it is made anew after a second

	hears atomic.Bool
}

// errDeaf is what a Listener fails with that does not hear its own notifications.
var errDeaf = errors.New("a notification that was sent was not heard: the connection leads through a pooler in transaction mode; " +
	"set QUEUED_LISTEN_URL to a direct connection")

// Hears reports whether notifications arrive, as far as is known.
func (l *Listener) Hears() bool { return l.hears.Load() }

// Run listens until ctx ends, on a connection of its own.
func (l *Listener) Run(ctx context.Context) error {
	for {
		err := l.once(ctx)
		l.hears.Store(false)
		pause := listenRetry
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errMoved):
			continue
		case errors.Is(err, errDeaf):
			pause = listenTestInterval
		}
		l.Failed(err)
		if !loop.Pause(ctx, pause) {
			return nil
		}
	}
}

// errMoved ends a connection because of Database.Reset.
var errMoved = errors.New("all connections are made anew")

// once listens until the connection fails.
func (l *Listener) once(ctx context.Context) error {
	conn, err := l.Database.listen.connect(ctx)
	if err != nil {
		return err
	}
	moved := l.Database.Resets()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-moved:
			cancel(errMoved)
		case <-ctx.Done():
		}
	}()
	defer l.Database.Close(ctx, conn)
	own := "agent_test_" + rand.Text() // others need not hear of tests
	if err := bounded(ctx, func(ctx context.Context) error {
		if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{own}.Sanitize(), pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, "listen "+l.Channel, pgx.QueryExecModeSimpleProtocol)
		return err
	}); err != nil {
		return err
	}
	l.Begin()

	var (
		nextTest time.Time
		sent     time.Time // when the test under way was sent; zero: none is
	)
	for {
		if sent.IsZero() && time.Now().After(nextTest) {
			if err := l.notify(ctx, own); err == nil { // else the database has other troubles
				sent = time.Now()
			}
			nextTest = time.Now().Add(listenTestInterval)
		}
		wait, cancel := context.WithTimeout(ctx, quietFor)
		n, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case errors.Is(context.Cause(ctx), errMoved):
			return errMoved
		case err == nil && n.Channel == own:
			sent = time.Time{}
			l.hears.Store(true)
		case err == nil:
			l.Heard(n.Payload)
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			if err := ping(ctx, conn); err != nil {
				return err
			}
		default:
			return err
		}
		if !sent.IsZero() && time.Since(sent) > listenTestLimit {
			return errDeaf
		}
	}
}

// notify sends a notification through the pool.
func (l *Listener) notify(ctx context.Context, channel string) error {
	return bounded(ctx, func(ctx context.Context) error {
		_, err := l.Pool.Exec(ctx, `select pg_notify($1, '')`, channel)
		return err
	})
}

// bounded runs do within the time that connecting may take.
func bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, ConnectTimeout)
	defer cancel()
	return do(ctx)
}

// Close closes a connection that Connect returned, also after ctx has ended.
func (db *Database) Close(ctx context.Context, conn *pgx.Conn) {
	db.ended(conn.PgConn())
	Close(ctx, conn)
}

// Close closes a connection, also after ctx has ended.
func Close(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // there is nobody left to tell
}
