package match_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/queued/queued/internal/match"
)

// kinds make alternatives of one operator each, of so few values that many of them are nested in each other, overlap, or touch.
var kinds = map[string]func(g generator) string{
	"prefix": func(g generator) string { return `{"prefix":` + quoted(g.letters(6)) + `}` },
	"suffix": func(g generator) string { return `{"suffix":` + quoted(g.letters(6)) + `}` },
	"folded": func(g generator) string { return `{"prefix":{"equals-ignore-case":` + quoted(g.letters(6)) + `}}` },
	"wildcard": func(g generator) string {
		return `{"wildcard":` + quoted("*a"+g.letters(4)+"*b"+g.letters(4)+"*") + `}`
	},
	"value":   func(g generator) string { return quoted(g.letters(4)) },
	"decimal": func(g generator) string { return g.decimal() },
	"above": func(g generator) string {
		return `{"numeric":[` + quoted(pick(g, ">", ">=")) + `,` + g.decimal() + `]}`
	},
	"below": func(g generator) string {
		return `{"numeric":[` + quoted(pick(g, "<", "<=")) + `,` + g.decimal() + `]}`
	},
	"between": func(g generator) string { return g.between() },
	"cidr": func(g generator) string {
		return fmt.Sprintf(`{"cidr":"10.0.%d.%d/%d"}`, g.IntN(4), g.IntN(256), g.IntN(33))
	},
	"different": func(g generator) string { return `{"anything-but":` + quoted(g.letters(2)) + `}` },
}

func (g generator) letters(most int) string {
	letters := make([]byte, g.IntN(most+1))
	for i := range letters {
		letters[i] = pick(g, byte('a'), 'b')
	}
	return string(letters)
}

func (g generator) decimal() string { return fmt.Sprintf("%d.%d", g.IntN(19)-9, g.IntN(3)) }

func (g generator) between() string {
	return fmt.Sprintf(`{"numeric":[%q,%d.%d,%q,%d.%d]}`, pick(g, ">", ">="), g.IntN(9), g.IntN(3), pick(g, "<", "<="), 9+g.IntN(3), g.IntN(3))
}

func TestManyFiltersOfAKindAnswerAsAlone(t *testing.T) {
	t.Parallel()
	for name, alternative := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := generator{rand.New(rand.NewPCG(1, 1))}
			var filters []*match.Filter
			for range 300 {
				pattern := fmt.Sprintf(`{"m%d":[%s]}`, g.IntN(2), alternative(g))
				if g.IntN(3) == 0 {
					pattern = fmt.Sprintf(`{"m%d":[%s,%s],"x%d":[{"exists":%t}]}`, g.IntN(2), alternative(g), alternative(g), g.IntN(20), g.IntN(4) > 0)
				}
				filters = append(filters, parse(t, pattern))
			}
			index := match.NewIndex(filters)
			for range 300 {
				value := pick(g, quoted(g.letters(9)), g.decimal(), fmt.Sprintf("%d.%d", g.IntN(13), g.IntN(3)), fmt.Sprintf(`"10.0.%d.%d"`, g.IntN(4), g.IntN(256)))
				event := fmt.Sprintf(`{"m%d":%s,"x%d":1}`, g.IntN(2), value, g.IntN(20))
				compareWithEach(t, index, filters, "t", event)
			}
		})
	}
}

func TestFiltersAreFoundByTheirTopics(t *testing.T) {
	t.Parallel()
	g := generator{rand.New(rand.NewPCG(2, 2))}
	word := func() string { return pick(g, "a", "b", "queued", "*") }
	var filters []*match.Filter
	for range 200 {
		var topics []string
		for range 1 + g.IntN(2) {
			words := []string{word(), word(), word(), pick(g, word(), "**")}[g.IntN(4):]
			topics = append(topics, strings.Join(words, "."))
		}
		pattern := pick(g, ``, `{"x":[1]}`, `{"x":[{"anything-but":1}]}`, `{"x":[{"exists":false}]}`)
		f, err := match.Parse(topics, []byte(pattern))
		if err != nil {
			t.Fatal(topics, err)
		}
		filters = append(filters, f)
	}
	index := match.NewIndex(filters)
	for range 300 {
		topic := strings.ReplaceAll(strings.Join([]string{word(), word(), word(), word(), word()}[g.IntN(5):], "."), "*", "d")
		compareWithEach(t, index, filters, topic, pick(g, `{}`, `{"x":1}`, `{"x":[1,2]}`))
	}
}

func TestIdsAreAscendingAndEachOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 100, 1000} {
		filters := make([]*match.Filter, n)
		var want []int32
		for i := range filters {
			switch i % 4 {
			case 0:
				filters[i] = parse(t, `{"a":["x",{"prefix":"x"},{"suffix":"x"}]}`) // all equal
			case 1:
				filters[i] = parse(t, fmt.Sprintf(`{"$or":[{"a":["x","y%d"]},{"b":[1]}]}`, i))
			case 2:
				continue
			case 3:
				filters[i] = parse(t, fmt.Sprintf(`{"a":["y%d"]}`, i))
				continue
			}
			want = append(want, int32(i))
		}
		got := match.NewIndex(filters).Match("t", []byte(`{"b":[1,1],"a":["x","x"]}`), []int32{-7})
		if !slices.Equal(got, append([]int32{-7}, want...)) {
			t.Errorf("of %d: %v, want -7 and %v", n, got, want)
		}
	}
}

func TestUpdateLeavesTheOldIndexAsItIs(t *testing.T) {
	t.Parallel()
	const event = `{"a":{"b":1},"c":1}`
	old := match.NewIndex([]*match.Filter{parse(t, `{"a":{"b":[1]}}`), parse(t, `{"a":{"b":[2]}}`)})
	next := old.Update(map[int32]*match.Filter{0: nil, 3: parse(t, `{"a":{"b":[{"numeric":["<",2]}]}}`), 4: parse(t, `{"c":[1]}`)})
	last := next.Update(map[int32]*match.Filter{1: parse(t, `{"c":[1]}`), 4: parse(t, `{"c":[2]}`)})
	for _, test := range []struct {
		index *match.Index
		size  int
		want  []int32
	}{{old, 2, []int32{0}}, {next, 5, []int32{3, 4}}, {last, 5, []int32{1, 3}}} {
		if got := test.index.Match("t", []byte(event), nil); !slices.Equal(got, test.want) || test.index.Len() != test.size {
			t.Errorf("%v of %d, want %v of %d", got, test.index.Len(), test.want, test.size)
		}
	}
	if old.Filter(0) == nil || old.Filter(4) != nil || next.Filter(0) != nil || next.Filter(1) == nil || next.Filter(2) != nil || next.Filter(3) == nil {
		t.Error("the filters are not those of their index")
	}
}

// Thousands of changes, one at a time, go through several bases.
func TestManyUpdatesAnswerAsANewIndex(t *testing.T) {
	t.Parallel()
	g := generator{rand.New(rand.NewPCG(3, 3))}
	filter := func(i int32) *match.Filter {
		return parse(t, fmt.Sprintf(`{"m%d":["v%d"],"k":[{"prefix":"p"}]}`, g.IntN(10), i%7))
	}
	index := match.NewIndex(nil)
	filters := make([]*match.Filter, 400)
	for range 300 {
		changes := map[int32]*match.Filter{}
		for range 1 + g.IntN(20) {
			id := int32(g.IntN(len(filters)))
			if filters[id] == nil {
				filters[id] = filter(id)
			} else {
				filters[id] = nil
			}
			changes[id] = filters[id]
		}
		index = index.Update(changes)
		event := fmt.Sprintf(`{"m%d":"v%d","k":"p"}`, g.IntN(10), g.IntN(7))
		want := match.NewIndex(filters).Match("t", []byte(event), nil)
		if got := index.Match("t", []byte(event), nil); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}

func TestMatchesAndUpdatesAtTheSameTime(t *testing.T) {
	t.Parallel()
	g := generator{rand.New(rand.NewPCG(4, 4))}
	filters, patterns := g.filters(200)
	events := make([]string, 50)
	want := make([][]int32, len(events))
	for i := range events {
		events[i] = g.event(3)
		for id, pattern := range patterns {
			if naiveMatch(t, pattern, events[i]) {
				want[i] = append(want[i], int32(id))
			}
		}
	}
	index := match.NewIndex(filters)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			mine := index
			var ids []int32
			for round := range 20 {
				for i, event := range events {
					ids = mine.Match("t", []byte(event), ids[:0])
					if !slices.Equal(ids, want[i]) {
						t.Errorf("%s: %v, want %v", event, ids, want[i])
						return
					}
				}
				id := int32(round % len(filters))
				mine = mine.Update(map[int32]*match.Filter{id: nil}).Update(map[int32]*match.Filter{id: filters[id]})
			}
		})
	}
	group.Wait()
}

func TestMatchAllocatesNothing(t *testing.T) { //nolint:paralleltest // it counts the allocations of the whole process
	if raceDetector {
		t.Skip("under the race detector a pool drops some of what it is given")
	}
	index := match.NewIndex(allVectors(t))
	event := []byte(`{"a":"order-17","b":{"c":[1,2.5,{"d":"x\n"}]},"d":[{"a":1,"b":2},{"c":1}],"u":[{"n":1,"s":"ok"}]}`)
	ids := index.Match("a.b", event, nil)
	if allocations := testing.AllocsPerRun(1000, func() { ids = index.Match("a.b", event, ids[:0]) }); allocations >= 1 {
		t.Errorf("%v allocations", allocations)
	}
}

// An event is compared with few of many filters, whatever these have in common.
func TestAnEventIsComparedWithFewFilters(t *testing.T) {
	t.Parallel()
	const n = 2000
	topics, texts := events(n)
	for family := range families {
		index := match.NewIndex(familyFilters(t, family, n))
		for i := range 50 {
			if candidates := match.Candidates(index, topics[i], texts[i]); candidates > 2 {
				t.Errorf("%s: %d candidates of %d", families[family].name, candidates, n)
				break
			}
		}
	}
}

// The rarest condition is found on either side of a skew: the common status or the common topic, the rare customer or the rare topic.
func TestTheAccessPredicateIsTheRareOne(t *testing.T) {
	t.Parallel()
	var filters []*match.Filter
	for i := range 1000 {
		for _, test := range []struct{ topic, pattern string }{
			{"common", `{"status":["paid"],"customer":["c%d"]}`},
			{"rare.%d", `{"status":["paid"]}`},
			{"common", `{"status":[{"anything-but":"x"}],"amount":[{"numeric":[">=",%[1]d,"<",%[1]d.5]}],"customer":[{"exists":true}]}`},
			{"*", `{"status":["paid","open"],"note":[{"wildcard":"*common*-%d-*"}]}`},
		} {
			f, err := match.Parse([]string{strings.ReplaceAll(test.topic, "%d", fmt.Sprint(i))}, []byte(strings.ReplaceAll(strings.ReplaceAll(test.pattern, "%[1]d", "%d"), "%d", fmt.Sprint(i))))
			if err != nil {
				t.Fatal(err)
			}
			filters = append(filters, f)
		}
	}
	index := match.NewIndex(filters)
	event := []byte(`{"status":"paid","customer":"c7","amount":500.2,"note":"x common y-33-z"}`)
	if candidates := match.Candidates(index, "common", event); candidates > 3 {
		t.Errorf("%d candidates", candidates)
	}
	if candidates := match.Candidates(index, "rare.9", []byte(`{"status":"paid"}`)); candidates > 1 {
		t.Errorf("%d candidates", candidates)
	}
	if got, want := index.Match("common", event, nil), []int32{7 * 4, 33*4 + 3, 500*4 + 2}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestEventThatNobodyCanReadMatchesByItsTopicAlone(t *testing.T) {
	t.Parallel()
	var filters []*match.Filter
	for _, f := range []struct {
		topics  []string
		pattern string
	}{{nil, ""}, {[]string{"a.*"}, `{"n": [1]}`}, {[]string{"b.**"}, ""}, {nil, `{"n": [{"exists": false}]}`}, {[]string{"x", "a.b"}, `{"n": [1]}`}} {
		filter, err := match.Parse(f.topics, []byte(f.pattern))
		if err != nil {
			t.Fatal(err)
		}
		filters = append(filters, filter)
	}
	index := match.NewIndex(filters).Update(map[int32]*match.Filter{3: nil, 6: filters[1]})
	if got := index.Match("a.b", nil, []int32{9}); !slices.Equal(got, []int32{9, 0, 1, 4, 6}) {
		t.Errorf("it matches %v", got)
	}
}
