package failure_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/failure"
)

// A clock stands still until it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// written is a line that was written.
type written struct {
	Level, Message, Kind, Error string
	Time                        string
	N                           int
	Suppressed                  int
}

// limited returns a logger through a Limiter that runs until end is called, which returns what was written. Time is that of now.
func limited(t *testing.T, now func() time.Time) (log zerolog.Logger, soFar, end func() []written) {
	t.Helper()
	var mu sync.Mutex
	var out bytes.Buffer
	limiter := failure.NewLimiter(writerFunc(func(line []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return out.Write(line)
	}), now)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		limiter.Run(ctx)
	}()
	soFar = func() (lines []written) {
		mu.Lock()
		defer mu.Unlock()
		for line := range strings.Lines(out.String()) {
			var w written
			if err := json.Unmarshal([]byte(line), &w); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			lines = append(lines, w)
		}
		return lines
	}
	return zerolog.New(limiter), soFar, func() []written {
		cancel()
		<-ended
		return soFar()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// total returns how many lines those stand for.
func total(lines []written) (n int) {
	for _, line := range lines {
		n += 1 + line.Suppressed
	}
	return n
}

var errDiskFull = fmt.Errorf("writing: %w", &pgconn.PgError{Code: "53100", Message: "no space left on device"})

func TestFirstLineOfAKindIsWrittenAtOnceAndTheOthersAreCounted(t *testing.T) {
	t.Parallel()
	var c clock
	log, soFar, end := limited(t, c.Now)
	log.Error().Func(failure.Of(errDiskFull)).Msg("failed")
	if got := soFar(); len(got) != 1 || got[0].Kind != "53100" || !strings.Contains(got[0].Error, "no space") {
		t.Fatalf("the first line: %+v", got)
	}
	for n := range 4999 {
		log.Error().Func(failure.Of(fmt.Errorf("request %d: %w", n, errDiskFull))).Int("n", n).Msg("failed")
	}
	if got := soFar(); len(got) != 1 {
		t.Fatalf("%d lines within an interval", len(got))
	}
	c.move(failure.Interval)
	log.Error().Func(failure.Of(errDiskFull)).Msg("failed")
	if got := soFar(); len(got) != 2 || got[1].Suppressed != 4999 || total(got) != 5001 {
		t.Fatalf("after the interval: %+v", got)
	}
	if got := end(); len(got) != 2 {
		t.Errorf("at the end, with nothing left out: %+v", got)
	}
}

func TestCountOfWhatWasLeftOutIsWrittenAtTheEndOfTheProgram(t *testing.T) {
	t.Parallel()
	var c clock
	log, _, end := limited(t, c.Now)
	for n := range 5000 {
		log.Warn().Func(failure.Of(errDiskFull)).Int("n", n).Msg("failed")
	}
	if got := end(); len(got) != 2 || got[1].N != 4999 || got[1].Level != "warn" || got[1].Suppressed != 4998 || total(got) != 5000 {
		t.Errorf("%+v", got)
	}
}

func TestCountOfWhatWasLeftOutIsWrittenWhenNoFurtherLineComes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, soFar, end := limited(t, time.Now)
		defer end()
		for range 5000 { // in 5 s of the test's own clock
			log.Error().Func(failure.Of(errDiskFull)).Msg("failed")
			<-time.After(time.Millisecond)
		}
		synctest.Wait()
		if got := soFar(); len(got) < 5 || len(got) > 6 {
			t.Errorf("%d lines in five seconds", len(got))
		}
		<-time.After(2 * failure.Interval)
		synctest.Wait()
		got := soFar()
		if total(got) != 5000 || len(got) > 7 {
			t.Errorf("%d lines stand for %d: %+v", len(got), total(got), got)
		}
	})
}

func TestKindsDoNotSuppressEachOther(t *testing.T) {
	t.Parallel()
	var c clock
	log, soFar, end := limited(t, c.Now)
	defer end()
	kinds := []error{
		errDiskFull,
		&pgconn.PgError{Code: "57P03"},
		errors.New("anything else"),
		fmt.Errorf("dial: %w", syscall.ECONNREFUSED),
		context.DeadlineExceeded,
		io.ErrUnexpectedEOF,
	}
	for range 2 {
		for _, err := range kinds {
			log.Error().Func(failure.Of(err)).Msg("failed")
		}
		log.Warn().Func(failure.Of(errDiskFull)).Msg("failed")
		log.Error().Func(failure.Of(errDiskFull)).Msg("failed elsewhere")
	}
	if got := soFar(); len(got) != len(kinds)+2 || total(got) != len(got) {
		t.Errorf("%d lines of %d kinds: %+v", len(got), len(kinds)+2, got)
	}
}

func TestLinesThatAreNoFailuresAreAllWritten(t *testing.T) {
	t.Parallel()
	var c clock
	log, _, end := limited(t, c.Now)
	for n := range 100 {
		log.Info().Str(failure.Field, "53100").Msg("at info")
		log.Warn().Int("schedule_id", n).Msg("a fact")
		log.Error().Interface("field", map[string]any{failure.Field: "of another"}).Msg("a fact")
		log.Log().Str(failure.Field, "53100").Msg("without a level")
	}
	if got := end(); len(got) != 400 || total(got) != 400 {
		t.Errorf("%d lines, which stand for %d", len(got), total(got))
	}
}

func TestKindsBeyondTheMostAreCountedTogether(t *testing.T) {
	t.Parallel()
	var c clock
	log, soFar, end := limited(t, c.Now)
	for n := range 5000 {
		log.Error().Str(failure.Field, fmt.Sprint(n)).Msg("failed")
	}
	if got := soFar(); len(got) != 257 {
		t.Errorf("%d lines of 5,000 kinds", len(got))
	}
	if got := end(); len(got) != 258 || total(got) != 5000 {
		t.Errorf("%d lines, which stand for %d", len(got), total(got))
	}
}

func TestKindsOfWhichNothingIsLoggedAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, soFar, end := limited(t, time.Now)
		defer end()
		for round := range 10 {
			for n := range 200 {
				log.Error().Str(failure.Field, fmt.Sprint(round, n)).Msg("failed")
			}
			<-time.After(2 * failure.Interval)
		}
		if got := soFar(); len(got) != 2000 || total(got) != 2000 {
			t.Errorf("%d lines of 2,000 kinds, 200 at a time", len(got))
		}
	})
}

func TestOfALongLineOnlyItsKindIsKept(t *testing.T) {
	t.Parallel()
	var c clock
	log, _, end := limited(t, c.Now)
	for range 3 {
		log.Error().Str("time", "now").Err(errors.New(strings.Repeat("x", 20_000))).Str(failure.Field, "long").Msg("failed")
	}
	got := end()
	if len(got) != 2 || len(got[0].Error) != 20_000 || total(got) != 3 {
		t.Fatalf("%d lines", len(got))
	}
	if want := (written{Level: "error", Message: "failed", Kind: "long", Time: "now", Suppressed: 1}); got[1] != want {
		t.Errorf("got %+v, want %+v", got[1], want)
	}
}
