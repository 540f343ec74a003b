package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// program makes a stand-in for queued out of a shell script, which finds the report's file in $json.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "queued")
	script = "#!/bin/sh\nargs=\"$*\"\nwhile [ \"$1\" != --json ]; do shift; done\njson=$2\n" + script
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWorkloadIsWhatItsProgramReports(t *testing.T) {
	t.Parallel()
	timed := &workload{name: "batch", args: []string{"batch", "--batch", "100"}, timed: true}
	const good = `echo '{"results":[{"label":"a","lives_per_s":5}],"ratios":{}}' >$json; `
	for name, test := range map[string]struct {
		workload *workload
		script   string
		says     string // in the error; empty: there is none
	}{
		"a report":          {timed, good, ""},
		"asked in full":     {timed, good + `case $args in "bench batch --batch 100 --database-url URL --json "*" --quiet --duration 3s") ;; *) echo $args; exit 1 ;; esac`, ""},
		"not told how long": {&workload{name: "soak", args: []string{"soak"}}, good + `case $args in *--duration*) exit 1 ;; esac`, ""},
		"lost events":       {timed, good + `echo 3 events are lost >&2; exit 1`, "3 events are lost"},
		"nothing reported":  {timed, `echo nothing to do`, "nothing to do"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := test.workload.run(t.Context(), program(t, test.script), "URL", 3*time.Second)
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := []number{{test.workload.name, 5, "lives/s"}}; !slices.Equal(got.numbers, want) {
				t.Errorf("got %v", got.numbers)
			}
		})
	}
}
