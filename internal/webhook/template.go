package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// A Template is a text with places that are filled in from a delivery: {/json/pointer} from its payload (RFC 6901), {header:Name} and {query:name}. There
// is no more language than this.
type Template struct {
	text  string
	parts []part
}

// A part is a literal, or a place.
type part struct {
	from string // pointer, header or query; empty: a literal
	name string // the pointer without its escapes, or the name; of a literal the text
	path []string
}

// ParseTemplate parses a template. Its error says what is wrong, for the one who wrote it.
func ParseTemplate(text string) (Template, error) {
	t := Template{text: text}
	for rest := text; rest != ""; {
		literal, place, isPlace := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return Template{}, errors.New("has a } without a { before it")
		}
		if literal != "" {
			t.parts = append(t.parts, part{name: literal})
		}
		if !isPlace {
			break
		}
		name, after, isClosed := strings.Cut(place, "}")
		if !isClosed {
			return Template{}, errors.New("has a { without a } after it")
		}
		p, err := parsePlace(name)
		if err != nil {
			return Template{}, err
		}
		t.parts, rest = append(t.parts, p), after
	}
	return t, nil
}

func parsePlace(text string) (part, error) {
	if strings.HasPrefix(text, "/") {
		p := part{from: "pointer", name: text, path: strings.Split(text[1:], "/")}
		for i, token := range p.path {
			for at := strings.IndexByte(token, '~'); at >= 0; {
				if at+1 == len(token) || token[at+1] != '0' && token[at+1] != '1' {
					return part{}, fmt.Errorf("{%s} is no JSON pointer: ~ must be followed by 0 or 1", text)
				}
				next := strings.IndexByte(token[at+1:], '~')
				if next < 0 {
					break
				}
				at += 1 + next
			}
			p.path[i] = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		}
		return p, nil
	}
	from, name, _ := strings.Cut(text, ":")
	switch {
	case from == "header" && IsFieldName(name):
		return part{from: from, name: http.CanonicalHeaderKey(name)}, nil
	case from == "query" && name != "":
		return part{from: from, name: name}, nil
	}
	return part{}, fmt.Errorf("{%s} must be {/json/pointer}, {header:Name} or {query:name}", text)
}

// IsFieldName reports whether a header field can have a name (RFC 9110, section 5.1).
func IsFieldName(name string) bool {
	for _, c := range []byte(name) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return name != ""
}

// String returns the template as it was parsed.
func (t Template) String() string { return t.text }

// IsEmpty reports whether the template is the empty text.
func (t Template) IsEmpty() bool { return len(t.parts) == 0 }

// A delivery has the values that templates are filled in from.
type delivery struct {
	header  http.Header
	query   url.Values
	payload any // as json.Decoder decodes it, with numbers as json.Number
}

// fill returns the text of the template for a delivery. An error says which place has no value, and the text is empty then.
func (t Template) fill(d *delivery) (string, error) {
	var text strings.Builder
	for _, p := range t.parts {
		value, ok := p.name, true
		switch p.from {
		case "pointer":
			value, ok = lookUp(d.payload, p.path)
		case "header":
			value = d.header.Get(p.name)
			ok = value != ""
		case "query":
			value, ok = d.query.Get(p.name), d.query.Has(p.name)
		}
		if !ok {
			return "", fmt.Errorf("%s meets no value", t.text)
		}
		text.WriteString(value)
	}
	return text.String(), nil
}

// lookUp returns the string, number or boolean at a path, as text.
func lookUp(value any, path []string) (string, bool) {
	for _, token := range path {
		switch v := value.(type) {
		case map[string]any:
			member, ok := v[token]
			if !ok {
				return "", false
			}
			value = member
		case []any:
			i, ok := arrayIndex(token)
			if !ok || i >= len(v) {
				return "", false
			}
			value = v[i]
		default:
			return "", false
		}
	}
	switch v := value.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return fmt.Sprint(v), true
	}
	return "", false
}

// arrayIndex returns the index that a token of a pointer is: decimal, without zeros before it.
func arrayIndex(token string) (i int, ok bool) {
	if token == "" || len(token) > 9 || len(token) > 1 && token[0] == '0' {
		return 0, false
	}
	for _, c := range []byte(token) {
		if c < '0' || c > '9' {
			return 0, false
		}
		i = 10*i + int(c-'0')
	}
	return i, true
}
