//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
)

// asRunner makes this test binary be the command, so that the tests see it as a Makefile does.
const asRunner = "PGTEST_AS_RUNNER"

func TestMain(m *testing.M) {
	if os.Getenv(asRunner) != "" {
		os.Exit(run(os.Args[1:], os.Stderr))
	}
	pgtest.Main(m)
}

// command prepares a run with environ beside this process's, CI=true aside.
func command(t *testing.T, environ []string, args ...string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = slices.Concat(os.Environ(), []string{asRunner + "=1", "CI="}, environ)
	return cmd
}

// runToEnd returns the exit code and all that was written.
func runToEnd(t *testing.T, cmd *exec.Cmd) (int, string) {
	t.Helper()
	output, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(output)
}

// serverURL returns the URL of a server that is there already, of the flavour pgtest.Flavour().
func serverURL(t *testing.T) string {
	t.Helper()
	return pgtest.Empty(t).URL
}

func TestExitCodeIsTheCommands(t *testing.T) {
	t.Parallel()
	own := []string{pgtest.EnvURL + "=" + serverURL(t)}
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -KILL $$": 128 + 9} {
		if got, output := runToEnd(t, command(t, own, "-flavour", pgtest.Flavour(), "--", "sh", "-c", script)); got != want {
			t.Errorf("%s: got %d, want %d; its output:\n%s", script, got, want, output)
		}
	}
}

func TestWrongCommandLineIsRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"-flavour", "plain", "--"}, {"-unknown", "--", "true"}} {
		if got, output := runToEnd(t, command(t, nil, args...)); got != 2 || !strings.Contains(output, "usage: run") {
			t.Errorf("%q: got %d, want 2; its output:\n%s", args, got, output)
		}
	}
}

func TestUnknownCommandIsAFailure(t *testing.T) {
	t.Parallel()
	own := []string{pgtest.EnvURL + "=" + serverURL(t)}
	if got, output := runToEnd(t, command(t, own, "-flavour", pgtest.Flavour(), "--", "/no/such/program")); got != 1 {
		t.Errorf("got %d, want 1; its output:\n%s", got, output)
	}
}

// Only a run that reports its tests as not run may succeed without a server.
func TestWithoutAServer(t *testing.T) {
	t.Parallel()
	noDocker := []string{pgtest.EnvURL + "=", "DOCKER_HOST=unix:///no/such/socket"}
	other := pgtest.Plain
	if pgtest.Flavour() == pgtest.Plain {
		other = pgtest.Timescale
	}
	own := []string{pgtest.EnvURL + "=" + serverURL(t)}
	ci := []string{"CI=true"}
	for name, test := range map[string]struct {
		environ []string
		args    []string
		want    int
	}{
		"needed":               {noDocker, []string{"-flavour", "timescale"}, 1},
		"optional":             {noDocker, []string{"-flavour", "timescale", "-optional"}, 0},
		"optional, in CI":      {slices.Concat(noDocker, ci), []string{"-flavour", "timescale", "-optional"}, 1},
		"other flavour":        {own, []string{"-flavour", other}, 0},
		"other flavour, in CI": {slices.Concat(own, ci), []string{"-flavour", other}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, output := runToEnd(t, command(t, test.environ, append(test.args, "--", "echo", "ran", "it")...))
			if got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
			if strings.HasPrefix(output, "ran it") {
				t.Error("the command was run")
			}
			if skipped := strings.Contains(output, "# NOT RUN"); skipped != (test.want == 0) {
				t.Errorf("reported as not run: %t", skipped)
			}
			if t.Failed() {
				t.Log(output)
			}
		})
	}
}

// running is a run whose command has printed its server's URL.
type running struct {
	cmd    *exec.Cmd
	url    string
	output *bufio.Scanner
	seen   string // of the output so far
}

// start starts a run with a plain server of its own.
func start(t *testing.T, script string, args ...string) *running {
	t.Helper()
	args = append(args, "--", "sh", "-c", "echo url $"+pgtest.EnvURL+"; "+script)
	r := &running{cmd: command(t, []string{pgtest.EnvURL + "="}, args...)}
	stdout, err := r.cmd.StdoutPipe()
	r.cmd.Stderr = r.cmd.Stdout
	if err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	r.output = bufio.NewScanner(stdout)
	r.url = r.waitFor(t, "url ")
	return r
}

// waitFor returns the rest of the next line that begins with what.
func (r *running) waitFor(t *testing.T, what string) string {
	t.Helper()
	for r.output.Scan() {
		r.seen += r.output.Text() + "\n"
		if rest, found := strings.CutPrefix(r.output.Text(), what); found {
			return rest
		}
	}
	t.Fatalf("it ended before a line %q (%v); its output:\n%s", what, r.cmd.Wait(), r.seen)
	return ""
}

// end sends a signal and returns the exit code.
func (r *running) end(t *testing.T, sig syscall.Signal) int {
	t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	for r.output.Scan() {
		r.seen += r.output.Text() + "\n"
	}
	_ = r.cmd.Wait() // the exit code says how it ended
	return r.cmd.ProcessState.ExitCode()
}

func answers(t *testing.T, url string) bool {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		return false
	}
	_ = conn.Close(context.WithoutCancel(t.Context()))
	return true
}

func TestSignalReachesTheCommandAndThenTheServerEnds(t *testing.T) {
	t.Parallel()
	r := start(t, `trap "exit 9" TERM; echo ready; while :; do sleep 0.1; done`)
	r.waitFor(t, "ready")
	if !answers(t, r.url) {
		t.Error("the command's server does not answer")
	}
	if got := r.end(t, syscall.SIGTERM); got != 9 {
		t.Errorf("got %d, want the command's 9; its output:\n%s", got, r.seen)
	}
	if answers(t, r.url) {
		t.Error("the server still answers")
	}
}

func TestInterruptThatTheCommandIgnoresIsAFailure(t *testing.T) {
	t.Parallel()
	r := start(t, `trap "exit 0" INT; echo ready; while :; do sleep 0.1; done`)
	r.waitFor(t, "ready")
	if got, want := r.end(t, syscall.SIGINT), 128+int(syscall.SIGINT); got != want {
		t.Errorf("got %d, want %d; its output:\n%s", got, want, r.seen)
	}
}

func TestKeptServerAnswersAfterAFailureUntilInterrupted(t *testing.T) {
	t.Parallel()
	r := start(t, "exit 3", "-keep")
	if line := r.waitFor(t, "pgtest: kept until you press Ctrl-C"); !strings.Contains(line, r.url) {
		t.Errorf("the URL of the kept server is missing: %s", line)
	}
	if !answers(t, r.url) {
		t.Error("the kept server does not answer")
	}
	if got := r.end(t, syscall.SIGINT); got != 3 {
		t.Errorf("got %d, want the command's 3; its output:\n%s", got, r.seen)
	}
	if answers(t, r.url) {
		t.Error("the server still answers")
	}
}

func TestDurableServerKeepsItsCommits(t *testing.T) {
	t.Parallel()
	r := start(t, `trap "exit 0" TERM; echo ready; while :; do sleep 0.1; done`, "-durable")
	r.waitFor(t, "ready")
	conn, err := pgx.Connect(t.Context(), r.url)
	if err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		var value string
		if err := conn.QueryRow(t.Context(), `select current_setting($1)`, setting).Scan(&value); err != nil {
			t.Fatal(err)
		}
		if value != "on" {
			t.Errorf("%s is %s", setting, value)
		}
	}
	var dir string
	if err := conn.QueryRow(t.Context(), `show data_directory`).Scan(&dir); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(dir, filepath.Clean(os.TempDir())+"/") { // else they are in memory
		t.Errorf("its data are in %s, not where temporary files are", dir)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	r.end(t, syscall.SIGTERM)
}
