package workloads

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// usage is what processes have used so far.
type usage struct {
	client time.Duration // CPU of this process
	server time.Duration // CPU of the server
	rss    int64         // the server's memory, bytes
}

// clientCPU is the CPU time of this process, user and system.
func clientCPU() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// serverUsage is what the server says of itself. Its metrics count the queues as well, which takes the
// database a while when they are long; so a server of one's own is asked of the system instead.
func (s *server) serverUsage(ctx context.Context) (cpu time.Duration, rss int64, err error) {
	if s.child != nil {
		if cpu, rss, ok := processUsage(s.child.cmd.Process.Pid); ok {
			return cpu, rss, nil
		}
	}
	body, err := s.get(ctx, "/metrics")
	if err != nil {
		return 0, 0, err
	}
	cpu = time.Duration(metric(body, "process_cpu_seconds_total") * float64(time.Second))
	return cpu, int64(metric(body, "process_resident_memory_bytes")), nil
}

// clockTicks is the unit of CPU time in /proc: 100 Hz on every Linux that Go runs on.
const clockTicks = 100

// processUsage reads /proc, where there is one.
func processUsage(pid int) (cpu time.Duration, rss int64, ok bool) {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat") //nolint:gosec // the kernel's file
	if err != nil {
		return 0, 0, false
	}
	// The second field, a name in parentheses, may hold blanks; what follows begins with the third (proc(5)).
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 22 {
		return 0, 0, false
	}
	var n [3]int64
	for i, at := range []int{14, 15, 24} { // utime, stime, rss in pages
		if n[i], err = strconv.ParseInt(string(fields[at-3]), 10, 64); err != nil {
			return 0, 0, false
		}
	}
	return time.Duration(n[0]+n[1]) * time.Second / clockTicks, n[2] * int64(os.Getpagesize()), true
}

// metric finds a sample without labels in Prometheus' text format; it is zero when there is none.
func metric(body []byte, name string) float64 {
	for line := range bytes.Lines(body) {
		if value, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			f, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
			if err != nil {
				return 0
			}
			return f
		}
	}
	return 0
}

// get asks the server for a page over a connection of its own.
func (s *server) get(ctx context.Context, path string) ([]byte, error) {
	c, err := dial(ctx, s.at)
	if err != nil {
		return nil, err
	}
	defer c.close()
	status, body, err := c.do(s.at.request("GET", path, nil), 0)
	switch {
	case err != nil:
		return nil, fmt.Errorf("asking %s for %s: %w", s.at.address, path, err)
	case status == 401:
		return nil, fmt.Errorf("the server at %s wants an API key: give it with --api-key or QUEUED_API_KEY, or give the right one", s.at.address)
	case status != 200:
		return nil, &statusError{path: path, status: status, code: problemCode(body)}
	}
	return bytes.Clone(body), nil
}

// statusError is an answer that says no.
type statusError struct {
	path   string
	status int
	code   string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s was answered %d %s", e.path, e.status, e.code)
}
