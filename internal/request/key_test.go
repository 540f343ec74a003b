package request

import "testing"

func TestKeysAreReadWithAndWithoutQuotes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{` a-1 `: "a-1", `"a b"`: "a b", `"a\"b\\"`: `a"b\`, `"a`: "?", `"a"b`: "?", ``: ""} {
		got, isWell := IdempotencyKey(text)
		if !isWell {
			got = "?"
		}
		if got != want {
			t.Errorf("%s is read as %q, want %q", text, got, want)
		}
	}
}
