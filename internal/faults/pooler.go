//go:build unix

package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/porttest"
)

// Pooler is a PgBouncer in front of a server.
type Pooler struct {
	Port int

	process *process
}

// StartPooler starts a PgBouncer in a pool mode: session, transaction or statement. Further settings are lines of the section
// pgbouncer, such as "default_pool_size = 8". It ends with the test.
func StartPooler(t *testing.T, server *Server, mode string, settings ...string) *Pooler {
	t.Helper()
	program := "/usr/sbin/pgbouncer"
	if _, err := os.Stat(program); err != nil {
		if program, err = exec.LookPath("pgbouncer"); err != nil {
			t.Fatal("this test needs PgBouncer (for example `apt-get install pgbouncer`)")
		}
	}
	p := &Pooler{Port: porttest.Free(t)}
	dir := server.user.directory(t, "")
	users := filepath.Join(dir, "users.txt")
	config := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = %s
max_client_conn = 500
default_pool_size = 30
server_login_retry = 1
admin_users = %s
%s
`, server.Port, p.Port, users, mode, superuser, strings.Join(settings, "\n"))
	for path, content := range map[string]string{users: "\"" + superuser + "\" \"\"\n\"" + ordinary + "\" \"\"\n", config: text} {
		err := os.WriteFile(path, []byte(content), 0o600)
		if err == nil {
			err = server.user.chown(path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(dir, "log")) //nolint:gosec // in the directory just made
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := server.user.command(context.Background(), nil, program, config)
	cmd.Stdout, cmd.Stderr = log, log
	if p.process, err = startProcess(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			logged, _ := os.ReadFile(log.Name())
			t.Logf("PgBouncer logged:\n%.4000s", logged)
		}
		if err := p.process.stop(syscall.SIGTERM, 10*time.Second); err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(startLimit); ; pause(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		conn, err := pgx.Connect(ctx, p.URL())
		if err == nil {
			_ = conn.Close(ctx)
		}
		cancel()
		if err == nil {
			return p
		}
		if !p.process.running() || time.Now().After(deadline) {
			logged, _ := os.ReadFile(log.Name())
			t.Fatalf("PgBouncer does not answer: %v\n%s", err, logged)
		}
	}
}

// URL connects to the database queued through PgBouncer, as the ordinary role that owns it.
func (p *Pooler) URL() string {
	return "postgres://" + ordinary + "@127.0.0.1:" + strconv.Itoa(p.Port) + "/" + ordinary + "?sslmode=disable"
}
