package embedded

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
)

// fakePrograms makes a bin directory whose postgres says that it is of a version.
func fakePrograms(t *testing.T, dir, version string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\necho 'postgres (PostgreSQL) %s'\n", version)
	for _, name := range []string{"initdb", "postgres", "pg_ctl"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	waitForForks()
}

// nowhere is a machine without PostgreSQL whose repository has none either.
func nowhere(t *testing.T) machine {
	t.Helper()
	repository := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(repository.Close)
	return machine{places: []string{}, cache: filepath.Join(newDir(t), "cache"), repository: repository.URL}
}

func TestNewestProgramsAreChosen(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	for place, version := range map[string]string{
		"a": "9.6.24", "b": "13.22", "c": "14.19 (Debian 14.19-1)", "d": "17.2", "e": "17.10", "f": "18beta1", "g": "something else",
	} {
		fakePrograms(t, filepath.Join(dir, place), version)
	}
	client := filepath.Join(dir, "client")
	fakePrograms(t, client, "19.1")
	if err := os.Remove(filepath.Join(client, "initdb")); err != nil {
		t.Fatal(err)
	}
	a, err := accountFor(dataDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	m := nowhere(t)
	m.places = []string{filepath.Join(dir, "*")}
	for major, want := range map[int]string{0: "f", 17: "e", 14: "c"} {
		p, err := m.programs(t.Context(), a, major, "", zerolog.Nop())
		if err != nil || filepath.Base(p.dir) != want {
			t.Errorf("for %d: %v, %v", major, p, err)
		}
	}
	for _, major := range []int{13, 16, 19} {
		if p, err := m.programs(t.Context(), a, major, "", zerolog.Nop()); err == nil {
			t.Errorf("for %d: %v", major, p)
		}
	}
}

func TestPostgresOfTheMachineIsFound(t *testing.T) {
	t.Parallel()
	if dirs := (machine{}).installed(t.Context()); len(dirs) == 0 {
		t.Error("none was found")
	}
}

func TestWrongMajorIsExplained(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.MkdirAll(filepath.Join(dir, "data", "pg"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "pg", "PG_VERSION"), []byte("16\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fakePrograms(t, filepath.Join(dir, "bin"), "17.2")
	cfg := careless(filepath.Join(dir, "data"))
	cfg.machine = nowhere(t)
	cfg.machine.places = []string{filepath.Join(dir, "bin")}
	_, err := Start(t.Context(), cfg)
	mustSay(t, err, filepath.Join(dir, "data", "pg"), "made by PostgreSQL 16", "17.2 ("+filepath.Join(dir, "bin"),
		"fetching PostgreSQL 16", "apt-get install postgresql-16", "QUEUED_DATABASE_URL", "QUEUED_DATA_DIR")
}

func TestNoBinariesTellsWhatToDo(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(newDir(t), "data")
	cfg := careless(dir)
	cfg.machine = nowhere(t)
	_, err := Start(t.Context(), cfg)
	mustSay(t, err, "PostgreSQL 14 or newer", "apt-get install postgresql", "QUEUED_DATABASE_URL", cfg.machine.repository)
	if exists(dir) {
		t.Error("the data directory was made")
	}
}

func TestTooOldOrClosedProgramsAreNamed(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	fakePrograms(t, filepath.Join(dir, "old"), "13.4")
	fakePrograms(t, filepath.Join(dir, "broken"), "13.4")
	if err := os.WriteFile(filepath.Join(dir, "broken", "postgres"), []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	waitForForks()
	words := []string{"13.4 (" + filepath.Join(dir, "old"), filepath.Join(dir, "broken"), "exit status 3"}
	if os.Geteuid() == 0 {
		closed := filepath.Join(dir, "closed")
		fakePrograms(t, closed, "17.1")
		if err := os.Chmod(closed, 0o700); err != nil {
			t.Fatal(err)
		}
		words = append(words, closed, "may not run it")
	}
	cfg := careless(filepath.Join(dir, "data"))
	cfg.machine = nowhere(t)
	cfg.machine.places = []string{filepath.Join(dir, "*")}
	_, err := Start(t.Context(), cfg)
	mustSay(t, err, words...)
}
