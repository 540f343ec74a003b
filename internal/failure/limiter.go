package failure

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// Interval is how long after a line of a kind the next one is written at the earliest.
const Interval = time.Second

// The lines that a Limiter remembers take 256 times 16 KiB at most.
const (
	maxKinds = 256      // that are counted each by itself; further ones count as one kind
	maxLine  = 16 << 10 // of a line that is kept; of a longer one, only the fields of its kind are
	maxText  = 256      // of a kind's message and reason
	present  = `"` + Field + `":`
)

// A Limiter is the io.Writer of a zerolog.Logger that writes at most one line of each kind every Interval: the first one at once, and the
// latest of an interval at its end, or instead of that the first one after it. The field "suppressed" of a line says how many of its kind were
// left out since the line before. Lines and counts add up to all that were logged.
//
// Only lines at level warn and error that have Field are limited. It may be used concurrently.
type Limiter struct {
	out io.Writer
	now func() time.Time

	mu    sync.Mutex
	kinds map[kind]*recent
}

// A kind is the fields in common of lines that are limited together. The zero kind is that of all lines for which there is no room.
type kind struct {
	level           zerolog.Level
	message, reason string
}

// recent is the state of a kind that was lately logged.
type recent struct {
	next time.Time // when the next line may be written
	left int       // how many lines were not written since the last one that was
	last []byte    // the latest of these
}

// NewLimiter returns a Limiter that writes to out. now is its clock.
func NewLimiter(out io.Writer, now func() time.Time) *Limiter {
	return &Limiter{out: out, now: now, kinds: make(map[kind]*recent)}
}

// Write implements io.Writer, for lines without a level.
func (l *Limiter) Write(line []byte) (int, error) { return l.out.Write(line) }

// WriteLevel implements zerolog.LevelWriter.
func (l *Limiter) WriteLevel(level zerolog.Level, line []byte) (int, error) {
	if level != zerolog.WarnLevel && level != zerolog.ErrorLevel || !bytes.Contains(line, []byte(present)) {
		return l.out.Write(line)
	}
	var about about
	if err := json.Unmarshal(line, &about); err != nil || about.Kind == "" {
		return l.out.Write(line)
	}
	left, isDue := l.note(kind{level, clip(about.Message), clip(about.Kind)}, about, line)
	if !isDue {
		return len(line), nil
	}
	if _, err := l.out.Write(withSuppressed(line, left)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// about is the fields of a line that make its kind, and when it was logged.
type about struct {
	Level   string `json:"level"`
	Kind    string `json:"kind"`
	Time    string `json:"time,omitempty"`
	Message string `json:"message"`
}

func clip(text string) string { return text[:min(len(text), maxText)] }

// note reports whether a line of kind k is to be written now, and how many were left out before it.
func (l *Limiter) note(k kind, about about, line []byte) (left int, isDue bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	r := l.kinds[k]
	if r == nil {
		if len(l.kinds) >= maxKinds {
			k = kind{}
		}
		if r = l.kinds[k]; r == nil {
			r = &recent{}
			l.kinds[k] = r
		}
	}
	if now.Before(r.next) {
		r.left++
		if len(line) > maxLine {
			about.Message, about.Kind = clip(about.Message), clip(about.Kind)
			line, _ = json.Marshal(about)
		}
		r.last = append(r.last[:0], line...)
		return 0, false
	}
	left = r.left
	r.left, r.next = 0, now.Add(Interval)
	return left, true
}

// Run writes the lines that are due, until ctx ends, and then all that are left.
func (l *Limiter) Run(ctx context.Context) {
	ticks := time.NewTicker(Interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			l.flush(true)
			return
		case <-ticks.C:
			l.flush(false)
		}
	}
}

// flush writes the latest line of each kind that has lines left out and whose interval is over, or of all, and forgets kinds of which nothing
// was logged lately.
func (l *Limiter) flush(all bool) {
	var due [][]byte
	l.mu.Lock()
	now := l.now()
	for k, r := range l.kinds {
		switch {
		case now.Before(r.next) && !all:
		case r.left == 0:
			delete(l.kinds, k)
		default:
			due = append(due, withSuppressed(r.last, r.left-1))
			r.left, r.next = 0, now.Add(Interval)
		}
	}
	l.mu.Unlock()
	for _, line := range due {
		_, _ = l.out.Write(line) // as zerolog, which has nowhere to say that it cannot log
	}
}

// withSuppressed returns a line that says how many were left out before it, and is safe to keep.
func withSuppressed(line []byte, left int) []byte {
	text := strings.TrimSuffix(string(line), "\n")
	if left > 0 {
		text = strings.TrimSuffix(text, "}") + `,"suppressed":` + strconv.Itoa(left) + "}"
	}
	return append([]byte(text), '\n')
}
