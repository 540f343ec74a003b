package suite

import (
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/bench/report"
	"github.com/queued/queued/bench/workloads"
)

func TestWorkloadsAreParsedWithTheDurationIfTheyTakeIt(t *testing.T) {
	t.Parallel()
	for _, w := range workloadParts {
		if _, err := w.parse(3 * time.Second); err != nil {
			t.Errorf("%s: %s", w.name, err)
		}
	}
	parsed, err := (&workload{args: "batch --batch 7", timed: true}).parse(3 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	batch, ok := parsed.(*workloads.Batch)
	if !ok || !slices.Equal(batch.Batch, []int{7}) || !slices.Equal(batch.Connections, []int{4}) || batch.Duration != 3*time.Second {
		t.Errorf("got %+v", parsed)
	}
}

func TestOnlyTakesNamesAndTheirFirstWords(t *testing.T) {
	t.Parallel()
	cfg := &Config{Only: []string{"floor", "river.copy", "single"}}
	for part, want := range map[string]bool{
		"floor.one": true, "floor.batch": true, "river.copy": true, "river.bench": false, "single.64": true, "batch": false, "floors": false,
	} {
		if got := cfg.wants(part); got != want {
			t.Errorf("%s: got %t", part, got)
		}
	}
}

func TestPeerWithoutScriptsIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := peer("pgbench", "nobody", "nobody.sql"); err == nil {
		t.Error("no error")
	}
}

func TestEveryBarIsOfPartsThatExist(t *testing.T) {
	t.Parallel()
	all, err := new(Config).parts(workloads.Config{Program: "queued"})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range report.Bars {
		for _, name := range b.Parts() {
			if !slices.ContainsFunc(all, func(p part) bool { return p.Name == name }) {
				t.Errorf("%v: there is no part %s", b, name)
			}
		}
	}
}
