package pgtest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestDirectoriesOfKilledRunsAreRemovedByTheNext(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	add := func(name string, age time.Duration, locked bool) {
		path := filepath.Join(base, name)
		if err := os.MkdirAll(filepath.Join(path, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
		if locked {
			if err := os.WriteFile(filepath.Join(path, lockName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
	}
	add(directoryPrefix+"killed", time.Hour, true)
	add(directoryPrefix+"half-removed", time.Hour, false)
	add(directoryPrefix+"only-being-made", 0, false)
	add("another-program's", time.Hour, true)
	running, err := newDirectory(base)
	if err != nil {
		t.Fatal(err)
	}
	hourAgo := time.Now().Add(-time.Hour)
	if err := os.Chtimes(running.path, hourAgo, hourAgo); err != nil {
		t.Fatal(err)
	}

	removeAbandoned(base)
	want := []string{"another-program's", directoryPrefix + "only-being-made", filepath.Base(running.path)}
	slices.Sort(want)
	if got := names(t, base); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	if err := running.remove(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, base); slices.Contains(got, filepath.Base(running.path)) {
		t.Errorf("%s is still there", running.path)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
