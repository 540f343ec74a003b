//go:build unix

package embedded

import (
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestNoTCPPort(t *testing.T) {
	t.Parallel()
	dir := newCluster(t)
	server := start(t, noFsync(dir))
	if got := query(t, server.URL(), "show listen_addresses"); got != "" {
		t.Errorf("it listens on %q", got)
	}
	// ALTER SYSTEM does not open a port either.
	run(t, server.URL(), "alter system set listen_addresses = '*'")
	stop(t, server)
	server = start(t, noFsync(dir))
	if got := query(t, server.URL(), "show listen_addresses"); got != "" {
		t.Errorf("it listens on %q", got)
	}
	if runtime.GOOS != "linux" {
		return
	}
	proc := filepath.Join("/proc", strconv.Itoa(server.process.pid()))
	var tables strings.Builder
	for _, name := range []string{"net/tcp", "net/tcp6"} {
		text, err := os.ReadFile(filepath.Join(proc, name))
		if err != nil {
			t.Fatal(err)
		}
		tables.Write(text)
	}
	sockets := 0
	for _, fd := range entries(t, filepath.Join(proc, "fd", "*")) {
		target, err := os.Readlink(fd)
		if errors.Is(err, fs.ErrPermission) {
			t.Log("this process may not look into others, so their sockets are not checked")
			return
		}
		if inode, ok := strings.CutPrefix(strings.TrimSuffix(target, "]"), "socket:["); err == nil && ok {
			sockets++
			if strings.Contains(tables.String(), " "+inode+" ") {
				t.Errorf("descriptor %s is a TCP socket", fd)
			}
		}
	}
	if sockets == 0 {
		t.Error("the server has no socket, so nothing was checked")
	}
}

func TestSocketIsClosedToOthers(t *testing.T) {
	t.Parallel()
	common.make(t)
	server := common.server
	private := map[string]os.FileMode{
		"run": 0o700, "run/.s.PGSQL.5432": 0o700, "pg": 0o700, "postgres.log": 0o600, "queued.lock": 0o600,
		"": 0o700,
	}
	if server.account.other {
		private[""] = 0o711
	}
	for name, want := range private {
		if got := mode(t, filepath.Join(string(server.dir), name)); got != want {
			t.Errorf("%q has mode %s, want %s", name, got, want)
		}
	}
	if strings.Contains(server.URL(), "password") {
		t.Error("the URL has a password")
	}
}

func TestOtherUsersAreRefusedByTheServerToo(t *testing.T) {
	t.Parallel()
	onlyRoot(t)
	dir := newCluster(t)
	server := start(t, noFsync(dir))
	// With the directory open to everybody, and a program that every user can run.
	for _, path := range []string{string(server.socket), server.socket.socket()} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "program")
	copyFile(t, os.Args[0], program)

	for _, uid := range []uint32{65534, uint32(server.account.uid)} {
		cmd := exec.Command(program)
		cmd.Dir = "/"
		cmd.Env = []string{envConnect + "=" + server.URL()}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), `Peer authentication failed for user "queued"`) {
			t.Errorf("user %d: %v, %s", uid, err, out)
		}
	}
}

func TestOtherRolesNeedAPassword(t *testing.T) {
	t.Parallel()
	common.make(t)
	server := common.server
	run(t, server.URL(), "drop role if exists worker, open; create role worker login password 'pw'; create role open login")
	as := func(user *url.Userinfo) string {
		u, err := url.Parse(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		u.User = user
		return u.String()
	}
	if got := query(t, as(url.UserPassword("worker", "pw")), "select current_user"); got != "worker" {
		t.Errorf("got %s", got)
	}
	for _, user := range []*url.Userinfo{url.UserPassword("worker", "no"), url.User("worker"), url.User("open"), url.UserPassword("open", "x")} {
		if err := execute(t.Context(), as(user), "select 1"); err == nil {
			t.Errorf("%s could connect", user)
		}
	}
}

func TestDeepDataDirStillStarts(t *testing.T) {
	t.Parallel()
	dir := newDeepCluster(t)
	server := start(t, noFsync(dir))
	run(t, server.URL(), "select 1")
	socket, err := os.Readlink(filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	if got := mode(t, socket); got != 0o700 {
		t.Errorf("%s has mode %s", socket, got)
	}
	stop(t, server)
	if exists(socket) || exists(filepath.Join(dir, "run")) {
		t.Errorf("%s is left", socket)
	}
}

func TestDeepTemporaryDirectoryIsNotUsed(t *testing.T) {
	temp := filepath.Join(newDir(t), strings.Repeat("deep", 25))
	dir := newDeepCluster(t)
	t.Setenv("TMPDIR", temp)
	run(t, start(t, noFsync(dir)).URL(), "select 1")
}

func TestDirectoryNamesMayHaveSpecialCharacters(t *testing.T) {
	t.Parallel()
	parent, dir := newDir(t), newCluster(t)
	for _, name := range []string{"Application Support", "a,b", `"q" 'q'`, "[x]*?", "50%+1&c=d#e", "données\t1", `back\slash`} {
		next := filepath.Join(parent, name)
		if err := os.Rename(dir, next); err != nil {
			t.Fatal(err)
		}
		dir = next
		server := start(t, noFsync(dir))
		if cfg, err := pgx.ParseConfig(server.URL()); err != nil || cfg.Host != string(server.socket) || cfg.User != "queued" || cfg.Database != "queued" {
			t.Errorf("%s: %v, %v", server.URL(), cfg, err)
		}
		if psql, err := exec.LookPath("psql"); err == nil {
			if out, err := exec.Command(psql, "-X", "-c", "select 1", server.URL()).CombinedOutput(); err != nil {
				t.Errorf("psql: %v: %s", err, out)
			}
		}
		stop(t, server)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	waitUntilWritten(to)
}
