//go:build unix

package faults

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A copied is a copy of a database that can be brought up.
type copied struct {
	server   *Server
	database string
}

// A copyMethod keeps what a database has when it is called. What it returns brings the copy up later, in the place of the original or beside it; by then no
// program uses the original.
type copyMethod func(t *testing.T, server *Server) (bringUp func() copied)

// dump writes a dump of the server's database and returns its path.
func (s *Server) dump() string {
	s.t.Helper()
	path := filepath.Join(s.user.directory(s.t, ""), "dump.sql")
	s.run("pg_dump", "-f", path, "-d", s.AdminURL())
	return path
}

// restore restores a dump into a database, which must not have what the dump has.
func (s *Server) restore(path, database string) copied {
	s.t.Helper()
	s.run("psql", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-d", s.adminURL(database), "-f", path)
	return copied{s, database}
}

// The ways to make a copy.
var (
	dumpToAnotherServer copyMethod = func(t *testing.T, server *Server) func() copied {
		t.Helper()
		path := server.dump()
		return func() copied { return Start(t, Config{}).restore(path, ordinary) }
	}
	dumpToNewDatabase copyMethod = func(t *testing.T, server *Server) func() copied {
		t.Helper()
		path := server.dump()
		return func() copied {
			server.Exec("", `drop database `+ordinary+` with (force)`)
			server.Exec("", `create database `+ordinary+` owner `+ordinary)
			return server.restore(path, ordinary)
		}
	}
	dumpToSameDatabase copyMethod = func(t *testing.T, server *Server) func() copied {
		t.Helper()
		path := server.dump()
		return func() copied {
			server.Exec(ordinary, `drop schema agent cascade; drop schema agent_service, agent_private cascade`)
			return server.restore(path, ordinary)
		}
	}
	clone copyMethod = func(t *testing.T, server *Server) func() copied {
		t.Helper()
		server.disconnect(ordinary)
		server.Exec("", `create database clone template `+ordinary+` owner `+ordinary)
		server.Exec("", `alter database `+ordinary+` with allow_connections true`)
		return func() copied { return copied{server, "clone"} }
	}
)

// disconnect ends the sessions in a database, and lets none begin.
func (s *Server) disconnect(database string) {
	s.t.Helper()
	s.Exec("", `alter database `+database+` with allow_connections false`)
	s.Exec("", `select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '`+database+`'`)
}

// closeSegments has the log go on in later and later segments, as it does over days.
func (s *Server) closeSegments(n int) {
	s.t.Helper()
	for range n {
		s.Exec(ordinary, `select agent.publish('sql', '{}')`)
		s.Exec(ordinary, `update agent.log_segment set opened_at = opened_at - interval '1 day' where state = 'open'`)
		for s.maintainLog() {
			continue
		}
	}
}

// maintainLog takes a step in the upkeep of the log, and reports whether there may be another one. While a program on the database takes one, it fails
// to lock the upkeep: then it waits a moment.
func (s *Server) maintainLog() (mayHaveMore bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), startLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.AdminURL())
	if err == nil {
		err = conn.QueryRow(ctx, `select agent_service.maintain_log() is not null`).Scan(&mayHaveMore)
		_ = conn.Close(ctx)
	}
	const lockNotAvailable = "55P03"
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == lockNotAvailable {
		pause(100 * time.Millisecond)
		return true
	}
	if err != nil {
		s.t.Fatalf("taking a step in the upkeep of the log: %v", err)
	}
	return mayHaveMore
}

// insertedIDs inserts events and returns their ids.
func insertedIDs(t *testing.T, c *client, n int) []int64 {
	t.Helper()
	events := make([]map[string]any, n)
	for i := range events {
		events[i] = map[string]any{"event": map[string]any{}, "queue": "ids"}
	}
	var answer struct{ IDs []int64 }
	own := c.newClient(300) // the other's goroutine uses its random numbers meanwhile
	for began := time.Now(); ; pause(100 * time.Millisecond) {
		switch status := own.call(t.Context(), http.MethodPost, "/events/batch", map[string]any{"events": events}, &answer); {
		case status == http.StatusCreated:
			return answer.IDs
		case status != http.StatusServiceUnavailable || time.Since(began) > startLimit: // a connection may have ended meanwhile
			t.Fatalf("inserting returned %d", status)
		}
	}
}

// logCopied copies the database of a log. What was published after that the copy lacks, though readers have seen it. Between the copy and its use the
// original closes a number of segments.
func logCopied(method copyMethod, segments int) scenario {
	return func(t *testing.T, b build, l *ledger, _ int) {
		t.Helper()
		l.lossy = true
		server := Start(t, Config{})
		q := startQueued(t, b, server.URL())
		b.breakDatabase(t, server)
		d := startLogLoad(t, l, server.URL(), q)
		d.awaitPublished(50)
		bringUp := method(t, server)
		d.awaitPublished(50)
		ids := insertedIDs(t, d.readers[0].client, 500)
		d.stop()
		d.publishing.Wait()
		server.closeSegments(segments)
		d.drawInVain(server)
		d.end()
		d.reading.Wait()
		_, _ = q.terminate()

		c := bringUp()
		q = startQueued(t, b, c.server.urlOf(c.database), "QUEUED_ADOPT=always") // so that it delivers
		e := startLogLoad(t, l, c.server.urlOf(c.database), q)
		e.mu.Lock()
		for position, n := range d.sources {
			if other := e.sources[position]; other != "" && other != n {
				l.violated("the position %d was that of %s, and is that of %s in the copy", position, n, other)
			}
			e.sources[position] = n
		}
		e.mu.Unlock()
		r := e.readers[0]
		r.mu.Lock()
		was := d.readers[0]
		r.after, r.seen = was.after, slices.Clone(was.seen)
		r.mu.Unlock()
		e.awaitPublished(50)
		for _, id := range insertedIDs(t, r.client, 500) {
			if slices.Contains(ids, id) {
				l.violated("the id %d was given out by the original and by its copy", id)
				break
			}
		}
		e.finish(c.server.adminURL(c.database))
	}
}

func TestCopiesGiveOutNothingThatTheOriginalGaveOut(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]scenario{
		"a dump restored into another cluster":                   logCopied(dumpToAnotherServer, 0),
		"an old dump restored into another cluster":              logCopied(dumpToAnotherServer, 6),
		"a dump restored into a new database of the same server": logCopied(dumpToNewDatabase, 0),
		"a dump restored into the same database":                 logCopied(dumpToSameDatabase, 4),
		"a clone by template":                                    logCopied(clone, 0),
		"an old clone by template":                               logCopied(clone, 6),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runScenario(t, s, 1, 1)
		})
	}
}

func TestBrokenBuildWithoutLogAdvanceIsCaughtByACopy(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, logCopied(dumpToNewDatabase, 0), logNotAdvanced, 1)
}

func TestBrokenBuildWithoutSequenceAdvanceIsCaughtByACopy(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, logCopied(clone, 0), sequencesNotAdvanced, 1)
}
