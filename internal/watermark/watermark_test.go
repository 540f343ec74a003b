package watermark_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/internal/watermark"
)

const (
	interval = time.Second
	grace    = 500 * time.Millisecond
	short    = 0
	long     = time.Second
)

// env is a set of watermarks with a clock that the test moves. Claims are of the queue q.
type env struct {
	t *testing.T
	*watermark.Set
	now    time.Time
	claims watermark.Claims
}

func setup(t *testing.T) *env {
	t.Helper()
	e := &env{t: t, Set: watermark.New(interval, time.Millisecond), now: time.Unix(1000, 0), claims: watermark.Claims{Queue: "q", MaxAttempts: 3}}
	e.Enable(true)
	return e
}

// claim claims everything up to vt from lanes of no type.
func (e *env) claim(vt time.Time, priorities ...int32) {
	e.Begin(e.now, e.claims)
	e.through(vt, priorities...)
}

func (e *env) through(vt time.Time, priorities ...int32) {
	through := make(map[watermark.Lane]time.Time)
	for _, p := range priorities {
		through[watermark.Lane{Queue: "q", Priority: p}] = vt
	}
	e.NoteClaimedThrough(e.now, e.claims, through)
}

// scan makes the scans that are due; each finds the same.
func (e *env) scan(took time.Duration, found map[int32]*time.Time) (hidden bool) {
	e.now = e.now.Add(interval)
	for scope := range e.DueScans(e.now) {
		hidden = e.NoteScan(scope, watermark.Scan{Began: e.now, Ended: e.now, Took: took, Found: found}) || hidden
	}
	return hidden
}

// begins fails the test unless a claim begins so; a nil mark is unknown, and no marks are none that a claim would heed.
func (e *env) begins(priorities []int32, marks ...*time.Time) {
	e.t.Helper()
	start := e.Begin(e.now, e.claims)
	if !slices.Equal(start.Priorities, priorities) {
		e.t.Errorf("a claim begins in lanes %v, want %v", start.Priorities, priorities)
	}
	same := func(a, b *time.Time) bool { return a == b || a != nil && b != nil && a.Equal(*b) }
	if !slices.EqualFunc(start.Marks, marks, same) {
		e.t.Errorf("a claim begins at the marks %v, want %v", times(start.Marks), times(marks))
	}
}

func times(marks []*time.Time) (texts []string) {
	for _, m := range marks {
		if m == nil {
			texts = append(texts, "unknown")
		} else {
			texts = append(texts, m.UTC().Format(time.StampMicro))
		}
	}
	return texts
}

func TestWatermarksAreActiveWhileScansTakeLong(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.claim(e.now, 0)
	e.begins(nil) // no scan has been made
	mark := e.now.Add(-grace)
	e.scan(long, map[int32]*time.Time{0: nil})
	e.begins([]int32{0}, &mark)
	e.scan(short, map[int32]*time.Time{0: nil})
	e.begins([]int32{0})
	e.scan(long, nil) // failed
	e.begins([]int32{0}, &mark)
	e.scan(short, nil)
	e.begins(nil)
}

func TestWatermarkRisesWithClaimsAndFallsToWhatAScanFinds(t *testing.T) {
	t.Parallel()
	e := setup(t)
	start := e.now
	e.claim(start, 0)
	e.scan(long, map[int32]*time.Time{0: nil})
	e.claim(start.Add(time.Minute), 0)
	mark := start.Add(time.Minute - grace)
	e.begins([]int32{0}, &mark)
	e.claim(start, 0) // an older event, which was released
	e.begins([]int32{0}, &mark)
	late := start.Add(-time.Hour)
	if !e.scan(long, map[int32]*time.Time{0: &late}) {
		t.Error("what lies below the watermark was not reported as hidden")
	}
	e.begins([]int32{0}, &late)
	if e.scan(long, map[int32]*time.Time{0: new(start)}) {
		t.Error("what lies above the watermark was reported as hidden")
	}
}

func TestClaimInProgressDoesNotRaiseAWatermarkThatWasLowered(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.claim(e.now, 0)
	e.scan(long, map[int32]*time.Time{0: nil})
	e.Begin(e.now, e.claims)
	lowered := e.now.Add(-time.Hour)
	e.Lower(e.now, watermark.Lane{Queue: "q", Type: "any"}, lowered)
	e.through(e.now.Add(time.Hour), 0)
	e.begins([]int32{0}, &lowered)
	e.through(e.now, 0) // of the claim that has begun there
	mark := e.now.Add(-grace)
	e.begins([]int32{0}, &mark)
}

func TestLowerConcernsTheLanesOfItsQueueAndTypeOnly(t *testing.T) {
	t.Parallel()
	for lowered, want := range map[watermark.Lane]bool{
		{Queue: "q", Type: "a"}:              true,
		{Queue: "q", Type: "b"}:              false,
		{Queue: "other", Type: "a"}:          false,
		{Queue: "q", Type: "a", Priority: 5}: false,
	} {
		e := setup(t)
		e.claims.Types = []string{"a"}
		e.NoteClaimedThrough(e.now, e.claims, map[watermark.Lane]time.Time{{Queue: "q", Type: "a"}: e.now})
		e.scan(long, map[int32]*time.Time{0: nil})
		past := e.now.Add(-time.Hour)
		e.Lower(e.now, lowered, past)
		if got := e.Begin(e.now, e.claims).Marks[slices.Index(e.Begin(e.now, e.claims).Priorities, 0)]; got.Equal(past) != want {
			t.Errorf("after an insert into %+v the mark is %v", lowered, got)
		}
	}
}

func TestNewLanesAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		took time.Duration
		meet func(*env)
		want []int32 // lanes that the next claim begins in
	}{
		"by this process's own insert":                {short, func(e *env) { e.Lower(e.now, watermark.Lane{Queue: "q", Priority: -5}, time.Time{}) }, []int32{-5, 0}},
		"by a scan":                                   {short, func(e *env) { e.scan(short, map[int32]*time.Time{0: nil, -5: new(e.now)}) }, []int32{-5, 0}},
		"by a claim, after a notification":            {short, func(e *env) { e.MarkStale(map[string]bool{"q": true}) }, nil},
		"by a scan, though watermarks are active":     {long, func(e *env) { e.scan(long, map[int32]*time.Time{0: nil, -5: new(e.now)}) }, []int32{-5, 0}},
		"not by a claim, while watermarks are active": {long, func(e *env) { e.MarkStale(map[string]bool{"q": true}) }, []int32{0}},
		"and of other queues they are not":            {short, func(e *env) { e.MarkStale(map[string]bool{"other": true}) }, []int32{0}},
	} {
		e := setup(t)
		e.claim(e.now, 0)
		e.scan(c.took, map[int32]*time.Time{0: nil})
		c.meet(e)
		if got := e.Begin(e.now, e.claims).Priorities; !slices.Equal(got, c.want) {
			t.Errorf("%s: a claim begins in lanes %v, want %v", name, got, c.want)
		}
	}
}

func TestStaleLanesAreLookedForOnce(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.claim(e.now, 0)
	e.scan(short, map[int32]*time.Time{0: nil})
	e.MarkStale(map[string]bool{"q": true})
	e.begins(nil)
	e.begins([]int32{0})
}

func TestLaneIsForgottenWhenAScanFindsItEmptyAndNothingWasInsertedSince(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.claim(e.now, 0, 7, 8)
	e.now = e.now.Add(interval)
	began := e.now
	e.now = e.now.Add(interval)
	for _, p := range []int32{8, 9} { // after the scan began, which did not see it
		e.Lower(e.now, watermark.Lane{Queue: "q", Priority: p}, time.Time{})
	}
	for scope := range e.DueScans(e.now) {
		e.NoteScan(scope, watermark.Scan{Began: began, Ended: e.now, Took: short, Found: map[int32]*time.Time{0: nil}})
	}
	e.begins([]int32{0, 8, 9})
}

func TestScansTakeABoundedShareOfTheTime(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.claim(e.now, 0)
	due := func(after time.Duration) int { return len(e.DueScans(e.now.Add(after))) }
	if due(interval-1) != 0 || due(interval) != 1 {
		t.Error("the first scan is not due after the interval")
	}
	scope := slices.Collect(maps.Keys(e.DueScans(e.now.Add(interval))))[0]
	e.NoteScan(scope, watermark.Scan{Began: e.now.Add(-time.Second), Ended: e.now, Took: long})
	if limit := watermark.ScanShare * time.Second; due(limit-1) != 0 || due(limit) != 1 {
		t.Errorf("after a scan of a second the next is not due after %v", limit)
	}
	if due(time.Minute) != 0 {
		t.Error("a queue that nobody claims from is scanned")
	}
}

func TestWatermarksAreBounded(t *testing.T) {
	t.Parallel()
	e := setup(t)
	for i := range 5000 {
		claims := watermark.Claims{Queue: fmt.Sprint(i), MaxAttempts: 3}
		e.NoteClaimedThrough(e.now, claims, map[watermark.Lane]time.Time{{Queue: claims.Queue}: e.now})
	}
	if n := len(e.DueScans(e.now.Add(interval))); n != 1000 {
		t.Errorf("%d queues have watermarks, want 1000", n)
	}
	e.Forget()
	var priorities []int32
	for p := range int32(101) {
		priorities = append(priorities, p)
	}
	e.claim(e.now, priorities[:100]...)
	if n := len(e.DueScans(e.now.Add(interval))); n != 1 {
		t.Errorf("a queue of 100 lanes has %d scans, want 1", n)
	}
	e.claim(e.now, priorities[100])
	if n := len(e.DueScans(e.now.Add(interval))); n != 0 {
		t.Errorf("a queue of 101 lanes has %d scans, want none", n)
	}
}

func TestNoWatermarksAreKeptWhileNobodyScans(t *testing.T) {
	t.Parallel()
	e := setup(t)
	e.claim(e.now, 0)
	e.Enable(false)
	e.claim(e.now, 0)
	if n := len(e.DueScans(e.now.Add(interval))); n != 0 {
		t.Errorf("%d scans are due", n)
	}
	e.begins(nil)
}
