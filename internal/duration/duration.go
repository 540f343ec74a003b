// Package duration reads durations as people write them: in flags, in variables, and in requests.
package duration

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
)

// days are the units beyond those of [time.ParseDuration], in hours. A day is 24 hours, also where a zone changes its clocks.
var days = map[string]time.Duration{"d": 24, "w": 7 * 24}

// Max is the longest duration in whole days, about 292 years, as [Parse] takes it.
const Max = "106751d"

// ErrRange is the error of a duration that is written as one, but is longer than a [time.Duration] can be.
var ErrRange = errors.New("the duration is longer than " + Max)

// form matches whatever is written as a duration.
var form = regexp.MustCompile(`^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h|d|w))+$`)

// Parse is [time.ParseDuration] with two more units, "d" for 24 hours and "w" for 7 days: "7d", "1w", "1d12h", "0.5d", "-1d". Its error is [ErrRange] if
// the duration is too long.
func Parse(text string) (time.Duration, error) {
	d, err := parse(text)
	if err != nil && form.MatchString(text) {
		err = ErrRange
	}
	return d, err
}

func parse(text string) (time.Duration, error) {
	unsigned := strings.TrimLeft(text, "+-")
	if !strings.ContainsAny(unsigned, "dw") || len(text)-len(unsigned) > 1 {
		return time.ParseDuration(text)
	}
	var sum time.Duration
	for rest := unsigned; rest != ""; {
		var number, unit string
		number, rest = span(rest, isOfNumber)
		unit, rest = span(rest, func(c byte) bool { return !isOfNumber(c) })
		factor := time.Duration(1)
		if hours, ok := days[unit]; ok {
			factor, unit = hours, "h"
		}
		part, err := time.ParseDuration(number + unit)
		if err != nil || part > math.MaxInt64/factor || part*factor > math.MaxInt64-sum {
			return 0, fmt.Errorf("invalid duration %q", text)
		}
		sum += part * factor
	}
	if text[0] == '-' {
		sum = -sum
	}
	return sum, nil
}

func isOfNumber(c byte) bool { return c >= '0' && c <= '9' || c == '.' }

// span cuts a text after its first bytes that is returns true for.
func span(text string, is func(byte) bool) (first, rest string) {
	n := 0
	for n < len(text) && is(text[n]) {
		n++
	}
	return text[:n], text[n:]
}
