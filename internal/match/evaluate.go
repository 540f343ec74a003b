package match

// holds tells whether all conditions of a candidate hold together.
func (s *scratch) holds(l *layerState, c *compiled) bool {
	if c.topics != none && !s.topicHolds(l, c.topics) {
		return false
	}
	references := l.references[c.first : c.first+c.count]
	together := c.shared && s.several
	for _, reference := range references {
		if reference == c.implied {
			continue
		}
		// With several objects at one place, a member may be absent from one of them though it is present in another.
		if !s.conditionHolds(l, reference) && (!together || !l.conditions[reference].absent) {
			return false
		}
	}
	return !together || s.holdTogether(l, references)
}

func (s *scratch) topicHolds(l *layerState, set int32) bool {
	memo := &l.byTopicSet[set]
	if *memo>>1 != s.epoch {
		*memo = s.epoch << 1
		for i := range l.topicSets[set] {
			if l.topicSets[set][i].matches(s.words) {
				*memo |= 1
				break
			}
		}
	}
	return *memo&1 != 0
}

// conditionHolds tells whether a condition holds for any value at its path, or none. A condition that several candidates share is evaluated once.
func (s *scratch) conditionHolds(l *layerState, reference int32) bool {
	memo := &l.results[reference]
	if *memo>>1 != s.epoch {
		*memo = s.epoch << 1
		if s.evaluateCondition(&l.conditions[reference]) {
			*memo |= 1
		}
	}
	return *memo&1 != 0
}

func (s *scratch) evaluateCondition(c *placedCondition) bool {
	slot := s.slots[c.field]
	if slot.epoch != s.epoch {
		return c.absent
	}
	if s.isLarge || int(slot.count)*c.weight >= manyComparisons {
		return c.among(s, s.table(c.field))
	}
	s.comparisons += int(slot.count) * c.weight
	for i := slot.last; i != none; i = s.entries[i].earlier {
		if c.accepts(s, &s.entries[i]) {
			return true
		}
	}
	return false
}

// A member is the state that holdTogether has of one member of an object: of its value, or of the objects within.
type member struct {
	node        int32
	leaf        bool
	first, last int32 // its conditions
	holds       bool
	present     bool // there is a value at the path of one of its conditions
}

// holdTogether tells whether the conditions hold for values that lie within the same element of each array around them. The conditions are sorted
// by their paths, and the event is a tree, so that each of its objects is looked at once.
func (s *scratch) holdTogether(l *layerState, references []int32) bool {
	if s.isLarge || len(s.entries) >= manyEntries {
		return s.columns().holdTogether(s, l, references)
	}
	holds, _, _ := s.objectHolds(l, references, 0, 0)
	return holds
}

// objectHolds compares an object with the conditions whose paths lead through it. It tells whether all hold, whether any of them holds by a value
// that is there, and whether any of them has a value in this object at all.
func (s *scratch) objectHolds(l *layerState, references []int32, depth int, object int32) (holds, anchored, present bool) {
	base := len(s.members)
	for i, reference := range references {
		path := l.conditions[reference].path
		node, leaf := path[depth], len(path) == depth+1
		if last := len(s.members) - 1; last >= base && s.members[last].node == node {
			s.members[last].last++
			continue
		}
		s.members = append(s.members, member{node: node, leaf: leaf, first: int32(i), last: int32(i) + 1})
	}
	end := len(s.members)
	for i := s.entries[object].within; i != none; i = s.entries[i].sibling {
		e := &s.entries[i]
		found := s.memberOf(base, end, e.node.id)
		if found == end || s.members[found].node != e.node.id || s.members[found].leaf == (e.kind == '{') {
			continue
		}
		m := s.members[found]
		if m.leaf {
			m.present = true
			m.holds = m.holds || l.conditions[references[m.first]].accepts(s, e)
		} else if !m.holds {
			all, some, value := s.objectHolds(l, references[m.first:m.last], depth+1, i)
			m.holds = all && some
			m.present = m.present || value
		}
		s.members[found] = m
	}
	holds = true
	for _, m := range s.members[base:end] {
		anchored = anchored || m.holds
		present = present || m.present
		if !m.holds && (m.present || !l.allAbsent(references[m.first:m.last])) {
			holds = false
		}
	}
	s.members = s.members[:base]
	return holds, anchored, present
}

// memberOf returns the first member from base on whose id of a node is not below this one. They are sorted, as the conditions are.
func (s *scratch) memberOf(base, end int, node int32) int {
	for base < end {
		middle := int(uint(base+end) >> 1)
		if s.members[middle].node < node {
			base = middle + 1
		} else {
			end = middle
		}
	}
	return base
}

// allAbsent tells whether conditions hold without any value.
func (l *layer) allAbsent(references []int32) bool {
	for _, reference := range references {
		if !l.conditions[reference].absent {
			return false
		}
	}
	return true
}
