package workloads

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/bench/report"
)

func TestAdaptersAreMeasuredAndKilled(t *testing.T) {
	t.Parallel()
	adapter, remove, err := buildAdapter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	cfg := short("", postgres(t).text)
	cfg.Program = program
	cfg.Environ = []string{"LEASE_DEADLINE_MS=1000"}
	r, err := Run(t.Context(), cfg, &Adapters{
		Adapters: []string{"queued=" + adapter, "broken=/bin/false"}, Parts: []string{"max", "held", "worker", "postgres"}, Rounds: 1,
		Workers: 4, Batch: 20, WorkMillis: 1, Rate: 30, Depth: 40, SampleEvery: time.Second,
		Clean: time.Second, Before: time.Second, Hold: 2 * time.Second, After: time.Second, Recovery: 3 * time.Second, Drain: time.Minute,
	})
	if err == nil || !strings.Contains(err.Error(), "4 parts could not be measured") {
		t.Fatalf("the error is %v, want one about the broken adapter alone", err)
	}
	for _, failure := range r.Failures {
		if !strings.Contains(failure, ", broken: the server ended by itself") {
			t.Errorf("a failure: %s", failure)
		}
	}
	if !strings.HasPrefix(r.Machine.Queued, "queued ") || r.Machine.PostgreSQL == "" {
		t.Errorf("the report is about %+v", r.Machine)
	}
	var parts []string
	for _, row := range r.Tables[ratesTable].Rows {
		parts = append(parts, row[0])
		if len(row) != len(r.Tables[ratesTable].Head) || row[1] != "queued" || row[2] == "0" || row[len(row)-1] == "0" {
			t.Errorf("a row of rates: %q", row)
		}
	}
	if want := []string{"max", "held: before", "held: meanwhile", "held: last fifth", "held: after"}; !slices.Equal(parts, want) {
		t.Errorf("the rates are of %q, want %q", parts, want)
	}
	if n := len(r.Tables[killsTable].Rows); n != 2 {
		t.Errorf("there are %d rows of kills, want 2", n)
	}
	for _, row := range r.Tables[killsTable].Rows {
		// killed, adapter, jobs, lost, inserted twice, done, failed, left, …
		if jobs, done := row[2], row[5]; len(row) != len(r.Tables[killsTable].Head) || jobs == "0" || jobs != done || row[3] != "0" || row[4] != "0" || row[6] != "0" || row[7] != "0" {
			t.Errorf("a row of kills: %q", row)
		}
	}
}

func TestLostJobsAreCounted(t *testing.T) {
	t.Parallel()
	url := emptyDatabase(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	// The first producer has inserted 0, 1, 2 and 4, the second one 0, 1 twice, and 3.
	_, err = conn.Exec(t.Context(), `create schema agent;
		create table agent.event (id int8, event jsonb, attempts int4);
		create table agent.event_hist (id int8, event jsonb, attempts int4, outcome text);
		insert into agent.event_hist values (10, '{"seq":0}', 1, 'done'), (11, '{"seq":1}', 2, 'done'), (12, '{"seq":2}', 3, 'expired'), (14, '{"seq":4}', 1, 'done'),
			(20, '{"seq":0}', 1, 'done'), (21, '{"seq":1}', 1, 'done'), (22, '{"seq":1}', 1, 'failed');
		insert into agent.event values (23, '{"seq":3}', 0)`)
	if err != nil {
		t.Fatal(err)
	}
	turn := &adapterTurn{url: url, adapter: &adapterProcess{system: "queued"}}
	for last, want := range map[int64][7]int64{
		14: {8, 1 + 1, 1, 5, 2, 1, 2}, // two producers: 3 of the first and 2 of the second are lost
		-1: {8, 0, 3, 5, 2, 1, 2},     // taken for one: none is missing from 0 to 4
	} {
		if got, err := turn.balance(t.Context(), last); err != nil || got != want {
			t.Errorf("with the last id %d the jobs are %v, want %v; %v", last, got, want, err)
		}
	}
}

func TestSamplesAreReadInPieces(t *testing.T) {
	t.Parallel()
	a := &adapterProcess{news: make(chan struct{}, 1)}
	sample := func(second int, metric string, value float64) string {
		return fmt.Sprintf(`{"t":"2026-01-02T03:04:%02d.000Z","kind":"adapter","metric":%q,"value":%g}`+"\n", second, metric, value)
	}
	text := "a log line\n" + `{"kind":"descriptor","system":"x","version":"1"}` + "\n" + `{"kind":"adapter","metric":"no time","value":1}` + "\n" + sample(5, completionRate, 10)
	for _, metric := range append([]string{enqueueRate, queueDepth}, claimMetrics...) {
		text += sample(5, metric, 20)
	}
	text += sample(6, completionRate, 30) // the rest of this tick has not come yet
	for len(text) > 0 {
		n := min(7, len(text))
		if wrote, err := a.Write([]byte(text[:n])); wrote != n || err != nil {
			t.Fatal(wrote, err)
		}
		text = text[n:]
	}
	ticks := a.since(time.Time{})
	if a.system != "x" || a.version != "1" || len(ticks) != 1 || ticks[0].values[completionRate] != 10 || ticks[0].at.Second() != 5 {
		t.Errorf("the system is %q %q, and the ticks %v", a.system, a.version, ticks)
	}
	if n := len(a.since(ticks[0].at)); n != 0 {
		t.Errorf("%d ticks are after the last", n)
	}
	_, _ = a.Write(make([]byte, 2<<20)) // zeros, and no end of a line
	if err := a.await(t.Context(), time.Minute, "", func() bool { return false }); err == nil || !strings.Contains(err.Error(), "a line of more than") {
		t.Errorf("the error is %v, want one about the line", err)
	}
}

func TestJobsAndPercentilesOfTicks(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1000, 0)
	at := func(seconds, rate, p50 float64) tick {
		return tick{begin.Add(time.Duration(seconds * float64(time.Second))), map[string]float64{completionRate: rate, "claim_p50_ms": p50}}
	}
	ticks := []tick{at(1, 100, 7), at(3, 50, 8), at(29, 0, 9)}
	if jobs := jobsOf(completionRate, begin, ticks); jobs != 200 {
		t.Errorf("there were %v jobs, want 200", jobs)
	}
	if p := percentileOf("claim_p50_ms", begin, ticks); p != 9 {
		t.Errorf("the percentile is %v, want that of the last tick", p)
	}
	ticks = append(ticks, at(30, 0, 1), at(31, 0, 3), at(32, 0, 2))
	if p := percentileOf("claim_p50_ms", begin, ticks); p != 2 {
		t.Errorf("the percentile is %v, want the median of those whose window has only these ticks", p)
	}
}

func TestMistakesAboutAdaptersAreExplained(t *testing.T) {
	t.Parallel()
	right := Adapters{
		Parts: []string{"max"}, Rounds: 1, Workers: 1, Batch: 1, Rate: 1, Depth: 1, SampleEvery: time.Second,
		Clean: 1, Before: 1, Hold: 1, After: 1, Recovery: 1, Drain: 1,
	}
	for want, change := range map[string]func(*Adapters){
		`--adapters: got "queued"`:    func(w *Adapters) { w.Adapters = []string{"queued"} },
		`--parts: got "all"`:          func(w *Adapters) { w.Parts = []string{"all"} },
		`--sample-every: got 1.5s`:    func(w *Adapters) { w.SampleEvery = 1500 * time.Millisecond },
		`--hold: got -1s`:             func(w *Adapters) { w.Hold = -time.Second },
		"this workload starts server": nil,
	} {
		wrong, cfg := right, short("", "postgres://x/y")
		if change == nil {
			cfg = short("http://127.0.0.1:1", "")
		} else {
			change(&wrong)
		}
		_, err := Run(t.Context(), cfg, &wrong)
		var invalid *InvalidError
		if !errors.As(err, &invalid) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("the error is %v, want %q", err, want)
		}
	}
}

func TestLostJobsFailTheReport(t *testing.T) {
	t.Parallel()
	if err := lostJobs(0); err != nil {
		t.Error(err)
	}
	if err := lostJobs(3); !errors.Is(err, report.ErrBroken) {
		t.Errorf("the error is %v, want one that is report.ErrBroken", err)
	}
}
