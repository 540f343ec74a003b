package sql

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/mod/semver"
)

// record makes TestScriptsAreThoseOfTheirVersion add the line of a new version instead of asking for it.
var record = flag.Bool("record", false, "append the current version to versions.sum (go generate ./sql)")

const sumsFile = "versions.sum"

func TestScriptsAreThoseOfTheirVersion(t *testing.T) { //nolint:paralleltest // with -record it writes a file
	sums, err := os.ReadFile(sumsFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	err = verify(string(sums), Version(), FS)
	if errors.Is(err, errUnrecorded) && *record {
		line, lineErr := sumLine(Version(), FS)
		if lineErr != nil {
			t.Fatal(lineErr)
		}
		if err = os.WriteFile(sumsFile, []byte(string(sums)+line+"\n"), 0o600); err == nil {
			t.Logf("recorded: %s", line)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

var errUnrecorded = errors.New("run go generate ./sql and commit sql/" + sumsFile)

// verify holds scripts against sums, whose lines are what sumLine made of each version ever
// recorded, oldest first. It fails with errUnrecorded when all that is missing is the line of version.
func verify(sums, version string, scripts fs.FS) error {
	if !isVersion(version) {
		return fmt.Errorf("sql/VERSION holds %q, which is no semantic version like 1.2.3", version)
	}
	last, lastLine := "", ""
	for n, line := range strings.Split(strings.TrimSuffix(sums, "\n"), "\n") {
		if sums == "" {
			break
		}
		var recorded, all, incremental string
		var count int
		if _, err := fmt.Sscanf(line, "%s %s %d %s", &recorded, &all, &count, &incremental); err != nil || !isVersion(recorded) {
			return fmt.Errorf("sql/%s:%d: %q is not \"version digest count digest\"", sumsFile, n+1, line)
		}
		if last != "" && semver.Compare("v"+last, "v"+recorded) >= 0 {
			return fmt.Errorf("sql/%s:%d: %s does not come after %s: versions ascend, and each is recorded once", sumsFile, n+1, recorded, last)
		}
		last, lastLine = recorded, line
		if recorded == version {
			continue // the whole line is compared below
		}
		names, err := fs.Glob(scripts, "incremental/*")
		if err != nil {
			return err
		}
		if len(names) < count {
			return fmt.Errorf("incremental scripts are gone: version %s had %d of them, now there are %d. "+
				"Databases have applied them: put them back, and undo what they did in a new script", recorded, count, len(names))
		}
		if now, err := digest(scripts, names[:count]); err != nil {
			return err
		} else if now != incremental {
			return fmt.Errorf("one of the first %d incremental scripts is not as version %s released it. "+
				"Databases have applied them: put them back (git diff v%[2]s -- sql/incremental) and make the change in a new script", count, recorded)
		}
	}
	now, err := sumLine(version, scripts)
	switch {
	case err != nil:
		return err
	case lastLine == now:
		return nil
	case last == "" || semver.Compare("v"+last, "v"+version) < 0:
		return fmt.Errorf("version %s is not in sql/%s yet: %w", version, sumsFile, errUnrecorded)
	case last == version:
		return fmt.Errorf("something under sql/incremental or sql/idempotent changed, but sql/VERSION still says %s: "+
			"raise it, run go generate ./sql, and commit the two with sql/%s. "+
			"(Only if %[1]s was never released: keep it, and record it anew: sed -i '/^%[1]s /d' sql/%[2]s && go generate ./sql)", version, sumsFile)
	default:
		return fmt.Errorf("sql/VERSION says %s, but sql/%s already holds %s: a version only rises", version, sumsFile, last)
	}
}

// sumLine returns "version digest count digest": the digest of all scripts, then how many of them
// are incremental and the digest of those, which later versions must keep.
func sumLine(version string, scripts fs.FS) (string, error) {
	all, err := fs.Glob(scripts, "*/*")
	if err != nil {
		return "", err
	}
	incremental, err := fs.Glob(scripts, "incremental/*")
	if err != nil {
		return "", err
	}
	allSum, err := digest(scripts, all)
	if err != nil {
		return "", err
	}
	incrementalSum, err := digest(scripts, incremental)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s %s %d %s", version, allSum, len(incremental), incrementalSum), nil
}

// isVersion tells whether s is a complete semantic version without a v in front.
func isVersion(s string) bool { return semver.IsValid("v"+s) && semver.Canonical("v"+s) == "v"+s }

func TestChangedScriptsNeedANewVersion(t *testing.T) {
	t.Parallel()
	released := tree("one", "two", "fn")
	first := lineOf(t, "0.1.0", released)
	second := lineOf(t, "0.2.0", tree("one", "two", "changed fn"))

	for name, c := range map[string]struct {
		sums, version string
		scripts       fs.FS
		want          string // part of the error, empty: none
	}{
		"nothing changed":                   {first, "0.1.0", released, ""},
		"no version recorded":               {"", "0.1.0", released, "go generate ./sql"},
		"idempotent script changed":         {first, "0.1.0", tree("one", "two", "other"), "sql/VERSION still says 0.1.0"},
		"incremental script changed":        {first, "0.1.0", tree("one", "other", "fn"), "sql/VERSION still says 0.1.0"},
		"script added":                      {first, "0.1.0", tree("one", "two", "fn", "more"), "sql/VERSION still says 0.1.0"},
		"script renamed":                    {first, "0.1.0", renamed(), "sql/VERSION still says 0.1.0"},
		"changed with a new version":        {first, "0.2.0", tree("one", "two", "other"), "go generate ./sql"},
		"changed, raised and recorded":      {first + second, "0.2.0", tree("one", "two", "changed fn"), ""},
		"released incremental changed":      {first, "0.2.0", tree("one", "other", "fn"), "not as version 0.1.0 released it"},
		"released incremental renamed":      {first, "0.2.0", renamed(), "not as version 0.1.0 released it"},
		"released incremental gone":         {first, "0.2.0", tree("one"), "are gone"},
		"version went back":                 {first + second, "0.1.0", released, "a version only rises"},
		"versions in the wrong order":       {second + first, "0.1.0", released, "versions ascend"},
		"version recorded twice":            {first + first, "0.1.0", released, "versions ascend"},
		"prerelease comes before the final": {lineOf(t, "0.1.0-rc.1", released) + first, "0.1.0", released, ""},
		"line cut short":                    {"0.1.0 abc\n", "0.1.0", released, "versions.sum:1"},
		"empty line":                        {first + "\n" + second, "0.2.0", released, "versions.sum:2"},
		"version with a v":                  {first, "v0.1.0", released, "no semantic version"},
		"version incomplete":                {first, "0.1", released, "no semantic version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := verify(c.sums, c.version, c.scripts)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("unexpected error: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got error %v, want one that says %q", err, c.want)
			}
		})
	}
}

func TestOnlyANewVersionIsRecorded(t *testing.T) {
	t.Parallel()
	first := lineOf(t, "0.1.0", tree("one", "two", "fn"))
	if err := verify(first, "0.1.0", tree("one", "two", "other")); errors.Is(err, errUnrecorded) {
		t.Error("a version that has another digest would be recorded again")
	}
	if err := verify(first, "0.2.0", tree("one", "changed", "fn")); errors.Is(err, errUnrecorded) {
		t.Error("a version that changed a released incremental script would be recorded")
	}
	if err := verify(first, "0.2.0", tree("one", "two", "other")); !errors.Is(err, errUnrecorded) {
		t.Errorf("a new version would not be recorded: %v", err)
	}
}

func TestDigestTellsTreesApart(t *testing.T) {
	t.Parallel()
	if len(Digest()) != 64 {
		t.Errorf("not a digest: %q", Digest())
	}
	seen := map[string]string{}
	for name, scripts := range map[string]fs.FS{
		"as is":            tree("one", "two", "fn"),
		"body moved":       tree("onetwo", "", "fn"),
		"renamed":          renamed(),
		"a letter changed": tree("one", "twp", "fn"),
	} {
		line := lineOf(t, "0.1.0", scripts)
		if other, ok := seen[line]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[line] = name
	}
}

// tree is a tree of scripts: two incremental ones, then any number of idempotent ones.
func tree(bodies ...string) fstest.MapFS {
	files := fstest.MapFS{}
	for i, body := range bodies {
		name := fmt.Sprintf("incremental/%03d-a.sql", i+1)
		if i >= 2 {
			name = fmt.Sprintf("idempotent/%03d-a.sql", i-1)
		}
		files[name] = &fstest.MapFile{Data: []byte(body)}
	}
	return files
}

// renamed is tree("one", "two", "fn") with another name for its second script.
func renamed() fstest.MapFS {
	files := tree("one", "two", "fn")
	files["incremental/002-b.sql"] = files["incremental/002-a.sql"]
	delete(files, "incremental/002-a.sql")
	return files
}

func lineOf(t *testing.T, version string, scripts fs.FS) string {
	t.Helper()
	line, err := sumLine(version, scripts)
	if err != nil {
		t.Fatal(err)
	}
	return line + "\n"
}
