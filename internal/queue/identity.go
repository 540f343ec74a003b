package queue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// Background says whether a process acts by itself and on others: whether it pushes, fires schedules and delivers subscriptions.
type Background string

// The modes of a process.
const (
	BackgroundOn        Background = "on"
	BackgroundSuspended Background = "suspended" // the database is a copy that nobody has adopted
	BackgroundOff       Background = "off"       // Config.IsQuiet
)

// background returns whether this process acts by itself. The caller holds server.mu.
func (s *Service) background() Background {
	switch {
	case s.cfg.IsQuiet:
		return BackgroundOff
	case s.server.isCopy:
		return BackgroundSuspended
	}
	return BackgroundOn
}

// An Identity tells a database from its copies.
type Identity struct {
	IsCopy   bool   // its identity is not the one that was recorded, and nobody has adopted it
	Recorded string // the identity that was recorded
	Identity string // the one that it has
}

// Adopt makes a copy of a database one that acts by itself, for all processes. It returns the identity before; nothing is changed of a database that is no
// copy. It fails with ErrUnavailable when the database cannot be reached.
func Adopt(ctx context.Context, db *pg.Database) (Identity, error) {
	conn, err := db.Connect(ctx)
	if err != nil {
		return Identity{}, wrap("connecting", err)
	}
	defer db.Close(ctx, conn)
	return adopt(ctx, conn)
}

func adopt(ctx context.Context, q querier) (before Identity, err error) {
	rows, _ := q.Query(ctx, `select was_copy as is_copy, recorded, identity from agent.adopt_database()`)
	before, err = pg.CollectOne[Identity](rows)
	return before, wrap("adopting the database", err)
}

// querier is a pool or a connection.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// CheckIdentity looks whether the database is a copy, and adopts it where Config has it so.
func (s *Service) CheckIdentity(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, serverInterval)
	defer cancel()
	rows, _ := s.loops.Query(ctx, `select is_copy, recorded, identity from agent.get_identity()`)
	found, err := pg.CollectOne[Identity](rows)
	if err != nil {
		return wrap("reading the identity of the database", err)
	}
	isAdopted := false
	if found.IsCopy && s.cfg.AdoptsAlways {
		if _, err := adopt(ctx, s.loops); err != nil {
			return err
		}
		found.IsCopy, isAdopted = false, true
	}
	s.server.mu.Lock()
	isChanged := s.server.isCopy != found.IsCopy
	s.server.isCopy = found.IsCopy
	s.server.mu.Unlock()
	log := s.cfg.Logger.With().Str("recorded", found.Recorded).Str("identity", found.Identity).Logger()
	switch {
	case isAdopted:
		log.Warn().Msg("the database is a copy of another one, and was adopted because QUEUED_ADOPT is always")
	case isChanged && found.IsCopy:
		log.Warn().Msg("the database is a copy of another one: pushes, schedules and deliveries of subscriptions are suspended, so that they are not made beside the original; " +
			"if this one takes its place, run \"queued adopt\"")
	case isChanged:
		log.Info().Msg("the database was adopted: pushes, schedules and deliveries of subscriptions go on")
	}
	return nil
}
