package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// manifestText is what the harness reads before it starts this program; the first line that this program writes says the same.
//
//go:embed adapter.json
var manifestText []byte

// timeFormat is that of the harness: UTC, with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z"

// output writes records as lines of JSON, each with one write.
type output struct {
	w        io.Writer
	instance int
}

// descriptor is the record that comes first.
type descriptor struct {
	Kind          string   `json:"kind"`
	System        string   `json:"system"`
	EventTables   []string `json:"event_tables"`
	EventIndexes  []string `json:"event_indexes"`
	Extensions    []string `json:"extensions"`
	Version       string   `json:"version"`
	SchemaVersion string   `json:"schema_version"`
	DBName        string   `json:"db_name"`
	StartedAt     string   `json:"started_at"`
	InstanceID    int      `json:"instance_id"`
}

// sample is the record of one metric.
type sample struct {
	T           string  `json:"t"`
	System      string  `json:"system"`
	Kind        string  `json:"kind"`
	SubjectKind string  `json:"subject_kind"`
	Subject     string  `json:"subject"`
	Metric      string  `json:"metric"`
	Value       float64 `json:"value"`
	WindowS     float64 `json:"window_s"`
	InstanceID  int     `json:"instance_id"`
}

func (o *output) describe(cfg settings, version client.Version) error {
	d := descriptor{StartedAt: time.Now().UTC().Format(timeFormat), InstanceID: o.instance}
	if err := json.Unmarshal(manifestText, &d); err != nil {
		return fmt.Errorf("adapter.json: %w", err)
	}
	d.Kind, d.SchemaVersion = "descriptor", version.Version // the schema in the database has the same version
	d.Version = strings.TrimSpace(version.Version + " " + version.Commit)
	d.DBName = cfg.database
	return o.write(d)
}

func (o *output) write(record any) error {
	line, err := json.Marshal(record)
	if err == nil {
		_, err = o.w.Write(append(line, '\n'))
	}
	return err
}

// measured is the value of a metric.
type measured struct {
	metric string
	value  float64
	window time.Duration
}

// tickAfter is the first multiple of an interval after now, by the clock.
func tickAfter(now time.Time, every time.Duration) time.Time {
	return time.Unix(0, (now.UnixNano()/int64(every)+1)*int64(every))
}

// sample writes samples at each multiple of their interval until ctx ends. A tick that comes late takes what there is, and none is caught up with.
func (b *bench) sample(ctx context.Context) error {
	every := b.cfg.sampleEvery
	last, inserted, done := time.Now(), b.inserted.Load(), b.done.Load()
	at := tickAfter(last, every)
	if at.Sub(last) < every/10 { // too short for a rate
		at = at.Add(every)
	}
	for {
		if !pause(ctx, time.Until(at)) {
			return nil
		}
		now := time.Now()
		at = tickAfter(maxTime(now, at), every)
		insertedNow, doneNow := b.inserted.Load(), b.done.Load()
		took := now.Sub(last).Seconds()
		values := []measured{
			{"enqueue_rate", float64(insertedNow-inserted) / took, every},
			{"completion_rate", float64(doneNow-done) / took, every},
		}
		last, inserted, done = now, insertedNow, doneNow
		names := []string{"claim_p50_ms", "claim_p95_ms", "claim_p99_ms"}
		for i, value := range b.latencies.percentiles(now, 50, 95, 99) {
			values = append(values, measured{names[i], value, windowTime})
		}
		if b.cfg.instance == 0 {
			values = append(values, b.observed()...)
		}
		for _, v := range values {
			err := b.out.write(sample{
				T: now.UTC().Format(timeFormat), System: "queued", Kind: "adapter", SubjectKind: "adapter",
				Metric: v.metric, Value: v.value, WindowS: v.window.Seconds(), InstanceID: b.cfg.instance,
			})
			if err != nil {
				return err
			}
		}
	}
}

// maxTime is the later of two times: timers and the time of day go by different clocks, and a tick must not come twice.
func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// observed is what is common to all replicas, which one of them reports.
func (b *bench) observed() []measured {
	var d depth
	if latest := b.depth.Load(); latest != nil {
		d = *latest
	}
	return []measured{
		{"queue_depth", float64(d.Ready), 0},
		{"running_depth", float64(d.Leased), 0},
		{"scheduled_depth", float64(d.Scheduled), 0},
		{"total_backlog", float64(d.Ready + d.Leased + d.Scheduled + d.Waiting), 0},
		{"producer_target_rate", float64(b.rate.Load()), 0},
	}
}
