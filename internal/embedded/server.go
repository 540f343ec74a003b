//go:build unix

package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"
)

const (
	// startTimeout bounds a start, once the programs are there. After a crash PostgreSQL first replays at most max_wal_size (1 GB) of its
	// log, which takes a slow disk a minute or two.
	startTimeout = 5 * time.Minute
	// immediateShutdownTimeout is how long an immediate shutdown may take: after 5 seconds PostgreSQL kills its processes.
	immediateShutdownTimeout = 15 * time.Second
	// sharedMemoryTimeout is how long a start waits until the processes of a dead server have released its shared memory.
	sharedMemoryTimeout = 10 * time.Second
)

// Server is a running PostgreSQL that belongs to this process.
type Server struct {
	log          zerolog.Logger
	dir          dataDir
	account      account
	installation installation
	settings     map[string]string
	lock         *os.File // of the data directory
	socket       socketDir
	process      *process
	logFrom      int64 // offset in the log file where the part of the process begins

	done   chan struct{} // closed when PostgreSQL has ended by itself
	cause  error         // why; written before done is closed
	isOver atomic.Bool   // PostgreSQL has ended by itself, or Stop was called, whichever came first

	stopOnce sync.Once
	stopErr  error
}

// Start returns a running server with the database `queued`, ready for connections. It makes missing files, and first stops a server
// that a killed process left running in the directory. When it fails or ctx ends, nothing is left running and the directory is free.
// The server does not end with ctx.
//
// It fails with ErrInUse when another process runs a server in the directory.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	s := &Server{settings: cfg.Settings, done: make(chan struct{})}
	var err error
	if s.dir, err = openDataDir(cfg.DataDir); err != nil {
		return nil, err
	}
	s.log = cfg.Logger.With().Str("data_dir", string(s.dir)).Logger()
	if s.account, err = accountFor(s.dir); err != nil {
		return nil, err
	}
	if err := s.dir.check(s.account); err != nil {
		return nil, err
	}
	major, err := s.dir.major()
	if err != nil {
		return nil, err
	}
	if s.installation, err = cfg.locations.find(ctx, s.account, major, s.dir.pg(), cfg.Logger); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.start(ctx, major); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), immediateShutdownTimeout)
		defer cancel()
		return nil, errors.Join(err, s.shutDown(ctx))
	}
	s.log.Info().Str("version", s.installation.version()).Str("programs", s.installation.binDir).
		Str("socket_dir", string(s.socket)).Int("pid", s.process.pid()).Msg("private PostgreSQL started")
	return s, nil
}

// start makes and locks the files that the server needs, and starts it. The major version is that of the existing cluster, 0 for none.
func (s *Server) start(ctx context.Context, major int) error {
	err := s.account.checkAccess(ctx, s.installation, string(s.dir))
	if err != nil {
		return err
	}
	if err := s.dir.create(s.account); err != nil {
		return fmt.Errorf("make the data directory: %w: choose another QUEUED_DATA_DIR", err)
	}
	if s.lock, err = s.dir.lock(); err != nil {
		return err
	}
	// The installation was chosen before the directory was locked.
	switch now, err := s.dir.major(); {
	case err != nil:
		return err
	case now != major:
		return fmt.Errorf("%s was changed by another process during the start: try again", s.dir)
	}
	stale, err := s.stopOrphans(ctx)
	if err != nil {
		return err
	}
	if major == 0 {
		err = s.initialize(ctx)
	} else {
		err = s.dir.adopt(s.account)
	}
	if err != nil {
		return err
	}
	if err := s.dir.writeAccessRules(ctx); err != nil {
		return err
	}
	if s.socket, err = s.dir.makeSocketDir(ctx, s.installation, s.account); err != nil {
		return fmt.Errorf("make the socket directory: %w", err)
	}
	for deadline := time.Now().Add(sharedMemoryTimeout); ; {
		if err = s.launch(ctx, stale); err == nil {
			go s.watch()
			return nil
		}
		// When postmaster.pid is still the dead server's, PostgreSQL has refused to start because processes of that server still hold
		// its shared memory. They end by themselves.
		pid, _ := s.dir.postmaster()
		if stale == 0 || pid != stale || time.Now().After(deadline) || pause(ctx, 250*time.Millisecond) != nil {
			return err
		}
	}
}

// launch starts postgres and waits until it answers.
func (s *Server) launch(ctx context.Context, stale int) error {
	log, from, err := s.dir.openLog()
	if err != nil {
		return fmt.Errorf("open the PostgreSQL log: %w", err)
	}
	defer func() { _ = log.Close() }() // postgres has its own descriptor
	args := append([]string{"-D", s.dir.pg()}, settingArguments(s.settings, s.dir, s.socket)...)
	cmd := s.account.command(context.WithoutCancel(ctx), s.installation.program("postgres"), args...) // ctx ends the start, not the server
	cmd.Stdout, cmd.Stderr = log, log
	if stale != 0 {
		// Another process may have the process id that a dead server left in postmaster.pid, and PostgreSQL would take it for a running
		// server. This variable, which pg_ctl uses, has it ignore that id. It still checks whether the shared memory is in use.
		cmd.Env = append(cmd.Env, fmt.Sprintf("PG_GRANDPARENT_PID=%d", stale))
	}
	signalWithParent(cmd.SysProcAttr, syscall.SIGINT) // a fast shutdown when this process is killed
	process, err := startProcess(cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	s.process, s.logFrom = process, from
	return s.waitUntilReady(ctx)
}

// waitUntilReady returns when the database `queued` exists and can be connected to.
func (s *Server) waitUntilReady(ctx context.Context) error {
	for {
		if _, ready := s.dir.postmaster(); ready { // connecting earlier logs an error
			err := ensureDatabase(ctx, s.socket)
			if err == nil {
				return nil
			}
			if !isStarting(err) {
				return fmt.Errorf("PostgreSQL in %s was started but cannot be used: %w", s.dir, err)
			}
		}
		select {
		case <-s.process.ended:
			return s.exitError("PostgreSQL ended while it was starting")
		case <-ctx.Done():
			return fmt.Errorf("waiting for PostgreSQL in %s to start: %w (its log is %s)", s.dir, ctx.Err(), s.dir.logFile())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// exitError says how the process ended, with the end of its log.
func (s *Server) exitError(what string) error {
	text := cmp.Or(s.dir.logTail(s.logFrom), "(nothing was logged)")
	return fmt.Errorf("%s (%s); the end of %s:\n%s", what, s.process.cmd.ProcessState, s.dir.logFile(), text)
}

// watch closes done when PostgreSQL ends before Stop is called.
func (s *Server) watch() {
	<-s.process.ended
	if s.isOver.CompareAndSwap(false, true) {
		s.cause = s.exitError("PostgreSQL ended by itself")
		close(s.done)
	}
}

// URL returns the connection string of the database `queued`, for pgx and libpq. It holds no secret: the server knows the user of the
// process that connects.
func (s *Server) URL() string { return s.socket.url(databaseName) }

// RunningURL returns the URL of the database of a server that another process of the same user runs in a data directory; empty: the default one. It does not
// make sure that there is one.
func RunningURL(path string) (string, error) {
	dir, err := openDataDir(path)
	if err != nil {
		return "", err
	}
	socket := socketDir(dir.run())
	if target, err := os.Readlink(dir.run()); err == nil {
		socket = socketDir(target)
	}
	return socket.url(databaseName), nil
}

// Done returns a channel that is closed when PostgreSQL has ended by itself. Stop does not close it.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns why PostgreSQL ended by itself, with the end of its log, once Done is closed, and nil before.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.cause
	default:
		return nil
	}
}

// Stop shuts the server down, which breaks the connections that are left, and unlocks the directory. When ctx ends first, it shuts the
// server down immediately, after which the next start needs a recovery and no committed data is lost, and returns an error that wraps
// ctx's. Further calls return the result of the first one.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() {
		s.isOver.Store(true)
		s.stopErr = s.shutDown(ctx)
		if s.process.hasEnded() {
			s.log.Info().Msg("private PostgreSQL stopped")
		}
	})
	return s.stopErr
}

// shutDown ends the process and releases the locks and files of start. The directory stays locked while the process runs.
func (s *Server) shutDown(ctx context.Context) error {
	var err error
	if s.process != nil {
		if err = s.process.stop(ctx); !s.process.hasEnded() {
			return err
		}
	}
	if s.socket != "" {
		err = errors.Join(err, s.dir.removeSocketDir())
	}
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// ensureDatabase connects to the database, and makes it when there is none.
func ensureDatabase(ctx context.Context, socket socketDir) error {
	err := execute(ctx, socket.url(databaseName), "select 1")
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "3D000" { // invalid_catalog_name
		return execute(ctx, socket.url("postgres"), "create database "+databaseName)
	}
	return err
}

func execute(ctx context.Context, url, statement string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statement)
	return errors.Join(err, conn.Close(ctx))
}

// isStarting reports whether a server that is starting may have caused err.
func isStarting(err error) bool {
	_, isMalformed := errors.AsType[*pgconn.ParseConfigError](err)
	pgErr, isAnswer := errors.AsType[*pgconn.PgError](err)
	return !isMalformed && (!isAnswer || pgErr.Code == "57P03") // cannot_connect_now
}
