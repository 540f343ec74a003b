package match_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/queued/queued/internal/match"
)

// A generator makes filters and events of few names and values, so that they have something to do with each other.
type generator struct{ *rand.Rand }

func pick[T any](g generator, from ...T) T { return from[g.IntN(len(from))] }

func (g generator) name() string { return pick(g, "a", "b", "c") }

func (g generator) word() string {
	var b strings.Builder
	for range g.IntN(6) {
		b.WriteString(pick(g, "a", "b", "a", "B", "é", "É", "k", "*"))
	}
	return b.String()
}

func (g generator) number() string {
	return pick(g, "0", "-0", "1", "1.0", "10e-1", "2", "-1", "-1.5", "0.5", "5e-1", "100", "1e2", "9007199254740992", "9007199254740993", "1.2345678901234567890123", "1.2345678901234567890124")
}

func (g generator) address() string {
	return pick(g, "10.0.0.1", "10.0.0.2", "10.1.0.1", "10.0.0.", "::1", "2001:db8::1", "::ffff:10.0.0.1")
}

func quoted(text string) string {
	q, _ := json.Marshal(text)
	return string(q)
}

func (g generator) event(depth int) string {
	var members []string
	for _, name := range []string{"a", "b", "c"} {
		if g.IntN(4) > 0 {
			members = append(members, quoted(name)+":"+g.value(depth))
		}
	}
	g.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return "{" + strings.Join(members, pick(g, ",", " , ")) + "}"
}

func (g generator) value(depth int) string {
	switch g.IntN(11) {
	case 0, 1, 2:
		return quoted(g.word())
	case 3:
		return quoted(g.address())
	case 4:
		return g.number()
	case 5:
		return pick(g, "null", "true", "false")
	case 6, 7:
		var elements []string
		for range g.IntN(4) {
			if depth == 0 {
				break
			}
			elements = append(elements, g.value(depth-1))
		}
		return "[" + strings.Join(elements, ",") + "]"
	default:
		if depth == 0 {
			return "{}"
		}
		return g.event(depth - 1)
	}
}

func (g generator) pattern(depth int) string {
	var members []string
	for _, name := range []string{"a", "b", "c", "$or"} {
		switch {
		case name != "$or" && g.IntN(2) == 0:
			inner := g.alternatives()
			if depth > 0 && g.IntN(2) == 0 {
				inner = g.pattern(depth - 1)
			}
			members = append(members, quoted(name)+":"+inner)
		case name == "$or" && depth > 0 && g.IntN(5) == 0:
			members = append(members, `"$or":[`+g.pattern(depth-1)+","+g.pattern(depth-1)+"]")
		}
	}
	if members == nil {
		members = []string{quoted(g.name()) + ":" + g.alternatives()}
	}
	return "{" + strings.Join(members, ",") + "}"
}

func (g generator) alternatives() string {
	list := make([]string, 1+g.IntN(2))
	for i := range list {
		list[i] = g.alternative()
	}
	return "[" + strings.Join(list, ",") + "]"
}

func (g generator) alternative() string {
	op := func(name, argument string) string { return fmt.Sprintf("{%q:%s}", name, argument) }
	wildcard := func() string {
		return quoted(strings.ReplaceAll(g.word(), "**", "*") + "*" + strings.ReplaceAll(g.word(), "*", `\*`))
	}
	switch g.IntN(15) {
	case 0, 1:
		return quoted(g.word())
	case 2:
		return g.number()
	case 3:
		return pick(g, "null", "true", "false")
	case 4:
		return op("exists", pick(g, "true", "false", "false"))
	case 5:
		return op("prefix", quoted(g.word()))
	case 6:
		return op("suffix", quoted(g.word()))
	case 7:
		return op(pick(g, "prefix", "suffix"), op("equals-ignore-case", quoted(g.word())))
	case 8:
		return op("equals-ignore-case", quoted(g.word()))
	case 9:
		return op("wildcard", wildcard())
	case 10:
		return op("numeric", pick(g, "", "["+quoted(pick(g, "=", "<", "<=", ">", ">="))+","+g.number()+"]",
			"["+quoted(pick(g, ">", ">="))+","+g.number()+","+quoted(pick(g, "<", "<="))+","+g.number()+"]"))
	case 11:
		return op("cidr", quoted(pick(g, "10.0.0.0/8", "10.0.0.0/31", "10.0.0.1/32", "::/0", "0.0.0.0/0", "2001:db8::/32")))
	case 12:
		return op("anything-but", pick(g, quoted(g.word()), g.number(), "["+quoted(g.word())+","+quoted(g.word())+"]"))
	case 13:
		return op("anything-but", op(pick(g, "prefix", "suffix", "equals-ignore-case"), "["+quoted(g.word())+"]"))
	default:
		return op("anything-but", op("wildcard", wildcard()))
	}
}

// filters generates filters that are not refused, and their patterns.
func (g generator) filters(n int) (filters []*match.Filter, patterns []string) {
	for len(filters) < n {
		pattern := g.pattern(2)
		f, err := match.Parse(nil, []byte(pattern))
		if err != nil {
			continue
		}
		filters, patterns = append(filters, f), append(patterns, pattern)
	}
	return filters, patterns
}

// compareWithNaive builds an index of some filters, perhaps in two layers, and compares it with the naive matcher on some events.
func compareWithNaive(t *testing.T, seed uint64) {
	t.Helper()
	g := generator{rand.New(rand.NewPCG(seed, 0))}
	filters, patterns := g.filters(1 + g.IntN(12))
	base := make([]*match.Filter, g.IntN(len(filters)+1))
	copy(base, filters)
	changes := map[int32]*match.Filter{}
	for i, f := range filters {
		if i >= len(base) {
			changes[int32(i)] = f
		} else if g.IntN(4) == 0 {
			base[i], changes[int32(i)] = pick(g, append(filters, nil)...), f
		}
	}
	index := match.NewIndex(base)
	if len(changes) > 0 {
		index = index.Update(changes)
	}
	for range 8 {
		event := g.event(3)
		got := index.Match("t", []byte(event), nil)
		var want []int32
		for i, pattern := range patterns {
			if naiveMatch(t, pattern, event) {
				want = append(want, int32(i))
			}
		}
		if large := match.MatchLarge(index, "t", []byte(event)); fmt.Sprint(large) != fmt.Sprint(want) {
			t.Fatalf("seed %d: as a large event %s matches %v, want %v of\n%s", seed, event, large, want, strings.Join(patterns, "\n"))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("seed %d: %s matches %v, want %v of\n%s", seed, event, got, want, strings.Join(patterns, "\n"))
		}
	}
}

func TestIndexAgreesWithTheNaiveMatcher(t *testing.T) {
	t.Parallel()
	seeds := uint64(500)
	if raceDetector { // which makes it ten times slower, and nothing is concurrent here
		seeds = 50
	}
	for seed := range seeds {
		compareWithNaive(t, seed)
	}
}

func FuzzMatch(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(compareWithNaive)
}

// FuzzEvent holds that no text makes a match panic, and that an event of the naive matcher's JSON is matched as it matches it.
func FuzzEvent(f *testing.F) {
	index := match.NewIndex(allVectors(f))
	for _, v := range vectors {
		f.Add([]byte(v.yes[0]))
	}
	f.Add([]byte(`{"a":"\ud83d\ude00\\","b":[[[{}]]]}`))
	f.Fuzz(func(t *testing.T, event []byte) {
		got := index.Match("t", event, nil)
		var object map[string]any
		decoder := json.NewDecoder(bytes.NewReader(event))
		decoder.UseNumber()
		if decoder.Decode(&object) != nil || object == nil || hasOddities(event) {
			return
		}
		var want []int32
		for i, v := range vectors {
			if naiveMatch(t, v.pattern, string(event)) {
				want = append(want, int32(i))
			}
		}
		if large := match.MatchLarge(index, "t", event); fmt.Sprint(large) != fmt.Sprint(want) {
			t.Fatalf("as a large event %s matches %v, want %v", event, large, want)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%s matches %v, want %v", event, got, want)
		}
	})
}

// hasOddities tells of events that encoding/json and this package read differently: what PostgreSQL would not have stored as it is.
func hasOddities(event []byte) bool {
	return bytes.ContainsAny(event, "\\") || bytes.Count(event, []byte("e")) > 0 || bytes.Count(event, []byte("E")) > 0 || !json.Valid(event) ||
		bytes.Count(event, []byte(`"a"`)) > 1 || bytes.Count(event, []byte(`"b"`)) > 1 || bytes.ContainsFunc(event, func(r rune) bool { return r > 126 })
}

func allVectors(tb testing.TB) []*match.Filter {
	tb.Helper()
	var filters []*match.Filter
	for _, v := range vectors {
		filters = append(filters, parse(tb, v.pattern))
	}
	return filters
}

// FuzzParse holds that no text makes Parse panic, that a refusal has its reasons, and that the canonical form stands for the filter.
func FuzzParse(f *testing.F) {
	for _, v := range vectors {
		f.Add("a.*,b", v.pattern)
	}
	f.Add("", `{"a":[{"numeric":[">",30,"<",1]}],"$or":[{"a":[1]},{"a":[[]]}]}`)
	f.Fuzz(func(t *testing.T, topics, pattern string) {
		var list []string
		if topics != "" {
			list = strings.Split(topics, ",")
		}
		filter, err := match.Parse(list, []byte(pattern))
		if err != nil {
			var refused *match.Error
			if !errors.As(err, &refused) || len(refused.Violations) == 0 {
				t.Fatal(err)
			}
			return
		}
		form := filter.Canonical()
		again := reparse(t, form)
		if again != nil && !bytes.Equal(again.Canonical(), form) {
			t.Fatalf("%s is %s, which is %s", strconv.Quote(pattern), form, again.Canonical())
		}
		filter.Matches("a.b", []byte(`{"a":[1,"x",{"b":null}]}`))
	})
}

// reparse returns nil for a form that has grown beyond the bounds.
func reparse(t *testing.T, form []byte) *match.Filter {
	t.Helper()
	var parts struct {
		Topics []string        `json:"topics"`
		Match  json.RawMessage `json:"match"`
	}
	if err := json.Unmarshal(form, &parts); err != nil {
		t.Fatalf("%s: %v", form, err)
	}
	if len(form) > match.MaxBytes {
		return nil
	}
	filter, err := match.Parse(parts.Topics, parts.Match)
	if err != nil {
		t.Fatalf("%s: %v", form, err)
	}
	return filter
}
