//go:build unix

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// patroniPassword is that of every role of a cluster.
const patroniPassword = "not-a-secret"

// etcd is one etcd, in which clusters keep who their leader is.
type etcd struct {
	port int

	user    serverUser
	process *process
}

// startEtcd starts an etcd. It ends with the test.
func startEtcd(t *testing.T) *etcd {
	t.Helper()
	program := needProgram(t, "etcd", "etcd-server")
	e := &etcd{port: porttest.Free(t)}
	var err error
	if e.user, err = findServerUser(); err != nil {
		t.Fatal(err)
	}
	dir := e.user.directory(t, "")
	here, peers := "http://127.0.0.1:"+strconv.Itoa(e.port), "http://127.0.0.1:"+strconv.Itoa(porttest.Free(t))
	log := filepath.Join(dir, "log")
	cmd := e.user.command(context.Background(), nil, program, "--data-dir", filepath.Join(dir, "data"), "--unsafe-no-fsync", // no fault is etcd's own
		"--listen-client-urls", here, "--advertise-client-urls", here, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
		"--initial-cluster", "default="+peers)
	if e.process, err = startLogged(cmd, log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.process.kill(); err != nil {
			t.Error(err)
		}
	})
	awaitAnswer(t, e.process, "etcd", here+"/health", log, func(body []byte) bool { return bytes.Contains(body, []byte(`"true"`)) })
	return e
}

// cluster is a Patroni cluster: PostgreSQL servers of which Patroni makes one the leader. Its settings are those of deploy/patroni, with shorter times.
type cluster struct {
	t       *testing.T
	scope   string
	members []*member
}

// A member is a Patroni and its PostgreSQL, which stand for one machine.
type member struct {
	t        *testing.T
	name     string
	user     serverUser
	dir      string
	port     int // of PostgreSQL
	api      int // the port of Patroni
	environ  []string
	program  string
	settings string // the directory of the files
	process  *process
}

// quickPatroni overrides the times of deploy/patroni/patroni.yml, and what PostgreSQL takes of the machine.
const quickPatroni = `
bootstrap:
  dcs:
    ttl: 6
    loop_wait: 1
    retry_timeout: 2
postgresql:
  parameters:
    unix_socket_directories: ""
    dynamic_shared_memory_type: mmap
    shared_buffers: 32MB
`

// startCluster starts a cluster of some members, whose first leader makes the database queued. awaitSync returns when it can be used. It ends with the test; if the test is killed, the servers of PostgreSQL are left, as Patroni leaves them.
func startCluster(t *testing.T, store *etcd, scope string, members int) *cluster {
	t.Helper()
	program := needProgram(t, "patroni", "patroni")
	bin, err := binDir()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, scope: scope}
	shipped := filepath.Join(root(t), "deploy", "patroni")
	for i := range members {
		m := &member{t: t, name: fmt.Sprintf("%s-%c", scope, 'a'+i), user: store.user, port: porttest.Free(t), api: porttest.Free(t), program: program}
		m.dir = m.user.directory(t, "")
		m.settings = filepath.Join(m.dir, "settings")
		scripts := filepath.Join(m.dir, "scripts")
		common, err := os.ReadFile(filepath.Join(shipped, "patroni.yml"))
		script, scriptErr := os.ReadFile(filepath.Join(shipped, "make-database"))
		if err = errors.Join(err, scriptErr, os.Mkdir(m.settings, 0o755), os.Mkdir(scripts, 0o755),
			os.WriteFile(filepath.Join(m.settings, "1.yml"), common, 0o644), os.WriteFile(filepath.Join(m.settings, "2.yml"), []byte(quickPatroni), 0o644),
			os.WriteFile(filepath.Join(scripts, "make-database"), script, 0o755)); err != nil {
			t.Fatal(err)
		}
		database, api := "127.0.0.1:"+strconv.Itoa(m.port), "127.0.0.1:"+strconv.Itoa(m.api)
		m.environ = []string{
			"PATH=" + scripts + ":" + bin + ":" + os.Getenv("PATH"), "QUEUED_PASSWORD=" + patroniPassword,
			"PATRONI_SCOPE=" + scope, "PATRONI_NAME=" + m.name, "PATRONI_ETCD3_HOSTS=127.0.0.1:" + strconv.Itoa(store.port),
			"PATRONI_SUPERUSER_PASSWORD=" + patroniPassword, "PATRONI_REPLICATION_PASSWORD=" + patroniPassword,
			"PATRONI_RESTAPI_LISTEN=" + api, "PATRONI_RESTAPI_CONNECT_ADDRESS=" + api,
			"PATRONI_POSTGRESQL_LISTEN=" + database, "PATRONI_POSTGRESQL_CONNECT_ADDRESS=" + database,
			"PATRONI_POSTGRESQL_DATA_DIR=" + m.data(), "PATRONI_POSTGRESQL_BIN_DIR=" + bin, "PATRONI_POSTGRESQL_PGPASS=" + filepath.Join(m.dir, "pgpass"),
		}
		c.members = append(c.members, m)
		t.Cleanup(m.end)
		m.start()
	}
	return c
}

func (m *member) data() string    { return filepath.Join(m.dir, "data") }
func (m *member) logFile() string { return filepath.Join(m.dir, "log") }

// start starts Patroni, which starts PostgreSQL.
func (m *member) start() {
	m.t.Helper()
	var err error
	if m.process, err = startLogged(m.user.command(context.Background(), m.environ, m.program, m.settings), m.logFile()); err != nil {
		m.t.Fatal(err)
	}
}

// kill ends Patroni and all processes of its PostgreSQL by SIGKILL, as if the machine had gone.
func (m *member) kill() error {
	if err := m.process.kill(); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(m.data(), "postmaster.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, parseErr := strconv.Atoi(line)
	if err = errors.Join(err, parseErr); err != nil {
		return err
	}
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return nil // the file is of one that was killed
	}
	return killTree(pid, nil)
}

// end ends the member with its test.
func (m *member) end() {
	if m.t.Failed() {
		m.t.Logf("the end of the log of %s:\n%s", m.name, lastLines(m.logFile(), 40))
	}
	if err := m.kill(); err != nil {
		m.t.Errorf("ending the member %s: %v", m.name, err)
	}
}

// A memberState is what Patroni says of a member.
type memberState struct {
	Name     string `json:"name"`
	Role     string `json:"role"`
	State    string `json:"state"`
	Timeline int    `json:"timeline"`
}

// states returns what the first member that answers says of all.
func (c *cluster) states() (states []memberState, err error) {
	for _, m := range c.members {
		var got struct{ Members []memberState }
		if err = m.call(http.MethodGet, "/cluster", nil, &got); err == nil {
			return got.Members, nil
		}
	}
	return nil, err
}

// call calls the API of a member's Patroni.
func (m *member) call(method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://127.0.0.1:"+strconv.Itoa(m.api)+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s %s of %s: %s: %s", method, path, m.name, resp.Status, answer)
	case out != nil:
		return json.Unmarshal(answer, out)
	}
	return nil
}

// awaitSync returns when one member is the leader and all others follow it, one as its synchronous standby.
func (c *cluster) awaitSync() {
	c.t.Helper()
	for deadline := time.Now().Add(2 * startLimit); ; pause(100 * time.Millisecond) {
		states, err := c.states()
		leaders, standbys, following := 0, 0, 0
		for _, s := range states {
			isRunning := s.State == "running" || s.State == "streaming" // which it is depends on the version of Patroni
			switch {
			case s.Role == "leader" && isRunning:
				leaders++
			case s.Role == "sync_standby" && isRunning:
				standbys++
			case isRunning:
				following++
			}
		}
		if err == nil && leaders == 1 && standbys == 1 && leaders+standbys+following == len(c.members) {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("the cluster %s has no leader with a synchronous standby: %+v, %v", c.scope, states, err)
		}
	}
}

// leader returns the member that is the leader, which there must be.
func (c *cluster) leader() *member {
	c.t.Helper()
	states, err := c.states()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, s := range states {
		for _, m := range c.members {
			if s.Role == "leader" && s.Name == m.name {
				return m
			}
		}
	}
	c.t.Fatalf("the cluster %s has no leader: %+v", c.scope, states)
	return nil
}

// switchover has Patroni make the synchronous standby the leader, as an operator would, and returns when it is.
func (c *cluster) switchover() {
	c.t.Helper()
	was := c.leader()
	if err := was.call(http.MethodPost, "/switchover", map[string]string{"leader": was.name}, nil); err != nil {
		c.t.Fatal(err)
	}
	c.awaitLeaderOtherThan(was)
}

// killLeader kills the leader's machine and returns when another member is the leader. What it returns starts the machine again.
func (c *cluster) killLeader() (restart func()) {
	c.t.Helper()
	was := c.leader()
	if err := was.kill(); err != nil {
		c.t.Fatal(err)
	}
	c.awaitLeaderOtherThan(was)
	return was.start
}

func (c *cluster) awaitLeaderOtherThan(was *member) {
	c.t.Helper()
	for deadline := time.Now().Add(startLimit); ; pause(50 * time.Millisecond) {
		states, err := c.states()
		for _, s := range states {
			if s.Role == "leader" && s.State == "running" && s.Name != was.name {
				return
			}
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("the cluster %s has no leader but %s: %+v, %v", c.scope, was.name, states, err)
		}
	}
}

// url connects to the database queued as the ordinary role that owns it, and names all members.
func (c *cluster) url() string { return c.urlOf(ordinary) }

// adminURL connects to the database queued of the leader as a superuser.
func (c *cluster) adminURL() string { return c.urlOf(superuser) + "&target_session_attrs=read-write" }

func (c *cluster) urlOf(role string) string {
	hosts := make([]string, len(c.members))
	for i, m := range c.members {
		hosts[i] = "127.0.0.1:" + strconv.Itoa(m.port)
	}
	return "postgres://" + role + ":" + patroniPassword + "@" + strings.Join(hosts, ",") + "/" + ordinary + "?sslmode=disable"
}

// needProgram returns the path of a program, which is in a package of Debian's.
func needProgram(t *testing.T, name, debianPackage string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("this test needs %s (for example `apt-get install --no-install-recommends %s`)", name, debianPackage)
	}
	return path
}

// startLogged starts cmd with its output in a file.
func startLogged(cmd *exec.Cmd, path string) (*process, error) {
	log, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	return startProcess(cmd)
}

// awaitAnswer returns when a process answers at a URL, with what isGood takes.
func awaitAnswer(t *testing.T, p *process, name, url, log string, isGood func(body []byte) bool) {
	t.Helper()
	for deadline := time.Now().Add(startLimit); ; pause(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		var body []byte
		if err == nil {
			var resp *http.Response
			if resp, err = http.DefaultClient.Do(req); err == nil {
				body, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
		}
		cancel()
		if err == nil && isGood(body) {
			return
		}
		if !p.running() || time.Now().After(deadline) {
			t.Fatalf("%s does not answer: %v\n%s", name, err, lastLines(log, 30))
		}
	}
}

// exec runs statements as a superuser in the database queued of the leader.
func (c *cluster) exec(statements string) {
	c.t.Helper()
	c.onLeader(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.PgConn().Exec(ctx, statements).ReadAll()
		return err
	})
}

// pauseReplication stops the processes that send the leader's log to the other members, so that later commits do not reach them. Use it before the leader is killed.
func (c *cluster) pauseReplication() {
	c.t.Helper()
	c.onLeader(pauseSenders)
}

func (c *cluster) onLeader(do func(context.Context, *pgx.Conn) error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.adminURL())
	if err == nil {
		err = do(ctx, conn)
		_ = conn.Close(ctx)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}
