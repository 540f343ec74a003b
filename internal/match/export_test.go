package match

// Candidates returns how many conjunctions an event is compared with.
func Candidates(x *Index, topic string, event []byte) int {
	s := &scratch{}
	s.begin(x, topic, event)
	s.entries = append(s.entries, entry{kind: '{', node: x.root, within: none})
	for i := range s.layers {
		s.layers[i].findTopics(s.words)
	}
	s.position++
	s.object(x.root, 0, 1)
	return len(s.layers[0].candidates) + len(s.layers[1].candidates)
}

// MatchLarge answers as Match does, by the way in which events of many values are compared.
func MatchLarge(x *Index, topic string, event []byte) []int32 {
	return (&scratch{isLarge: true}).match(x, topic, event, nil)
}

// Comparisons returns how often a value of an event is compared with an alternative of a filter.
func Comparisons(x *Index, topic string, event []byte) int {
	s := &scratch{}
	s.match(x, topic, event, nil)
	return s.comparisons
}
