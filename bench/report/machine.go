package report

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

func thisMachine() Machine {
	m := Machine{
		CPU: procField("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(),
		System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(),
	}
	var kib int
	_, _ = fmt.Sscanf(procField("/proc/meminfo", "MemTotal"), "%d kB", &kib)
	m.MemoryMiB = kib / 1024
	return m
}

// BusyShare watches the processors for a moment, and returns the part of them that is in use while this program does nothing; 0 where
// the system does not tell.
func BusyShare(ctx context.Context) float64 {
	const watch = 300 * time.Millisecond
	before := processorTimes("/proc/stat")
	timer := time.NewTimer(watch)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	after := processorTimes("/proc/stat")
	if after.all <= before.all {
		return 0
	}
	return 1 - (after.idle-before.idle)/(after.all-before.all)
}

// BusyTime returns how long all processors together have worked since the machine began, by whoever, without what other virtual machines took from it; 0 where the system does not tell.
func BusyTime() time.Duration {
	const tick = time.Second / 100 // what Linux counts in, for programs
	t := processorTimes("/proc/stat")
	return time.Duration((t.all - t.idle - t.stolen) * float64(tick))
}

// processorTime is how long all processors together were idle, were taken by other virtual machines, and existed, in ticks.
type processorTime struct{ idle, stolen, all float64 }

func processorTimes(path string) (t processorTime) {
	body, err := os.ReadFile(path) //nolint:gosec // one of the kernel's
	if err != nil {
		return t
	}
	line, _, _ := strings.Cut(string(body), "\n")
	fields := strings.Fields(line)
	// cpu user nice system idle iowait irq softirq steal, and then guests, which user has counted already.
	if len(fields) < 9 || fields[0] != "cpu" {
		return t
	}
	for i, field := range fields[1:9] {
		ticks, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return processorTime{}
		}
		t.all += ticks
		switch i {
		case 3, 4:
			t.idle += ticks
		case 7:
			t.stolen += ticks
		}
	}
	return t
}

// procField returns the value of the first line "name : value" of a file, empty where there is none.
func procField(path, name string) string {
	file, err := os.Open(path) //nolint:gosec // one of the kernel's
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if field, value, found := strings.Cut(lines.Text(), ":"); found && strings.TrimSpace(field) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
