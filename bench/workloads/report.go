package workloads

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"runtime"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report is what a workload found. The package's comment shows its JSON.
type Report struct {
	Workload string           `json:"workload"`
	Started  time.Time        `json:"started"`
	Machine  Machine          `json:"machine"`
	Settings map[string]any   `json:"settings"`
	Results  []*Result        `json:"results"`
	Ratios   map[string]Ratio `json:"ratios"`
}

// Machine is what it was measured on.
type Machine struct {
	CPUs     int    `json:"cpus"`
	OS       string `json:"os"`
	Go       string `json:"go"`
	Postgres string `json:"postgres,omitempty"`
	Queued   string `json:"queued,omitempty"`
}

// Result is one measured run.
type Result struct {
	Label       string             `json:"label"`
	Seconds     float64            `json:"seconds,omitempty"`
	Lives       int64              `json:"lives,omitempty"`
	LivesPerS   float64            `json:"lives_per_s,omitempty"`
	Events      map[string]int64   `json:"events,omitempty"`
	Requests    map[string]int64   `json:"requests,omitempty"`
	EmptyClaims int64              `json:"empty_claims,omitempty"`
	Errors      map[string]int64   `json:"errors,omitempty"`
	Latency     map[string]Latency `json:"latency_ms,omitempty"`
	CPU         *CPU               `json:"cpu,omitempty"`
	Database    *Database          `json:"database,omitempty"`
	Account     *Account           `json:"account,omitempty"`
	Series      []Second           `json:"series,omitempty"`
	Values      map[string]float64 `json:"values,omitempty"`

	// For charts: what the run differs from others in and what that is, the curve it belongs to, and when something changed.
	x     float64
	axis  string
	line  string
	marks []float64
}

// Latency is a distribution, in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99_9"`
	Max   float64 `json:"max"`
}

// CPU is what a life costs, in microseconds of processor time, and the server's memory at the end.
type CPU struct {
	ClientPerLife float64 `json:"client_us_per_life"`
	ServerPerLife float64 `json:"server_us_per_life"`
	ServerRSS     int64   `json:"server_rss_bytes"`
}

// Database is what a life costs the database.
type Database struct {
	WALPerLife     float64 `json:"wal_bytes_per_life"`
	CommitsPerLife float64 `json:"commits_per_life"`
}

// Second is what one second of a run was like.
type Second struct {
	Second   float64            `json:"second"` // since the beginning of the measured time, at its end
	Lives    int64              `json:"lives"`
	PostP99  float64            `json:"post_p99_ms"`
	ClaimP99 float64            `json:"claim_p99_ms"`
	AckP99   float64            `json:"ack_p99_ms"`
	LifeP99  float64            `json:"life_p99_ms,omitempty"`
	Values   map[string]float64 `json:"values,omitempty"`
}

// Ratio compares results. OK is whether it reaches its bar.
type Ratio struct {
	Value float64  `json:"value"`
	Bar   *float64 `json:"bar,omitempty"`
	BarIs string   `json:"bar_is,omitempty"` // least or most
	OK    *bool    `json:"ok,omitempty"`
}

func newReport(cfg Config, w Workload) *Report {
	settings := settingsOf(w)
	settings["warmup"], settings["payload"] = cfg.Warmup.String(), cfg.Payload
	return &Report{
		Workload: w.name(), Started: time.Now().UTC().Truncate(time.Second), Settings: settings,
		Machine: Machine{CPUs: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()},
		Results: []*Result{}, Ratios: map[string]Ratio{},
	}
}

// settingsOf is a workload's fields by their flags' names.
func settingsOf(w Workload) map[string]any {
	settings := map[string]any{}
	v := reflect.ValueOf(w).Elem()
	for i := range v.NumField() {
		value := v.Field(i).Interface()
		if d, ok := value.(time.Duration); ok {
			value = d.String()
		}
		settings[v.Type().Field(i).Tag.Get("name")] = value
	}
	return settings
}

func (r *Report) add(result *Result) { r.Results = append(r.Results, result) }

// compare notes a ratio that nobody judges.
func (r *Report) compare(name string, value float64) { r.Ratios[name] = Ratio{Value: value} }

// atLeast notes a ratio that has to reach a bar.
func (r *Report) atLeast(name string, value, bar float64) {
	ok := value >= bar
	r.Ratios[name] = Ratio{Value: value, Bar: &bar, BarIs: "least", OK: &ok}
}

// atMost notes a value that must not be above a bar.
func (r *Report) atMost(name string, value, bar float64) {
	ok := value <= bar
	r.Ratios[name] = Ratio{Value: value, Bar: &bar, BarIs: "most", OK: &ok}
}

// broken is the error of results whose events do not add up.
func (r *Report) broken() (err error) {
	for _, result := range r.Results {
		if a := result.Account; a != nil && !a.OK() {
			err = errors.Join(err, fmt.Errorf("%w: %s: of %d posted events %d are lost; %d were finished twice, %d claimed twice, %d ids given twice, %d claimed that nobody posted",
				ErrBroken, result.Label, a.Posted, a.Lost, a.AckedTwice, a.ClaimedTwice, a.PostedTwice, a.Strangers))
		}
	}
	return err
}

// publish writes what there is: table, file, charts.
func (s *session) publish() error {
	if len(s.report.Results) == 0 {
		return nil
	}
	s.report.table(s.cfg.Output)
	if s.cfg.Plot != "" {
		if err := s.report.charts(s.cfg.Plot); err != nil {
			return err
		}
	}
	if s.cfg.JSON == "" {
		return nil
	}
	content, err := json.MarshalIndent(s.report, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if err := os.WriteFile(s.cfg.JSON, append(content, '\n'), 0o644); err != nil { //nolint:gosec // a report is for everyone
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

func newResult(label string) *Result {
	return &Result{Label: label, Values: map[string]float64{}}
}

// fill sets what a run measured.
func (r *Result) fill(t *tally, took time.Duration, before, after reading, hasDatabase bool) {
	r.Seconds = took.Seconds()
	r.Lives = t.events[acking]
	r.LivesPerS = float64(r.Lives) / took.Seconds()
	r.Events, r.Requests, r.Latency = map[string]int64{}, map[string]int64{}, map[string]Latency{}
	for k, name := range kindNames {
		if t.requests[k] == 0 {
			continue
		}
		r.Latency[name] = latencyOf(t.latency[k])
		if kind(k) != living {
			r.Events[name], r.Requests[name] = t.events[k], t.requests[k]
		}
	}
	if t.lag.TotalCount() > 0 {
		r.Latency["lag"] = latencyOf(t.lag)
	}
	r.EmptyClaims = t.empty
	r.Errors = maps.Clone(t.errors)
	// A run of claims alone, or of posts alone, has no acks: then it is those that are counted.
	lives := float64(max(r.Lives, 1))
	if r.Lives == 0 {
		lives = float64(max(t.events[posting], t.events[claiming], 1))
	}
	r.CPU = &CPU{
		ClientPerLife: float64((after.usage.client - before.usage.client).Microseconds()) / lives,
		ServerPerLife: float64((after.usage.server - before.usage.server).Microseconds()) / lives,
		ServerRSS:     after.usage.rss,
	}
	if hasDatabase {
		r.Database = &Database{
			WALPerLife:     float64(after.figures.wal-before.figures.wal) / lives,
			CommitsPerLife: float64(after.figures.commits-before.figures.commits) / lives,
		}
	}
}

// perSecond is the rate of events of a kind.
func (r *Result) perSecond(k kind) float64 { return float64(r.Events[kindNames[k]]) / r.Seconds }

func latencyOf(h *hdrhistogram.Histogram) Latency {
	at := func(percent float64) float64 { return float64(h.ValueAtQuantile(percent)) / 1000 }
	return Latency{
		Count: h.TotalCount(), Mean: h.Mean() / 1000,
		P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: float64(h.Max()) / 1000,
	}
}

func newSecond(since time.Duration, t *tally) Second {
	at := func(k kind) float64 { return float64(t.latency[k].ValueAtQuantile(99)) / 1000 }
	return Second{
		Second: since.Seconds(), Lives: t.events[acking],
		PostP99: at(posting), ClaimP99: at(claiming), AckP99: at(acking), LifeP99: at(living),
	}
}

// sortedKeys is the keys of a map, in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
