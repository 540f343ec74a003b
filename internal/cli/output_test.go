package cli

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/queued/queued/client"
)

// hostile is what terminals obey: escape sequences of 7 and 8 bits, and what moves the cursor.
const hostile = "a\x1b]0;owned\x07\x1b[2J\u009b31m\x7f\b\rz"

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
	written["problem"] = Describe(&client.Error{Title: hostile, Detail: hostile, Errors: []client.FieldError{{Pointer: hostile, Detail: hostile}, {Detail: hostile}}}, nil)
	written["other error"] = Describe(errors.New("client: the answer is "+hostile), nil)
	for _, where := range slices.Sorted(maps.Keys(written)) {
		if text := written[where]; strings.ContainsAny(text, "\x1b\x07\x7f\b\r\u009b") || !strings.Contains(text, "owned") {
			t.Errorf("%s: wrote %q", where, text)
		}
	}
}
