package cli

import (
	"io"
	"strings"
	"testing"
)

func TestOutputThatCannotBeStoredIsNoResult(t *testing.T) {
	t.Parallel()
	for output, isResult := range map[string]bool{
		`{"a":[1,"b",null,true,{}]}`: true, " 5\n": true, `"text"`: true, `[]`: true, strings.Repeat("[", 60) + strings.Repeat("]", 60): true,
		"text": false, `{"a":1} {"b":2}`: false, `{"a":`: false, `{"a":"\u0000"}`: false, `{"a\u0000":1}`: false, `{"a":1,"a":2}`: false, `"\ud800"`: false, `1e131072`: false,
		strings.Repeat("[", 100) + strings.Repeat("]", 100): false, "\"\xff\"": false,
	} {
		var passedOn strings.Builder
		got := new(executor).result(&headBuffer{kept: []byte(output)}, io.Writer(&passedOn))
		if (got != nil) != isResult || (passedOn.Len() > 0) == isResult {
			t.Errorf("%q: the result is %v, and %q was passed on", output, got, passedOn.String())
		}
	}
}
