package pg

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/loop"
)

const (
	// listenRetry is the pause before the next try after the listening connection failed.
	listenRetry = time.Second
	// pingInterval is how soon a connection that died without a word is noticed.
	pingInterval = 30 * time.Second
)

// A Listener hears the notifications of one channel.
type Listener struct {
	Config  *pgx.ConnConfig
	Channel string
	Begin   func()               // called each time it has begun to listen: what was announced before went unheard
	Heard   func(payload string) // called for each notification
	Failed  func(err error)      // called when the connection failed; it is made anew after a second
}

// Run listens until ctx ends, on a connection of its own.
func (l *Listener) Run(ctx context.Context) error {
	for {
		err := l.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		l.Failed(err)
		if !loop.Pause(ctx, listenRetry) {
			return nil
		}
	}
}

// once listens until the connection fails.
func (l *Listener) once(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, l.Config)
	if err != nil {
		return err
	}
	defer Close(ctx, conn)
	if _, err := conn.Exec(ctx, "listen "+l.Channel); err != nil {
		return err
	}
	l.Begin()
	for {
		wait, cancel := context.WithTimeout(ctx, pingInterval)
		n, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case err == nil:
			l.Heard(n.Payload)
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			if err := conn.Ping(ctx); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// Close closes a connection, also after ctx has ended.
func Close(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // there is nobody left to tell
}
