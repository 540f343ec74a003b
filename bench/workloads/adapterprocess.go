package workloads

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// adapterProcess is an adapter that this program has started: a process that inserts and works jobs by its environment, and writes samples as lines of JSON, as the
// adapters of postgresql-job-queue-benchmarking do.
type adapterProcess struct {
	process *process
	control string // the file that has the rate

	mu      sync.Mutex
	line    []byte // begun
	wrong   error
	system  string
	version string
	ticks   []tick
	news    chan struct{} // something was read
}

// tick is the samples that came at one time.
type tick struct {
	at     time.Time
	values map[string]float64
}

// The metrics that adapters write.
const (
	completionRate = "completion_rate"
	enqueueRate    = "enqueue_rate"
	queueDepth     = "queue_depth"
)

var claimMetrics = []string{"claim_p50_ms", "claim_p95_ms", "claim_p99_ms"}

// startAdapter starts an adapter on a database, with the rate that control has. failed is called when it ends without having been stopped.
func startAdapter(ctx context.Context, program, control, databaseURL string, environ, settings []string, failed context.CancelCauseFunc) (*adapterProcess, error) {
	a := &adapterProcess{control: control, news: make(chan struct{}, 1)}
	cmd := exec.Command(program) //nolint:noctx // it is what the user measures; it is stopped in order, not killed with a context
	cmd.Env = append(append(append([]string{}, environ...), settings...), "DATABASE_URL="+databaseURL, "SCENARIO=long_horizon", "PRODUCER_PACING=adapter", "PRODUCER_RATE_CONTROL_FILE="+control)
	cmd.SysProcAttr, cmd.Stdout = serverAttributes(), a
	var err error
	if a.process, err = launch(cmd, failed); err != nil {
		return nil, err
	}
	if err := a.await(ctx, startLimit, "described itself", func() bool { return a.system != "" }); err != nil {
		return nil, errors.Join(err, a.process.kill())
	}
	return a, nil
}

// setRate has the adapter insert so many jobs a second.
func (a *adapterProcess) setRate(rate float64) error { return writeRate(a.control, rate) }

// writeRate replaces the file in one step: an adapter never reads a part of it.
func writeRate(control string, rate float64) error {
	next := control + ".next"
	if err := os.WriteFile(next, []byte(strconv.FormatFloat(rate, 'f', -1, 64)), 0o644); err != nil { //nolint:gosec // adapters of other users read it
		return err
	}
	return os.Rename(next, control)
}

// Write takes what the adapter writes on its standard output.
func (a *adapterProcess) Write(text []byte) (int, error) {
	const longest = 1 << 20
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line = append(a.line, text...)
	for {
		line, rest, found := bytes.Cut(a.line, []byte("\n"))
		if !found {
			break
		}
		a.read(line)
		a.line = rest
	}
	a.line = bytes.Clone(a.line) // what was read can be freed
	if len(a.line) > longest {
		a.line, a.wrong = nil, errors.Join(a.wrong, fmt.Errorf("the adapter wrote a line of more than %d bytes", longest))
	}
	wakeUp(a.news)
	return len(text), nil
}

// read reads a line. Other lines than records are logs on the wrong stream.
func (a *adapterProcess) read(line []byte) {
	var record struct {
		Kind, System, Version, Metric string
		T                             time.Time
		Value                         *float64
	}
	if json.Unmarshal(line, &record) != nil {
		return
	}
	switch {
	case record.Kind == "descriptor":
		a.system, a.version = record.System, record.Version
	case record.Kind == "adapter" && record.Metric != "" && record.Value != nil && !record.T.IsZero():
		if n := len(a.ticks); n == 0 || !a.ticks[n-1].at.Equal(record.T) {
			a.ticks = append(a.ticks, tick{record.T, map[string]float64{}})
		}
		a.ticks[len(a.ticks)-1].values[record.Metric] = *record.Value
	}
}

// isComplete reports whether all samples of a tick have come.
func (t *tick) isComplete() bool {
	for _, metric := range append([]string{completionRate, enqueueRate, queueDepth}, claimMetrics...) {
		if _, ok := t.values[metric]; !ok {
			return false
		}
	}
	return true
}

// since returns the complete ticks after a time.
func (a *adapterProcess) since(after time.Time) (ticks []tick) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.ticks {
		if t.at.After(after) && t.isComplete() {
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// nextTick waits for the next tick, until it is complete, and returns when that was.
func (a *adapterProcess) nextTick(ctx context.Context, every time.Duration) (at time.Time, err error) {
	a.mu.Lock()
	n := len(a.ticks)
	if n > 0 && !a.ticks[n-1].isComplete() {
		n--
	}
	a.mu.Unlock()
	err = a.await(ctx, 10*every+10*time.Second, "written samples", func() bool {
		if len(a.ticks) <= n || !a.ticks[len(a.ticks)-1].isComplete() {
			return false
		}
		at = a.ticks[len(a.ticks)-1].at
		return true
	})
	return at, err
}

// await waits until is returns true, which is called with mu held.
func (a *adapterProcess) await(ctx context.Context, limit time.Duration, what string, is func() bool) error {
	late := time.NewTimer(limit)
	defer late.Stop()
	for {
		a.mu.Lock()
		isSo, wrong := is(), a.wrong
		a.mu.Unlock()
		switch {
		case wrong != nil:
			return wrong
		case isSo:
			return nil
		}
		select {
		case <-a.news:
		case <-a.process.ended:
			return a.process.failure()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late.C:
			return fmt.Errorf("the adapter has not %s within %s; the end of its log:\n%s", what, limit, a.process.logTail())
		}
	}
}

// wakeUp wakes whoever waits on a channel of capacity one.
func wakeUp(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// cpu is the processor time of the adapter with the processes that it has started, and of those alone.
func (a *adapterProcess) cpu() (all, children time.Duration) {
	stat, _ := processStat(strconv.Itoa(a.process.cmd.Process.Pid))
	children = stat.ended
	for _, child := range childrenOf(a.process.cmd.Process.Pid) {
		s, _ := processStat(strconv.Itoa(child))
		children += s.cpu + s.ended
	}
	return stat.cpu + children, children
}

// stop ends the adapter in order and returns how long that took.
func (a *adapterProcess) stop() (time.Duration, error) {
	began := time.Now()
	err := a.process.stop()
	return time.Since(began), err
}

// kill ends a process at once.
func (p *process) kill() error {
	defer func() { _ = p.log.Close() }()
	p.stopping.Store(true)
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("killing %s: %w", p.cmd.Path, err)
	}
	<-p.ended
	return nil
}
