// Package embedded runs a private PostgreSQL: found on the machine or fetched, kept in one
// directory, reachable through a Unix socket alone, started and stopped with the program.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

const (
	// startLimit bounds a start, once it has its programs. It is long because a server
	// that was killed replays its log first (at most max_wal_size, 1 GB, which takes a slow disk
	// a minute or two), and giving up in the middle would only make the next start do it again.
	startLimit = 5 * time.Minute
	// quitLimit is how long an immediate shutdown may take. PostgreSQL kills what has not ended
	// by itself after 5 seconds.
	quitLimit = 15 * time.Second
	// leftoverLimit is how long a start waits for what a dead server left in memory to go away.
	leftoverLimit = 10 * time.Second
)

// Config says where the server lives and how it is set up.
type Config struct {
	// DataDir holds everything of this server: the cluster in pg/, the socket in run/,
	// postgres.log and the lock. It is made when missing. Zero: DefaultDataDir().
	DataDir string
	// Settings are PostgreSQL settings beyond this package's own, or in place of them, by name.
	// Those that decide how the server is reached cannot be set.
	Settings map[string]string
	// Logger is told what is done. Zero: nothing is logged.
	Logger zerolog.Logger

	machine machine
}

// Server is a running PostgreSQL that belongs to this process.
type Server struct {
	log     zerolog.Logger
	dir     dataDir
	account account
	lock    *lock
	socket  socketDir
	process *process
	logFrom int64 // where in the log file the running process's part begins

	mu       sync.Mutex
	stopping bool
	cause    error
	done     chan struct{}
	watched  chan struct{} // closed when the goroutine that watches the process is gone

	stopOnce sync.Once
	stopErr  error
}

// Start returns a running server with an empty or existing database `queued`, ready for
// connections. It makes what is missing, and first stops a server that a killed process left
// behind on the same directory. When ctx ends before that, or anything fails, nothing is left
// running and the directory is free again; once Start has returned, ctx means nothing to the server.
//
// It fails with ErrInUse when another process runs a server in the directory.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := checkSettings(cfg.Settings); err != nil {
		return nil, err
	}
	dir, err := openDataDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	account, err := accountFor(dir)
	if err != nil {
		return nil, err
	}
	if err := dir.check(account); err != nil {
		return nil, err
	}
	major, err := dir.major()
	if err != nil {
		return nil, err
	}
	programs, err := cfg.machine.programs(ctx, account, major, dir.pg(), cfg.Logger)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := account.checkAccess(ctx, programs, string(dir)); err != nil {
		return nil, err
	}
	if err := dir.create(account); err != nil {
		return nil, err
	}

	s := &Server{
		log:     cfg.Logger.With().Str("data_dir", string(dir)).Logger(),
		dir:     dir,
		account: account,
		done:    make(chan struct{}),
		watched: make(chan struct{}),
	}
	if err := s.start(ctx, programs, major, cfg.Settings); err != nil {
		// The context may be what ended the start, so the clean-up must not hang on it.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitLimit)
		defer cancel()
		return nil, errors.Join(err, s.abandon(undo))
	}
	s.log.Info().Str("version", programs.version()).Str("programs", programs.dir).
		Str("socket_dir", string(s.socket)).Int("pid", s.process.pid()).Msg("private PostgreSQL started")
	return s, nil
}

func (s *Server) start(ctx context.Context, programs programs, major int, extra map[string]string) error {
	var err error
	if s.lock, err = s.dir.lock(); err != nil {
		return err
	}
	// The programs were chosen before the directory was ours.
	switch now, err := s.dir.major(); {
	case err != nil:
		return err
	case now != major:
		return fmt.Errorf("%s was changed by another process during the start: try again", s.dir)
	}
	stale, err := s.dir.stopOrphans(ctx, s.log)
	if err != nil {
		return err
	}
	if major == 0 {
		err = s.dir.initialize(ctx, programs, s.account, extra, s.log)
	} else {
		err = s.dir.adopt(s.account)
	}
	if err != nil {
		return err
	}
	if err := s.dir.writeAccessRules(ctx); err != nil {
		return err
	}
	if s.socket, err = s.dir.makeSocketDir(ctx, programs, s.account); err != nil {
		return err
	}
	for deadline := time.Now().Add(leftoverLimit); ; {
		err = s.launch(ctx, programs, extra, stale)
		// When postmaster.pid is still the dead server's, PostgreSQL has refused to start because
		// processes of that server still hold its shared memory. They end on their own.
		if err == nil || stale == 0 || s.dir.postmasterPID() != stale || time.Now().After(deadline) {
			break
		}
		if pause(ctx, 250*time.Millisecond) != nil {
			break
		}
	}
	if err != nil {
		return err
	}
	go s.watch()
	return nil
}

// launch starts postgres and waits until it answers.
func (s *Server) launch(ctx context.Context, programs programs, extra map[string]string, stale int) error {
	log, from, err := s.dir.openLog()
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // postgres has its own
	args := append([]string{"-D", s.dir.pg()}, arguments(s.dir, s.socket, extra)...)
	// The context ends the start, not the server, so the command does not get it.
	cmd := s.account.command(context.WithoutCancel(ctx), programs.path("postgres"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if stale != 0 {
		// The number in a dead server's postmaster.pid may meanwhile be that of any other process,
		// which PostgreSQL would take for a running server. This is how pg_ctl tells it not to
		// mind a certain number; the check that matters, of the shared memory, is made all the same.
		cmd.Env = append(cmd.Env, fmt.Sprintf("PG_GRANDPARENT_PID=%d", stale))
	}
	// A terminal's Ctrl-C is for this program, which stops the server after its own work is done;
	// should this program be killed, the server is to end like after Ctrl-C.
	tieToParent(cmd.SysProcAttr, syscall.SIGINT)
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
		if s.dir.saysReady() { // asked earlier, it logs an error
			err := ensureDatabase(ctx, s.socket)
			if err == nil {
				return nil
			}
			if !isNotYet(err) {
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

// exitError says why the process, which has ended, did.
func (s *Server) exitError(what string) error {
	text := s.dir.logTail(s.logFrom)
	if text == "" {
		text = "(nothing was logged)"
	}
	return fmt.Errorf("%s (%s); the end of %s:\n%s", what, s.process.state(), s.dir.logFile(), text)
}

func (s *Server) watch() {
	defer close(s.watched)
	<-s.process.ended
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopping {
		s.cause = s.exitError("PostgreSQL ended by itself")
		close(s.done)
	}
}

// URL returns the connection string of the database `queued`, for pgx and libpq alike. It holds
// no secret: the server knows its user by the process that connects.
func (s *Server) URL() string { return s.socket.url(databaseName) }

// Done returns a channel that is closed when PostgreSQL has ended by itself; Stop does not close it.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns why PostgreSQL ended by itself, with the end of its log, once Done is closed, and nil before.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Stop ends the server, breaking the connections that are left, and frees the directory. When
// ctx ends first, the server is ended at once, which costs the next start a recovery but no
// committed data, and the error wraps ctx's. A call on a stopped server returns what the first one did.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() {
		s.mu.Lock()
		s.stopping = true
		s.mu.Unlock()
		s.stopErr = s.abandon(ctx)
		select {
		case <-s.process.ended:
			<-s.watched
			s.log.Info().Msg("private PostgreSQL stopped")
		default:
		}
	})
	return s.stopErr
}

// abandon gives back whatever a start has got so far.
func (s *Server) abandon(ctx context.Context) error {
	var stopped error
	if s.process != nil {
		stopped = s.process.stop(ctx)
		select {
		case <-s.process.ended:
		default:
			return stopped // the directory stays locked as long as something may write into it
		}
	}
	var removed error
	if s.socket != "" {
		removed = s.dir.dropSocketDir()
	}
	return errors.Join(stopped, removed, s.lock.release())
}
