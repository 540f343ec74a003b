package pages

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// settings are the JSON of a call, from fields of a form that are named by their pointers there, such as rate_limit/burst. Fields that are empty are left out.
// What is in them is for the API to judge, so that whatever is wrong is said at once and at its field.
type settings map[string]any

// put sets what a pointer leads to.
func (s settings) put(pointer string, value any) {
	name, rest, isBelow := strings.Cut(pointer, "/")
	if !isBelow {
		s[name] = value
		return
	}
	below, ok := s[name].(settings)
	if !ok {
		below = settings{}
		s[name] = below
	}
	below.put(rest, value)
}

// texts sets fields that are strings.
func (s settings) texts(v *visit, names ...string) {
	for _, name := range names {
		if text := v.form.Get(name); text != "" {
			s.put(name, text)
		}
	}
}

// numbers sets fields that are numbers.
func (s settings) numbers(v *visit, names ...string) {
	for _, name := range names {
		if text := strings.TrimSpace(v.form.Get(name)); text != "" {
			s.put(name, numberOf(text))
		}
	}
}

// numberOf returns a number as it was entered; what is none stays a text, which the API refuses.
func numberOf(text string) any {
	var n json.Number
	if json.Unmarshal([]byte(text), &n) != nil || strings.HasPrefix(text, `"`) {
		return text
	}
	return n
}

// lines returns the lines of a field that are not empty, without the space around them.
func (v *visit) lines(name string) []string {
	lines := []string{}
	for line := range strings.Lines(v.form.Get(name)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// words returns what is between the spaces and commas of a field.
func (v *visit) words(name string) []string {
	return strings.FieldsFunc(v.form.Get(name), func(c rune) bool { return c == ',' || unicode.IsSpace(c) })
}

// headers returns the header fields that were entered, one a line.
func (v *visit) headers(name string) (map[string][]string, error) {
	fields := make(map[string][]string)
	for i, line := range v.lines(name) {
		field, value, found := strings.Cut(line, ":")
		if field = strings.TrimSpace(field); !found || field == "" {
			return nil, invalid(name, fmt.Sprintf("has something else than Name: value in its line %d", i+1))
		}
		fields[field] = append(fields[field], strings.TrimSpace(value))
	}
	return fields, nil
}
