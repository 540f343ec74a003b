package load

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAccountTellsWhatBecameOfEachEvent(t *testing.T) {
	t.Parallel()
	const far = 1 << 40 // other pages
	for name, test := range map[string]struct {
		record func(*Account)
		exist  []int64 // on the server
		want   Balance
		ok     bool
	}{
		"nothing": {func(*Account) {}, nil, Balance{}, true},
		"all done": {func(a *Account) {
			for id := int64(far - 3); id < far+3; id++ {
				a.Inserted(id)
				a.Claimed(id)
				a.Acked(id)
			}
		}, nil, Balance{Inserted: 6, Acked: 6}, true},
		"one remains":    {func(a *Account) { a.Inserted(1) }, []int64{1}, Balance{Inserted: 1, Remaining: 1}, true},
		"one is lost":    {func(a *Account) { a.Inserted(1); a.Claimed(1) }, nil, Balance{Inserted: 1, Lost: 1}, false},
		"claimed twice":  {func(a *Account) { a.Inserted(1); a.Claimed(1); a.Claimed(1); a.Acked(1) }, nil, Balance{Inserted: 1, Acked: 1, ClaimedTwice: 1}, false},
		"acked twice":    {func(a *Account) { a.Inserted(1); a.Claimed(1); a.Acked(1); a.Acked(1) }, nil, Balance{Inserted: 1, Acked: 2, AckedTwice: 1}, false},
		"one id twice":   {func(a *Account) { a.Inserted(1); a.Inserted(1); a.Acked(1) }, nil, Balance{Inserted: 2, Acked: 1, InsertedTwice: 1}, false},
		"never inserted": {func(a *Account) { a.Claimed(1); a.Acked(1) }, nil, Balance{Acked: 1, Unknown: 1}, false},
		"an insert whose response was lost": {func(a *Account) {
			a.failedInserts.Add(1)
			a.Claimed(1)
			a.Acked(1)
		}, nil, Balance{Acked: 1, Unconfirmed: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := NewAccount()
			test.record(a)
			got, err := a.Balance(func(id int64) (bool, error) {
				for _, existing := range test.exist {
					if existing == id {
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

func TestBalanceOfCountsWhatExists(t *testing.T) {
	t.Parallel()
	a := NewAccount()
	for id := range int64(10) {
		a.Inserted(id)
	}
	a.Claimed(1)
	a.Acked(1)
	if got := a.BalanceOf(10); !got.OK() || got.Remaining != 9 {
		t.Errorf("all there: %+v", got)
	}
	if got := a.BalanceOf(8); got.OK() || got.Lost != 2 {
		t.Errorf("two gone: %+v", got)
	}
}

func TestBalanceReportsThatItCouldNotAsk(t *testing.T) {
	t.Parallel()
	a := NewAccount()
	a.Inserted(1)
	want := errors.New("no response")
	if _, err := a.Balance(func(int64) (bool, error) { return false, want }); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

func TestResponsesAreParsed(t *testing.T) {
	t.Parallel()
	if id, err := parseInsert([]byte(`{"queue":"q", "id": 12 ,"vt":"x"}`), nameID); id != 12 || err != nil {
		t.Error(id, err)
	}
	if ids, err := parseInserts(nil, []byte(`{"ids":[1, 22,333]}`), nameIDs); err != nil || !cmp.Equal(ids, []int64{1, 22, 333}) {
		t.Error(ids, err)
	}
	leases, err := parseClaim(nil, []byte(`{"events":[{"id":1,"event":{"d":"x"},"receipt":"1-a"},{"id":2,"requeued_from":9,"receipt":"1-b"}]}`))
	if err != nil || len(leases) != 2 || leases[0].ID != 1 || string(leases[0].Receipt) != "1-a" || leases[1].ID != 2 || string(leases[1].Receipt) != "1-b" {
		t.Error(leases, err)
	}
	if leases, err := parseClaim(nil, []byte(`{"events":[]}`)); err != nil || len(leases) != 0 {
		t.Error(leases, err)
	}
	got := map[int64]int64{}
	err = parseAcks([]byte(`{"results":[{"id":1,"status":204},{"id":2,"status":409,"code":"lease_lost"}]}`), func(id, status int64) { got[id] = status })
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

func TestOtherResponsesAreRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{``, `{}`, `{"id":"x"}`, strings.Repeat("x", 1000)} {
		if _, err := parseInsert([]byte(body), nameID); err == nil || len(err.Error()) > 300 {
			t.Errorf("%.20s: %v", body, err)
		}
	}
	if _, err := parseInserts(nil, []byte(`{"ids":1}`), nameIDs); err == nil {
		t.Error("a number passed for a list")
	}
	if _, err := parseClaim(nil, []byte(`{"events":[{"id":1}]}`)); err == nil {
		t.Error("an event without a receipt passed")
	}
	if err := parseAcks([]byte(`{"results":[{"id":1}]}`), func(int64, int64) {}); err == nil {
		t.Error("a result without a status passed")
	}
}

func TestArrivalsKeepTheirRateWhateverTheDelay(t *testing.T) {
	t.Parallel()
	now := time.Now()
	even := NewArrivals(100, false)
	for i := range 5 {
		// A late call gets the time that was meant.
		if got, want := even.take(now.Add(time.Second)), now.Add(time.Second+time.Duration(i)*10*time.Millisecond); !got.Equal(want) {
			t.Errorf("arrival %d is %s after the first", i, got.Sub(now.Add(time.Second)))
		}
	}
	random := NewArrivals(100, true)
	var last time.Time
	const n = 10_000
	for range n {
		last = random.take(now)
	}
	if got := last.Sub(now).Seconds(); math.Abs(got-n/100) > 6 { // six standard deviations of the sum
		t.Errorf("%d random arrivals took %.1f s", n, got)
	}
}
