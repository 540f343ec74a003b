package workloads

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// tiny is a configuration for runs that are about the running, not the figures.
func tiny(t *testing.T, url string) (Config, *bytes.Buffer) {
	t.Helper()
	out := new(bytes.Buffer)
	dir := t.TempDir()
	return Config{
		URL: url, Warmup: 20 * time.Millisecond, Payload: 100,
		JSON: filepath.Join(dir, "report.json"), Plot: filepath.Join(dir, "plots"), Output: out, Progress: out,
	}, out
}

// seen is the report as a reader of the JSON has it.
func seen(t *testing.T, cfg Config) (r Report) {
	t.Helper()
	content, err := os.ReadFile(cfg.JSON)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEveryWorkloadMeasuresAndAccounts(t *testing.T) {
	t.Parallel()
	const short = 200 * time.Millisecond
	for _, test := range []struct {
		workload Workload
		results  int
		ratios   []string
	}{
		{&Single{Connections: []int{1, 3}, Duration: short}, 2, nil},
		{&Single{Connections: []int{3}, Duration: short, Rate: 50, Poisson: true}, 1, nil},
		{&Batch{Batch: []int{5, 7}, Connections: []int{2}, Duration: short}, 2, nil},
		{&Idle{Rounds: 3, Pause: time.Millisecond}, 1, []string{
			"post_http_minus_sql_p50_ms", "claim_http_minus_sql_p50_ms", "ack_http_minus_sql_p50_ms",
		}},
		{&Snapshot{Rate: 50, Before: short, Hold: short, After: short, Posters: 2, Connections: 2}, 1, nil},
		{&Claimers{Claimers: []int{1, 4}, Duration: short, Feeders: 1}, 2, []string{"1 claimer over the best", "4 claimers over the best"}},
		{&Wakeup{Rounds: 2, Gap: 2 * time.Millisecond, Waiters: 2}, 4, []string{
			"same_process_p50_over_a_commit", "two_processes_p50_over_a_commit", "plain_SQL_p50_over_a_commit",
		}},
		{&Soak{Lives: 200, Singles: 1, Batches: 1, Batch: 10, Sizes: short, MaxDuration: time.Minute}, 1, []string{"last tenth over first tenth"}},
		{&Payload{Sizes: []int{100, 3000}, Duration: short, Connections: 2, Batches: 1, Batch: 5, Events: 12}, 4, []string{
			"3000 B, single over 100 B, single", "3000 B, batch over 100 B, batch",
		}},
		{&Memory{Connections: []int{2}, Waiting: 5, Large: 500, Batches: 1, Duration: short}, 4, nil},
	} {
		t.Run(test.workload.name(), func(t *testing.T) {
			t.Parallel()
			db := emptyDatabase(t)
			cfg, out := tiny(t, serve(t, db))
			cfg.DatabaseURL = db
			if w, ok := test.workload.(*Wakeup); ok {
				w.URL2 = serve(t, db)
			}
			if _, err := Run(t.Context(), cfg, test.workload); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			report := seen(t, cfg)
			if report.Workload != test.workload.name() || report.Machine.Queued == "" || report.Machine.Postgres == "" {
				t.Errorf("the report is about %s on %+v", report.Workload, report.Machine)
			}
			if len(report.Results) != test.results {
				t.Errorf("there are %d results, want %d:\n%s", len(report.Results), test.results, out)
			}
			for _, name := range test.ratios {
				if _, ok := report.Ratios[name]; !ok {
					t.Errorf("there is no ratio %q among %v", name, report.Ratios)
				}
			}
			accounts := 0
			for _, result := range report.Results {
				if len(result.Errors) > 0 {
					t.Errorf("%s: errors: %v", result.Label, result.Errors)
				}
				if a := result.Account; a != nil {
					accounts++
					if a.Posted != a.Acked+a.Remaining {
						t.Errorf("%s does not add up: %+v", result.Label, *a)
					}
				}
			}
			if accounts == 0 {
				t.Error("no result accounts for its events")
			}
			if !strings.Contains(out.String(), "none lost, none twice") {
				t.Errorf("the table says nothing of the accounts:\n%s", out)
			}
		})
	}
}

func TestSingleFillsTheReport(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	cfg, _ := tiny(t, serve(t, db))
	cfg.DatabaseURL = db
	if _, err := Run(t.Context(), cfg, &Single{Connections: []int{2, 4}, Duration: 300 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	report := seen(t, cfg)
	for _, r := range report.Results {
		if r.Lives == 0 || r.LivesPerS == 0 || r.Lives != r.Events["ack"] || r.CPU == nil || r.CPU.ClientPerLife <= 0 || r.CPU.ServerRSS <= 0 {
			t.Errorf("%s: %+v", r.Label, r)
		}
		if r.Database == nil || r.Database.WALPerLife <= 0 {
			t.Errorf("%s: the database is %+v", r.Label, r.Database)
		}
		for _, name := range kindNames {
			if l := r.Latency[name]; l.Count == 0 || l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.P999 || l.P999 > l.Max {
				t.Errorf("%s: %s took %+v", r.Label, name, l)
			}
		}
	}
	if got := report.Settings["connections"]; !slices.Equal(got.([]any), []any{2.0, 4.0}) {
		t.Errorf("the settings have connections %v", got)
	}
	if _, err := os.Stat(filepath.Join(cfg.Plot, "single-by-parameter.svg")); err != nil {
		t.Error(err)
	}
}

func TestLostEventFailsTheRun(t *testing.T) {
	t.Parallel()
	cfg, out := tiny(t, (&fakeQueue{loseEvery: 3}).serve(t))
	_, err := Run(t.Context(), cfg, &Single{Connections: []int{2}, Duration: time.Second})
	if !errors.Is(err, ErrBroken) {
		t.Fatalf("got %v\n%s", err, out)
	}
	if a := seen(t, cfg).Results[0].Account; a.Lost != a.Posted/3 || a.ClaimedTwice != 0 || a.Strangers != 0 {
		t.Errorf("the account is %+v", *a)
	}
	if !strings.Contains(out.String(), "DO NOT ADD UP") {
		t.Errorf("the table does not say so:\n%s", out)
	}
}

func TestEventGivenOutTwiceFailsTheRun(t *testing.T) {
	t.Parallel()
	cfg, _ := tiny(t, (&fakeQueue{repeatEvery: 3}).serve(t))
	_, err := Run(t.Context(), cfg, &Single{Connections: []int{2}, Duration: time.Second})
	if !errors.Is(err, ErrBroken) {
		t.Fatalf("got %v", err)
	}
	if a := seen(t, cfg).Results[0].Account; a.Lost != 0 || a.ClaimedTwice != a.Posted/3 || a.AckedTwice != a.Posted/3 {
		t.Errorf("the account is %+v", *a)
	}
}

func TestOpenLoopCountsFromTheIntendedTime(t *testing.T) {
	t.Parallel()
	const stall = 300 * time.Millisecond
	cfg, _ := tiny(t, (&fakeQueue{stall: stall}).serve(t))
	cfg.Warmup = 0
	// While the first post stalls, 60 more are due: half of all. Had each been sent only when the one before was done, all
	// but one would have been fast.
	if _, err := Run(t.Context(), cfg, &Single{Connections: []int{1}, Duration: 2 * stall, Rate: 200}); err != nil {
		t.Fatal(err)
	}
	latency := seen(t, cfg).Results[0].Latency
	want := float64(stall.Milliseconds()) / 2
	if got := latency["post"].P90; got < want {
		t.Errorf("9 of 10 posts took less than %.1f ms, which forgets that they were due while the server stalled; want more than %.1f", got, want)
	}
	if got := latency["claim"].P90; got > want {
		t.Errorf("claims have no schedule, and took %.1f ms", got)
	}
}

func TestMistakesAreExplained(t *testing.T) {
	t.Parallel()
	empty, one, other := emptyDatabase(t), emptyDatabase(t), emptyDatabase(t)
	url := serve(t, one)
	serve(t, other)
	single := &Single{Connections: []int{1}, Duration: time.Millisecond}
	locked := (&fakeQueue{key: "secret"}).serve(t)
	stranger := httptest.NewServer(nil)
	t.Cleanup(stranger.Close)
	for name, test := range map[string]struct {
		cfg      Config
		workload Workload
		invalid  bool
		says     string
	}{
		"no server answers":        {Config{URL: "http://127.0.0.1:1"}, single, false, "no server can be reached at 127.0.0.1:1"},
		"no URL":                   {Config{URL: "localhost:8080"}, single, true, "is no URL of a server"},
		"a path":                   {Config{URL: "http://localhost:8080/events"}, single, true, "has a path"},
		"something else":           {Config{URL: stranger.URL}, single, false, "no queued that is ready"},
		"no key":                   {Config{URL: locked}, single, false, "wants an API key"},
		"wrong key":                {Config{URL: locked, APIKey: "wrong"}, single, false, "wants an API key"},
		"not queued's database":    {Config{URL: url, DatabaseURL: empty}, single, false, "is not queued's"},
		"another database":         {Config{URL: url, DatabaseURL: other}, single, false, "another database than the server's"},
		"neither":                  {Config{}, single, true, "neither a server nor a database"},
		"a key for nobody":         {Config{DatabaseURL: one, APIKey: "k"}, single, true, "--api-key"},
		"no connections":           {Config{URL: url}, &Single{Duration: time.Second}, true, "--connections: got nothing"},
		"a bad list":               {Config{URL: url}, &Single{Connections: []int{4, 0}, Duration: time.Second}, true, "--connections: got 0"},
		"no time":                  {Config{URL: url}, &Single{Connections: []int{4}}, true, "--duration: got 0s"},
		"a batch too large":        {Config{URL: url}, &Batch{Batch: []int{1001}, Connections: []int{1}, Duration: 1}, true, "--batch: got 1001"},
		"SQL without a database":   {Config{URL: url}, &Idle{Rounds: 1}, true, "--database-url of that server"},
		"a second without a first": {Config{DatabaseURL: one}, &Wakeup{Rounds: 1, Waiters: 1, Gap: 1, URL2: url}, true, "--url2"},
		"depth of a given one":     {Config{URL: url}, &Depth{}, true, "leave --url out"},
		"too many files":           {Config{URL: url}, &Memory{Connections: []int{1}, Waiting: 50_000, Batches: 1, Duration: 1}, true, "ulimit -Hn"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.cfg.Payload, test.cfg.Output, test.cfg.Progress = 100, new(bytes.Buffer), new(bytes.Buffer)
			_, err := Run(t.Context(), test.cfg, test.workload)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v, want %q", err, test.says)
			}
			var invalid *InvalidError
			if errors.As(err, &invalid) != test.invalid {
				t.Errorf("%v: invalid is %t", err, !test.invalid)
			}
		})
	}
}

func TestKeyIsSent(t *testing.T) {
	t.Parallel()
	cfg, _ := tiny(t, (&fakeQueue{key: "secret"}).serve(t))
	cfg.APIKey = "secret"
	if _, err := Run(t.Context(), cfg, &Single{Connections: []int{1}, Duration: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
}

func TestInterruptedRunEnds(t *testing.T) {
	t.Parallel()
	cfg, _ := tiny(t, serve(t, emptyDatabase(t)))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	// These claims wait for a minute, and must not hold the end up.
	_, err := Run(ctx, cfg, &Claimers{Claimers: []int{4}, Duration: time.Hour, Feeders: 1})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}
