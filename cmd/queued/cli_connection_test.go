package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/certtest"
)

func TestServerThatDoesNotRunOnThisMachineIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	address := closedAddress(t)
	p := &program{t: t, addr: address}
	p.cli("version").want(0)                 // so that the program is built
	const quick = client.DefaultRetryFor / 2 // it takes less than a second, and more on a busy machine
	for _, args := range [][]string{{"queues"}, {"post", "{}"}, {"claim", "--wait", "1m"}, {"tail"}, {"top"}, {"keys", "list"}} {
		began := time.Now()
		got := p.cli(args...).want(1)
		if took := time.Since(began); took > quick {
			t.Errorf("%q gave up after %s", args, took)
		}
		if want := "queued: no answer from the server http://" + address + " (QUEUED_URL): dial tcp " + address + ": connect: connection refused\n" +
			`  no server runs there: "queued serve --listen ` + address + `" starts one, --url or $QUEUED_URL names another; with --retry-for 1m a command waits for one` + "\n"; got.stderr != want {
			t.Errorf("%q wrote %q, want %q", args, got.stderr, want)
		}
	}
}

func TestPipeIsToldOnceThatTheServerIsWaitedFor(t *testing.T) {
	t.Parallel()
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer busy.Close()
	away := "http://" + closedAddress(t)
	for url, reason := range map[string]string{
		busy.URL: "the server " + busy.URL + " (--url) answers 503 Service Unavailable",
		away:     "no answer from " + away + " (--url): dial tcp ",
		// Nothing has this address, and no router leads there: RFC 5737.
		"http://192.0.2.1:8080": "http://192.0.2.1:8080 (--url)",
	} {
		got := (&program{t: t}).cli("queues", "--url", url, "--timeout", "2s", "--retry-for", "2s").want(1)
		lines := strings.Split(got.stderr, "\n")
		if !strings.HasPrefix(lines[0], "queued: ") || !strings.Contains(lines[0], reason) || !strings.HasSuffix(lines[0], "; trying again for 2s (--retry-for)") ||
			strings.Count(got.stderr, "trying again") != 1 {
			t.Errorf("%s: it wrote %q", url, got.stderr)
		}
	}
}

func TestServerThatWasReachedAndRestartsIsWaitedFor(t *testing.T) {
	t.Parallel()
	address := closedAddress(t)
	listen := func() net.Listener {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Error(err)
		}
		return listener
	}
	var answers atomic.Int64
	restarted := make(chan struct{})
	first, second := new(http.Server), new(http.Server)
	second.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"queues":[],"next":null}`) })
	first.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answers.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
		go func() { //nolint:contextcheck // listen has the context of the test; the answer is that of a server which stops; for longer than the grace nobody listens
			defer close(restarted)
			_ = first.Shutdown(context.WithoutCancel(t.Context()))
			time.Sleep(3 * time.Second) //nolint:forbidigo // this long nobody listens
			go func() { _ = second.Serve(listen()) }()
		}()
	})
	go func() { _ = first.Serve(listen()) }()
	defer func() { _ = second.Close() }()
	until(t, "it listens", func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		return err == nil && conn.Close() == nil
	})
	got := (&program{t: t, addr: address}).cli("queues").want(0)
	<-restarted
	if answers.Load() != 1 || !strings.Contains(got.stderr, "; trying again for 30s (--retry-for)\n") {
		t.Errorf("after %d answers of the first server it wrote %q", answers.Load(), got.stderr)
	}
}

func TestServerIsThatOfTheFlagTheVariableOrTheContext(t *testing.T) {
	t.Parallel()
	const secret = "secret-of-sixteen-or-more"
	p := setupFront(t, "QUEUED_API_KEY="+secret)
	home := t.TempDir()
	path := filepath.Join(home, ".config", "queued", "contexts.json")
	url, away := "http://"+p.addr, "http://"+closedAddress(t)
	run := func(args string, environ ...string) ran {
		t.Helper()
		return p.cliWith("", append([]string{"QUEUED_URL=", "HOME=" + home}, environ...), strings.Fields(args)...)
	}

	run("context").want(0)
	run("context use here").wantError(2, `there is no context "here", nor any other: "queued context set here --url URL" makes it`)
	p.cliWith(secret+"\n", []string{"QUEUED_URL=", "HOME=" + home}, "context", "set", "here", "--url", url, "--key", "-").want(0)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has %v, %v", info, err)
	}
	run("context set away --url " + away + " --key " + secret).want(0)
	run("queues").want(0) // the first context is the current one

	// The flag wins over the variable, and both over the current context, whose key goes to no other server.
	run("queues --retry-for 0s", "QUEUED_URL="+away).wantError(1, "(QUEUED_URL): ")
	run("queues", "QUEUED_URL="+url).wantError(1, "$QUEUED_KEY")
	run("queues --retry-for 0s --url "+away, "QUEUED_URL="+url).wantError(1, "(--url): ")
	run("queues", "QUEUED_KEY=another-key-of-a-length").wantError(1, "Unauthorized")
	run("queues --retry-for 0s", "QUEUED_CONTEXT=away").wantError(1, "(context away): ")
	run("queues --context here", "QUEUED_URL="+away, "QUEUED_KEY=another-key-of-a-length", "QUEUED_CONTEXT=away").want(0)
	run("queues --context here --key another-key-of-a-length").wantError(1, "Unauthorized")
	run("queues --context here --url "+url).wantError(2, "--context and --url both say which server")
	run("queues", "QUEUED_CONTEXT=here", "QUEUED_URL="+url).wantError(2, "QUEUED_CONTEXT and QUEUED_URL both say which server")
	run("queues --context hre").wantError(2, `there is no context "hre"; did you mean "here"?`)

	for _, line := range []string{"context", "context list -o table", "context show here", "context show here -o table"} {
		if got := run(line).want(0); strings.Contains(got.stdout+got.stderr, secret) || !strings.Contains(got.stdout, "here") {
			t.Errorf("%s wrote %s%s", line, got.stdout, got.stderr)
		}
	}
	if got := run("context show --show-key -o json").want(0); !strings.Contains(got.stdout, `"key": "`+secret+`"`) {
		t.Errorf("asked for the key it wrote %s", got.stdout)
	}
	keyFile := certtest.Write(t, home, "key", []byte(secret+"\n"))
	run("context set here --key-file " + keyFile).want(0)
	if text, _ := os.ReadFile(path); strings.Count(string(text), secret) != 1 {
		t.Errorf("the key is kept beside its file: %s", text)
	}
	run("queues").want(0)
	run("context use away").want(0)
	run("queues --retry-for 0s").wantError(1, "(context away): ")
	if got := run("__complete -- context use a"); got.stdout != "away\t\n" {
		t.Errorf("completed is %q", got.stdout)
	}

	for line, says := range map[string]string{
		"context set x": "the context has no URL", "context set x/y --url " + url: "the name must be", "context set x --url ftp://x": "the URL of the server",
		"context set here": "something to change", "context set x --url " + url + " --cert c --client-key k": "want a URL with https", "context delete x": `no context "x"`,
		"context set x --url https://x --cert c": "go together", "context set x --url https://x --cacert /nowhere": "--cacert: open /nowhere", "context use": "needs the name",
		"context set x --url " + url + " --key-file /nowhere": "--key-file: open /nowhere", "context set x --url " + url + " --key a --key-file " + keyFile: "want one of them",
	} {
		run(line).wantError(2, says)
	}
	run("context use --none").want(0)
	run("queues --retry-for 0s --url "+away).wantError(1, "(--url): ")
	run("context delete away").want(0)
	run("context set here --use --key a-key-that-is-none").want(0)
	run("queues").wantError(1, `The API key is that of the context here: "queued context set here --key -" sets another one.`)
	run("queues --key another-key-of-a-length").wantError(1, "$QUEUED_KEY")
	run("context set here --key " + secret).want(0)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	run("queues --context here").wantError(2, "chmod 600 "+path)
	if err := os.WriteFile(path, []byte(`{"contexts":{"a":{"url":"http://x","password":"p"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	run("queues").wantError(2, `unknown field "password"`)
	run("queues --retry-for 0s --url "+away).wantError(1, "(--url): ")
}

func TestCertificatesOfTheCommandLine(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, "QUEUED_TLS_CLIENT_CA=DIR/ca.pem")
	cert, key := s.authority.Issue(certtest.Request{Name: "mailer"})
	_, otherKey := s.authority.Issue(certtest.Request{Name: "other"})
	ca, me, mine := filepath.Join(s.dir, "ca.pem"), certtest.Write(t, s.dir, "me.pem", cert), certtest.Write(t, s.dir, "me.key", key)
	other := certtest.Write(t, s.dir, "other.key", otherKey)
	encrypted := certtest.Write(t, s.dir, "encrypted.key", []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"))
	run := func(args string, environ ...string) ran {
		t.Helper()
		return s.cliWith("", append([]string{"QUEUED_URL=https://" + s.addr}, environ...), append([]string{"queues"}, strings.Fields(args)...)...)
	}
	run("--cacert " + ca + " --cert " + me + " --client-key " + mine).want(0)
	run("", "QUEUED_CACERT="+ca, "QUEUED_CERT="+me, "QUEUED_CLIENT_KEY="+mine).want(0)
	for args, says := range map[string]string{
		"--cacert /nowhere": "--cacert: open /nowhere", "--cacert " + mine: "--cacert: " + mine + " has no certificate", "--cert " + me: "--cert needs --client-key",
		"--client-key " + mine: "--client-key needs --cert", "--cert " + mine + " --client-key " + mine: "--cert: " + mine + " has none", "--cert " + me + " --client-key " + me: "--client-key: " + me + " has none",
		"--cert " + me + " --client-key " + other: "private key does not match public key", "--cert " + me + " --client-key " + encrypted: "is encrypted",
		"--cert " + me + " --client-key /nowhere": "--client-key: open /nowhere", "--cacert " + ca + " --url http://" + s.addr: "are for https",
	} {
		run(args).wantError(2, says)
	}
	// None of these is tried again: it would be refused the next time, too.
	run("--retry-for 1h").wantError(1, "--cacert FILE")
	run("--retry-for 1h --cacert "+ca).wantError(1, "--cert and --client-key")
	plain := setupFront(t)
	run("--retry-for 1h --url https://"+plain.addr).wantError(1, "want its URL with http")
	run("--retry-for 1h --url http://"+s.addr).wantError(1, "HTTPS")
}
