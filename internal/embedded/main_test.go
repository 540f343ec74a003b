//go:build unix

package embedded

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"
)

// These variables have a child of the test program do something else than the tests.
const (
	envServe   = "EMBEDDED_TEST_SERVE"   // run a server in the directory named, until killed
	envConnect = "EMBEDDED_TEST_CONNECT" // connect to the URL named
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envServe) != "":
		server, err := Start(context.Background(), Config{DataDir: os.Getenv(envServe)})
		if err != nil {
			_, _ = fmt.Fprintln(os.Stdout, "failed:", err)
			os.Exit(1)
		}
		_, _ = fmt.Fprintln(os.Stdout, server.URL())
		select {}
	case os.Getenv(envConnect) != "":
		if err := execute(context.Background(), os.Getenv(envConnect), "select 1"); err != nil {
			_, _ = fmt.Fprintln(os.Stdout, "failed:", err)
			os.Exit(1)
		}
		_, _ = fmt.Fprintln(os.Stdout, "connected")
		os.Exit(0)
	}
	code := m.Run()
	if err := errors.Join(common.close(), prepared.close()); err != nil {
		_, _ = fmt.Fprintln(os.Stdout, "after the tests:", err)
		code = 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		_, _ = fmt.Fprintln(os.Stdout, "after the tests:", err)
		code = 1
	}
	os.Exit(code)
}

// fixture is a data directory that several tests use, made by the first of them.
type fixture struct {
	once   sync.Once
	dir    string
	server *Server
	err    error
}

var (
	common   fixture // a running server with the default settings, for tests that do not change it
	prepared fixture // a cluster to copy, which takes less time than initdb
)

func (f *fixture) make(t *testing.T) {
	t.Helper()
	f.once.Do(func() {
		if f.dir, f.err = os.MkdirTemp("", "embedded-test-fixture-"); f.err != nil { //nolint:usetesting // it outlives the test
			return
		}
		if f.err = os.Chmod(f.dir, 0o755); f.err != nil {
			return
		}
		f.server, f.err = Start(context.Background(), Config{DataDir: filepath.Join(f.dir, "data")})
		if f == &prepared && f.err == nil {
			f.err = f.server.Stop(context.Background())
		}
	})
	if f.err != nil {
		t.Fatal(f.err)
	}
}

func (f *fixture) close() error {
	var err error
	if f.server != nil {
		err = f.server.Stop(context.Background())
	}
	if f.dir != "" {
		err = errors.Join(err, os.RemoveAll(f.dir))
	}
	return err
}

// newCluster returns a data directory with a new cluster.
func newCluster(t *testing.T) string {
	t.Helper()
	prepared.make(t)
	dir := newDir(t)
	pg := filepath.Join(dir, "pg")
	if err := errors.Join(os.CopyFS(pg, os.DirFS(filepath.Join(prepared.dir, "data", "pg"))), os.Chmod(pg, 0o700)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newDeepCluster returns a directory like newCluster, with a path too long for a socket.
func newDeepCluster(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(newDir(t), strings.Repeat("deep", 20), strings.Repeat("down", 20))
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(newCluster(t), dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newDir returns a directory that is removed after the test and that, unlike t.TempDir's, every user can enter.
func newDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "embedded-test-") //nolint:usetesting // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// start starts a server that is stopped after the test.
func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Logger = zerolog.New(zerolog.NewTestWriter(t))
	server, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, server) })
	return server
}

// noFsync configures a server that runs faster because its data need not survive a crash of the machine.
func noFsync(dir string) Config {
	return Config{DataDir: dir, Settings: map[string]string{"fsync": "off"}}
}

func stop(t *testing.T, server *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := server.Stop(ctx); err != nil {
		t.Error(err)
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func run(t *testing.T, url, statement string) {
	t.Helper()
	if err := execute(t.Context(), url, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func query(t *testing.T, url, statement string) string {
	t.Helper()
	conn := connect(t, url)
	defer func() { _ = conn.Close(t.Context()) }()
	var value string
	if err := conn.QueryRow(t.Context(), statement).Scan(&value); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return value
}

// owner is another process that runs a server.
type owner struct {
	cmd *exec.Cmd
	url string
}

// startOwner returns another process, with its server started, that is killed at the latest after the test.
func startOwner(t *testing.T, dir string) *owner {
	t.Helper()
	o, lines := launchOwner(t, dir)
	line, err := lines.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "postgres:") {
		t.Fatalf("the other process said %q, %v", line, err)
	}
	o.url = strings.TrimSpace(line)
	return o
}

func launchOwner(t *testing.T, dir string) (*owner, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envServe+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	o := &owner{cmd: cmd}
	t.Cleanup(func() {
		o.kill()
		for _, pid := range clusterProcesses(dataDir(dir).pg()) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return o, bufio.NewReader(out)
}

// kill ends the process by SIGKILL.
func (o *owner) kill() {
	_ = o.cmd.Process.Kill()
	_ = o.cmd.Wait()
}

// eventually waits until a condition holds that no signal announces.
func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !happened(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out after 20 s: %s", what)
		}
		if err := pause(t.Context(), 5*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
}

func postmasterPID(dir string) int {
	pid, _ := dataDir(dir).postmaster()
	return pid
}

func readLog(t *testing.T, dir dataDir) string {
	t.Helper()
	text, err := os.ReadFile(dir.logFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	return string(text)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func entries(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// mustSay fails the test unless the text of err contains all words.
func mustSay(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("there was no error")
	}
	t.Log(err)
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q", word)
		}
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func onlyRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}
