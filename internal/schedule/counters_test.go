package schedule

import (
	"testing"
	"time"
)

func TestCountersSayHowLateOccurrencesFired(t *testing.T) {
	t.Parallel()
	var (
		c counters
		b batch
	)
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, late := range []time.Duration{-time.Second, 10 * time.Millisecond, 11 * time.Millisecond, 200 * time.Millisecond, 48 * time.Hour} {
		b.occurrence(1, Instant{UTC: at.Add(-late)}, true)
	}
	b.occurrence(1, Instant{UTC: at.Add(-time.Hour)}, false)
	c.add(&b, nil, at)
	c.add(&batch{}, nil, at)
	want := Counters{
		Fired: 5, Skipped: 1, TotalLate: 48*time.Hour + 221*time.Millisecond,
		Lateness: [len(LatenessBounds)]uint64{2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4},
	}
	if c.Counters != want {
		t.Errorf("got %+v, want %+v", c.Counters, want)
	}
}
