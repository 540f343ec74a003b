package pg

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/failure"
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
	// maxUndelivered is how many notifications a subscriber may be behind.
	maxUndelivered = 1000
)

// A Subscriber is told of the notifications of one channel. Its functions are called one at a time, in a goroutine of its own: one that takes long
// delays no other subscriber. Of one that is more than a thousand notifications behind, those are dropped, and it begins again with Started.
type Subscriber struct {
	Channel  string               // an SQL identifier
	Started  func()               // called when it has begun to listen, also again: earlier notifications may be lost
	Received func(payload string) // called for each notification
	Failed   func(err error)      // called when the connection failed or was reset, or none can be made; it is tried again after a second. Nil: nothing is done
}

// errNotReceiving is the error of a failed self-test.
var errNotReceiving = errors.New("a notification that was sent did not arrive: the connection leads through a pooler in transaction mode; " +
	"set QUEUED_LISTEN_URL to a direct connection")

// Listen calls the functions of a subscriber until ctx ends. All subscribers of a Database share one connection, which is open while there are any.
func (db *Database) Listen(ctx context.Context, s Subscriber) {
	sub := &subscription{Subscriber: s, woken: NewSignal()}
	db.listener.join(db, sub) //nolint:contextcheck // the connection is that of all subscribers
	defer db.listener.leave(sub)
	sub.run(ctx)
}

// IsListening reports whether notifications arrive: there are subscribers, and the latest self-test succeeded.
func (db *Database) IsListening() bool { return db.listener.isReceiving.Load() }

// MissesNothing reports whether notifications arrive, and go on to as long as nothing is noticed: connections lead to PostgreSQL and not to a pooler. Behind one, calls
// may reach another server from one moment to the next, while notifications are those of the server before.
func (db *Database) MissesNothing() bool {
	return db.direct && db.isListenDirect && db.IsListening()
}

// A listener is the connection of all subscribers.
type listener struct {
	isConnected atomic.Bool
	isReceiving atomic.Bool

	mu            sync.Mutex // guards the fields below
	subscriptions map[*subscription]struct{}
	stop          context.CancelFunc // of the goroutine that listens; nil: there is none
	done          chan struct{}      // closed when that goroutine has ended; nil: there never was one
	interrupt     context.CancelFunc // ends the wait for notifications; nil: it does not wait
}

func (l *listener) join(db *Database, sub *subscription) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.subscriptions == nil {
		l.subscriptions = make(map[*subscription]struct{})
	}
	l.subscriptions[sub] = struct{}{}
	if l.stop != nil {
		if l.interrupt != nil {
			l.interrupt()
		}
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	before, done := l.done, make(chan struct{})
	l.stop, l.done = stop, done
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		l.run(ctx, db)
	}()
}

// leave returns when no function of the subscriber is called any more; the last one to leave closes the connection.
func (l *listener) leave(sub *subscription) {
	l.mu.Lock()
	delete(l.subscriptions, sub)
	stop, done := l.stop, l.done
	isLast := len(l.subscriptions) == 0
	if isLast {
		l.stop = nil
	}
	l.mu.Unlock()
	if isLast {
		stop()
		<-done
	}
}

// each calls f for every subscriber.
func (l *listener) each(f func(*subscription)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for sub := range l.subscriptions {
		f(sub)
	}
}

// run listens until ctx ends.
func (l *listener) run(ctx context.Context, db *Database) {
	for ctx.Err() == nil {
		err := l.listenOnce(ctx, db)
		wasConnected := l.isConnected.Swap(false)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errReset) {
			continue
		}
		db.log.Warn().Func(failure.Of(err)).Msg("not listening for notifications: changes are polled for until the connection is back")
		if !wasConnected {
			l.each(func(sub *subscription) { sub.put(delivery{failure: err}) })
		}
		pause := listenRetry
		if errors.Is(err, errNotReceiving) {
			pause = selfTestInterval
		}
		Pause(ctx, pause)
	}
}

// lose tells subscribers that notifications arrive no longer.
func (l *listener) lose(err error) {
	l.isReceiving.Store(false)
	l.each(func(sub *subscription) {
		sub.isStarted = false
		if err != nil {
			sub.put(delivery{failure: err})
		}
	})
}

// errReset ends a connection because of Database.Reset.
var errReset = errors.New("the connections were reset")

// listenOnce listens until the connection fails.
func (l *listener) listenOnce(ctx context.Context, db *Database) (err error) {
	running := ctx
	var pool *Pool // sends the notifications of the self-test
	pools, err := db.OpenPools(ctx, PoolSpec{To: &pool, Config: ControlPool})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = pools.CloseBy(ctx) // nothing is lost with them
	}()
	conn, err := db.listen.connect(ctx)
	if err != nil {
		return err
	}
	l.isConnected.Store(true)
	reset := db.Resets()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-reset:
			cancel(errReset)
		case <-ctx.Done():
		}
	}()
	defer db.Close(ctx, conn)
	defer func() { // before the connection is closed, which may take a second, and another one is made, which may take longer
		reason := err
		if running.Err() != nil { // nobody is left to tell
			reason = nil
		}
		l.lose(reason)
	}()
	test := selfTest{channel: "agent_test_" + rand.Text(), sent: make(chan bool, 1)} // the channel is for the self-test only
	if err := listenTo(ctx, conn, pgx.Identifier{test.channel}.Sanitize()); err != nil {
		return err
	}
	channels := make(map[string]bool)
	for {
		wait, err := l.subscribe(ctx, conn, channels)
		if err != nil {
			if errors.Is(context.Cause(ctx), errReset) {
				return errReset
			}
			return err
		}
		test.send(ctx, pool)
		waiting, cancel := context.WithTimeout(wait, pingAfter)
		n, err := conn.WaitForNotification(waiting)
		cancel()
		isInterrupted := wait.Err() != nil
		l.endWait()
		switch {
		case errors.Is(context.Cause(ctx), errReset):
			return errReset
		case err == nil && n.Channel == test.channel:
			test.arrived()
			l.isReceiving.Store(true)
		case err == nil:
			l.each(func(sub *subscription) {
				if sub.Channel == n.Channel && sub.isStarted {
					sub.put(delivery{payload: n.Payload})
				}
			})
		case ctx.Err() == nil && isInterrupted && !conn.IsClosed():
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			if err := ping(ctx, conn); err != nil {
				return err
			}
		default:
			return err
		}
		if test.isOverdue() {
			return errNotReceiving
		}
	}
}

// subscribe listens to the channels of subscribers that are new, and tells those that it has begun. It returns a context in which to wait for notifications: it
// ends when there is another subscriber.
func (l *listener) subscribe(ctx context.Context, conn *pgx.Conn, channels map[string]bool) (wait context.Context, err error) {
	for {
		wait, interrupt := context.WithCancel(ctx)
		l.mu.Lock()
		added := make(map[string]bool)
		for sub := range l.subscriptions {
			if !channels[sub.Channel] {
				added[sub.Channel] = true
			} else if !sub.isStarted {
				sub.isStarted = true
				sub.put(delivery{isStart: true})
			}
		}
		if len(added) == 0 {
			l.interrupt = interrupt
			l.mu.Unlock()
			return wait, nil
		}
		l.mu.Unlock()
		interrupt()
		if err := listenTo(ctx, conn, slices.Sorted(maps.Keys(added))...); err != nil {
			return nil, err
		}
		maps.Copy(channels, added)
	}
}

// endWait ends the context of subscribe.
func (l *listener) endWait() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interrupt()
	l.interrupt = nil
}

// listenTo makes a session listen to channels, which are SQL identifiers, in one round trip.
func listenTo(ctx context.Context, conn *pgx.Conn, channels ...string) error {
	sql := "listen " + strings.Join(channels, "; listen ")
	return bounded(ctx, func(ctx context.Context) error {
		_, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// A selfTest is the notification that a listener sends itself, from another session.
type selfTest struct {
	channel string
	sent    chan bool // receives when a notification was sent: whether it was
	isSent  bool      // one is being sent, or has to arrive
	sentAt  time.Time // zero: it is being sent, or there is none
	next    time.Time
}

// send sends a notification when that is due. It does not wait for a connection of the pool.
func (t *selfTest) send(ctx context.Context, pool *Pool) {
	select {
	case isSent := <-t.sent:
		switch {
		case !isSent: // there was an error, which is not about listening
			t.isSent, t.next = false, time.Now().Add(listenRetry)
		case t.isSent: // it has not arrived yet
			t.sentAt = time.Now()
		}
	default:
	}
	if t.isSent || time.Now().Before(t.next) {
		return
	}
	t.isSent, t.next = true, time.Now().Add(selfTestInterval)
	go func() {
		err := bounded(ctx, func(ctx context.Context) error {
			_, err := pool.Exec(ctx, `select pg_notify($1, '')`, t.channel)
			return err
		})
		t.sent <- err == nil
	}()
}

func (t *selfTest) arrived() { t.isSent, t.sentAt = false, time.Time{} }

// isOverdue reports whether a notification that was sent should have arrived.
func (t *selfTest) isOverdue() bool {
	return !t.sentAt.IsZero() && time.Since(t.sentAt) > selfTestTimeout
}

// A subscription is a subscriber with what it has not been told yet.
type subscription struct {
	Subscriber
	woken     Signal
	isStarted bool // the connection listens for it; guarded by listener.mu

	mu   sync.Mutex
	left []delivery
}

// A delivery is a call of one of the functions of a subscriber.
type delivery struct {
	isStart bool
	failure error // not nil: the connection failed
	payload string
}

// put has the subscriber be told, soon.
func (sub *subscription) put(d delivery) {
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if sub.left = append(sub.left, d); len(sub.left) > maxUndelivered {
		sub.left = append(sub.left[:0], delivery{isStart: true})
	}
	sub.woken.Send()
}

// run tells the subscriber what it has to be told until ctx ends.
func (sub *subscription) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.woken:
		}
		sub.mu.Lock()
		left := sub.left
		sub.left = nil
		sub.mu.Unlock()
		for _, d := range left {
			switch {
			case ctx.Err() != nil:
				return
			case d.isStart:
				sub.Started()
			case d.failure == nil:
				sub.Received(d.payload)
			case sub.Failed != nil:
				sub.Failed(d.failure)
			}
		}
	}
}

// bounded runs do with ConnectTimeout as its time limit.
func bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, ConnectTimeout)
	defer cancel()
	return do(ctx)
}
