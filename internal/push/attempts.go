package push

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/deliverylog"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
)

// An AttemptOutcome is what became of an event after an attempt to push it.
type AttemptOutcome string

// The outcomes of attempts.
const (
	AttemptDelivered AttemptOutcome = "delivered"  // the endpoint has taken it
	AttemptRetried   AttemptOutcome = "retried"    // it waits for its next attempt
	AttemptFailed    AttemptOutcome = "failed"     // it is in history as failed
	AttemptHeld      AttemptOutcome = "held"       // the endpoint asked for a pause, or was disabled: the attempt does not count
	AttemptLeaseLost AttemptOutcome = "lease_lost" // it was taken away, or the outcome could not be written: it may be sent again
)

// An Attempt is an attempt to push an event, as the log has it.
type Attempt struct {
	ID        int64     // among those of its queue
	At        time.Time // when the request began
	Outcome   AttemptOutcome
	EventID   int64
	Type      string
	Number    int32 `db:"attempt"` // of the attempt
	Status    int   // zero: there was no answer
	MS        int64
	Error     string     // why there was no answer, or no request
	Body      string     // the first KiB of the body of the answer
	NextAt    *time.Time // when the event is due again; nil: it is not, or that is not known
	SendAgain string     // "requeue": by a requeue of the event, which is in history; "run": by running the event, which waits; empty: not at the moment
}

// AttemptsParams asks for one page of the attempts to push the events of a queue, the latest first.
type AttemptsParams struct {
	Queue   string
	Status  int            // zero: any
	Outcome AttemptOutcome // empty: any
	Event   int64          // zero: any
	From    *time.Time     // inclusive; nil: since ever
	To      *time.Time     // exclusive; nil: until now
	Limit   int            // zero: pg.DefaultPage
	Cursor  string         // an AttemptsPage.Next; empty for the first page
}

// An AttemptsPage is one page of attempts.
type AttemptsPage struct {
	Attempts  []Attempt
	Next      string     // the cursor of the following page, empty at the end
	Dropped   int64      // attempts of the queue that were not logged, because there were too many
	DroppedAt *time.Time // the latest of them; nil: there was none
}

const (
	logInterval = time.Second // between two writes of the log

	maxErrorText = 2048 // bytes of an error in the log
)

// Of the attempts between two writes, these are kept.
var (
	deliveredLimit   = deliverylog.Limit{Name: 1000, All: 1000} // as many as the log of a queue has
	undeliveredLimit = deliverylog.Limit{Name: 500, All: 1000}
)

// The classes of attempts, see agent.push_delivery_log.
const (
	classDelivered   = 0
	classUndelivered = 1
)

// An attemptRow is an attempt as the database takes it.
type attemptRow struct {
	Queue   string         `json:"queue"`
	Class   int            `json:"class"`
	At      time.Time      `json:"at"`
	Outcome AttemptOutcome `json:"outcome"`
	EventID int64          `json:"event_id"`
	Type    string         `json:"type,omitzero"`
	Attempt int32          `json:"attempt"`
	Status  int            `json:"status,omitzero"`
	MS      int64          `json:"ms"`
	Error   string         `json:"error,omitzero"`
	Body    string         `json:"body,omitzero"`
	NextAt  time.Time      `json:"next_at,omitzero"`
}

// logAttempt keeps an attempt for the next write of the log.
func (s *Service) logAttempt(event *queue.Event, o *outcome, end attemptEnd) {
	class := classUndelivered
	if end.outcome == AttemptDelivered {
		class = classDelivered
	}
	s.attempts.Add(event.Queue, class, func() attemptRow {
		r := attemptRow{
			Queue: event.Queue, Class: class, At: o.at, Outcome: end.outcome, EventID: event.ID, Type: event.Type,
			Attempt: event.Attempts, Status: o.status, MS: o.took.Milliseconds(), Body: deliverylog.Text(o.excerpt, deliverylog.MaxBody), NextAt: end.nextAt,
		}
		if o.status == 0 {
			r.Error = deliverylog.Text(o.detail, maxErrorText)
		}
		return r
	})
}

// writeAttempts writes the attempts since the last time, in one statement. Those of a push that another transaction has locked wait for the next time.
func (s *Service) writeAttempts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	err := s.attempts.Flush(func(rows, dropped string) (locked []string, err error) {
		err = s.writes.Do(ctx, func(pool *pg.Pool) error {
			found, _ := pool.Query(ctx, `select q from agent_service.log_pushes($1::text::jsonb, $2::text::jsonb) as q`, rows, dropped)
			locked, err = pgx.CollectRows(found, pgx.RowTo[string])
			return err
		})
		return locked, err
	})
	return wrap("logging attempts", err)
}

// Attempts lists the latest attempts to push the events of a queue: of the last seven days, the latest 1,000 that were delivered and the latest 5,000 others. An attempt is
// listed about a second after its end. It fails with ErrNotFound, ErrBadCursor, ErrQueryTimeout and an *InvalidError.
func (s *Service) Attempts(ctx context.Context, p AttemptsParams) (page AttemptsPage, err error) {
	type listed struct {
		Attempt
		Position pg.Timestamp
	}
	found, next, err := pg.ReadPage("push_deliveries", p.Cursor, p.Limit, func(after pg.Cursor, n int) (found []listed, err error) {
		err = pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, `select id, at, at as position, outcome, event_id, type, attempt, status, ms, error, body, next_at, send_again
				from agent.list_push_deliveries($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
				p.Queue, n, after.At, after.ID, pg.OrNull(p.Status), pg.OrNull(string(p.Outcome)), pg.OrNull(p.Event), p.From, p.To)
			if found, err = pg.Collect[listed](rows); err != nil {
				return err
			}
			return tx.QueryRow(ctx, `select dropped, dropped_at from agent.dropped_push_deliveries($1)`, p.Queue).Scan(&page.Dropped, &page.DroppedAt)
		})
		return found, err
	}, func(a *listed) pg.Cursor { return pg.Cursor{At: &a.Position, ID: &a.ID} })
	for i := range found {
		page.Attempts = append(page.Attempts, found[i].Attempt)
	}
	page.Next = next
	return page, wrap("listing attempts", err)
}
