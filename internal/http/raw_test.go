package http

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/http/problem"
)

// wantRaw fails the test unless these bytes are kept of an event, and returns how long they are kept.
func (h *environment) wantRaw(id int64, body, mediaType string) time.Duration {
	h.t.Helper()
	got := h.call("GET", fmt.Sprintf("/events/%d/raw", id), "").want(200)
	if got.body+"\n" != body || got.header.Get("Content-Length") != strconv.Itoa(len(body)) || got.header.Get("Content-Type") != mediaType {
		h.t.Errorf("event %d came in as %q, of the type %s and length %s, want %q of the type %s",
			id, got.body+"\n", got.header.Get("Content-Type"), got.header.Get("Content-Length"), body, mediaType)
	}
	if disposition := got.header.Get("Content-Disposition"); !strings.HasPrefix(disposition, "attachment;") {
		h.t.Errorf("browsers would show it: %q", disposition)
	}
	until, err := time.Parse(time.RFC1123, got.header.Get("Expires"))
	if err != nil {
		h.t.Error(err)
	}
	return time.Until(until)
}

func TestRawBodyIsKeptByteByByteInTheQueueAndInHistory(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const body = "\r\n{ \"n\" :\t1.50, \"n2\":1e2 , \"text\":\"\\u00e9 é\" }\r\n \n"
	form := h.with("Content-Type", "application/x-www-form-urlencoded")
	id := decode[seenEvent](form.try("POST", "/events?keep_raw=2h&key=k", body).want(201)).ID
	if kept := h.wantRaw(id, body, "application/x-www-form-urlencoded"); kept < time.Hour || kept > 2*time.Hour {
		t.Errorf("it is kept for %v, want two hours", kept)
	}
	again := decode[seenEvent](h.call("POST", "/events?keep_raw=9h&key=k", strings.TrimSpace(body)).want(200)).ID
	if again != id {
		t.Errorf("the key stands for event %d, want %d", again, id)
	}
	h.ack(h.claimOne())
	if kept := h.wantRaw(id, body, "application/x-www-form-urlencoded"); kept > 2*time.Hour {
		t.Errorf("a repeated request keeps it for %v, want two hours", kept)
	}
	h.sql(`update agent.raw_body set kept_until = now()`)
	h.call("GET", fmt.Sprintf("/events/%d/raw", id), "").wantProblem(problem.RawBodyNotFound)
}

func TestRawBodyIsKeptOnlyWhereItIsAskedFor(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("GET", fmt.Sprintf("/events/%d/raw", h.insert(`{}`)), "").wantProblem(problem.RawBodyNotFound)
	for _, wrong := range []string{"", "x", "0s", "-1h", "1ms", "87601h", "3651d", "7y"} {
		h.try("POST", "/events?keep_raw="+wrong, `{}`).wantProblem(problem.InvalidParameter)
	}
	h.try("POST", "/events/batch?keep_raw=1h", `{"events":[{"event":{}}]}`).wantProblem(problem.UnknownParameter)
	if n := h.count(`select count(*) from agent.raw_body`); n != 0 {
		t.Errorf("%d bodies are kept, want none", n)
	}
}

func TestRawBodyWithoutAMediaTypeIsAnswered(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := h.insert(`{}`)
	h.cellOf("default").sql(`select agent.keep_raw_body($1, convert_to(e'from SQL\n', 'UTF8'))`, id)
	h.wantRaw(id, "from SQL\n", "application/octet-stream")
}
