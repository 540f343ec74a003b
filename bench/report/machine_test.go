package report

import (
	"os"
	"path/filepath"
	"testing"
)

func TestProcessorTimesCountWaitingAsIdleAndGuestsOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stat string
		want processorTime
	}{
		"all fields":     {"cpu  10 1 5 80 20 1 2 3 7 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n", processorTime{idle: 100, stolen: 3, all: 122}},
		"another system": {"kernel 1 2 3\n", processorTime{}},
		"too few fields": {"cpu  10 1 5 80\n", processorTime{}},
		"no numbers":     {"cpu  a b c d e f g h\n", processorTime{}},
		"nothing":        {"", processorTime{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "stat")
			if err := os.WriteFile(path, []byte(test.stat), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := processorTimes(path); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
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
