package workloads

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// session is one workload at work.
type session struct {
	cfg         Config
	postgres    *Postgres // where databases are made; nil with a server that was given
	payload     []byte
	report      *report.Report
	results     []*report.Result
	comparisons []comparedValue
	progress    progress
	cancel      context.CancelCauseFunc // of the workload, when a server ends by itself
	opened      []*server
	queues      int // how many were named
}

// comparedValue is a ratio or a difference of results.
type comparedValue struct {
	name  string
	value float64
}

func (s *session) add(result *report.Result) { s.results = append(s.results, result) }

func (s *session) compare(name string, value float64) {
	s.comparisons = append(s.comparisons, comparedValue{name, value})
}

// minPayload is the size of an empty payload with its name, and a little more.
const minPayload = 16

// newPayload makes an event of so many bytes that does not compress, or PostgreSQL would store less than was sent.
func newPayload(size int) []byte {
	const head, foot = `{"d":"`, `"}`
	raw := make([]byte, size)
	_, _ = rand.Read(raw) // never fails
	return []byte(head + base64.RawURLEncoding.EncodeToString(raw)[:size-len(head)-len(foot)] + foot)
}

// newQueue names a queue that nobody else uses.
func (s *session) newQueue() string {
	s.queues++
	return fmt.Sprintf("bench-%s-%d", strings.ToLower(rand.Text()[:8]), s.queues)
}

// server is a queued under load.
type server struct {
	target   *load.Target
	db       *database // nil: not known
	process  *process  // nil: it ran already
	database string    // made for it, to be dropped; empty: none
}

// serve returns the server that was given, or starts one on a new database.
func (s *session) serve(ctx context.Context) (*server, error) {
	if s.cfg.URL != "" {
		return s.attach(ctx, s.cfg.URL)
	}
	return s.startOnNew(ctx, s.cfg.Program)
}

func (s *session) startOnNew(ctx context.Context, program string) (*server, error) {
	name, url, err := s.postgres.Create(ctx)
	if err != nil {
		return nil, err
	}
	s.progress.show("starting a server on a new database, %s", name)
	srv := &server{database: name}
	s.opened = append(s.opened, srv)
	if err := s.start(ctx, srv, program, url); err != nil {
		return nil, err
	}
	if srv.db, err = openDatabase(ctx, url); err != nil {
		return nil, err
	}
	return srv, s.describe(ctx, srv)
}

// startSecond starts another server on the database of the first.
func (s *session) startSecond(ctx context.Context, first *server) (*server, error) {
	srv := new(server)
	s.opened = append([]*server{srv}, s.opened...) // to be stopped before the database is dropped
	return srv, s.start(ctx, srv, s.cfg.Program, s.postgres.URL(first.database))
}

func (s *session) start(ctx context.Context, srv *server, program, databaseURL string) (err error) {
	var url string
	if srv.process, url, err = startProcess(ctx, program, s.cfg.Environ, databaseURL, s.cancel); err != nil {
		return err
	}
	srv.target, err = load.NewTarget(url, "")
	return err
}

// attach looks at a server that runs already, and at its database if that was given.
func (s *session) attach(ctx context.Context, url string) (*server, error) {
	target, err := load.NewTarget(url, s.cfg.APIKey)
	if err != nil {
		return nil, &InvalidError{text: err.Error()}
	}
	srv := &server{target: target}
	s.opened = append(s.opened, srv)
	if _, err := target.Get(ctx, "/readyz"); err != nil {
		return nil, fmt.Errorf("there is no queued that is ready at %s: %w", url, err)
	}
	if err := s.describe(ctx, srv); err != nil || s.cfg.DatabaseURL == "" {
		return srv, err
	}
	if srv.db, err = openDatabase(ctx, s.cfg.DatabaseURL); err != nil {
		return nil, err
	}
	if err := s.describe(ctx, srv); err != nil {
		return nil, err
	}
	return srv, s.sameDatabase(ctx, srv)
}

// describe notes in the report the version of a server and its machine.
func (s *session) describe(ctx context.Context, srv *server) error {
	body, err := srv.target.Get(ctx, "/version")
	if err != nil {
		return err
	}
	if s.report.Machine.Queued, err = load.Version(body); err != nil || srv.db == nil {
		return err
	}
	return describe(ctx, srv.db.conn, &s.report.Machine)
}

// sameDatabase inserts an event and looks for it in the database.
func (s *session) sameDatabase(ctx context.Context, srv *server) error {
	queue := s.newQueue()
	clients, err := load.Open(ctx, srv.target, queue, 1, load.NewAccount())
	if err != nil {
		return err
	}
	defer clients.Close()
	ids, ok := clients.All[0].Insert(ctx, srv.target.InsertRequest(queue, s.payload), time.Time{})
	if !ok {
		return fmt.Errorf("inserting an event: %v", clients.Meter.Take().Errors)
	}
	var exists bool
	if err := srv.db.conn.QueryRow(ctx, existsStatement, ids[0], queue).Scan(&exists); err != nil {
		return err
	}
	if !exists {
		return errors.New("--database-url leads to another database than the server's")
	}
	_, err = load.Drain(ctx, srv.target, queue, clients.Account)
	return err
}

// close ends the processes that the session started, whether or not ctx has ended.
func (s *session) close(ctx context.Context) (err error) {
	for _, srv := range s.opened {
		err = errors.Join(err, s.release(ctx, srv))
	}
	s.opened = nil
	return err
}

// release ends one server and drops its database.
func (s *session) release(ctx context.Context, srv *server) (err error) {
	if srv.db != nil {
		srv.db.close(ctx)
		srv.db = nil
	}
	if srv.process != nil {
		err = srv.process.stop()
		srv.process = nil
	}
	if srv.database != "" {
		err = errors.Join(err, s.postgres.Drop(ctx, srv.database))
		srv.database = ""
	}
	return err
}

// renew replaces a server that was started here by a new one, on a new database.
func (s *session) renew(ctx context.Context, srv *server) (*server, error) {
	if srv.process == nil {
		return srv, nil
	}
	if err := s.release(ctx, srv); err != nil {
		return nil, err
	}
	return s.serve(ctx)
}

// progress shows how a run goes: on a terminal in one line that is written over, elsewhere in a line now and then.
type progress struct {
	w        io.Writer // nil: silent
	terminal bool
	last     time.Time
	open     bool // a line exists to be written over
}

func (p *progress) show(format string, args ...any) {
	const interval = 10 * time.Second
	switch line := fmt.Sprintf(format, args...); {
	case p.w == nil:
	case p.terminal:
		_, _ = fmt.Fprintf(p.w, "\r\x1b[K%s", line)
		p.open = true
	case time.Since(p.last) >= interval:
		_, _ = fmt.Fprintln(p.w, line)
		p.last = time.Now()
	}
}

// end leaves the terminal clean.
func (p *progress) end() {
	if p.open {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
		p.open = false
	}
}
