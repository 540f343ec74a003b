package match

import (
	"maps"
	"slices"
	"strings"
)

// A layer is the compiled form of a list of filters.
type layer struct {
	root          *node // of the trie as it was when the layer was built
	nodes, fields int32

	conjunctions []compiled
	references   []int32 // the conditions of each conjunction, sorted by path
	conditions   []placedCondition
	topicSets    [][]topicPattern

	offsets []int32 // by access predicate: where its conjunctions begin in posted
	posted  []int32
	always  int32 // the predicate that every event fulfils
	topics  *topicNode

	idOffsets []int32 // by filter: where its ids begin
	ids       []int32
}

// compiled is a conjunction of a filter, as it is evaluated.
type compiled struct {
	filter       int32
	topics       int32 // the topic set to check, or none
	first, count int32 // its references
	implied      int32 // the condition that need not be checked, because its access predicate says the same; or none
	shared       bool  // some of its paths begin with the same member, so that array consistency matters
}

// A placedCondition is a condition with its place in the trie.
type placedCondition struct {
	*condition
	path  []int32 // the ids of the nodes
	field int32
}

func (l *layer) filters() int {
	return len(l.idOffsets) - 1
}

func (l *layer) idsOf(filter int32) []int32 {
	return l.ids[l.idOffsets[filter]:l.idOffsets[filter+1]]
}

// A trie makes nodes, and copies those that belong to an earlier index before they are changed.
type trie struct {
	nodes, fields int32
	owned         map[int32]bool // the copies; nil if all nodes are new
}

func (t *trie) node() *node {
	t.nodes++
	if t.owned != nil {
		t.owned[t.nodes-1] = true
	}
	return &node{id: t.nodes - 1, field: none}
}

func (t *trie) own(n *node) *node {
	if t.owned == nil || t.owned[n.id] {
		return n
	}
	t.owned[n.id] = true
	own := *n
	own.names, own.kids, own.byName = slices.Clone(n.names), slices.Clone(n.kids), maps.Clone(n.byName)
	return &own
}

// place returns the node at a path, and the ids of the nodes on the way.
func (t *trie) place(root *node, path []string) (*node, []int32) {
	ids := make([]int32, len(path))
	n := root
	for i, name := range path {
		n = t.descend(n, name)
		ids[i] = n.id
	}
	if n.field == none {
		n.field = t.fields
		t.fields++
	}
	return n, ids
}

func (t *trie) descend(n *node, name string) *node {
	kid := n.child([]byte(name))
	if kid != nil {
		own := t.own(kid)
		if n.byName != nil {
			n.byName[name] = own
		} else {
			n.kids[slices.Index(n.kids, kid)] = own
		}
		return own
	}
	kid = t.node()
	n.inner = true
	switch {
	case n.byName != nil:
		n.byName[name] = kid
	case len(n.kids) < linearNames:
		n.names, n.kids = append(n.names, name), append(n.kids, kid)
	default:
		n.byName = map[string]*node{name: kid}
		for i, name := range n.names {
			n.byName[name] = n.kids[i]
		}
		n.names, n.kids = nil, nil
	}
	return kid
}

// A builder builds one layer.
type builder struct {
	layer      *layer
	which      int
	trie       *trie
	root       *node
	predicates []predicate
	conditions map[string]int32
	access     []access // by condition
	costs      []int64  // of these
	fields     []*fieldBuilder
	byField    map[int32]*fieldBuilder
	topicSets  map[string]int32
	patterns   map[string]int32 // the predicates of topic patterns
	words      []*topicPattern
	posts      []post
}

// A predicate is a test that one look-up answers. An access predicate is one that conjunctions have been posted under.
type predicate struct {
	kind  int
	count int64 // the conjunctions that could be posted under it
	field *fieldBuilder
}

// An access is the predicates of which one is fulfilled whenever a condition holds; there are none if the condition can hold without a value.
type access struct {
	predicates []int32
	exactly    bool // and the condition holds whenever one of them is fulfilled
}

type post struct {
	predicate, conjunction int32
}

// The kinds of predicates, in the order in which they are preferred when they are equally rare.
const (
	predicateValue = iota
	predicateTopic
	predicateNetwork
	predicateAffix
	predicateGram
	predicateInterval
	predicatePresent
	predicateAlways
)

func buildLayer(t *trie, root *node, which int, filters []*Filter, ids []int32) *layer {
	b := &builder{
		layer: &layer{}, which: which, trie: t, root: root,
		conditions: make(map[string]int32, len(filters)), byField: map[int32]*fieldBuilder{}, topicSets: map[string]int32{}, patterns: map[string]int32{},
	}
	b.layer.always = b.predicate(predicateAlways, nil)
	unique := b.unique(filters, ids)
	for i, filter := range unique {
		b.add(int32(i), filter)
	}
	b.addOthers()
	b.count(unique)
	b.costs = make([]int64, len(b.layer.conditions))
	for reference := range b.costs {
		b.costs[reference] = b.cost(b.access[reference].predicates)
	}
	last := none
	var patterns []int32
	for i, conjunction := range b.layer.conjunctions {
		if last != conjunction.filter {
			last, patterns = conjunction.filter, b.patternsOf(unique[conjunction.filter])
		}
		b.choose(int32(i), patterns)
	}
	b.finish()
	return b.layer
}

// unique returns the filters without nil and equal ones, and notes the ids of each.
func (b *builder) unique(filters []*Filter, ids []int32) []*Filter {
	var unique []*Filter
	positions := make(map[string]int32, len(filters))
	of := make([]int32, len(filters))
	counts := []int32{}
	for i, filter := range filters {
		of[i] = none
		if filter == nil {
			continue
		}
		position, known := positions[string(filter.canonical)]
		if !known {
			position = int32(len(unique))
			positions[string(filter.canonical)] = position
			unique, counts = append(unique, filter), append(counts, 0)
		}
		of[i] = position
		counts[position]++
	}
	b.layer.idOffsets = offsets(counts)
	b.layer.ids = make([]int32, b.layer.idOffsets[len(unique)])
	next := slices.Clone(b.layer.idOffsets)
	for i, position := range of {
		if position != none {
			b.layer.ids[next[position]] = ids[i]
			next[position]++
		}
	}
	return unique
}

// offsets returns where each of consecutive lists begins, and where the last ends.
func offsets(lengths []int32) []int32 {
	result := make([]int32, len(lengths)+1)
	for i, length := range lengths {
		result[i+1] = result[i] + length
	}
	return result
}

// add adds the conjunctions of a filter.
func (b *builder) add(number int32, f *Filter) {
	topics := b.topicSet(f.topics)
	alternatives := f.alternatives
	if alternatives == nil {
		alternatives = []conjunction{nil}
	}
	for _, conjunction := range alternatives {
		c := compiled{filter: number, topics: topics, first: int32(len(b.layer.references)), count: int32(len(conjunction)), implied: none}
		for _, condition := range conjunction {
			b.layer.references = append(b.layer.references, b.condition(condition))
		}
		references := b.layer.references[c.first:]
		slices.SortFunc(references, func(x, y int32) int { return slices.Compare(b.layer.conditions[x].path, b.layer.conditions[y].path) })
		for i := 1; i < len(references); i++ {
			x, y := b.layer.conditions[references[i-1]].path, b.layer.conditions[references[i]].path
			c.shared = c.shared || x[0] == y[0]
		}
		b.layer.conjunctions = append(b.layer.conjunctions, c)
	}
}

func (b *builder) topicSet(patterns []topicPattern) int32 {
	if len(patterns) == 0 {
		return none
	}
	texts := make([]string, len(patterns))
	for i := range patterns {
		texts[i] = patterns[i].text
	}
	key := strings.Join(texts, " ")
	set, known := b.topicSets[key]
	if !known {
		set = int32(len(b.layer.topicSets))
		b.topicSets[key] = set
		b.layer.topicSets = append(b.layer.topicSets, patterns)
	}
	return set
}

func (b *builder) condition(c *condition) int32 {
	number, known := b.conditions[c.key]
	if known {
		return number
	}
	number = int32(len(b.layer.conditions))
	b.conditions[c.key] = number
	n, path := b.trie.place(b.root, c.path.names())
	b.layer.conditions = append(b.layer.conditions, placedCondition{condition: c, path: path, field: n.field})
	field := b.byField[n.field]
	if field == nil {
		field = newFieldBuilder(n)
		b.byField[n.field] = field
		b.fields = append(b.fields, field)
	}
	b.access = append(b.access, b.accessOf(field, c))
	return number
}

func (b *builder) predicate(kind int, field *fieldBuilder) int32 {
	b.predicates = append(b.predicates, predicate{kind: kind, field: field})
	return int32(len(b.predicates)) - 1
}

// count counts, for each predicate, the conjunctions that could be posted under it.
func (b *builder) count(unique []*Filter) {
	references := make([]int64, len(b.layer.conditions)) // a condition of many alternatives can be in many conjunctions
	for _, reference := range b.layer.references {
		references[reference]++
	}
	for reference, n := range references {
		for _, predicate := range b.access[reference].predicates {
			b.predicates[predicate].count += n
		}
	}
	conjunctions := make([]int64, len(unique))
	for i := range b.layer.conjunctions {
		conjunctions[b.layer.conjunctions[i].filter]++
	}
	for filter, n := range conjunctions {
		for i := range unique[filter].topics {
			b.predicates[b.pattern(&unique[filter].topics[i])].count += n
		}
	}
	b.predicates[b.layer.always].count = int64(len(b.layer.conjunctions))
}

// pattern returns the predicate of a topic pattern.
func (b *builder) pattern(p *topicPattern) int32 {
	predicate, known := b.patterns[p.text]
	if !known {
		predicate = b.predicate(predicateTopic, nil)
		b.patterns[p.text] = predicate
		b.words = append(b.words, p)
	}
	return predicate
}

// patternsOf returns the predicates of the topic patterns of a filter.
func (b *builder) patternsOf(f *Filter) []int32 {
	patterns := make([]int32, len(f.topics))
	for i := range f.topics {
		patterns[i] = b.pattern(&f.topics[i])
	}
	return patterns
}

// choose posts a conjunction under the predicates of the one condition, or of the topic patterns of its filter, that the fewest events are expected to
// fulfil for nothing.
func (b *builder) choose(number int32, patterns []int32) {
	c := &b.layer.conjunctions[number]
	best, cost := []int32{b.layer.always}, b.cost([]int32{b.layer.always})
	byTopic := false
	if c.topics != none {
		best, cost, byTopic = patterns, b.cost(patterns), true
	}
	for _, reference := range b.layer.references[c.first : c.first+c.count] {
		access := b.access[reference]
		if len(access.predicates) == 0 {
			continue
		}
		if other := b.costs[reference]; other < cost {
			best, cost, byTopic, c.implied = access.predicates, other, false, none
			if access.exactly {
				c.implied = reference
			}
		}
	}
	if byTopic {
		c.topics = none
	}
	for _, predicate := range best {
		b.posts = append(b.posts, post{predicate: predicate, conjunction: number})
	}
}

// cost estimates how many candidates an access by these predicates makes. An equality makes as many as have it. Of the prefixes and ranges of
// a member a value is expected to fulfil some share, each range being its own kind of equality otherwise.
func (b *builder) cost(predicates []int32) int64 {
	const (
		scale         = 16
		affixShare    = 64
		intervalShare = 4
	)
	var sum int64
	for _, number := range predicates {
		p := &b.predicates[number]
		count := p.count * scale
		switch p.kind {
		case predicateAffix, predicateGram:
			count += p.field.affixes * scale / affixShare
		case predicateInterval:
			count += p.field.intervals * scale / intervalShare
		}
		sum += count + int64(p.kind)
	}
	return sum
}

func (b *builder) finish() {
	counts := make([]int32, len(b.predicates))
	for _, post := range b.posts {
		counts[post.predicate]++
	}
	b.layer.offsets = offsets(counts)
	b.layer.posted = make([]int32, len(b.posts))
	next := slices.Clone(b.layer.offsets)
	for _, post := range b.posts {
		b.layer.posted[next[post.predicate]] = post.conjunction
		next[post.predicate]++
	}
	used := func(predicate int32) bool { return counts[predicate] > 0 }
	b.layer.topics = newTopicNode()
	for _, pattern := range b.words {
		if predicate := b.patterns[pattern.text]; used(predicate) {
			b.layer.topics.add(pattern, predicate)
		}
	}
	for _, field := range b.fields {
		field.node.values[b.which] = field.finish(used)
	}
	b.layer.root, b.layer.nodes, b.layer.fields = b.root, b.trie.nodes, b.trie.fields
}
