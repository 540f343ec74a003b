//go:build linux

package doctest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A normalizer finds what differs from run to run. The first group of its expression is that; without a group, all of it is.
type normalizer struct {
	kind  string
	found *regexp.Regexp
	// isName says that it names something: the same text is always the same thing, in commands, too.
	isName bool
	// differs says whether a text that was printed does differ from run to run; nil: it always does.
	differs func(printed string) bool
}

// normalizers are applied in order: what one has found, those after it do not see.
var normalizers = []normalizer{
	{"database", regexp.MustCompile(`\bhost=\S+ user=\S+ dbname=[\w-]+`), false, nil},
	{"receipt", regexp.MustCompile(`\b\d+\.\d+\.[0-9a-f]{16}\b`), true, nil},
	{"key", regexp.MustCompile(`\bqk_[a-z2-7]{8}_[a-z2-7]+`), true, nil},
	{"id of a key", regexp.MustCompile(`(?:the key |"id":"|key:|"target":"|/keys/|rotate |revoke )([a-z2-7]{8})\b`), true, nil},
	{"token", regexp.MustCompile(`\bqt_[\w.-]+`), true, nil},
	{"secret", regexp.MustCompile(`\bwhsec_[A-Za-z0-9+/]{43}=`), true, nil},
	{"random id", regexp.MustCompile(`\b[A-Z2-7]{26}\b`), true, nil},
	{"idempotency key", regexp.MustCompile(`\bclient-[0-9A-V]{26}\b`), true, nil},
	{"cursor", regexp.MustCompile(`"(?:cursor|next)":"([\w=-]+)"`), true, nil},
	{"cursor", regexp.MustCompile(`\bA[A-Za-z0-9_-]{21,}\b`), true, nil},
	{"time", regexp.MustCompile(`\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d(?::\d\d)?)?`), false, isAroundNow},
	{"time", regexp.MustCompile(`\b[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT`), false, nil},
	{"age", regexp.MustCompile(`\((now|\d+\w+ ago|in \d[\w ]*)\)`), false, nil},
	{"age", regexp.MustCompile(`\b\d+[smhd] ago\b|\bin \d+[smhd]\b| (now) `), false, nil},
	{"age", regexp.MustCompile(`"(?:oldest_ready_age|age)": ?"([^"]*)"`), false, nil},
	{"duration", regexp.MustCompile(`"(?:\w+_)?(?:ms|seconds)": ?([\d.]+)`), false, nil},
	{"duration", regexp.MustCompile(`\b\d+(?:\.\d+)?(?:ms|µs|us)\b|\b\d+\.\d+s\b`), false, nil},
	{"duration", regexp.MustCompile(`\b(?:busy_)?seconds=([\d.]+)`), false, nil},
	{"duration", regexp.MustCompile(`^(?:took|behind): +(\d[\w.]*)$`), false, nil},
	{"version", regexp.MustCompile(`"(?:version|go)": ?"([\d.]+)"`), false, nil},
	{"commit", regexp.MustCompile(`,"commit":"[0-9a-f]+"`), false, nil},
	{"version of a row", regexp.MustCompile(`"version": ?(\d{3,})\b`), true, nil},
	{"version of a row", regexp.MustCompile(`^version: +(\d+)`), true, nil},
	{"process", regexp.MustCompile(`"process": ?"([^"]*)"`), false, nil},
	{"process", regexp.MustCompile(`\bpid=(\d+)`), false, nil},
	{"process", regexp.MustCompile(`^\[\d+\] (\d+)$`), false, nil},
	{"count of a process", regexp.MustCompile(`^ +"(?:posted|claimed|acked|nacked|failed)": (\d+),$`), false, nil}, // reported every few seconds
	{"pause", regexp.MustCompile(`^retry: (\d+)$`), false, nil},
	{"length", regexp.MustCompile(`^Content-Length: (\d+)\r?$`), false, nil}, // of a body with times, whose last digits are left out when they are zeros
	{"identity", regexp.MustCompile(`\b(?:system|database|table) (\d{5,})`), false, nil},
	{"position", regexp.MustCompile(`\b\d{10,}\b`), true, nil},
	{"padding", regexp.MustCompile(`\S( {2,})\S`), false, nil},
	{"padding", regexp.MustCompile(` +$`), false, nil},
}

// isAroundNow says whether a time is about now: those that are not are computed from what the command says, and stay as they are.
func isAroundNow(text string) bool {
	text = strings.Replace(text, " ", "T", 1)[:len("2006-01-02T15:04:05")]
	at, err := time.Parse("2006-01-02T15:04:05", text)
	return err == nil && time.Since(at).Abs() < 45*24*time.Hour
}

// A token is something that differs from run to run.
type token struct {
	kind   string
	text   string
	isName bool
	begin  int
}

// tokens returns what differs from run to run in a line, in order.
func tokens(line string, isPrinted bool) []token {
	var list []token
	taken := make([]bool, len(line))
	for _, n := range normalizers {
		// Lookaround is not in regexp: where groups share a character, such as the columns of a table, go on from the end of the group.
		for from := 0; from <= len(line); {
			at := n.found.FindStringSubmatchIndex(line[from:])
			if at == nil {
				break
			}
			begin, end := at[0]+from, at[1]+from
			if len(at) > 2 && at[2] >= 0 {
				begin, end = at[2]+from, at[3]+from
			}
			from = max(end, from+1)
			if begin == end || slices.Contains(taken[begin:end], true) {
				continue
			}
			if text := line[begin:end]; !isPrinted || n.differs == nil || n.differs(text) {
				list = append(list, token{n.kind, text, n.isName, begin})
				for i := begin; i < end; i++ {
					taken[i] = true
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b token) int { return a.begin - b.begin })
	return list
}

// names knows which name of a page is which name of the run.
type names struct{ ofRun, ofPage map[string]string }

func newNames() *names { return &names{map[string]string{}, map[string]string{}} }

// bind binds a name of the page to a name of the run, and reports whether both are free, or bound to each other.
func (n *names) bind(ofPage, ofRun string) error {
	if is, ok := n.ofRun[ofPage]; ok && is != ofRun {
		return fmt.Errorf("%s was %s, and is %s", ofPage, is, ofRun)
	}
	if is, ok := n.ofPage[ofRun]; ok && is != ofPage {
		return fmt.Errorf("%s is printed where the page has %s, and was %s", ofRun, ofPage, is)
	}
	n.ofRun[ofPage], n.ofPage[ofRun] = ofRun, ofPage
	return nil
}

// substitute replaces each name of one side by that of the other.
func substitute(text string, names map[string]string) string {
	var pairs []string
	for from, to := range names {
		pairs = append(pairs, from, to)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// compare compares the lines of a page with those of a run, and binds their names.
func (n *names) compare(page, run []string) error {
	for len(page) > 0 && page[0] != "…" {
		if len(run) == 0 {
			return fmt.Errorf("it does not print %q", page[0])
		}
		if err := n.compareLine(page[0], run[0]); err != nil {
			return err
		}
		page, run = page[1:], run[1:]
	}
	if len(page) == 0 {
		if len(run) > 0 {
			return fmt.Errorf("it prints %q, too", run[0])
		}
		return nil
	}
	rest := page[1:] // after …
	if len(rest) > len(run) {
		return fmt.Errorf("it does not print %q", rest[0])
	}
	return n.compare(rest, run[len(run)-len(rest):])
}

func (n *names) compareLine(page, run string) error {
	if page == run {
		for _, t := range tokens(run, true) {
			if t.isName {
				_ = n.bind(t.text, t.text)
			}
		}
		return nil
	}
	ofRun := tokens(run, true)
	ofPage := tokens(page, false)
	// A text that is a time around now in the run is one on the page, too, whenever that was written.
	if len(ofPage) != len(ofRun) {
		ofPage = slices.DeleteFunc(ofPage, func(t token) bool { return t.kind == "time" && strings.Contains(run, t.text) })
		ofRun = slices.DeleteFunc(ofRun, func(t token) bool { return t.kind == "time" && strings.Contains(page, t.text) })
	}
	if a, b := skeleton(page, ofPage), skeleton(run, ofRun); a != b {
		return fmt.Errorf("it prints\n\t%s\nand the page has\n\t%s", run, page)
	}
	for i := range ofRun {
		if ofRun[i].isName && ofPage[i].isName {
			if err := n.bind(ofPage[i].text, ofRun[i].text); err != nil {
				return fmt.Errorf("%w in\n\t%s", err, run)
			}
		}
	}
	return nil
}

// skeleton is a line without what differs from run to run.
func skeleton(line string, list []token) string {
	var b strings.Builder
	last := 0
	for _, t := range list {
		b.WriteString(line[last:t.begin])
		fmt.Fprintf(&b, "<%s>", t.kind)
		last = t.begin + len(t.text)
	}
	b.WriteString(line[last:])
	return b.String()
}

// align binds the names of lines that differ, as far as there are as many of each kind on both sides.
func (n *names) align(page, run []string) {
	collect := func(lines []string, isPrinted bool) map[string][]string {
		kinds := map[string][]string{}
		for _, line := range lines {
			for _, t := range tokens(line, isPrinted) {
				if t.isName {
					kinds[t.kind] = append(kinds[t.kind], t.text)
				}
			}
		}
		return kinds
	}
	ofPage, ofRun := collect(page, false), collect(run, true)
	for kind, list := range ofRun {
		for i, text := range list {
			if len(ofPage[kind]) == len(list) {
				_ = n.bind(ofPage[kind][i], text)
			} else if _, ok := n.ofPage[text]; !ok {
				_ = n.bind(text, text)
			}
		}
	}
}
