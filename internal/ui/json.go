package ui

import (
	"encoding/json"
	"html/template"
	"strings"
	"unicode/utf8"
)

// MaxShown is how many bytes of a text a page shows of JSON. The rest is for downloads.
const MaxShown = 64 << 10

// maxIndent is the deepest level that is indented more than the one around it: JSON that is nested deeply would be blanks otherwise.
const maxIndent = 40

// A JSONText is JSON as a page shows it: over several lines. Numbers have all their digits.
type JSONText struct {
	Text  string // at most MaxShown bytes, and an ellipsis
	Size  int64  // bytes of the JSON
	IsCut bool   // it is longer than Text
}

// NewJSONText returns JSON as a page shows it; nil where there is none.
func NewJSONText(text json.RawMessage) *JSONText {
	if len(text) == 0 || string(text) == "null" {
		return nil
	}
	shown, isCut := indentUpTo(text, MaxShown)
	return &JSONText{shown, int64(len(text)), isCut}
}

// indent writes JSON over several lines, the first MaxShown bytes of it.
func indent(text json.RawMessage) string {
	shown, _ := indentUpTo(text, MaxShown)
	return shown
}

// indentUpTo writes JSON over several lines, until it has limit bytes. It returns whether there is more, which an ellipsis stands for. Its time and its memory
// are bounded by the limit, and the length of the text. What is not JSON is written as it is.
func indentUpTo(text []byte, limit int) (shown string, isCut bool) {
	if len(text) <= 4*limit && !json.Valid(text) {
		return cut(string(text), limit)
	}
	var b strings.Builder
	depth := 0
	newLine := func() {
		b.WriteByte('\n')
		for range min(depth, maxIndent) {
			b.WriteString("  ")
		}
	}
	for i := 0; i < len(text) && b.Len() <= limit; i++ {
		switch c := text[i]; c {
		case ' ', '\t', '\n', '\r':
		case '{', '[':
			b.WriteByte(c)
			depth++
			if next := skipBlanks(text, i+1); next < len(text) && text[next] == c+2 { // } is two after {, and ] two after [
				b.WriteByte(c + 2)
				depth--
				i = next
				continue
			}
			newLine()
		case '}', ']':
			depth = max(depth-1, 0)
			newLine()
			b.WriteByte(c)
		case ',':
			b.WriteByte(c)
			newLine()
		case ':':
			b.WriteString(": ")
		case '"':
			end := i + 1
			for end < len(text) && text[end] != '"' && end-i <= limit {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			end = min(end, len(text)-1)
			b.Write(text[i : end+1])
			i = end
		default:
			b.WriteByte(c)
		}
	}
	return cut(unescape(b.String()), limit)
}

func skipBlanks(text []byte, i int) int {
	for i < len(text) && strings.IndexByte(" \t\n\r", text[i]) >= 0 {
		i++
	}
	return i
}

// cut returns the first n bytes of a text, whole characters only, with an ellipsis, and whether there are more.
func cut(text string, n int) (string, bool) {
	if len(text) <= n {
		return text, false
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + "…", true
}

// maxOpen is how many lines an object within JSON has at most that is not folded at first.
const maxOpen = 20

// fold writes JSON of several lines, as indent returns it, as HTML in which each object and each array inside can be folded. Its text is what it was.
func fold(text string) template.HTML {
	lines := strings.SplitAfter(text, "\n")
	ends := make(map[int]int) // the line that ends what a line begins
	var open []int
	for i, line := range lines {
		first := strings.TrimLeft(line, " ")
		if len(open) > 0 && (strings.HasPrefix(first, "}") || strings.HasPrefix(first, "]")) {
			ends[open[len(open)-1]] = i
			open = open[:len(open)-1]
		}
		if rest := strings.TrimSuffix(line, "\n"); rest != line && (strings.HasSuffix(rest, "{") || strings.HasSuffix(rest, "[")) {
			open = append(open, i)
		}
	}
	var b strings.Builder
	closes := make(map[int]bool)
	for i, line := range lines {
		end, isBegin := ends[i]
		escaped := template.HTMLEscapeString(line)
		switch {
		case isBegin && i > 0:
			closes[end] = true
			b.WriteString("<details")
			if end-i <= maxOpen {
				b.WriteString(" open")
			}
			b.WriteString("><summary>" + strings.TrimSuffix(escaped, "\n") + "<i>\n</i></summary>") // what is folded ends in the same line
		case closes[i]:
			b.WriteString(escaped + "</details>")
		default:
			b.WriteString(escaped)
		}
	}
	return template.HTML(b.String()) //nolint:gosec // all of it is escaped
}
