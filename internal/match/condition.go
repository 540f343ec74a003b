package match

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// hashedTexts is from how many strings on a list of them is looked up by hash.
const hashedTexts = 8

// A condition is a member of the event and its alternatives, one of which has to hold.
type condition struct {
	name  string
	path  *path
	key   string // equal for equal conditions
	form  string // the alternatives, in their canonical form; empty once the filter is compiled
	place *place // where the filter has it; nil once the filter is compiled

	absent  bool // {"exists": false}
	present bool // {"exists": true}
	null    bool
	yes, no bool
	texts   []string
	hashed  map[string]struct{} // the texts, if there are many
	numbers []number
	others  []alternative
	weight  int // how many alternatives a value is compared with
}

// The kinds of alternatives that are no plain values. All but kindAnythingBut and kindInterval are for strings.
const (
	kindAnythingBut = iota
	kindInterval
	kindPrefix
	kindSuffix
	kindFolded
	kindFoldedPrefix
	kindFoldedSuffix
	kindWildcard
	kindCIDR
)

type alternative struct {
	kind     int
	text     string // of a prefix, a suffix, and folded texts
	parts    [][]byte
	interval interval
	cidr     netip.Prefix
	but      *exclusion
}

// An exclusion is the values that an anything-but excludes.
type exclusion struct {
	affixes []string // the prefixes, or the suffixes in reverse, sorted; none begins with another
	texts   []string
	hashed  map[string]struct{}
	numbers []number
	others  []alternative
}

// finish sorts the values for the look-ups.
func (c *condition) finish() {
	c.hashed = sortTexts(c.texts)
	sortNumbers(c.numbers)
	c.weight = 1 + len(c.others)
	for i := range c.others {
		if but := c.others[i].but; but != nil {
			c.weight += len(but.others)
		}
	}
}

func (x *exclusion) finish() {
	x.hashed = sortTexts(x.texts)
	sortNumbers(x.numbers)
	for i := range x.others {
		switch a := &x.others[i]; a.kind {
		case kindPrefix:
			x.affixes = append(x.affixes, a.text)
		case kindSuffix:
			x.affixes = append(x.affixes, string(appendReverse(nil, []byte(a.text))))
		}
	}
	x.affixes = separateAffixes(x.affixes)
	slices.SortFunc(x.others, func(a, b alternative) int { return strings.Compare(a.text, b.text) })
}

func sortTexts(texts []string) map[string]struct{} {
	slices.Sort(texts)
	if len(texts) < hashedTexts {
		return nil
	}
	hashed := make(map[string]struct{}, len(texts))
	for _, text := range texts {
		hashed[text] = struct{}{}
	}
	return hashed
}

func sortNumbers(numbers []number) {
	slices.SortFunc(numbers, func(a, b number) int { return compareNumbers(&a, &b) })
}

func hasText(texts []string, hashed map[string]struct{}, text []byte) bool {
	if hashed != nil {
		_, found := hashed[string(text)]
		return found
	}
	for _, candidate := range texts {
		if candidate == string(text) {
			return true
		}
	}
	return false
}

func hasNumber(numbers []number, n *number) bool {
	_, found := slices.BinarySearchFunc(numbers, n, func(a number, n *number) int { return compareNumbers(&a, n) })
	return found
}

// accepts tells whether one of the alternatives holds for a value.
func (c *condition) accepts(s *scratch, e *entry) bool {
	if c.present {
		return true
	}
	switch e.kind {
	case '"':
		if hasText(c.texts, c.hashed, e.text) {
			return true
		}
	case '0':
		if hasNumber(c.numbers, &e.number) {
			return true
		}
	case 'n':
		if c.null {
			return true
		}
	case 't':
		if c.yes {
			return true
		}
	case 'f':
		if c.no {
			return true
		}
	}
	for i := range c.others {
		if c.others[i].accepts(s, e) {
			return true
		}
	}
	return false
}

func (a *alternative) accepts(s *scratch, e *entry) bool {
	switch a.kind {
	case kindAnythingBut:
		return !a.but.excludes(s, e)
	case kindInterval:
		return e.kind == '0' && a.interval.contains(&e.number)
	}
	if e.kind != '"' {
		return false
	}
	switch a.kind {
	case kindPrefix:
		return hasPrefix(e.text, a.text)
	case kindSuffix:
		return hasSuffix(e.text, a.text)
	case kindFolded:
		return string(s.fold(e)) == a.text
	case kindFoldedPrefix:
		return hasPrefix(s.fold(e), a.text)
	case kindFoldedSuffix:
		return hasSuffix(s.fold(e), a.text)
	case kindWildcard:
		return matchesWildcard(e.text, a.parts)
	default:
		address, ok := s.address(e)
		return ok && a.cidr.Contains(address)
	}
}

func (x *exclusion) excludes(s *scratch, e *entry) bool {
	switch e.kind {
	case '"':
		if hasText(x.texts, x.hashed, e.text) {
			return true
		}
	case '0':
		if hasNumber(x.numbers, &e.number) {
			return true
		}
	}
	for i := range x.others {
		if x.others[i].accepts(s, e) {
			return true
		}
	}
	return false
}

func hasPrefix(text []byte, prefix string) bool {
	return len(text) >= len(prefix) && string(text[:len(prefix)]) == prefix
}

func hasSuffix(text []byte, suffix string) bool {
	return len(text) >= len(suffix) && string(text[len(text)-len(suffix):]) == suffix
}

// matchesWildcard compares a text with the parts of a wildcard, between which anything may be. The first place where a part is found is as good
// as any later one, so there is nothing to go back to: the time is linear in the length of the text.
func matchesWildcard(text []byte, parts [][]byte) bool {
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return bytes.Equal(text, first)
	}
	if len(text) < len(first)+len(last) || !bytes.HasPrefix(text, first) || !bytes.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		i := bytes.Index(text, part)
		if i < 0 {
			return false
		}
		text = text[i+len(part):]
	}
	return true
}

// fold returns a text in which characters that differ in their case alone are the same: Unicode's simple case folding, as strings.EqualFold.
func fold(text string) string {
	return string(appendFold(nil, []byte(text)))
}

func appendFold(to, text []byte) []byte {
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			to = append(to, c)
			i++
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		to = utf8.AppendRune(to, foldRune(r))
		i += size
	}
	return to
}

func foldRune(r rune) rune {
	least := r
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		least = min(least, other)
	}
	if least < utf8.RuneSelf {
		return unicode.ToLower(least)
	}
	return least
}

// parseAddress reads an IP address. One that IPv6 maps from IPv4 counts as the IPv4 address.
func parseAddress(text []byte) (netip.Addr, bool) {
	const longest = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255")
	if len(text) < len("::") || len(text) > longest {
		return netip.Addr{}, false
	}
	for _, c := range text {
		if !isDigit(c) && c != '.' && c != ':' && (c|0x20 < 'a' || c|0x20 > 'f') {
			return netip.Addr{}, false
		}
	}
	address, err := netip.ParseAddr(string(text))
	return address.Unmap(), err == nil
}
