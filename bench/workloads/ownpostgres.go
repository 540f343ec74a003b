package workloads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queued/queued/bench/load"
)

// ownPostgres is a PostgreSQL server that this program has started, for one database of queued.
type ownPostgres struct {
	url     string // of the database postgres, as a superuser
	dir     string
	command *exec.Cmd // a copy that was not started
	process *process
	group   *cpuGroup // nil: it is not held
	cores   float64   // that it is held to
}

// startPostgres starts a new PostgreSQL server with the programs of this machine and the durability of its defaults, held to so many processors; 0: to none. failed is
// called when it ends by itself. It must be closed.
func startPostgres(ctx context.Context, cores float64, failed context.CancelCauseFunc) (p *ownPostgres, err error) {
	bin, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	p = &ownPostgres{cores: cores}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.dir, err = os.MkdirTemp("", "queued-bench-"); err != nil {
		return nil, err
	}
	attributes := serverAttributes()
	if err := asOrdinaryUser(attributes, p.dir); err != nil {
		return nil, err
	}
	data := filepath.Join(p.dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "--username", "postgres", "--auth", "trust", "--encoding", "UTF8", "--locale", "C") //nolint:gosec // a program of PostgreSQL
	initdb.SysProcAttr, initdb.Dir = attributes, "/"
	if output, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("making a PostgreSQL: %w\n%s", err, output)
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	if p.group, err = p.hold(); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-c", "listen_addresses=127.0.0.1", "-c", "port="+strconv.Itoa(port), "-c", "unix_socket_directories=") //nolint:gosec,noctx // as above; it is stopped in order
	cmd.SysProcAttr, cmd.Dir = attributes, "/"
	p.command = cmd
	if err := p.launch(failed); err != nil {
		return nil, err
	}
	p.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", port)
	if err := p.awaitReady(ctx); err != nil {
		return nil, err
	}
	if p.group != nil {
		err = p.group.add(p.process.cmd.Process.Pid)
	}
	return p, err
}

// launch starts the server's process. failed is called when it ends by itself.
func (p *ownPostgres) launch(failed context.CancelCauseFunc) (err error) {
	cmd := exec.Command(p.command.Path, p.command.Args[1:]...) //nolint:gosec,noctx // it is stopped in order
	cmd.SysProcAttr, cmd.Dir = p.command.SysProcAttr, p.command.Dir
	if p.process, err = launch(cmd, failed); err == nil {
		p.process.stopBy = syscall.SIGINT // whoever is connected is cut off
	}
	return err
}

// crash kills the server, and starts it again on its data. It returns when that answers.
func (p *ownPostgres) crash(ctx context.Context, failed context.CancelCauseFunc) error {
	if err := p.process.kill(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("PostgreSQL did not answer within %s after it was killed", startLimit))
	defer cancel()
	for {
		// Sessions of the server that was killed may not have noticed yet, and the new one then refuses to start.
		var answers atomic.Bool
		if err := p.launch(func(err error) {
			if answers.Load() {
				failed(err)
			}
		}); err != nil {
			return err
		}
		err := p.awaitReady(ctx)
		answers.Store(true)
		select {
		case <-p.process.ended:
			_ = p.process.log.Close()
		default:
			return err
		}
		if !load.Pause(ctx, pollInterval) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// hold makes the group of the server.
func (p *ownPostgres) hold() (*cpuGroup, error) {
	if p.cores == 0 {
		return nil, nil //nolint:nilnil // it needs none
	}
	group, err := newCPUGroup()
	if err != nil {
		return nil, err
	}
	return group, group.hold(p.cores)
}

// freely runs something during which the server is not held.
func (p *ownPostgres) freely(run func() error) error {
	if p.group == nil {
		return run()
	}
	if err := p.group.hold(0); err != nil {
		return err
	}
	return errors.Join(run(), p.group.hold(p.cores))
}

func (p *ownPostgres) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("PostgreSQL did not answer within %s", startLimit))
	defer cancel()
	for {
		conn, err := connect(ctx, p.url)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-p.process.ended:
			return p.process.failure()
		default:
		}
		if !load.Pause(ctx, pollInterval) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// cpu is the processor time of all its processes.
func (p *ownPostgres) cpu() time.Duration {
	stat, _ := processStat(strconv.Itoa(p.process.cmd.Process.Pid))
	return stat.cpu + childrenUsage(p.process.cmd.Process.Pid)
}

// close ends the server and removes all that it had.
func (p *ownPostgres) close() (err error) {
	if p.process != nil {
		err = p.process.stop()
	}
	if p.group != nil {
		err = errors.Join(err, p.group.remove())
	}
	if p.dir != "" {
		err = errors.Join(err, os.RemoveAll(p.dir))
	}
	return err
}

// postgresPrograms returns the folder of the newest PostgreSQL of this machine.
func postgresPrograms() (string, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) > 0 {
		version := func(path string) int {
			n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
			return n
		}
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
	}
	path, err := exec.LookPath("initdb")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return "", fmt.Errorf("this workload starts servers of PostgreSQL, whose programs are not on this machine (for example `apt-get install postgresql`): %w", err)
	}
	return filepath.Dir(path), nil
}

// freePort returns a TCP port that nobody listens on.
func freePort(ctx context.Context) (port int, err error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func(c io.Closer) { err = errors.Join(err, c.Close()) }(listener)
	return listener.Addr().(*net.TCPAddr).Port, nil
}
