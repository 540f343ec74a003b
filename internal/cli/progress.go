package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Times between two reports of progress.
const (
	terminalInterval = 200 * time.Millisecond
	logInterval      = 10 * time.Second // where each report is a line that stays
)

// progress tells how far a long command is: on a terminal in one line that is written again and again, elsewhere in a line now and then.
type progress struct {
	env        *Env
	isTerminal bool
	done       chan struct{}
	ended      sync.WaitGroup
}

// startProgress writes the line that report returns, again and again, until stop is called.
func startProgress(env *Env, report func(elapsed time.Duration) string) *progress {
	p := &progress{env: env, isTerminal: IsTerminal(env.Stderr), done: make(chan struct{})}
	began, interval := env.Now(), logInterval
	if p.isTerminal {
		interval = terminalInterval
		env.status.open(env)
		env.status.setProgress(true)
	}
	p.ended.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.write(report(env.Now().Sub(began)))
			case <-p.done:
				return
			}
		}
	})
	return p
}

// stop ends the reports with a last line, unless that is empty.
func (p *progress) stop(last string) {
	close(p.done)
	p.ended.Wait()
	if p.isTerminal {
		p.env.status.setProgress(false)
	}
	if last != "" {
		p.env.notef("%s", last)
	}
}

// write writes one report. One that nobody can read stops nothing.
func (p *progress) write(line string) {
	if !p.isTerminal {
		p.env.notef("%s", line)
		return
	}
	p.env.status.report(line)
}

// barWidth is how many characters the bar of a progress has between its brackets.
const barWidth = 30

// bar draws the share of a work that is done, with the percentage.
func bar(share float64) string {
	share = min(1, max(0, share))
	full := int(share * barWidth)
	head := ""
	if full < barWidth {
		head = ">" + strings.Repeat(" ", barWidth-full-1)
	}
	return fmt.Sprintf("[%s%s] %3d %%", strings.Repeat("=", full), head, int(share*100))
}

// rate formats a number of things per second.
func rate(n int64, elapsed time.Duration) string {
	return fmt.Sprintf("%.0f/s", float64(n)/max(elapsed.Seconds(), 0.001))
}
