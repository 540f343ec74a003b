package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
)

func TestSIGTERMAnswersWaitingClaimsAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := serve(t, nil, "QUEUED_DATABASE_URL="+db.ServiceURL)
	claim := p.post("/claim", `{"wait":"60s"}`)
	conn := connect(t, db.URL)
	until(t, "the claim looked for events", func() bool { return claims(t, conn) > 0 })
	p.signal(syscall.SIGTERM)
	told := time.Now()
	got := claim.finish()
	if took := time.Since(told); took > 20*time.Second {
		t.Errorf("the claim was answered %s after the signal", took)
	}
	if got.status != http.StatusOK || got.decode(t)["events"] == nil || len(got.decode(t)["events"].([]any)) != 0 {
		t.Errorf("the claim was answered %d %s, want no events", got.status, got.body)
	}
	if code := p.wait(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestSIGTERMTurnsReadinessOffBeforeThePortCloses(t *testing.T) {
	t.Parallel()
	p := setup(t, "QUEUED_DRAIN_DELAY=1h")
	p.wantReady()
	p.signal(syscall.SIGTERM)
	p.waitFor("stopping: finishing what is under way; a second signal ends it at once")
	until(t, "/readyz says 503", func() bool {
		got, err := p.send(http.MethodGet, "/readyz", "")
		if err != nil {
			t.Fatal(err)
		}
		return got.status == http.StatusServiceUnavailable
	})
	p.want(http.StatusCreated, http.MethodPost, "/events", `{}`)
	p.want(http.StatusOK, http.MethodGet, "/livez", "")
	check := startProgram(t, []string{"healthcheck"}, []string{"QUEUED_LISTEN=" + p.addr})
	if code := check.wait(); code != exitFailure || !strings.Contains(check.output(), "/readyz answered 503") {
		t.Errorf("healthcheck: exit code %d, %q", code, check.output())
	}

	until(t, "a second signal that is no echo of the first ends it", func() bool {
		select {
		case <-p.ended:
			return true
		default:
			_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended since
			return false
		}
	})
	if code := p.wait(); code != exitInterrupted {
		t.Errorf("exit code %d after the second signal, want %d", code, exitInterrupted)
	}
}

func TestSecondSignalWithinTheGracePeriodIsIgnored(t *testing.T) {
	t.Parallel()
	p := setup(t, "QUEUED_DRAIN_DELAY=50ms")
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGINT)
	if code := p.wait(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	p.waitFor("stopped")
}

func TestSIGTERMLetsRequestsInProgressFinish(t *testing.T) {
	t.Parallel()
	p := setup(t)
	const event = `{"sent":"in two parts"}`
	post := p.begin("/events", event[:10], len(event))
	p.signal(syscall.SIGTERM)
	until(t, "the port is closed", func() bool {
		_, err := p.send(http.MethodGet, "/livez", "")
		return err != nil
	})
	post.write(event[10:])
	if got := post.finish(); got.status != http.StatusCreated {
		t.Errorf("the request under way was answered %d %s", got.status, got.body)
	}
	if code := p.wait(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestRequestIsCutOffAfterShutdownTimeout(t *testing.T) {
	t.Parallel()
	p := setup(t, "QUEUED_SHUTDOWN_TIMEOUT=100ms")
	post := p.begin("/events", `{`, 2)
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != exitFailure {
		t.Errorf("exit code %d, want %d", code, exitFailure)
	}
	if !strings.Contains(p.output(), "were cut off (QUEUED_SHUTDOWN_TIMEOUT)") {
		t.Error("it does not say why")
	}
	_ = post.conn.Close()
}

// claims returns the number of sessions whose latest statement was a claim.
func claims(t *testing.T, conn *pgx.Conn) (n int) {
	t.Helper()
	err := conn.QueryRow(t.Context(), `select count(*) from pg_catalog.pg_stat_activity
		where datname = pg_catalog.current_database() and pid <> pg_catalog.pg_backend_pid() and query like '%agent_service.claim_from_watermarks%'`).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// exchange is a request that is written piece by piece, on a connection of its own.
type exchange struct {
	p      *program
	conn   net.Conn
	reader *bufio.Reader // of conn
}

// post sends the head of a POST and the first part of its body, which is the whole body unless a header sets another length.
func (p *program) post(path, body string, headers ...string) *exchange {
	p.t.Helper()
	conn, err := (&net.Dialer{Timeout: waitTimeout}).DialContext(p.t.Context(), "tcp", p.addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(waitTimeout))
	if len(headers) == 0 {
		headers = []string{fmt.Sprintf("Content-Length: %d", len(body))}
	}
	x := &exchange{p: p, conn: conn, reader: bufio.NewReader(conn)}
	x.write(fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s\r\n\r\n%s",
		path, p.addr, strings.Join(headers, "\r\n"), body))
	return x
}

// begin sends the head of a POST and the first part of its body, and waits until the request is under way. The server closes connections
// whose request it has not read when it stops.
func (p *program) begin(path, part string, length int) *exchange {
	p.t.Helper()
	x := p.post(path, part, fmt.Sprintf("Content-Length: %d", length), "Expect: 100-continue")
	if got := x.read(); got.status != http.StatusContinue {
		p.t.Fatalf("the first answer is %d %s", got.status, got.body)
	}
	return x
}

func (x *exchange) write(text string) {
	x.p.t.Helper()
	if _, err := io.WriteString(x.conn, text); err != nil {
		x.p.t.Error(err)
	}
}

// finish reads the response, and closes the connection.
func (x *exchange) finish() answer {
	x.p.t.Helper()
	defer func() { _ = x.conn.Close() }()
	return x.read()
}

// read reads the response, or one before it.
func (x *exchange) read() answer {
	x.p.t.Helper()
	res, err := http.ReadResponse(x.reader, nil)
	if err != nil {
		x.p.t.Error(err)
		return answer{}
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		x.p.t.Error(err)
	}
	return answer{res.StatusCode, string(body), res.Header}
}
