package match

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// The bounds of one filter. A filter beyond them is refused with an Error.
const (
	// MaxBytes bounds the topics and the match of a filter together.
	MaxBytes = 64 << 10
	// MaxTopics bounds the topic patterns of a filter.
	MaxTopics = 256
	// MaxDepth bounds the objects within objects of a match, those of $or counted, as the service bounds the depth of an event.
	MaxDepth = 64
	// MaxCombinations bounds the combinations that the $or of a match multiply to: two $or with 10 alternatives each are 100 combinations.
	MaxCombinations = 1000
	// MaxConditions bounds the members that are compared, summed up over all combinations.
	MaxConditions = 4096
	// MaxStars bounds the wildcards of a filter, summed up over its patterns.
	MaxStars = 1000

	// maxViolations bounds the list of one Error.
	maxViolations = 20
)

// A Filter says which events somebody wants. It is immutable, and safe for concurrent use.
type Filter struct {
	topics       []topicPattern // none: every topic
	alternatives []conjunction  // one of them has to hold; none: every event
	canonical    []byte
	index        func() *Index
}

// A conjunction is a list of conditions that have to hold together. Without $or a filter has one.
type conjunction []*condition

// A Violation is one reason why a filter is refused.
type Violation struct {
	Pointer string // a JSON pointer into {"topics": […], "match": {…}}
	Detail  string // what was wrong and what was expected
}

// An Error lists why a filter is refused, at most 20 reasons. Invalid JSON is one reason.
type Error struct {
	Violations []Violation
}

func (e *Error) Error() string {
	reasons := make([]string, len(e.Violations))
	for i, violation := range e.Violations {
		reasons[i] = violation.Pointer + ": " + violation.Detail
	}
	return "filter refused: " + strings.Join(reasons, "; ")
}

// Parse compiles a filter. Without topics (nil) it takes every topic; without a pattern (of length 0) it takes every event of its topics. The
// error is an *Error.
func Parse(topics []string, pattern []byte) (*Filter, error) {
	p := &parser{}
	size := len(pattern)
	for _, topic := range topics {
		size += len(topic)
	}
	if size > MaxBytes {
		p.refuse(nil, "the filter has %d bytes; expected at most %d", size, MaxBytes)
		return nil, &Error{Violations: p.violations}
	}
	f := &Filter{topics: p.topics(topics)}
	var top *group
	if len(pattern) > 0 {
		if top = p.match(pattern); top != nil && len(p.violations) == 0 {
			f.alternatives = p.expand(top)
		}
	}
	if len(p.violations) > 0 {
		return nil, &Error{Violations: p.violations}
	}
	f.canonical = canonical(f.topics, top)
	for _, conjunction := range f.alternatives {
		for _, c := range conjunction {
			c.form, c.place = "", nil // the filter is kept for long
		}
	}
	f.index = sync.OnceValue(func() *Index { return NewIndex([]*Filter{f}) })
	return f, nil
}

// Canonical returns the filter as JSON, {"topics": […], "match": {…}}, in a form that is the same for filters that differ in nothing but white
// space, the order of members, the order or repetition of alternatives, escapes, the writing of numbers, or the case of strings that are compared without
// regard to case. The caller must not change it.
func (f *Filter) Canonical() []byte {
	return f.canonical
}

// Matches tells whether the filter wants an event (nil: one that nobody can read). It answers as an Index of this one filter does.
func (f *Filter) Matches(topic string, event []byte) bool {
	return len(f.index().Match(topic, event, nil)) > 0
}

// parser collects the violations of one filter.
type parser struct {
	violations []Violation
	stars      int
}

func (p *parser) refuse(at *place, format string, args ...any) {
	if !p.isFull() {
		p.refuseAt(at.pointer(), format, args...)
	}
}

func (p *parser) refuseAt(pointer jsontext.Pointer, format string, args ...any) {
	p.violations = append(p.violations, Violation{Pointer: string(pointer), Detail: fmt.Sprintf(format, args...)})
}

// isFull reports whether there are as many violations as are listed, so that nothing more need be looked at.
func (p *parser) isFull() bool { return len(p.violations) >= maxViolations }

func (p *parser) topics(texts []string) []topicPattern {
	pointer := (*place)(nil).member("topics")
	if texts == nil {
		return nil
	}
	if len(texts) == 0 {
		p.refuse(pointer, "the list is empty; expected at least one topic pattern, or no topics for every topic")
	}
	if len(texts) > MaxTopics {
		p.refuse(pointer, "%d topic patterns; expected at most %d", len(texts), MaxTopics)
		return nil
	}
	var patterns []topicPattern
	for i, text := range texts {
		pattern, err := parseTopicPattern(text)
		if err != nil {
			p.refuse(pointer.item(i), "%s", err)
			continue
		}
		patterns = append(patterns, pattern)
	}
	slices.SortFunc(patterns, func(a, b topicPattern) int { return strings.Compare(a.text, b.text) })
	return slices.CompactFunc(patterns, func(a, b topicPattern) bool { return a.text == b.text })
}

// A document is a JSON value as it was written.
type document struct {
	kind  jsontext.Kind
	text  string // of a string, unescaped; of a number, as written
	names []string
	items []*document // the values of names, or the elements of an array
}

func (p *parser) match(pattern []byte) *group {
	top := (*place)(nil).member("match")
	dec := jsontext.NewDecoder(bytes.NewReader(pattern))
	doc, err := readDocument(dec, 0)
	if err == nil {
		// jsontext ends the stream at the first value; whatever follows is refused here.
		if _, after := dec.ReadToken(); after == nil || dec.InputOffset() < int64(len(bytes.TrimRight(pattern, " \t\r\n"))) {
			err = errors.New("text after the JSON value")
		}
	}
	if err != nil {
		var syntactic *jsontext.SyntacticError
		switch {
		case errors.As(err, &syntactic) && errors.Is(err, jsontext.ErrDuplicateName):
			p.refuseAt(top.pointer()+syntactic.JSONPointer, "duplicate member; expected each name once")
		case errors.As(err, &syntactic):
			p.refuseAt(top.pointer()+syntactic.JSONPointer, "invalid JSON: %s", syntactic.Err)
		case errors.Is(err, errTooDeep):
			p.refuseAt(top.pointer()+dec.StackPointer(), "nested too deeply; expected at most %d levels", MaxDepth)
		default:
			p.refuse(top, "invalid JSON: %s", err)
		}
		return nil
	}
	if doc.kind != '{' {
		p.refuse(top, "%s; expected an object", describe(doc))
		return nil
	}
	return p.group(doc, top, 1, false)
}

var errTooDeep = errors.New("nested too deeply")

func readDocument(dec *jsontext.Decoder, depth int) (*document, error) {
	token, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	doc := &document{kind: token.Kind()}
	switch doc.kind {
	case '"', '0':
		doc.text = token.String()
	case '{', '[':
		// Around each object there may be the array of an $or; a condition adds an array, an operator, another one within, and a list.
		if depth >= 2*MaxDepth+4 {
			return nil, errTooDeep
		}
		for dec.PeekKind() != '}' && dec.PeekKind() != ']' {
			if doc.kind == '{' {
				name, err := dec.ReadToken()
				if err != nil {
					return nil, err
				}
				doc.names = append(doc.names, name.String())
			}
			item, err := readDocument(dec, depth+1)
			if err != nil {
				return nil, err
			}
			doc.items = append(doc.items, item)
		}
		if _, err := dec.ReadToken(); err != nil {
			return nil, err
		}
	}
	return doc, nil
}

// describe names a value in the words of a Violation.
func describe(doc *document) string {
	switch doc.kind {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case 'n':
		return "null"
	default:
		return "a boolean"
	}
}
