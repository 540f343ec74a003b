//go:build unix

package embedded

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestStartMakesADurableDatabase(t *testing.T) {
	t.Parallel()
	common.make(t)
	server := common.server
	for statement, want := range map[string]string{
		"select current_database()":     "queued",
		"select current_user":           "queued",
		"show fsync":                    "on",
		"show synchronous_commit":       "on",
		"show full_page_writes":         "on",
		"show data_checksums":           "on",
		"show autovacuum":               "on",
		"show server_encoding":          "UTF8",
		"show timezone":                 "UTC",
		"show max_connections":          "100",
		"show shared_buffers":           "128MB",
		"show shared_preload_libraries": "",
		"select datcollate from pg_database where datname = current_database()": "C",
	} {
		if got := query(t, server.URL(), statement); got != want {
			t.Errorf("%s: %q, want %q", statement, got, want)
		}
	}
}

func TestDataSurviveRestart(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	first := start(t, Config{DataDir: dir})
	run(t, first.URL(), "create table kept as select 42 as n")
	stop(t, first)
	if exists(filepath.Join(dir, "pg", "postmaster.pid")) {
		t.Error("the server was not shut down")
	}
	second := start(t, Config{DataDir: dir})
	if got := query(t, second.URL(), "select n::text from kept"); got != "42" {
		t.Errorf("got %s", got)
	}
}

func TestSecondStartOnSameDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	other := startOwner(t, dir)
	_, err := Start(t.Context(), Config{DataDir: dir})
	if !errors.Is(err, ErrInUse) {
		t.Fatalf("got %v", err)
	}
	mustSay(t, err, dir, strconv.Itoa(other.cmd.Process.Pid))
	run(t, other.url, "select 1") // the other server still runs
}

func TestDirectoryIsInUseUnderEveryName(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	link := filepath.Join(dir, "link")
	common.make(t)
	if err := os.Symlink(string(common.server.dir), link); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), noFsync(link)); !errors.Is(err, ErrInUse) {
		t.Errorf("got %v", err)
	}
}

func TestDoneClosesWhenPostgresEndsByItself(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	server := start(t, noFsync(dir))
	if err := server.Err(); err != nil {
		t.Errorf("an error without an end: %v", err)
	}
	if err := syscall.Kill(server.process.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-server.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("Done was not closed in 20 s")
	}
	mustSay(t, server.Err(), "ended by itself", "killed", "postgres.log")
	stop(t, server)
	stop(t, start(t, noFsync(dir))) // the directory is unlocked
}

func TestStopDoesNotCloseDone(t *testing.T) {
	t.Parallel()
	server := start(t, noFsync(newCluster(t)))
	stop(t, server)
	stop(t, server) // and may be repeated
	select {
	case <-server.Done():
		t.Error("Done is closed after Stop")
	default:
	}
	if err := server.Err(); err != nil {
		t.Error(err)
	}
}

func TestStopBreaksOpenSessions(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	server := start(t, noFsync(dir))
	conn := connect(t, server.URL())
	stop(t, server)
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("the session still works")
	}
	if left := clusterProcesses(dataDir(dir).pg()); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
	if exists(dataDir(dir).run()) {
		t.Error("the socket directory is left")
	}
}

func TestStopWithEndedContextLosesNoData(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	server, err := Start(t.Context(), Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	run(t, server.URL(), "create table kept as select 42 as n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = server.Stop(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if alive(server.process.pid()) {
		t.Error("it is still running")
	}
	if got := query(t, start(t, Config{DataDir: dir}).URL(), "select n::text from kept"); got != "42" {
		t.Errorf("got %s", got)
	}
}

func TestCancelledStartLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	pg := dataDir(dir).pg()
	for _, stage := range []struct {
		name    string
		reached func() bool
	}{
		{"before anything", func() bool { return true }},
		{"in initdb", func() bool { return len(entries(t, dir+"/pg.new-*/PG_VERSION")) > 0 }},
		{"when the cluster is made", func() bool { return exists(pg) }},
		{"when the socket directory is made", func() bool { return exists(filepath.Join(dir, "run")) }},
		{"when PostgreSQL starts", func() bool { return exists(filepath.Join(pg, "postmaster.pid")) }},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			defer cancel()
			for !stage.reached() && pause(ctx, time.Millisecond) == nil {
			}
		}()
		server, err := Start(ctx, noFsync(dir))
		cancel()
		<-watched
		if err == nil {
			t.Logf("cancelled %s: too late", stage.name)
			stop(t, server)
			continue
		}
		t.Logf("cancelled %s: %v", stage.name, err)
		if !errors.Is(err, context.Canceled) {
			t.Error("the error does not wrap context.Canceled")
		}
		if left := clusterProcesses(pg); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
		if left := entries(t, dir+"/pg.new-*"); len(left) > 0 {
			t.Errorf("files are left: %v", left)
		}
		if exists(filepath.Join(dir, "run")) {
			t.Error("the socket directory is left")
		}
	}
	start(t, noFsync(dir))
}

func TestTerminalSignalsDoNotReachPostgres(t *testing.T) {
	t.Parallel()
	common.make(t)
	server := common.server
	group, err := syscall.Getpgid(server.process.pid())
	if err != nil {
		t.Fatal(err)
	}
	if group == syscall.Getpgrp() {
		t.Error("PostgreSQL is in this process's group, to which a terminal's Ctrl-C goes")
	}
}

func TestPostgresGetsNoSecretsOfTheProgram(t *testing.T) {
	t.Setenv("QUEUED_API_KEY", "a secret")
	t.Setenv("PGPORT", "1")
	t.Setenv("LC_ALL", "no_such_locale")
	server := start(t, noFsync(newCluster(t)))
	if i := slices.IndexFunc(server.process.cmd.Env, func(v string) bool { return strings.HasPrefix(v, "QUEUED_") || strings.HasPrefix(v, "PGPORT") }); i >= 0 {
		t.Errorf("it got %s", server.process.cmd.Env[i])
	}
}

func TestSettingsReplaceTheDefaults(t *testing.T) {
	t.Parallel()
	server := start(t, Config{DataDir: newCluster(t), Settings: map[string]string{
		"fsync": "off", "synchronous_commit": "off", "max_connections": "20", "search_path": `"a b", public`,
	}})
	for statement, want := range map[string]string{
		"show fsync":              "off",
		"show synchronous_commit": "off",
		"show max_connections":    "20",
		"show search_path":        `"a b", public`,
		"show autovacuum":         "on",
	} {
		if got := query(t, server.URL(), statement); got != want {
			t.Errorf("%s: %q, want %q", statement, got, want)
		}
	}
}

func TestSettingsThatOpenTheServerHaveNoEffect(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	server := start(t, Config{DataDir: dir, Settings: map[string]string{
		"fsync": "off", "listen_addresses": "*", "LISTEN_ADDRESSES": "*", "port": "1", "unix_socket_directories": "/tmp",
		"unix_socket_permissions": "0777", "hba_file": "/dev/null", "ident_file": "/dev/null",
	}})
	for statement, want := range map[string]string{
		"show listen_addresses":        "",
		"show port":                    socketPort,
		"show unix_socket_directories": `"` + string(server.socket) + `"`,
		"show unix_socket_permissions": "0700",
		"show hba_file":                filepath.Join(dir, "pg_hba.conf"),
		"show ident_file":              filepath.Join(dir, "pg_ident.conf"),
	} {
		if got := query(t, server.URL(), statement); got != want {
			t.Errorf("%s: %q, want %q", statement, got, want)
		}
	}
}

func TestFailedStartShowsTheEndOfTheLog(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	_, err := Start(t.Context(), Config{DataDir: dir, Settings: map[string]string{"fsync": "off", "max_connections": "many"}})
	mustSay(t, err, "max_connections", "many", filepath.Join(dir, "postgres.log"))
	start(t, noFsync(dir)) // the directory is unlocked
}

func TestErrorsKeepPayloadsOutOfTheLog(t *testing.T) {
	t.Parallel()
	common.make(t)
	server := common.server
	for _, statement := range []string{
		"select 'payload'::jsonb",
		"create temp table t (v text primary key); insert into t values ('payload'); insert into t values ('payload')",
	} {
		if err := execute(t.Context(), server.URL(), statement); err == nil {
			t.Errorf("no error from %s", statement)
		}
	}
	text := readLog(t, server.dir)
	if !strings.Contains(text, "duplicate key") || strings.Contains(text, "payload") {
		t.Errorf("the log is:\n%s", text)
	}
}

func TestLongLogIsRotated(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	log := filepath.Join(dir, "postgres.log")
	if err := os.WriteFile(log, make([]byte, maxLogSize+1), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, noFsync(dir))
	if info, err := os.Stat(log); err != nil || info.Size() > 1<<20 {
		t.Errorf("%v, %v", info, err)
	}
	if !exists(log + ".1") {
		t.Error("the old log is gone")
	}
}
