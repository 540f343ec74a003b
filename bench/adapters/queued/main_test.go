package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/bench/workloads"
)

// Variables that make this program a queued that serves at the URL that the first has, and does not end when it is asked to; and that the second is one that ends when
// GET /end is answered there.
const (
	fakeEnv = "QUEUED_ADAPTER_TEST_FAKE"
	endsEnv = "QUEUED_ADAPTER_TEST_FAKE_ENDS"
)

// waitLimit bounds every wait of a test. It is long, for a busy machine.
const waitLimit = 3 * time.Minute

// programs are what the tests run.
var programs struct{ queued, adapter string }

func TestMain(m *testing.M) {
	if url := os.Getenv(fakeEnv); url != "" {
		signal.Ignore(syscall.SIGTERM)
		_, _ = fmt.Fprintf(os.Stderr, "a line that is no JSON, with \"serving\"\n{\"message\":\"serving\",\"url\":%q}\n", url)
		if os.Getenv(endsEnv) != "" {
			resp, err := http.Get(url + "/end")
			if err == nil {
				_ = resp.Body.Close()
			}
			os.Exit(3)
		}
		<-time.After(time.Hour)
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	queued, remove, err := workloads.Build(context.Background(), "../../..", workloads.ForTests)
	if err == nil {
		defer remove()
		programs.queued = queued
		programs.adapter = filepath.Join(filepath.Dir(queued), "adapter")
		var output []byte
		if output, err = exec.Command("go", "build", "-o", programs.adapter, ".").CombinedOutput(); err != nil {
			err = fmt.Errorf("%w\n%s", err, output)
		}
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// emptyDatabase makes a database that is dropped at the end of the test.
func emptyDatabase(t *testing.T) (url string) {
	t.Helper()
	server := os.Getenv("QUEUED_TEST_DATABASE_URL")
	if server == "" {
		t.Fatal("QUEUED_TEST_DATABASE_URL is not set: run this with make test-bench, which starts a PostgreSQL")
	}
	postgres, err := workloads.NewPostgres(server)
	if err != nil {
		t.Fatal(err)
	}
	name, url, err := postgres.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := postgres.Drop(context.WithoutCancel(t.Context()), name); err != nil {
			t.Error(err)
		}
	})
	return url
}

// adapter is an adapter at work.
type adapter struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// start starts the adapter on a database. It is killed at the end of the test, unless it has ended.
func start(t *testing.T, databaseURL string, settings ...string) *adapter {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, programs.adapter)
	cmd.Env = append(append(os.Environ(), "DATABASE_URL="+databaseURL, "QUEUED_BENCH_PROGRAM="+programs.queued, "SAMPLE_EVERY_S=1"), settings...)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return &adapter{cmd, bufio.NewScanner(out)}
}

// read reads a record.
func (a *adapter) read(t *testing.T) (record map[string]any) {
	t.Helper()
	if !a.lines.Scan() {
		t.Fatalf("the adapter writes no more: %v", a.lines.Err())
	}
	if err := json.Unmarshal(a.lines.Bytes(), &record); err != nil {
		t.Fatalf("%q: %v", a.lines.Text(), err)
	}
	return record
}

// metrics are those of every tick, in order.
var metrics = []string{
	"enqueue_rate", "completion_rate", "claim_p50_ms", "claim_p95_ms", "claim_p99_ms", "queue_depth", "running_depth", "scheduled_depth", "total_backlog", "producer_target_rate",
}

// tick reads the samples of a tick and checks their form.
func (a *adapter) tick(t *testing.T) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for _, metric := range metrics {
		record := a.read(t)
		at, err := time.Parse(timeFormat, fmt.Sprint(record["t"]))
		if err != nil || at.IsZero() {
			t.Errorf("the time %q: %v", record["t"], err)
		}
		delete(record, "t")
		value, isNumber := record["value"].(float64)
		if !isNumber || value < 0 {
			t.Errorf("the value of %s is %v", metric, record["value"])
		}
		delete(record, "value")
		window := 0.0
		switch {
		case strings.HasSuffix(metric, "_ms"):
			window = 30
		case metric == "enqueue_rate", metric == "completion_rate":
			window = 1
		}
		got, want := fmt.Sprint(record), fmt.Sprint(map[string]any{
			"system": "queued", "kind": "adapter", "subject_kind": "adapter", "subject": "", "metric": metric, "window_s": window, "instance_id": 0,
		})
		if got != want {
			t.Errorf("the sample is %s, want %s", got, want)
		}
		values[metric] = value
	}
	return values
}

// await reads ticks until one is as wanted.
func (a *adapter) await(t *testing.T, what string, is func(map[string]float64) bool) map[string]float64 {
	t.Helper()
	for {
		if values := a.tick(t); is(values) {
			return values
		}
		if t.Failed() {
			t.Fatalf("no tick came in which %s", what)
		}
	}
}

// stop sends the signal that the harness sends, and waits for the end.
func (a *adapter) stop(t *testing.T) {
	t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for a.lines.Scan() {
		if !json.Valid(a.lines.Bytes()) {
			t.Errorf("the line %q was cut off", a.lines.Text())
		}
	}
	if err := a.cmd.Wait(); err != nil {
		t.Errorf("the adapter did not end with 0: %v", err)
	}
}

func TestJobsAreWorkedAndReportedUntilTheSignal(t *testing.T) {
	t.Parallel()
	url, rate := emptyDatabase(t), filepath.Join(t.TempDir(), "rate")
	a := start(t, url, "PRODUCER_RATE=100", "PRODUCER_RATE_CONTROL_FILE="+rate, "JOB_PAYLOAD_BYTES=100")
	described := a.read(t)
	if _, err := time.Parse(timeFormat, fmt.Sprint(described["started_at"])); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{
		"kind": "descriptor", "system": "queued", "extensions": "[]", "db_name": url[strings.LastIndex(url, "/")+1:], "instance_id": "0",
		"event_tables": "[agent.event agent.idempotency]",
	} {
		if got := fmt.Sprint(described[name]); got != want && !strings.HasPrefix(want, got+"?") {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if version, _, _ := strings.Cut(fmt.Sprint(described["version"]), " "); version == "" || version != described["schema_version"] {
		t.Errorf("the versions are %q and %q", described["version"], described["schema_version"])
	}
	a.await(t, "jobs were done", func(values map[string]float64) bool {
		return values["enqueue_rate"] > 0 && values["completion_rate"] > 0 && values["claim_p99_ms"] >= values["claim_p50_ms"] && values["claim_p50_ms"] > 0 &&
			values["producer_target_rate"] == 100
	})
	if err := os.WriteFile(rate, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.await(t, "no more jobs were inserted, and all were done", func(values map[string]float64) bool {
		return values["producer_target_rate"] == 0 && values["enqueue_rate"] == 0 && values["completion_rate"] == 0 && values["total_backlog"] == 0
	})
	if err := os.WriteFile(rate, []byte("200.5"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.await(t, "jobs were done again", func(values map[string]float64) bool { return values["completion_rate"] > 0 })
	a.stop(t)

	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	var leased, done, missing, longest int
	err = conn.QueryRow(t.Context(), `with jobs as (select event from agent.event union all select event from agent.event_hist)
		select (select count(*) from agent.event where attempts > 0), (select count(*) from agent.event_hist where outcome = 'done'),
			max((event ->> 'seq')::int8) + 1 - count(distinct event ->> 'seq'), max(length(event ->> 'padding')) from jobs`).Scan(&leased, &done, &missing, &longest)
	if err != nil {
		t.Fatal(err)
	}
	if leased != 0 || done == 0 || missing != 0 || longest != 100-headBytes {
		t.Errorf("%d jobs are leased after the end, %d done, %d missing, and the padding has %d characters", leased, done, missing, longest)
	}
	// What the harness polls has to exist.
	for _, name := range slices.Concat(described["event_tables"].([]any), described["event_indexes"].([]any)) {
		var found *string
		if err := conn.QueryRow(t.Context(), "select to_regclass($1)::text", name).Scan(&found); err != nil || found == nil {
			t.Errorf("%s of adapter.json is not in the database: %v", name, err)
		}
	}
}

func TestJobsAreKeptWaiting(t *testing.T) {
	t.Parallel()
	a := start(t, emptyDatabase(t), "PRODUCER_MODE=depth-target", "TARGET_DEPTH=30", "WORKER_COUNT=1", "JOB_WORK_MS=100", "PRODUCER_BATCH_MAX=7")
	a.read(t)
	seen := a.await(t, "jobs waited", func(values map[string]float64) bool {
		return values["queue_depth"] > 0 && values["completion_rate"] > 0
	})
	if seen["queue_depth"] > 30 {
		t.Errorf("%v jobs wait, want at most 30", seen["queue_depth"])
	}
	a.stop(t)
}

// buffer is a standard error that the adapter and the log of its server write at the same time.
type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (b *buffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

// String is what was written.
func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// runWith runs the adapter in this process with an environment, and returns a function that ends it and returns its exit code and log.
func runWith(t *testing.T, environ ...string) (end func() (int, string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var log buffer
	code := make(chan int, 1)
	go func() { code <- run(ctx, environ, strings.NewReader("ENQUEUE 7\n"), io.Discard, &log) }()
	return func() (int, string) {
		cancel()
		select {
		case c := <-code:
			return c, log.String()
		case <-time.After(waitLimit):
			t.Fatal("the adapter does not end")
			return 0, ""
		}
	}
}

// fake is the environment of an adapter whose queued is this program, with a server of the test behind it.
func fake(url string) []string {
	return []string{"DATABASE_URL=postgres://nobody@127.0.0.1:1/none", "QUEUED_BENCH_PROGRAM=" + os.Args[0], fakeEnv + "=" + url, "SAMPLE_EVERY_S=1"}
}

func TestSignalEndsEvenWhatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	claimed, inserted := make(chan struct{}, 100), make(chan struct{}, 100)
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, `{"version":"1.2.3"}`) })
	mux.HandleFunc("POST /claim", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, `{"events":[{"id":1,"event":{"seq":0},"receipt":"r","attempts":1}]}`)
		claimed <- struct{}{}
	})
	hang := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.HasPrefix(r.URL.Path, "/events") {
			inserted <- struct{}{}
		}
		<-release
	}
	mux.HandleFunc("/", hang)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	end := runWith(t, append(fake(server.URL), "WORKER_COUNT=1", "PRODUCER_RATE=1000")...)
	for _, seen := range []chan struct{}{claimed, inserted} {
		select {
		case <-seen:
		case <-time.After(waitLimit):
			t.Fatal("the adapter does not work")
		}
	}
	if code, log := end(); code != 0 {
		t.Errorf("the exit code is %d, want 0\n%s", code, log)
	}
}

func TestServerThatEndsFailsTheAdapter(t *testing.T) {
	t.Parallel()
	polled := make(chan struct{})
	var once sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/version":
			_, _ = fmt.Fprint(w, `{"version":"1.2.3"}`)
		case "/end":
			<-polled // the adapter works
		default:
			once.Do(func() { close(polled) })
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	var log buffer
	code := run(t.Context(), append(fake(server.URL), endsEnv+"=1"), strings.NewReader(""), io.Discard, &log)
	if code != 1 || !strings.Contains(log.String(), "queued serve ended by itself (exit status 3)") {
		t.Errorf("the exit code is %d, want 1; the log is %q", code, log.String())
	}
}

func TestServerThatCannotServeFailsTheAdapter(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		environ []string
		code    int
		log     string
	}{
		"no program":       {[]string{"DATABASE_URL=postgres://x/y", "QUEUED_BENCH_PROGRAM=/nowhere/queued"}, 1, "QUEUED_BENCH_PROGRAM"},
		"it ends":          {[]string{"DATABASE_URL=postgres://x/y", "QUEUED_BENCH_PROGRAM=/bin/false"}, 1, "ended by itself (exit status 1)"},
		"migration fails":  {[]string{"DATABASE_URL=postgres://x/y", "QUEUED_BENCH_PROGRAM=/bin/false", "SCENARIO=migrate_only"}, 1, "migrating"},
		"wrong setting":    {[]string{"DATABASE_URL=postgres://x/y", "WORKER_COUNT=many"}, 2, `WORKER_COUNT: got "many"`},
		"migration is all": {[]string{"DATABASE_URL=postgres://x/y", "QUEUED_BENCH_PROGRAM=/bin/true", "SCENARIO=migrate_only"}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log buffer
			if code := run(t.Context(), test.environ, strings.NewReader(""), io.Discard, &log); code != test.code || !strings.Contains(log.String(), test.log) {
				t.Errorf("the exit code is %d, want %d; the log is %q, want %q in it", code, test.code, log.String(), test.log)
			}
		})
	}
}

func TestSettingsAreThoseOfTheHarness(t *testing.T) {
	t.Parallel()
	s, err := settingsOf([]string{"DATABASE_URL=postgres://bench:secret@localhost:15555/queued_bench?sslmode=disable", "PRODUCER_BATCH_MAX=5000", "PRODUCER_RATE_CONTROL_FILE=/nowhere"})
	if err != nil {
		t.Fatal(err)
	}
	if s.database != "queued_bench" || s.batchMax != maxInsert || s.rateNow() != 800 || s.workers != 32 || s.sampleEvery != 5*time.Second || s.work != time.Millisecond || s.isDepthTarget {
		t.Errorf("the settings are %+v", s)
	}
	for _, variable := range []string{
		"DATABASE_URL=", "DATABASE_URL=postgres://user:secret@[", "SCENARIO=all", "PRODUCER_MODE=slow", "PRODUCER_RATE=-1", "SAMPLE_EVERY_S=0", "WORKER_COUNT=0", "PRODUCER_BATCH_MS=x", "TARGET_DEPTH=1.5",
	} {
		name, _, _ := strings.Cut(variable, "=")
		_, err := settingsOf([]string{"DATABASE_URL=postgres://x/y", variable})
		var wrong *settingError
		if !errors.As(err, &wrong) || !strings.HasPrefix(err.Error(), name+": ") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error is %v", variable, err)
		}
	}
}

func TestRateIsReadAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "rate")
	s := settings{rate: 800, rateFile: file}
	for text, want := range map[string]float64{"1200.0\n": 1200, "0": 0, "-5": 0, "": 800, "NaN": 800, "fast": 800} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := s.rateNow(); got != want {
			t.Errorf("%q is a rate of %v, want %v", text, got, want)
		}
	}
}

func TestJobsAreDueByTheTimeThatHasPassed(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	p := newPacer(now)
	var jobs int
	steps := []time.Duration{10, 25, 10, 400, 0, 0, 0, 0, 0, 0, 1, 10, 3, 541} // milliseconds: iterations of all lengths, 1 s together
	for i, step := range steps {
		now = now.Add(step * time.Millisecond)
		n := p.due(now, 800, 128)
		if n > 128 {
			t.Errorf("%d jobs are due in step %d, want at most a batch", n, i)
		}
		jobs += n
	}
	for range 10 {
		jobs += p.due(now, 800, 128) // what is left of the last step, which was longer than a batch
	}
	if jobs != 800 {
		t.Errorf("%d jobs were due in a second, want 800", jobs)
	}
	if n := p.due(now.Add(-time.Hour), 800, 128); n != 0 {
		t.Errorf("%d jobs are due when the clock goes back", n)
	}
	now = now.Add(time.Second)
	p.due(now, 800, 1) // leaves 799
	if p.due(now, 0, 128); p.due(now.Add(time.Millisecond), 800, 128) != 0 {
		t.Error("jobs of before a pause are due after it")
	}
}

func TestPercentilesAreOfTheLastThirtySeconds(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	w := newWindow(now)
	check := func(what string, p50, p99 float64) {
		t.Helper()
		got := w.percentiles(now, 50, 99)
		for i, want := range []float64{p50, p99} {
			if got[i] < want*0.999 || got[i] > want*1.001 {
				t.Errorf("%s: the percentiles are %v, want %v and %v", what, got, p50, p99)
			}
		}
	}
	check("nothing yet", 0, 0)
	for i := range 100 {
		w.add(now, time.Duration(i+1)*time.Millisecond)
	}
	w.add(now, -time.Second)
	check("the first", 50, 99)
	now = now.Add(windowTime - windowSlot)
	for range 1000 {
		w.add(now, 5*time.Second)
	}
	check("both", 5000, 5000)
	now = now.Add(windowSlot)
	w.add(now, 24*time.Hour) // longer than what is told apart
	check("the first are gone", 5000, 5000)
	now = now.Add(time.Hour)
	check("all are gone", 0, 0)
	w.add(now, time.Millisecond)
	check("it goes on", 1, 1)
}

func TestTicksAreMultiplesOfTheInterval(t *testing.T) {
	t.Parallel()
	for _, seconds := range []int64{1, 5, 7} {
		every := time.Duration(seconds) * time.Second
		for _, now := range []time.Time{time.UnixMilli(1_700_000_000_123), time.Unix(1_700_000_035, 0)} {
			at := tickAfter(now, every)
			if at.UnixNano()%int64(every) != 0 || !at.After(now) || at.Sub(now) > every {
				t.Errorf("the tick after %v is %v, every %s", now, at, every)
			}
		}
	}
}

func TestJobsAreMissingBeyondThoseThatWait(t *testing.T) {
	t.Parallel()
	b := &bench{cfg: settings{targetDepth: 100}}
	if n := b.missing(); n != 0 {
		t.Errorf("%d jobs are missing before the first look", n)
	}
	b.inserted.Store(50)
	b.started.Store(20)
	d := &depth{inserted: 40, started: 15}
	d.Ready = 60
	b.depth.Store(d)
	if n := b.missing(); n != 100-(60+10-5) {
		t.Errorf("%d jobs are missing, want %d", n, 100-(60+10-5))
	}
}

// failingWriter is a standard output that nobody reads any more.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestOutputThatNobodyReadsEndsTheAdapter(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, `{"version":"1.2.3"}`) }))
	t.Cleanup(server.Close)
	var log buffer
	if code := run(t.Context(), fake(server.URL), strings.NewReader(""), failingWriter{}, &log); code != 1 || !strings.Contains(log.String(), "broken pipe") {
		t.Errorf("the exit code is %s, want 1; the log is %q", strconv.Itoa(code), log.String())
	}
}
