package pg_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

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

func TestLoopPausesUntilItIsWokenOrItsContextEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	woken := pg.NewSignal()
	passed, ended := make(chan struct{}, 10), make(chan struct{})
	go func() {
		defer close(ended)
		pg.Loop{
			Pass:  func(context.Context) error { passed <- struct{}{}; return nil },
			Pause: time.Hour,
			Wakes: woken.Received,
			Late:  true,
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
