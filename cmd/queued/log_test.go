package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/pgtest"
)

func TestLogLinesAreInUTCToTheMillisecond(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("", 2*60*60)
	now := func() time.Time { return time.Date(2025, 3, 1, 1, 2, 3, 4_000_000, zone) }
	tests := []struct {
		format string
		want   string
	}{
		{"json", `{"level":"info","queue":"q","time":"2025-02-28T23:02:03.004Z","message":"hello"}` + "\n"},
		{"auto", `{"level":"info","queue":"q","time":"2025-02-28T23:02:03.004Z","message":"hello"}` + "\n"},
		{"console", "2025-02-28 23:02:03.004 INF hello queue=q\n"},
	}
	for _, test := range tests {
		var out bytes.Buffer
		settings := logSettings{LogLevel: "info", LogFormat: test.format}
		logger := settings.logger(settings.format(&out), now)
		logger.Debug().Msg("hidden")
		logger.Info().Str("queue", "q").Msg("hello")
		if out.String() != test.want {
			t.Errorf("%s: got %q, want %q", test.format, out.String(), test.want)
		}
	}
}

func TestWelcomeHasTheHeaderOfTheKeyOnlyWithAKey(t *testing.T) {
	t.Parallel()
	open := welcome("http://127.0.0.1:1", "x", "", false)
	if strings.Contains(open, "Authorization") || !strings.Contains(open, "http://127.0.0.1:1/events") {
		t.Errorf("without a key:\n%s", open)
	}
	if locked := welcome("http://127.0.0.1:1", "x", "", true); !strings.Contains(locked, `-H "Authorization: Bearer $QUEUED_API_KEY"`) {
		t.Errorf("with a key:\n%s", locked)
	}
}

func TestSuccessfulInsertsAreLoggedAtInfoOnlyWithAccessLogAll(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		environ []string
		want    bool
	}{
		{nil, false},
		{[]string{"QUEUED_ACCESS_LOG=slow"}, false},
		{[]string{"QUEUED_ACCESS_LOG=all"}, true},
	} {
		p := setup(t, tc.environ...)
		p.want(http.StatusCreated, http.MethodPost, "/events", "{}", "X-Request-Id: the-insert")
		p.want(http.StatusOK, http.MethodGet, "/events", "", "X-Request-Id: the-listing")
		// A request is logged before its response is complete. The listing, logged in any case, comes after the insert.
		p.waitForLine("the listing", func(line string) bool { return strings.Contains(line, `"the-listing"`) })
		logged := false
		for line := range strings.Lines(p.output()) {
			if !strings.Contains(line, `"the-insert"`) {
				continue
			}
			var fields struct {
				Level    string
				Duration float64 `json:"duration_ms"`
			}
			if err := json.Unmarshal([]byte(line), &fields); err != nil {
				t.Fatal(err)
			}
			if fields.Level != "info" {
				t.Errorf("%q: the insert is logged at %s", tc.environ, fields.Level)
			}
			logged = tc.want || fields.Duration < 1000 // a slow one is logged in any case
		}
		if logged != tc.want {
			t.Errorf("%q: the insert is logged: %t, want %t; the log:\n%s", tc.environ, logged, tc.want, p.output())
		}
	}
}

func TestRequestsThatFailInAnOutageGiveFewLinesWhoseCountsAddUp(t *testing.T) {
	t.Parallel()
	const requests = 200
	db := pgtest.New(t)
	p := serve(t, nil, "QUEUED_DATABASE_URL="+db.ServiceURL)
	started := time.Now()
	db.Disconnect(t)
	client := http.Client{Timeout: waitTimeout}
	defer client.CloseIdleConnections()
	for range requests {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.addr+"/queues", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("answered %d", res.StatusCode)
		}
	}
	p.signal(syscall.SIGTERM) // what is left out is written at the stop
	p.wait()
	most := 3 + int(time.Since(started)/failure.Interval)
	lines, total := 0, 0
	for line := range strings.Lines(p.output()) {
		var got struct {
			Message    string
			Kind       string
			Suppressed int
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if got.Message == "request" && strings.HasPrefix(got.Kind, "database_unavailable") {
			lines, total = lines+1, total+1+got.Suppressed
		}
	}
	if lines > most || total != requests {
		t.Errorf("%d lines, want %d at most; they stand for %d of %d requests", lines, most, total, requests)
	}
}
