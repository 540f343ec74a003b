package migrate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/queued/queued/sql"
)

func TestScriptsOutOfOrderAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		files []string
		want  string // the error has this; empty: there is none
	}{
		{"good", []string{"incremental/001-a.sql", "incremental/002-b-2.sql", "idempotent/001-a.sql"}, ""},
		{"one folder alone", []string{"idempotent/001-a.sql"}, ""},
		{"other folders are ignored", []string{"incremental/001-a.sql", "docs/x.md"}, ""},
		{"no script at all", nil, "there are none"},
		{"gap", []string{"incremental/001-a.sql", "incremental/003-b.sql"}, "incremental/003-b.sql must have the number 002"},
		{"gap at the start", []string{"idempotent/002-a.sql"}, "idempotent/002-a.sql must have the number 001"},
		{"the last number", []string{"incremental/001-a.sql", "idempotent/001-a.sql", "idempotent/099-z.sql"}, ""},
		{"the last number, twice", []string{"idempotent/001-a.sql", "idempotent/099-y.sql", "idempotent/099-z.sql"}, "idempotent/099-y.sql must have the number 002"},
		{"a number behind the last", []string{"idempotent/001-a.sql", "idempotent/099-y.sql", "idempotent/100-z.sql"}, "idempotent/099-y.sql must have the number 002"},
		{"the last number of scripts that run once", []string{"incremental/001-a.sql", "incremental/099-z.sql"}, "incremental/099-z.sql must have the number 002"},
		{"another gap", []string{"idempotent/001-a.sql", "idempotent/098-z.sql"}, "idempotent/098-z.sql must have the number 002"},
		{"zero", []string{"incremental/000-a.sql"}, "incremental/000-a.sql must have the number 001: numbers start at 001"},
		{"number twice", []string{"incremental/001-a.sql", "incremental/001-b.sql"}, "incremental/001-b.sql must have the number 002: numbers start at 001, without gaps or duplicates"},
		{"two digits", []string{"incremental/01-a.sql"}, "incremental/01-a.sql is not named"},
		{"four digits", []string{"incremental/0001-a.sql"}, "is not named"},
		{"upper case", []string{"incremental/001-A.sql"}, "is not named"},
		{"underscore", []string{"incremental/001-a_b.sql"}, "is not named"},
		{"no name", []string{"incremental/001.sql"}, "is not named"},
		{"other suffix", []string{"incremental/001-a.sql", "incremental/002-a.sql~"}, "002-a.sql~ is not named"},
		{"folder within", []string{"incremental/001-a.sql/x"}, "001-a.sql is not named"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			files := fstest.MapFS{}
			for _, name := range c.files {
				files[name] = &fstest.MapFile{Data: []byte("select 1")}
			}
			_, err := load(files)
			if c.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if !errors.Is(err, ErrBadScripts) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ErrBadScripts with %q", err, c.want)
			}
		})
	}
}

func TestScriptThatIsNotTextIsRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"select 1; \x00", "select '\xff'"} {
		_, err := load(fstest.MapFS{"incremental/001-a.sql": {Data: []byte(body)}})
		if !errors.Is(err, ErrBadScripts) {
			t.Errorf("%q: got %v, want ErrBadScripts", body, err)
		}
	}
}

func TestScriptsOfTheProgramAreInOrder(t *testing.T) {
	t.Parallel()
	all, err := load(sql.FS)
	if err != nil {
		t.Fatal(err)
	}
	if first, last := all[0].folder, all[len(all)-1].folder; first != incrementalFolder || last != idempotentFolder {
		t.Errorf("the first script is %s, the last is %s", first, last)
	}
}

func TestServersThatCannotHoldTheSchemaAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number            int
		version, encoding string
		want              string
	}{
		{14_00_00, "14.0", "UTF8", ""},
		{18_00_01, "18.1", "UTF8", ""},
		{13_00_04, "13.4", "UTF8", "PostgreSQL 14 or newer is needed, this is 13.4"},
		{9_06_24, "9.6.24", "UTF8", "this is 9.6.24"},
		{17_00_00, "17.0", "SQL_ASCII", "this one has SQL_ASCII"},
	} {
		t.Run(fmt.Sprintf("%s %s", c.version, c.encoding), func(t *testing.T) {
			t.Parallel()
			err := checkServer(c.number, c.version, c.encoding)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
