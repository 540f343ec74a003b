//go:build unix

package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func TestDataSurviveSIGKILLOfTheOwner(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	o := startOwner(t, dir)
	run(t, o.url, "create table kept as select 42 as n")
	o.kill()
	server := start(t, Config{DataDir: dir})
	if got := query(t, server.URL(), "select n::text from kept"); got != "42" {
		t.Errorf("got %s", got)
	}
}

func TestPostgresEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a process of its parent's death")
	}
	dir := newCluster(t)
	o := startOwner(t, dir)
	pid := postmasterPID(dir)
	if !isPostmasterOf(t.Context(), pid, dataDir(dir).pg()) {
		t.Fatalf("process %d is not the server", pid)
	}
	// The signal is sent when a thread ends; work makes Go start and end threads.
	run(t, o.url, "select 1")
	o.kill()
	eventually(t, "PostgreSQL ended", func() bool { return !isPostmasterOf(t.Context(), pid, dataDir(dir).pg()) })
	if exists(filepath.Join(dir, "pg", "postmaster.pid")) {
		t.Error("it ended without a shutdown")
	}
}

func TestDataSurviveSIGKILLOfOwnerAndServer(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	o := startOwner(t, dir)
	if len(clusterProcesses(dataDir(dir).pg())) == 0 {
		t.Skip("this process may not look into others, so what a dead server leaves cannot be found")
	}
	run(t, o.url, "create table kept as select 42 as n")
	// A busy session does not notice that its postmaster is dead, and holds its shared memory.
	busy := connect(t, o.url)
	ended := make(chan error, 1)
	go func() {
		_, err := busy.Exec(context.Background(), "do $$ begin perform pg_advisory_lock(1); loop end loop; end $$")
		ended <- err
	}()
	eventually(t, "the session is busy", func() bool {
		return query(t, o.url, "select count(*)::text from pg_locks where locktype = 'advisory'") == "1"
	})
	if err := syscall.Kill(postmasterPID(dir), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	o.kill()
	// While it is stopped it cannot end, so PostgreSQL refuses to start at least once.
	session := int(busy.PgConn().PID())
	if err := syscall.Kill(session, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{})
	go func() {
		defer close(refused)
		eventually(t, "PostgreSQL refused to start", func() bool { return strings.Contains(readLog(t, dataDir(dir)), "shared memory") })
		_ = syscall.Kill(session, syscall.SIGCONT)
	}()
	server := start(t, Config{DataDir: dir})
	<-refused
	if got := query(t, server.URL(), "select n::text from kept"); got != "42" {
		t.Errorf("got %s", got)
	}
	if err := <-ended; err == nil {
		t.Error("the session of the dead server ended without an error")
	}
}

func TestOrphanIsReplaced(t *testing.T) {
	t.Parallel()
	dir := dataDir(newCluster(t))
	first := start(t, noFsync(string(dir)))
	run(t, first.URL(), "create table kept as select 42 as n")
	stop(t, first)

	// No signal follows the end of this one's parent, as on systems other than Linux.
	cmd := first.account.command(t.Context(), first.process.cmd.Path, "-D", dir.pg(), "-c", "listen_addresses=", "-c", "unix_socket_directories="+dir.pg())
	orphan, err := startProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = orphan.stop(context.Background()) })
	eventually(t, "it is ready", func() bool {
		pid, ready := dir.postmaster()
		return pid == orphan.pid() && ready
	})

	second := start(t, noFsync(string(dir)))
	if got := query(t, second.URL(), "select n::text from kept"); got != "42" {
		t.Errorf("got %s", got)
	}
	if !orphan.hasEnded() {
		t.Error("the orphan still runs")
	}
	if log := readLog(t, dir); strings.Contains(log, "not properly shut down") {
		t.Errorf("the orphan was not shut down; the log is:\n%s", log)
	}
}

func TestForeignProcessInPostmasterPIDDoesNotBlock(t *testing.T) {
	t.Parallel()
	dir := dataDir(newCluster(t))
	server := start(t, noFsync(string(dir)))
	if err := syscall.Kill(server.process.pid(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-server.Done()
	stop(t, server)
	left, err := os.ReadFile(filepath.Join(dir.pg(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}

	// PostgreSQL takes only a process of its own user for a server.
	foreign, err := startProcess(server.account.command(t.Context(), "/bin/sleep", "1000"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = foreign.cmd.Process.Kill()
		<-foreign.ended
	})
	_, rest, _ := strings.Cut(string(left), "\n")
	text := fmt.Sprintf("%d\n%s", foreign.pid(), rest)
	if err := os.WriteFile(filepath.Join(dir.pg(), "postmaster.pid"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	start(t, noFsync(string(dir)))
	if foreign.hasEnded() {
		t.Error("the other process was ended")
	}
}

func TestBrokenPostmasterPIDNamesNoProcess(t *testing.T) {
	t.Parallel()
	dir := dataDir(newDir(t))
	if err := os.Mkdir(dir.pg(), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text string
		want int
	}{
		{"", 0},
		{"\n", 0},
		{"-5\n", 0},
		{"x\n", 0},
		{"12", 12},
		{" 12 \nmore\n", 12},
		{"99999999999999999999\n", 0},
	} {
		if err := os.WriteFile(filepath.Join(dir.pg(), "postmaster.pid"), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := postmasterPID(string(dir)); got != c.want {
			t.Errorf("%q: %d, want %d", c.text, got, c.want)
		}
	}
	if _, err := (&Server{dir: dir}).stopOrphans(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestIncompleteClusterIsDiscarded(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	o, _ := launchOwner(t, dir)
	eventually(t, "initdb has made some files", func() bool { return len(entries(t, dir+"/pg.new-*/base/1")) > 0 })
	o.kill()
	if exists(filepath.Join(dir, "pg")) {
		t.Fatal("the cluster was complete before it could be interrupted")
	}
	start(t, Config{DataDir: dir})
	eventually(t, "the incomplete cluster is gone", func() bool { return len(entries(t, dir+"/pg.new-*")) == 0 })
}

func TestOtherFilesInPlaceOfAClusterAreKept(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	precious := filepath.Join(dir, "pg", "precious")
	if err := errors.Join(os.Mkdir(filepath.Dir(precious), 0o700), os.WriteFile(precious, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), noFsync(dir))
	mustSay(t, err, filepath.Dir(precious), "PG_VERSION")
	if !exists(precious) {
		t.Error("the file is gone")
	}
}

func TestEmptyClusterDirectoryIsUsed(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	if err := os.Mkdir(filepath.Join(dir, "pg"), 0o700); err != nil {
		t.Fatal(err)
	}
	start(t, noFsync(dir))
}

func TestCrashLeavesNoSocketDirectoryBehind(t *testing.T) {
	t.Parallel()
	dir := newDeepCluster(t)
	o := startOwner(t, dir)
	first, err := os.Readlink(dataDir(dir).run())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(postmasterPID(dir), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	o.kill()
	start(t, noFsync(dir))
	if _, err := os.Stat(first); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v", first, err)
	}
}
