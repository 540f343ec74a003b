// Package sql holds the schema agent as scripts: incremental/NNN-name.sql run once per database,
// ever; idempotent/NNN-name.sql run at every migration. Package migrate says how.
package sql

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"
)

//go:generate go test -v -count=1 -run=^TestScriptsAreThoseOfTheirVersion$ . -record

// FS holds the folders incremental and idempotent. They are embedded whole, so that a file with
// a wrong name is an error at the first migration and not a script that never runs.
//
//go:embed incremental idempotent
var FS embed.FS

//go:embed VERSION
var version string

// Version returns the version of the scripts, which is the program's as well: a semantic version
// without a leading v. Whoever changes a script raises it.
func Version() string { return strings.TrimSpace(version) }

// FirstRelease is the first version that was released. Databases of versions below it were never in use, and are refused.
const FirstRelease = "1.0.0"

// OldestBeside is the oldest version whose processes may run beside those of Version, on its schema: the release before, as the tests have only
// that one run beside it; of the first release, itself. agent_service.oldest_beside says the same to processes that run. It is raised to Version
// where a migration changes or drops what the release before calls.
const OldestBeside = "1.0.0"

// Digest returns the SHA-256 of all scripts, names and bodies, in hexadecimal. It is the same for
// two programs exactly when they would make the same schema.
func Digest() string {
	names, err := fs.Glob(FS, "*/*")
	if err == nil {
		var sum string
		if sum, err = digest(FS, names); err == nil {
			return sum
		}
	}
	panic(err) // the files are part of the program
}

// digest hashes the files named, each as its name, its length and its body: no two lists of files
// run into the same bytes.
func digest(files fs.FS, names []string) (string, error) {
	h := sha256.New()
	for _, name := range names {
		body, err := fs.ReadFile(files, name)
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintf(h, "%s %d\n", name, len(body)) // a hash takes every write
		_, _ = h.Write(body)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
