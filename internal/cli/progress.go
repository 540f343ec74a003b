package cli

import (
	"fmt"
	"io"
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
	w          io.Writer
	isTerminal bool
	length     int // of the line that is on the terminal
	done       chan struct{}
	ended      sync.WaitGroup
}

// startProgress writes the line that report returns, again and again, until stop is called.
func startProgress(env *Env, report func(elapsed time.Duration) string) *progress {
	p := &progress{w: env.Stderr, isTerminal: IsTerminal(env.Stderr), done: make(chan struct{})}
	began, interval := env.Now(), logInterval
	if p.isTerminal {
		interval = terminalInterval
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
	if last != "" || p.length > 0 {
		p.write(last)
	}
	if p.length > 0 {
		_, _ = io.WriteString(p.w, "\n")
	}
}

// write writes one report. One that nobody can read stops nothing.
func (p *progress) write(line string) {
	if !p.isTerminal {
		_, _ = io.WriteString(p.w, line+"\n")
		return
	}
	blanks := strings.Repeat(" ", max(0, p.length-len(line)))
	p.length = len(line)
	_, _ = io.WriteString(p.w, "\r"+line+blanks)
}

// rate formats a number of things per second.
func rate(n int64, elapsed time.Duration) string {
	return fmt.Sprintf("%.0f/s", float64(n)/max(elapsed.Seconds(), 0.001))
}
