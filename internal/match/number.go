package match

import (
	"cmp"
	"strconv"
	"strings"
)

// A number is a JSON number, exactly: ±0.d1d2d3… × 10^magnitude, whose first digit is not zero. All digits count, so that integers above 2^53
// and decimal fractions compare by their value, however they are written.
type number struct {
	negative  bool
	magnitude int32
	head      uint64 // the first 19 digits as an integer, filled up with zeros at the end; 0 for zero
	tail      string // further digits, without zeros at the end
}

// numberKey is a number without a tail, as the key of a map.
type numberKey struct {
	head uint64
	sign int64 // magnitude and sign
}

const (
	headDigits = 19
	// maxMagnitude bounds the magnitude of a number; further ones count as this. The numbers of a filter are far smaller.
	maxMagnitude = 1 << 24
)

var powers = func() (powers [headDigits + 1]uint64) {
	powers[0] = 1
	for i := 1; i < len(powers); i++ {
		powers[i] = powers[i-1] * 10
	}
	return powers
}()

func (n *number) key() numberKey {
	sign := int64(n.magnitude) << 1
	if n.negative {
		sign |= 1
	}
	return numberKey{head: n.head, sign: sign}
}

// parseNumber reads the number that text begins with, and returns its length. The text is JSON, or the result does not matter; digits is false
// if there is none.
func parseNumber(text []byte) (n number, length int, digits bool) {
	i := 0
	if i < len(text) && text[i] == '-' {
		n.negative = true
		i++
	}
	count, magnitude := 0, 0
	var tail []byte
	take := func(c byte) {
		if count < headDigits {
			n.head = n.head*10 + uint64(c-'0')
		} else {
			tail = append(tail, c)
		}
		count++
	}
	start := i
	for ; i < len(text) && isDigit(text[i]); i++ {
		if count > 0 || text[i] != '0' {
			take(text[i])
			magnitude++
		}
	}
	if i == start {
		return number{}, i, false
	}
	if i < len(text) && text[i] == '.' {
		for i++; i < len(text) && isDigit(text[i]); i++ {
			if count > 0 || text[i] != '0' {
				take(text[i])
			} else {
				magnitude--
			}
		}
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		i++
		down := false
		if i < len(text) && (text[i] == '+' || text[i] == '-') {
			down = text[i] == '-'
			i++
		}
		exponent := 0
		for ; i < len(text) && isDigit(text[i]); i++ {
			exponent = min(exponent*10+int(text[i]-'0'), 2*maxMagnitude)
		}
		if down {
			exponent = -exponent
		}
		magnitude += exponent
	}
	if count == 0 {
		return number{}, i, true
	}
	if count < headDigits {
		n.head *= powers[headDigits-count]
	}
	n.magnitude = int32(max(-maxMagnitude, min(magnitude, maxMagnitude)))
	if tail != nil {
		n.tail = strings.TrimRight(string(tail), "0")
	}
	return n, i, true
}

func isDigit(c byte) bool {
	return '0' <= c && c <= '9'
}

// compareNumbers orders numbers by their values.
func compareNumbers(a, b *number) int {
	switch {
	case a.negative != b.negative:
		if a.negative {
			return -1
		}
		return 1
	case a.negative:
		a, b = b, a
	}
	switch {
	case a.head == 0 || b.head == 0:
		return cmp.Compare(a.head, b.head)
	case a.magnitude != b.magnitude:
		return cmp.Compare(a.magnitude, b.magnitude)
	case a.head != b.head:
		return cmp.Compare(a.head, b.head)
	default:
		return strings.Compare(a.tail, b.tail)
	}
}

// String writes a number as JSON, in the one form that all its writings have: 0, 5, -1.25e1.
func (n *number) String() string {
	if n.head == 0 {
		return "0"
	}
	digits := strconv.FormatUint(n.head, 10)
	if n.tail == "" {
		digits = strings.TrimRight(digits, "0")
	}
	digits += n.tail
	var b strings.Builder
	if n.negative {
		b.WriteByte('-')
	}
	b.WriteString(digits[:1])
	if len(digits) > 1 {
		b.WriteString("." + digits[1:])
	}
	if n.magnitude != 1 {
		b.WriteString("e" + strconv.Itoa(int(n.magnitude)-1))
	}
	return b.String()
}

// A bound is one end of an interval.
type bound struct {
	number number
	open   bool // the number itself is outside
}

// An interval is a range of numbers. An end that is nil is infinite.
type interval struct {
	low, high *bound
}

// above tells whether the number is not below the interval.
func (i *interval) above(n *number) bool {
	if i.low == nil {
		return true
	}
	order := compareNumbers(n, &i.low.number)
	return order > 0 || order == 0 && !i.low.open
}

// below tells whether the number is not above the interval.
func (i *interval) below(n *number) bool {
	if i.high == nil {
		return true
	}
	order := compareNumbers(n, &i.high.number)
	return order < 0 || order == 0 && !i.high.open
}

func (i *interval) contains(n *number) bool {
	return i.above(n) && i.below(n)
}
