package push

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var testTimes = times{threshold: 5, breakerPause: 30 * time.Second, holdPause: time.Second, maxPause: time.Hour, disableAfter: 120 * time.Hour}

var (
	success    = outcome{verdict: delivered}
	answer500  = outcome{verdict: failed, isFailure: true, detail: "HTTP 500"}
	busy       = outcome{verdict: throttled, isFailure: true, detail: "HTTP 503"}
	tooMany    = outcome{verdict: throttled, detail: "HTTP 429"}
	goneForNow = outcome{verdict: gone, isFailure: true, detail: "HTTP 410"}
)

// A driven state is one that is told of one request after the other.
type driven struct {
	t *testing.T
	state
	now     time.Time
	changes int
}

func drive(t *testing.T) *driven {
	t.Helper()
	return &driven{t: t, now: time.Now()}
}

// then notes what came of a request that began now.
func (d *driven) then(o outcome) *driven {
	if d.note(d.now, d.round, o, testTimes) {
		d.changes++
	}
	return d
}

// pausesFor fails the test unless nothing is pushed for exactly so long.
func (d *driven) pausesFor(want time.Duration) {
	d.t.Helper()
	if got := max(0, d.until.Sub(d.now)); got != want {
		d.t.Errorf("it pauses for %s, want %s", got, want)
	}
	if d.mayPush(d.now) != (want == 0) {
		d.t.Errorf("it may push: %t", d.mayPush(d.now))
	}
}

// after lets time pass.
func (d *driven) after(passed time.Duration) *driven {
	d.now = d.now.Add(passed)
	return d
}

func TestBreakerOpensAfterFiveFailuresInARowAndProbesMoreAndMoreRarely(t *testing.T) {
	t.Parallel()
	d := drive(t)
	for range 4 {
		d.then(answer500).pausesFor(0)
	}
	d.then(success)
	for range 4 {
		d.then(answer500).pausesFor(0)
	}
	d.then(answer500).pausesFor(30 * time.Second)
	if !d.isOpen || d.changes != 1 || d.failures != 5 {
		t.Fatalf("after five failures: %+v", d.state)
	}
	pause := 30 * time.Second
	for range 12 {
		d.after(pause).pausesFor(0)
		pause = min(2*pause, time.Hour)
		d.then(answer500).pausesFor(pause)
	}
	if pause != time.Hour {
		t.Errorf("the longest pause is %s", pause)
	}
	changes := d.changes
	d.after(pause).then(success).pausesFor(0)
	if d.isOpen || d.failures != 0 || d.changes != changes+1 {
		t.Errorf("after a success: %+v", d.state)
	}
}

func TestRequestsFromBeforeTheBreakerOpenedAreNoProbes(t *testing.T) {
	t.Parallel()
	d := drive(t)
	before := d.round
	for range 10 {
		d.note(d.now, before, answer500, testTimes)
	}
	if d.pausesFor(30 * time.Second); d.failures != 10 {
		t.Errorf("%d failures", d.failures)
	}
	if d.note(d.now, before, success, testTimes); d.isOpen { // it works
		t.Error("a success does not close it")
	}
}

func TestHoldLastsAsLongAsTheEndpointAsksWithinAnHour(t *testing.T) {
	t.Parallel()
	asks := func(o outcome, d time.Duration) outcome {
		o.retryIn = d
		return o
	}
	d := drive(t)
	d.then(asks(tooMany, 7*time.Second)).pausesFor(7 * time.Second)
	if d.failures != 0 || d.isOpen {
		t.Errorf("429 counts as a failure: %+v", d.state)
	}
	d.after(7 * time.Second).then(asks(busy, 24*time.Hour)).pausesFor(time.Hour)
	if d.failures != 1 {
		t.Errorf("503 does not count as a failure: %+v", d.state)
	}
	d.after(time.Hour).then(success)

	// Without a time it doubles, until something is taken.
	want := time.Second
	for range 15 {
		d.then(tooMany).pausesFor(want)
		d.after(want)
		want = min(2*want, time.Hour)
	}
	d.then(success).then(tooMany).pausesFor(time.Second)
}

func TestRequestsThatWereUnderWayMakeAHoldNoLonger(t *testing.T) {
	t.Parallel()
	d := drive(t)
	before := d.round
	changes := 0
	for range 10 {
		if d.note(d.now, before, tooMany, testTimes) {
			changes++
		}
	}
	d.pausesFor(time.Second)
	longer := tooMany
	longer.retryIn = time.Minute
	for range 10 {
		if d.note(d.now, before, longer, testTimes) {
			changes++
		}
	}
	if d.pausesFor(time.Minute); changes != 2 {
		t.Errorf("%d changes, want 2", changes)
	}
}

func TestFailingForLongDisables(t *testing.T) {
	t.Parallel()
	d := drive(t)
	for d.disabledReason == "" {
		if d.now = d.now.Add(max(0, d.until.Sub(d.now))); d.now.Sub(d.failingSince) > 200*time.Hour && !d.failingSince.IsZero() {
			t.Fatal("it is never disabled")
		}
		d.then(answer500)
	}
	if failing := d.now.Sub(d.failingSince); failing < 120*time.Hour || failing > 121*time.Hour {
		t.Errorf("it was disabled after %s", failing)
	}
	if !strings.Contains(d.disabledReason, "HTTP 500") || d.mayPush(d.now.Add(time.Hour)) {
		t.Errorf("disabled because %s", d.disabledReason)
	}
	if changes := d.changes; d.then(success).changes != changes {
		t.Error("what was under way enables it")
	}

	// Two failures that lie far apart are not enough.
	d = drive(t)
	d.then(answer500).after(1000 * time.Hour).then(answer500)
	if d.disabledReason != "" {
		t.Error("two failures have disabled it")
	}

	d = drive(t)
	if d.then(goneForNow); d.disabledReason == "" || d.changes != 1 {
		t.Errorf("410 has not disabled it: %+v", d.state)
	}
}

func TestQueuesAreSharedOutAndStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	processes := []string{"a", "b", "c", "d"}
	owned := make(map[string]int)
	for i := range 1000 {
		queue := fmt.Sprintf("queue-%d", i)
		owner := ownerOf(queue, processes)
		owned[owner]++
		if other := ownerOf(queue, []string{"d", "b", "a", "c"}); other != owner {
			t.Fatalf("%s belongs to %s and to %s", queue, owner, other)
		}
		if left := ownerOf(queue, []string{"a", "b", "c"}); owner != "d" && left != owner {
			t.Fatalf("%s went from %s to %s when d ended", queue, owner, left)
		}
	}
	for _, p := range processes {
		if owned[p] < 150 {
			t.Errorf("%s owns %d of 1000 queues", p, owned[p])
		}
	}
}
