package cli

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/client"
)

// hostile is what terminals obey: escape sequences of 7 and 8 bits, and what moves the cursor.
const hostile = "a\x1b]0;owned\x07\x1b[2J\u009b31m\x7f\b\rz"

func TestOneEventIsNotWrittenAsSeveral(t *testing.T) {
	t.Parallel()
	for count, want := range map[string]string{"0": "0 events", "1": "1 event", "~1": "~1 events", "21": "21 events"} {
		if got := eventsOf(count); got != want {
			t.Errorf("%s: got %q, want %q", count, got, want)
		}
	}
}

// TestNothingThatTerminalsObeyIsWritten writes what a server sends in every way that commands do.
func TestNothingThatTerminalsObeyIsWritten(t *testing.T) {
	t.Parallel()
	type record struct {
		Name    string          `json:"name"`
		Payload json.RawMessage `json:"payload"`
	}
	payload, err := json.Marshal(map[string]string{"text": hostile})
	if err != nil {
		t.Fatal(err)
	}
	value := record{hostile, payload}
	written := make(map[string]string)
	for _, format := range []string{formatTable, formatJSON, formatJSONL} {
		var out, said strings.Builder
		env := &Env{Stdout: &out, Stderr: &said}
		v := view[record]{columns: columns("NAME", "PAYLOAD…"), row: func(r record) []string { return []string{r.Name, string(r.Payload)} }}
		err := list(env, format, v, func(yield func(record, error) bool) { yield(value, nil) })
		if err == nil {
			err = show(env, format, value, func(r record) [][2]string { return [][2]string{{"name", r.Name}, {"payload", string(r.Payload)}} })
		}
		if err != nil {
			t.Fatal(err)
		}
		env.notef("event %d: %s", 1, hostile)
		written[format], written["note of "+format] = out.String(), said.String()
		if format == formatJSONL {
			var read record
			line, _, _ := strings.Cut(out.String(), "\n")
			if err := json.Unmarshal([]byte(line), &read); err != nil || read.Name != hostile {
				t.Errorf("the JSON %q does not say the same: %q, %v", line, read.Name, err)
			}
		}
	}
	written["problem"] = new(Env).Describe(&client.Error{Title: hostile, Detail: hostile, Errors: []client.FieldError{{Pointer: hostile, Detail: hostile}, {Detail: hostile}}}, nil)
	written["other error"] = new(Env).Describe(errors.New("client: the answer is "+hostile), nil)
	for _, where := range slices.Sorted(maps.Keys(written)) {
		if text := written[where]; strings.ContainsAny(text, "\x1b\x07\x7f\b\r\u009b") || !strings.Contains(text, "owned") {
			t.Errorf("%s: wrote %q", where, text)
		}
	}
}

func TestNarrowTableGivesRoomToWhatDiffers(t *testing.T) {
	t.Parallel()
	titles := columns("ID", "QUEUE…", "TYPE…?", "OUTCOME", "ATTEMPTS?", "FINISHED@", "TOOK?", "LAST ERROR…", "EVENT…")
	row := func(id, outcome, finished, took, text, event string) []string {
		return []string{id, "mail", "-", outcome, "3", finished, took, text, event}
	}
	const refused, full = "dial tcp 10.0.0.25:25: connection refused", "550 mailbox of eve@example.com is full"
	for name, c := range map[string]struct {
		width int
		rows  [][]string
		want  string
	}{
		"room for all": {200, [][]string{row("1", "failed", "3m ago", "5ms", "full", `{"n":1}`), row("2", "failed", "3m ago", "5ms", "full", `{"n":2}`)}, `
ID  QUEUE  TYPE  OUTCOME  ATTEMPTS  FINISHED  TOOK  LAST ERROR  EVENT
1   mail   -     failed   3         3m ago    5ms   full        {"n":1}
2   mail   -     failed   3         3m ago    5ms   full        {"n":2}
`},
		"of columns that do not differ those go that matter least, until there is room": {66, [][]string{row("1", "failed", "3m ago", "5ms", "full", `{"n":1}`), row("2", "failed", "3m ago", "7ms", "full", `{"n":2}`)}, `
In every row: ATTEMPTS 3
ID  QUEUE  TYPE  OUTCOME  FINISHED  TOOK  LAST ERROR  EVENT
1   mail   -     failed   3m ago    5ms   full        {"n":1}
2   mail   -     failed   3m ago    7ms   full        {"n":2}
`},
		"what differs is whole": {80, [][]string{row("1", "failed", "3m ago", "5ms", refused, `{"n":1}`), row("2", "failed", "2m ago", "7ms", full, `{"n":2}`)}, `
In every row: TYPE -, OUTCOME failed, ATTEMPTS 3
ID  QUEUE  FINISHED  TOOK  LAST ERROR                                 EVENT
1   mail   3m ago    5ms   dial tcp 10.0.0.25:25: connection refused  {"n":1}
2   mail   2m ago    7ms   550 mailbox of eve@example.com is full     {"n":2}
`},
		"what differs is cut when nothing else is left": {60, [][]string{row("1", "done", "3m ago", "5ms", refused, `{"n":1}`), row("2", "failed", "2m ago", "7ms", full, `{"n":2}`)}, `
In every row: QUEUE mail, TYPE -, ATTEMPTS 3
ID  OUTCOME  FINISHED  TOOK  LAST ERROR              EVENT
1   done     3m ago    5ms   dial tcp 10.0.0.25:25…  {"n":1}
2   failed   2m ago    7ms   550 mailbox of eve@ex…  {"n":2}
`},
		"a long value of all rows is said once, over several lines": {60, [][]string{row("1", "failed", "3m ago", "5ms", refused, `{"n":1}`), row("2", "failed", "2m ago", "5ms", refused, `{"n":2}`)}, `
In every row: TYPE -, ATTEMPTS 3, TOOK 5ms,
LAST ERROR dial tcp 10.0.0.25:25: connection refused
ID  QUEUE  OUTCOME  FINISHED  EVENT
1   mail   failed   3m ago    {"n":1}
2   mail   failed   2m ago    {"n":2}
`},
		"a single row keeps its columns": {60, [][]string{row("1", "failed", "3m ago", "5ms", "full", `{"n":1}`)}, `
ID  QUEUE  TYPE  OUTCOME  FINISHED  LAST ERROR  EVENT
1   mail   -     failed   3m ago    full        {"n":1}
`},
	} {
		var out strings.Builder
		if err := writeTable(&out, titles, c.rows, c.width); err != nil {
			t.Fatal(err)
		}
		if got := "\n" + out.String(); got != c.want {
			t.Errorf("%s: in %d characters it is%s\nwant%s", name, c.width, got, c.want)
		}
	}
}

func TestAgesAreRoughAndExactToTheSecondNearby(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 2, 3, 4, 5, 6, 700_000_000, time.UTC)
	for ago, want := range map[time.Duration]string{
		0: "now", 2 * time.Second: "2s ago", 59 * time.Second: "59s ago", 3*time.Minute + 50*time.Second: "3m ago", 47 * time.Hour: "47h ago", 48 * time.Hour: "2d ago",
		400 * 24 * time.Hour: "400d ago", -10 * time.Second: "in 9s",
	} {
		if got := ageOf(moment(now.Add(-ago)), now); got != want {
			t.Errorf("%s ago is %q, want %q", ago, got, want)
		}
	}
	for _, text := range []string{"never", "-", "", "2026-02-03"} {
		if got := ageOf(text, now); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestProgressHasABarAndTheTimeLeft(t *testing.T) {
	t.Parallel()
	u := new(upload)
	u.done.Store(600)
	u.passed.Store(200) // these took no time
	u.stored.Store(40)
	for _, c := range []struct {
		elapsed time.Duration
		size    int64
		want    string
	}{
		{4 * time.Second, 1000, "[==================>           ]  60 % 40 events, 10/s, 4s left"},
		{4 * time.Second, 600, "[==============================] 100 % 40 events, 10/s"},
		{4 * time.Second, 300, "[==============================] 100 % 40 events, 10/s"}, // the file has grown
		{500 * time.Millisecond, 1000, "[==================>           ]  60 % 40 events, 80/s"},
		{4 * time.Second, 0, "40 events, 10/s"},
	} {
		if got := u.reportWithBar(c.elapsed, c.size); got != c.want {
			t.Errorf("after %s of %d bytes it is %q, want %q", c.elapsed, c.size, got, c.want)
		}
	}
	if got := new(upload).reportWithBar(2*time.Second, 10); got != "[>                             ]   0 % 0 events, 0/s" {
		t.Errorf("at first it is %q", got)
	}
}
