package cli

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

func TestDistanceIsTheNumberOfEdits(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"same", "same", 0}, {"pasue", "pause", 1}, {"ab", "ba", 1}, {"tabel", "table", 1}} {
		if got := Distance(test.a, test.b); got != test.want {
			t.Errorf("Distance(%q, %q) = %d, want %d", test.a, test.b, got, test.want)
		}
	}
}

func TestFlagsAboutTheServerCanStandBeforeTheCommand(t *testing.T) {
	t.Parallel()
	parser, err := kong.New(new(Commands), kong.TypeMapper(reflect.TypeFor[time.Duration](), DurationMapper), kong.TypeMapper(reflect.TypeFor[time.Time](), TimeMapper))
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"--url X queues":                 "queues --url X",
		"--url=X -o json queue set mail": "queue set mail --url=X -o json",
		"--key K post -q a -- {}":        "post -q a --key K -- {}",
		"queues --url X":                 "queues --url X",
		"--listen :1 queues":             "--listen :1 queues",
		"--url X":                        "--url X",
		"--url X nothing":                "--url X nothing",
	} {
		if got := strings.Join(FlagsLast(parser.Model.Node, strings.Fields(line)), " "); got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}
