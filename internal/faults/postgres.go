//go:build unix

package faults

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/porttest"
)

const (
	// startLimit bounds the start of a server, its recovery included, and its promotion, on a busy machine.
	startLimit = 2 * time.Minute

	superuser = "postgres"
	ordinary  = "queued" // the role that owns the database of the same name
)

// Config configures a server. Its zero value is a server with the defaults of PostgreSQL.
type Config struct {
	Settings map[string]string // in addition to those of every server, which they override
	Base     string            // the directory to make the server's own in; zero: that of temporary files
	Environ  []string          // further variables for the server's processes
}

// Server is one PostgreSQL, on a TCP port of its own that it keeps when it is started again.
type Server struct {
	Port int

	t        *testing.T
	user     serverUser
	bin      string
	dir      string // of the data
	settings map[string]string
	environ  []string
	process  *process
	frozen   bool
}

// Start creates a server and starts it. It ends with the test. It is a plain PostgreSQL whatever the flavour of the run.
func Start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s := newServer(t, cfg)
	s.copyTemplate()
	s.Start()
	return s
}

// template is the data directory of a new server, because a copy is faster than initdb. It is removed when no test
// uses it any more.
var template struct {
	sync.Mutex
	parent string
	users  int
}

// copyTemplate copies the template's data to the server, and creates the template if there is none.
func (s *Server) copyTemplate() {
	s.t.Helper()
	template.Lock()
	defer template.Unlock()
	if template.users == 0 {
		parent, err := s.user.newDirectory("")
		if err != nil {
			s.t.Fatal(err)
		}
		template.parent = parent
	}
	template.users++
	s.t.Cleanup(func() {
		template.Lock()
		defer template.Unlock()
		if template.users--; template.users == 0 {
			if err := os.RemoveAll(template.parent); err != nil {
				s.t.Errorf("removing the template: %v", err)
			}
		}
	})
	data := filepath.Join(template.parent, "data")
	if _, err := os.Stat(data); err != nil {
		made := *s
		made.dir, made.environ = filepath.Join(template.parent, "new"), nil
		made.run("initdb", "-D", made.dir, "--username", superuser, "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions")
		made.Start()
		made.Exec("", `create role `+ordinary+` login`)
		made.Exec("", `create database `+ordinary+` owner `+ordinary)
		made.Stop()
		if err := os.Rename(made.dir, data); err != nil {
			s.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if out, err := s.user.command(ctx, nil, "cp", "-R", "-p", data, s.dir).CombinedOutput(); err != nil {
		s.t.Fatalf("copying the template: %v\n%s", err, out)
	}
}

func newServer(t *testing.T, cfg Config) *Server {
	t.Helper()
	s := &Server{t: t, Port: porttest.Free(t), environ: cfg.Environ, settings: map[string]string{
		"max_connections":             "200",
		"wal_level":                   "replica",
		"max_wal_senders":             "10",
		"wal_keep_size":               "256MB",
		"hot_standby":                 "on",
		"wal_receiver_timeout":        "5s",
		"wal_retrieve_retry_interval": "200ms",
		"restart_after_crash":         "on",
		"shared_buffers":              "32MB",
		// In the data directory. A killed server leaves those of the default type on the machine.
		"dynamic_shared_memory_type": "mmap",
		"log_line_prefix":            "%m [%p] ",
	}}
	maps.Copy(s.settings, cfg.Settings)
	var err error
	if s.user, err = findServerUser(); err == nil {
		s.bin, err = binDir()
	}
	if err != nil {
		t.Fatal(err)
	}
	parent := s.user.directory(t, cfg.Base)
	s.dir = filepath.Join(parent, "data")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of the server on port %d:\n%s", s.Port, s.LastLog())
		}
		if s.process != nil {
			if err := s.process.kill(); err != nil {
				t.Errorf("ending a server: %v", err)
			}
		}
	})
	return s
}

// run runs one of PostgreSQL's programs, which must succeed.
func (s *Server) run(program string, args ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	out, err := s.user.command(ctx, nil, filepath.Join(s.bin, program), args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", program, err, out)
	}
}

// Start starts the server, which must not be running, and returns when it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.StartWithoutWaiting()
	s.AwaitReady()
}

// StartWithoutWaiting starts the server and does not wait until it answers.
func (s *Server) StartWithoutWaiting() {
	s.t.Helper()
	if s.process != nil && s.process.running() {
		s.t.Fatal("the server is running already")
	}
	s.writeSettings()
	log, err := os.OpenFile(s.logFile(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := s.user.command(context.Background(), s.environ, filepath.Join(s.bin, "postgres"), "-D", s.dir)
	cmd.Stdout, cmd.Stderr = log, log
	if s.process, err = startProcess(cmd); err != nil {
		s.t.Fatal(err)
	}
	s.frozen = false
}

// AwaitReady returns when the server answers.
func (s *Server) AwaitReady() {
	s.t.Helper()
	s.await("answers", func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, s.adminURL(""))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}

// await polls state until it has no error, or fails the test.
func (s *Server) await(what string, state func(ctx context.Context) error) {
	s.t.Helper()
	deadline := time.Now().Add(startLimit)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := state(ctx)
		cancel()
		switch {
		case err == nil:
			return
		case !s.process.running():
			s.t.Fatalf("the server on port %d has ended (%s); its log:\n%s", s.Port, s.process.cmd.ProcessState, s.LastLog())
		case time.Now().After(deadline):
			s.t.Fatalf("timed out waiting until the server on port %d %s: %v", s.Port, what, err)
		}
		pause(20 * time.Millisecond)
	}
}

// writeSettings writes postgresql.conf. pg_basebackup writes postgresql.auto.conf, which overrides it.
func (s *Server) writeSettings() {
	s.t.Helper()
	all := maps.Clone(s.settings)
	all["listen_addresses"] = "127.0.0.1"
	all["port"] = strconv.Itoa(s.Port)
	all["unix_socket_directories"] = ""
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, strings.ReplaceAll(all[name], "'", "''"))
	}
	if err := os.WriteFile(filepath.Join(s.dir, "postgresql.conf"), []byte(text.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// Set changes a setting, now and for later starts. If the server runs, the setting must take effect by a reload.
func (s *Server) Set(name, value string) {
	s.t.Helper()
	s.settings[name] = value
	s.writeSettings()
	if s.process == nil || !s.process.running() {
		return
	}
	if err := s.process.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		s.t.Fatal(err)
	}
	s.await("has reloaded "+name, func(ctx context.Context) error {
		var now string
		if err := s.queryRow(ctx, &now, `select setting from pg_catalog.pg_file_settings where name = $1 and error is null order by seqno desc limit 1`, name); err != nil {
			return err
		}
		if err := s.queryRow(ctx, &now, `select pg_catalog.current_setting($1)`, name); err != nil {
			return err
		}
		if now != value {
			return fmt.Errorf("it is %q, not %q", now, value)
		}
		return nil
	})
}

// Kill ends all processes of the server by SIGKILL, and returns when they are gone.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.process.kill(); err != nil {
		s.t.Fatal(err)
	}
}

// killBackend ends one session of the server by SIGKILL. PostgreSQL then ends all of them and recovers.
func (s *Server) killBackend() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.adminURL(""))
	if err == nil {
		err = syscall.Kill(int(conn.PgConn().PID()), syscall.SIGKILL)
		_ = conn.Close(ctx)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// Freeze stops all processes of the server by SIGSTOP: its connections stay open, without answers.
func (s *Server) Freeze() {
	s.t.Helper()
	if err := s.process.signalTree(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	s.frozen = true
}

// Unfreeze resumes a frozen server.
func (s *Server) Unfreeze() {
	s.t.Helper()
	if err := s.process.signalTree(syscall.SIGCONT); err != nil {
		s.t.Fatal(err)
	}
	s.frozen = false
}

// Stop shuts the server down, in PostgreSQL's fast mode.
func (s *Server) Stop() {
	s.t.Helper()
	if err := s.process.stop(syscall.SIGINT, startLimit); err != nil {
		s.t.Fatal(err)
	}
}

// Running reports whether the server has processes, frozen ones included.
func (s *Server) Running() bool { return s.process != nil && s.process.running() }

// URL connects to the database queued as the ordinary role that owns it. It names further servers after this one, in
// their order, and has no target_session_attrs.
func (s *Server) URL(others ...*Server) string {
	hosts := s.Addr()
	for _, other := range others {
		hosts += "," + other.Addr()
	}
	return "postgres://" + ordinary + "@" + hosts + "/" + ordinary + "?sslmode=disable"
}

// urlOf connects to a database as the ordinary role.
func (s *Server) urlOf(database string) string {
	return "postgres://" + ordinary + "@" + s.Addr() + "/" + database + "?sslmode=disable"
}

// AdminURL connects to the database queued as a superuser.
func (s *Server) AdminURL() string { return s.adminURL(ordinary) }

func (s *Server) adminURL(database string) string {
	if database == "" {
		database = superuser
	}
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Host: s.Addr(), Path: "/" + database, RawQuery: "sslmode=disable&connect_timeout=5"}
	return u.String()
}

// Addr is where the server listens, host:port.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }

// Exec runs statements as a superuser in a database; "" is the server's own.
func (s *Server) Exec(database, statements string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.adminURL(database))
	if err == nil {
		_, err = conn.PgConn().Exec(ctx, statements).ReadAll()
		_ = conn.Close(ctx)
	}
	if err != nil {
		s.t.Fatalf("%s: %v", statements, err)
	}
}

// queryRow reads one value as a superuser.
func (s *Server) queryRow(ctx context.Context, value any, query string, args ...any) error {
	conn, err := pgx.Connect(ctx, s.adminURL(""))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return conn.QueryRow(ctx, query, args...).Scan(value)
}

func (s *Server) logFile() string { return filepath.Join(filepath.Dir(s.dir), "log") }

// LastLog returns the end of the server's log.
func (s *Server) LastLog() string { return lastLines(s.logFile(), 30) }

// Standby makes a standby of the server and starts it. It ends with the test.
func (s *Server) Standby(cfg Config) *Server {
	s.t.Helper()
	standby := newServer(s.t, cfg)
	standby.Follow(s)
	return standby
}

// Follow replaces the data of the server, which must not be running, and makes it a standby of another. It
// returns when it has caught up.
func (s *Server) Follow(primary *Server) {
	s.t.Helper()
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Fatal(err)
	}
	connInfo := fmt.Sprintf("host=127.0.0.1 port=%d user=%s application_name=%s connect_timeout=3", primary.Port, superuser, s.name())
	s.run("pg_basebackup", "-D", s.dir, "-d", connInfo, "--checkpoint=fast", "--no-sync", "-R", "-X", "stream")
	s.settings["synchronous_standby_names"] = "" // for after a promotion
	s.Start()
	primary.AwaitStandby(s)
}

// name is the server's application_name as a standby.
func (s *Server) name() string { return "standby_" + strconv.Itoa(s.Port) }

// AwaitStandby returns when a standby streams, and shows everything that was committed before the call.
func (s *Server) AwaitStandby(standby *Server) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	var end string
	if err := s.queryRow(ctx, &end, `select pg_catalog.pg_logical_emit_message(true, 'awaited', '')::text`); err != nil {
		s.t.Fatal(err)
	}
	standby.await("has caught up with "+end, func(ctx context.Context) error {
		var streams, replayed bool
		err := s.queryRow(ctx, &streams, `select pg_catalog.count(*) > 0 from pg_catalog.pg_stat_replication where application_name = $1 and state = 'streaming'`, standby.name())
		if err == nil {
			err = standby.queryRow(ctx, &replayed, `select coalesce(pg_catalog.pg_last_wal_replay_lsn() >= $1::text::pg_catalog.pg_lsn, false)`, end)
		}
		if err == nil && (!streams || !replayed) {
			err = fmt.Errorf("it streams: %t; it is there: %t", streams, replayed)
		}
		return err
	})
}

// RequireSync makes each commit wait for a standby, and returns when that one is in sync; nil ends that.
func (s *Server) RequireSync(standby *Server) {
	s.t.Helper()
	if standby == nil {
		s.Set("synchronous_standby_names", "")
		return
	}
	s.Set("synchronous_standby_names", standby.name())
	standby.await("is in sync", func(ctx context.Context) error {
		var state string
		err := s.queryRow(ctx, &state, `select sync_state from pg_catalog.pg_stat_replication where application_name = $1`, standby.name())
		if err == nil && state != "sync" {
			err = fmt.Errorf("it is %s", state)
		}
		return err
	})
}

// Promote makes a standby a primary, and returns when it takes writes.
func (s *Server) Promote() {
	s.t.Helper()
	s.run("pg_ctl", "promote", "-D", s.dir, "-w", "-t", strconv.Itoa(int(startLimit/time.Second)))
	s.await("takes writes", func(ctx context.Context) error {
		var recovering bool
		err := s.queryRow(ctx, &recovering, `select pg_catalog.pg_is_in_recovery()`)
		if err == nil && recovering {
			err = fmt.Errorf("it is in recovery")
		}
		return err
	})
}

// PauseReplication stops the processes that send the log to standbys, so that later commits do not reach them.
// Use it before a primary is killed.
func (s *Server) PauseReplication() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.adminURL(""))
	if err == nil {
		err = pauseSenders(ctx, conn)
		_ = conn.Close(ctx)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// pauseSenders stops the processes that send the log of conn's server to its standbys.
func pauseSenders(ctx context.Context, conn *pgx.Conn) error {
	var pids []int32
	if err := conn.QueryRow(ctx, `select coalesce(pg_catalog.array_agg(pid), '{}') from pg_catalog.pg_stat_replication`).Scan(&pids); err != nil {
		return err
	}
	for _, pid := range pids {
		if err := syscall.Kill(int(pid), syscall.SIGSTOP); err != nil {
			return err
		}
	}
	return nil
}
