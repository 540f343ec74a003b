//go:build unix

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queued/queued/internal/porttest"
)

// build is a program under test: that of this repository, or one that is broken on purpose.
type build struct {
	name  string // "" for the unmodified program
	edits []edit // of its sources, before it is built
	sql   []edit // of functions in the database (file is the function's name), after it has migrated
	// setting is a statement run in the database by a superuser, after it was made.
	setting string
}

// edit replaces a text, which must exist, by another. An empty text stands for a file that is not there yet.
type edit struct{ file, old, new string }

// unmodified is the program of this repository.
var unmodified = build{}

// programs are the builds on disk.
var programs struct {
	sync.Mutex
	dir   string
	paths map[string]string
}

func removePrograms() error {
	programs.Lock()
	defer programs.Unlock()
	if programs.dir == "" {
		return nil
	}
	return os.RemoveAll(programs.dir)
}

// programDir returns the directory of the builds. The caller has the lock.
func programDir(t *testing.T) string {
	t.Helper()
	if programs.dir == "" {
		dir, err := os.MkdirTemp("", "queued-faults-programs-") //nolint:usetesting // it outlives the test
		if err != nil {
			t.Fatal(err)
		}
		programs.dir, programs.paths = dir, map[string]string{}
	}
	return programs.dir
}

// program returns the path of the built program.
func (b build) program(t *testing.T) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	dir := programDir(t)
	name := b.name
	if len(b.edits) == 0 {
		name = ""
	}
	if path := programs.paths[name]; path != "" {
		return path
	}
	path := filepath.Join(dir, "queued-"+strconv.Itoa(len(programs.paths)))
	args := []string{"build", "-o", path}
	if len(b.edits) > 0 {
		args = append(args, "-overlay", b.overlay(t, path))
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, "./cmd/queued")...)
	cmd.Dir = root(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building %q: %v\n%s", b.name, err, out)
	}
	programs.paths[name] = path
	return path
}

// overlay writes the edited sources and the overlay file for go build, next to path.
func (b build) overlay(t *testing.T, path string) string {
	t.Helper()
	replaced := map[string]string{}
	for i, e := range b.edits {
		source := e.path(t)
		from := source
		if replaced[source] != "" {
			from = replaced[source]
		}
		var text []byte
		if e.old != "" {
			var err error
			if text, err = os.ReadFile(from); err != nil {
				t.Fatal(err)
			}
		}
		changed := strings.Replace(string(text), e.old, e.new, 1)
		if changed == string(text) {
			t.Fatalf("the broken build %q: %s does not contain %q", b.name, e.file, e.old)
		}
		copied := fmt.Sprintf("%s-%d.go", path, i)
		if err := os.WriteFile(copied, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		replaced[source] = copied
	}
	text, err := json.Marshal(map[string]any{"Replace": replaced})
	if err == nil {
		err = os.WriteFile(path+".json", text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path + ".json"
}

// goRoot stands for the directory of Go in the files of edits.
const goRoot = "GOROOT/"

// path returns the file that is edited.
func (e edit) path(t *testing.T) string {
	t.Helper()
	name, isGo := strings.CutPrefix(e.file, goRoot)
	if !isGo {
		return filepath.Join(root(t), e.file)
	}
	dir, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(dir)), name)
}

// root returns the directory of the module.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// breakDatabase applies the database changes of a broken build to a migrated database.
func (b build) breakDatabase(t *testing.T, server *Server) {
	t.Helper()
	for _, e := range b.sql {
		definition := query[string](t, server.AdminURL(), `
			select pg_catalog.pg_get_functiondef(p.oid) from pg_catalog.pg_proc p
			where p.pronamespace in ('agent'::regnamespace, 'agent_service'::regnamespace, 'agent_private'::regnamespace) and p.proname = $1`, e.file)
		changed := strings.Replace(definition, e.old, e.new, 1)
		if changed == definition {
			t.Fatalf("the broken build %q: the function %s does not contain %q", b.name, e.file, e.old)
		}
		server.Exec(ordinary, changed)
	}
	if b.setting != "" {
		server.Exec(ordinary, b.setting)
	}
}

// queued is a running program, which keeps its address across restarts.
type queued struct {
	t       *testing.T
	program string
	addr    string
	command string // of the program: serve, or gateway
	environ []string
	log     string
	process *process
}

// startQueued starts the program on a database and returns when it is ready. It ends with the test.
func startQueued(t *testing.T, b build, databaseURL string, environ ...string) *queued {
	t.Helper()
	return startProgram(t, b.program(t), databaseURL, environ...)
}

func startProgram(t *testing.T, program, databaseURL string, environ ...string) *queued {
	t.Helper()
	return startCommand(t, program, "serve", append([]string{
		"QUEUED_DATABASE_URL=" + databaseURL, "QUEUED_MAX_CONNS=8", "QUEUED_MAX_ATTEMPTS=100000", "QUEUED_SWEEP_INTERVAL=1s",
	}, environ...)...)
}

// startCommand starts a command of the program and returns when it is ready. It ends with the test.
func startCommand(t *testing.T, program, command string, environ ...string) *queued {
	t.Helper()
	q := &queued{
		t: t, program: program, command: command, addr: "127.0.0.1:" + strconv.Itoa(porttest.Free(t)), log: filepath.Join(t.TempDir(), "queued.log"),
		environ: append([]string{"QUEUED_LOG_FORMAT=json"}, environ...),
	}
	q.start()
	q.awaitReady(startLimit)
	t.Cleanup(func() {
		if q.process.running() {
			_ = q.process.kill()
		}
		if t.Failed() {
			t.Logf("queued %s on %s logged the errors:\n%s\nand its last lines are:\n%s", q.command, q.addr, q.errors(20), q.lastLog(20))
		}
	})
	return q
}

func (q *queued) start() {
	q.t.Helper()
	log, err := os.OpenFile(q.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		q.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(context.Background(), q.program, q.command)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nowhere", "QUEUED_LISTEN=" + q.addr}, q.environ...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if q.process, err = startProcess(cmd); err != nil {
		q.t.Fatal(err)
	}
}

// awaitReady waits until /readyz returns 200, and returns how long that took.
func (q *queued) awaitReady(limit time.Duration) time.Duration {
	q.t.Helper()
	began := time.Now()
	for {
		status, body, _ := q.get("/readyz", 5*time.Second)
		switch {
		case status == http.StatusOK:
			return time.Since(began)
		case !q.process.running():
			q.t.Fatalf("queued has ended: %s\n%s", q.process.cmd.ProcessState, q.lastLog(20))
		case time.Since(began) > limit:
			q.t.Fatalf("queued was not ready within %v: /readyz returned %d %s\n%s", limit, status, body, q.lastLog(20))
		}
		pause(10 * time.Millisecond)
	}
}

// get sends one request over a new connection. Status 0 means that there was no response.
func (q *queued) get(path string, limit time.Duration) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+q.addr+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	return send(req, limit)
}

// ask is get with a method and a body of JSON. Without a response the answer is why there is none.
func (q *queued) ask(method, path, body string) (status int, answer string) {
	req, err := http.NewRequestWithContext(context.Background(), method, "http://"+q.addr+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	status, answer, err = send(req, time.Minute)
	if err != nil {
		answer = err.Error()
	}
	return status, answer
}

// mustAsk repeats a request until its status is below 300.
func (q *queued) mustAsk(method, path, body string) {
	q.t.Helper()
	for began := time.Now(); ; pause(50 * time.Millisecond) {
		status, answer := q.ask(method, path, body)
		if status >= 200 && status < 300 {
			return
		}
		if time.Since(began) > startLimit {
			q.t.Fatalf("%s %s: %d %s", method, path, status, answer)
		}
	}
}

func send(req *http.Request, limit time.Duration) (status int, body string, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: limit}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

func (q *queued) kill() {
	q.t.Helper()
	if err := q.process.kill(); err != nil {
		q.t.Fatal(err)
	}
}

// terminate sends SIGTERM and returns the exit code and the time it took. After startLimit it kills the process, and the code is -1.
func (q *queued) terminate() (int, time.Duration) {
	q.t.Helper()
	began := time.Now()
	_ = q.process.stop(syscall.SIGTERM, startLimit)
	return q.process.cmd.ProcessState.ExitCode(), time.Since(began)
}

// errors returns the first log lines of level error.
func (q *queued) errors(n int) string {
	text, _ := os.ReadFile(q.log)
	var found []string
	for line := range strings.Lines(string(text)) {
		if len(found) < n && strings.Contains(line, `"level":"error"`) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}

func (q *queued) lastLog(n int) string { return lastLines(q.log, n) }
