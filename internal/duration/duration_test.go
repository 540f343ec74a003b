package duration

import (
	"errors"
	"math"
	"testing"
	"time"
)

func TestParseTakesDaysAndWeeks(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"1d": day, "7d": 7 * day, "1w": 7 * day, "1d12h": day + 12*time.Hour, "12h1d": day + 12*time.Hour, "1w2d3h4m5.5s": 9*day + 3*time.Hour + 4*time.Minute + 5500*time.Millisecond,
		"0.5d": 12 * time.Hour, ".5d": 12 * time.Hour, "1.d": day, "0d": 0, "-1d": -day, "+2w": 14 * day, "-1d12h": -36 * time.Hour, "106751d": 106751 * day,
		"90s": 90 * time.Second, "0": 0, "1h30m": 90 * time.Minute, "250ms": 250 * time.Millisecond, "-9223372036854775808ns": math.MinInt64,
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%q is %s, %v; want %s", text, got, err, want)
		}
	}
}

func TestParseRefusesOtherTexts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "d", "1", "1D", "1dd", "1day", "1 d", " 1d", "1d ", "d1", "1d2", "--1d", "-", "+-1d", "1d-1h", ".d", "1.2.3d", "1y", "1wd", "1dh",
		"106752d", "15251w", "106751d24h", "9999999999999999999d", "1e3d", "１d", "1d\x00", "1d1",
	} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q is taken as %s", text, got)
		}
	}
}

func TestParseSaysWhatIsTooLong(t *testing.T) {
	t.Parallel()
	for text, isTooLong := range map[string]bool{
		"99999999w": true, "-99999999w": true, "106752d": true, "9999999999999h": true, "9223372036854775808ns": true, "1e9w": false, "9999999999999": false,
		"99999999wh": false, "9999999999999h1y": false,
	} {
		if _, err := Parse(text); err == nil || errors.Is(err, ErrRange) != isTooLong {
			t.Errorf("the error of %q is %v", text, err)
		}
	}
	if _, err := Parse(Max); err != nil {
		t.Errorf("%s is refused: %v", Max, err)
	}
}

// FuzzParse holds Parse to time.ParseDuration where there is no day and no week, and to the sign.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"1d12h", "-1w", "90s", "1.5d", "1d1d", "9223372036854775807ns1d"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := Parse(text)
		if standard, noStandard := time.ParseDuration(text); noStandard == nil && (err != nil || got != standard) {
			t.Errorf("%q is %s, %v; without days it is %s", text, got, err, standard)
		}
		if err == nil && text[0] != '-' && got < 0 {
			t.Errorf("%q is %s", text, got)
		}
	})
}
