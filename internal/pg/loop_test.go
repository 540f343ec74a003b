package pg_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/pg"
)

func TestLoopLogsOnlyWhatChanges(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	results := []error{errors.New("one"), errors.New("one"), errors.New("two"), nil, nil, errors.New("one")}
	passes := 0
	var log bytes.Buffer
	pg.Loop{
		Doing: "testing",
		Pass: func(context.Context) error {
			if passes++; passes > len(results) {
				cancel()
				return errors.New("it was cancelled")
			}
			return results[passes-1]
		},
		Retry: time.Microsecond,
	}.Run(ctx, zerolog.New(&log))
	var got []string
	for line := range strings.Lines(log.String()) {
		text := "works again"
		if _, err, isError := strings.Cut(line, `"error":"`); isError {
			text, _, _ = strings.Cut(err, `"`)
		}
		got = append(got, text)
	}
	if want := []string{"one", "two", "works again", "one"}; !slices.Equal(got, want) {
		t.Errorf("logged %q, want %q:\n%s", got, want, &log)
	}
}

func TestUpkeepBeginsSoonButNotAtOnce(t *testing.T) {
	t.Parallel()
	for pause, want := range map[time.Duration]time.Duration{time.Hour: 3 * time.Second, time.Second: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			began := time.Now()
			pg.Loop{Pause: pause, IsUpkeep: true, Pass: func(context.Context) error { cancel(); return nil }}.Run(ctx, zerolog.Nop())
			if got := time.Since(began); got != want {
				t.Errorf("with a pause of %v the first pass came after %v, want %v", pause, got, want)
			}
		})
	}
}

func TestLoopPausesUntilItIsWokenOrItsContextEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	woken := pg.NewSignal()
	passed, ended := make(chan struct{}, 10), make(chan struct{})
	go func() {
		defer close(ended)
		pg.Loop{
			Pass:       func(context.Context) error { passed <- struct{}{}; return nil },
			Pause:      time.Hour,
			Wakes:      woken.Received,
			DelayFirst: true,
		}.Run(ctx, zerolog.Nop())
	}()
	for range 3 {
		if len(passed) > 0 {
			t.Error("it does not pause")
		}
		woken.Send()
		<-passed
	}
	cancel()
	<-ended
}

func TestLoopThatIsWokenForNothingIsHeldUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		loop   pg.Loop
		isFree bool
	}{
		"by a signal":                        {loop: pg.Loop{Pause: time.Hour}},
		"by its own time":                    {loop: pg.Loop{Next: func(context.Context) time.Duration { return 0 }}},
		"by a time that is too short":        {loop: pg.Loop{Next: func(context.Context) time.Duration { return time.Microsecond }}},
		"by a signal, and gets a thing done": {loop: pg.Loop{Pause: time.Hour}, isFree: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				const most = 1000
				passes, woken := 0, pg.NewSignal()
				test.loop.Pass = func(ctx context.Context) error {
					if test.isFree {
						pg.Worked(ctx)
					}
					if passes++; passes == most {
						cancel()
					}
					if test.loop.Next == nil {
						woken.Send()
					}
					return nil
				}
				test.loop.Wakes = woken.Received
				test.loop.Run(ctx, zerolog.Nop())
				if isHeldUp := passes < 400; isHeldUp == test.isFree { // five a second
					t.Errorf("%d passes in a minute", passes)
				}
			})
		})
	}
}

func TestFailingPassesOfALoopGiveFewLinesWhoseCountsAddUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	const failing = 5000
	var out bytes.Buffer
	// The clock stands still, so that all passes fail within a second.
	limiter := failure.NewLimiter(&out, func() time.Time { return time.Time{} })
	passes := 0
	pg.Loop{
		Doing: "testing",
		Pass: func(ctx context.Context) error {
			pg.Worked(ctx) // or so many passes in a row would be held up
			switch passes++; {
			case passes <= failing: // each with another text, as of another connection
				return fmt.Errorf("connection %d: %w", passes, &pgconn.PgError{Code: "53100"})
			case passes > failing+1:
				cancel()
			}
			return nil
		},
		Pause: time.Microsecond,
	}.Run(ctx, zerolog.New(limiter))
	limiter.Run(ctx) // which has ended: it writes what is left
	stoodFor, lines, noted := 0, 0, 0
	for line := range strings.Lines(out.String()) {
		var got struct {
			Level        string
			Kind         string
			Suppressed   int
			FailedPasses int `json:"failed_passes"`
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		noted += got.FailedPasses
		if got.Level == "error" && got.Kind == "53100" {
			lines, stoodFor = lines+1, stoodFor+1+got.Suppressed
		}
	}
	if lines != 2 || stoodFor != failing || noted != failing {
		t.Errorf("%d lines stand for %d passes, and the line of the first success for %d, want %d:\n%.2000s", lines, stoodFor, noted, failing, &out)
	}
}
