package match_test

import (
	"strings"
	"testing"

	"github.com/queued/queued/internal/match"
)

func parse(tb testing.TB, pattern string) *match.Filter {
	tb.Helper()
	f, err := match.Parse(nil, []byte(pattern))
	if err != nil {
		tb.Fatalf("%s: %v", pattern, err)
	}
	return f
}

// vectors are what each pattern takes and what not.
var vectors = []struct {
	name    string
	pattern string
	yes, no []string
}{
	{
		"strings compare exactly", `{"a":["x","Y"]}`,
		[]string{`{"a":"x"}`, `{"a":"Y"}`, `{"b":1,"a":"\u0078"}`, `{"\u0061":"x"}`, ` { "a" : "x" } `},
		[]string{`{}`, `{"a":"X"}`, `{"a":"x "}`, `{"a":""}`, `{"a":null}`, `{"a":{"x":"x"}}`, `{"b":"x"}`, `{"a":"xY"}`},
	},
	{"escapes stand for their characters", `{"\"a\\":["\"\\\"",{"prefix":"\n😀"}]}`, []string{`{"\"a\\":"\"\\\""}`, `{"\u0022a\u005c":"\u0022\u005C\""}`, `{"x":"\"","\"a\\":"\u000a\ud83d\ude00!"}`}, []string{`{"a":"\""}`, `{"\"a\\":"\""}`}},
	{"the empty string is a value", `{"a":[""]}`, []string{`{"a":""}`}, []string{`{}`, `{"a":null}`, `{"a":"x"}`, `{"a":[]}`}},
	{"null is a value, not absence", `{"a":[null]}`, []string{`{"a":null}`, `{"a":[1,null]}`}, []string{`{}`, `{"a":"null"}`, `{"a":[]}`, `{"a":false}`, `{"a":0}`}},
	{"booleans are no strings", `{"a":[true]}`, []string{`{"a":true}`}, []string{`{"a":"true"}`, `{"a":false}`, `{"a":1}`}},
	{"false is a value", `{"a":[false]}`, []string{`{"a":false}`}, []string{`{"a":true}`, `{"a":null}`, `{}`}},
	{
		"numbers compare by value", `{"a":[300,0.1,-4]}`,
		[]string{`{"a":300}`, `{"a":300.0}`, `{"a":3e2}`, `{"a":3.0E+2}`, `{"a":30000e-2}`, `{"a":0.10}`, `{"a":1e-1}`, `{"a":-4.00}`},
		[]string{`{"a":"300"}`, `{"a":300.0000001}`, `{"a":4}`, `{"a":0.1000000000000000055}`, `{"a":30}`},
	},
	{"all zeros are one", `{"a":[0]}`, []string{`{"a":0}`, `{"a":-0}`, `{"a":0.000}`, `{"a":0e7}`}, []string{`{"a":1e-300}`, `{"a":""}`, `{"a":false}`}},
	{
		"integers above 2^53 keep their digits", `{"a":[9007199254740993]}`,
		[]string{`{"a":9007199254740993}`, `{"a":9007199254740993.0}`},
		[]string{`{"a":9007199254740992}`, `{"a":9007199254740994}`},
	},
	{
		"numbers of many digits compare by all of them", `{"a":[12345678901234567890123]}`,
		[]string{`{"a":12345678901234567890123}`, `{"a":1.2345678901234567890123e22}`, `{"a":12345678901234567890123.000}`},
		[]string{`{"a":12345678901234567890124}`, `{"a":12345678901234567890}`},
	},
	{"alternatives may differ in their types", `{"a":["x",1,null,{"prefix":"y"}]}`, []string{`{"a":"x"}`, `{"a":1}`, `{"a":null}`, `{"a":"yes"}`}, []string{`{"a":2}`, `{"a":true}`}},
	{"all members have to match", `{"a":[1],"b":[2]}`, []string{`{"a":1,"b":2}`, `{"b":2,"c":3,"a":1}`}, []string{`{"a":1}`, `{"b":2}`, `{"a":2,"b":1}`}},
	{
		"objects within have to match", `{"a":{"b":{"c":[1]}}}`,
		[]string{`{"a":{"b":{"c":1}}}`, `{"a":{"x":0,"b":{"c":1,"d":2}}}`},
		[]string{`{"a":{"b":1}}`, `{"a":{"c":1}}`, `{"a":1}`, `{"a":{"b":{}}}`, `{"c":1}`},
	},
	{"a dot is a character of a name", `{"a.b":[1]}`, []string{`{"a.b":1}`}, []string{`{"a":{"b":1}}`}},

	{"prefix", `{"a":[{"prefix":"ab"}]}`, []string{`{"a":"ab"}`, `{"a":"abc"}`, `{"a":["x","abc"]}`}, []string{`{"a":"a"}`, `{"a":"xab"}`, `{"a":"Ab"}`, `{"a":1}`, `{}`}},
	{"an empty prefix takes every string", `{"a":[{"prefix":""}]}`, []string{`{"a":""}`, `{"a":"x"}`}, []string{`{"a":1}`, `{"a":null}`, `{}`}},
	{"prefix regardless of case", `{"a":[{"prefix":{"equals-ignore-case":"aÉ"}}]}`, []string{`{"a":"aé"}`, `{"a":"AÉx"}`}, []string{`{"a":"ae"}`, `{"a":"xaé"}`}},
	{"suffix", `{"a":[{"suffix":".png"}]}`, []string{`{"a":".png"}`, `{"a":"x.png"}`}, []string{`{"a":"x.PNG"}`, `{"a":"png"}`, `{"a":"x.png "}`, `{"a":3}`}},
	{"an empty suffix takes every string", `{"a":[{"suffix":""}]}`, []string{`{"a":""}`, `{"a":"x"}`}, []string{`{"a":true}`}},
	{"suffix of several bytes a character", `{"a":[{"suffix":"大学"}]}`, []string{`{"a":"北京大学"}`}, []string{`{"a":"大学生"}`, `{"a":"学"}`}},
	{"suffix regardless of case", `{"a":[{"suffix":{"equals-ignore-case":".PnG"}}]}`, []string{`{"a":"x.png"}`, `{"a":"x.PNG"}`}, []string{`{"a":"x.pn"}`}},
	{
		"equality regardless of case", `{"a":[{"equals-ignore-case":"Straße"}]}`,
		[]string{`{"a":"straße"}`, `{"a":"STRAẞE"}`},
		[]string{`{"a":"strasse"}`, `{"a":"straß"}`, `{"a":"straßen"}`, `{"a":0}`},
	},
	{"case folding across lengths", `{"a":[{"equals-ignore-case":"ⱥk"}]}`, []string{`{"a":"Ⱥk"}`, `{"a":"ⱥK"}`, `{"a":"Ⱥ\u212a"}`}, []string{`{"a":"ak"}`}},

	{"wildcard in the middle", `{"a":[{"wildcard":"dir/*.png"}]}`, []string{`{"a":"dir/.png"}`, `{"a":"dir/a/b.png"}`, `{"a":"dir/x.png.png"}`}, []string{`{"a":"dir.png"}`, `{"a":"dir/x.jpg"}`, `{"a":"x/dir/y.png"}`, `{"a":1}`}},
	{"wildcard at both ends", `{"a":[{"wildcard":"*foo*"}]}`, []string{`{"a":"foo"}`, `{"a":"xfoo"}`, `{"a":"foox"}`, `{"a":"fofoofo"}`}, []string{`{"a":"fo"}`, `{"a":"fofo"}`, `{"a":"FOO"}`}},
	{"wildcards short of a gram", `{"a":[{"wildcard":"*a*b*"}]}`, []string{`{"a":"ab"}`, `{"a":"xaxbx"}`}, []string{`{"a":"ba"}`, `{"a":"a"}`, `{"a":""}`}},
	{"parts do not overlap", `{"a":[{"wildcard":"aba*aba"}]}`, []string{`{"a":"abaaba"}`, `{"a":"abaxaba"}`}, []string{`{"a":"aba"}`, `{"a":"ababa"}`}},
	{"parts come in their order", `{"a":[{"wildcard":"*ab*cd*ab*"}]}`, []string{`{"a":"abcdab"}`, `{"a":"xababcdcdabx"}`}, []string{`{"a":"abab"}`, `{"a":"cdabab"}`, `{"a":"abcd"}`}},
	{"a star takes every string", `{"a":[{"wildcard":"*"}]}`, []string{`{"a":""}`, `{"a":"x"}`}, []string{`{"a":1}`, `{"a":null}`, `{}`}},
	{"no star is equality", `{"a":[{"wildcard":"x"}]}`, []string{`{"a":"x"}`}, []string{`{"a":"xx"}`, `{"a":""}`}},
	{"a backslash makes a star plain", `{"a":[{"wildcard":"a\\**\\\\"}]}`, []string{`{"a":"a*\\"}`, `{"a":"a*xyz\\"}`}, []string{`{"a":"ax\\"}`, `{"a":"a*"}`, `{"a":"a\\*\\x"}`}},

	{"anything-but a string takes all other values", `{"a":[{"anything-but":"x"}]}`, []string{`{"a":"y"}`, `{"a":""}`, `{"a":1}`, `{"a":null}`, `{"a":true}`, `{"a":["x","y"]}`}, []string{`{"a":"x"}`, `{}`, `{"a":["x","x"]}`, `{"a":[]}`, `{"a":{"b":1}}`}},
	{"anything-but a list", `{"a":[{"anything-but":["x","y"]}]}`, []string{`{"a":"z"}`, `{"a":1}`}, []string{`{"a":"x"}`, `{"a":"y"}`, `{}`}},
	{"anything-but a long list", `{"a":[{"anything-but":["a","b","c","d","e","f","g","h","i"]}]}`, []string{`{"a":"z"}`}, []string{`{"a":"a"}`, `{"a":"i"}`}},
	{"anything-but a number", `{"a":[{"anything-but":123}]}`, []string{`{"a":124}`, `{"a":"123"}`, `{"a":false}`}, []string{`{"a":123}`, `{"a":1.23e2}`, `{}`}},
	{"anything-but numbers", `{"a":[{"anything-but":[1,2]}]}`, []string{`{"a":3}`, `{"a":[1,3]}`}, []string{`{"a":1.0}`, `{"a":2}`, `{"a":[1,2]}`}},
	{"anything-but a prefix", `{"a":[{"anything-but":{"prefix":"$"}}]}`, []string{`{"a":"v$"}`, `{"a":""}`, `{"a":5}`, `{"a":null}`}, []string{`{"a":"$v"}`, `{"a":"$"}`, `{}`}},
	{"anything-but prefixes", `{"a":[{"anything-but":{"prefix":["in","er"]}}]}`, []string{`{"a":"ok"}`}, []string{`{"a":"init"}`, `{"a":"error"}`}},
	{"anything-but a suffix", `{"a":[{"anything-but":{"suffix":"$"}}]}`, []string{`{"a":"$v"}`, `{"a":5}`}, []string{`{"a":"v$"}`, `{}`}},
	{"anything-but suffixes", `{"a":[{"anything-but":{"suffix":[".a",".b"]}}]}`, []string{`{"a":"x.c"}`}, []string{`{"a":"x.a"}`, `{"a":"x.b"}`}},
	{"anything-but regardless of case", `{"a":[{"anything-but":{"equals-ignore-case":["yes","please"]}}]}`, []string{`{"a":"no"}`, `{"a":"yes!"}`, `{"a":1}`}, []string{`{"a":"YES"}`, `{"a":"pLease"}`, `{}`}},
	{"anything-but a wildcard", `{"a":[{"anything-but":{"wildcard":"*foo*"}}]}`, []string{`{"a":"barfobarobar"}`, `{"a":1}`}, []string{`{"a":"foo"}`, `{"a":"barfoobar"}`, `{}`}},
	{"anything-but wildcards", `{"a":[{"anything-but":{"wildcard":["*/bin/*.jar","*/bin/*.class"]}}]}`, []string{`{"a":"a/bin/x.so"}`}, []string{`{"a":"a/bin/x.jar"}`, `{"a":"/bin/.class"}`}},
	{"anything-but beside others is one alternative", `{"a":[{"anything-but":"x"},"x"]}`, []string{`{"a":"x"}`, `{"a":"y"}`}, []string{`{}`}},

	{"exists", `{"a":[{"exists":true}]}`, []string{`{"a":1}`, `{"a":null}`, `{"a":""}`, `{"a":[1]}`, `{"a":[[null]]}`}, []string{`{}`, `{"a":{}}`, `{"a":{"b":1}}`, `{"a":[]}`, `{"a":[{}]}`}},
	{"exists not", `{"a":[{"exists":false}]}`, []string{`{}`, `{"b":1}`, `{"a":{"b":1}}`, `{"a":[]}`}, []string{`{"a":null}`, `{"a":0}`, `{"a":[{},1]}`}},
	{"exists not, within", `{"a":{"b":[{"exists":false}]}}`, []string{`{}`, `{"a":1}`, `{"a":{}}`, `{"a":{"c":1}}`, `{"a":[{"c":1}]}`}, []string{`{"a":{"b":1}}`, `{"a":[{"c":1},{"b":1}]}`}},
	{"absent or a value", `{"a":[{"exists":false},"x"]}`, []string{`{}`, `{"a":"x"}`, `{"a":["y","x"]}`}, []string{`{"a":"y"}`, `{"a":null}`}},
	{"absent beside a value", `{"a":[{"exists":false}],"b":[1]}`, []string{`{"b":1}`}, []string{`{"a":1,"b":1}`, `{}`, `{"b":2}`}},
	{"anything but existence", `{"a":[{"exists":false},{"exists":true}]}`, []string{`{}`, `{"a":1}`}, nil},

	{"numeric equality", `{"a":[{"numeric":["=",3.018e2]}]}`, []string{`{"a":301.8}`, `{"a":[0,301.80]}`}, []string{`{"a":"301.8"}`, `{"a":301}`}},
	{"numeric below", `{"a":[{"numeric":["<",0]}]}`, []string{`{"a":-0.1}`, `{"a":-1e300}`, `{"a":-1e-300}`}, []string{`{"a":0}`, `{"a":-0.0}`, `{"a":1}`, `{"a":"-1"}`, `{"a":null}`}},
	{"numeric at most", `{"a":[{"numeric":["<=",0]}]}`, []string{`{"a":0}`, `{"a":-7}`}, []string{`{"a":1e-9}`}},
	{"numeric above", `{"a":[{"numeric":[">",-1.5]}]}`, []string{`{"a":-1.4}`, `{"a":0}`, `{"a":7e99}`}, []string{`{"a":-1.5}`, `{"a":-1.50}`, `{"a":-2}`, `{"a":-15}`}},
	{"numeric at least", `{"a":[{"numeric":[">=",10]}]}`, []string{`{"a":10}`, `{"a":11}`, `{"a":1e1}`}, []string{`{"a":9.99}`, `{"a":-10}`}},
	{"numeric range", `{"a":[{"numeric":[">",0,"<=",5]}]}`, []string{`{"a":5}`, `{"a":0.001}`, `{"a":[9,3]}`}, []string{`{"a":0}`, `{"a":5.01}`, `{"a":-3}`, `{"a":[0,9]}`}},
	{"numeric ranges of many digits", `{"a":[{"numeric":[">=",9007199254740993,"<",9007199254740994]}]}`, []string{`{"a":9007199254740993}`, `{"a":9007199254740993.5}`}, []string{`{"a":9007199254740992}`, `{"a":9007199254740994}`}},

	{"address block", `{"a":[{"cidr":"220.160.154.255/24"}]}`, []string{`{"a":"220.160.154.0"}`, `{"a":"220.160.154.255"}`, `{"a":"::ffff:dca0:9a07"}`}, []string{`{"a":"220.160.153.255"}`, `{"a":"220.160.155.0"}`, `{"a":"220.160.154"}`, `{"a":"x"}`, `{"a":220}`, `{"a":"::1"}`}},
	{"address block of all IPv4", `{"a":[{"cidr":"0.0.0.0/0"}]}`, []string{`{"a":"1.2.3.4"}`}, []string{`{"a":"::1"}`, `{"a":""}`}},
	{"address block of IPv6", `{"a":[{"cidr":"2001:db8::/33"}]}`, []string{`{"a":"2001:db8::1"}`, `{"a":"2001:0DB8:0:0:0:0:0:1"}`}, []string{`{"a":"2001:db8:8000::1"}`, `{"a":"2001:db8::1%eth0"}`, `{"a":"32.1.13.184"}`}},
	{"address block of one", `{"a":[{"cidr":"10.0.0.1/32"}]}`, []string{`{"a":"10.0.0.1"}`}, []string{`{"a":"10.0.0.0"}`, `{"a":"10.0.0.2"}`}},

	{"or", `{"s":[1],"$or":[{"a":[1,2]},{"b":[3]}]}`, []string{`{"s":1,"a":2}`, `{"s":1,"b":3}`, `{"s":1,"a":1,"b":3}`}, []string{`{"a":1}`, `{"s":1}`, `{"s":1,"a":3,"b":1}`}},
	{"or within", `{"d":{"$or":[{"a":[1]},{"b":[2],"c":[3]}]}}`, []string{`{"d":{"a":1}}`, `{"d":{"b":2,"c":3}}`}, []string{`{"d":{"b":2}}`, `{"a":1}`}},
	{"or twice", `{"$or":[{"a":[1]},{"b":[1]}],"d":{"$or":[{"e":[1]},{"f":[1]}]}}`, []string{`{"a":1,"d":{"e":1}}`, `{"b":1,"d":{"f":1}}`}, []string{`{"a":1}`, `{"d":{"e":1}}`}},
	{"or in or", `{"$or":[{"a":[1]},{"b":[2],"$or":[{"c":[3]},{"d":[4]}]}]}`, []string{`{"a":1}`, `{"b":2,"c":3}`, `{"b":2,"d":4}`}, []string{`{"b":2}`, `{"c":3,"d":4}`}},
	{"or joins the same element", `{"d":{"c":[1]},"$or":[{"d":{"a":[1]}},{"d":{"b":[1]}}]}`, []string{`{"d":[{"c":1,"b":1}]}`}, []string{`{"d":[{"c":1},{"a":1}]}`, `{"d":{"c":1}}`}},
	{"$or compares a member by each branch", `{"$or":[{"a":[{"prefix":"x"}]},{"a":[{"numeric":[">",5]}]}]}`, []string{`{"a":"xy"}`, `{"a":6}`}, []string{`{"a":5}`, `{"a":"y"}`}},
	{"other names with $ are names", `{"$and":[1]}`, []string{`{"$and":1}`}, []string{`{}`}},

	{"any element of an array", `{"a":["x"]}`, []string{`{"a":["y","x"]}`, `{"a":["y",["z",["x"]]]}`, `{"a":[{"b":1},"x"]}`}, []string{`{"a":["y"]}`, `{"a":[]}`, `{"a":[{"a":"x"}]}`, `{"a":[["y"]]}`}},
	{"each condition by its own element of an array of values", `{"a":["x"],"b":["y"]}`, []string{`{"a":["x","z"],"b":["z","y"]}`}, []string{`{"a":["y"],"b":["x"]}`}},
	{"the members of one element", `{"e":{"f":["Anna"],"l":["Smith"]}}`, []string{`{"e":[{"f":"Anna","l":"Smith"}]}`, `{"e":[{"f":"Jo"},{"l":"Smith","f":"Anna"}]}`, `{"e":[[{"f":"x"}],[[{"f":"Anna","l":"Smith"}]]]}`}, []string{`{"e":[{"f":"Anna","l":"Jones"},{"f":"Jo","l":"Smith"}]}`, `{"e":[{"f":"Anna"},{"l":"Smith"}]}`, `{"e":[[{"f":"Anna"}],[{"l":"Smith"}]]}`, `{"e":[]}`}},
	{"elements within elements", `{"u":{"n":[1],"t":{"k":["c"],"v":["b"]}}}`, []string{`{"u":[{"n":1,"t":[{"k":"c","v":"b"}]}]}`, `{"u":[{"n":2},{"n":1,"t":[{"k":"x","v":"b"},{"v":"b","k":"c"}]}]}`}, []string{`{"u":[{"n":1,"t":[{"k":"c"},{"v":"b"}]}]}`, `{"u":[{"n":1},{"t":[{"k":"c","v":"b"}]}]}`}},
	{"arrays beside each other are independent", `{"a":{"x":[1]},"b":{"y":[2]}}`, []string{`{"a":[{"x":0},{"x":1}],"b":[{"y":2},{"y":3}]}`}, []string{`{"a":[{"x":1}],"b":[{"y":3}]}`}},
	{"absence within the same element", `{"d":{"a":[1],"b":[{"exists":false}]}}`, []string{`{"d":[{"a":1}]}`, `{"d":[{"a":2,"b":2},{"a":1}]}`, `{"d":[{"b":2},{"a":1}]}`}, []string{`{"d":[{"a":1,"b":2}]}`, `{"d":[{"a":1,"b":1},{"a":2}]}`}},
	{"absence does not depend on names", `{"d":{"b":[1],"a":[{"exists":false}]}}`, []string{`{"d":[{"a":2},{"b":1}]}`}, []string{`{"d":[{"b":1,"a":2}]}`}},
	{"absence from the whole array", `{"d":{"b":[{"exists":false}]}}`, []string{`{"d":[{"a":1},{"a":2}]}`}, []string{`{"d":[{"a":1},{"b":2}]}`}},
	{"absence further within the same element", `{"r":{"s":["on"],"c":{"d":{"n":[{"exists":false}]}}}}`, []string{`{"r":[{"s":"on","c":[{"x":1}]},{"s":"off","c":[{"d":[{"n":1}]}]}]}`}, []string{`{"r":[{"s":"on","c":[{"d":[{"m":1},{"n":1}]}]},{"s":"off"}]}`}},
	{"a value in one branch and an object in another", `{"$or":[{"d":[1]},{"d":{"a":[1],"b":[1]}}]}`, []string{`{"d":1}`, `{"d":[{"a":1,"b":1}]}`}, []string{`{"d":[{"a":1},{"b":1}]}`}},
	{"anything-but within an element", `{"u":{"s":[{"anything-but":"banned"}],"n":[{"exists":true}]}}`, []string{`{"u":[{"n":1,"s":"banned"},{"n":2,"s":"ok"}]}`}, []string{`{"u":[{"n":1,"s":"banned"},{"s":"ok"}]}`}},
}

func TestPatternsTakeWhatTheirUsersExpect(t *testing.T) {
	t.Parallel()
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			f := parse(t, v.pattern)
			for _, event := range v.yes {
				if !f.Matches("t", []byte(event)) {
					t.Errorf("%s does not match %s", v.pattern, event)
				}
				if !naiveMatch(t, v.pattern, event) {
					t.Errorf("the naive matcher: %s does not match %s", v.pattern, event)
				}
			}
			for _, event := range v.no {
				if f.Matches("t", []byte(event)) {
					t.Errorf("%s matches %s", v.pattern, event)
				}
				if naiveMatch(t, v.pattern, event) {
					t.Errorf("the naive matcher: %s matches %s", v.pattern, event)
				}
			}
		})
	}
}

// Filters in one index do not change each other's answers, whatever access predicates they share.
func TestFiltersInOneIndexAnswerAsAlone(t *testing.T) {
	t.Parallel()
	var filters []*match.Filter
	for _, v := range vectors {
		filters = append(filters, parse(t, v.pattern))
	}
	index := match.NewIndex(filters)
	for _, v := range vectors {
		for _, event := range append(v.yes, v.no...) {
			compareWithEach(t, index, filters, "t", event)
		}
	}
}

func compareWithEach(t *testing.T, index *match.Index, filters []*match.Filter, topic, event string) {
	t.Helper()
	got := index.Match(topic, []byte(event), nil)
	var want []int32
	for i, f := range filters {
		if f != nil && f.Matches(topic, []byte(event)) {
			want = append(want, int32(i))
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%s on %s: %v, want %v", event, topic, got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s on %s: %v, want %v", event, topic, got, want)
		}
	}
}

func TestTopicPatterns(t *testing.T) {
	t.Parallel()
	tests := []struct {
		patterns string
		yes, no  string
	}{
		{"order.placed", "order.placed", "order order.placed.now Order.placed order.place"},
		{"order.*", "order.placed order.a:b-c_d", "order order.placed.now xorder.placed"},
		{"*.placed", "order.placed", "placed a.order.placed"},
		{"order.**", "order.a order.a.b order.a.b.c.d.e.f.g", "order orders.a"},
		{"*.b.**", "a.b.c x.b.c.d", "a.b b.c.d"},
		{"**", "a a.b a.b.c.d.e.f.g.h queued queueds.a", "queued.a queued.a.b"},
		{"* *.* *.**", "a a.b queued", "queued.a queued.a.b"},
		{"queued.*", "queued.a", "queued queued.a.b"},
		{"queued.** a", "queued.a queued.a.b a", "queued"},
		{"*", "a", "a.b"},
		{"a.* b.c *.d", "a.x b.c q.d a.d", "b.x a.b.c"},
	}
	for _, test := range tests {
		f, err := match.Parse(strings.Fields(test.patterns), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, topic := range strings.Fields(test.yes) {
			if !f.Matches(topic, []byte(`{}`)) {
				t.Errorf("%s does not match %s", test.patterns, topic)
			}
		}
		for _, topic := range strings.Fields(test.no) {
			if f.Matches(topic, []byte(`{}`)) {
				t.Errorf("%s matches %s", test.patterns, topic)
			}
		}
	}
}

func TestTopicsAndMatchBothHaveToHold(t *testing.T) {
	t.Parallel()
	f, err := match.Parse([]string{"a.*", "b"}, []byte(`{"x":[1]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		topic, event string
		want         bool
	}{
		{"a.b", `{"x":1}`, true},
		{"b", `{"x":1}`, true},
		{"b", `{"x":2}`, false},
		{"c", `{"x":1}`, false},
		{"", `{"x":1}`, false},
		{"a.b.c.d.e.f.g.h.i", `{"x":1}`, false},
	} {
		if got := f.Matches(test.topic, []byte(test.event)); got != test.want {
			t.Errorf("%s on %q: %v", test.event, test.topic, got)
		}
	}
}

func TestWhatIsNoObjectMatchesOnlyFiltersThatDoNotLookAtIt(t *testing.T) {
	t.Parallel()
	index := match.NewIndex([]*match.Filter{parse(t, `{"a":[{"exists":false}]}`), parse(t, ``), parse(t, `{"b":{"c":[1]}}`)})
	deep := `{"b":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "}"
	for _, event := range []string{``, `[]`, `1`, `{`, `{"b"`, `{"b":`, `{"b":1`, `{"b":[1`, `{"b":{"c":1}`, `{"b":"x`, `{"b":{"c":x}}`, `{"b":"\`, `{"a":1,}`, deep} {
		if got := index.Match("t", []byte(event), nil); len(got) != 1 || got[0] != 1 {
			t.Errorf("%.40q: %v, want [1]", event, got)
		}
	}
}
