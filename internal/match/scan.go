package match

import (
	"bytes"
	"net/netip"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	none = int32(-1)
	// maxEventDepth bounds the recursion; jsontext has the same bound.
	maxEventDepth = 10000
	// linearNames is up to how many members of an object are looked for one by one.
	linearNames = 6
)

// A node is a place in events that filters look at: the path from the root of the trie to it.
type node struct {
	id     int32
	field  int32 // numbers the nodes whose values are compared, or none
	inner  bool  // there are nodes below
	names  []string
	kids   []*node
	byName map[string]*node // the nodes below instead of names and kids, if there are many
	values [layers]*valueIndex
}

func (n *node) child(name []byte) *node {
	if n.byName != nil {
		return n.byName[string(name)]
	}
	for i, candidate := range n.names {
		if candidate == string(name) {
			return n.kids[i]
		}
	}
	return nil
}

// An entry is a value of the event at a place that filters look at: a scalar, or an object ('{') that has such places within.
type entry struct {
	kind    byte // as jsontext.Kind
	folds   bool // folded is set
	parses  bool // address is set, or invalid
	node    *node
	parent  int32 // the object around it, which comes before it
	sibling int32 // the entry before it within the same object, arrays in between not counted
	within  int32 // the last entry in this object
	earlier int32 // the entry before it at the same node
	text    []byte
	number  number
	folded  []byte
	address netip.Addr
}

// object reads an object from after its brace on, and adds the members that filters look at to the entry parent. The functions that read return false when the
// text is no JSON, or nested too deeply. They look no closer than they have to: text that is skipped is trusted.
func (s *scratch) object(n *node, parent int32, depth int) bool {
	if depth > maxEventDepth {
		return false
	}
	for first := true; ; first = false {
		switch s.next() {
		case '}':
			s.position++
			return first
		case '"':
		default:
			return false
		}
		name, ok := s.string()
		if !ok || s.next() != ':' {
			return false
		}
		s.position++
		if child := n.child(name); child == nil {
			ok = s.skip()
		} else {
			ok = s.value(child, parent, depth)
		}
		if !ok {
			return false
		}
		switch s.next() {
		case ',':
			s.position++
		case '}':
			s.position++
			return true
		default:
			return false
		}
	}
}

func (s *scratch) value(n *node, parent int32, depth int) bool {
	switch c := s.next(); c {
	case '{':
		if !n.inner {
			return s.skip()
		}
		s.position++
		if s.objects[n.id] == s.epoch {
			s.several = true
		}
		s.objects[n.id] = s.epoch
		return s.object(n, s.add(n, parent, entry{kind: '{'}), depth+1)
	case '[':
		s.position++
		return s.array(n, parent, depth+1)
	case '"':
		if n.field == none {
			return s.skip()
		}
		text, ok := s.string()
		if ok {
			s.scalar(n, parent, entry{kind: '"', text: text})
		}
		return ok
	case 't', 'f', 'n':
		if !s.skip() {
			return false
		}
		if n.field != none {
			s.scalar(n, parent, entry{kind: c})
		}
		return true
	default:
		if n.field == none {
			return s.skip()
		}
		number, length, ok := parseNumber(s.event[s.position:])
		s.position += length
		if ok {
			s.scalar(n, parent, entry{kind: '0', number: number})
		}
		return ok
	}
}

func (s *scratch) array(n *node, parent int32, depth int) bool {
	if depth > maxEventDepth {
		return false
	}
	if s.next() == ']' {
		s.position++
		return true
	}
	for {
		if !s.value(n, parent, depth) {
			return false
		}
		switch s.next() {
		case ',':
			s.position++
		case ']':
			s.position++
			return true
		default:
			return false
		}
	}
}

func (s *scratch) add(n *node, parent int32, e entry) int32 {
	index := int32(len(s.entries))
	e.node, e.parent, e.within = n, parent, none
	e.sibling = s.entries[parent].within
	s.entries[parent].within = index
	s.entries = append(s.entries, e)
	return index
}

// scalar adds a value that is compared, and the candidates that it is the access predicate of.
func (s *scratch) scalar(n *node, parent int32, e entry) {
	field := &s.slots[n.field]
	if field.epoch != s.epoch {
		*field = slot{epoch: s.epoch, last: none, table: none}
	} else if e.repeats(&s.entries[field.last], parent) {
		return
	}
	e.earlier = field.last
	index := s.add(n, parent, e)
	field.last = index
	field.count++
	for i, values := range n.values {
		if values == nil {
			continue
		}
		values.find(s, &s.layers[i], &s.entries[index])
		if values.containers > 0 && field.looks[i] >= 0 {
			s.findContainers(values, i, &s.entries[index])
		}
	}
}

// findContainers finds the ranges and address blocks that contain a value, unless there were too many values.
func (s *scratch) findContainers(values *valueIndex, layer int, e *entry) {
	looks := &s.slots[e.node.field].looks[layer]
	*looks += values.findContainers(s, &s.layers[layer], e)
	if s.isLarge || *looks > values.containers*maxLooks+minLooks {
		*looks = -1
		s.swept = append(s.swept, sweep{values: values, layer: layer, field: e.node.field})
	}
}

// repeats tells whether a value is the one before it once more, in an array of the same object.
func (e *entry) repeats(before *entry, parent int32) bool {
	return before.parent == parent && before.kind == e.kind && bytes.Equal(before.text, e.text) && before.number == e.number
}

// next returns the next byte that is no white space, or 0.
func (s *scratch) next() byte {
	for ; s.position < len(s.event); s.position++ {
		if c := s.event[s.position]; c > ' ' {
			return c
		}
	}
	return 0
}

// skip passes over a value.
func (s *scratch) skip() bool {
	switch s.next() {
	case 0:
		return false
	case '"':
		end := stringEnd(s.event, s.position+1)
		s.position = end
		return end > 0
	case '{', '[':
		return s.skipNested()
	}
	start := s.position
	for ; s.position < len(s.event); s.position++ {
		switch s.event[s.position] {
		case ',', '}', ']', ' ', '\t', '\n', '\r':
			return s.position > start
		}
	}
	return s.position > start
}

func (s *scratch) skipNested() bool {
	depth := 0
	for i := s.position; i < len(s.event); i++ {
		switch s.event[i] {
		case '"':
			end := stringEnd(s.event, i+1)
			if end < 0 {
				return false
			}
			i = end - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				s.position = i + 1
				return true
			}
		}
	}
	return false
}

// string reads a string, whose quotation mark comes next.
func (s *scratch) string() ([]byte, bool) {
	start := s.position
	end := stringEnd(s.event, start+1)
	if end < 0 {
		return nil, false
	}
	s.position = end
	text := s.event[start+1 : end-1]
	if bytes.IndexByte(text, '\\') < 0 {
		return text, true
	}
	from := len(s.buffer)
	var err error
	s.buffer, err = jsontext.AppendUnquote(s.buffer, s.event[start:end])
	return s.buffer[from:], err == nil
}

// stringEnd returns the index after the quotation mark that ends a string, or -1.
func stringEnd(text []byte, from int) int {
	for start := from; ; {
		i := bytes.IndexByte(text[start:], '"')
		if i < 0 {
			return -1
		}
		quote := start + i
		backslashes := 0
		for quote-backslashes > from && text[quote-backslashes-1] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 {
			return quote + 1
		}
		start = quote + 1
	}
}

// fold returns the text of an entry, folded.
func (s *scratch) fold(e *entry) []byte {
	if !e.folds {
		from := len(s.buffer)
		s.buffer = appendFold(s.buffer, e.text)
		e.folded, e.folds = s.buffer[from:], true
	}
	return e.folded
}

// address returns the IP address that the text of an entry is.
func (s *scratch) address(e *entry) (netip.Addr, bool) {
	if !e.parses {
		e.parses = true
		e.address, _ = parseAddress(e.text)
	}
	return e.address, e.address.IsValid()
}
