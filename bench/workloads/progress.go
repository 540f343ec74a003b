package workloads

import (
	"fmt"
	"io"
	"time"
)

const (
	terminalInterval = time.Second
	otherInterval    = 10 * time.Second
)

// progress says how it goes: on a terminal in one line that is written over, elsewhere in a line now and then.
type progress struct {
	w        io.Writer // nil: silent
	terminal bool
	last     time.Time
	open     bool // a line is there to be written over
}

func newProgress(cfg Config) *progress {
	p := &progress{w: cfg.Progress, terminal: cfg.Terminal}
	if cfg.Quiet {
		p.w = nil
	}
	return p
}

// say writes what begins now.
func (p *progress) say(format string, args ...any) {
	if p.w == nil || !p.terminal && time.Since(p.last) < otherInterval {
		return
	}
	p.last = time.Now()
	line := fmt.Sprintf(format, args...)
	if p.terminal {
		_, _ = fmt.Fprintf(p.w, "\r\x1b[K%s", line)
		p.open = true
		return
	}
	_, _ = fmt.Fprintln(p.w, line)
}

// counted says how far a run is; began is zero during its warm-up.
func (p *progress) counted(label string, lives int64, began time.Time) {
	if began.IsZero() {
		p.say("%s: warming up", label)
		return
	}
	took := time.Since(began)
	p.say("%s: %d s, %d lives, %.0f/s", label, int(took.Seconds()+0.5), lives, float64(lives)/max(took.Seconds(), 0.001))
}

// end leaves the terminal clean.
func (p *progress) end() {
	if p.w != nil && p.open {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
		p.open = false
	}
}
