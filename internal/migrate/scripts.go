package migrate

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"unicode/utf8"

	"github.com/queued/queued/sql"
)

// script is one file of SQL.
type script struct {
	folder, name string
	body         string
	checksum     [sha256.Size]byte
}

func (s script) path() string { return s.folder + "/" + s.name }

// scripts are all scripts of a program, the incremental ones first, each folder by number.
type scripts []script

// applied is an incremental script as a database has recorded it.
type applied struct {
	name, version string // version is the program's that applied it
	checksum      []byte
}

const (
	incrementalFolder, idempotentFolder = "incremental", "idempotent"
	// lastNumber is what the last of the idempotent scripts may have instead of the next number, so that it stays the last when others are added.
	lastNumber = "099"
)

var scriptName = regexp.MustCompile(`^[0-9]{3}-[a-z0-9-]+\.sql$`)

// load reads the scripts and checks their names. It fails with ErrBadScripts.
func load(files fs.FS) (scripts, error) {
	var all scripts
	for _, folder := range []string{incrementalFolder, idempotentFolder} {
		entries, err := fs.ReadDir(files, folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // an embedded tree has no empty folders
			return nil, fmt.Errorf("%w: %w", ErrBadScripts, err)
		}
		for i, entry := range entries {
			s := script{folder: folder, name: entry.Name()}
			if entry.IsDir() || !scriptName.MatchString(s.name) {
				return nil, fmt.Errorf("%w: %s is not named NNN-name.sql: three digits, then lower-case letters, digits and hyphens",
					ErrBadScripts, s.path())
			}
			isLast := folder == idempotentFolder && i == len(entries)-1 && s.name[:3] == lastNumber
			if number := fmt.Sprintf("%03d", i+1); s.name[:3] != number && !isLast {
				return nil, fmt.Errorf("%w: %s must have the number %s: numbers start at 001, without gaps or duplicates; only the last idempotent script may have %s",
					ErrBadScripts, s.path(), number, lastNumber)
			}
			body, err := fs.ReadFile(files, path.Join(folder, s.name))
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrBadScripts, err)
			}
			if !utf8.Valid(body) || bytes.IndexByte(body, 0) >= 0 {
				return nil, fmt.Errorf("%w: %s is not text in UTF-8", ErrBadScripts, s.path())
			}
			s.body, s.checksum = string(body), sha256.Sum256(body)
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: there are none", ErrBadScripts)
	}
	return all, nil
}

// pending returns the scripts to run on a database: the incremental ones that it has not applied, then all idempotent ones. It fails with
// ErrScriptChanged unless those applied, ordered by name, are the first of this program's, with the same bodies; with ErrDevelopment if it is one of the
// first release's that differs, as those changed until the release.
func (all scripts) pending(done []applied) (scripts, error) {
	for i, d := range done {
		isThere := i < len(all) && all[i].folder == incrementalFolder && all[i].name == d.name
		isSame := isThere && bytes.Equal(all[i].checksum[:], d.checksum)
		switch {
		case !isSame && compareVersions(d.version, sql.FirstRelease) <= 0:
			return nil, fmt.Errorf("%w, as its incremental/%s is not that of this program: make the database anew", ErrDevelopment, d.name)
		case !isThere:
			return nil, fmt.Errorf("%w: it has applied incremental/%s, which this program does not have at that place: "+
				"was the script renamed or removed, or the database migrated from another branch?", ErrScriptChanged, d.name)
		case !isSame:
			return nil, fmt.Errorf("%w: incremental/%s was changed since: restore it and make the change in a new script", ErrScriptChanged, d.name)
		}
	}
	return all[len(done):], nil
}
