//go:build linux

package doctest

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/porttest"
)

var (
	update    = flag.Bool("update", false, "write what was printed into the pages, where it differs")
	updateAll = flag.Bool("all", false, "with -update: write all that was printed, and the commands with the names of this run")
)

var built struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := pgtest.Run(m)
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// program returns the path of the built program, which exists until the last test has ended.
func program(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "queued-doctest-"); built.err != nil { //nolint:usetesting // it outlives the test
			return
		}
		// Without the commit, which pages cannot have.
		if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", built.dir, "../../cmd/queued", "../../examples/birthdays/receiver").CombinedOutput(); err != nil {
			built.err = fmt.Errorf("building the program: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "queued")
}

// pages returns the files with commands.
func pages(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	return append(files, "../../README.md", "../../CONTRIBUTING.md", "../../bench/README.md")
}

func TestPagesShowWhatCommandsPrint(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"curl", "jq", "openssl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("the commands of the pages need %s: %v", name, err)
		}
	}
	for _, file := range pages(t) {
		p := readPage(t, file)
		if len(p.blocks) == 0 {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".md"), func(t *testing.T) {
			t.Parallel()
			runPage(t, file, p)
		})
	}
}

// TestSecondServersHaveADatabaseOfTheirOwn: the tests have a database URL, but the servers of readers a private PostgreSQL, in which one process runs.
func TestSecondServersHaveADatabaseOfTheirOwn(t *testing.T) {
	t.Parallel()
	count := 0
	for _, file := range pages(t) {
		p := readPage(t, file)
		for _, b := range p.blocks {
			for _, c := range b.commands {
				if !secondServer.MatchString(c.text) {
					continue
				}
				if count++; !strings.Contains(c.text, "QUEUED_DATA_DIR=") && !strings.Contains(c.text, "QUEUED_DATABASE_URL=") {
					t.Errorf("%s: %s\nis refused where the first server has the private PostgreSQL: say QUEUED_DATA_DIR or QUEUED_DATABASE_URL", p.place(file, c), c.text)
				}
			}
		}
	}
	if count < 4 {
		t.Errorf("the pages start %d servers: this test does not find them", count)
	}
}

var secondServer = regexp.MustCompile(`\bqueued serve\b`)

// TestReadersSeeWhatIsWaitedFor: who types the commands of a page has to wait for a server or a worker, too, and cannot see what is run before a block.
func TestReadersSeeWhatIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, file := range pages(t) {
		for _, b := range readPage(t, file).blocks {
			if waiting.MatchString(b.first) {
				t.Errorf("%s: the wait %q is hidden; make it a command of the block", filepath.Base(file), strings.TrimSpace(b.first))
			}
		}
	}
}

var waiting = regexp.MustCompile(`\buntil .*("ok"|\.log)`) // for a server to serve, or the log of a worker

// A block that is not run has a reason, and there are not many of them.
func TestFewBlocksAreNotRun(t *testing.T) {
	t.Parallel()
	count := 0
	for _, file := range pages(t) {
		for _, reason := range readPage(t, file).notRun {
			count++
			t.Logf("%s: %s", filepath.Base(file), reason)
			if len(strings.Fields(reason)) < 3 {
				t.Errorf("%s: %q is no reason", file, reason)
			}
		}
	}
	if count > maxNotRun {
		t.Errorf("%d blocks are not run, want at most %d", count, maxNotRun)
	}
}

// maxNotRun is how many blocks there are that no test machine can run.
const maxNotRun = 8

// runPage runs the commands of a page and compares what they print.
func runPage(t *testing.T, file string, p *page) {
	t.Helper()
	dir := t.TempDir()
	environ, example, replaced := environment(t, dir)
	settings, err := exec.Command("bash", "-c", "for setting in "+p.server+"; do printf '%s\\n' \"$setting\"; done").Output()
	if err != nil {
		t.Fatalf("%s: settings of the server: %v", file, err)
	}
	environ = append(environ, strings.Fields(string(settings))...)
	s := serve(t, program(t), dir, append(slices.Clone(environ), "QUEUED_LISTEN=127.0.0.1:0", "QUEUED_LOG_FORMAT=json"))
	ports := portsOf(t, p, map[string]string{"8080": portOf(s.addr), "9090": portOf(serveEndpoint(t, dir))})
	sh := startShell(t, dir, append(environ, "QUEUED_URL=http://"+s.addr))

	n := newNames()
	printed, texts := map[*command][]string{}, map[*command]string{}
	for _, b := range p.blocks {
		if b.first != "" {
			if lines, code, err := sh.run(address(b.first, ports, true)); err != nil || code != "0" {
				t.Fatalf("%s: what is run before line %d: exit code %s, %v\n%s", file, b.commands[0].prompt, code, err, strings.Join(lines, "\n"))
			}
		}
		for _, c := range b.commands {
			lines, _, err := sh.run(address(example.Replace(substitute(c.text, n.ofRun)), ports, true))
			if err != nil {
				t.Fatalf("%s: %s\n%v\n%s", p.place(file, c), c.text, err, strings.Join(lines, "\n"))
			}
			for i := range lines {
				lines[i] = address(replaced.Replace(lines[i]), ports, false)
			}
			err = n.compare(p.expected(c), lines)
			switch {
			case *updateAll:
				n.align(p.expected(c), lines)
				texts[c], printed[c] = substitute(c.text, n.ofRun), lines
			case err != nil && *update:
				n.align(p.expected(c), lines)
				for i := range lines {
					lines[i] = substitute(lines[i], n.ofPage)
				}
				printed[c] = lines
			case err != nil:
				t.Errorf("%s: %s\n%v", p.place(file, c), c.text, err)
				n.align(p.expected(c), lines)
			}
		}
	}
	if *update && !t.Failed() {
		p.write(t, file, printed, texts)
	}
}

// serveEndpoint serves an endpoint until the end of the test: pages push to it.
// It answers with the status in the file endpoint-status of a directory; without that file, with 204.
func serveEndpoint(t *testing.T, dir string) (addr string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := http.StatusNoContent
		if text, err := os.ReadFile(filepath.Join(dir, "endpoint-status")); err == nil {
			if _, err := fmt.Sscan(string(text), &status); err != nil {
				t.Errorf("endpoint-status: %v", err)
			}
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func portOf(addr string) string {
	_, port, _ := strings.Cut(addr, ":")
	return port
}

// hosts are the names of the machine that a page uses before a port.
var hosts = []string{"localhost", "127.0.0.1", "0.0.0.0"}

var localPort = regexp.MustCompile(`\b(?:localhost|127\.0\.0\.1|0\.0\.0\.0):(\d{4,5})\b`)

// portsOf returns a port for each that the commands of a page name: those of servers, and free ones.
func portsOf(t *testing.T, p *page, servers map[string]string) map[string]string {
	t.Helper()
	ports := servers
	for _, b := range p.blocks {
		for _, c := range b.commands {
			for _, found := range localPort.FindAllStringSubmatch(c.text, -1) {
				if ports[found[1]] != "" {
					continue
				}
				ports[found[1]] = strconv.Itoa(porttest.Free(t))
			}
		}
	}
	return ports
}

// address replaces the ports of a page by those of the run, or the other way round.
func address(text string, ports map[string]string, toRun bool) string {
	var pairs []string
	for ofPage, ofRun := range ports {
		if !toRun {
			ofPage, ofRun = ofRun, ofPage
		}
		for _, host := range hosts {
			pairs = append(pairs, host+":"+ofPage, host+":"+ofRun)
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// environment returns the environment of a page: a database of its own, the program, curl and jq without progress and colours, and longer timeouts;
// what replaces the database and the roles of the example in commands; and what replaces names of the test in the output.
func environment(t *testing.T, dir string) (environ []string, example, replaced *strings.Replacer) {
	t.Helper()
	db := pgtest.New(t)
	bin := filepath.Join(t.TempDir(), "bin")
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	jq, err := exec.LookPath("jq")
	if err != nil {
		t.Fatal(err)
	}
	timeout, err := exec.LookPath("timeout")
	if err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string]string{
		"curl": "exec " + curl + " -sS --no-styled-output", "jq": "exec " + jq + " -M",
		"timeout": "limit=$(($1 * 5)); shift; exec " + timeout + " $limit", // what readers see within a second may take longer on a busy machine
		"go":      "shift 2; exec receiver",                                // what go run would compile is built with the program
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+command+` "$@"`+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"examples", "build"} {
		root, err := filepath.Abs("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(root, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	owner, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	host, port := owner.Hostname(), owner.Port()
	if host == "" {
		host, port = owner.Query().Get("host"), owner.Query().Get("port")
	}
	password, _ := owner.User.Password()
	path := bin + ":" + filepath.Dir(program(t)) + ":" + os.Getenv("PATH")
	clients, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		t.Fatal(err)
	}
	service, err := url.Parse(db.ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	replaced = strings.NewReplacer(dir, "/home/you", service.User.Username(), "queued")
	example = strings.NewReplacer("postgres://queued_owner@db/app", "'"+db.URL+"'", "postgres://queued_app@db/app", "'"+db.ServiceURL+"'", "queued_app", service.User.Username())
	return []string{
		"PATH=" + path + ":" + strings.Join(clients, ":"), "HOME=" + dir, "LANG=C.UTF-8", "TZ=UTC", "PAGER=cat", "TERM=dumb", "NO_COLOR=1",
		"PGHOST=" + host, "PGPORT=" + port, "PGUSER=" + owner.User.Username(), "PGDATABASE=" + strings.TrimPrefix(owner.Path, "/"), "PGPASSWORD=" + password,
		"PGOPTIONS=-c search_path=public",
		"QUEUED_DATABASE_URL=" + db.ServiceURL, "OWNER_URL=" + db.URL, "QUEUED_MAX_CONNS=4",
	}, example, replaced
}
