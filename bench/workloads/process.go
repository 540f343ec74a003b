package workloads

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

const (
	startLimit = 2 * time.Minute // for a server, with its migration, on a busy machine
	stopLimit  = time.Minute

	pollInterval = 20 * time.Millisecond // of questions whether a server serves
)

// Which build of queued: ForUsers is static, as make build makes it, and is measured. ForTests shares the packages that the tests of queued
// have compiled.
const (
	ForUsers = true
	ForTests = false
)

// Build builds queued from its repository, the folder root. remove removes the program.
func Build(ctx context.Context, root string, isForUsers bool) (program string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "queued-bench-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	program = filepath.Join(dir, "queued")
	args := []string{"build", "-C", root, "-o", program}
	if isForUsers {
		args = append(args, "-trimpath")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/queued")...) //nolint:gosec // a folder of our own
	if isForUsers {
		cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		remove()
		return "", nil, fmt.Errorf("building queued from %s (run this in bench/, or give --program): %w\n%s", root, err, output)
	}
	return program, remove, nil
}

// process is a queued that this program has started, or a PostgreSQL.
type process struct {
	cmd      *exec.Cmd
	stopBy   syscall.Signal
	log      *os.File // its standard error: a file, which costs the load generator nothing
	ended    chan struct{}
	stopping atomic.Bool
}

// ownSettings are the variables that a started server does not inherit.
var ownSettings = []string{
	"QUEUED_DATABASE_URL", "QUEUED_DATABASE_URL_FILE", "QUEUED_DATA_DIR", "QUEUED_LISTEN", "QUEUED_API_KEY", "QUEUED_API_KEY_FILE",
	"QUEUED_LOG_FORMAT", "QUEUED_LOG_LEVEL", "QUEUED_CELL", "QUEUED_CELLS", "QUEUED_KEY", "QUEUED_KEY_FILE",
}

// startProcess starts a server on a database and returns its URL when it serves. It has the settings that environ holds, and
// logs as it does by default. failed is called when it ends without having been stopped.
func startProcess(
	ctx context.Context, program string, environ []string, databaseURL string, failed context.CancelCauseFunc,
) (p *process, url string, err error) {
	return startCommand(ctx, program, "serve", environ, []string{"QUEUED_DATABASE_URL=" + databaseURL}, failed)
}

// startCommand is startProcess for any command that serves, with settings beside those of environ.
func startCommand(
	ctx context.Context, program, command string, environ, settings []string, failed context.CancelCauseFunc,
) (p *process, url string, err error) {
	cmd := exec.Command(program, command) //nolint:gosec,noctx // it is what the user measures; it is stopped in order, not killed with a context
	for _, variable := range environ {
		if name, _, _ := strings.Cut(variable, "="); !slices.Contains(ownSettings, name) {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(append(cmd.Env, settings...), "QUEUED_LISTEN=127.0.0.1:0", "QUEUED_LOG_FORMAT=json")
	cmd.SysProcAttr = serverAttributes()
	if p, err = launch(cmd, failed); err != nil {
		return nil, "", err
	}
	if url, err = p.waitForURL(ctx); err != nil {
		return nil, "", errors.Join(err, p.stop())
	}
	return p, url, nil
}

// launch starts a process. failed is called when it ends without having been stopped.
func launch(cmd *exec.Cmd, failed context.CancelCauseFunc) (p *process, err error) {
	p = &process{cmd: cmd, stopBy: syscall.SIGTERM, ended: make(chan struct{})}
	if p.log, err = os.CreateTemp("", "queued-bench-*.log"); err != nil {
		return nil, err
	}
	_ = os.Remove(p.log.Name()) // it exists as long as it is open
	cmd.Stderr = p.log
	started := make(chan error, 1)
	go func() {
		// A process that is tied to its parent is signalled when the thread that made it ends, and Go ends threads as it likes.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // how it ended is in cmd.ProcessState
		if !p.stopping.Load() {
			failed(p.failure())
		}
	}()
	if err := <-started; err != nil {
		_ = p.log.Close()
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	return p, nil
}

// waitForURL returns the URL that the server logs once it serves.
func (p *process) waitForURL(ctx context.Context) (string, error) {
	const most = 1 << 20
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("the server did not serve within %s", startLimit))
	defer cancel()
	for load.Pause(ctx, pollInterval) {
		select {
		case <-p.ended:
			return "", p.failure()
		default:
		}
		log, err := io.ReadAll(io.NewSectionReader(p.log, 0, most))
		if err != nil {
			return "", err
		}
		for line := range bytes.Lines(log) {
			var entry struct{ Message, URL string }
			if json.Unmarshal(line, &entry) == nil && entry.Message == "serving" {
				return entry.URL, nil
			}
		}
	}
	return "", fmt.Errorf("%w; the end of its log:\n%s", context.Cause(ctx), p.logTail())
}

// logTail is the end of the log, without the lines about requests.
func (p *process) logTail() string {
	const read, shown = 64 << 10, 4 << 10
	info, err := p.log.Stat()
	if err != nil {
		return ""
	}
	log, _ := io.ReadAll(io.NewSectionReader(p.log, max(0, info.Size()-read), read))
	var tail []byte
	for line := range bytes.Lines(log) {
		if !bytes.Contains(line, []byte(`"message":"request"`)) {
			tail = append(tail, line...)
		}
	}
	return string(bytes.TrimSpace(tail[max(0, len(tail)-shown):]))
}

// failure is the error of a process that was not to end.
func (p *process) failure() error {
	return fmt.Errorf("the server ended by itself (%s); the end of its log:\n%s", p.cmd.ProcessState, p.logTail())
}

// stop ends the process in order, and kills it when that takes too long.
func (p *process) stop() error {
	defer func() { _ = p.log.Close() }()
	if p.stopping.Swap(true) {
		return nil
	}
	select {
	case <-p.ended:
		return nil // failed was called
	default:
	}
	if err := p.cmd.Process.Signal(p.stopBy); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping the server: %w", err)
	}
	timer := time.NewTimer(stopLimit)
	defer timer.Stop()
	select {
	case <-p.ended:
		if !p.cmd.ProcessState.Success() {
			return fmt.Errorf("the server did not stop cleanly (%s); the end of its log:\n%s", p.cmd.ProcessState, p.logTail())
		}
		return nil
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("the server did not stop within %s and was killed; the end of its log:\n%s", stopLimit, p.logTail())
	}
}

// reading is a moment's counters, of which two make a difference.
type reading struct {
	at             time.Time
	client, server time.Duration // CPU
	machine        time.Duration // CPU of everything on the machine of this program
	rss            int64         // the server's memory, bytes
	wal            int64         // bytes, of the whole PostgreSQL server
	commits        int64         // of the database
}

func (srv *server) read(ctx context.Context) (r reading, err error) {
	r.at = time.Now()
	if srv.db != nil {
		if err := srv.db.conn.QueryRow(ctx, countersStatement).Scan(&r.wal, &r.commits); err != nil {
			return r, err
		}
	}
	r.server, r.rss, err = srv.usage(ctx)
	r.client, r.machine, r.at = load.OwnCPU(), report.BusyTime(), time.Now()
	return r, err
}

// usage is the server's CPU time and memory. Its metrics count the queues as well, which takes the
// database a while when they are long; so the system is asked about a process that was started here.
func (srv *server) usage(ctx context.Context) (cpu time.Duration, rss int64, err error) {
	if srv.process != nil {
		if cpu, rss, ok := processUsage(srv.process.cmd.Process.Pid); ok {
			return cpu, rss, nil
		}
	}
	body, err := srv.target.Get(ctx, "/metrics")
	if err != nil {
		return 0, 0, err
	}
	cpu = time.Duration(metric(body, "process_cpu_seconds_total") * float64(time.Second))
	return cpu, int64(metric(body, "process_resident_memory_bytes")), nil
}

// clockTicks is the unit of CPU time in /proc: 100 Hz on every Linux that Go runs on.
const clockTicks = 100

// processUsage reads /proc, where that exists.
func processUsage(pid int) (cpu time.Duration, rss int64, ok bool) {
	stat, ok := processStat(strconv.Itoa(pid))
	return stat.cpu, stat.rss, ok
}

// stat is the state of a process, from /proc.
type stat struct {
	parent     int64
	cpu, ended time.Duration // its own processor time, and that of children that have ended
	rss        int64         // bytes
}

func processStat(pid string) (s stat, ok bool) {
	text, err := os.ReadFile("/proc/" + pid + "/stat") //nolint:gosec // a number that /proc lists
	if err != nil {
		return s, false
	}
	// The second field, a name in parentheses, may hold blanks; the rest begins with the third (proc(5)).
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 22 {
		return s, false
	}
	var n [6]int64
	for i, at := range []int{4, 14, 15, 16, 17, 24} { // ppid, utime, stime, cutime, cstime, rss in pages
		if n[i], err = strconv.ParseInt(string(fields[at-3]), 10, 64); err != nil {
			return s, false
		}
	}
	ticks := func(n int64) time.Duration { return time.Duration(n) * time.Second / clockTicks }
	return stat{parent: n[0], cpu: ticks(n[1] + n[2]), ended: ticks(n[3] + n[4]), rss: n[5] * int64(os.Getpagesize())}, true
}

// metric finds a sample without labels in Prometheus' text format; it is zero when there is none.
func metric(body []byte, name string) float64 {
	for line := range bytes.Lines(body) {
		if value, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			f, _ := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
			return f
		}
	}
	return 0
}
