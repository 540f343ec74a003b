package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A failing, leaking or interrupted run can only be observed from outside. Such a test runs this
// test binary again, for itself alone, and does the other part there.

// inner is set in the run inside.
const inner = "PGTEST_INNER"

func isInner() bool { return os.Getenv(inner) != "" }

// rerun prepares the run inside, with environ beside this process's.
func rerun(t *testing.T, environ ...string) *exec.Cmd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = slices.Concat(os.Environ(), []string{inner + "=1"}, environ)
	return cmd
}

// rerunToFailure returns what the run inside has written.
func rerunToFailure(t *testing.T, environ ...string) string {
	t.Helper()
	output, err := rerun(t, environ...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("want exit code 1, got error %v", err)
	}
	return string(output)
}

// failWithOneEvent is the inner part of the tests about failed tests.
func failWithOneEvent(t *testing.T) {
	t.Helper()
	conn := connect(t, New(t).URL)
	if _, err := conn.Exec(t.Context(), "select agent.insert_event('{}')"); err != nil {
		t.Log(err)
	}
	t.Fatal("failed on purpose")
}

func TestFailedTestKeepsItsDatabaseAndSaysWhere(t *testing.T) {
	t.Parallel()
	if isInner() {
		failWithOneEvent(t)
	}
	server := serverFor(t)
	output := rerunToFailure(t, EnvURL+"="+server.URL, EnvLifetime+"=")
	_, after, _ := strings.Cut(output, "is kept: psql \"")
	url, _, found := strings.Cut(after, "\"")
	if !found {
		t.Fatalf("no URL in the output:\n%s", output)
	}
	conn := connect(t, url)
	t.Cleanup(func() {
		if err := server.drop(context.WithoutCancel(t.Context()), conn.Config().Database); err != nil {
			t.Error(err)
		}
	})
	if got := query[int](t, conn, "select pg_catalog.count(*) from agent.event"); got != 1 {
		t.Errorf("got %d events in the kept database, want the test's one", got)
	}
}

func TestFailedTestOnAServerThatEndsSaysHowToKeepIt(t *testing.T) {
	t.Parallel()
	if isInner() {
		failWithOneEvent(t)
	}
	server := serverFor(t)
	output := rerunToFailure(t, EnvURL+"="+server.URL, EnvLifetime+"="+LifetimeOfTests)
	if want := "-keep -- go test -run '^" + t.Name() + "$'"; !strings.Contains(output, want) {
		t.Errorf("no %q in the output:\n%s", want, output)
	}
	_, after, _ := strings.Cut(output, "/queued_test_")
	name, _, _ := strings.Cut(after, "?")
	if err := server.drop(t.Context(), "queued_test_"+name); err != nil {
		t.Error(err)
	}
}

func TestLeftGoroutineFailsARunThatPassed(t *testing.T) {
	t.Parallel()
	if isInner() {
		go func() { select {} }()
		return
	}
	output := rerunToFailure(t)
	if !strings.Contains(output, "left goroutines behind") || !strings.Contains(output, t.Name()) {
		t.Errorf("the output does not name the goroutine:\n%s", output)
	}
}

func TestNoServerIsAFailure(t *testing.T) {
	t.Parallel()
	if isInner() {
		New(t)
		return
	}
	output := rerunToFailure(t, EnvURL+"=postgres://nobody@/x?host="+t.TempDir())
	if !strings.Contains(output, "no PostgreSQL to test on: "+EnvURL) {
		t.Errorf("the output does not say what is wrong:\n%s", output)
	}
}

func TestOwnServerEndsWithARunThatWasInterrupted(t *testing.T) {
	t.Parallel()
	if isInner() {
		New(t)
		_, _ = fmt.Fprintln(os.Stdout, "serving", serverFor(t).URL)
		select {}
	}
	cmd := rerun(t, EnvURL+"=")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var url, output string
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		output += lines.Text() + "\n"
		if found, ok := strings.CutPrefix(lines.Text(), "serving "); ok {
			url = found
			break
		}
	}
	if url == "" {
		t.Fatalf("the run inside has no server; its output:\n%s\n(%v)", output, cmd.Wait())
	}
	connect(t, url)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("the run inside: got %v, want an end by %s", err, syscall.SIGTERM)
	}
	if conn, err := pgx.Connect(t.Context(), url); err == nil {
		_ = conn.Close(t.Context())
		t.Errorf("the server at %s still answers", url)
	}
}
