package ui

import (
	"encoding/json"
	"html"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestJSONIsIndentedAsTheStandardLibraryDoes(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{}`, `[]`, `"a"`, `{"a":{},"b":[],"c":[1,2,{"d":"e,{}[]:\"\\"}],"n":12345678901234567890.10}`, `{ "a" : [ ] , "b" : { } }`, `"ü\u0000"`, `-1e999`,
	} {
		if got, want := indent([]byte(text)), indentedBy(t, text); got != want {
			t.Errorf("%s is written %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{``, `{`, `"`, `"\`, `}`, `nonsense ]`} {
		if got := indent([]byte(text)); got != text {
			t.Errorf("%q, which is not JSON, is written %q", text, got)
		}
	}
}

func indentedBy(t *testing.T, text string) string {
	t.Helper()
	var compact json.RawMessage
	if err := json.Unmarshal([]byte(text), &compact); err != nil {
		t.Fatal(err)
	}
	indented, err := json.MarshalIndent(compact, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(indented)
}

func TestLongJSONIsCut(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a long text": `{"a":"` + strings.Repeat("ü", MaxShown) + `"}`,
		"deep":        strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000),
		"many":        "[" + strings.Repeat("1,", 1<<20) + "1]",
		"escapes":     `"` + strings.Repeat(`\"`, 1<<20) + `"`,
	} {
		shown := NewJSONText([]byte(text))
		if !shown.IsCut || len(shown.Text) > MaxShown+len("…") || !utf8.ValidString(shown.Text) || shown.Size != int64(len(text)) {
			t.Errorf("%s: %d bytes are shown, cut: %t, valid: %t", name, len(shown.Text), shown.IsCut, utf8.ValidString(shown.Text))
		}
	}
	if NewJSONText(nil) != nil || NewJSONText([]byte("null")) != nil {
		t.Error("what there is not is shown")
	}
}

func TestJSONFoldsAndKeepsItsText(t *testing.T) {
	t.Parallel()
	tags := regexp.MustCompile(`</?(?:details|summary|i)(?: open)?>`)
	long := `{"a":{"b":[1,2,{"c":"<i>"}],"e":{},"l":[` + strings.Repeat("1,", 30) + `1]},"z":"{"}`
	for _, text := range []string{"{}", "[]", "17", `"x"`, `{"a":1}`, long, `{"a":[[[`, `]]}`, strings.Repeat(`{"a":`, 30000)} {
		shown := indent([]byte(text))
		folded := string(fold(shown))
		if got := html.UnescapeString(tags.ReplaceAllString(folded, "")); got != shown {
			t.Errorf("%.40s: the text is %.200q, want %.200q", text, got, shown)
		}
		if strings.Count(folded, "<details") != strings.Count(folded, "</details>") || strings.Contains(folded, "<i>&#34;") {
			t.Errorf("%.40s: %.400s", text, folded)
		}
	}
	folded := string(fold(indent([]byte(long))))
	if strings.Count(folded, "<details open>") != 2 || strings.Count(folded, "<details>") != 2 || !strings.Contains(folded, "<details><summary>    &#34;l&#34;: [<i>\n</i></summary>") {
		t.Errorf("got %s", folded)
	}
}
