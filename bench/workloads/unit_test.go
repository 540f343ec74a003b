package workloads

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLedgerTellsWhatBecameOfEachEvent(t *testing.T) {
	t.Parallel()
	const far = 1 << 40 // other pages
	for name, test := range map[string]struct {
		record func(*ledger)
		there  []int64 // that the server still has
		want   Account
		ok     bool
	}{
		"nothing": {func(*ledger) {}, nil, Account{}, true},
		"all done": {func(l *ledger) {
			for id := int64(far - 3); id < far+3; id++ {
				l.post(id)
				l.claim(id)
				l.ack(id)
			}
		}, nil, Account{Posted: 6, Acked: 6}, true},
		"one remains":    {func(l *ledger) { l.post(1) }, []int64{1}, Account{Posted: 1, Remaining: 1}, true},
		"one is lost":    {func(l *ledger) { l.post(1); l.claim(1) }, nil, Account{Posted: 1, Lost: 1}, false},
		"claimed twice":  {func(l *ledger) { l.post(1); l.claim(1); l.claim(1); l.ack(1) }, nil, Account{Posted: 1, Acked: 1, ClaimedTwice: 1}, false},
		"finished twice": {func(l *ledger) { l.post(1); l.claim(1); l.ack(1); l.ack(1) }, nil, Account{Posted: 1, Acked: 2, AckedTwice: 1}, false},
		"one id twice":   {func(l *ledger) { l.post(1); l.post(1); l.ack(1) }, nil, Account{Posted: 2, Acked: 1, PostedTwice: 1}, false},
		"from nowhere":   {func(l *ledger) { l.claim(1); l.ack(1) }, nil, Account{Acked: 1, Strangers: 1}, false},
		"a post whose answer was lost": {func(l *ledger) {
			l.failedPosts.Add(1)
			l.claim(1)
			l.ack(1)
		}, nil, Account{Acked: 1, Unknown: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLedger()
			test.record(l)
			got, err := l.settle(func(id int64) (bool, error) {
				for _, there := range test.there {
					if there == id {
						return true, nil
					}
				}
				return false, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if got.OK() != test.ok {
				t.Errorf("OK is %t", got.OK())
			}
		})
	}
}

func TestLedgerWithoutNamesCountsWhatIsThere(t *testing.T) {
	t.Parallel()
	l := newLedger()
	for id := range int64(10) {
		l.post(id)
	}
	l.claim(1)
	l.ack(1)
	if got := l.count(10); !got.OK() || got.Remaining != 9 {
		t.Errorf("all there: %+v", got)
	}
	if got := l.count(8); got.OK() || got.Lost != 2 {
		t.Errorf("two gone: %+v", got)
	}
}

func TestSettleReportsThatItCouldNotAsk(t *testing.T) {
	t.Parallel()
	l := newLedger()
	l.post(1)
	want := errors.New("no answer")
	if _, err := l.settle(func(int64) (bool, error) { return false, want }); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

func TestAnswersAreScanned(t *testing.T) {
	t.Parallel()
	if id, err := scanID([]byte(`{"queue":"q", "id": 12 ,"vt":"x"}`)); id != 12 || err != nil {
		t.Error(id, err)
	}
	if ids, err := scanIDs([]byte(`{"ids":[1, 22,333]}`), nil); err != nil || !cmp.Equal(ids, []int64{1, 22, 333}) {
		t.Error(ids, err)
	}
	leases, err := scanLeases([]byte(`{"events":[{"id":1,"event":{"d":"x"},"receipt":"1-a"},{"id":2,"requeued_from":9,"receipt":"1-b"}]}`), nil)
	if err != nil || len(leases) != 2 || leases[0].id != 1 || string(leases[0].receipt) != "1-a" || leases[1].id != 2 || string(leases[1].receipt) != "1-b" {
		t.Error(leases, err)
	}
	if leases, err := scanLeases([]byte(`{"events":[]}`), nil); err != nil || len(leases) != 0 {
		t.Error(leases, err)
	}
	got := map[int64]int64{}
	err = scanAcks([]byte(`{"results":[{"id":1,"status":204},{"id":2,"status":409,"code":"lease_lost"}]}`), func(id, status int64) { got[id] = status })
	if err != nil || !cmp.Equal(got, map[int64]int64{1: 204, 2: 409}) {
		t.Error(got, err)
	}
	if code := problemCode([]byte(`{"status":503,"code":"database_unavailable"}`)); code != "database_unavailable" {
		t.Error(code)
	}
	if code := problemCode([]byte(`<html>`)); code != "" {
		t.Error(code)
	}
}

func TestStrangeAnswersAreRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{``, `{}`, `{"id":"x"}`, strings.Repeat("x", 1000)} {
		if _, err := scanID([]byte(body)); err == nil || len(err.Error()) > 300 {
			t.Errorf("%.20s: %v", body, err)
		}
	}
	if _, err := scanIDs([]byte(`{"ids":1}`), nil); err == nil {
		t.Error("a number passed for a list")
	}
	if _, err := scanLeases([]byte(`{"events":[{"id":1}]}`), nil); err == nil {
		t.Error("an event without a receipt passed")
	}
	if err := scanAcks([]byte(`{"results":[{"id":1}]}`), func(int64, int64) {}); err == nil {
		t.Error("a result without a status passed")
	}
}

func TestScheduleKeepsItsRateWhateverTheDelay(t *testing.T) {
	t.Parallel()
	now := time.Now()
	even := newSchedule(100, false)
	for i := range 5 {
		// Whoever asks late gets the time that was meant.
		if got, want := even.take(now.Add(time.Second)), now.Add(time.Second+time.Duration(i)*10*time.Millisecond); !got.Equal(want) {
			t.Errorf("arrival %d is %s after the first", i, got.Sub(now.Add(time.Second)))
		}
	}
	random := newSchedule(100, true)
	var last time.Time
	const n = 10_000
	for range n {
		last = random.take(now)
	}
	if got := last.Sub(now).Seconds(); math.Abs(got-n/100) > 6 { // six standard deviations of the sum
		t.Errorf("%d random arrivals took %.1f s", n, got)
	}
}

func TestTenthsAreOfLivesNotOfTime(t *testing.T) {
	t.Parallel()
	var series []Second
	for i := range 20 {
		series = append(series, Second{Second: float64(i + 1), Lives: 100})
	}
	for i := range 20 { // and then half as fast
		series = append(series, Second{Second: float64(20 + 2*(i+1)), Lives: 100})
	}
	rates := tenthsOf(series)
	if math.Abs(rates[0]-100) > 0.01 || math.Abs(rates[4]-100) > 0.01 || math.Abs(rates[5]-50) > 0.01 || math.Abs(rates[9]-50) > 0.01 {
		t.Errorf("got %v", rates)
	}
}

func TestPayloadHasItsSize(t *testing.T) {
	t.Parallel()
	for _, size := range []int{minPayload, 100, 65536} {
		if got := newPayload(size); len(got) != size || got[0] != '{' || got[size-1] != '}' {
			t.Errorf("%d: %d bytes", size, len(got))
		}
	}
}

func TestDatabaseIsReplacedInURLAndKeywords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"postgres://u:p@h:5/db?sslmode=disable":   "postgres://u:p@h:5/new?sslmode=disable",
		"postgres://h":                            "postgres://h/new",
		"postgres://u@/queued?host=%2Ftmp&port=1": "postgres://u@/new?host=%2Ftmp&port=1",
		"host=/run dbname=db":                     "host=/run dbname=db dbname=new",
	} {
		if got := withDatabase(text, "new"); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestTicksAreRound(t *testing.T) {
	t.Parallel()
	for top, want := range map[float64]string{5.2: "0 1 2 3 4 5 6", 1234: "0 500 1000 1500", 0.9: "0 0.2 0.4 0.6 0.8 1"} {
		var labels []string
		for _, tick := range ticksUpTo(top) {
			labels = append(labels, tick.Label)
		}
		if got := strings.Join(labels, " "); got != want {
			t.Errorf("up to %g: %s", top, got)
		}
	}
}

func TestSnapshotComparesItsPhases(t *testing.T) {
	t.Parallel()
	w := &Snapshot{Before: 10 * time.Second, Hold: 20 * time.Second, After: 5 * time.Second}
	result := newResult("x")
	for i := range 35 {
		at := Second{Second: float64(i + 1), Lives: 100, LifeP99: 5}
		switch {
		case i >= 28 && i < 30:
			at.Lives, at.LifeP99 = 20, 90
		case i >= 10 && i < 30:
			at.Lives = 95
		}
		result.Series = append(result.Series, at)
	}
	report := newReport(Config{}, w)
	w.judge(report, result)
	for name, want := range map[string]struct {
		value float64
		ok    bool
	}{
		"hold over before":               {(18*95 + 2*20) / 2000.0, false},
		"last tenth of hold over before": {0.2, false},
		"after over before":              {1, true},
	} {
		got, there := report.Ratios[name]
		if !there || math.Abs(got.Value-want.value) > 1e-9 || *got.OK != want.ok || *got.Bar != flatBar {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	if got := result.Values["last_tenth_of_hold_life_p99_ms"]; got != 90 {
		t.Errorf("the p99 in the last tenth is %g", got)
	}
}

func TestRatiosKnowTheirBars(t *testing.T) {
	t.Parallel()
	r := newReport(Config{}, new(Single))
	r.atLeast("least", 0.9, 0.9)
	r.atMost("most", 1.1, 1)
	r.compare("free", 7)
	if got := r.Ratios["least"]; !*got.OK || got.BarIs != "least" {
		t.Errorf("%+v", got)
	}
	if got := r.Ratios["most"]; *got.OK || got.BarIs != "most" {
		t.Errorf("%+v", got)
	}
	if got := r.Ratios["free"]; got.OK != nil || got.Bar != nil {
		t.Errorf("%+v", got)
	}
}
