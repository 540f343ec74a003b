package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/internal/duration"
)

// examples returns the examples of a command for its --help.
func examples(lines ...string) string {
	return "Examples:\n\n    $ " + strings.Join(lines, "\n    $ ") + "\n"
}

// id formats an id; 0 is none.
func id(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// parseID returns the id that an argument is.
func parseID(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, usagef("the id is %q; want a whole number from 1", text)
	}
	return n, nil
}

// dash stands for nothing in a table.
func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// moment formats a time to the second, in UTC as all times of queued are; zero is none.
func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(momentLayout)
}

const momentLayout = "2006-01-02 15:04:05Z"

// ageOf returns how long ago a time is, or how soon, that moment has formatted: "3m ago", "in 2d". Another text stays as it is.
func ageOf(text string, now time.Time) string {
	t, err := time.Parse(momentLayout, text)
	if err != nil {
		return text
	}
	ago := now.Sub(t)
	switch {
	case ago < -time.Second/2: // the next second at least, as the text has no fractions
		return "in " + roughly(-ago)
	case ago < time.Second:
		return "now"
	}
	return roughly(ago) + " ago"
}

// roughly formats a duration in its largest unit: 59s, 59m, 47h, 13d.
func roughly(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(1, d/time.Second))
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
}

// span formats a duration to three digits or so; zero is none.
func span(d time.Duration) string {
	switch {
	case d == 0:
		return ""
	case d >= 10*time.Second:
		d = d.Round(time.Second)
	case d >= 10*time.Millisecond:
		d = d.Round(time.Millisecond)
	}
	return d.String()
}

// eventsOf formats a number of events: "1 event", "2 events", "~20 events".
func eventsOf(count string) string {
	if count == "1" {
		return "1 event"
	}
	return count + " events"
}

// yes formats a bool that is shown only if it is true.
func yes(is bool) string {
	if is {
		return "yes"
	}
	return ""
}

// limitValue is the value of a flag that is a limit: a number, or none, which is 0.
type limitValue int

// UnmarshalText implements [encoding.TextUnmarshaler].
func (v *limitValue) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*v = 0
		return nil
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return fmt.Errorf("got %q; want a number, or none", text)
	}
	*v = limitValue(n)
	return nil
}

// jsonValue is the value of a flag that is JSON.
type jsonValue json.RawMessage

// UnmarshalText implements [encoding.TextUnmarshaler].
func (v *jsonValue) UnmarshalText(text []byte) error {
	if !json.Valid(text) {
		return fmt.Errorf("got %q, which is not JSON: %w", text, syntaxError(text))
	}
	*v = jsonValue(text)
	return nil
}

func (v jsonValue) raw() json.RawMessage { return json.RawMessage(v) }

// DurationMapper reads the flags that are durations, with days and weeks: "7d".
var DurationMapper kong.MapperFunc = func(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := duration.Parse(text)
	if err != nil {
		return errNotDuration(text, err, "")
	}
	target.Set(reflect.ValueOf(d))
	return nil
}

// errNotDuration says why a text is no duration, with err of [duration.Parse]; otherwise is what may be there in its place.
func errNotDuration(text string, err error, otherwise string) error {
	if errors.Is(err, duration.ErrRange) {
		return fmt.Errorf("got %q, which is out of range; want a duration up to %s%s", text, duration.Max, otherwise)
	}
	return fmt.Errorf("got %q; want a duration such as 90s, 10m or 7d%s", text, otherwise)
}

// TimeMapper reads the flags that are instants.
var TimeMapper kong.MapperFunc = func(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("time", &text); err != nil {
		return err
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return fmt.Errorf("got %q; want a time such as 2026-02-03T04:05:06Z", text)
	}
	target.Set(reflect.ValueOf(t))
	return nil
}

// parseTime returns the instant that a flag says: RFC 3339, or how long ago, such as 90m.
func parseTime(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	ago, err := duration.Parse(strings.TrimPrefix(text, "-"))
	switch {
	case err == nil:
		return now.Add(-ago), nil
	case errors.Is(err, duration.ErrRange):
		return time.Time{}, usagef("--%s is %q, which is out of range; want up to %s ago", flag, text, duration.Max)
	}
	return time.Time{}, usagef("--%s is %q; want a time such as 2026-02-03T04:05:06Z, or how long ago, such as 90m or 7d", flag, text)
}
