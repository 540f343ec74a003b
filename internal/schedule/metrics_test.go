package schedule

import (
	"testing"
	"time"
)

func TestCountersSayHowLateOccurrencesFired(t *testing.T) {
	t.Parallel()
	var c counters
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	f := firing{occurrences: []firedOccurrence{{Instant{UTC: at.Add(-time.Hour)}, true}}}
	for _, late := range []time.Duration{-time.Second, 10 * time.Millisecond, 11 * time.Millisecond, 200 * time.Millisecond, 48 * time.Hour} {
		f.occurrences = append(f.occurrences, firedOccurrence{Instant: Instant{UTC: at.Add(-late)}})
	}
	c.add([]firing{f}, at)
	c.add(nil, at)
	want := Counters{
		Fired: 5, Skipped: 1, TotalLate: 48*time.Hour + 221*time.Millisecond,
		Lateness: [len(LatenessBounds)]uint64{2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4},
	}
	if c.Counters != want {
		t.Errorf("got %+v, want %+v", c.Counters, want)
	}
}
