package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
)

// benchReport is what of a report these tests read.
type benchReport struct {
	Workload string
	Results  []struct {
		Label   string
		Lives   int64
		Account *struct{ Posted, Lost int64 }
	}
	Ratios map[string]struct{ Value float64 }
}

// madeDatabase is where the program says which database it has made.
var madeDatabase = regexp.MustCompile(`starting a server on a new database, (queued_bench_\w+)`)

// hasDatabase reports whether the server of db has a database of this name.
func hasDatabase(t *testing.T, db *pgtest.DB, name string) (there bool) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if err := conn.QueryRow(t.Context(), `select exists (select from pg_database where datname = $1)`, name).Scan(&there); err != nil {
		t.Fatal(err)
	}
	return there
}

func TestBenchMeasuresAServerOfItsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	for _, test := range []struct {
		args   []string
		ratios []string
	}{
		{[]string{"single", "--connections", "2,3", "--duration=100ms"}, nil},
		{[]string{"wakeup", "--rounds=2", "--gap=1ms"}, []string{"same_process_p50_over_a_commit", "two_processes_p50_over_a_commit"}},
		{[]string{"depth", "--backlog=5,50", "--connections=2", "--claims=3", "--rounds=1"}, []string{
			"fifo: 50 waiting over 5 waiting", "random_100: 50 waiting over 5 waiting", "sql_claim_event: 50 waiting over 5 waiting",
			"GET /queues: 50 waiting over 5 waiting", "GET /metrics: 50 waiting over 5 waiting",
		}},
		{[]string{"piles", "--delayed=20", "--leased=10", "--other=0", "--connections=2", "--claims=3", "--rounds=1"}, []string{
			"fifo: 20 delayed over no pile beside 20 delayed", "fifo: 10 leased over no pile beside 10 leased",
		}},
	} {
		t.Run(test.args[0], func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "report.json")
			p := startProgram(t, append([]string{"bench", "--warmup=10ms", "--json", path}, test.args...), []string{"QUEUED_DATABASE_URL=" + db.AdminURL})
			if code := p.wait(); code != exitOK {
				t.Fatalf("exit code %d:\n%s", code, p.output())
			}
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var report benchReport
			if err := json.Unmarshal(content, &report); err != nil {
				t.Fatal(err)
			}
			if report.Workload != test.args[0] || len(report.Results) == 0 {
				t.Errorf("the report is %+v", report)
			}
			for _, name := range test.ratios {
				if report.Ratios[name].Value <= 0 {
					t.Errorf("the ratio %q is missing among %v", name, report.Ratios)
				}
			}
			if !strings.Contains(p.stdout.String(), "none lost, none twice") {
				t.Errorf("standard output:\n%s", &p.stdout)
			}
			made := madeDatabase.FindStringSubmatch(p.output())
			if made == nil {
				t.Fatalf("it does not say which database it made:\n%s", p.output())
			}
			if hasDatabase(t, db, made[1]) {
				t.Errorf("the database %s is left", made[1])
			}
		})
	}
}

func TestBenchThatIsInterruptedCleansUp(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	p := startProgram(t, []string{"bench", "single", "--duration=1h"}, []string{"QUEUED_DATABASE_URL=" + db.AdminURL})
	var name string
	p.waitForLine("starting a server", func(line string) bool {
		if made := madeDatabase.FindStringSubmatch(line); made != nil {
			name = made[1]
		}
		return name != ""
	})
	p.signal(syscall.SIGINT)
	if code := p.wait(); code != exitInterrupted {
		t.Errorf("exit code %d:\n%s", code, p.output())
	}
	if hasDatabase(t, db, name) {
		t.Errorf("the database %s is left", name)
	}
}

func TestBenchMistakesAreUsageErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"bench"}, "It takes one of single, batch"},
		{[]string{"bench", "nonsense"}, "nonsense"},
		{[]string{"bench", "single", "--connections=4,x"}, "--connections"},
		{[]string{"bench", "single", "--url=localhost"}, "is no URL of a server"},
		{[]string{"bench", "single", "--url=http://localhost", "--payload=1"}, "--payload: got 1"},
		{[]string{"bench", "depth", "--url=http://localhost"}, "leave --url out"},
		{[]string{"bench", "single", "--database-url=nonsense"}, "--database-url"},
	} {
		code, _, stderr := runHere(t, test.args, nil)
		if code != exitUsage || !strings.Contains(stderr, test.says) {
			t.Errorf("%v: exit code %d, %s", test.args, code, stderr)
		}
	}
}

func TestBenchHelpNamesEveryWorkload(t *testing.T) {
	t.Parallel()
	code, stdout, _ := runHere(t, []string{"bench", "--help"}, nil)
	if code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	for _, name := range []string{
		"single", "batch", "idle", "depth", "piles", "snapshot", "claimers", "wakeup", "soak", "payload", "memory",
	} {
		if !strings.Contains(stdout, "bench "+name) {
			t.Errorf("--help does not name %s:\n%s", name, stdout)
		}
	}
}
