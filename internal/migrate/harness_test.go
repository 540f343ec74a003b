package migrate_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/migrate"
)

// run migrates, or ends the test.
func run(t *testing.T, cfg migrate.Config) migrate.Status {
	t.Helper()
	status, err := migrate.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return status
}

// tree makes scripts of pairs of path and body.
func tree(pairs ...string) fstest.MapFS {
	files := fstest.MapFS{}
	for pair := range slices.Chunk(pairs, 2) {
		files[pair[0]] = &fstest.MapFile{Data: []byte(pair[1]), Mode: fs.ModePerm}
	}
	return files
}

// wantError checks that err is target (unless that is nil) and says all of these.
func wantError(t *testing.T, err, target error, says ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %v %q", target, says)
		return
	}
	if target != nil && !errors.Is(err, target) {
		t.Errorf("got %v, want %v", err, target)
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q:\n%v", part, err)
		}
	}
}

// wantCatalog checks that nothing changed in the database.
func wantCatalog(t *testing.T, url string, before []string) {
	t.Helper()
	if diff := cmp.Diff(before, catalog(t, url)); diff != "" {
		t.Errorf("the database changed (-before +after):\n%s", diff)
	}
}

// signal is a log that tells when a line with a certain text was written.
type signal struct {
	text  string
	lines chan struct{}
}

func newSignal(text string) *signal { return &signal{text, make(chan struct{}, 1000)} }

func (s *signal) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(s.text)) {
		select {
		case s.lines <- struct{}{}:
		default: // nobody waits for so many
		}
	}
	return len(line), nil
}

// wait ends the test if ctx ends first.
func (s *signal) wait(ctx context.Context, t *testing.T) {
	t.Helper()
	select {
	case <-s.lines:
	case <-ctx.Done():
		t.Fatalf("nothing was logged with %q: %v", s.text, ctx.Err())
	}
}
