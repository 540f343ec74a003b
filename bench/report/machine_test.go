package report

import (
	"os"
	"path/filepath"
	"testing"
)

func TestProcessorTimesCountWaitingAsIdleAndGuestsOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stat      string
		idle, all float64
	}{
		"all fields":     {"cpu  10 1 5 80 20 1 2 3 7 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n", 100, 122},
		"another system": {"kernel 1 2 3\n", 0, 0},
		"too few fields": {"cpu  10 1 5 80\n", 0, 0},
		"no numbers":     {"cpu  a b c d e f g h\n", 0, 0},
		"nothing":        {"", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "stat")
			if err := os.WriteFile(path, []byte(test.stat), 0o600); err != nil {
				t.Fatal(err)
			}
			if idle, all := processorTimes(path); idle != test.idle || all != test.all {
				t.Errorf("got %v of %v, want %v of %v", idle, all, test.idle, test.all)
			}
		})
	}
}

func TestFieldOfTheKernelsIsFound(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cpuinfo")
	if err := os.WriteFile(path, []byte("processor\t: 0\nmodel name\t: A: B\nmodel name\t: C\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := procField(path, "model name"); got != "A: B" {
		t.Errorf("got %q", got)
	}
	if got := procField(path+"-missing", "model name"); got != "" {
		t.Errorf("got %q", got)
	}
}
