//go:build unix

package pgtest

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// EnvTimes names a file that tests add a line to, in which their databases were used: see noteTimes.
const EnvTimes = "QUEUED_TEST_TIMES"

// noteTimes has a line with the costs of a test added to the file that EnvTimes names, when its database is dropped: the seconds that the
// test took, those of processor time of its process and of programs that have ended, and those in which sessions of its database ran
// statements; the number of sessions; the package and the test. Processor time is that of one test if tests run one at a time: see make slow.
func noteTimes(tb testing.TB, server *Server, database string) {
	tb.Helper()
	file := os.Getenv(EnvTimes)
	if file == "" {
		return
	}
	began, used := time.Now(), processorTime()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), cloneLimit)
		defer cancel()
		var sessions int64
		var active float64
		err := server.admin(ctx, func(conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `select sessions, active_time / 1000 from pg_catalog.pg_stat_database where datname = $1`, database).Scan(&sessions, &active)
		})
		if err != nil {
			tb.Error(err)
		}
		dir, _ := os.Getwd() // of the package
		line := fmt.Sprintf("%.2f\t%.2f\t%.2f\t%d\t%s %s\n", time.Since(began).Seconds(), (processorTime() - used).Seconds(), active, sessions, dir, tb.Name())
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // a file that whoever runs the tests has named
		if err != nil {
			tb.Fatal(err)
		}
		if _, err := f.WriteString(line); err != nil {
			tb.Error(err)
		}
		if err := f.Close(); err != nil {
			tb.Error(err)
		}
	})
}

// processorTime returns what this process, and those of its children that have ended, have taken so far.
func processorTime() (total time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if syscall.Getrusage(who, &usage) == nil {
			total += time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		}
	}
	return total
}
