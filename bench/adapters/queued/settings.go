package main

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// settings are what the harness says by environment variables.
type settings struct {
	environ     []string
	scenario    string
	databaseURL string
	database    string // its name
	program     string // of queued
	maxConns    string // of queued; empty: its default
	instance    int    // which of several replicas this is; 0 observes what is common to all

	isDepthTarget bool // jobs are inserted as long as fewer than targetDepth wait, rather than at a rate
	rate          float64
	rateFile      string // has the rate, if it exists, and may change
	targetDepth   int
	batchMax      int
	batchEvery    time.Duration

	workers    int
	lease      time.Duration
	claimEvery time.Duration // at least; 0: as soon as a slot is free
	payload    int           // bytes of a job, about
	work       time.Duration

	sampleEvery time.Duration
}

// settingError is a setting that makes no sense.
type settingError struct{ text string }

func (e *settingError) Error() string { return e.text }

// maxInsert is how many events one request may insert, by the default of the server.
const maxInsert = 1000

// reader reads variables and keeps the first error.
type reader struct {
	values map[string]string
	err    error
}

func (r *reader) text(name, otherwise string) string { return cmp.Or(r.values[name], otherwise) }

func (r *reader) number(name string, otherwise, least int) int {
	text := r.text(name, strconv.Itoa(otherwise))
	n, err := strconv.Atoi(text)
	if (err != nil || n < least) && r.err == nil {
		r.err = &settingError{fmt.Sprintf("%s: got %q; expected a whole number, %d or more", name, text, least)}
	}
	return n
}

func (r *reader) oneOf(name, otherwise string, choices ...string) string {
	text := r.text(name, otherwise)
	for _, choice := range choices {
		if text == choice {
			return text
		}
	}
	if r.err == nil {
		r.err = &settingError{fmt.Sprintf("%s: got %q; expected one of %s", name, text, strings.Join(choices, ", "))}
	}
	return text
}

// settingsOf reads the settings. It fails with a *settingError.
func settingsOf(environ []string) (settings, error) {
	r := &reader{values: map[string]string{}}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		r.values[name] = value
	}
	millis := func(name string, otherwise, least int) time.Duration {
		return time.Duration(r.number(name, otherwise, least)) * time.Millisecond
	}
	s := settings{
		environ:       environ,
		scenario:      r.oneOf("SCENARIO", "long_horizon", "long_horizon", "migrate_only"),
		databaseURL:   r.text("DATABASE_URL", ""),
		program:       r.text("QUEUED_BENCH_PROGRAM", "queued"),
		maxConns:      r.text("MAX_CONNECTIONS", ""),
		instance:      r.number("BENCH_INSTANCE_ID", 0, 0),
		isDepthTarget: r.oneOf("PRODUCER_MODE", "fixed", "fixed", "depth-target") == "depth-target",
		rate:          float64(r.number("PRODUCER_RATE", 800, 0)),
		rateFile:      r.text("PRODUCER_RATE_CONTROL_FILE", ""),
		targetDepth:   r.number("TARGET_DEPTH", 1000, 1),
		batchMax:      min(r.number("PRODUCER_BATCH_MAX", 128, 1), maxInsert),
		batchEvery:    millis("PRODUCER_BATCH_MS", 10, 1),
		workers:       r.number("WORKER_COUNT", 32, 1),
		claimEvery:    millis("QUEUED_BENCH_CLAIM_INTERVAL_MS", 0, 0),
		lease:         millis("LEASE_DEADLINE_MS", 30_000, 100),
		payload:       r.number("JOB_PAYLOAD_BYTES", 256, 0),
		work:          millis("JOB_WORK_MS", 1, 0),
		sampleEvery:   time.Duration(r.number("SAMPLE_EVERY_S", 5, 1)) * time.Second,
	}
	if r.err != nil {
		return settings{}, r.err
	}
	if s.databaseURL == "" {
		return settings{}, &settingError{"DATABASE_URL: got nothing; expected the URL of a database, such as postgres://bench:bench@localhost:15555/queued_bench"}
	}
	u, err := url.Parse(s.databaseURL)
	if err != nil {
		return settings{}, &settingError{"DATABASE_URL: got a value that is not shown, as it may hold a password; expected a URL such as postgres://…"}
	}
	s.database = strings.TrimPrefix(u.Path, "/")
	return s, nil
}

// rateNow is the rate at which jobs are to be inserted now, in jobs a second.
func (s *settings) rateNow() float64 {
	if s.rateFile == "" {
		return s.rate
	}
	text, err := os.ReadFile(s.rateFile)
	if err != nil {
		return s.rate
	}
	rate, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil || rate != rate { // such as an empty file that is about to be written, or NaN
		return s.rate
	}
	return max(0, rate)
}
