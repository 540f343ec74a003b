package match_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/queued/queued/internal/match"
)

// Each family makes the filters of a benchmark: the topic pattern, or none, and the match of the filter number i of n.
var families = []struct {
	name   string
	filter func(i, n int) (topic, pattern string)
}{
	{"equality", func(i, _ int) (string, string) { return "", fmt.Sprintf(`{"customer":["customer-%d"]}`, i) }},
	{"two members", func(i, _ int) (string, string) {
		return "", fmt.Sprintf(`{"status":["paid"],"customer":["customer-%d"]}`, i)
	}},
	{"prefix", func(i, _ int) (string, string) {
		return "", fmt.Sprintf(`{"note":[{"prefix":"invoice-%06d-"}]}`, i)
	}},
	{"suffix", func(i, _ int) (string, string) { return "", fmt.Sprintf(`{"customer":[{"suffix":"r-%d"}]}`, i) }},
	{"numeric", func(i, n int) (string, string) {
		width := 200000 / n
		return "", fmt.Sprintf(`{"amount":[{"numeric":[">=",%d,"<",%d]}]}`, i*width, (i+1)*width)
	}},
	{"topic", func(i, _ int) (string, string) { return fmt.Sprintf("order.placed.c%d", i), "" }},
	{"topic and one member", func(i, _ int) (string, string) {
		return "order.*.*", fmt.Sprintf(`{"customer":["customer-%d"]}`, i)
	}},
	{"wildcard", func(i, _ int) (string, string) {
		return "", fmt.Sprintf(`{"customer":[{"wildcard":"cust*-%d"}]}`, i)
	}},
	{"wildcard inside", func(i, _ int) (string, string) {
		return "", fmt.Sprintf(`{"note":[{"wildcard":"*-%06d-*card"}]}`, i)
	}},
	{"anything-but and equality", func(i, _ int) (string, string) {
		return "", fmt.Sprintf(`{"status":[{"anything-but":"x%d"}],"customer":["customer-%d"]}`, i, i)
	}},
	{"element of an array", func(i, _ int) (string, string) {
		return "", fmt.Sprintf(`{"items":{"sku":["sku-%d"],"count":[{"numeric":[">",0]}]}}`, i)
	}},
}

// events returns events of 8 members and about 300 bytes, of customers from 0 to before n.
func events(n int) ([]string, [][]byte) {
	g := generator{rand.New(rand.NewPCG(1, 2))}
	topics, texts := make([]string, 1000), make([][]byte, 1000)
	for i := range texts {
		customer := g.IntN(n)
		topics[i] = fmt.Sprintf("order.placed.c%d", customer)
		texts[i] = fmt.Appendf(nil, `{"id": "0198f2c4-7d1e-7c3a-9b1f-%012d", "status": "paid", "customer": "customer-%d", "amount": %d.5, "currency": "EUR", `+
			`"note": "invoice-%06d-of-2026, paid by card", "address": {"city": "Wien", "street": "Hauptstraße 7", "zip": "1010"}, `+
			`"items": [{"sku": "sku-%d", "count": 2}, {"sku": "sku-x", "count": 1}]}`, i, customer, g.IntN(200000), customer, customer)
	}
	return topics, texts
}

func familyFilters(tb testing.TB, family, n int) []*match.Filter {
	tb.Helper()
	filters := make([]*match.Filter, n)
	for i := range filters {
		topic, pattern := families[family].filter(i, n)
		var topics []string
		if topic != "" {
			topics = []string{topic}
		}
		var err error
		if filters[i], err = match.Parse(topics, []byte(pattern)); err != nil {
			tb.Fatal(err)
		}
	}
	return filters
}

// BenchmarkMatch reports the events matched in a second of processor time, on one core. Each event matches about one filter.
func BenchmarkMatch(b *testing.B) {
	for family := range families {
		for _, n := range []int{1, 100, 10000, 100000} {
			b.Run(fmt.Sprintf("%s/%d", families[family].name, n), func(b *testing.B) {
				index := match.NewIndex(familyFilters(b, family, n))
				topics, texts := events(n)
				var ids []int32
				matches, events := 0, 0
				b.ReportAllocs()
				began := processorTime()
				for b.Loop() {
					ids = index.Match(topics[events%len(texts)], texts[events%len(texts)], ids[:0])
					matches += len(ids)
					events++
				}
				b.ReportMetric(float64(events)/(processorTime()-began).Seconds(), "events/s")
				b.ReportMetric(float64(matches)/float64(events), "matches/op")
			})
		}
	}
}

// BenchmarkMatchAll is the case in which every event matches every filter.
func BenchmarkMatchAll(b *testing.B) {
	for _, n := range []int{1, 100, 10000} {
		b.Run(fmt.Sprintf("anything-but/%d", n), func(b *testing.B) {
			filters := make([]*match.Filter, n)
			for i := range filters {
				filters[i] = parse(b, fmt.Sprintf(`{"customer":[{"anything-but":"x%d"}]}`, i))
			}
			index := match.NewIndex(filters)
			_, texts := events(n)
			var ids []int32
			events := 0
			began := processorTime()
			for b.Loop() {
				ids = index.Match("t", texts[events%len(texts)], ids[:0])
				events++
			}
			b.ReportMetric(float64(events)/(processorTime()-began).Seconds(), "events/s")
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		parse(b, `{"status":["paid"],"customer":["customer-1"]}`)
	}
}

func BenchmarkNewIndex(b *testing.B) {
	for _, family := range []int{0, 1, 2, 4} {
		b.Run(families[family].name+"/100000", func(b *testing.B) {
			filters := familyFilters(b, family, 100000)
			for b.Loop() {
				match.NewIndex(filters)
			}
		})
	}
}

// BenchmarkUpdate changes one filter of 100,000, when as many others as given have been changed since the base was built.
func BenchmarkUpdate(b *testing.B) {
	filters := familyFilters(b, 1, 100000)
	index := match.NewIndex(filters)
	for _, changed := range []int{0, 1000, 3000} {
		b.Run(fmt.Sprint(changed), func(b *testing.B) {
			changes := map[int32]*match.Filter{}
			for i := range changed {
				changes[int32(i)] = filters[i]
			}
			before := index.Update(changes)
			for b.Loop() {
				before.Update(map[int32]*match.Filter{50000: filters[1]})
			}
		})
	}
}
