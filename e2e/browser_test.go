package e2e_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/porttest"
)

// limit is what a busy machine may take for what takes seconds.
const limit = 2 * time.Minute

// TestBrowserMissesAndRepeatsNothingWhileItsServerRestarts has an EventSource follow a server that is stopped, and killed, while events are published
// by another process.
func TestBrowserMissesAndRepeatsNothingWhileItsServerRestarts(t *testing.T) {
	t.Parallel()
	browser := findBrowser(t)
	program := build(t)
	database := newDatabase(t)
	publisher := start(t, program, database, freeAddress(t))
	address := freeAddress(t)
	followed := start(t, program, database, address)

	ctx, cancel := context.WithTimeout(t.Context(), 3*limit)
	defer cancel()
	ctx, cancel = chromedp.NewExecAllocator(ctx, chromedp.ExecPath(browser), chromedp.NoSandbox, chromedp.Headless)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	if _, err := chromedp.Call(ctx, page.SetBypassCSP, page.SetBypassCSPParams{Enabled: true}); err != nil { // the server's pages may not connect anywhere
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, chromedp.Navigate("http://"+address+"/version")); err != nil {
		t.Fatal(err)
	}
	evaluate[any](ctx, t, `
		window.got = []; window.opened = 0; window.failed = 0;
		window.source = new EventSource("/stream?topic=e2e.*&match=" + encodeURIComponent('{"wanted":[true]}'));
		source.onopen = () => opened++;
		source.onerror = () => { if (source.readyState === EventSource.CLOSED) failed++; };
		source.addEventListener("e2e.tick", e => got.push(JSON.parse(e.data).event.n));
		[]`)
	wait := func(condition string) {
		t.Helper()
		_, err := chromedp.Run(ctx, chromedp.Poll[bool](condition+" || failed > 0", chromedp.WithPollingTimeout(limit)))
		if failed := evaluate[int](ctx, t, `failed`); err != nil || failed > 0 {
			t.Fatalf("%s: the browser has %d, and gave up %d times: %v", condition, evaluate[[]int](ctx, t, `got`), failed, err)
		}
	}
	wait("opened === 1")

	published := 0
	publish := func(n int) {
		for range n {
			publisher.publish(t, fmt.Sprintf(`{"n":%d,"wanted":true}`, published))
			publisher.publish(t, `{"n":-1,"wanted":false}`)
			published++
		}
	}
	publish(20)
	wait(fmt.Sprintf("got.length >= %d", published))
	for round, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM} {
		publish(5)
		followed.end(t, signal)
		publish(20) // nobody tells the browser
		followed = start(t, program, database, address)
		publish(20)
		wait(fmt.Sprintf("got.length >= %d && opened >= %d", published, round+2))
	}
	got := evaluate[[]int](ctx, t, `got`)
	if len(got) != published {
		t.Fatalf("the browser has %d events, want %d: %d", len(got), published, got)
	}
	for i, n := range got {
		if n != i {
			t.Fatalf("event %d of the browser is number %d: %d", i, n, got)
		}
	}
}

// evaluate returns what an expression is in the browser.
func evaluate[T any](ctx context.Context, t *testing.T, expression string) T {
	t.Helper()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// findBrowser returns the program of Chromium, or skips the test.
func findBrowser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("this test needs Chromium: no chromium, chromium-browser or google-chrome is in the PATH (apt-get install chromium)")
	return ""
}

// newDatabase returns the URL of a new database, which is dropped with the test.
func newDatabase(t *testing.T) string {
	t.Helper()
	base := os.Getenv("QUEUED_TEST_DATABASE_URL")
	if base == "" {
		t.Fatal("QUEUED_TEST_DATABASE_URL is not set: it names a PostgreSQL on which this test may create databases; make test-browser starts one")
	}
	ctx := context.WithoutCancel(t.Context())
	conn, err := pgx.Connect(ctx, base)
	if err != nil {
		t.Fatal(err)
	}
	name := "queued_e2e_" + strings.ToLower(rand.Text())
	if _, err := conn.Exec(ctx, "create database "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := conn.Exec(ctx, "drop database "+name+" with (force)"); err != nil {
			t.Error(err)
		}
		_ = conn.Close(ctx)
	})
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

func freeAddress(t *testing.T) string {
	t.Helper()
	return "127.0.0.1:" + strconv.Itoa(porttest.Free(t))
}

// A process is a queued that serves.
type process struct {
	cmd     *exec.Cmd
	address string
	key     string // that calls are made with; empty: none
	log     bytes.Buffer
	ended   bool
}

// start starts queued and returns when it is ready.
func start(t *testing.T, program, database, address string, env ...string) *process {
	t.Helper()
	return run(t, program, []string{"serve"}, address, append(env, "QUEUED_DATABASE_URL="+database)...)
}

// startGateway starts a gateway in front of cells, by their numbers from 0, and returns when it is ready.
func startGateway(t *testing.T, program, address string, cells []*process, env ...string) *process {
	t.Helper()
	urls := make([]string, len(cells))
	for number, p := range cells {
		urls[number] = fmt.Sprintf("%d=http://%s", number, p.address)
	}
	return run(t, program, []string{"gateway", "start", "--cells", strings.Join(urls, ",")}, address, env...)
}

// run runs queued with arguments that have it listen, and returns when it is ready.
func run(t *testing.T, program string, args []string, address string, env ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(program, args...), address: address}
	p.cmd.Env = append(append(os.Environ(), "QUEUED_LISTEN="+address), env...)
	p.cmd.Stderr = &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.end(t, syscall.SIGKILL) })
	for deadline := time.Now().Add(limit); ; {
		resp, err := http.Get("http://" + address + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return p
			}
		}
		if time.Now().After(deadline) {
			p.end(t, syscall.SIGKILL)
			t.Fatalf("queued is not ready after %s: %v\n%s", limit, err, &p.log)
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // there is no signal to wait on
	}
}

// end sends a signal and returns when the process has ended.
func (p *process) end(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if p.ended {
		return
	}
	p.ended = true
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Error(err)
	}
	if err := p.cmd.Wait(); err != nil && signal != syscall.SIGKILL {
		t.Errorf("queued ended with %v:\n%s", err, &p.log)
	}
}

func (p *process) publish(t *testing.T, event string) {
	t.Helper()
	resp, err := http.Post("http://"+p.address+"/topics/e2e.tick", "application/json", strings.NewReader(event))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusCreated || !json.Valid(body) {
		t.Fatalf("publishing returned %d %s, %v", resp.StatusCode, body, err)
	}
}

// request makes a call of the API, which has to succeed, and returns its answer.
func (p *process) request(t *testing.T, method, path, body string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if p.key != "" {
		req.Header.Set("Authorization", "Bearer "+p.key)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %d %s, %v", method, path[:min(len(path), 300)], resp.StatusCode, answer, err)
	}
	return answer
}
