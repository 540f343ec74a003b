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
