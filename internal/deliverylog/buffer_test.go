package deliverylog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

func TestBufferKeepsItsLimitsAndCountsWhatItDrops(t *testing.T) {
	t.Parallel()
	b := New[int](Limit{Name: 2, All: 3}, Limit{Name: 1, All: 1})
	made := 0
	for i, name := range []string{"a", "a", "a", "b", "c"} {
		b.Add(name, 0, func() int { made++; return i })
	}
	b.Add("a", 1, func() int { return 9 })
	batch := b.Take()
	if got := fmt.Sprint(batch); got != "{[{a 0 0} {a 0 1} {b 0 3} {a 1 9}] [{a 0 1} {c 0 1}]}" || made != 3 {
		t.Errorf("got %s, with %d rows made", got, made)
	}
	if again := b.Take(); !again.IsEmpty() {
		t.Errorf("then got %v", again)
	}
}

func TestRestoredRowsComeFirstAndWithinTheLimits(t *testing.T) {
	t.Parallel()
	b := New[int](Limit{Name: 2, All: 3})
	add := func(name string, row int) { b.Add(name, 0, func() int { return row }) }
	add("a", 1)
	add("b", 2)
	add("a", 3)
	add("a", 4) // is dropped
	batch := b.Take()
	add("a", 5)
	b.Restore(&batch, func(name string) bool { return name == "a" })
	batch = b.Take()
	if got := fmt.Sprint(batch); got != "{[{a 0 1} {a 0 3}] [{a 0 2}]}" {
		t.Errorf("got %s", got)
	}
}

func TestFlushPutsBackWhatWasNotWritten(t *testing.T) {
	t.Parallel()
	b := New[int](Limit{Name: 1, All: 9})
	for i, name := range []string{"a", "b", "b"} {
		b.Add(name, 0, func() int { return i })
	}
	var written []string
	flush := func(left []string, err error) error {
		return b.Flush(func(rows, dropped string) ([]string, error) {
			written = append(written, rows+dropped)
			return left, err
		})
	}
	failed := errors.New("on purpose")
	if err := flush(nil, failed); !errors.Is(err, failed) {
		t.Errorf("a write that failed returned %v", err)
	}
	for _, left := range [][]string{{"b"}, nil, nil} { // the last one has nothing to write
		if err := flush(left, nil); err != nil {
			t.Error(err)
		}
	}
	all := `[0,1][{"name":"b","class":0,"count":1}]`
	if want := []string{all, all, `[1][{"name":"b","class":0,"count":1}]`}; !slices.Equal(written, want) {
		t.Errorf("written is %q, want %q", written, want)
	}
	b.Add("a", 0, func() int { return 3 })
	_ = flush(nil, nil)
	if got := written[len(written)-1]; got != "[3][]" {
		t.Errorf("written without anything dropped is %q", got)
	}
}

func TestBufferIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	b := New[int](Limit{Name: 10, All: 50})
	var adding sync.WaitGroup
	const adders, each = 8, 1000
	total := int64(0)
	count := func() {
		batch := b.Take()
		total += int64(len(batch.Entries))
		for _, d := range batch.Dropped {
			total += d.Count
		}
	}
	for i := range adders {
		adding.Go(func() {
			for n := range each {
				b.Add(fmt.Sprint(i), 0, func() int { return n })
			}
		})
	}
	for range 100 {
		count()
	}
	adding.Wait()
	count()
	if total != adders*each {
		t.Errorf("%d rows were kept or dropped, want %d", total, adders*each)
	}
}

func FuzzTextCanBeStored(f *testing.F) {
	for _, text := range []string{"", "plain", "a\x00b", "\xff\xfe", "ä€𝄞", strings.Repeat("€", 400)} {
		f.Add(text, 10)
	}
	f.Fuzz(func(t *testing.T, text string, limit int) {
		limit = max(0, min(limit, 2048))
		got := Text(text, limit)
		if len(got) > limit || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Errorf("%q cut to %d is %q", text, limit, got)
		}
		if len(text) <= limit && utf8.ValidString(text) && !strings.Contains(text, "\x00") && got != text {
			t.Errorf("%q became %q", text, got)
		}
	})
}
