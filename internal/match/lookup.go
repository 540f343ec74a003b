package match

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// A valueIndex finds the access predicates that a value fulfils at one node.
type valueIndex struct {
	present  int32 // any value, or none
	null     int32
	yes, no  int32
	exact    map[string]int32
	numbers  map[numberKey]int32
	longer   map[number]int32 // numbers of more than 19 digits
	folded   map[string]int32
	affixes  [4]*affixSet // by affixPrefix and so on
	grams    [len(gramLengths)]map[uint64]int32
	ranges   *intervalSet
	networks *networkSet

	containers int32 // how many ranges and address blocks there are
}

const (
	// maxLooks and minLooks say how often a value may be compared with a range or an address block before all of these are looked for among the
	// sorted values instead: 16 times as often as there are ranges and blocks, and 4,096 times.
	maxLooks = 16
	minLooks = 4096
)

// The places of affixes.
const (
	affixPrefix = iota
	affixSuffix
	affixFoldedPrefix
	affixFoldedSuffix
)

func (v *valueIndex) find(s *scratch, l *layerState, e *entry) {
	l.hit(v.present)
	switch e.kind {
	case 'n':
		l.hit(v.null)
	case 't':
		l.hit(v.yes)
	case 'f':
		l.hit(v.no)
	case '0':
		v.findNumber(l, &e.number)
	case '"':
		v.findText(s, l, e)
	}
}

func (v *valueIndex) findNumber(l *layerState, n *number) {
	if n.tail == "" {
		if predicate, ok := v.numbers[n.key()]; ok {
			l.hit(predicate)
		}
	} else if predicate, ok := v.longer[*n]; ok {
		l.hit(predicate)
	}
}

// findContainers finds the ranges and address blocks that contain a value, and returns how many it has looked at.
func (v *valueIndex) findContainers(s *scratch, l *layerState, e *entry) int32 {
	switch {
	case e.kind == '0' && v.ranges != nil:
		return v.ranges.find(l, &e.number, 0, len(v.ranges.nodes))
	case e.kind == '"' && v.networks != nil:
		if address, ok := s.address(e); ok {
			return v.networks.find(l, address)
		}
	}
	return 0
}

// sweep finds the ranges and address blocks that contain any of the values in a table.
func (v *valueIndex) sweep(l *layerState, t *table) {
	if v.ranges != nil {
		for i := range v.ranges.nodes {
			if t.hasNumberIn(&v.ranges.nodes[i].interval) {
				l.hit(v.ranges.nodes[i].predicate)
			}
		}
	}
	if v.networks != nil {
		for block, predicate := range v.networks.predicates {
			if t.hasAddressIn(block) {
				l.hit(predicate)
			}
		}
	}
}

func (v *valueIndex) findText(s *scratch, l *layerState, e *entry) {
	if v.exact != nil {
		if predicate, ok := v.exact[string(e.text)]; ok {
			l.hit(predicate)
		}
	}
	if v.affixes[affixPrefix] != nil {
		v.affixes[affixPrefix].find(l, e.text)
	}
	if v.affixes[affixSuffix] != nil {
		v.affixes[affixSuffix].find(l, s.reverse(e.text))
	}
	if v.folded != nil || v.affixes[affixFoldedPrefix] != nil || v.affixes[affixFoldedSuffix] != nil {
		folded := s.fold(e)
		if predicate, ok := v.folded[string(folded)]; ok {
			l.hit(predicate)
		}
		if v.affixes[affixFoldedPrefix] != nil {
			v.affixes[affixFoldedPrefix].find(l, folded)
		}
		if v.affixes[affixFoldedSuffix] != nil {
			v.affixes[affixFoldedSuffix].find(l, s.reverse(folded))
		}
	}
	for i, length := range gramLengths {
		if v.grams[i] == nil {
			continue
		}
		for start := 0; start+length <= len(e.text); start++ {
			if predicate, ok := v.grams[i][gram(e.text[start:], length)]; ok {
				l.hit(predicate)
			}
		}
	}
}

// An affixSet finds the prefixes of a text. Suffixes are stored, and looked up, in reverse.
type affixSet struct {
	affixes    []affix // sorted by text
	predicates []int32
}

type affix struct {
	text   string
	parent int32 // the longest other affix that this one begins with, or none
}

func newAffixSet(predicates map[string]int32, reverse bool) *affixSet {
	if len(predicates) == 0 {
		return nil
	}
	set := &affixSet{affixes: make([]affix, 0, len(predicates))}
	byText := predicates
	if reverse {
		byText = make(map[string]int32, len(predicates))
		for text, predicate := range predicates {
			byText[string(appendReverse(nil, []byte(text)))] = predicate
		}
	}
	for text := range byText {
		set.affixes = append(set.affixes, affix{text: text, parent: none})
	}
	slices.SortFunc(set.affixes, func(a, b affix) int { return strings.Compare(a.text, b.text) })
	set.predicates = make([]int32, len(set.affixes))
	for i := range set.affixes {
		text := set.affixes[i].text
		set.predicates[i] = byText[text]
		parent := int32(i) - 1
		for parent != none && !strings.HasPrefix(text, set.affixes[parent].text) {
			parent = set.affixes[parent].parent
		}
		set.affixes[i].parent = parent
	}
	return set
}

// find looks for the last affix that is not after the text. Whatever the text begins with is that affix or among its parents: from the first of
// them that the text begins with, all further ones are, too.
func (set *affixSet) find(l *layerState, text []byte) {
	low, high := 0, len(set.affixes)
	for low < high {
		middle := int(uint(low+high) >> 1)
		if set.affixes[middle].text <= string(text) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	i := int32(low) - 1
	if i == none {
		return
	}
	common := commonPrefix(set.affixes[i].text, text)
	for i != none && len(set.affixes[i].text) > common {
		i = set.affixes[i].parent
	}
	for i != none {
		l.hit(set.predicates[i])
		i = set.affixes[i].parent
	}
}

func commonPrefix(a string, b []byte) int {
	length := min(len(a), len(b))
	for i := range length {
		if a[i] != b[i] {
			return i
		}
	}
	return length
}

// reverse returns the bytes of a text from the last to the first, until it is called again.
func (s *scratch) reverse(text []byte) []byte {
	s.reversed = appendReverse(s.reversed[:0], text)
	return s.reversed
}

func appendReverse(to, text []byte) []byte {
	for i := len(text) - 1; i >= 0; i-- {
		to = append(to, text[i])
	}
	return to
}

// gramLengths are the lengths of the pieces by which wildcards are found whose ends are common or empty: long ones are rarer, short ones are in
// more wildcards.
var gramLengths = [...]int{3, 5, 8}

// gram returns the first bytes of a text, up to 8, as a key.
func gram[T string | []byte](text T, length int) uint64 {
	var key uint64
	for i := range length {
		key = key<<8 | uint64(text[i])
	}
	return key
}

// An intervalSet finds the intervals that contain a number: an interval tree whose nodes are sorted by the lower end.
type intervalSet struct {
	nodes []intervalNode
}

type intervalNode struct {
	interval  interval
	predicate int32
	furthest  int32 // the node of the subtree whose upper end is the highest
}

func newIntervalSet(intervals []intervalNode) *intervalSet {
	if len(intervals) == 0 {
		return nil
	}
	slices.SortFunc(intervals, func(a, b intervalNode) int { return compareLow(a.interval.low, b.interval.low) })
	set := &intervalSet{nodes: intervals}
	set.link(0, len(intervals))
	return set
}

// link sets furthest in the subtree of nodes from low to before high, whose root is in the middle.
func (set *intervalSet) link(low, high int) int32 {
	if low == high {
		return none
	}
	middle := int32((low + high) / 2)
	furthest := middle
	for _, other := range []int32{set.link(low, int(middle)), set.link(int(middle)+1, high)} {
		if other != none && compareHigh(set.nodes[other].interval.high, set.nodes[furthest].interval.high) > 0 {
			furthest = other
		}
	}
	set.nodes[middle].furthest = furthest
	return furthest
}

// find returns how many nodes it has looked at.
func (set *intervalSet) find(l *layerState, n *number, low, high int) (looks int32) {
	for low < high {
		looks++
		middle := (low + high) / 2
		root := &set.nodes[middle]
		if !set.nodes[root.furthest].interval.below(n) {
			return looks
		}
		looks += set.find(l, n, low, middle)
		if !root.interval.above(n) {
			return looks
		}
		if root.interval.below(n) {
			l.hit(root.predicate)
		}
		low = middle + 1
	}
	return looks
}

func compareLow(a, b *bound) int {
	if a == nil || b == nil {
		return cmp.Compare(edge(a), edge(b))
	}
	if order := compareNumbers(&a.number, &b.number); order != 0 {
		return order
	}
	return cmp.Compare(edge(a), edge(b))
}

func compareHigh(a, b *bound) int {
	if a == nil || b == nil {
		return cmp.Compare(edge(b), edge(a))
	}
	if order := compareNumbers(&a.number, &b.number); order != 0 {
		return order
	}
	return cmp.Compare(edge(b), edge(a))
}

// edge orders the ends of intervals at the same number, from the one that reaches furthest: infinite, closed, open.
func edge(b *bound) int {
	switch {
	case b == nil:
		return 0
	case !b.open:
		return 1
	default:
		return 2
	}
}

// A networkSet finds the address blocks that contain an address.
type networkSet struct {
	predicates map[netip.Prefix]int32
	bits4      []int // the lengths of IPv4 prefixes that there are
	bits6      []int
}

func newNetworkSet(predicates map[netip.Prefix]int32) *networkSet {
	if len(predicates) == 0 {
		return nil
	}
	set := &networkSet{predicates: predicates}
	for prefix := range predicates {
		bits := &set.bits6
		if prefix.Addr().Is4() {
			bits = &set.bits4
		}
		if !slices.Contains(*bits, prefix.Bits()) {
			*bits = append(*bits, prefix.Bits())
		}
	}
	return set
}

// find returns how many lengths it has looked for.
func (set *networkSet) find(l *layerState, address netip.Addr) int32 {
	lengths := set.bits6
	if address.Is4() {
		lengths = set.bits4
	}
	for _, bits := range lengths {
		prefix, _ := address.Prefix(bits)
		if predicate, ok := set.predicates[prefix]; ok {
			l.hit(predicate)
		}
	}
	return int32(len(lengths))
}
