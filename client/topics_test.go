package client

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// A stream comes back with the id of the last frame, tells gaps and goes on, and ends for a refusal.
func TestStreamFollowsTheServersFrames(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		n := connections.Add(1)
		last := r.Header.Get("Last-Event-ID")
		w.Header().Set("Content-Type", "text/event-stream")
		switch n {
		case 1:
			if last != "" || r.URL.Query().Get("after") != "7" || !slices.Equal(r.URL.Query()["topic"], []string{"a", "b.*"}) {
				t.Errorf("%s", r.URL)
			}
			_, _ = io.WriteString(w, ": position\nretry: 1\nid: 7\n\nid: 8\nevent: a\ndata: {\"position\":8,\ndata: \"topic\":\"a\",\"event\":{}}\n\n"+
				"id: 20\nevent: gap\ndata: {\"gap\":{\"after\":8,\"until\":20}}\n\nid: 21\nevent: a\ndata: {\"position\":21") // cut off
		case 2:
			if last != "20" {
				t.Errorf("came back after %q", last)
			}
			problem(w, http.StatusServiceUnavailable, "database_unavailable")
		case 3:
			_, _ = io.WriteString(w, "id: 21\r\nevent: gap\r\ndata: {\"position\":21,\"topic\":\"gap\",\"event\":{\"gap\":1}}\r\n\r\nid: 30\n\n")
		case 4:
			if last != "30" {
				t.Errorf("came back after %q", last)
			}
			problem(w, http.StatusUnauthorized, "unauthorized")
		}
	})
	var got []string
	for e, err := range c.Stream(soon(t), StreamParams{From: After(7), LogFilter: LogFilter{Topics: []string{"a", "b.*"}}}) {
		var gap *Gap
		switch {
		case errors.As(err, &gap):
			got = append(got, fmt.Sprintf("gap %d-%d", gap.After, gap.Until))
		case err != nil:
			got = append(got, fmt.Sprint(errors.Is(err, ErrUnauthorized)))
		default:
			got = append(got, fmt.Sprintf("%d %s", e.Position, e.Topic))
		}
	}
	if want := []string{"8 a", "gap 8-20", "21 gap", "true"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add("id: 1\nevent: a\ndata: {}\n\n")
	f.Add(": position\nretry: 12\r\nid: 7\r\n\r\ndata\ndata:\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		const limit = 1 << 10
		r := frameReader{lines: bufio.NewReaderSize(strings.NewReader(text), 16), limit: limit}
		for range len(text) + 1 {
			got, err := r.next()
			if err != nil {
				return
			}
			if len(got.data) > limit {
				t.Errorf("a frame of %d bytes", len(got.data))
			}
		}
		t.Error("more frames than bytes")
	})
}
