package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
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
		logger := settings.logger(&out, now)
		logger.Debug().Msg("hidden")
		logger.Info().Str("queue", "q").Msg("hello")
		if out.String() != test.want {
			t.Errorf("%s: got %q, want %q", test.format, out.String(), test.want)
		}
	}
}

func TestWelcomeHasTheHeaderOfTheKeyOnlyWithAKey(t *testing.T) {
	t.Parallel()
	open := welcome("http://127.0.0.1:1", "x", false)
	if strings.Contains(open, "Authorization") || !strings.Contains(open, "http://127.0.0.1:1/events") {
		t.Errorf("without a key:\n%s", open)
	}
	if locked := welcome("http://127.0.0.1:1", "x", true); !strings.Contains(locked, `-H "Authorization: Bearer $QUEUED_API_KEY"`) {
		t.Errorf("with a key:\n%s", locked)
	}
}
