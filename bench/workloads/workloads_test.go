package workloads

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// short is a configuration for runs that are about the running, not the numbers.
func short(url, databaseURL string) Config {
	return Config{URL: url, DatabaseURL: databaseURL, Warmup: 20 * time.Millisecond, Payload: 100}
}

func TestEveryWorkloadMeasuresAndAccounts(t *testing.T) {
	t.Parallel()
	const brief = 200 * time.Millisecond
	for _, test := range []struct {
		workload Workload
		results  int
		numbers  []string
	}{
		{&Single{Connections: []int{1, 3}, Duration: brief}, 2, nil},
		{&Single{Connections: []int{3}, Duration: brief, Rate: 50, Poisson: true}, 1, nil},
		{&Single{Connections: []int{3}, Duration: brief, AckByClaim: true}, 1, nil},
		{&Batch{Batch: []int{5, 7}, Connections: []int{2}, Duration: brief}, 2, nil},
		{&Idle{Rounds: 3, Pause: time.Millisecond}, 1, []string{
			"insert_http_minus_sql_p50_ms", "claim_http_minus_sql_p50_ms", "ack_http_minus_sql_p50_ms",
		}},
		{&Snapshot{Rate: 50, Before: brief, Hold: brief, After: brief, Inserters: 2, Connections: 2}, 1, nil},
		{&Claimers{Claimers: []int{1, 4}, Duration: brief, Feeders: 1}, 2, []string{"1 claimer over the best", "4 claimers over the best"}},
		{&Wakeup{Rounds: 2, Gap: 2 * time.Millisecond, Waiters: 2}, 4, []string{
			"same process p50 over a commit", "two processes p50 over a commit", "SQL p50 over a commit",
		}},
		{&Soak{Events: 200, Singles: 1, Batches: 1, Batch: 10, Sizes: brief, MaxDuration: time.Minute}, 1, []string{"last tenth over first tenth"}},
		{&Payload{Sizes: []int{100, 3000}, Duration: brief, Connections: 2, Batches: 1, Batch: 5, Events: 12}, 4, []string{
			"3000 B, single over 100 B, single", "3000 B, batch over 100 B, batch",
		}},
		{&Publish{Connections: 3, Batch: 5, Batches: 2, Rounds: 2, Duration: brief}, 6, []string{"single over posts", "batch over posts"}},
		{&HeldLog{Before: brief, Hold: 2 * brief, After: brief, Window: brief / 2, Connections: 3}, 5, []string{
			"hold over before", "last tenth of hold over before", "hold over before and after", "last tenth of hold over before and after", "hold, processor time over before",
		}},
		{&Memory{Connections: []int{2}, Waiting: 5, Large: 500, Batches: 1, Duration: brief}, 4, nil},
	} {
		t.Run(test.workload.name(), func(t *testing.T) {
			t.Parallel()
			db := emptyDatabase(t)
			if w, ok := test.workload.(*Wakeup); ok {
				w.URL2 = serve(t, db)
			}
			r, err := Run(t.Context(), short(serve(t, db), db), test.workload)
			if err != nil {
				t.Fatal(err)
			}
			if r.Parts[0].Name != test.workload.name() || r.Machine.Queued == "" || r.Machine.PostgreSQL == "" {
				t.Errorf("the report is about %v on %+v", r.Parts, r.Machine)
			}
			if len(r.Results) != test.results {
				t.Errorf("there are %d results, want %d", len(r.Results), test.results)
			}
			for _, name := range test.numbers {
				if !slices.ContainsFunc(r.Numbers, func(n *report.Number) bool { return n.Name == test.workload.name()+": "+name }) {
					t.Errorf("there is no number %q", name)
				}
			}
			balances := 0
			for _, result := range r.Results {
				if len(result.Errors) > 0 {
					t.Errorf("%s: errors: %v", result.Label, result.Errors)
				}
				if b := result.Balance; b != nil {
					balances++
					if b.Inserted != b.Acked+b.Remaining {
						t.Errorf("%s does not add up: %+v", result.Label, *b)
					}
				}
			}
			if balances == 0 {
				t.Error("no result accounts for its events")
			}
		})
	}
}

func TestLimitsOfGroupsAreMeasured(t *testing.T) {
	t.Parallel()
	const brief = 300 * time.Millisecond
	cfg := short("", postgres(t).text)
	cfg.Program = program
	r, err := Run(t.Context(), cfg, &Flow{
		Connections: 2, Batch: 5, Groups: 20, Waiting: 50, Rounds: 2, Duration: brief, Posters: 2, Workers: 2, Handovers: 3, Rate: 50, Before: brief, Hold: brief,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range r.Results {
		if result.Label == "bare commit" {
			continue
		}
		if b := result.Balance; len(result.Errors) > 0 || b == nil || b.Inserted == 0 || b.Acked == 0 || b.Inserted != b.Acked+b.Remaining {
			t.Errorf("%s: %v, %+v", result.Label, result.Errors, b)
		}
	}
	for _, name := range []string{
		"groups without limits: processor time over no group", "concurrency: processor time over no group", "order: processor time over no group", "rate: processor time over no group", "turns: processor time over no group",
		"concurrency beside 50 waiting: processor time over no group", "rate beside those that wait over that without", "one group in order over one worker",
		"least over most that a poster of one group has inserted", "hand-over in one process, p50 over a commit", "hand-over between two processes, p50 over a commit", "hand-over in one process, p50 over its ack", "hand-over between two processes, p50 over its ack",
	} {
		if !slices.ContainsFunc(r.Numbers, func(n *report.Number) bool { return n.Name == "flow: "+name }) {
			t.Errorf("there is no number %q", name)
		}
	}
	var invalid *InvalidError
	if _, err := Run(t.Context(), cfg, &Flow{Connections: 1, Batch: 5, Groups: 4, Waiting: 1, Rounds: 1, Duration: brief, Posters: 1, Workers: 1, Handovers: 1, Before: brief}); !errors.As(err, &invalid) {
		t.Errorf("fewer groups than the events of a batch: got %v", err)
	}
}

func TestCellsAreMeasuredBesideOne(t *testing.T) {
	t.Parallel()
	const brief = 300 * time.Millisecond
	cfg := short("", postgres(t).text)
	cfg.Program = program
	r, err := Run(t.Context(), cfg, &Cells{Cells: 2, Connections: 2, Batch: 5, Rounds: 2, Duration: brief})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cells: 2 cells over one"} {
		if !slices.ContainsFunc(r.Numbers, func(n *report.Number) bool { return n.Name == name }) {
			t.Errorf("there is no number %q", name)
		}
	}
	for _, result := range r.Results[:2] {
		if b := result.Balance; len(result.Errors) > 0 || b == nil || b.Inserted == 0 || b.Inserted != b.Acked+b.Remaining {
			t.Errorf("%s: %v, %+v", result.Label, result.Errors, b)
		}
		if result.Values["gateway_us_per_event"] <= 0 || result.Values["postgresql_0_cores"] <= 0 {
			t.Errorf("%s: %v", result.Label, result.Values)
		}
	}
}

func TestSingleFillsTheReport(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	r, err := Run(t.Context(), short(serve(t, db), db), &Single{Connections: []int{2, 4}, Duration: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range r.Results {
		if result.EventsPerS == 0 || result.Events["ack"] == 0 || result.CPU == nil || result.CPU.ClientPerEvent <= 0 || result.CPU.ServerRSS <= 0 {
			t.Errorf("%s: %+v", result.Label, result)
		}
		if result.Database == nil || result.Database.WALPerEvent <= 0 {
			t.Errorf("%s: the database is %+v", result.Label, result.Database)
		}
		for _, step := range []load.Step{load.Insert, load.Claim, load.Ack, load.EndToEnd} {
			if l := result.Latency[step.String()]; l.Count == 0 || l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.P999 || l.P999 > l.Max {
				t.Errorf("%s: %s took %+v", result.Label, step, l)
			}
		}
	}
	if got := r.Settings["connections"]; !slices.Equal(got.([]int), []int{2, 4}) {
		t.Errorf("the settings have connections %v", got)
	}
	dir := t.TempDir()
	if err := r.Write(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"report.json", "report.md"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestServerThatMisplacesEventsFailsTheRun(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		server *fakeQueue
		holds  func(b load.Balance) bool
	}{
		"an event is lost": {&fakeQueue{loseEvery: 3}, func(b load.Balance) bool {
			return b.Lost == b.Inserted/3 && b.ClaimedTwice == 0 && b.Unknown == 0
		}},
		"an event is handed out twice": {&fakeQueue{repeatEvery: 3}, func(b load.Balance) bool {
			return b.Lost == 0 && b.ClaimedTwice == b.Inserted/3 && b.AckedTwice == b.Inserted/3
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := Run(t.Context(), short(test.server.serve(t), ""), &Single{Connections: []int{2}, Duration: time.Second})
			if !errors.Is(err, report.ErrBroken) {
				t.Fatalf("got %v", err)
			}
			if b := r.Results[0].Balance; !test.holds(*b) {
				t.Errorf("the balance is %+v", *b)
			}
			var text strings.Builder
			if r.Text(&text); !strings.Contains(text.String(), "LOST OR HANDED OUT TWICE") {
				t.Errorf("the text does not say so:\n%s", &text)
			}
		})
	}
}

func TestLogThatMisplacesEventsIsFoundOut(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		published    []int64
		first, other []int64 // what each reader gets
		wantErr      string
		wantOK       bool
	}{
		"all is there":            {[]int64{3, 5, 9}, []int64{3, 5, 9}, []int64{3, 5, 9}, "", true},
		"an event is lost":        {[]int64{3, 5, 9}, []int64{3, 9}, []int64{3, 9}, "", false},
		"an event is of nobody":   {[]int64{3, 9}, []int64{3, 5, 9}, []int64{3, 5, 9}, "", false},
		"an event comes twice":    {[]int64{3, 5, 9}, []int64{3, 5, 5, 9}, []int64{3, 5, 9}, "position 5 came after 5", false},
		"an event comes too late": {[]int64{3, 5, 9}, []int64{3, 9, 5}, []int64{3, 5, 9}, "position 5 came after 9", false},
		"readers disagree":        {[]int64{3, 5, 9}, []int64{3, 5, 9}, []int64{3, 9}, "disagree", false},
		"readers of other events": {[]int64{3, 5, 9}, []int64{3, 5, 9}, []int64{3, 6, 9}, "disagree", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pages := [][]int64{test.first, test.other}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var events []string
				switch r.FormValue("after") {
				case "0":
					page := pages[0]
					if r.FormValue("limit") == "137" {
						page = pages[1]
					}
					for _, position := range page {
						events = append(events, fmt.Sprintf(`{"position":%d,"topic":"t","event":{"d":"x"}}`, position))
					}
					_, _ = fmt.Fprintf(w, `{"events":[%s],"next":10,"head":10}`, strings.Join(events, ","))
				default:
					_, _ = fmt.Fprint(w, `{"events":[],"next":10,"head":10}`)
				}
			}))
			defer server.Close()
			target, err := load.NewTarget(server.URL, "")
			if err != nil {
				t.Fatal(err)
			}
			account := load.NewAccount()
			for _, position := range test.published {
				account.Inserted(position)
			}
			readers := &logReaders{target: target, published: account}
			defer readers.close()
			for _, limit := range []int{1000, 137} {
				reader, err := target.ReadLog(t.Context(), "topic=t", limit, 0)
				if err != nil {
					t.Fatal(err)
				}
				readers.both = append(readers.both, reader)
			}
			balance, err := readers.finish(t.Context())
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || balance.OK() != test.wantOK {
				t.Errorf("got %+v, %v", balance, err)
			}
		})
	}
}

func TestOpenLoopCountsFromTheIntendedTime(t *testing.T) {
	t.Parallel()
	const stall = 300 * time.Millisecond
	cfg := short((&fakeQueue{stall: stall}).serve(t), "")
	cfg.Warmup = 0
	// While the first insert stalls, 60 more are due: half of all. Had each been sent only when the one before was done, all
	// but one would have been fast.
	r, err := Run(t.Context(), cfg, &Single{Connections: []int{1}, Duration: 2 * stall, Rate: 200})
	if err != nil {
		t.Fatal(err)
	}
	latency := r.Results[0].Latency
	want := float64(stall.Milliseconds()) / 2
	if got := latency["insert"].P90; got < want {
		t.Errorf("9 of 10 inserts took less than %.1f ms: the time in which they were due and the server stalled is not counted; want more than %.1f", got, want)
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
	notQueued := httptest.NewServer(nil)
	t.Cleanup(notQueued.Close)
	for name, test := range map[string]struct {
		cfg      Config
		workload Workload
		invalid  bool
		says     string
	}{
		"no server answers":        {Config{URL: "http://127.0.0.1:1"}, single, false, "cannot be reached"},
		"no URL":                   {Config{URL: "localhost:8080"}, single, true, "is not the URL of a server"},
		"a path":                   {Config{URL: "http://localhost:8080/events"}, single, true, "has a path"},
		"something else":           {Config{URL: notQueued.URL}, single, false, "no queued that is ready"},
		"no key":                   {Config{URL: locked}, single, false, "requires an API key"},
		"wrong key":                {Config{URL: locked, APIKey: "wrong"}, single, false, "requires an API key"},
		"not queued's database":    {Config{URL: url, DatabaseURL: empty}, single, false, "is not one of queued"},
		"another database":         {Config{URL: url, DatabaseURL: other}, single, false, "another database than the server's"},
		"neither":                  {Config{}, single, true, "neither a server nor a database"},
		"a key without a server":   {Config{DatabaseURL: one, APIKey: "k"}, single, true, "--api-key"},
		"no connections":           {Config{URL: url}, &Single{Duration: time.Second}, true, "--connections: got nothing"},
		"a bad list":               {Config{URL: url}, &Single{Connections: []int{4, 0}, Duration: time.Second}, true, "--connections: got 0"},
		"no time":                  {Config{URL: url}, &Single{Connections: []int{4}}, true, "--duration: got 0s"},
		"a batch too large":        {Config{URL: url}, &Batch{Batch: []int{1001}, Connections: []int{1}, Duration: 1}, true, "--batch: got 1001"},
		"SQL without a database":   {Config{URL: url}, &Idle{Rounds: 1}, true, "--database-url of that server"},
		"a second without a first": {Config{DatabaseURL: one}, &Wakeup{Rounds: 1, Waiters: 1, Gap: 1, URL2: url}, true, "--url2"},
		"depth of a given one":     {Config{URL: url}, &Depth{Backlog: []int{1, 2}, Connections: 1, Claims: 1, Rounds: 1}, true, "leave --url out"},
		"too many files":           {Config{URL: url}, &Memory{Connections: []int{1}, Waiting: 50_000, Batches: 1, Duration: 1}, true, "ulimit -Hn"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.cfg.Payload = 100
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
	cfg := short((&fakeQueue{key: "secret"}).serve(t), "")
	cfg.APIKey = "secret"
	if _, err := Run(t.Context(), cfg, &Single{Connections: []int{1}, Duration: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
}

func TestInterruptedRunEnds(t *testing.T) {
	t.Parallel()
	cfg := short(serve(t, emptyDatabase(t)), "")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	// These claims wait for a minute, and must not delay the end.
	_, err := Run(ctx, cfg, &Claimers{Claimers: []int{4}, Duration: time.Hour, Feeders: 1})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestServerThatEndsFailsTheRun(t *testing.T) {
	t.Parallel()
	cfg := short("", os.Getenv("QUEUED_TEST_DATABASE_URL"))
	// It migrates nothing and serves nothing: it ends.
	cfg.Program = "false"
	if _, err := Run(t.Context(), cfg, &Single{Connections: []int{1}, Duration: time.Second}); err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Errorf("got %v", err)
	}
}

func TestTenthsAreOfEventsNotOfTime(t *testing.T) {
	t.Parallel()
	var series []report.Second
	for i := range 20 {
		series = append(series, report.Second{Second: float64(i + 1), Events: 100})
	}
	for i := range 20 { // and then half as fast
		series = append(series, report.Second{Second: float64(20 + 2*(i+1)), Events: 100})
	}
	rates := tenthsOf(series)
	if math.Abs(rates[0]-100) > 0.01 || math.Abs(rates[4]-100) > 0.01 || math.Abs(rates[5]-50) > 0.01 || math.Abs(rates[9]-50) > 0.01 {
		t.Errorf("got %v", rates)
	}
}

func TestPayloadHasItsSize(t *testing.T) {
	t.Parallel()
	for _, size := range []int{minPayload, 100, 65536} {
		if got := newPayload(size); len(got) != size || got[0] != '{' || got[size-1] != '}' {
			t.Errorf("%d: %d bytes", size, len(got))
		}
	}
}

func TestDatabaseIsReplacedInURLAndKeywords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"postgres://u:p@h:5/db?sslmode=disable":   "postgres://u:p@h:5/new?sslmode=disable",
		"postgres://h":                            "postgres://h/new",
		"postgres://u@/queued?host=%2Ftmp&port=1": "postgres://u@/new?host=%2Ftmp&port=1",
		"host=/run dbname=db":                     "host=/run dbname=db dbname=new",
	} {
		if got := (&Postgres{text: text}).URL("new"); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestPhasesAreComparedWithTheFirst(t *testing.T) {
	t.Parallel()
	result := &report.Result{Values: map[string]float64{}}
	for i := range 35 {
		at := report.Second{Second: float64(i + 1), Events: 100, EndToEndP99: 5}
		switch {
		case i >= 28 && i < 30:
			at.Events, at.EndToEndP99 = 20, 90
		case i >= 10 && i < 30:
			at.Events = 95
		}
		result.Series = append(result.Series, at)
	}
	s := new(session)
	s.comparePhases(result, []phase{{"before", 0, 10}, {"hold", 10, 30}, {"last tenth of hold", 28, 30}, {"after", 30, 36}})
	want := []comparedValue{{"hold over before", (18*95 + 2*20) / 2000.0}, {"last tenth of hold over before", 0.2}, {"after over before", 1}}
	if !slices.Equal(s.comparisons, want) {
		t.Errorf("got %v, want %v", s.comparisons, want)
	}
	if got := result.Values["last_tenth_of_hold_end_to_end_p99_ms"]; got != 90 {
		t.Errorf("the p99 in the last tenth is %g", got)
	}
}
