package webhook

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/deliverylog"
	"github.com/queued/queued/internal/pg"
)

// A LoggedDelivery is a delivery as the log of its source has it.
type LoggedDelivery struct {
	ID        int64     // among those of its source
	At        time.Time // when the request began
	Result    string    // as Each has it
	Code      string    // of what was refused: why
	Status    int       // of the answer
	MS        int64
	Address   string // of the connection; empty: it is not known
	RequestID string
	EventID   *int64 // the first event; nil: there is none, or it was published
	Position  *int64 // of that in the log
	Events    int
	Key       string // of the first event
	Size      *int64 // bytes of the body; nil: it was not read
	Body      string // the first KiB of what was refused, see Redact
}

// DeliveriesParams asks for one page of the log of a source, the latest delivery first.
type DeliveriesParams struct {
	Source string
	Result string     // empty: any
	From   *time.Time // inclusive; nil: since ever
	To     *time.Time // exclusive; nil: until now
	Limit  int        // zero: pg.DefaultPage
	Cursor string     // a DeliveriesPage.Next; empty for the first page
}

// A DeliveriesPage is one page of the log of a source.
type DeliveriesPage struct {
	Deliveries []LoggedDelivery
	Next       string     // the cursor of the following page, empty at the end
	Dropped    int64      // deliveries of the source that were not logged, because there were too many
	DroppedAt  *time.Time // the latest of them; nil: there was none
}

// An Answered is a delivery that was answered, for the log.
type Answered struct {
	Source    string
	Admission *Admission // nil: it was not admitted
	RequestID string
	Address   string
	Began     time.Time
	Status    int
	Code      string // of the problem that was answered; empty: there was none
	Body      []byte // nil: it was not read
	Result    Result
	Err       error // nil: it was taken
}

// Of the deliveries between two writes, these are kept. Those without a proof anybody may send: they get little.
var (
	takenLimit    = deliverylog.Limit{Name: 500, All: 1000}
	refusedLimit  = deliverylog.Limit{Name: 100, All: 500}
	unprovenLimit = deliverylog.Limit{Name: 20, All: 100}
)

// logRetry is the pause after a write of the log that failed.
const logRetry = 5 * time.Second

// The classes of deliveries, see agent.source_delivery_log.
const (
	classTaken = iota
	classRefused
	classUnproven
)

// A deliveryRow is a delivery as the database takes it.
type deliveryRow struct {
	Source    string    `json:"source"`
	Class     int       `json:"class"`
	At        time.Time `json:"at"`
	Result    string    `json:"result"`
	Code      string    `json:"code,omitzero"`
	Status    int       `json:"status"`
	MS        int64     `json:"ms"`
	Address   string    `json:"address,omitzero"`
	RequestID string    `json:"request_id,omitzero"`
	EventID   *int64    `json:"event_id,omitzero"`
	Position  *int64    `json:"position,omitzero"`
	Events    int       `json:"events"`
	Key       string    `json:"key,omitzero"`
	Size      *int      `json:"size,omitzero"`
	Body      string    `json:"body,omitzero"`
}

// maxText bounds the texts of a row, in bytes, besides the body.
const maxText = 255

// Log keeps a delivery for the log of its source, which is written a moment later. It returns at once: deliveries beyond what is written at a time are dropped, and counted.
func (s *Service) Log(d *Answered) {
	if errors.Is(d.Err, ErrNotFound) {
		return // it has no source
	}
	class := classUnproven
	switch {
	case d.Err == nil:
		class = classTaken
	case d.Admission != nil && d.Admission.isProven:
		class = classRefused
	}
	s.deliveries.Add(d.Source, class, func() deliveryRow {
		took := time.Since(d.Began)
		row := deliveryRow{
			Source: d.Source, Class: class, At: s.cfg.Database.Now().Add(-took), Result: results[d.result()], Code: d.code(), Status: d.Status, MS: took.Milliseconds(),
			Address: deliverylog.Text(d.Address, maxText), RequestID: deliverylog.Text(d.RequestID, maxText),
			Events: len(d.Result.IDs) + len(d.Result.Positions), Key: deliverylog.Text(d.Result.Key, maxText),
		}
		if len(d.Result.IDs) > 0 {
			row.EventID = &d.Result.IDs[0]
		}
		if len(d.Result.Positions) > 0 {
			row.Position = &d.Result.Positions[0]
		}
		if d.Body != nil {
			row.Size = new(len(d.Body))
			if d.Err != nil {
				row.Body = Redact(d.Body)
			}
		}
		return row
	})
}

// result returns the result of a delivery, an index into results.
func (d *Answered) result() int {
	switch {
	case d.Err == nil && d.Result.Challenge != "":
		return challenge
	case d.Err == nil && d.Result.Deduplicated:
		return duplicate
	case d.Err == nil:
		return received
	case d.Admission != nil && d.Admission.code != "":
		return rejected
	case errors.Is(d.Err, ErrPaused):
		return paused
	}
	if _, ok := errors.AsType[*RateError](d.Err); ok {
		return rateLimited
	}
	if _, ok := errors.AsType[*BodyError](d.Err); ok {
		return invalid
	}
	return failed
}

// code returns why a delivery was refused: what the owner of the source may know, rather than what its sender was told.
func (d *Answered) code() string {
	if d.Admission != nil && d.Admission.code != "" {
		return d.Admission.code
	}
	return d.Code
}

// writeDeliveries writes the deliveries since the last time, in one statement. Those of a source that another transaction has locked wait for the next time.
func (s *Service) writeDeliveries(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	err := s.deliveries.Flush(func(rows, dropped string) (locked []string, err error) {
		err = s.writes.Do(ctx, func(pool *pg.Pool) error {
			found, _ := pool.Query(ctx, `select s from agent_service.log_deliveries($1::text::jsonb, $2::text::jsonb) as s`, rows, dropped)
			locked, err = pgx.CollectRows(found, pgx.RowTo[string])
			return err
		})
		return locked, err
	})
	return wrap("logging deliveries", err)
}

// Deliveries lists the latest deliveries of a source: of the last seven days, the latest 1,000 that were taken, the latest 500 that its sender was refused, and the latest
// 100 without a proof. A delivery is listed about a second after its answer. It fails with ErrNotFound, ErrBadCursor, ErrQueryTimeout and an *InvalidError.
func (s *Service) Deliveries(ctx context.Context, p DeliveriesParams) (page DeliveriesPage, err error) {
	type listed struct {
		LoggedDelivery
		CursorAt pg.Timestamp
	}
	found, next, err := pg.ReadPage("source_deliveries", p.Cursor, p.Limit, func(after pg.Cursor, n int) (found []listed, err error) {
		err = pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, `select id, at, at as cursor_at, result, code, status, ms, address, request_id, event_id, position, events, key, size, body
				from agent.list_source_deliveries($1, $2, $3, $4, $5, $6, $7)`, p.Source, n, after.At, after.ID, pg.OrNull(p.Result), p.From, p.To)
			if found, err = pg.Collect[listed](rows); err != nil {
				return err
			}
			return tx.QueryRow(ctx, `select dropped, dropped_at from agent.dropped_source_deliveries($1)`, p.Source).Scan(&page.Dropped, &page.DroppedAt)
		})
		return found, err
	}, func(d *listed) pg.Cursor { return pg.Cursor{At: &d.CursorAt, ID: &d.ID} })
	for i := range found {
		page.Deliveries = append(page.Deliveries, found[i].LoggedDelivery)
	}
	page.Next = next
	return page, wrap("listing deliveries", err)
}
