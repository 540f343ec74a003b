package match_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/queued/queued/internal/match"
)

// Each shape is a filter of some 40 KiB whose parts multiply: names with what is under them, conditions with the combinations of $or.
var multipliedShapes = []struct {
	name, pattern string
	isRefused     bool
}{
	{"conditions by combinations", `{` + list(3300, member(`"c%d":[1]`)) + `,"$or":[` + list(990, member(`{"b%d":[1]}`)) + `]}`, true},
	{"conditions of branches by combinations", `{"a":{"$or":[{` + list(2000, member(`"c%d":[1]`)) + `},{"x":[1]}]},"$or":[` + list(490, member(`{"b%d":[1]}`)) + `]}`, true},
	{"combinations by combinations", `{"a":{"$or":[` + list(1500, member(`{"c%d":[1]}`)) + `]},"$or":[` + list(1500, member(`{"b%d":[1]}`)) + `]}`, true},
	{"alternatives under a long name", `{"` + strings.Repeat("x", 30_000) + `":[` + list(4000, member(`%d`)) + `]}`, false},
	{"members under a long name", `{"` + strings.Repeat("x", 30_000) + `":{` + list(1800, member(`"%d":[1]`)) + `}}`, false},
	{"refused members under a long name", `{"` + strings.Repeat("x", 30_000) + `":{` + list(1800, member(`"%d":1`)) + `}}`, true},
	{"members compared twice under a long name", `{"` + strings.Repeat("x", 30_000) + `":{"0":[1],"$or":[` + list(900, func(int) string { return `{"0":[2]}` }) + `]}}`, true},
	{"members under many names", strings.Repeat(`{"a":`, 60) + `{` + list(3500, member(`"%d":[1]`)) + `}` + strings.Repeat(`}`, 60), false},
}

func member(format string) func(int) string {
	return func(i int) string { return fmt.Sprintf(format, i) }
}

func TestAFilterTakesMemoryForItsTextAndNotForWhatItMultipliesTo(t *testing.T) { //nolint:paralleltest // it counts what the whole process allocates
	for _, shape := range multipliedShapes {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f, err := match.Parse(nil, []byte(shape.pattern))
		runtime.ReadMemStats(&after)
		if len(shape.pattern) > match.MaxBytes || (err != nil) != shape.isRefused {
			t.Errorf("%s: %d bytes, %.200v", shape.name, len(shape.pattern), err)
		}
		// 64 levels of objects, each written again for the canonical form, and twenty reasons with two long names each are the most.
		if factor := int(after.TotalAlloc-before.TotalAlloc) / len(shape.pattern); factor > 500 {
			t.Errorf("%s: %d times the memory of the text", shape.name, factor)
		} else {
			t.Logf("%s: %d times the memory of the text", shape.name, factor)
		}
		runtime.KeepAlive(f)
	}
}

func TestRefusalsOfMembersThatAreComparedTwiceNameEachOnce(t *testing.T) {
	t.Parallel()
	_, err := match.Parse(nil, []byte(`{"a":[1],"$or":[{"a":{"b":[1],"c":[1]},"x":{"$or":[{"y":[1]},{"z":[1]}]}},{"d":[1]}]}`))
	const want = "filter refused: /match/$or/0/a/b: the member is compared at /match/a, too; expected it in one place" +
		"; /match/$or/0/a/c: the member is compared at /match/a, too; expected it in one place"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
