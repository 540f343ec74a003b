package queue

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/semver"

	"github.com/queued/queued/internal/pg"
)

const (
	// writtenLately is how long a write that succeeded shows that writes succeed.
	writtenLately = time.Second
	// noRoomLately is how long a write for which the database had no room shows that writes fail, whatever else succeeds: small ones may still
	// find room where larger ones do not.
	noRoomLately = 5 * time.Second
)

// writes is how the writes of this process have ended lately.
type writes struct {
	checking chan struct{} // full while CheckReady asks the database

	mu        sync.Mutex
	succeeded time.Time // the latest one, unless one has failed since
	refusedAt time.Time // the latest one for which there was no room
	refusal   error     // its error
}

// note notes the end of a transaction.
func (w *writes) note(hasWritten bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil && hasWritten:
		w.succeeded = time.Now()
	case err == nil, pg.LostRace(err), !pg.IsUnavailable(err): // it says nothing about other writes
	default:
		w.succeeded = time.Time{}
		if pg.HasNoRoom(err) {
			w.refusedAt, w.refusal = time.Now(), err
		}
	}
}

// state returns whether writes have succeeded lately, and why they have failed.
func (w *writes) state() (succeeded bool, refusal error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.refusedAt) < noRoomLately {
		return false, w.refusal
	}
	return time.Since(w.succeeded) < writtenLately, nil
}

// CheckReady returns nil when the writes of this process succeed, on a schema of the version that this program needs. It follows its latest writes; where
// there were none within a second, it writes something itself, on the connections of the writes. A later version of the schema will do unless it
// says otherwise: during a rolling upgrade the old processes go on serving. With Config.RequireSync commits must wait for a standby, too.
func (s *Service) CheckReady(ctx context.Context) error {
	select { // a flood of checks must not take the connections of the writes
	case s.writes.checking <- struct{}{}:
		defer func() { <-s.writes.checking }()
	case <-ctx.Done():
		return wrap("checking whether writes succeed", ctx.Err())
	}
	hasWritten, refusal := s.writes.state()
	if refusal != nil {
		return wrap("an event was not written", refusal)
	}
	if err := s.checkSchema(ctx); err != nil {
		return err
	}
	if !hasWritten {
		b := new(pgx.Batch)
		if prologue := s.writers.Prologue(); prologue != "" {
			b.Queue(prologue)
		}
		b.Queue(`select agent_service.probe_write($1, $2)`, s.name, s.processName())
		err := s.writers.SendBatch(ctx, b)
		s.writes.note(true, err)
		if err != nil {
			return wrap("checking whether writes succeed", err)
		}
	}
	if !s.cfg.RequireSync {
		return nil
	}
	safety, err := pg.ReadSafety(ctx, s.writers)
	if err == nil && !safety.IsSynchronous() {
		return ErrNotSynchronous
	}
	return wrap("checking the server's settings", err)
}

// checkSchema returns nil when the schema is of a version that this program can run on, and the server takes writes.
func (s *Service) checkSchema(ctx context.Context) error {
	return s.checkSchemaOn(ctx, s.writers)
}

// checkSchemaOn is checkSchema on the connections of pool. It notes whether the schema has moved beyond this program.
func (s *Service) checkSchemaOn(ctx context.Context, pool *pg.Pool) error {
	var (
		version    string
		isReadOnly bool
		oldest     string
	)
	err := pool.QueryRow(ctx, `select v.version, current_setting('transaction_read_only') = 'on', agent_service.oldest_beside() from agent.version v`).
		Scan(&version, &isReadOnly, &oldest)
	own := s.cfg.SchemaVersion
	if err == nil {
		s.isOutdated.Store(own != "" && semver.Compare("v"+own, "v"+oldest) < 0)
	}
	switch {
	case err != nil:
		return wrap("checking the schema's version", err)
	case isReadOnly:
		s.db.Reset()
		return fmt.Errorf("%w: the server takes no writes", ErrUnavailable)
	case own != "" && semver.Compare("v"+version, "v"+own) < 0:
		return fmt.Errorf("the schema is at version %s, this program needs %s", version, own)
	case s.isOutdated.Load():
		return fmt.Errorf("%w: it is at version %s, which takes processes of version %s or newer, and this one is %s", ErrOutdated, version, oldest, own)
	}
	return nil
}

// IsOutdated reports whether the schema has moved beyond this program, as it was when Run or CheckReady looked last: no call can be relied on.
func (s *Service) IsOutdated() bool { return s.isOutdated.Load() }
