package match_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/queued/queued/internal/match"
)

// Each shape is 1,000 filters and an event, of about as many bytes as given, that is meant to be slow to compare with them.
var hostileShapes = []struct {
	name   string
	filter func(i int) string
	event  func(size int) string
}{
	{"anything-but of prefixes", func(i int) string { return fmt.Sprintf(`{"a":[{"anything-but":{"prefix":["x","y%d"]}}]}`, i) }, array(`"x%07x"`)},
	{"anything-but of suffixes", func(i int) string { return fmt.Sprintf(`{"a":[{"anything-but":{"suffix":["x","y%d"]}}]}`, i) }, array(`"%07xx"`)},
	{"anything-but one, equal values", func(i int) string { return fmt.Sprintf(`{"a":[{"anything-but":["x","y%d"]}]}`, i) }, array(`"x"`)},
	{"anything-but numbers, equal values", func(i int) string { return fmt.Sprintf(`{"a":[{"anything-but":[1,%d]}]}`, i+2) }, array(`1`)},
	{"wildcard out of order", func(i int) string { return fmt.Sprintf(`{"a":[{"wildcard":"*xyz*abc%d*"}]}`, i) }, array(`"abcxyz%x"`)},
	{"wildcard long text", func(i int) string { return fmt.Sprintf(`{"a":[{"wildcard":"*aaa*aab%d*"}]}`, i) }, func(size int) string { return `{"a":"` + strings.Repeat("a", size) + `"}` }},
	{"wildcard long text, order", func(i int) string { return fmt.Sprintf(`{"a":[{"wildcard":"*ab%d*abc*"}]}`, i%10) }, func(size int) string { return `{"a":"` + strings.Repeat("ab0123456789", size/12) + `"}` }},
	{"wildcard few letters", func(i int) string { return fmt.Sprintf(`{"a":[{"wildcard":"*b*a*%d"}]}`, i) }, array(`"ab%x"`)},
	{"anything-but wildcard", func(i int) string { return fmt.Sprintf(`{"a":[{"anything-but":{"wildcard":["x*","*q%d*"]}}]}`, i) }, array(`"x%07x"`)},
	{"present, all", func(i int) string { return fmt.Sprintf(`{"a":[{"exists":true}],"b%d":[1]}`, i) }, array(`1`)},
	{"present and absent", func(i int) string { return fmt.Sprintf(`{"a":[{"exists":true}],"b%d":[{"exists":false}]}`, i) }, array(`1`)},
	{"nested intervals", func(i int) string {
		return fmt.Sprintf(`{"a":[{"numeric":[">",-%d,"<",%d]}],"b":[{"anything-but":1}]}`, i+1, 1000000+i)
	}, array(`%d`)},
	{"nested prefixes", func(i int) string {
		return fmt.Sprintf(`{"a":[{"prefix":%q}],"b":["x"]}`, strings.Repeat("a", 1+i%100)+fmt.Sprint(i/100))
	}, array(`"aaaaaaaaaaaaaaaaaaaaaaaaa"`)},
	{"condition beside the access", func(i int) string {
		return fmt.Sprintf(`{"k":["x"],"a":[{"prefix":"q%d"},{"suffix":"q%d"},{"numeric":["<",-%d]}]}`, i, i, i)
	}, with(`"k":"x"`, `"x%06x"`)},
	{"values beside the access", func(i int) string { return fmt.Sprintf(`{"k":["x"],"a":["q%d","r%d","s%d","t%d"]}`, i, i, i, i) }, with(`"k":"x"`, `"x%06x"`)},
	{"folded beside the access", func(i int) string {
		return fmt.Sprintf(`{"k":["x"],"a":[{"equals-ignore-case":"q%d"},{"prefix":{"equals-ignore-case":"Q%d"}}]}`, i, i)
	}, with(`"k":"x"`, `"X%06x"`)},
	{"cidr beside the access", func(i int) string { return fmt.Sprintf(`{"k":["x"],"a":[{"cidr":"10.%d.%d.0/24"}]}`, i/256, i%256) }, with(`"k":"x"`, `"11.0.0.%d"`)},
	{"members together", func(i int) string { return fmt.Sprintf(`{"a":{"b":[1],"c":[{"anything-but":[1,%d]}]}}`, i+2) }, array(`{"b":1,"c":1},{"b":2,"c":%d}`)},
	{"members together, small", func(i int) string {
		return fmt.Sprintf(`{"a":{"b":[{"numeric":["<",%d]}],"c":[{"numeric":["<",%d]}]}}`, i+2, i+2)
	}, array(`{"b":1,"c":9999999},{"b":9999999,"c":1}`)},
	{"members together, deep", func(i int) string {
		return fmt.Sprintf(`{"a":{"b":{"c":[1]},"d":{"e":[{"anything-but":[1,%d]}]}}}`, i+2)
	}, array(`{"b":{"c":1},"d":{"e":1}},{"b":{"c":2},"d":{"e":%d}}`)},
	{"members together, absent", func(i int) string {
		return fmt.Sprintf(`{"a":{"b":[1],"c":[{"exists":false}],"d%d":[{"exists":false}]}}`, i)
	}, array(`{"b":1,"c":%d}`)},
	{"or", func(i int) string {
		return fmt.Sprintf(`{"k":["x"],"$or":[{"a":[{"prefix":"q%d"}]},{"b":[{"suffix":"q%d"}]},{"a":[{"wildcard":"*x*q%d"}]}]}`, i, i, i)
	}, with(`"k":"x"`, `"x%06x"`)},
	{"100 alternatives", func(i int) string {
		return `{"k":["x"],"a":[` + list(100, func(j int) string { return fmt.Sprintf(`{"prefix":"q%d-%d"}`, i, j) }) + `]}`
	}, with(`"k":"x"`, `"x%06x"`)},
	{"100 combinations", func(i int) string {
		return `{"k":["x"],"$or":[` + list(100, func(j int) string { return fmt.Sprintf(`{"a":[{"anything-but":{"prefix":["x","%d-%d"]}}]}`, i, j) }) + `]}`
	}, with(`"k":"x"`, `"x%06x"`)},
}

func list(n int, one func(int) string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = one(i)
	}
	return strings.Join(all, ",")
}

func array(element string) func(int) string { return with(`"z":1`, element) }

func with(member, element string) func(int) string {
	return func(size int) string {
		var b bytes.Buffer
		b.WriteString(`{` + member + `,"a":[`)
		for i := 0; b.Len() < size; i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			if strings.Contains(element, "%") {
				fmt.Fprintf(&b, element, i)
			} else {
				b.WriteString(element)
			}
		}
		return b.String() + `]}`
	}
}

func hostileIndex(tb testing.TB, filter func(int) string) *match.Index {
	tb.Helper()
	filters := make([]*match.Filter, 1000)
	for i := range filters {
		filters[i] = parse(tb, filter(i))
	}
	return match.NewIndex(filters)
}

// Each of the 1,000 filters compared with each value would be 1 to 800 million comparisons; the bound is 10 for each byte of the event.
func TestLargeArraysDoNotMultiplyWithFilters(t *testing.T) {
	t.Parallel()
	step := 1
	if raceDetector { // which makes it ten times slower, and nothing is concurrent here
		step = 4
	}
	for i := rand.IntN(step); i < len(hostileShapes); i += step {
		shape := hostileShapes[i]
		if strings.Contains(shape.filter(0), "wildcard") {
			continue // each may need a pass over the event
		}
		event := []byte(shape.event(20_000))
		const perByte = 10
		if n := match.Comparisons(hostileIndex(t, shape.filter), "t", event); n > perByte*len(event) {
			t.Errorf("%s: %d comparisons with an event of %d bytes", shape.name, n, len(event))
		}
	}
}

// BenchmarkHostile reports the processor time of one event.
func BenchmarkHostile(b *testing.B) {
	for _, shape := range hostileShapes {
		b.Run(shape.name, func(b *testing.B) {
			index := hostileIndex(b, shape.filter)
			event := []byte(shape.event(870_000))
			events := 0
			began := processorTime()
			for b.Loop() {
				index.Match("t", event, nil)
				events++
			}
			b.ReportMetric(float64((processorTime()-began).Microseconds())/1000/float64(events), "ms/event")
		})
	}
}
