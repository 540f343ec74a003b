package pg

import (
	"testing"
	"time"
)

func TestSlowAnswerDoesNotSpoilTheTimeOfTheDatabase(t *testing.T) {
	t.Parallel()
	var c clock
	at := time.Now()
	answer := func(ahead, took time.Duration) {
		c.set(at.Add(took).Add(ahead), at, at.Add(took)) // read at the end of the time that the question took
		at = at.Add(time.Second)
	}
	answer(10*time.Second, 2*time.Millisecond)
	if off := (c.ahead - 10*time.Second).Abs(); off > time.Millisecond {
		t.Errorf("it is off by %s after a quick answer", off)
	}
	answer(10*time.Second, 4*time.Second)
	if off := (c.ahead - 10*time.Second).Abs(); off > time.Millisecond {
		t.Errorf("it is off by %s after a slow answer", off)
	}
	answer(-time.Hour, 4*time.Second) // its clock was set
	if off := (c.ahead + time.Hour).Abs(); off > 2*time.Second {
		t.Errorf("it is off by %s after the clock was set", off)
	}
	answer(-time.Hour, 2*time.Millisecond)
	if off := (c.ahead + time.Hour).Abs(); off > time.Millisecond {
		t.Errorf("it is off by %s after a quick answer", off)
	}
}
