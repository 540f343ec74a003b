package match

import (
	"bytes"
	"cmp"
	"net/netip"
	"slices"
	"sort"
	"strings"
)

// manyComparisons is from how many comparisons of a value with an alternative on the values at a place are sorted, so that each alternative is
// looked up among them.
const manyComparisons = 512

// A table is the values at one place of an event, in order and each once. The cost of comparing a condition with them grows with the
// alternatives, and not with the values. Only wildcards look at each of the texts that have their ends.
type table struct {
	null, yes, no bool
	numbers       []number
	orders        [4][][]byte // the texts by affixPrefix and so on: as they are, reversed, folded, folded and reversed
	addresses     []netip.Addr
	ordered       [4]bool
	addressed     bool
	grams         []uint64 // a set of bits: the hashes of the pieces of 3 bytes in the texts
}

// table returns the values of a field of the event.
func (s *scratch) table(field int32) *table {
	slot := &s.slots[field]
	if slot.table != none {
		return &s.tables[slot.table]
	}
	slot.table = int32(len(s.tables))
	s.tables = append(s.tables, table{})
	t := &s.tables[slot.table]
	for i := slot.last; i != none; i = s.entries[i].earlier {
		switch e := &s.entries[i]; e.kind {
		case '"':
			t.orders[affixPrefix] = append(t.orders[affixPrefix], e.text)
		case '0':
			t.numbers = append(t.numbers, e.number)
		case 'n':
			t.null = true
		case 't':
			t.yes = true
		case 'f':
			t.no = true
		}
	}
	sortNumbers(t.numbers)
	t.numbers = slices.CompactFunc(t.numbers, func(a, b number) bool { return compareNumbers(&a, &b) == 0 })
	t.orders[affixPrefix] = sortedTexts(t.orders[affixPrefix])
	t.ordered[affixPrefix] = true
	return t
}

// order returns the texts in one of the orders in which affixes are looked for.
func (t *table) order(place int) [][]byte {
	if t.ordered[place] {
		return t.orders[place]
	}
	t.ordered[place] = true
	from, change := affixPrefix, appendReverse
	switch place {
	case affixFoldedPrefix:
		change = appendFold
	case affixFoldedSuffix:
		from = affixFoldedPrefix
	}
	source := t.order(from)
	size := 0
	for _, text := range source {
		size += len(text)
	}
	buffer, texts := make([]byte, 0, size), make([][]byte, len(source))
	for i, text := range source {
		start := len(buffer)
		buffer = change(buffer, text)
		texts[i] = buffer[start:]
	}
	t.orders[place] = sortedTexts(texts)
	return t.orders[place]
}

// sortedTexts sorts texts, and leaves out repeated ones. It compares their first 8 bytes as one number.
func sortedTexts(texts [][]byte) [][]byte {
	type keyed struct {
		key  uint64
		text []byte
	}
	all := make([]keyed, len(texts))
	for i, text := range texts {
		all[i] = keyed{key: leadingBytes(text), text: text}
	}
	slices.SortFunc(all, func(a, b keyed) int {
		if a.key != b.key {
			return cmp.Compare(a.key, b.key)
		}
		return bytes.Compare(a.text, b.text)
	})
	texts = texts[:0]
	for i, one := range all {
		if i == 0 || !bytes.Equal(one.text, all[i-1].text) {
			texts = append(texts, one.text)
		}
	}
	return texts
}

// leadingBytes returns the first 8 bytes of a text as a number in whose order texts are.
func leadingBytes(text []byte) uint64 {
	length := min(len(text), 8)
	return gram(text, length) << (8 * (8 - length))
}

// among tells whether an alternative holds for any of the values in a table.
func (c *condition) among(s *scratch, t *table) bool {
	if c.present || c.null && t.null || c.yes && t.yes || c.no && t.no {
		return true
	}
	for _, text := range c.texts {
		if hasSorted(t.order(affixPrefix), text) {
			return true
		}
	}
	for i := range c.numbers {
		if hasNumber(t.numbers, &c.numbers[i]) {
			return true
		}
	}
	for i := range c.others {
		if c.others[i].among(s, t) {
			return true
		}
	}
	return false
}

func (a *alternative) among(s *scratch, t *table) bool {
	switch a.kind {
	case kindAnythingBut:
		return a.but.leavesOne(s, t)
	case kindInterval:
		return t.hasNumberIn(&a.interval)
	case kindPrefix:
		return hasAffix(t.order(affixPrefix), a.text)
	case kindSuffix:
		return hasAffix(t.order(affixSuffix), string(s.reverse([]byte(a.text))))
	case kindFolded:
		return hasSorted(t.order(affixFoldedPrefix), a.text)
	case kindFoldedPrefix:
		return hasAffix(t.order(affixFoldedPrefix), a.text)
	case kindFoldedSuffix:
		return hasAffix(t.order(affixFoldedSuffix), string(s.reverse([]byte(a.text))))
	case kindWildcard:
		return t.matchesWildcard(s, a.parts)
	default:
		return t.hasAddressIn(a.cidr)
	}
}

// leavesOne tells whether there is a value in a table that is not excluded. It goes through the values until there is one: each step takes an
// excluded value, or all texts with an excluded affix, off the exclusion.
func (x *exclusion) leavesOne(s *scratch, t *table) bool {
	if t.null || t.yes || t.no {
		return true
	}
	for i := range t.numbers {
		if !hasNumber(x.numbers, &t.numbers[i]) {
			return true
		}
	}
	if len(x.others) == 0 {
		return slices.ContainsFunc(t.order(affixPrefix), func(text []byte) bool { return !hasText(x.texts, x.hashed, text) })
	}
	switch x.others[0].kind { // they all are of one kind
	case kindPrefix:
		return exceedsAffixes(t.order(affixPrefix), x.affixes)
	case kindSuffix:
		return exceedsAffixes(t.order(affixSuffix), x.affixes)
	case kindFolded:
		return slices.ContainsFunc(t.order(affixFoldedPrefix), func(text []byte) bool {
			_, found := slices.BinarySearchFunc(x.others, text, func(a alternative, text []byte) int { return strings.Compare(a.text, string(text)) })
			return !found
		})
	default:
		return slices.ContainsFunc(t.order(affixPrefix), func(text []byte) bool {
			s.comparisons += len(x.others)
			return !slices.ContainsFunc(x.others, func(a alternative) bool { return matchesWildcard(text, a.parts) })
		})
	}
}

// exceedsAffixes tells whether one of some sorted texts begins with none of affixes, which are sorted, too, and do not begin with each other.
func exceedsAffixes(texts [][]byte, affixes []string) bool {
	for len(texts) > 0 {
		after := sort.Search(len(affixes), func(i int) bool { return affixes[i] > string(texts[0]) })
		if after == 0 || !hasPrefix(texts[0], affixes[after-1]) {
			return true
		}
		texts = texts[sort.Search(len(texts), func(i int) bool { return !hasPrefix(texts[i], affixes[after-1]) }):]
		affixes = affixes[after:]
	}
	return false
}

// separateAffixes sorts affixes, and leaves out those that begin with another one.
func separateAffixes(affixes []string) []string {
	slices.Sort(affixes)
	return slices.CompactFunc(affixes, func(a, b string) bool { return strings.HasPrefix(b, a) })
}

func hasSorted(texts [][]byte, text string) bool {
	_, found := slices.BinarySearchFunc(texts, text, func(a []byte, b string) int { return strings.Compare(string(a), b) })
	return found
}

func firstNotBefore(texts [][]byte, text string) int {
	return sort.Search(len(texts), func(i int) bool { return string(texts[i]) >= text })
}

func hasAffix(texts [][]byte, affix string) bool {
	i := firstNotBefore(texts, affix)
	return i < len(texts) && hasPrefix(texts[i], affix)
}

// withAffix returns the texts that have an affix at a place.
func (t *table) withAffix(place int, affix string) [][]byte {
	texts := t.order(place)
	texts = texts[firstNotBefore(texts, affix):]
	return texts[:sort.Search(len(texts), func(i int) bool { return !hasPrefix(texts[i], affix) })]
}

const (
	gramBits  = 18
	gramBytes = 3
)

func gramHash(text []byte) uint32 {
	const golden = 0x9e3779b1
	return uint32(gram(text, gramBytes)) * golden >> (32 - gramBits)
}

// matchesWildcard tells whether one of the texts matches a wildcard. It compares those that have the wildcard's beginning, or its end, if the
// pieces of the wildcard are in the texts at all.
func (t *table) matchesWildcard(s *scratch, parts [][]byte) bool {
	if t.grams == nil {
		t.grams = make([]uint64, 1<<gramBits/64)
		for _, text := range t.order(affixPrefix) {
			for i := 0; i+gramBytes <= len(text); i++ {
				hash := gramHash(text[i:])
				t.grams[hash/64] |= 1 << (hash % 64)
			}
		}
	}
	for _, part := range parts {
		for i := 0; i+gramBytes <= len(part); i++ {
			if hash := gramHash(part[i:]); t.grams[hash/64]&(1<<(hash%64)) == 0 {
				return false
			}
		}
	}
	texts := t.withAffix(affixPrefix, string(parts[0]))
	if last := parts[len(parts)-1]; len(last) > 0 {
		if ending := t.withAffix(affixSuffix, string(s.reverse(last))); len(ending) < len(texts) {
			texts, parts = ending, reversedParts(parts)
		}
	}
	s.comparisons += len(texts)
	return slices.ContainsFunc(texts, func(text []byte) bool { return matchesWildcard(text, parts) })
}

func reversedParts(parts [][]byte) [][]byte {
	reversed := make([][]byte, len(parts))
	for i, part := range parts {
		reversed[len(parts)-1-i] = appendReverse(nil, part)
	}
	return reversed
}

func (t *table) hasNumberIn(within *interval) bool {
	i := sort.Search(len(t.numbers), func(i int) bool { return within.above(&t.numbers[i]) })
	return i < len(t.numbers) && within.below(&t.numbers[i])
}

func (t *table) hasAddressIn(block netip.Prefix) bool {
	if !t.addressed {
		t.addressed = true
		for _, text := range t.order(affixPrefix) {
			if address, ok := parseAddress(text); ok {
				t.addresses = append(t.addresses, address)
			}
		}
		slices.SortFunc(t.addresses, netip.Addr.Compare)
	}
	i := sort.Search(len(t.addresses), func(i int) bool { return !t.addresses[i].Less(block.Addr()) })
	return i < len(t.addresses) && block.Contains(t.addresses[i])
}
