package queued_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents returns the text of README.md and of each page of docs/, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, path := range append(paths, "README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = string(text)
	}
	return texts
}

// sources returns the text of all files of the program, or of all its tests.
func sources(t *testing.T, isTest bool) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range []string{"cmd", "internal", "client", "bench", "e2e", "examples", "sql"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") != isTest {
				return err
			}
			text, err := os.ReadFile(path)
			all.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

var (
	metricName     = regexp.MustCompile(`\bqueued_[a-z0-9_]+\b`)
	metricLiteral  = regexp.MustCompile(`"(queued_[a-z0-9_]+)"`)
	metricFamily   = regexp.MustCompile(`queued_events_\{([a-z,]+)\}_total`)
	notMetric      = []string{"queued_app", "queued_owner"} // roles of the examples
	histogramParts = regexp.MustCompile(`_(?:bucket|sum|count)$`)
)

func TestDocumentedMetricsAreThoseThatThereAre(t *testing.T) {
	t.Parallel()
	var there []string
	files, err := filepath.Glob("internal/http/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "internal/certificate/certificate.go", "internal/gateway/metrics.go", "internal/rounds/rounds.go") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range metricLiteral.FindAllStringSubmatch(string(text), -1) {
			if !strings.HasSuffix(file, "_test.go") {
				there = append(there, match[1])
			}
		}
	}
	if len(there) < 50 {
		t.Fatalf("the program has %d metrics: this test does not find them", len(there))
	}
	documented := map[string]bool{}
	for path, text := range documents(t) {
		text = metricFamily.ReplaceAllStringFunc(text, func(family string) string {
			var names []string
			for what := range strings.SplitSeq(metricFamily.FindStringSubmatch(family)[1], ",") {
				names = append(names, "queued_events_"+what+"_total")
			}
			return strings.Join(names, " ")
		})
		for _, name := range metricName.FindAllString(text, -1) {
			documented[name] = true
			if !slices.Contains(there, name) && !slices.Contains(there, histogramParts.ReplaceAllString(name, "")) && !slices.Contains(notMetric, name) {
				t.Errorf("%s has the metric %s, which there is not", path, name)
			}
		}
	}
	for _, name := range there {
		if !documented[name] {
			t.Errorf("no page has the metric %s", name)
		}
	}
}

var (
	documentedRoute = regexp.MustCompile("\\b(GET|PUT|POST|PATCH|DELETE|OPTIONS) (/[^\\s`?|),;:]*)")
	specPath        = regexp.MustCompile(`(?m)^  (/\S*):$`)
	specMethod      = regexp.MustCompile(`(?m)^    (get|put|post|patch|delete|options):$`)
	placeholder     = regexp.MustCompile(`\\\{\w+\\\}`)
	routesOfOthers  = []string{"POST /hooks/orders"} // what a receiver of pushes serves
)

// belowCell begins the path of a call of one cell, through a gateway.
var belowCell = regexp.MustCompile(`^/cells/[0-9]+/`)

func TestDocumentedRoutesAreInTheContract(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	spec := string(text)
	routes := map[string]*regexp.Regexp{} // "GET /events/{id}", and what matches a path of it
	at := specPath.FindAllStringSubmatchIndex(spec, -1)
	for i, found := range at {
		path, end := spec[found[2]:found[3]], len(spec)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		for _, method := range specMethod.FindAllStringSubmatch(spec[found[1]:end], -1) {
			routes[strings.ToUpper(method[1])+" "+path] = regexp.MustCompile("^" + placeholder.ReplaceAllString(regexp.QuoteMeta(path), "[^/]+") + "$")
		}
	}
	if len(routes) < 80 {
		t.Fatalf("the contract has %d operations: this test does not find them", len(routes))
	}
	for page, text := range documents(t) {
		for _, match := range documentedRoute.FindAllStringSubmatch(text, -1) {
			method, path := match[1], belowCell.ReplaceAllString(strings.TrimRight(match[2], "."), "/")
			isThere := slices.Contains(routesOfOthers, method+" "+path)
			for route, paths := range routes {
				isThere = isThere || strings.HasPrefix(route, method+" ") && paths.MatchString(path)
			}
			if !isThere {
				t.Errorf("%s has %s %s, which the contract has not", page, method, path)
			}
		}
	}
}

var (
	settingName    = regexp.MustCompile(`\bQUEUED_[A-Z0-9_]+`)
	testName       = regexp.MustCompile("`(Test[A-Z]\\w+)`")
	documentedCode = regexp.MustCompile("\\b[45]\\d\\d `([a-z_]+)`")
)

// TestDocumentsNameWhatThereIs: variables that the program or its tests read, codes of problems that it answers, tests and methods that there are.
func TestDocumentsNameWhatThereIs(t *testing.T) {
	t.Parallel()
	program, tests := sources(t, false), sources(t, true)
	spec, err := os.ReadFile("api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	texts := documents(t)
	tables := texts["README.md"] + texts["docs/scaling.md"]
	for page, text := range texts {
		for _, name := range settingName.FindAllString(text, -1) {
			flag := "--" + strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "QUEUED_"), "_", "-"))
			// Tests of cmd/queued hold the tables of README.md and docs/scaling.md to the settings.
			if !strings.Contains(tables, "| `"+name+"` |") && !strings.Contains(program, name) && !strings.Contains(program, flag) && !strings.Contains(tests, name) {
				t.Errorf("%s has the variable %s, which nothing reads", page, name)
			}
		}
		for _, match := range testName.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(tests, "func "+match[1]+"(") && !strings.Contains(program, ") "+match[1]+"(") {
				t.Errorf("%s has the test %s, which there is not", page, match[1])
			}
		}
		for _, match := range documentedCode.FindAllStringSubmatch(text, -1) {
			if !regexp.MustCompile(`\b` + match[1] + `\b`).Match(spec) {
				t.Errorf("%s has the code %s of a problem, which the contract has not", page, match[1])
			}
		}
	}
}
