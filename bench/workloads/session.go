package workloads

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// minPayload is what an empty payload with its name takes, and a little more.
const minPayload = 16

// newPayload makes an event of so many bytes that does not compress, or PostgreSQL would store less than was sent.
func newPayload(size int) []byte {
	const head, foot = `{"d":"`, `"}`
	raw := make([]byte, size)
	_, _ = rand.Read(raw) // never fails
	filling := base64.RawURLEncoding.EncodeToString(raw)[:size-len(head)-len(foot)]
	return []byte(head + filling + foot)
}

// session is one workload at work.
type session struct {
	cfg      Config
	cluster  *cluster // where databases are made; nil with a server that was given
	payload  []byte
	report   *Report
	progress *progress
	opened   []*server
	runs     int // names queues
}

// server is a queued under load.
type server struct {
	at       *endpoint
	db       *database // nil: not known
	child    *child    // nil: it was there
	database string    // to be dropped, unless it is empty
}

// serve returns the server that was given, or starts one on a new database.
func (s *session) serve(ctx context.Context) (*server, error) {
	if s.cfg.URL != "" {
		return s.attach(ctx, s.cfg.URL)
	}
	name, url, err := s.cluster.create(ctx)
	if err != nil {
		return nil, err
	}
	s.progress.say("starting a server on a new database, %s", name)
	srv := &server{database: name}
	s.opened = append(s.opened, srv)
	if err := s.start(ctx, srv, url); err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, errors.New("the database URL cannot be read")
	}
	if srv.db, err = openDatabase(ctx, config); err != nil {
		return nil, err
	}
	return srv, s.look(ctx, srv)
}

// start runs a queued for srv.
func (s *session) start(ctx context.Context, srv *server, databaseURL string) (err error) {
	if srv.child, err = startChild(ctx, s.cfg.Program, s.cfg.Environ, databaseURL); err != nil {
		return err
	}
	srv.at, err = newEndpoint(srv.child.url, "")
	return err
}

// attach looks at a server that runs already, and at its database if that was given.
func (s *session) attach(ctx context.Context, url string) (*server, error) {
	srv := new(server)
	var err error
	if srv.at, err = newEndpoint(url, s.cfg.APIKey); err != nil {
		return nil, &InvalidError{text: err.Error()}
	}
	s.opened = append(s.opened, srv)
	if _, err := srv.get(ctx, "/readyz"); err != nil {
		return nil, fmt.Errorf("there is no queued that is ready at %s: %w", url, err)
	}
	if s.cfg.DatabaseURL != "" {
		config, err := pgx.ParseConfig(s.cfg.DatabaseURL)
		if err != nil {
			return nil, errors.New("the database URL cannot be read")
		}
		if srv.db, err = openDatabase(ctx, config); err != nil {
			return nil, err
		}
	}
	return srv, s.look(ctx, srv)
}

// look makes sure of a server before it is loaded, and notes what it is.
func (s *session) look(ctx context.Context, srv *server) error {
	body, err := srv.get(ctx, "/version")
	if err != nil {
		return err
	}
	version, _, ok := text(after(body, []byte(`"version":`)))
	if !ok {
		return fmt.Errorf("what answers at %s is not queued: %w", srv.at.address, strange(body))
	}
	s.report.Machine.Queued = string(version)
	if srv.db == nil {
		return nil
	}
	if s.report.Machine.Postgres, err = srv.db.version(ctx); err != nil {
		return err
	}
	if srv.child != nil {
		return nil
	}
	return srv.sameDatabase(ctx, s.newQueue())
}

// sameDatabase posts an event and looks for it in the database.
func (srv *server) sameDatabase(ctx context.Context, queue string) error {
	w := newWorker(srv.at, queue, newMeter(1), 0, newLedger())
	defer w.close()
	if err := w.connect(ctx); err != nil {
		return err
	}
	_, body, err := w.conn.do(postRequest(srv.at, queue, newPayload(minPayload)), 0)
	if err != nil {
		return err
	}
	id, err := scanID(body)
	if err != nil {
		return err
	}
	var there bool
	if err := srv.db.conn.QueryRow(ctx, `select exists (select from agent.event where id = $1 and queue = $2)`, id, queue).Scan(&there); err != nil {
		return err
	}
	if !there {
		return errors.New("the database URL (--database-url) leads to another database than the server's")
	}
	_, _, err = w.conn.do(srv.at.request("DELETE", fmt.Sprintf("/events/%d", id), nil), 0)
	return err
}

// newQueue names a queue that nobody else uses.
func (s *session) newQueue() string {
	s.runs++
	return fmt.Sprintf("bench-%s-%d", strings.ToLower(rand.Text()[:8]), s.runs)
}

// close ends what the session started, whether or not ctx has ended.
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
	if srv.child != nil {
		err = srv.child.stop()
		srv.child = nil
	}
	if srv.database != "" {
		err = errors.Join(err, s.cluster.drop(ctx, srv.database))
		srv.database = ""
	}
	return err
}

// alive fails when a server that was started here has ended.
func (srv *server) alive() error {
	if srv.child == nil {
		return nil
	}
	select {
	case <-srv.child.ended:
		return srv.child.failure()
	default:
		return nil
	}
}

// died is closed when a server that was started here ends; it is nil for any other.
func (srv *server) died() <-chan struct{} {
	if srv.child == nil {
		return nil
	}
	return srv.child.ended
}

// reading is a moment's counters, of which two make a difference.
type reading struct {
	at      time.Time
	usage   usage
	figures figures
}

func (srv *server) read(ctx context.Context) (r reading, err error) {
	if srv.db != nil {
		if r.figures, err = srv.db.figures(ctx); err != nil {
			return r, err
		}
	}
	if r.usage.server, r.usage.rss, err = srv.serverUsage(ctx); err != nil {
		return r, err
	}
	r.usage.client = clientCPU()
	r.at = time.Now()
	return r, nil
}
