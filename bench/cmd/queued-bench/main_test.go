package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/bench/report"
	"github.com/queued/queued/bench/workloads"
)

// program is the queued that the tests measure.
var program string

func TestMain(m *testing.M) {
	built, remove, err := workloads.Build(context.Background(), "../../..", workloads.ForTests)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = built
	code := m.Run()
	remove()
	os.Exit(code)
}

// output is what a command writes to standard error; each is called with each piece of it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
	each func(piece []byte)
}

func (o *output) Write(piece []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.each != nil {
		o.each(piece)
	}
	return o.text.Write(piece)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// databaseURL is the server that databases are made on.
func databaseURL(t *testing.T) string {
	t.Helper()
	url := os.Getenv("QUEUED_TEST_DATABASE_URL")
	if url == "" {
		t.Fatal("QUEUED_TEST_DATABASE_URL is not set: run this with make test-bench, which starts a PostgreSQL")
	}
	return url
}

// madeDatabase is where the program says which database it has made.
var madeDatabase = regexp.MustCompile(`starting a server on a new database, (queued_bench_\w+)`)

// hasDatabase reports whether the server has a database of this name.
func hasDatabase(t *testing.T, name string) (there bool) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if err := conn.QueryRow(t.Context(), `select exists (select from pg_database where datname = $1)`, name).Scan(&there); err != nil {
		t.Fatal(err)
	}
	return there
}

func TestWorkloadMeasuresAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args    []string
		part    string
		numbers []string
	}{
		{[]string{"single", "--connections", "2,3", "--duration=100ms"}, "single", nil},
		{[]string{"push", "--events=20", "--rounds=2", "--gap=1ms"}, "push", nil},
		{[]string{"wakeup", "--rounds=2", "--gap=1ms"}, "wakeup", []string{"same process p50 over a commit", "two processes p50 over a commit"}},
		{[]string{"depth", "--backlog=5,50", "--connections=2", "--claims=3", "--rounds=1"}, "depth", []string{
			"fifo: 50 waiting over 5 waiting", "random_100: 50 waiting over 5 waiting", "sql_claim_event: 50 waiting over 5 waiting",
			"GET /queues: 50 waiting over 5 waiting", "GET /metrics: 50 waiting over 5 waiting",
		}},
		{[]string{"unclaimable", "--delayed=20", "--leased=10", "--other=0", "--connections=2", "--claims=3", "--rounds=1"}, "unclaimable", []string{
			"fifo: 20 delayed over without 20 delayed", "fifo: 10 leased over without 10 leased",
		}},
		{[]string{"catchup", "--events=2500", "--page=100", "--rounds=2"}, "catchup", []string{"HTTP over SQL", "SQL over SQL by transactions"}},
		{[]string{"fanout", "--events=2500", "--queues=3", "--rounds=2"}, "fanout", []string{"one queue over SQL"}},
		{[]string{"stream", "--rounds=3", "--gap=1ms", "--streams=5", "--batch=7", "--idle=6", "--duration=100ms"}, "stream", []string{"deliveries_per_s"}},
		{[]string{"memory", "--connections=2,3", "--waiting=3", "--large=500", "--duration=100ms"}, "memory", []string{"server_rss_max_mib"}},
		{[]string{"suite", "--rounds=2", "--duration=1s", "--only=batch", "--allow-unsafe"}, "batch", []string{"batch server CPU"}},
		{[]string{"compare", "--programs", "a=" + program, "--programs", "b=" + program, "--rounds=2", "--duration=1s", "--connections=2"}, "single", []string{
			"single: events/s, b ÷ a", "single: server CPU, b ÷ a", "batch: events/s, b ÷ a", "batch: insert p99, b ÷ a",
		}},
	} {
		t.Run(test.args[0], func(t *testing.T) {
			t.Parallel()
			var stdout bytes.Buffer
			var stderr output
			out := t.TempDir()
			args := slices.Concat([]string{"--warmup=10ms", "--program", program, "--out", out}, test.args)
			environ := []string{"QUEUED_MAX_CONNS=4", "QUEUED_TEST_DATABASE_URL=" + databaseURL(t)}
			if code := run(t.Context(), args, environ, &stdout, &stderr); code != exitOK {
				t.Fatalf("exit code %d:\n%s\n%s", code, &stderr, &stdout)
			}
			content, err := os.ReadFile(filepath.Join(out, "report.json"))
			if err != nil {
				t.Fatal(err)
			}
			var got report.Report
			if err := json.Unmarshal(content, &got); err != nil {
				t.Fatal(err)
			}
			if got.Parts[0].Name != test.part || len(got.Results) == 0 {
				t.Errorf("the report is %+v", got)
			}
			for _, name := range test.numbers {
				if !strings.Contains(stdout.String(), name) {
					t.Errorf("the number %q is missing:\n%s", name, &stdout)
				}
			}
			if !strings.Contains(stdout.String(), "none lost, none handed out twice") {
				t.Errorf("standard output:\n%s", &stdout)
			}
			for _, made := range madeDatabase.FindAllStringSubmatch(stderr.String(), -1) {
				if hasDatabase(t, made[1]) {
					t.Errorf("the database %s is left", made[1])
				}
			}
		})
	}
}

func TestInterruptedRunLeavesNoDatabase(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var name string
	stderr := output{each: func(piece []byte) {
		if made := madeDatabase.FindSubmatch(piece); made != nil {
			name = string(made[1])
			interrupt()
		}
	}}
	args := []string{"--program", program, "--database-url", databaseURL(t), "single", "--duration=1h"}
	if code := run(ctx, args, nil, new(bytes.Buffer), &stderr); code != exitInterrupted {
		t.Errorf("exit code %d:\n%s", code, &stderr)
	}
	if name == "" || hasDatabase(t, name) {
		t.Errorf("the database %q is left:\n%s", name, &stderr)
	}
}

func TestMistakesAreUsageErrors(t *testing.T) {
	t.Parallel()
	const url = "--database-url=postgres://127.0.0.1:1/nobody"
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{}, `expected one of "single"`},
		{[]string{"nonsense"}, "nonsense"},
		{[]string{"single"}, "neither a server nor a database"},
		{[]string{"single", "--connections=4,x"}, "--connections"},
		{[]string{"single", "--url=localhost"}, "is not the URL of a server"},
		{[]string{"single", "--url=http://localhost", "--payload=1"}, "--payload: got 1"},
		{[]string{"depth", "--url=http://localhost"}, "leave --url out"},
		{[]string{"suite", "--url=http://localhost"}, "leave --url out"},
		{[]string{"suite", url, "--rounds=0"}, "--rounds: got 0"},
		{[]string{"suite", url, "--duration=10ms"}, "--duration: got 10ms"},
		{[]string{"suite", url, "--peer=pgmq.sql"}, "--peer"},
		{[]string{"compare", url, "--programs=a=b"}, "--programs: got 1"},
	} {
		var stderr output
		code := run(t.Context(), append([]string{"--program", program}, test.args...), nil, new(bytes.Buffer), &stderr)
		if code != exitUsage || !strings.Contains(stderr.String(), test.says) {
			t.Errorf("%v: exit code %d, %s", test.args, code, &stderr)
		}
	}
}

func TestHelpNamesEveryCommand(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, nil, &stdout, new(bytes.Buffer)); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	for _, name := range []string{
		"single", "batch", "idle", "depth", "unclaimable", "snapshot", "claimers", "wakeup", "soak", "payload", "memory", "publish", "heldlog", "fanout", "catchup", "stream", "push", "compare", "suite",
	} {
		if !strings.Contains(stdout.String(), name+" ") {
			t.Errorf("--help does not name %s:\n%s", name, &stdout)
		}
	}
}
