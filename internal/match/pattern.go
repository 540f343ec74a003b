package match

import (
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// The operators of the language, as they are written.
const (
	opAnythingBut = "anything-but"
	opCIDR        = "cidr"
	opExists      = "exists"
	opIgnoreCase  = "equals-ignore-case"
	opNumeric     = "numeric"
	opOr          = "$or"
	opPrefix      = "prefix"
	opSuffix      = "suffix"
	opWildcard    = "wildcard"
)

var operators = []string{opPrefix, opSuffix, opIgnoreCase, opWildcard, opAnythingBut, opExists, opNumeric, opCIDR}

// A group is an object of a match: members that are compared, objects within, and perhaps an $or.
type group struct {
	conditions []*condition
	names      []string // of inner
	inner      []*group
	or         []*group
}

// A place is where a value is in a filter. Its JSON pointer is written for a Violation alone: those of many values with a long name around them would
// be many times as long as the filter.
type place struct {
	within *place
	name   string // of a member
	index  int    // of an element
	isItem bool   // it is an element
}

func (at *place) member(name string) *place { return &place{within: at, name: name} }

func (at *place) item(index int) *place { return &place{within: at, index: index, isItem: true} }

// pointer returns the JSON pointer; that of nil is the whole filter.
func (at *place) pointer() jsontext.Pointer {
	var around []*place
	for ; at != nil; at = at.within {
		around = append(around, at)
	}
	var pointer []byte
	for _, at := range slices.Backward(around) {
		if at.isItem {
			pointer = strconv.AppendInt(append(pointer, '/'), int64(at.index), 10)
		} else {
			pointer = append(pointer, jsontext.Pointer("").AppendToken(at.name)...)
		}
	}
	return jsontext.Pointer(pointer)
}

// depth is how many values are around the place.
func (at *place) depth() (depth int) {
	for ; at.within != nil; at = at.within {
		depth++
	}
	return depth
}

// String implements fmt.Stringer.
func (at *place) String() string { return string(at.pointer()) }

func (p *parser) group(doc *document, pointer *place, depth int, inOr bool) *group {
	g := &group{}
	if len(doc.names) == 0 {
		p.refuse(pointer, "the object is empty; expected at least one member")
	}
	if depth > MaxDepth {
		p.refuse(pointer, "nested too deeply; expected at most %d levels", MaxDepth)
		return g
	}
	for i, name := range doc.names {
		if p.isFull() {
			break
		}
		value, pointer := doc.items[i], pointer.member(name)
		switch {
		case name == opOr:
			g.or = p.or(value, pointer, depth+1)
		case inOr && slices.Contains(operators, name):
			p.refuse(pointer, "an operator in place of a member; expected {\"member\": [{%q: …}]}", name)
		case value.kind == '{':
			g.names, g.inner = append(g.names, name), append(g.inner, p.group(value, pointer, depth+1, inOr))
		case value.kind == '[':
			g.conditions = append(g.conditions, p.condition(name, value, pointer))
		default:
			p.refuse(pointer, "%s; expected an array of alternatives, or an object", describe(value))
		}
	}
	return g
}

func (p *parser) or(doc *document, pointer *place, depth int) []*group {
	if doc.kind != '[' || len(doc.items) < 2 {
		p.refuse(pointer, "expected an array of at least two objects")
		return nil
	}
	var branches []*group
	for i, item := range doc.items {
		if p.isFull() {
			break
		}
		if item.kind != '{' {
			p.refuse(pointer.item(i), "%s; expected an object", describe(item))
			continue
		}
		branches = append(branches, p.group(item, pointer.item(i), depth, true))
	}
	return branches
}

// condition compiles a member and its alternatives. It has no path until expand gives it one.
func (p *parser) condition(name string, doc *document, pointer *place) *condition {
	c := &condition{name: name, place: pointer}
	if len(doc.items) == 0 {
		p.refuse(pointer, "the array is empty; expected at least one alternative")
	}
	var forms []string
	for i, item := range doc.items {
		if p.isFull() {
			break
		}
		forms = append(forms, p.alternative(c, item, pointer.item(i)))
	}
	slices.Sort(forms)
	c.form = "[" + strings.Join(slices.Compact(forms), ",") + "]"
	c.finish()
	return c
}

// alternative adds one alternative to a condition, and returns its canonical form.
func (p *parser) alternative(c *condition, doc *document, pointer *place) string {
	switch doc.kind {
	case '"':
		c.texts = append(c.texts, doc.text)
		return quote(doc.text)
	case '0':
		n := p.number(doc, pointer)
		c.numbers = append(c.numbers, n)
		return n.String()
	case 'n':
		c.null = true
		return "null"
	case 't':
		c.yes = true
		return "true"
	case 'f':
		c.no = true
		return "false"
	case '{':
		return p.operator(c, doc, pointer)
	default:
		p.refuse(pointer, "an array; expected a string, number, boolean, null, or an object with an operator")
		return ""
	}
}

func (p *parser) operator(c *condition, doc *document, pointer *place) string {
	if len(doc.names) != 1 {
		p.refuse(pointer, "an object with %d members; expected one operator: %s", len(doc.names), strings.Join(operators, ", "))
		return ""
	}
	name, value := doc.names[0], doc.items[0]
	pointer = pointer.member(name)
	form := ""
	switch name {
	case opPrefix, opSuffix:
		form = p.affix(c, name, value, pointer)
	case opIgnoreCase:
		text := p.text(value, pointer)
		folded := fold(text)
		c.others = append(c.others, alternative{kind: kindFolded, text: folded})
		form = quote(folded)
	case opWildcard:
		text := p.text(value, pointer)
		p.addWildcard(c, p.wildcard(text, pointer))
		form = quote(text)
	case opAnythingBut:
		var a alternative
		a, form = p.anythingBut(value, pointer)
		c.others = append(c.others, a)
	case opExists:
		switch value.kind {
		case 't':
			c.present, form = true, "true"
		case 'f':
			c.absent, form = true, "false"
		default:
			p.refuse(pointer, "%s; expected true or false", describe(value))
		}
	case opNumeric:
		form = p.numeric(c, value, pointer)
	case opCIDR:
		prefix := p.cidr(value, pointer)
		c.others = append(c.others, alternative{kind: kindCIDR, cidr: prefix})
		form = quote(prefix.String())
	default:
		p.refuse(pointer, "unknown operator; expected one of %s", strings.Join(operators, ", "))
	}
	return "{" + quote(name) + ":" + form + "}"
}

// affix compiles a prefix or a suffix, each perhaps without regard to case.
func (p *parser) affix(c *condition, name string, doc *document, pointer *place) string {
	a := alternative{kind: kindPrefix}
	if name == opSuffix {
		a.kind = kindSuffix
	}
	if doc.kind != '{' {
		if doc.kind != '"' {
			p.refuse(pointer, "%s; expected a string, or {%q: a string}", describe(doc), opIgnoreCase)
		}
		a.text = doc.text
		c.others = append(c.others, a)
		return quote(a.text)
	}
	if len(doc.names) != 1 || doc.names[0] != opIgnoreCase {
		p.refuse(pointer, "expected a string, or {%q: a string}", opIgnoreCase)
		return ""
	}
	a.text = fold(p.text(doc.items[0], pointer.member(opIgnoreCase)))
	a.kind = kindFoldedPrefix
	if name == opSuffix {
		a.kind = kindFoldedSuffix
	}
	c.others = append(c.others, a)
	return "{" + quote(opIgnoreCase) + ":" + quote(a.text) + "}"
}

func (p *parser) text(doc *document, pointer *place) string {
	if doc.kind != '"' {
		p.refuse(pointer, "%s; expected a string", describe(doc))
	}
	return doc.text
}

func (p *parser) number(doc *document, pointer *place) number {
	if doc.kind != '0' {
		p.refuse(pointer, "%s; expected a number", describe(doc))
		return number{}
	}
	// The range is that of IEEE 754 binary64, as event-ruler has it. Digits are compared all of them.
	n, _, _ := parseNumber([]byte(doc.text))
	if f, err := strconv.ParseFloat(doc.text, 64); err != nil || math.IsInf(f, 0) || f == 0 && n.head != 0 {
		p.refuse(pointer, "the number is out of range; expected one between -1.7e308 and 1.7e308, and not closer to zero than 5e-324")
	}
	return n
}

// wildcard splits a wildcard's text at its stars. A backslash before a star or a backslash makes it a plain character.
func (p *parser) wildcard(text string, pointer *place) [][]byte {
	parts := [][]byte{{}}
	for i := 0; i < len(text); i++ {
		last := len(parts) - 1
		switch text[i] {
		case '*':
			if i+1 < len(text) && text[i+1] == '*' {
				p.refuse(pointer, "two * in a row at byte %d; expected one", i)
			}
			if p.stars++; p.stars == MaxStars+1 {
				p.refuse(pointer, "too many *; expected at most %d in a filter", MaxStars)
			}
			parts = append(parts, []byte{})
		case '\\':
			if i++; i == len(text) || text[i] != '*' && text[i] != '\\' {
				p.refuse(pointer, "a backslash at byte %d; expected it before * or another backslash", i-1)
				return parts
			}
			fallthrough
		default:
			parts[last] = append(parts[last], text[i])
		}
	}
	return parts
}

// addWildcard adds a wildcard. One without a star is a value, and one whose only star is at an end is a prefix or a suffix.
func (p *parser) addWildcard(c *condition, parts [][]byte) {
	switch {
	case len(parts) == 1:
		c.texts = append(c.texts, string(parts[0]))
	case len(parts) == 2 && len(parts[1]) == 0:
		c.others = append(c.others, alternative{kind: kindPrefix, text: string(parts[0])})
	case len(parts) == 2 && len(parts[0]) == 0:
		c.others = append(c.others, alternative{kind: kindSuffix, text: string(parts[1])})
	default:
		c.others = append(c.others, alternative{kind: kindWildcard, parts: parts})
	}
}

// anythingBut compiles {"anything-but": …}. A single value stands for a list of one.
func (p *parser) anythingBut(doc *document, pointer *place) (alternative, string) {
	inner, op := doc, ""
	if doc.kind == '{' {
		allowed := []string{opPrefix, opSuffix, opIgnoreCase, opWildcard}
		if len(doc.names) != 1 || !slices.Contains(allowed, doc.names[0]) {
			p.refuse(pointer, "expected a string, a number, a list of either, or one of the operators %s", strings.Join(allowed, ", "))
			return alternative{}, ""
		}
		inner, op = doc.items[0], doc.names[0]
		pointer = pointer.member(op)
	}
	items, position := []*document{inner}, func(int) *place { return pointer }
	if inner.kind == '[' {
		items, position = inner.items, func(i int) *place { return pointer.item(i) }
		if len(items) == 0 {
			p.refuse(pointer, "the array is empty; expected at least one value")
		}
	}
	a := alternative{kind: kindAnythingBut, but: &exclusion{}}
	var forms []string
	for i, item := range items {
		if p.isFull() {
			break
		}
		switch {
		case item.kind == '0' && op == "":
			n := p.number(item, position(i))
			a.but.numbers = append(a.but.numbers, n)
			forms = append(forms, n.String())
		case item.kind == '"':
			forms = append(forms, p.exclude(a.but, op, item.text, position(i)))
		case op == "":
			p.refuse(position(i), "%s; expected a string or a number", describe(item))
		default:
			p.refuse(position(i), "%s; expected a string", describe(item))
		}
	}
	if len(a.but.texts) > 0 && len(a.but.numbers) > 0 {
		p.refuse(pointer, "strings and numbers together; expected all strings or all numbers")
	}
	a.but.finish()
	slices.Sort(forms)
	form := "[" + strings.Join(slices.Compact(forms), ",") + "]"
	if op != "" {
		form = "{" + quote(op) + ":" + form + "}"
	}
	return a, form
}

// exclude adds a string to the exclusion of an anything-but, and returns its canonical form.
func (p *parser) exclude(but *exclusion, op, text string, pointer *place) string {
	switch op {
	case opPrefix, opSuffix:
		if text == "" {
			p.refuse(pointer, "the string is empty, so that no string is left; expected at least one character")
		}
		kind := kindPrefix
		if op == opSuffix {
			kind = kindSuffix
		}
		but.others = append(but.others, alternative{kind: kind, text: text})
	case opIgnoreCase:
		text = fold(text)
		but.others = append(but.others, alternative{kind: kindFolded, text: text})
	case opWildcard:
		but.others = append(but.others, alternative{kind: kindWildcard, parts: p.wildcard(text, pointer)})
	default:
		but.texts = append(but.texts, text)
	}
	return quote(text)
}

// numeric compiles ["=", 1], ["<", 1] and the like, and ranges such as [">", 0, "<=", 5].
func (p *parser) numeric(c *condition, doc *document, pointer *place) string {
	const usage = `expected ["=", number], one of <, <=, > and >= with a number, or a range such as [">", 0, "<=", 5]`
	if doc.kind != '[' {
		p.refuse(pointer, "%s; "+usage, describe(doc))
		return ""
	}
	if len(doc.items) != 2 && len(doc.items) != 4 {
		p.refuse(pointer, "an array of %d elements; "+usage, len(doc.items))
		return ""
	}
	interval := interval{}
	var forms []string
	before := len(p.violations)
	for i := 0; i < len(doc.items); i += 2 {
		op, n := doc.items[i], p.number(doc.items[i+1], pointer.item(i+1))
		expected := []string{"=", "<", "<=", ">", ">="}
		if len(doc.items) == 4 {
			expected = [][]string{{">", ">="}, {"<", "<="}}[i/2]
		}
		if op.kind != '"' || !slices.Contains(expected, op.text) {
			p.refuse(pointer.item(i), "expected one of %s", strings.Join(expected, ", "))
			continue
		}
		forms = append(forms, quote(op.text), n.String())
		switch edge := (&bound{number: n, open: len(op.text) == 1}); op.text[0] {
		case '=':
			c.numbers = append(c.numbers, n)
			return "[" + strings.Join(forms, ",") + "]"
		case '<':
			interval.high = edge
		default:
			interval.low = edge
		}
	}
	if len(p.violations) > before {
		return ""
	}
	if interval.low != nil && interval.high != nil && compareNumbers(&interval.low.number, &interval.high.number) >= 0 {
		p.refuse(pointer, "the range is empty; expected a lower bound below the upper one")
	}
	c.others = append(c.others, alternative{kind: kindInterval, interval: interval})
	return "[" + strings.Join(forms, ",") + "]"
}

func (p *parser) cidr(doc *document, pointer *place) netip.Prefix {
	if doc.kind != '"' {
		p.refuse(pointer, "%s; expected a string such as \"10.0.0.0/8\"", describe(doc))
		return netip.Prefix{}
	}
	prefix, err := netip.ParsePrefix(doc.text)
	if err != nil || prefix.Addr().Is4In6() {
		p.refuse(pointer, "no address block; expected one such as \"10.0.0.0/8\" or \"2001:db8::/32\"")
		return netip.Prefix{}
	}
	return prefix.Masked()
}

// expand multiplies the $or of a match out into conjunctions, whose conditions have paths. It counts them first.
func (p *parser) expand(top *group) []conjunction {
	at := (*place)(nil).member("match")
	combinations, conditions := count(top)
	if combinations > MaxCombinations {
		p.refuse(at, "the $or multiply to %d combinations or more; expected at most %d", MaxCombinations+1, MaxCombinations)
		return nil
	}
	if conditions > MaxConditions {
		p.refuse(at, "%d or more conditions over all combinations of $or; expected at most %d", MaxConditions+1, MaxConditions)
		return nil
	}
	result := make(paths).expand(top, nil)
	p.refuseTwice(result)
	return result
}

// refuseTwice refuses members that are compared both in an $or and beside it, or compared there and looked into here. event-ruler takes the
// comparison that is written last.
func (p *parser) refuseTwice(all []conjunction) {
	refused := make(map[*condition]bool)
	for _, conjunction := range all {
		compared := make(map[*path]*condition, len(conjunction))
		for _, c := range conjunction {
			other := compared[c.path]
			if other == nil {
				compared[c.path] = c
				continue
			}
			p.refuseBoth(other, c, refused)
		}
		for _, c := range conjunction {
			for around := c.path.within; around != nil; around = around.within {
				if other := compared[around]; other != nil {
					p.refuseBoth(other, c, refused)
				}
			}
		}
		if p.isFull() {
			return
		}
	}
}

// refuseBoth refuses the one of two conditions that is written further within.
func (p *parser) refuseBoth(a, b *condition, refused map[*condition]bool) {
	if a.place.depth() > b.place.depth() {
		a, b = b, a
	}
	if !refused[b] {
		refused[b] = true
		p.refuse(b.place, "the member is compared at %s, too; expected it in one place", a.place)
	}
}

// count counts the conjunctions that expand makes, and the conditions in them. Neither is counted on above its limit.
func count(g *group) (combinations, conditions int) {
	// times makes them those of each combination with each of others.
	combinations, conditions = 1, len(g.conditions)
	times := func(otherCombinations, otherConditions int) {
		conditions = min(conditions*otherCombinations+otherConditions*combinations, MaxConditions+1)
		combinations = min(combinations*otherCombinations, MaxCombinations+1)
	}
	conditions = min(conditions, MaxConditions+1)
	for _, inner := range g.inner {
		times(count(inner))
	}
	if g.or == nil {
		return combinations, conditions
	}
	sumOfCombinations, sumOfConditions := 0, 0
	for _, branch := range g.or {
		combinations, conditions := count(branch)
		sumOfCombinations = min(sumOfCombinations+combinations, MaxCombinations+1)
		sumOfConditions = min(sumOfConditions+conditions, MaxConditions+1)
	}
	times(sumOfCombinations, sumOfConditions)
	return combinations, conditions
}

func (known paths) expand(g *group, around *path) []conjunction {
	var own conjunction
	for _, c := range g.conditions {
		c.path = known.member(around, c.name)
		c.key = c.path.keyWith(c.form)
		own = append(own, c)
	}
	result := []conjunction{own}
	for i, inner := range g.inner {
		result = multiply(result, known.expand(inner, known.member(around, g.names[i])))
	}
	if g.or != nil {
		var branches []conjunction
		for _, branch := range g.or {
			branches = append(branches, known.expand(branch, around)...)
		}
		result = multiply(result, branches)
	}
	return result
}

func multiply(a, b []conjunction) []conjunction {
	if len(a) == 1 && len(a[0]) == 0 {
		return b
	}
	result := make([]conjunction, 0, len(a)*len(b))
	for _, left := range a {
		for _, right := range b {
			result = append(result, slices.Concat(left, right))
		}
	}
	return result
}
