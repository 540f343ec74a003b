package match

import (
	"net/netip"
	"slices"
)

// A fieldBuilder gathers the predicates of one node, by the kind of comparison.
type fieldBuilder struct {
	node      *node
	affixes   int64 // how many alternatives of each kind there are
	intervals int64

	present, null, yes, no int32
	exact                  map[string]int32
	numbers                map[number]int32
	folded                 map[string]int32
	byAffix                [4]map[string]int32
	grams                  [len(gramLengths)]map[uint64]int32
	ranges                 map[string]int32
	intervalNodes          []intervalNode
	networks               map[netip.Prefix]int32
	literals               map[literal]int64 // how many wildcards each is in
}

func newFieldBuilder(n *node) *fieldBuilder {
	return &fieldBuilder{node: n, present: none, null: none, yes: none, no: none}
}

// find returns the predicate in a map, and makes one if there is none.
func find[K comparable](b *builder, field *fieldBuilder, predicates *map[K]int32, key K, kind int) int32 {
	predicate, known := (*predicates)[key]
	if !known {
		if *predicates == nil {
			*predicates = map[K]int32{}
		}
		predicate = b.predicate(kind, field)
		(*predicates)[key] = predicate
	}
	return predicate
}

func (b *builder) single(field *fieldBuilder, predicate *int32, kind int) int32 {
	if *predicate == none {
		*predicate = b.predicate(kind, field)
	}
	return *predicate
}

func (b *builder) accessOf(field *fieldBuilder, c *condition) access {
	if c.absent {
		return access{}
	}
	if c.present {
		return access{predicates: []int32{b.single(field, &field.present, predicatePresent)}, exactly: true}
	}
	predicates := make([]int32, 0, len(c.texts)+len(c.numbers)+len(c.others)+1)
	for _, text := range c.texts {
		predicates = append(predicates, find(b, field, &field.exact, text, predicateValue))
	}
	for _, n := range c.numbers {
		predicates = append(predicates, find(b, field, &field.numbers, n, predicateValue))
	}
	if c.null {
		predicates = append(predicates, b.single(field, &field.null, predicateValue))
	}
	if c.yes {
		predicates = append(predicates, b.single(field, &field.yes, predicateValue))
	}
	if c.no {
		predicates = append(predicates, b.single(field, &field.no, predicateValue))
	}
	exactly := true
	for i := range c.others {
		a := &c.others[i]
		if a.kind == kindWildcard {
			b.countLiterals(field, a)
		}
		exactly = exactly && a.kind != kindWildcard && a.kind != kindAnythingBut
	}
	return access{predicates: predicates, exactly: exactly}
}

// addOthers adds the predicates of the alternatives that are no plain values. It comes after accessOf for all conditions, when it is known how
// common each literal is.
func (b *builder) addOthers() {
	for i := range b.layer.conditions {
		c := &b.layer.conditions[i]
		if c.absent || c.present {
			continue
		}
		access := &b.access[i]
		for j := range c.others {
			access.predicates = append(access.predicates, b.accessOther(b.byField[c.field], &c.others[j]))
		}
		slices.Sort(access.predicates)
		access.predicates = slices.Compact(access.predicates)
	}
}

func (b *builder) accessOther(field *fieldBuilder, a *alternative) int32 {
	switch a.kind {
	case kindInterval:
		field.intervals++
		key := a.interval.key()
		predicate, known := field.ranges[key]
		if !known {
			predicate = find(b, field, &field.ranges, key, predicateInterval)
			field.intervalNodes = append(field.intervalNodes, intervalNode{interval: a.interval, predicate: predicate})
		}
		return predicate
	case kindPrefix:
		return b.affix(field, affixPrefix, a.text)
	case kindSuffix:
		return b.affix(field, affixSuffix, a.text)
	case kindFoldedPrefix:
		return b.affix(field, affixFoldedPrefix, a.text)
	case kindFoldedSuffix:
		return b.affix(field, affixFoldedSuffix, a.text)
	case kindFolded:
		return find(b, field, &field.folded, a.text, predicateValue)
	case kindCIDR:
		return find(b, field, &field.networks, a.cidr, predicateNetwork)
	case kindWildcard:
		best := rarestLiteral(field, a)
		if best.place == literalGram {
			field.affixes++
			return find(b, field, &field.grams[slices.Index(gramLengths[:], len(best.text))], gram(best.text, len(best.text)), predicateGram)
		}
		return b.affix(field, best.place, best.text)
	default:
		return b.single(field, &field.present, predicatePresent)
	}
}

func (b *builder) affix(field *fieldBuilder, place int, text string) int32 {
	field.affixes++
	return find(b, field, &field.byAffix[place], text, predicateAffix)
}

// A literal is a piece that a text must have to match a wildcard: a prefix, a suffix, or a gram anywhere.
type literal struct {
	place int
	text  string
}

const (
	literalGram = -1
	// maxGrams bounds how many grams of one length are considered for one wildcard.
	maxGrams = 64
)

// literals calls yield with the literals of a wildcard, of which each is sufficient to find it by.
func literals(a *alternative, yield func(literal)) {
	yield(literal{place: affixPrefix, text: string(a.parts[0])})
	yield(literal{place: affixSuffix, text: string(a.parts[len(a.parts)-1])})
	for _, length := range gramLengths {
		grams := 0
		for _, part := range a.parts {
			for i := 0; i+length <= len(part) && grams < maxGrams; i++ {
				yield(literal{place: literalGram, text: string(part[i : i+length])})
				grams++
			}
		}
	}
}

func (b *builder) countLiterals(field *fieldBuilder, a *alternative) {
	if field.literals == nil {
		field.literals = map[literal]int64{}
	}
	literals(a, func(l literal) { field.literals[l]++ })
}

// rarestLiteral returns the literal of a wildcard that the fewest others have. Among equally rare ones, long prefixes and suffixes come first,
// and short ones last.
func rarestLiteral(field *fieldBuilder, a *alternative) literal {
	var best literal
	least := int64(-1)
	literals(a, func(l literal) {
		const ranks = 4
		cost := field.literals[l] * ranks
		switch {
		case l.text == "":
			cost = 1 << 60 // every text has it
		case l.place == literalGram:
			cost++
		case len(l.text) < gramLengths[0]:
			cost += 2
		}
		if least < 0 || cost < least {
			best, least = l, cost
		}
	})
	return best
}

func (i *interval) key() string {
	edge := func(b *bound) string {
		switch {
		case b == nil:
			return "-"
		case b.open:
			return "(" + b.number.String()
		default:
			return "[" + b.number.String()
		}
	}
	return edge(i.low) + " " + edge(i.high)
}

func (field *fieldBuilder) finish(used func(int32) bool) *valueIndex {
	v := &valueIndex{
		present: field.present, null: field.null, yes: field.yes, no: field.no,
		exact: usedOnly(field.exact, used), folded: usedOnly(field.folded, used),
		networks: newNetworkSet(usedOnly(field.networks, used)),
	}
	for n, predicate := range usedOnly(field.numbers, used) {
		if n.tail != "" {
			if v.longer == nil {
				v.longer = map[number]int32{}
			}
			v.longer[n] = predicate
			continue
		}
		if v.numbers == nil {
			v.numbers = map[numberKey]int32{}
		}
		v.numbers[n.key()] = predicate
	}
	for i, predicates := range field.byAffix {
		v.affixes[i] = newAffixSet(usedOnly(predicates, used), i == affixSuffix || i == affixFoldedSuffix)
	}
	for i, predicates := range field.grams {
		v.grams[i] = usedOnly(predicates, used)
	}
	v.ranges = newIntervalSet(slices.DeleteFunc(field.intervalNodes, func(n intervalNode) bool { return !used(n.predicate) }))
	if v.ranges != nil {
		v.containers += int32(len(v.ranges.nodes))
	}
	if v.networks != nil {
		v.containers += int32(len(v.networks.predicates))
	}
	return v
}

// usedOnly returns the predicates that conjunctions are posted under, or nil if there are none.
func usedOnly[K comparable](predicates map[K]int32, used func(int32) bool) map[K]int32 {
	unused := 0
	for _, predicate := range predicates {
		if !used(predicate) {
			unused++
		}
	}
	if unused == 0 && len(predicates) > 0 {
		return predicates
	}
	if unused == len(predicates) {
		return nil
	}
	result := make(map[K]int32, len(predicates)-unused)
	for key, predicate := range predicates {
		if used(predicate) {
			result[key] = predicate
		}
	}
	return result
}
