package cell

import (
	"cmp"
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pg"
)

// DefaultQueryTimeout bounds one statement.
const DefaultQueryTimeout = 5 * time.Second

// Config holds the settings of a Service. Database is required.
type Config struct {
	Database     *pg.Database
	Number       int            // of the cell that the database is, or becomes if it is new; zero: home
	QueryTimeout time.Duration  // zero: DefaultQueryTimeout
	Logger       zerolog.Logger // zero: silent
}

// Service knows which cell a database is. It is safe for concurrent use, and any number of them, in any number of processes, may share one database.
type Service struct {
	cfg    Config
	pool   *pg.Pool
	writes pg.Writes
	pools  pg.Pools
}

// Open returns a Service on a migrated database, which is the cell of this number from then on. It fails with an *OtherCellError if it is another one, and with
// ErrUnavailable when the database cannot be reached. Close it.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	cfg.QueryTimeout = cmp.Or(cfg.QueryTimeout, DefaultQueryTimeout)
	s := &Service{cfg: cfg}
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
	rows, _ := s.pool.Query(ctx, `select number, first_id, last_id, ids_left from agent_service.get_cell()`)
	c, err := pg.CollectOne[Cell](rows)
	return c, wrap("reading the cell", err)
}

// Run returns once ctx has ended.
func (*Service) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Drain does nothing: no call waits for anything.
func (*Service) Drain() {}

// Close closes the connections, by the end of ctx. Run must have returned.
func (s *Service) Close(ctx context.Context) error { return s.pools.CloseBy(ctx) }
