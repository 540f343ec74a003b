// Command run runs the suites that speak HTTP through gateways, and compares what fails with the list of tests that must differ:
//
//	go run ./internal/pgtest/run -flavour plain -- go run ./internal/gatewaytest/run [-cells N] [-short] [ARGUMENT OF go test...]
//
// It is run in the root of the module.
//
// It fails if a test fails that is not on the list, and points out those on the list that pass. Tests that are listed as not run are left out, and with several cells those of pages, which show one cell. A test that makes a call
// which several cells have a part of, and gets 409 several_cells, is no failure either: such calls do not go through a gateway.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/queued/queued/internal/gatewaytest"
)

// module begins the import paths of the suites.
const module = "github.com/queued/queued/"

// suites are the packages whose tests speak HTTP to a server.
var suites = []string{"./internal/http", "./internal/cli", "./internal/clienttest"}

// program is the package of the program, and programTests are the files of it whose tests run commands against a server.
const program = "./cmd/queued"

var programTests = []string{"cli_*_test.go", "cli_test.go", "work_test.go"}

// pageTests are the files of the suite of HTTP whose tests look at pages.
var pageTests = []string{"ui_*_test.go", "ui_test.go"}

// testsOf returns a pattern of the tests in files of a folder, for go test -run.
func testsOf(folder string, files []string) (string, error) {
	var names []string
	for _, pattern := range files {
		found, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			return "", err
		}
		for _, file := range found {
			text, err := os.ReadFile(file) //nolint:gosec // a file of this module
			if err != nil {
				return "", err
			}
			for _, match := range testName.FindAllSubmatch(text, -1) {
				names = append(names, string(match[1]))
			}
		}
	}
	if len(names) == 0 {
		return "", fmt.Errorf("there are no tests in %s of %s: run this in the root of the module", strings.Join(files, ", "), folder)
	}
	return "^(" + strings.Join(names, "|") + ")$", nil
}

var testName = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// short selects tests that show each way of passing calls on, for a minute of a build; shortSeveral those where several cells have a part, each of which takes three servers.
const (
	shortSeveral = "^Test(Batch|Claim|Delet|DeadLetter|Executions|Export|History|KeysAreMade|Listing|Overview|Queue|Redrive|Requeue|RestrictedKeyMoves|SchedulesAreListed|Statistics|WorkerGoesOn)"
	short        = "^Test(Insert|Claim|Ack|Nack|Batch|CloudEvent|History|Queue|Schedule|Topic|Publish|Subscription|Stream|Key|Post|Work|Worker|Client|Export|List|Redrive|Wait)"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	cells := flags.Int("cells", 1, "how many cells are behind each gateway")
	isShort := flags.Bool("short", false, "run a selection of the tests")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	goArgs := []string{"test", "-json", "-vet=off", "-count=1", "-parallel", "4", "-timeout", "25m"}
	notRun := gatewaytest.NotRun(*cells)
	skipped := "^(" + strings.Join(notRun, "|") + ")$"
	if *cells > 1 {
		pages, err := testsOf(suites[0], pageTests)
		if err != nil {
			_, _ = fmt.Fprintln(stderr, "gatewaytest:", err)
			return 1
		}
		skipped += "|" + pages
	}
	goArgs = append(goArgs, "-skip", skipped)
	switch {
	case *isShort && *cells > 1:
		goArgs = append(goArgs, "-run", shortSeveral)
	case *isShort:
		goArgs = append(goArgs, "-run", short)
	}
	found := &result{ended: map[string]string{}, output: map[string][]string{}, failed: map[string]bool{}}
	err := found.test(slices.Concat(goArgs, flags.Args(), suites), *cells, stderr)
	if err == nil && !*isShort {
		var tests string
		if tests, err = testsOf(program, programTests); err == nil {
			err = found.test(slices.Concat(goArgs, []string{"-run", tests}, flags.Args(), []string{program}), *cells, stderr)
		}
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "gatewaytest:", err)
		return 1
	}
	code := found.judge(*cells, *isShort || flags.NArg() > 0, stdout)
	_, _ = fmt.Fprintf(stdout, "on the list, and not run: %s\n", cmp.Or(strings.Join(notRun, ", "), "none"))
	return code
}

// An event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// A result is how the tests of all suites ended, by "package test".
type result struct {
	ended  map[string]string // pass, fail or skip; run: it has not ended
	output map[string][]string
	failed map[string]bool // packages
}

// test runs go test, and adds how the tests ended.
func (r *result) test(args []string, cells int, stderr io.Writer) error {
	cmd := exec.Command("go", args...) //nolint:gosec,noctx // tests, which end by themselves
	cmd.Env = append(os.Environ(), gatewaytest.Env+"="+strconv.Itoa(cells))
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			_, _ = fmt.Fprintln(stderr, lines.Text()) // what does not compile
			continue
		}
		name := strings.TrimPrefix(e.Package, module) + " " + e.Test
		switch e.Action {
		case "run", "pass", "fail", "skip":
			if e.Test != "" {
				r.ended[name] = e.Action
			} else if e.Action == "fail" {
				r.failed[e.Package] = true
			}
		case "output":
			r.output[name] = append(r.output[name], e.Output)
		}
	}
	err = lines.Err()
	if ended := cmd.Wait(); err == nil && !errors.As(ended, new(*exec.ExitError)) {
		err = ended
	}
	return err
}

// judge says which tests have failed that are not on the list, and which of those on it have passed. isPart: not all tests were run.
func (r *result) judge(cells int, isPart bool, stdout io.Writer) int {
	code, failed, passed, wide, listed := 0, 0, 0, 0, 0
	used := map[string]bool{} // entries of the list
	explained := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(r.ended)) {
		pack, test, _ := strings.Cut(name, " ")
		switch r.ended[name] {
		case "pass":
			passed++
			continue
		case "skip":
			continue
		}
		if r.hasFailedBelow(name) {
			continue // its subtests are judged
		}
		if cells > 1 && strings.Contains(strings.Join(r.output[name], ""), "several_cells") {
			wide++
			explained[module+pack] = true
			continue
		}
		failed++
		if entry, isListed := gatewaytest.Find(pack, test, cells); isListed {
			listed++
			used[entry] = true
			explained[module+pack] = true
			continue
		}
		code = 1
		_, _ = fmt.Fprintf(stdout, "--- %s: %s fails through a gateway and is not on the list\n%s", pack, test, strings.Join(r.output[name], ""))
	}
	for pack := range r.failed {
		if !explained[pack] && code == 0 {
			code = 1
			_, _ = fmt.Fprintf(stdout, "--- %s has failed outside of its tests\n%s", pack, strings.Join(r.output[strings.TrimPrefix(pack, module)+" "], ""))
		}
	}
	for _, entry := range gatewaytest.Entries(cells) {
		if !isPart && !used[entry] {
			_, _ = fmt.Fprintf(stdout, "--- %s is on the list of tests that must differ, and passes: take it off\n", entry)
			code = max(code, 1)
		}
	}
	_, _ = fmt.Fprintf(stdout, "through a gateway with %d cells: %d tests passed, %d made calls that several cells have a part of, %d failed, of which %d are on the list\n", cells, passed, wide, failed, listed)
	return code
}

// hasFailedBelow reports whether a subtest of a test has failed.
func (r *result) hasFailedBelow(name string) bool {
	for other, ended := range r.ended {
		if ended != "pass" && ended != "skip" && strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}
