package migrate

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
)

// script is one file of SQL.
type script struct {
	folder, name string
	body         string
	checksum     [sha256.Size]byte
}

func (s script) path() string { return s.folder + "/" + s.name }

// scripts are all files of a program, each kind in the order of its numbers.
type scripts struct {
	incremental, idempotent []script
}

// applied is an incremental script as a database remembers it.
type applied struct {
	name     string
	checksum []byte
}

const incrementalFolder, idempotentFolder = "incremental", "idempotent"

var scriptName = regexp.MustCompile(`^[0-9]{3}-[a-z0-9-]+\.sql$`)

// load reads the scripts and holds their names against the rules. It fails with ErrBadScripts.
func load(files fs.FS) (scripts, error) {
	var all scripts
	var err error
	if all.incremental, err = loadFolder(files, incrementalFolder); err != nil {
		return scripts{}, err
	}
	if all.idempotent, err = loadFolder(files, idempotentFolder); err != nil {
		return scripts{}, err
	}
	if len(all.incremental)+len(all.idempotent) == 0 {
		return scripts{}, fmt.Errorf("%w: there are none", ErrBadScripts)
	}
	return all, nil
}

// loadFolder reads one folder. One that is missing is empty: the two look the same in an embedded tree.
func loadFolder(files fs.FS, folder string) ([]script, error) {
	entries, err := fs.ReadDir(files, folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrBadScripts, err)
	}
	var found []script
	for _, entry := range entries {
		s := script{folder: folder, name: entry.Name()}
		if entry.IsDir() || !scriptName.MatchString(s.name) {
			return nil, fmt.Errorf("%w: %s is not named NNN-name.sql: three digits, then lower-case letters, digits and hyphens",
				ErrBadScripts, s.path())
		}
		number, _ := strconv.Atoi(s.name[:3]) // three digits, as the name matched
		switch due := len(found) + 1; {
		case number > due:
			return nil, fmt.Errorf("%w: there is no %03d before %s: numbers start at 001 and have no gaps", ErrBadScripts, number-1, s.path())
		case number == 0:
			return nil, fmt.Errorf("%w: %s: numbers start at 001", ErrBadScripts, s.path())
		case number < due:
			return nil, fmt.Errorf("%w: %s has the same number as %s", ErrBadScripts, s.path(), found[number-1].name)
		}
		body, err := fs.ReadFile(files, path.Join(folder, s.name))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrBadScripts, err)
		}
		if !utf8.Valid(body) || bytes.IndexByte(body, 0) >= 0 {
			return nil, fmt.Errorf("%w: %s is not text in UTF-8", ErrBadScripts, s.path())
		}
		s.body, s.checksum = string(body), sha256.Sum256(body)
		found = append(found, s)
	}
	return found, nil
}

// pending returns what a migration runs on a database that has done these incremental scripts, given by
// name: the incremental ones it has not done, then all idempotent ones. It fails with
// ErrScriptChanged unless what it has done are the first of this program's, body by body.
func (all scripts) pending(done []applied) ([]script, error) {
	for i, d := range done {
		switch {
		case i >= len(all.incremental) || all.incremental[i].name != d.name:
			return nil, fmt.Errorf("%w: it has applied incremental/%s, which this program does not have at that place: "+
				"was the script renamed or taken away, or the database migrated from another branch?", ErrScriptChanged, d.name)
		case !bytes.Equal(all.incremental[i].checksum[:], d.checksum):
			return nil, fmt.Errorf("%w: incremental/%s was changed since: put it back and make the change in a new script",
				ErrScriptChanged, d.name)
		}
	}
	rest := all.incremental[len(done):]
	return append(rest[:len(rest):len(rest)], all.idempotent...), nil
}

// explain adds to a failure of the script where it happened and what else the server said.
func (s script) explain(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return fmt.Errorf("%s: %w", s.path(), err)
	}
	place := s.path()
	if line := s.line(pgErr); line > 0 {
		place += fmt.Sprintf(", line %d", line)
	}
	var more strings.Builder
	for _, part := range []struct{ label, text string }{
		{"detail", pgErr.Detail},
		{"hint", hint(pgErr)},
		{"where", s.where(pgErr)},
	} {
		if part.text != "" {
			fmt.Fprintf(&more, "; %s: %s", part.label, part.text)
		}
	}
	return fmt.Errorf("%s: %w%s", place, err, more.String())
}

// line returns the line of the script that the server points at, or 0.
func (s script) line(pgErr *pgconn.PgError) int {
	// The server quotes the script, or the one statement or function body in it that was at fault.
	quoted := pgErr.InternalQuery
	if pgErr.InternalPosition < 1 || strings.Count(s.body, quoted) != 1 {
		return 0
	}
	before, _, _ := strings.Cut(s.body, quoted)
	line := 1 + strings.Count(before, "\n")
	position := int(pgErr.InternalPosition)
	for _, r := range quoted {
		if position--; position == 0 { // positions count characters, from 1
			break
		}
		if r == '\n' {
			line++
		}
	}
	return line
}

// where returns the context the server gave, innermost first, less what is the same for every
// script: that the body, quoted in full, was run by executeScript.
func (s script) where(pgErr *pgconn.PgError) string {
	levels, _, _ := strings.Cut(pgErr.Where, s.body)
	last := strings.LastIndexByte(levels, '\n')
	return strings.ReplaceAll(levels[:max(last, 0)], "\n", " < ")
}

// hint returns the server's hint, or one of our own for what a script is likely to run into.
func hint(pgErr *pgconn.PgError) string {
	switch {
	case pgErr.Hint != "":
		return pgErr.Hint
	case pgErr.Code == "0A000" && pgErr.Routine == "exec_stmt_dynexecute":
		return "scripts are executed inside the migration's one transaction, which they may neither begin nor end"
	case pgErr.Code == "55P03": // lock_not_available
		return "another session has used the table for longer than the " + lockTimeout + " that a migration may hold up the rest; " +
			"look for long transactions in pg_stat_activity and try again"
	}
	return ""
}
