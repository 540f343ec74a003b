package cell

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pg"
)

// Defaults.
const (
	DefaultQueryTimeout = 5 * time.Second // of one statement
	DefaultKeyRetention = 24 * time.Hour  // as that of the queue
)

// Config holds the settings of a Service. Database is required.
type Config struct {
	Database     *pg.Database
	Number       int            // of the cell that the database is, or becomes if it is new; zero: home
	QueryTimeout time.Duration  // zero: DefaultQueryTimeout
	KeyRetention time.Duration  // how long inserts with an idempotency key go where they went before, when a queue is placed elsewhere; zero: DefaultKeyRetention
	Logger       zerolog.Logger // zero: silent
}

// Service knows which cell a database is. It is safe for concurrent use, and any number of them, in any number of processes, may share one database.
type Service struct {
	cfg    Config
	pool   *pg.Pool
	writes pg.Writes
	pools  pg.Pools

	drained chan struct{} // closed by Drain
	drain   sync.Once

	mu      sync.Mutex    // guards the field below
	changed chan struct{} // closed when placements may have changed, and then another
}

// Open returns a Service on a migrated database, which is the cell of this number from then on. It fails with an *OtherCellError if it is another one, and with
// ErrUnavailable when the database cannot be reached. Close it.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	cfg.QueryTimeout = cmp.Or(cfg.QueryTimeout, DefaultQueryTimeout)
	cfg.KeyRetention = cmp.Or(cfg.KeyRetention, DefaultKeyRetention)
	s := &Service{cfg: cfg, drained: make(chan struct{}), changed: make(chan struct{})}
	var err error
	s.pools, err = cfg.Database.OpenPools(ctx, append([]pg.PoolSpec{{To: &s.pool, Config: pg.ControlPool}}, s.writes.Specs(pg.ControlPool, cfg.QueryTimeout)...)...)
	if err != nil {
		return nil, err
	}
	if err := s.take(ctx); err != nil {
		_ = s.pools.CloseBy(ctx) // nothing is lost with them
		return nil, err
	}
	return s, nil
}

// take makes the database the cell of Config.Number.
func (s *Service) take(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	type taken struct {
		Number int
		HasIDs bool
	}
	got, err := pg.WriteOne[taken](ctx, &s.writes, `select number, has_ids from agent_service.take_cell($1)`, s.cfg.Number)
	switch {
	case err != nil:
		return wrap("taking the number of the cell", err)
	case got.Number != s.cfg.Number:
		return &OtherCellError{Asked: s.cfg.Number, Found: got.Number, HasIDs: got.HasIDs}
	}
	return nil
}

// Number returns the number of the cell.
func (s *Service) Number() int { return s.cfg.Number }

// Get returns what is known of the cell.
func (s *Service) Get(ctx context.Context) (Cell, error) {
	rows, _ := s.pool.Query(ctx, `select number, first_id, last_id, ids_left, placement_version, keys_version, epoch from agent_service.get_cell()`)
	c, err := pg.CollectOne[Cell](rows)
	return c, wrap("reading the cell", err)
}

// WaitingQueues returns the names of queues that have an event waiting, or leased, in order: up to limit after a cursor, and the cursor of the next page, empty on the
// last one. It fails with ErrBadCursor and ErrQueryTimeout.
func (s *Service) WaitingQueues(ctx context.Context, cursor string, limit int) (queues []string, next string, err error) {
	queues, next, err = pg.ReadPage("waiting", cursor, limit, func(after pg.Cursor, n int) (found []string, err error) {
		err = pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, `select agent_service.list_waiting_queues($1, $2)`, after.Name, n)
			found, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		return found, err
	}, func(queue *string) pg.Cursor { return pg.Cursor{Name: queue} })
	return queues, next, wrap("listing queues with events", err)
}

// Run tells those who wait of changes of placements, until ctx ends. Without it they look every second.
func (s *Service) Run(ctx context.Context) error {
	s.cfg.Database.Listen(ctx, pg.Subscriber{Channel: "agent_placement", Started: s.wake, Received: func(string) { s.wake() }, Failed: func(error) { s.wake() }})
	return nil
}

// wake has those who wait for changes look.
func (s *Service) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// changes returns a channel that is closed when placements may have changed.
func (s *Service) changes() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Drain has those who wait for changes return. It may be repeated.
func (s *Service) Drain() { s.drain.Do(func() { close(s.drained) }) }

// Close closes the connections, by the end of ctx. Run must have returned.
func (s *Service) Close(ctx context.Context) error { return s.pools.CloseBy(ctx) }
