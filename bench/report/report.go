// Package report gathers measurements, judges them by bars, and writes them as text, Markdown and JSON.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/queued/queued/bench/load"
)

// ErrBroken is wrapped when events were lost or handed out twice.
var ErrBroken = errors.New("events were lost or handed out twice")

// Report is the measurements of one run of the program.
type Report struct {
	Started   time.Time      `json:"started"`
	Machine   Machine        `json:"machine"`
	Settings  map[string]any `json:"settings,omitempty"` // of a workload that was run alone, by the names of its flags
	Rounds    int            `json:"rounds"`
	Duration  string         `json:"duration,omitempty"` // of one run of a part
	Parts     []Part         `json:"parts"`
	Results   []*Result      `json:"results"` // every measured run, with values that only tables show
	Numbers   []*Number      `json:"numbers"` // every value by round
	Ratios    []*Ratio       `json:"ratios"`
	Tables    []Table        `json:"tables,omitempty"` // of a workload that was run alone, and puts its results side by side
	Failures  []string       `json:"failures,omitempty"`
	Disturbed []string       `json:"disturbed,omitempty"` // by something else on the machine
}

// Part is one thing that is measured in every round.
type Part struct {
	Name    string `json:"name"`
	About   string `json:"about,omitempty"`
	Command string `json:"command,omitempty"`
}

// Machine is the machine that the numbers were measured on.
type Machine struct {
	CPU         string            `json:"cpu"`
	Cores       int               `json:"cores"`
	MemoryMiB   int               `json:"memory_mib"`
	System      string            `json:"system"`
	Go          string            `json:"go"`
	Queued      string            `json:"queued,omitempty"`
	PostgreSQL  string            `json:"postgresql,omitempty"`
	TimescaleDB string            `json:"timescaledb,omitempty"` // empty: not loaded
	Settings    map[string]string `json:"settings,omitempty"`    // of PostgreSQL, where they are not its defaults
	Unsafe      []string          `json:"unsafe,omitempty"`      // settings with which a commit may be lost
}

// Result is one measured run. Values that were not measured are left out.
type Result struct {
	Part        string                  `json:"part"`
	Round       int                     `json:"round"` // from 0
	Label       string                  `json:"label"` // tells it from the part's other results
	Seconds     float64                 `json:"seconds,omitempty"`
	Events      map[string]int64        `json:"events,omitempty"` // by step
	EventsPerS  float64                 `json:"events_per_s,omitempty"`
	EmptyClaims int64                   `json:"empty_claims,omitempty"`
	Errors      map[string]int64        `json:"errors,omitempty"`
	Latency     map[string]load.Latency `json:"latency_ms,omitempty"`
	CPU         *CPU                    `json:"cpu,omitempty"`
	Database    *Database               `json:"database,omitempty"`
	Balance     *load.Balance           `json:"balance,omitempty"`
	Series      []Second                `json:"series,omitempty"`
	Values      map[string]float64      `json:"values,omitempty"` // those that only this workload measures; the unit ends the name
}

// CPU is the processor time that an event costs, in microseconds, and the server's memory at the end.
type CPU struct {
	ClientPerEvent  float64 `json:"client_us_per_event"`
	ServerPerEvent  float64 `json:"server_us_per_event"`
	MachinePerEvent float64 `json:"machine_us_per_event"` // of everything that runs on the machine of this program, PostgreSQL for instance; see BusyTime
	ServerRSS       int64   `json:"server_rss_bytes"`
}

// Database is the cost of an event to the database. WAL is that of the whole PostgreSQL server.
type Database struct {
	WALPerEvent     float64 `json:"wal_bytes_per_event"`
	CommitsPerEvent float64 `json:"commits_per_event"`
}

// Second is the measurements of one second of a run.
type Second struct {
	Second      float64            `json:"second"` // since the beginning of the measured time, at its end
	Events      int64              `json:"events"` // acked
	InsertP99   float64            `json:"insert_p99_ms"`
	ClaimP99    float64            `json:"claim_p99_ms"`
	AckP99      float64            `json:"ack_p99_ms"`
	EndToEndP99 float64            `json:"end_to_end_p99_ms,omitempty"`
	Values      map[string]float64 `json:"values,omitempty"`
}

// Number is a value in all rounds. Its name is unique in the report.
type Number struct {
	Name   string     `json:"name"`
	Unit   string     `json:"unit,omitempty"`
	Rounds []*float64 `json:"rounds"` // null: not measured in that round
	Spread
}

// New makes an empty report.
func New(rounds int, duration time.Duration, parts ...Part) *Report {
	r := &Report{Started: time.Now().UTC().Truncate(time.Second), Machine: thisMachine(), Rounds: rounds, Parts: parts}
	if duration > 0 {
		r.Duration = duration.String()
	}
	return r
}

// Add adds a result of a part in a round, with its numbers. alone: it is the only one of its part, so its numbers are named after
// the part; else its label tells them apart.
func (r *Report) Add(part string, round int, alone bool, result *Result) {
	result.Part, result.Round = part, round
	r.Results = append(r.Results, result)
	name := part
	if !alone {
		name += " (" + result.Label + ")"
	}
	add := func(what string, value float64, unit string) {
		r.AddNumber(round, strings.TrimSpace(name+" "+what), value, unit)
	}
	if result.EventsPerS > 0 {
		add("", result.EventsPerS, "events/s")
	}
	for _, step := range sortedSteps(result.Latency) {
		add(step+" p50", result.Latency[step].P50, "ms")
		add(step+" p99", result.Latency[step].P99, "ms")
	}
	if result.CPU != nil {
		add("client CPU", result.CPU.ClientPerEvent, "µs/event")
		add("server CPU", result.CPU.ServerPerEvent, "µs/event")
		add("machine CPU", result.CPU.MachinePerEvent, "µs/event")
		add("server memory", float64(result.CPU.ServerRSS)/(1<<20), "MiB")
	}
	if result.Database != nil {
		add("WAL", result.Database.WALPerEvent, "B/event")
		add("commits", result.Database.CommitsPerEvent, "/event")
	}
	for _, value := range sortedKeys(result.Values) {
		add(value, result.Values[value], "")
	}
	if n := result.errors(); n > 0 {
		add("errors", float64(n), "")
	}
}

// AddNumber adds a value of a round.
func (r *Report) AddNumber(round int, name string, value float64, unit string) {
	n := r.number(name)
	if n == nil {
		n = &Number{Name: name, Unit: unit, Rounds: make([]*float64, r.Rounds)}
		r.Numbers = append(r.Numbers, n)
	}
	n.Rounds[round] = &value
	n.Spread = spreadOf(n.Rounds)
}

// Merge adds the results of a report of one round, as a part's in a round.
func (r *Report) Merge(part string, round int, of *Report) {
	r.Machine.Queued = of.Machine.Queued
	for _, result := range of.Results {
		result.Series = nil
		r.Add(part, round, len(of.Results) == 1, result)
	}
	for _, n := range of.Numbers {
		if comparison, found := strings.CutPrefix(n.Name, of.Parts[0].Name+": "); found {
			r.AddNumber(round, part+": "+comparison, n.Median, n.Unit)
		}
	}
}

func (r *Report) number(name string) *Number {
	i := slices.IndexFunc(r.Numbers, func(n *Number) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return r.Numbers[i]
}

// Broken is an error that wraps ErrBroken when the events of a result do not add up.
func (r *Report) Broken() (err error) {
	for _, result := range r.Results {
		if b := result.Balance; b != nil && !b.OK() {
			err = errors.Join(err, fmt.Errorf(
				"%w: %s: of %d inserted events %d are lost; %d were acked twice, %d claimed twice, %d ids given twice, %d claimed that nobody inserted",
				ErrBroken, result.Label, b.Inserted, b.Lost, b.AckedTwice, b.ClaimedTwice, b.InsertedTwice, b.Unknown))
		}
	}
	return err
}

// Write writes report.json and report.md to a folder, which is made.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // reports are for everyone
		return fmt.Errorf("writing the report: %w", err)
	}
	body, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	var md strings.Builder
	r.Markdown(&md)
	for name, content := range map[string][]byte{"report.json": append(body, '\n'), "report.md": []byte(md.String())} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil { //nolint:gosec // as above
			return fmt.Errorf("writing the report: %w", err)
		}
	}
	return nil
}

func (r *Result) errors() (n int64) {
	for _, times := range r.Errors {
		n += times
	}
	return n
}

// sortedKeys is the keys of a map, in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// sortedSteps is the names of latencies: the steps of an event in their order, and then others.
func sortedSteps(latencies map[string]load.Latency) []string {
	var names []string
	for _, step := range load.Steps() {
		if _, ok := latencies[step.String()]; ok {
			names = append(names, step.String())
		}
	}
	for _, name := range sortedKeys(latencies) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
