// Package queued_test holds CONTRIBUTING.md, and what images are built from, to the tree.
package queued_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// contributing returns the text under a heading of CONTRIBUTING.md.
func contributing(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("CONTRIBUTING.md has no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

func TestMapNamesEveryPackage(t *testing.T) {
	t.Parallel()
	var packages []string
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && path != "." || entry.Name() == "testdata" || entry.Name() == "bin"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go") && filepath.Dir(path) != ".":
			packages = append(packages, filepath.ToSlash(filepath.Dir(path))+"/")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var mapped []string
	for line := range strings.Lines(contributing(t, "Map")) {
		if path, _, _ := strings.Cut(line, " "); strings.HasSuffix(path, "/") {
			mapped = append(mapped, path)
		}
	}
	for _, path := range slices.Compact(slices.Sorted(slices.Values(packages))) {
		if !slices.Contains(mapped, path) {
			t.Errorf("%s is not on the map", path)
		}
	}
	for _, path := range mapped {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("the map names %s: %v", path, err)
		}
	}
}

// A row of "Where to find" is | what | `file`: `text in it` |.
func TestPlacesToFindThingsExist(t *testing.T) {
	t.Parallel()
	place := regexp.MustCompile("`([^`]+)`: `([^`]+)`")
	places := place.FindAllStringSubmatch(contributing(t, "Where to find"), -1)
	if len(places) < 5 {
		t.Fatalf("%d places, want at least 5", len(places))
	}
	for _, p := range places {
		text, err := os.ReadFile(p[1])
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(text), p[2]) {
			t.Errorf("%s does not contain %q", p[1], p[2])
		}
	}
}

func TestGlossaryHasAtMostFortyTerms(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for line := range strings.Lines(contributing(t, "Glossary")) {
		term, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		if !strings.HasPrefix(line, "| ") || term == "term" || strings.HasPrefix(term, "---") {
			continue
		}
		if seen[term] {
			t.Errorf("%q has two meanings", term)
		}
		seen[term] = true
	}
	if len(seen) == 0 || len(seen) > 40 {
		t.Errorf("%d terms, want 1 to 40", len(seen))
	}
}

func TestImagesAreBuiltFromAllThatTheProgramNeeds(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(".dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	sent := strings.Split(string(text), "\n")
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if .Module}}{{.ImportPath}}{{end}}", "./cmd/queued").Output()
	if err != nil {
		t.Fatal(err)
	}
	needed := slices.DeleteFunc(strings.Fields(string(out)), func(path string) bool { return !strings.HasPrefix(path, "github.com/queued/queued/") })
	if len(needed) < 10 {
		t.Errorf("the program needs %q, which is less than there is", needed)
	}
	for _, path := range needed {
		dir := strings.TrimPrefix(path, "github.com/queued/queued/")
		top, _, _ := strings.Cut(dir, "/")
		if !slices.Contains(sent, "!"+top) || slices.Contains(sent, dir) {
			t.Errorf(".dockerignore leaves out %s", dir)
		}
	}
}

// Each version has one entry in CHANGELOG.md, the newest first, and that is sql/VERSION.
func TestChangelogHasEachVersionOnce(t *testing.T) {
	t.Parallel()
	changelog, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile("sql/versions.sum")
	if err != nil {
		t.Fatal(err)
	}
	var entries, versions []string
	for _, found := range regexp.MustCompile(`(?m)^## (\d\S*)`).FindAllSubmatch(changelog, -1) {
		entries = append(entries, string(found[1]))
	}
	for line := range strings.Lines(string(sums)) {
		version, _, _ := strings.Cut(line, " ")
		versions = append(versions, version)
	}
	current, err := os.ReadFile("sql/VERSION")
	if err != nil {
		t.Fatal(err)
	}
	if version := strings.TrimSpace(string(current)); !slices.Contains(versions, version) {
		versions = append(versions, version)
	}
	slices.Reverse(versions)
	if !slices.Equal(entries, versions) {
		t.Errorf("CHANGELOG.md has entries of %q, want %q", entries, versions)
	}
}
