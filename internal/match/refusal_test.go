package match_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/queued/queued/internal/match"
)

func TestRefusedFiltersSayWhereAndWhatWasExpected(t *testing.T) {
	t.Parallel()
	many := func(n int, format, separator string) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = strings.ReplaceAll(format, "%", fmt.Sprint(i))
		}
		return strings.Join(parts, separator)
	}
	tests := []struct {
		topics  []string
		pattern string
		want    string // pointer: part of the detail; several with newlines between
	}{
		{nil, `[]`, "/match: expected an object"},
		{nil, `"x"`, "/match: expected an object"},
		{nil, `null`, "/match: expected an object"},
		{nil, `{`, "/match: invalid JSON"},
		{nil, `{} {}`, "/match: invalid JSON"},
		{nil, `{"a":["x"]}x`, "/match: invalid JSON"},
		{nil, ` `, "/match: invalid JSON"},
		{nil, `{"a":["\ud800"]}`, "/match/a/0: invalid JSON"},
		{nil, "{\"a\":[\"\xff\"]}", "/match/a/0: invalid JSON"},
		{nil, `{"a":["x"],"a":["y"]}`, "/match/a: duplicate member"},
		{nil, `{"b":{"a":["x"],"\u0061":["y"]}}`, "/match/b/a: duplicate member"},
		{nil, `{}`, "/match: empty"},
		{nil, `{"a":{}}`, "/match/a: empty"},
		{nil, `{"a":[]}`, "/match/a: empty"},
		{nil, `{"a":"x"}`, "/match/a: expected an array of alternatives"},
		{nil, `{"a/b":1,"~":null}`, "/match/a~1b: a number; expected an array\n/match/~0: null; expected an array"},
		{nil, `{"a":[["x"]]}`, "/match/a/0: an array; expected"},
		{nil, `{"a":[{}]}`, "/match/a/0: 0 members; expected one operator: prefix, "},
		{nil, `{"a":["x",{"prefix":"x","suffix":"y"}]}`, "/match/a/1: 2 members; expected one operator: prefix, "},
		{nil, `{"a":[{"regex":"x"}]}`, "/match/a/0/regex: unknown operator; expected one of prefix, suffix, equals-ignore-case, wildcard, anything-but, exists, numeric, cidr"},
		{nil, `{"a":[{"prefix":1}]}`, "/match/a/0/prefix: a number; expected a string"},
		{nil, `{"a":[{"prefix":{"suffix":"x"}}]}`, "/match/a/0/prefix: equals-ignore-case"},
		{nil, `{"a":[{"suffix":{"equals-ignore-case":[1]}}]}`, "/match/a/0/suffix/equals-ignore-case: an array; expected a string"},
		{nil, `{"a":[{"equals-ignore-case":true}]}`, "/match/a/0/equals-ignore-case: a boolean; expected a string"},
		{nil, `{"a":[{"exists":"true"}]}`, "/match/a/0/exists: expected true or false"},
		{nil, `{"a":[{"wildcard":3}]}`, "/match/a/0/wildcard: expected a string"},
		{nil, `{"a":[{"wildcard":"x**"}]}`, "/match/a/0/wildcard: two * in a row at byte 1"},
		{nil, `{"a":[{"wildcard":"x\\y"}]}`, "/match/a/0/wildcard: a backslash at byte 1"},
		{nil, `{"a":[{"wildcard":"x\\"}]}`, "/match/a/0/wildcard: a backslash at byte 1"},
		{nil, `{"a":[{"wildcard":"` + many(1001, "*a", "") + `"}]}`, "/match/a/0/wildcard: too many *; expected at most 1000"},
		{nil, `{"a":[{"anything-but":[]}]}`, "/match/a/0/anything-but: empty"},
		{nil, `{"a":[{"anything-but":null}]}`, "/match/a/0/anything-but: null; expected a string or a number"},
		{nil, `{"a":[{"anything-but":["x",true]}]}`, "/match/a/0/anything-but/1: a boolean; expected a string or a number"},
		{nil, `{"a":[{"anything-but":["x",1]}]}`, "/match/a/0/anything-but: strings and numbers together"},
		{nil, `{"a":[{"anything-but":{"numeric":["=",1]}}]}`, "/match/a/0/anything-but: one of the operators prefix, suffix, equals-ignore-case, wildcard"},
		{nil, `{"a":[{"anything-but":{"prefix":""}}]}`, "/match/a/0/anything-but/prefix: empty"},
		{nil, `{"a":[{"anything-but":{"suffix":["x",""]}}]}`, "/match/a/0/anything-but/suffix/1: empty"},
		{nil, `{"a":[{"anything-but":{"wildcard":["x",1]}}]}`, "/match/a/0/anything-but/wildcard/1: a number; expected a string"},
		{nil, `{"a":[{"anything-but":{"wildcard":"**"}}]}`, "/match/a/0/anything-but/wildcard: two *"},
		{nil, `{"d":{"price":[{"numeric":5}]}}`, "/match/d/price/0/numeric: a number; expected [\"=\", number]"},
		{nil, `{"a":[{"numeric":[]}]}`, "/match/a/0/numeric: an array of 0 elements"},
		{nil, `{"a":[{"numeric":["="]}]}`, "/match/a/0/numeric: an array of 1 elements"},
		{nil, `{"a":[{"numeric":["==",1]}]}`, "/match/a/0/numeric/0: expected one of =, <, <=, >, >="},
		{nil, `{"a":[{"numeric":[1,1]}]}`, "/match/a/0/numeric/0: expected one of"},
		{nil, `{"a":[{"numeric":[">","1"]}]}`, "/match/a/0/numeric/1: a string; expected a number"},
		{nil, `{"a":[{"numeric":["<",1,">",0]}]}`, "/match/a/0/numeric/0: expected one of >, >=\n/match/a/0/numeric/2: expected one of <, <="},
		{nil, `{"a":[{"numeric":["=",1,"<",2]}]}`, "/match/a/0/numeric/0: expected one of >, >="},
		{nil, `{"a":[{"numeric":[">",1,"<",30,false]}]}`, "/match/a/0/numeric: an array of 5 elements"},
		{nil, `{"a":[{"numeric":[">",1,"<",1]}]}`, "/match/a/0/numeric: the range is empty"},
		{nil, `{"a":[{"numeric":[">",30,"<",1]}]}`, "/match/a/0/numeric: the range is empty"},
		{nil, `{"a":[{"numeric":["=",1e309]}]}`, "/match/a/0/numeric/1: out of range"},
		{nil, `{"a":[-2.0e422,1e-325]}`, "/match/a/0: out of range\n/match/a/1: out of range"},
		{nil, `{"a":[{"cidr":1}]}`, "/match/a/0/cidr: a number; expected a string"},
		{nil, `{"a":[{"cidr":"10.0.0.0"}]}`, "/match/a/0/cidr: no address block"},
		{nil, `{"a":[{"cidr":"10.0.0.0/33"},{"cidr":"10.0.0/8"},{"cidr":"x/8"},{"cidr":"::ffff:1.2.3.4/120"}]}`, "/match/a/0/cidr: no address block\n/match/a/1/cidr: no address block\n/match/a/2/cidr: no address block\n/match/a/3/cidr: no address block"},
		{nil, `{"$or":{"a":[1]}}`, "/match/$or: expected an array of at least two objects"},
		{nil, `{"$or":[{"a":[1]}]}`, "/match/$or: expected an array of at least two objects"},
		{nil, `{"$or":[{"a":[1]},"x",{}]}`, "/match/$or/1: a string; expected an object\n/match/$or/2: empty"},
		{nil, `{"$or":[{"numeric":[1]},{"a":[1]}]}`, "/match/$or/0/numeric: an operator in place of a member"},
		{nil, `{"a":[1],"$or":[{"a":[2]},{"b":[2]}]}`, "/match/$or/0/a: compared at /match/a, too"},
		{nil, `{"a":[1],"$or":[{"a":{"c":[2]}},{"b":[2]}]}`, "/match/$or/0/a/c: compared at /match/a, too"},
		{nil, `{` + many(4, `"a%":{"$or":[`+many(6, `{"b%":[1]}`, ",")+`]}`, ",") + `}`, "/match: combinations or more; expected at most 1000"},
		{nil, `{` + many(40, `"c%":[1]`, ",") + "," + many(2, `"a%":{"$or":[`+many(12, `{"b%":[1]}`, ",")+`]}`, ",") + `}`, "/match: conditions over all combinations"},
		{nil, strings.Repeat(`{"a":`, 65) + `[1]` + strings.Repeat(`}`, 65), ": nested too deeply; expected at most 64 levels"},
		{nil, strings.Repeat(`{"a":`, 9000) + strings.Repeat(`}`, 9000), ": nested too deeply"},
		{nil, `{"a":[` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `]}`, ": nested too deeply"},
		{nil, `{"a":["` + strings.Repeat("x", 65536) + `"]}`, ": 65546 bytes; expected at most 65536"},
		{[]string{}, ``, "/topics: empty"},
		{[]string{"a", "", "a..b", ".a", "a."}, ``, "/topics/1: 0 bytes\n/topics/2: an empty word\n/topics/3: an empty word\n/topics/4: an empty word"},
		{[]string{"a.b.c.d.e.f.g.h.i", strings.Repeat("x", 256)}, ``, "/topics/0: 9 words; expected at most 8\n/topics/1: 256 bytes"},
		{[]string{"ord*", "**.a", "a.**.b", "a b", "ä", "***"}, ``, "/topics/0: whole word\n/topics/1: last word\n/topics/2: last word\n/topics/3: expected A–Z\n/topics/4: expected A–Z\n/topics/5: whole word"},
		{make([]string, 257), ``, "/topics: 257 topic patterns; expected at most 256"},
		{[]string{"*x"}, `{"a":1}`, "/topics/0: whole word\n/match/a: expected an array"},
	}
	for _, test := range tests {
		f, err := match.Parse(test.topics, []byte(test.pattern))
		var refused *match.Error
		if f != nil || !errors.As(err, &refused) {
			t.Errorf("%.100s: %v", test.pattern, err)
			continue
		}
		want := strings.Split(test.want, "\n")
		if len(refused.Violations) != len(want) {
			t.Errorf("%.100s: %v, want %d reasons", test.pattern, err, len(want))
			continue
		}
		for i, violation := range refused.Violations {
			pointer, parts, _ := strings.Cut(want[i], ": ")
			missing := false
			for part := range strings.SplitSeq(parts, "; ") {
				missing = missing || !strings.Contains(violation.Detail, part)
			}
			if pointer != "" && violation.Pointer != pointer || missing {
				t.Errorf("%.100s: %s: %s, want %s", test.pattern, violation.Pointer, violation.Detail, want[i])
			}
		}
	}
}

func TestAnErrorListsABoundedNumberOfReasons(t *testing.T) {
	t.Parallel()
	_, err := match.Parse(nil, []byte(`{"a":[`+strings.Repeat("[],", 5000)+`[]]}`))
	var refused *match.Error
	if !errors.As(err, &refused) || len(refused.Violations) != 20 {
		t.Fatal(err)
	}
}

func TestBoundsAreInclusive(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{
		strings.Repeat(`{"a":`, 64) + `[{"anything-but":{"prefix":["x"]}}]` + strings.Repeat(`}`, 64),
		`{"a":["` + strings.Repeat("x", 65536-10) + `"]}`,
		`{"$or":[` + strings.Repeat(`{"a":[1]},`, 999) + `{"a":[1]}]}`,
	} {
		if _, err := match.Parse(nil, []byte(pattern)); err != nil {
			t.Errorf("%.40s…: %v", pattern, err)
		}
	}
}

func TestCanonicalFormsAreEqualForEqualFilters(t *testing.T) {
	t.Parallel()
	for _, group := range [][]string{
		{`{"a":["x","y"],"b":{"c":[1]}}`, ` { "b" : { "c":[1.0,10e-1] } , "\u0061":["y","x","x"] } `},
		{`{"a":[{"anything-but":"x"}]}`, `{"a":[{"anything-but":["x","x"]}]}`},
		{`{"a":[{"equals-ignore-case":"Äb"}]}`, `{"a":[{"equals-ignore-case":"äB"}]}`},
		{`{"a":[{"cidr":"10.1.2.3/8"}]}`, `{"a":[{"cidr":"10.0.0.0/8"}]}`},
		{`{"a":[{"numeric":[">",0,"<=",1e2]}]}`, `{"a":[{"numeric":[">",-0.0,"<=",100]}]}`},
		{`{"$or":[{"a":[1]},{"b":[2]}]}`, `{"$or":[{"b":[2]},{"a":[1]}]}`},
	} {
		want := parse(t, group[0]).Canonical()
		for _, pattern := range group {
			if got := parse(t, pattern).Canonical(); !bytes.Equal(got, want) {
				t.Errorf("%s: %s, want %s", pattern, got, want)
			}
		}
	}
	seen := map[string]string{}
	for _, v := range vectors {
		form := string(parse(t, v.pattern).Canonical())
		if other, known := seen[form]; known {
			t.Errorf("%s and %s are both %s", v.pattern, other, form)
		}
		seen[form] = v.pattern
	}
	one, _ := match.Parse([]string{"b", "a.*", "b"}, nil)
	two, _ := match.Parse([]string{"a.*", "b"}, nil)
	if got, want := string(one.Canonical()), `{"topics":["a.*","b"]}`; got != want || string(two.Canonical()) != want {
		t.Errorf("%s, want %s", got, want)
	}
}
