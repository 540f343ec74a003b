package match

import (
	"maps"
	"slices"
	"sync"
)

const (
	// layers is how many layers an index has: the base, and the changes since.
	layers = 2
	// minChanges and changesShare say how many changed filters an index keeps beside its base before Update builds a new base: 1,000, or a
	// 32nd of the base.
	minChanges   = 1000
	changesShare = 32
)

// An Index finds the filters that match an event. It is immutable, and safe for concurrent use. Its memory is shared with the indexes that
// Update makes of it.
type Index struct {
	root    *node
	base    []*Filter         // by id; nil matches nothing
	changes map[int32]*Filter // instead of those of the base; nil matches nothing
	hidden  []uint64          // the ids in changes, as a set of bits; nil if there are none
	layers  [layers]*layer
	size    int
	nodes   int32
	fields  int32
}

// NewIndex compiles filters. The id of each is its position; nil stands for an id without a filter. Equal filters are stored and evaluated once.
func NewIndex(filters []*Filter) *Index {
	x := &Index{base: slices.Clone(filters), size: len(filters)}
	t := &trie{}
	x.root = t.node()
	ids := make([]int32, len(filters))
	for i := range ids {
		ids[i] = int32(i)
	}
	x.layers[0] = buildLayer(t, x.root, 0, x.base, ids)
	x.nodes, x.fields = t.nodes, t.fields
	return x
}

// Update returns an index in which some ids have other filters: nil removes, and an id that is not below Len adds one, and makes room for all
// below it. It leaves x as it is, and takes time for the filters changed since the base was built. When these are many it builds a new base,
// which takes as long as NewIndex, once in at least a thousand changes; callers with many changes make them in one call.
func (x *Index) Update(changes map[int32]*Filter) *Index {
	all := maps.Clone(x.changes)
	if all == nil {
		all = make(map[int32]*Filter, len(changes))
	}
	size := x.size
	for id, filter := range changes {
		all[id] = filter
		size = max(size, int(id)+1)
	}
	if len(all) > max(minChanges, len(x.base)/changesShare) {
		filters := slices.Grow(slices.Clone(x.base), size-len(x.base))[:size]
		for id, filter := range all {
			filters[id] = filter
		}
		return NewIndex(filters)
	}
	next := &Index{base: x.base, changes: all, size: size}
	next.layers[0] = x.layers[0]
	next.hidden = make([]uint64, size/64+1)
	var filters []*Filter
	ids := slices.Sorted(maps.Keys(all))
	for _, id := range ids {
		next.hidden[id/64] |= 1 << (id % 64)
		filters = append(filters, all[id])
	}
	t := &trie{nodes: x.layers[0].nodes, fields: x.layers[0].fields, owned: map[int32]bool{}}
	next.root = t.own(x.layers[0].root)
	next.layers[1] = buildLayer(t, next.root, 1, filters, ids)
	next.nodes, next.fields = t.nodes, t.fields
	return next
}

// Len returns the number of ids: one more than the highest.
func (x *Index) Len() int {
	return x.size
}

// Filter returns the filter of an id, or nil if there is none.
func (x *Index) Filter(id int32) *Filter {
	if filter, changed := x.changes[id]; changed {
		return filter
	}
	if int(id) < len(x.base) {
		return x.base[id]
	}
	return nil
}

// Match appends to into the ids of the filters that want an event, ascending and each once, and returns it. The event is a JSON object, as
// PostgreSQL or the service has checked it: members that no filter looks at are passed over, not checked again. A text that turns out to be no JSON object matches
// those filters only that want every event of the topic. An event that nobody can read (nil) may be wanted by every filter of its topic.
func (x *Index) Match(topic string, event []byte, into []int32) []int32 {
	if event == nil {
		return x.matchTopic(topic, into)
	}
	s, _ := scratches.Get().(*scratch)
	into = s.match(x, topic, event, into)
	scratches.Put(s)
	return into
}

// matchTopic appends the ids of the filters that take events of a topic, whatever is in these. It looks at every filter.
func (x *Index) matchTopic(topic string, into []int32) []int32 {
	words := appendWords(nil, topic)
	for id := range int32(x.size) {
		f := x.Filter(id)
		if f == nil {
			continue
		}
		takes := func(p topicPattern) bool { return p.matches(words) }
		if len(f.topics) == 0 || slices.ContainsFunc(f.topics, takes) {
			into = append(into, id)
		}
	}
	return into
}

func (s *scratch) match(x *Index, topic string, event []byte, into []int32) []int32 {
	s.begin(x, topic, event)
	for i := range s.layers {
		s.layers[i].findTopics(s.words)
	}
	valid := true
	if x.root.inner {
		s.entries = append(s.entries, entry{kind: '{', node: x.root, within: none})
		valid = s.next() == '{'
		if valid {
			s.position++
			valid = s.object(x.root, 0, 1)
		}
	}
	for _, sweep := range s.swept {
		sweep.values.sweep(&s.layers[sweep.layer], s.table(sweep.field))
	}
	start := len(into)
	for i := range s.layers {
		into = s.evaluate(&s.layers[i], valid, i == 0, into)
	}
	into = s.sort(into, start)
	s.end()
	return into
}

var scratches = sync.Pool{New: func() any { return &scratch{} }}

// A scratch is the memory that one Match needs. Values of an earlier event are told by their epoch, so that nothing has to be cleared.
type scratch struct {
	index *Index
	epoch uint32

	topic    string
	words    []string
	event    []byte
	position int
	buffer   []byte // unescaped and folded texts
	reversed []byte

	entries     []entry // the event, as far as filters look at it; the first is the whole
	slots       []slot  // by field
	objects     []uint32
	several     bool // filters look into a place at which there are several objects
	members     []member
	tables      []table
	isLarge     bool // every event is compared as a large one: for tests
	comparisons int  // of this event: of values with alternatives
	byPlace     *columns
	swept       []sweep

	layers [layers]layerState
	sorted []uint64
}

// A slot leads to the values at a node, of the event of its epoch.
type slot struct {
	epoch uint32
	last  int32
	count int32
	table int32         // its table, or none
	looks [layers]int32 // for ranges and address blocks that contain its values; negative when all of these are looked for at the end
}

// A sweep is the ranges and address blocks of a field that are looked for among the values, because these are too many to be looked up.
type sweep struct {
	values *valueIndex
	layer  int
	field  int32
}

type layerState struct {
	*layer
	epoch      uint32
	hits       []uint32 // by access predicate of many conjunctions: the epoch in which it was fulfilled
	seen       []uint32 // by conjunction: the epoch in which it became a candidate
	candidates []int32
	results    []uint32 // by condition: epoch and result
	byTopicSet []uint32 // by topic set: epoch and result
	matched    []uint32 // by filter: the epoch in which it matched
}

// maxEpoch leaves a bit for a result.
const maxEpoch = 1<<31 - 1

func (s *scratch) begin(x *Index, topic string, event []byte) {
	s.epoch++
	if s.epoch > maxEpoch {
		*s = scratch{epoch: 1, isLarge: s.isLarge}
	}
	s.index, s.topic, s.event, s.position = x, topic, event, 0
	s.comparisons = 0
	s.words = appendWords(s.words[:0], topic)
	s.slots = grown(s.slots, int(x.fields))
	s.objects = grown(s.objects, int(x.nodes))
	for i, layer := range x.layers {
		l := &s.layers[i]
		if layer == nil {
			l.layer = nil
			continue
		}
		l.layer, l.epoch = layer, s.epoch
		l.hits = grown(l.hits, len(layer.offsets))
		l.seen = grown(l.seen, len(layer.conjunctions))
		l.results = grown(l.results, len(layer.conditions))
		l.byTopicSet = grown(l.byTopicSet, len(layer.topicSets))
		l.matched = grown(l.matched, layer.filters())
	}
}

func (s *scratch) end() {
	const largeEntries, largeBuffer = 1 << 12, 1 << 20
	clear(s.entries)
	s.index, s.topic, s.event, s.several = nil, "", nil, false
	s.entries = s.entries[:0]
	if cap(s.entries) > largeEntries {
		s.entries = nil
	}
	s.buffer = s.buffer[:0]
	if cap(s.buffer) > largeBuffer {
		s.buffer = nil
	}
	clear(s.tables)
	clear(s.swept)
	s.byPlace = nil
	s.tables, s.swept = s.tables[:0], s.swept[:0]
	clear(s.words)
	for i := range s.layers {
		s.layers[i].layer, s.layers[i].candidates = nil, s.layers[i].candidates[:0]
	}
}

func grown[T any](slice []T, length int) []T {
	if len(slice) >= length {
		return slice
	}
	return append(slice, make([]T, length-len(slice))...)
}

// hit makes the conjunctions of an access predicate, or of none, candidates.
func (l *layerState) hit(predicate int32) {
	if predicate != none {
		l.post(predicate)
	}
}

func (l *layerState) post(predicate int32) {
	posted := l.posted[l.offsets[predicate]:l.offsets[predicate+1]]
	if len(posted) > 1 {
		if l.hits[predicate] == l.epoch {
			return
		}
		l.hits[predicate] = l.epoch
	}
	for _, conjunction := range posted {
		if l.seen[conjunction] != l.epoch {
			l.seen[conjunction] = l.epoch
			l.candidates = append(l.candidates, conjunction)
		}
	}
}

func (l *layerState) findTopics(words []string) {
	if l.layer == nil {
		return
	}
	l.hit(l.always)
	if isOwn(words) {
		if own := l.topics.words[ownWord]; own != nil {
			l.findTopic(own, words[1:])
		}
		return
	}
	l.findTopic(l.topics, words)
}

func (l *layerState) findTopic(n *topicNode, words []string) {
	if len(words) == 0 {
		l.hit(n.end)
		return
	}
	l.hit(n.tail)
	if next := n.words[words[0]]; next != nil {
		l.findTopic(next, words[1:])
	}
	if n.any != nil {
		l.findTopic(n.any, words[1:])
	}
}

// evaluate appends the ids of the filters of a layer that match.
func (s *scratch) evaluate(l *layerState, valid, base bool, into []int32) []int32 {
	if l.layer == nil {
		return into
	}
	for _, candidate := range l.candidates {
		c := &l.conjunctions[candidate]
		if l.matched[c.filter] == s.epoch || !valid && c.count > 0 || !s.holds(l, c) {
			continue
		}
		l.matched[c.filter] = s.epoch
		for _, id := range l.idsOf(c.filter) {
			if !base || s.index.hidden == nil || s.index.hidden[id/64]&(1<<(id%64)) == 0 {
				into = append(into, id)
			}
		}
	}
	return into
}

// sort orders the ids from start on: few by comparing, many by a set of bits.
func (s *scratch) sort(ids []int32, start int) []int32 {
	const many = 128
	found := ids[start:]
	if len(found) < many {
		slices.Sort(found)
		return ids
	}
	s.sorted = grown(s.sorted, s.index.size/64+1)
	for _, id := range found {
		s.sorted[id/64] |= 1 << (id % 64)
	}
	found = found[:0]
	for i, word := range s.sorted[:s.index.size/64+1] {
		if word == 0 {
			continue
		}
		for bit := range int32(64) {
			if word&(1<<bit) != 0 {
				found = append(found, int32(i)*64+bit)
			}
		}
		s.sorted[i] = 0
	}
	return ids
}
