//go:build linux

package faults

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startOnSmallDisk starts a server on a file system of its own. filler is a path there.
func startOnSmallDisk(t *testing.T) (server *Server, filler string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a tmpfs needs root")
	}
	base := t.TempDir()
	if err := os.Chmod(filepath.Dir(base), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", base, "tmpfs", 0, "size=200m,mode=755"); err != nil {
		t.Fatalf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(base, 0); err != nil {
			t.Errorf("unmounting the tmpfs: %v", err)
		}
	})
	server = Start(t, Config{Base: base, Settings: map[string]string{
		"min_wal_size": "32MB", "max_wal_size": "32MB", "wal_keep_size": "0", "wal_writer_delay": "10s", "wal_writer_flush_after": "0",
	}})
	return server, filepath.Join(base, "filler")
}

// fillDisk fills the file system of a server until an insert is refused, kills the server, frees space, and starts it again.
func fillDisk(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server, filler := startOnSmallDisk(t)
	q := startQueued(t, b, server.URL())
	b.breakDatabase(t, server)
	d := startLoad(t, l, q)
	seen := map[string]int{}
	for range rounds {
		d.awaitInserts(20)
		fill(t, filler)
		// The tables still have free space, which inserts fill before one is refused.
		padding := make([]byte, 200<<10)
		for i := range padding {
			padding[i] = 'a' + byte(i*i%23)
		}
		refused := false
		for began := time.Now(); !refused && time.Since(began) < time.Minute; {
			c := d.newClient(99)
			status := c.call(t.Context(), "POST", "/events?queue=padding", map[string]any{"padding": string(padding) + fmt.Sprint(time.Now().UnixNano())}, nil)
			refused = status == 503
		}
		if !refused {
			l.violated("with the disk full, no insert returned 503")
		}
		seen[map[bool]string{true: "the server was running", false: "the server had ended"}[server.Running()]]++
		server.Kill()
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		server.Start()
		server.Exec(ordinary, `delete from agent.event where queue = 'padding'`)
		server.Exec(ordinary, `vacuum full agent.event`) // a lock on the table, for a moment
		server.Exec(ordinary, `checkpoint`)
		d.awaitInsertAfter(time.Now())
	}
	t.Logf("full %d times: %v", rounds, seen)
	d.finish(server.AdminURL())
}

// fill uses up the space of a file system.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, size := range []int{1 << 20, 4 << 10} {
		block := make([]byte, size)
		for err = nil; err == nil; {
			_, err = file.Write(block)
		}
	}
}

func TestNothingIsLostWhenTheDiskIsFull(t *testing.T) {
	t.Parallel()
	runScenario(t, fillDisk, 1, 10)
}

func TestReadinessSaysThatTheDiskIsFull(t *testing.T) {
	t.Parallel()
	server, filler := startOnSmallDisk(t)
	q := startQueued(t, unmodified, server.URL())
	fill(t, filler)
	for began := time.Now(); ; { // a write before may have shown for a second that writes succeed
		status, body, err := q.get("/readyz", startLimit)
		if status == 503 {
			break
		}
		pause(10 * time.Millisecond)
		if time.Since(began) > 10*time.Second {
			t.Fatalf("with the disk full and nothing written, /readyz answered %d %s, %v", status, body, err)
		}
	}
	isRefused := false
	for n := 0; !isRefused && n < 2000; n++ { // the tables still have free space
		body := fmt.Sprintf(`{"padding":%q}`, strings.Repeat(fmt.Sprint(n, time.Now().UnixNano()), 4<<10))
		res, err := http.Post("http://"+q.addr+"/events", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		isRefused = res.StatusCode == http.StatusServiceUnavailable
	}
	if !isRefused {
		t.Error("with the disk full, no insert was refused")
	}
	if !server.Running() {
		t.Skip("the server ended, as it does when the disk has no room for its log")
	}
	if status, body, err := q.get("/readyz", startLimit); status != 503 {
		t.Errorf("while inserts are refused because the disk is full, /readyz answered %d %s, %v", status, body, err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	q.awaitReady(startLimit)
}

func TestBrokenBuildWithAsyncCommitIsCaughtByFullDisk(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, fillDisk, commitAsync, 3)
}
