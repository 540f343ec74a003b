//go:build unix

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// dataDir returns a data directory that the account of a private PostgreSQL can enter.
func dataDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "data")
}

// servePrivate serves with a private PostgreSQL.
func servePrivate(t *testing.T, dir string) *program {
	t.Helper()
	return serve(t, nil, "QUEUED_DATA_DIR="+dir)
}

func TestPrivatePostgresKeepsEventsThroughRestartAndSIGKILL(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	first := servePrivate(t, dir)
	first.want(http.StatusCreated, http.MethodPost, "/events", `{"n":1}`)
	key, err := os.ReadFile(filepath.Join(dir, "secret.key"))
	if err != nil || !strings.Contains(first.output(), "back up this file, too") || strings.Contains(first.output(), strings.TrimSpace(string(key))) {
		t.Errorf("the key for secrets: %v", err)
	}
	first.signal(syscall.SIGTERM)
	if code := first.wait(); code != exitOK {
		t.Fatalf("exit code %d after SIGTERM", code)
	}
	if _, err := os.Stat(filepath.Join(dir, "pg", "postmaster.pid")); !os.IsNotExist(err) {
		t.Errorf("PostgreSQL was not stopped: %v", err)
	}

	second := servePrivate(t, dir)
	if again, err := os.ReadFile(filepath.Join(dir, "secret.key")); err != nil || string(again) != string(key) {
		t.Errorf("another start changed the key for secrets: %v", err)
	}
	if got := second.claimOne()["event"].(map[string]any)["n"]; got != 1.0 {
		t.Errorf("claimed event %v, want 1", got)
	}
	second.want(http.StatusCreated, http.MethodPost, "/events", `{"n":2}`)
	second.signal(syscall.SIGKILL)
	second.wait()

	third := servePrivate(t, dir)
	if got := third.claimOne()["event"].(map[string]any)["n"]; got != 2.0 {
		t.Errorf("claimed event %v, want 2", got)
	}
	third.signal(syscall.SIGINT)
	if code := third.wait(); code != exitOK {
		t.Errorf("exit code %d after SIGINT", code)
	}
}

func TestPrivatePostgresMissesNoStandby(t *testing.T) {
	t.Parallel()
	p := servePrivate(t, dataDir(t))
	const metric = `queued_database_unsafe_setting{setting="synchronous_standby_names"} `
	var metrics string
	until(t, "the settings are in the metrics", func() bool {
		metrics = p.want(http.StatusOK, http.MethodGet, "/metrics", "").body
		return strings.Contains(metrics, metric)
	})
	if !strings.Contains(metrics, metric+"0") {
		t.Error("the metrics say that commits are at risk")
	}
	if strings.Contains(p.output(), "standby") {
		t.Errorf("it logged\n%s", p.output())
	}
}

func TestSecondProcessOnTheSameDataDirIsRefused(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	first := servePrivate(t, dir)
	second := startProgram(t, nil, []string{"QUEUED_DATA_DIR=" + dir})
	if code := second.wait(); code != exitFailure {
		t.Errorf("exit code %d, want %d", code, exitFailure)
	}
	for _, want := range []string{"in use", dir, "QUEUED_DATA_DIR"} {
		if !strings.Contains(second.output(), want) {
			t.Errorf("it does not say %q", want)
		}
	}
	first.wantReady()
}

func TestEndOfThePrivatePostgresEndsTheProgram(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	p := servePrivate(t, dir)
	const body = `{"wait":"60s"}`
	claim := p.begin("/claim", body, len(body))
	p.wantReady()
	text, err := os.ReadFile(filepath.Join(dir, "pg", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != exitFailure {
		t.Errorf("exit code %d, want %d", code, exitFailure)
	}
	if !strings.Contains(p.output(), "PostgreSQL ended by itself") {
		t.Error("the log does not say why")
	}
	_ = claim.conn.Close()

	again := servePrivate(t, dir)
	again.wantReady()
}

func TestMigrateStatusDoesNotMakeADatabase(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	p := startProgram(t, []string{"migrate", "--status"}, []string{"QUEUED_DATA_DIR=" + dir})
	if code := p.wait(); code != exitOK || !strings.Contains(p.stdout.String(), "none yet") {
		t.Errorf("exit code %d, %q", code, p.stdout.String())
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s was made: %v", dir, err)
	}
}

func TestMigrateLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	for _, want := range []string{"migrated from none to ", "nothing to do"} {
		p := startProgram(t, []string{"migrate"}, []string{"QUEUED_DATA_DIR=" + dir})
		if code := p.wait(); code != exitOK || !strings.Contains(p.stdout.String(), want) {
			t.Errorf("exit code %d, %q, want %q", code, p.stdout.String(), want)
		}
		if _, err := os.Stat(filepath.Join(dir, "pg", "postmaster.pid")); !os.IsNotExist(err) {
			t.Errorf("PostgreSQL was not stopped: %v", err)
		}
	}
}

func TestKeysAreMadeBesideAServerThatRunsThePrivatePostgres(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	p := servePrivate(t, dir)
	p.want(http.StatusOK, http.MethodGet, "/queues", "")
	create := startProgram(t, []string{"keys", "create", "--scope", "admin"}, []string{"QUEUED_DATA_DIR=" + dir})
	if code := create.wait(); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	key := strings.TrimSpace(create.stdout.String())
	until(t, "the server requires a key", func() bool {
		got, err := p.send(http.MethodGet, "/queues", "")
		return err == nil && got.status == http.StatusUnauthorized
	})
	p.want(http.StatusOK, http.MethodGet, "/queues", "", "Authorization: Bearer "+key)
}
