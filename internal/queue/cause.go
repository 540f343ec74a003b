package queue

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxCause is the length of a cause at most, in bytes.
const maxCause = 300

// What stands in a cause for something that varies.
const (
	someNumber   = "<number>"
	someID       = "<id>"
	someUUID     = "<uuid>"
	someHex      = "<hex>"
	someString   = "<string>"
	someAddress  = "<address>"
	someTime     = "<time>"
	someDuration = "<duration>"
)

// causeOf returns the text of an error without what varies from one error with the same cause to the next: numbers, ids, UUIDs, hexadecimal, quoted texts, addresses,
// times and durations are placeholders, white space is one space. Numbers that say which error it is, after a word such as status or code, stay. It reads the error once,
// up to maxCause bytes of the cause, which end with "…" if there is more.
func causeOf(text string) string {
	text = strings.TrimRightFunc(text, isBlank)
	c := causeWriter{out: make([]byte, 0, maxCause+16)}
	for i := 0; i < len(text) && len(c.out) <= maxCause; {
		if n := quotedLength(text, i); n > 0 {
			c.write(someString)
			i += n
			continue
		}
		n := wordLength(text[i:])
		if n > 0 {
			c.word(text[i : i+n])
			i += n
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case isBlank(r):
			c.space()
		default:
			c.write(text[i : i+size])
		}
		i += size
	}
	return c.cause()
}

func isBlank(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// A causeWriter gathers a cause.
type causeWriter struct {
	out  []byte
	last string // the last word, for the number after it
}

func (c *causeWriter) write(s string) { c.out = append(c.out, s...) }

func (c *causeWriter) space() {
	if len(c.out) > 0 && c.out[len(c.out)-1] != ' ' {
		c.out = append(c.out, ' ')
	}
}

// cause returns what was written, cut between two characters.
func (c *causeWriter) cause() string {
	out := string(c.out)
	if len(out) <= maxCause {
		return out
	}
	end := maxCause
	for !utf8.RuneStart(out[end]) {
		end--
	}
	return out[:end] + "…"
}

// word writes a word, or the placeholder for what it is.
func (c *causeWriter) word(w string) {
	kind := kindOf(w)
	switch {
	case kind == someNumber && len(w) <= 5 && tellsCode(c.last):
		c.write(w)
	case kind == someTime && strings.HasSuffix(string(c.out), someTime+" "): // a date and a time of day
		c.out = c.out[:len(c.out)-1]
	case kind != "":
		c.write(kind)
	case countDigits(w) == 0, strings.HasPrefix(w, "HTTP/"): // which is a version, not a path
		c.write(w)
	default:
		c.parts(w)
	}
	c.last = w
}

// parts writes a word of several parts, such as order-4711 or db-3.internal:5432, with placeholders for those that vary.
func (c *causeWriter) parts(w string) {
	for len(w) > 0 {
		n := 0
		for n < len(w) && !isJoiner[w[n]] {
			n++
		}
		if n == 0 {
			c.write(w[:1])
			w = w[1:]
			continue
		}
		part := w[:n]
		w = w[n:]
		digits := countDigits(part)
		switch {
		case digits == 0:
			c.write(part)
		case digits == len(part) && n <= 5 && tellsCode(c.last):
			c.write(part)
		case digits == len(part):
			c.write(someNumber)
		case len(part) >= 8 && isHex(part):
			c.write(someHex)
		case len(part) >= 8 && digits >= 2 && len(part)-digits >= 2 && changesKind(part) > 2:
			c.write(someID)
		default:
			c.withoutDigits(part)
		}
		c.last = part
	}
}

// withoutDigits writes a part of a word with a placeholder for each run of digits.
func (c *causeWriter) withoutDigits(part string) {
	for i := 0; i < len(part); i++ {
		if !isDigit(part[i]) {
			c.out = append(c.out, part[i])
			continue
		}
		for i+1 < len(part) && isDigit(part[i+1]) {
			i++
		}
		c.write(someNumber)
	}
}

// codeWords are the words before a number that says which error it is.
var codeWords = []string{"code", "errno", "error", "exit", "http", "signal", "sqlstate", "status"}

// tellsCode reports whether a number after a word says which error it is.
func tellsCode(word string) bool {
	if len(word) < 4 || len(word) > 20 {
		return false
	}
	word = strings.ToLower(strings.TrimRight(word, ":="))
	if strings.HasPrefix(word, "http/") {
		return true
	}
	_, found := slices.BinarySearch(codeWords, word)
	return found
}

// kindOf returns the placeholder for a whole word, empty if it has none.
func kindOf(w string) string {
	digits := countDigits(w)
	switch {
	case digits == 0:
		if at := strings.IndexByte(w, '@'); at > 0 && strings.IndexByte(w[at:], '.') > 1 {
			return someAddress
		}
		return ""
	case isNumber(w):
		return someNumber
	case isUUID(w):
		return someUUID
	case isTime(w):
		return someTime
	case isDuration(w):
		return someDuration
	case isAddress(w):
		return someAddress
	case len(w) > 2 && (w[:2] == "0x" || w[:2] == "0X") && isHex(w[2:]):
		return someHex
	}
	return ""
}

// quotedLength returns how many bytes a quoted text takes that begins at i, 0 if none does. An apostrophe within a word quotes nothing.
func quotedLength(text string, i int) int {
	quote := text[i]
	if quote != '"' && quote != '\'' && quote != '`' {
		return 0
	}
	if quote == '\'' && i > 0 && isWordByte(text[i-1]) {
		return 0
	}
	for j := i + 1; j < len(text); j++ {
		switch text[j] {
		case '\\':
			j++
		case '\n':
			return 0
		case quote:
			if quote == '\'' && j+1 < len(text) && isWordByte(text[j+1]) {
				continue
			}
			return j + 1 - i
		}
	}
	return 0
}

// wordLength returns how many bytes the word takes that text begins with: letters and digits, with joiners between them.
func wordLength(text string) int {
	n := 0
	if len(text) > 1 && (text[0] == '-' || text[0] == '+') && isDigit(text[1]) {
		n = 1
	}
	for n < len(text) {
		switch c := text[n]; {
		case isWordByte(c), c == 0xc2 && n+1 < len(text) && text[n+1] == 0xb5: // µ
			n++
			if c == 0xc2 {
				n++
			}
		case n > 0 && isJoiner[c] && n+1 < len(text) && (isWordByte(text[n+1]) || c == ':' && text[n+1] == ':'):
			n++
		default:
			return n
		}
	}
	return n
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isWordByte(c byte) bool {
	return isDigit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// isJoiner has the characters that, between letters and digits, make them one word.
var isJoiner = [256]bool{'-': true, '_': true, '.': true, ':': true, '/': true, '@': true, '+': true, ',': true, '%': true, '#': true, '=': true}

func countDigits(s string) (n int) {
	for i := range len(s) {
		if isDigit(s[i]) {
			n++
		}
	}
	return n
}

// changesKind counts the runs of digits and of others.
func changesKind(s string) int {
	n := 1
	for i := 1; i < len(s); i++ {
		if isDigit(s[i]) != isDigit(s[i-1]) {
			n++
		}
	}
	return n
}

// isNumber reports whether a word is digits with separators, perhaps with a sign or an exponent.
func isNumber(w string) bool {
	w = strings.TrimLeft(w, "+-")
	if !isDigit(w[0]) && len(w) > 0 {
		return false
	}
	dots := 0
	for i := range len(w) {
		switch c := w[i]; {
		case isDigit(c), c == ',', c == '_':
		case c == '.':
			dots++
		case (c == 'e' || c == 'E') && i > 0 && i+1 < len(w) && countDigits(w[i+1:]) >= len(w)-i-2 && !isWordByteNotDigit(w[i+1]):
			return dots <= 1
		default:
			return false
		}
	}
	return dots <= 1
}

func isWordByteNotDigit(c byte) bool { return isWordByte(c) && !isDigit(c) }

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i] | 0x20; !isDigit(s[i]) && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) > 0
}

func isUUID(w string) bool {
	return len(w) == 36 && w[8] == '-' && w[13] == '-' && w[18] == '-' && w[23] == '-' && isHex(w[:8]) && isHex(w[9:13]) && isHex(w[14:18]) && isHex(w[19:23]) && isHex(w[24:])
}

// isTime reports whether a word begins as a date, or is a time of day.
func isTime(w string) bool {
	if len(w) >= 10 && countDigits(w[:4]) == 4 && (w[4] == '-' || w[4] == '/') && w[7] == w[4] && countDigits(w[5:7]) == 2 && countDigits(w[8:10]) == 2 {
		return true
	}
	return len(w) >= 5 && countDigits(w[:2]) == 2 && w[2] == ':' && countDigits(w[3:5]) == 2 && (len(w) == 5 || len(w) >= 8 && w[5] == ':' && countDigits(w[6:8]) == 2)
}

// isDuration reports whether a word is numbers with units of time, such as 1m30.5s.
func isDuration(w string) bool {
	if w[0] == '-' || w[0] == '+' {
		w = w[1:]
	}
	for len(w) > 0 {
		n := 0
		for n < len(w) && (isDigit(w[n]) || w[n] == '.') {
			n++
		}
		if n == 0 {
			return false
		}
		w = w[n:]
		unit := 0
		for _, u := range []string{"ns", "us", "µs", "ms", "sec", "secs", "min", "s", "m", "h", "d"} {
			if strings.HasPrefix(w, u) && len(u) > unit {
				unit = len(u)
			}
		}
		if unit == 0 {
			return false
		}
		w = w[unit:]
	}
	return true
}

// isAddress reports whether a word is an IP address, with or without a port or a length of its network, or one of email.
func isAddress(w string) bool {
	if at := strings.IndexByte(w, '@'); at > 0 && strings.IndexByte(w[at:], '.') > 1 {
		return true
	}
	host := w
	if i := strings.IndexAny(w, ":/"); i > 0 && countDigits(w[i+1:]) == len(w)-i-1 {
		host = w[:i]
	}
	if strings.Count(host, ".") == 3 && countDigits(host) == len(host)-3 {
		return true
	}
	host, _, _ = strings.Cut(w, "/")
	return strings.Count(host, ":") >= 2 && isHex(strings.ReplaceAll(strings.ReplaceAll(host, ":", ""), ".", ""))
}
