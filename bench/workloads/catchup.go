package workloads

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Catchup is a log that is read from its beginning by one reader, a page after the other: over HTTP, as it is and with a match that takes nothing of
// it; by the statement alone that the service sends for a page; and as a log is read that goes by transactions. They take turns. The server that is read has begun
// when the log was full, so it has nothing of it in memory.
type Catchup struct {
	Events int `least:"1000" default:"300000" placeholder:"N" help:"How many events the log has."`
	Page   int `most:"1000" default:"1000" placeholder:"N" help:"Events in each page."`
	Rounds int `default:"5" placeholder:"N" help:"How often each way of reading reads all of it."`
}

func (*Catchup) name() string { return "catchup" }

func (*Catchup) check(cfg Config) error { return needOwnServers(cfg) }

// logReading is one way to read the log from its beginning to its end.
type logReading struct {
	*turns
	pages load.Histogram
	open  openReading
}

// openReading returns a function that reads the next page and reports whether there are more, and one that ends the reading.
type openReading = func(ctx context.Context) (page func() (more bool, err error), done func() error, err error)

func (w *Catchup) run(ctx context.Context, s *session) error {
	first, err := s.serve(ctx)
	if err != nil {
		return err
	}
	start, err := first.target.Head(ctx)
	if err != nil {
		return err
	}
	published := load.NewAccount()
	if err := s.load(ctx, first, publishedStatement, s.newQueue(), w.Events, published); err != nil {
		return err
	}
	if _, err := first.db.conn.Exec(ctx, xminStatement); err != nil {
		return fmt.Errorf("copying the log into a table that goes by transactions: %w", err)
	}
	srv, err := s.startSecond(ctx, first)
	if err != nil {
		return err
	}
	conn := first.db.conn
	srv.db = first.db // for its counters
	defer func() { srv.db = nil }()
	_, _ = conn.Exec(ctx, checkpointStatement) // not every user may ask for it

	readings := []*logReading{
		{turns: newTurns("HTTP"), open: w.overHTTP(srv, start, "", published)},
		{turns: newTurns("HTTP, a match that takes nothing"), open: w.overHTTP(srv, start, "match="+url.QueryEscape(`{"d":["x"]}`), nil)},
		{turns: newTurns("SQL"), open: w.inSQL(conn, start)},
		{turns: newTurns("SQL, by transactions"), open: w.byTransactions(conn)},
	}
	for _, r := range readings {
		r.pages = load.NewHistogram()
	}
	counters := newTurnReader(srv)
	for round := range w.Rounds + 1 {
		order := slices.Clone(readings)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, r := range order {
			s.progress.show("round %d of %d: %s", round, w.Rounds, r.label)
			if err := w.turn(ctx, r, counters, round > 0); err != nil {
				return fmt.Errorf("%s: %w", r.label, err)
			}
		}
	}
	for _, r := range readings {
		result := r.result(false)
		result.Events = nil
		result.Latency = map[string]load.Latency{"page": r.pages.Latency()}
		s.add(result)
	}
	s.compare("HTTP over SQL", readings[0].over(readings[2].turns))
	s.compare("HTTP, processor time over SQL", readings[0].costOver(readings[2].turns))
	s.compare("SQL over SQL by transactions", readings[2].over(readings[3].turns))
	balance, err := published.Balance(func(int64) (bool, error) { return false, nil })
	s.add(&report.Result{Label: "read over HTTP", Balance: &balance})
	return err
}

// turn reads all of the log once.
func (w *Catchup) turn(ctx context.Context, r *logReading, counters *turnReader, counts bool) error {
	page, done, err := r.open(ctx)
	if err != nil {
		return err
	}
	before, err := counters.read(ctx)
	for more := true; err == nil && more; {
		begin := time.Now()
		more, err = page()
		if counts {
			r.pages.Add(time.Since(begin))
		}
		if ctx.Err() != nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		_ = done()
		return err
	}
	after, err := counters.read(ctx)
	if err == nil && counts {
		total := load.NewCounts()
		total.Events[load.Claim] = int64(w.Events)
		r.add(total, int64(w.Events), before, after)
	}
	if ended := done(); err == nil {
		err = ended
	}
	return err
}

// maxPageBytes is that of the service.
const maxPageBytes = 4 << 20

// overHTTP reads over HTTP. The events of the first reading are noted as acked in the account, where there is one; every other time has to have the same
// order.
func (w *Catchup) overHTTP(srv *server, start int64, query string, published *load.Account) openReading {
	var first *load.LogReader
	return func(ctx context.Context) (func() (bool, error), func() error, error) {
		reader, err := srv.target.ReadLog(ctx, query, w.Page, start)
		if err != nil {
			return nil, nil, err
		}
		var each func(position int64)
		if first == nil && published != nil {
			each = func(position int64) {
				published.Claimed(position)
				published.Acked(position)
			}
		}
		page := func() (bool, error) {
			_, err := reader.Page(each)
			return !reader.IsLevel(), err
		}
		done := func() error {
			reader.Close()
			if first == nil {
				first = reader
			}
			return reader.SameOrder(&first.Order)
		}
		return page, done, nil
	}
}

// inSQL reads by the statement that the service sends.
func (w *Catchup) inSQL(conn *pgx.Conn, start int64) openReading {
	const position = 3 // its column
	return func(ctx context.Context) (func() (bool, error), func() error, error) {
		after, read := start, 0
		page := func() (bool, error) {
			rows, _ := conn.Query(ctx, readLogStatement, after, w.Page, maxPageBytes, []string(nil))
			defer rows.Close()
			for rows.Next() {
				if value := rows.RawValues()[position]; value != nil {
					after = int64(binary.BigEndian.Uint64(value))
					read++
				}
			}
			return read < w.Events, rows.Err()
		}
		return page, func() error { return w.checkCount(read) }, nil
	}
}

// byTransactions reads the copy of the log that goes by transactions.
func (w *Catchup) byTransactions(conn *pgx.Conn) openReading {
	return func(ctx context.Context) (func() (bool, error), func() error, error) {
		var offset int64
		var transaction uint64
		read := 0
		page := func() (bool, error) {
			rows, _ := conn.Query(ctx, readXminStatement, transaction, offset, w.Page)
			defer rows.Close()
			before := read
			for rows.Next() {
				values := rows.RawValues()
				offset = int64(binary.BigEndian.Uint64(values[0]))
				transaction = binary.BigEndian.Uint64(values[1])
				read++
			}
			if rows.Err() == nil && read == before {
				load.Pause(ctx, time.Millisecond) // an older transaction is still open somewhere on the server
			}
			return read < w.Events, rows.Err()
		}
		return page, func() error { return w.checkCount(read) }, nil
	}
}

func (w *Catchup) checkCount(read int) error {
	if read != w.Events {
		return fmt.Errorf("%d of %d events were read", read, w.Events)
	}
	return nil
}
