package pg

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// listenRetry is the pause after the listening connection failed.
	listenRetry = time.Second
	// pingAfter is the time without notifications after which the server is pinged. With pingTimeout it bounds how long a server that
	// hangs goes unnoticed.
	pingAfter = 2 * time.Second
	// The listener sends itself a notification every selfTestInterval, which must arrive within selfTestTimeout.
	selfTestInterval = time.Minute
	selfTestTimeout  = 5 * time.Second
)

// A Listener receives the notifications of one channel.
type Listener struct {
	Database *Database
	Pool     *Pool // sends the notifications of the self-test
	Channel  string
	Started  func()               // called when it has begun to listen, also again: earlier notifications may be lost
	Received func(payload string) // called for each notification
	Failed   func(err error)      // called when the connection failed; the next one is made after a second

	isReceiving atomic.Bool
}

// errNotReceiving is the error of a failed self-test.
var errNotReceiving = errors.New("a notification that was sent did not arrive: the connection leads through a pooler in transaction mode; " +
	"set QUEUED_LISTEN_URL to a direct connection")

// IsReceiving reports whether the latest self-test succeeded.
func (l *Listener) IsReceiving() bool { return l.isReceiving.Load() }

// Run listens until ctx ends, on a connection of its own.
func (l *Listener) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := l.listenOnce(ctx)
		l.isReceiving.Store(false)
		if ctx.Err() != nil || errors.Is(err, errReset) {
			continue
		}
		l.Failed(err)
		if errors.Is(err, errNotReceiving) {
			Pause(ctx, selfTestInterval)
		} else {
			Pause(ctx, listenRetry)
		}
	}
}

// errReset ends a connection because of Database.Reset.
var errReset = errors.New("the connections were reset")

// listenOnce listens until the connection fails.
func (l *Listener) listenOnce(ctx context.Context) error {
	conn, err := l.Database.listen.connect(ctx)
	if err != nil {
		return err
	}
	reset := l.Database.Resets()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-reset:
			cancel(errReset)
		case <-ctx.Done():
		}
	}()
	defer l.Database.Close(ctx, conn)
	own := "agent_test_" + rand.Text() // a channel for the self-test only
	if err := bounded(ctx, func(ctx context.Context) error {
		_, err := conn.Exec(ctx, "listen "+pgx.Identifier{own}.Sanitize()+"; listen "+l.Channel, pgx.QueryExecModeSimpleProtocol)
		return err
	}); err != nil {
		return err
	}
	l.Started()

	var (
		nextTest time.Time
		sent     time.Time // when the current self-test was sent; zero: there is none
	)
	for {
		if sent.IsZero() && time.Now().After(nextTest) {
			if err := l.notify(ctx, own); err == nil { // other errors are not about listening
				sent = time.Now()
			}
			nextTest = time.Now().Add(selfTestInterval)
		}
		wait, cancel := context.WithTimeout(ctx, pingAfter)
		n, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case errors.Is(context.Cause(ctx), errReset):
			return errReset
		case err == nil && n.Channel == own:
			sent = time.Time{}
			l.isReceiving.Store(true)
		case err == nil:
			l.Received(n.Payload)
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			if err := ping(ctx, conn); err != nil {
				return err
			}
		default:
			return err
		}
		if !sent.IsZero() && time.Since(sent) > selfTestTimeout {
			return errNotReceiving
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

// bounded runs do with ConnectTimeout as its time limit.
func bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, ConnectTimeout)
	defer cancel()
	return do(ctx)
}
