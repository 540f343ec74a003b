package match

import (
	"bytes"
	"cmp"
	"math/bits"
	"slices"
	"sort"
	"strings"
)

// manyEntries is from how many entries of an event on conditions that have to hold together are evaluated for all of its objects at once.
const manyEntries = 256

// maxRemembered bounds the memory of the conditions that are evaluated once an event, in words.
const maxRemembered = 4 << 20

// A bitset has a bit for each object at a node.
type bitset []uint64

func (b bitset) set(i int32)      { b[i/64] |= 1 << (i % 64) }
func (b bitset) has(i int32) bool { return b[i/64]&(1<<(i%64)) != 0 }

// columns index an event's values by path. objectHolds compares one object after the other; with columns, a few operations on bitsets compare all
// objects at a node.
type columns struct {
	objects    map[int32]*objectColumn // by node
	values     map[int32]*valueColumn  // by field
	conditions map[*placedCondition]bitset
	remembered int
	free       []bitset
}

type objectColumn struct {
	parents []int32 // of each object at the node: the number of the object around it
}

type valueColumn struct {
	entries []int32
	objects []int32 // of each entry: the number of the object that it is a member of
	single  bool    // no object has several of the entries
	present bitset
	sorted  bool
	texts   []placedText
	numbers []placedNumber
}

type placedText struct {
	key    uint64 // the first 8 bytes
	text   []byte
	object int32
}

type placedNumber struct {
	number *number
	object int32
}

// columns returns the columns of the event.
func (s *scratch) columns() *columns {
	if s.byPlace != nil {
		return s.byPlace
	}
	c := &columns{objects: map[int32]*objectColumn{}, values: map[int32]*valueColumn{}, conditions: map[*placedCondition]bitset{}}
	s.byPlace = c
	numbers := make([]int32, len(s.entries)) // of objects, at their nodes
	for i := range s.entries {
		e := &s.entries[i]
		parent := int32(0)
		if i > 0 {
			parent = numbers[e.parent]
		}
		if e.kind == '{' {
			column := c.objects[e.node.id]
			if column == nil {
				column = &objectColumn{}
				c.objects[e.node.id] = column
			}
			numbers[i] = int32(len(column.parents))
			column.parents = append(column.parents, parent)
			continue
		}
		column := c.values[e.node.field]
		if column == nil {
			column = &valueColumn{single: true}
			c.values[e.node.field] = column
		}
		if last := len(column.objects) - 1; last >= 0 && column.objects[last] == parent {
			column.single = false
		}
		column.entries, column.objects = append(column.entries, int32(i)), append(column.objects, parent)
	}
	return c
}

// bits returns a bitset for the objects at a node, without any.
func (c *columns) bits(objects int) bitset {
	words := (objects + 63) / 64
	for i := len(c.free) - 1; i >= 0; i-- {
		if b := c.free[i]; cap(b) >= words {
			c.free = slices.Delete(c.free, i, i+1)
			b = b[:words]
			clear(b)
			return b
		}
	}
	return make(bitset, words)
}

func (c *columns) release(sets ...bitset) { c.free = append(c.free, sets...) }

// holdTogether does for an event of many entries the same as the function of the same name for one of few.
func (c *columns) holdTogether(s *scratch, l *layerState, references []int32) bool {
	holds, anchored, present := c.objectsHold(s, l, references, 0, s.index.root.id)
	result := holds.has(0)
	c.release(holds, anchored, present)
	return result
}

// objectsHold returns, of the objects at a node, those in which all conditions hold, those in which any of them holds by a value that is there,
// and those in which any of them has a value at all.
func (c *columns) objectsHold(s *scratch, l *layerState, references []int32, depth int, node int32) (holds, anchored, present bitset) {
	objects := 0
	if column := c.objects[node]; column != nil {
		objects = len(column.parents)
	}
	holds, anchored, present = c.bits(objects), c.bits(objects), c.bits(objects)
	for i := range holds {
		holds[i] = ^uint64(0)
	}
	var last int
	for first := 0; first < len(references); first = last {
		condition := &l.conditions[references[first]]
		for last = first + 1; last < len(references) && l.conditions[references[last]].path[depth] == condition.path[depth]; {
			last++
		}
		absent := l.allAbsent(references[first:last])
		var holding, there bitset
		if len(condition.path) == depth+1 {
			holding, there = c.valuesHold(s, condition, objects)
		} else {
			within := condition.path[depth]
			all, some, value := c.objectsHold(s, l, references[first:last], depth+1, within)
			holding, there = c.bits(objects), c.bits(objects)
			for i := range all {
				all[i] &= some[i]
			}
			c.around(within, all, holding, objects)
			c.around(within, value, there, objects)
			c.release(all, some, value)
		}
		for i := range holds {
			if absent {
				holds[i] &= holding[i] | ^there[i]
			} else {
				holds[i] &= holding[i]
			}
			anchored[i] |= holding[i]
			present[i] |= there[i]
		}
		if len(condition.path) > depth+1 {
			c.release(holding, there)
		} else if c.conditions[condition] == nil {
			c.release(holding)
		}
	}
	return holds, anchored, present
}

// around adds the objects around some of those at a node.
func (c *columns) around(node int32, within, to bitset, objects int) {
	if objects == 1 {
		if slices.ContainsFunc(within, func(word uint64) bool { return word != 0 }) {
			to.set(0)
		}
		return
	}
	if len(within) == 0 {
		return
	}
	parents := c.objects[node].parents
	for i, word := range within {
		for ; word != 0; word &= word - 1 {
			to.set(parents[i*64+bits.TrailingZeros64(word)])
		}
	}
}

// valuesHold returns, of the objects around the values of a condition's field, those in which the condition holds for one of them, and those in
// which there is one.
func (c *columns) valuesHold(s *scratch, condition *placedCondition, objects int) (holding, there bitset) {
	column := c.values[condition.field]
	if column == nil {
		column = &valueColumn{single: true}
		c.values[condition.field] = column
	}
	if column.present == nil {
		column.present = make(bitset, (objects+63)/64)
		for _, object := range column.objects {
			column.present.set(object)
		}
	}
	if holding = c.conditions[condition]; holding != nil {
		return holding, column.present
	}
	holding = c.bits(objects)
	if condition.isOrdered(column.single) {
		column.sort(s)
		column.addAccepted(condition.condition, holding, c)
	} else {
		s.comparisons += len(column.entries) * condition.weight
		for i, entry := range column.entries {
			if object := column.objects[i]; !holding.has(object) && condition.accepts(s, &s.entries[entry]) {
				holding.set(object)
			}
		}
	}
	if c.remembered += len(holding); c.remembered <= maxRemembered {
		c.conditions[condition] = holding
	}
	return holding, column.present
}

// isOrdered tells whether the values for which a condition holds are ranges of sorted values, or, of those that no object has several of, all but
// such ranges.
func (c *condition) isOrdered(single bool) bool {
	if c.null || c.yes || c.no {
		return false
	}
	return !slices.ContainsFunc(c.others, func(a alternative) bool {
		switch a.kind {
		case kindInterval, kindPrefix:
			return false
		case kindAnythingBut:
			return !single || len(a.but.others) > 0 && a.but.others[0].kind != kindPrefix
		default:
			return true
		}
	})
}

func (v *valueColumn) sort(s *scratch) {
	if v.sorted {
		return
	}
	v.sorted = true
	for i, entry := range v.entries {
		switch e := &s.entries[entry]; e.kind {
		case '"':
			v.texts = append(v.texts, placedText{key: leadingBytes(e.text), text: e.text, object: v.objects[i]})
		case '0':
			v.numbers = append(v.numbers, placedNumber{number: &e.number, object: v.objects[i]})
		}
	}
	slices.SortFunc(v.texts, func(a, b placedText) int {
		if a.key != b.key {
			return cmp.Compare(a.key, b.key)
		}
		return bytes.Compare(a.text, b.text)
	})
	slices.SortFunc(v.numbers, func(a, b placedNumber) int { return compareNumbers(a.number, b.number) })
}

// addAccepted adds the objects that a condition that isOrdered holds in.
func (v *valueColumn) addAccepted(c *condition, to bitset, sets *columns) {
	if c.present {
		copy(to, v.present)
	}
	for _, text := range c.texts {
		v.addTexts(text, false, to)
	}
	v.addNumbers(c.numbers, to)
	for i := range c.others {
		switch a := &c.others[i]; a.kind {
		case kindInterval:
			v.addInterval(&a.interval, to)
		case kindPrefix:
			v.addTexts(a.text, true, to)
		default:
			excluded := sets.bits(len(to) * 64)
			for _, text := range a.but.texts {
				v.addTexts(text, false, excluded)
			}
			for _, prefix := range a.but.affixes {
				v.addTexts(prefix, true, excluded)
			}
			v.addNumbers(a.but.numbers, excluded)
			for i := range to {
				to[i] |= v.present[i] &^ excluded[i]
			}
			sets.release(excluded)
		}
	}
}

// addTexts adds the objects that have a text, or one that begins with it.
func (v *valueColumn) addTexts(text string, isPrefix bool, to bitset) {
	first := sort.Search(len(v.texts), func(i int) bool { return strings.Compare(string(v.texts[i].text), text) >= 0 })
	from := v.texts[first:]
	beyond := func(i int) bool { return !hasPrefix(from[i].text, text) || !isPrefix && len(from[i].text) != len(text) }
	for _, placed := range from[:sort.Search(len(from), beyond)] {
		to.set(placed.object)
	}
}

func (v *valueColumn) addNumbers(numbers []number, to bitset) {
	for i := range numbers {
		edge := &bound{number: numbers[i]}
		v.addInterval(&interval{low: edge, high: edge}, to)
	}
}

func (v *valueColumn) addInterval(within *interval, to bitset) {
	first := sort.Search(len(v.numbers), func(i int) bool { return within.above(v.numbers[i].number) })
	from := v.numbers[first:]
	for _, placed := range from[:sort.Search(len(from), func(i int) bool { return !within.below(from[i].number) })] {
		to.set(placed.object)
	}
}
