package workloads

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// program is the queued that the tests measure, built from the folder above the module.
var program string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	built, remove, err := Build(context.Background(), "../..", ForTests)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer remove()
	program = built
	code := m.Run()
	if code == 0 { // a failed test may well have been in the middle of something
		if err := goleak.Find(); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "the tests left goroutines behind:", err)
			code = 1
		}
	}
	return code
}

// postgres is the server that the tests make their databases on.
func postgres(t *testing.T) *Postgres {
	t.Helper()
	url := os.Getenv("QUEUED_TEST_DATABASE_URL")
	if url == "" {
		t.Fatal("QUEUED_TEST_DATABASE_URL is not set: run this with make test-bench, which starts a PostgreSQL")
	}
	c, err := NewPostgres(url)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// emptyDatabase makes a database that is dropped at the end of the test.
func emptyDatabase(t *testing.T) (url string) {
	t.Helper()
	c := postgres(t)
	name, url, err := c.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Drop(context.WithoutCancel(t.Context()), name); err != nil {
			t.Error(err)
		}
	})
	return url
}

// serve starts a server on a database, which the server's migration fills. It is stopped at the end of the test.
func serve(t *testing.T, databaseURL string) (url string) {
	t.Helper()
	p, url, err := startProcess(t.Context(), program, []string{"QUEUED_MAX_CONNS=4"}, databaseURL, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	})
	return url
}
