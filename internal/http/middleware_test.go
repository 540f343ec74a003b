package http

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/request"
)

func TestRequestIsLoggedInOneLineWithoutItsBody(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{server: func(s *Server, _ *http.Server) { s.slowAfter = busyTimeout }})
	h.placeOn(0, "mail")
	id := h.with("X-Request-Id", "mine-1").try("POST", "/events?queue=mail", `{"password":"hunter2"}`).want(201).header.Get("X-Request-Id")
	if id != "mine-1" {
		t.Errorf("the request's id is %q", id)
	}
	line := h.log.wait(t, `"request_id":"mine-1"`, `"route":"/events"`, `"bytes":`)
	var got map[string]any
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{"level": "debug", "message": "request", "method": "POST", "route": "/events", "status": 201.0, "queue": "mail", "id": 1.0} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if got["duration_ms"] == nil || got["bytes"] == nil {
		t.Errorf("the line lacks the duration or the bytes: %s", line)
	}
	h.try("DELETE", "/events/1?receipt=proof", "")
	h.log.wait(t, `"method":"DELETE"`, `"route":"/events/{id}"`, `"status":409`, `"code":"lease_lost"`)
	h.try("GET", "/history?contains=%7B%22password%22%3A%22hunter2%22%7D", "").want(200)
	h.log.wait(t, `"route":"/history"`)
	h.try("GET", "/hunter2", "")
	h.log.wait(t, `"route":"unmatched"`, `"status":404`)
	if log := h.log.String(); strings.Contains(log, "hunter2") || strings.Contains(log, "proof") {
		t.Errorf("the log contains the body or the query:\n%s", log)
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		h.try("GET", path, "").want(200)
		h.log.wait(t, `"level":"debug"`, `"route":"`+path+`"`)
	}
}

func TestInvalidRequestIDsAreReplaced(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	made := make(map[string]bool)
	for _, id := range []string{"", "a b", `a"b`, "é", "a\tb", "a\x7f", "<script>", strings.Repeat("a", 129)} {
		got := ask(t, s, func(http.ResponseWriter, *http.Request) {}, id).header.Get("X-Request-Id")
		if got == id || len(got) < 20 || made[got] {
			t.Errorf("request %q got the id %q", id, got)
		}
		made[got] = true
	}
	for _, id := range []string{"a", "req_1:2/3+4=5@6,7;8|9", strings.Repeat("a", 128)} {
		if got := ask(t, s, func(http.ResponseWriter, *http.Request) {}, id).header.Get("X-Request-Id"); got != id {
			t.Errorf("request %q got the id %q", id, got)
		}
	}
}

func TestPanicIsAProblemAndItsStackIsLogged(t *testing.T) {
	t.Parallel()
	log := new(logBuffer)
	s := New(Config{Logger: zerolog.New(log)})
	got := ask(t, s, func(http.ResponseWriter, *http.Request) { panic("secret text") }, "id-1")
	got.wantProblem(problem.Internal)
	if strings.Contains(got.body, "secret") {
		t.Errorf("the client got %s", got.body)
	}
	log.wait(t, `"level":"error"`, `"request_id":"id-1"`, "secret text", "middleware_test.go")
	log.wait(t, `"level":"error"`, `"request_id":"id-1"`, `"status":500`, `"message":"request"`)
}

func TestPanicDuringAResponseAbortsIt(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	for name, handler := range map[string]http.HandlerFunc{
		"after the beginning": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("half"))
			panic("x")
		},
		"on purpose": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if cause, ok := recover().(error); !ok || !errors.Is(cause, http.ErrAbortHandler) {
					t.Errorf("the server got %v, want ErrAbortHandler", cause)
				}
			}()
			ask(t, s, handler, "")
		})
	}
}

func TestInternalErrorsAreLoggedButNotSent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.sql("alter schema agent rename to elsewhere")
	got := h.try("GET", "/queues", "")
	p := got.wantProblem(problem.Internal)
	if strings.Contains(got.body, "agent") {
		t.Errorf("the client got %s", got.body)
	}
	h.log.wait(t, p.RequestID, `"level":"error"`, "agent")
}

func TestAccessLogOmitsSuccessfulFrequentCalls(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		pattern string
		log     *accessLog
		took    time.Duration
		slow    zerolog.Level // with QUEUED_ACCESS_LOG=slow
		all     zerolog.Level // with QUEUED_ACCESS_LOG=all
	}{
		"a successful insert":        {"POST /events", &accessLog{status: 201}, time.Millisecond, zerolog.DebugLevel, zerolog.InfoLevel},
		"a successful claim":         {"POST /claim", &accessLog{status: 200, wait: time.Minute}, time.Minute, zerolog.DebugLevel, zerolog.InfoLevel},
		"a successful ack":           {"DELETE /events/{id}", &accessLog{status: 204}, time.Millisecond, zerolog.DebugLevel, zerolog.InfoLevel},
		"a successful health check":  {"GET /livez", &accessLog{status: 200}, time.Millisecond, zerolog.DebugLevel, zerolog.InfoLevel},
		"a failed health check":      {"GET /readyz", &accessLog{status: 503}, time.Millisecond, zerolog.InfoLevel, zerolog.InfoLevel},
		"a slow insert":              {"POST /events", &accessLog{status: 201}, time.Second, zerolog.InfoLevel, zerolog.InfoLevel},
		"a claim slower than itself": {"POST /claim", &accessLog{status: 200, wait: time.Minute}, 61 * time.Second, zerolog.InfoLevel, zerolog.InfoLevel},
		"a refused ack":              {"POST /ack", &accessLog{status: 422}, time.Millisecond, zerolog.InfoLevel, zerolog.InfoLevel},
		"a client that disconnected": {"POST /claim", &accessLog{status: 499}, time.Millisecond, zerolog.InfoLevel, zerolog.InfoLevel},
		"a failed insert":            {"POST /events", &accessLog{status: 503}, time.Millisecond, zerolog.ErrorLevel, zerolog.ErrorLevel},
		"a claim during the start":   {" ", &accessLog{status: 503, code: "not_ready"}, time.Millisecond, zerolog.DebugLevel, zerolog.InfoLevel},
		"a check during the start":   {"GET /readyz", &accessLog{status: 503, code: "not_ready"}, time.Millisecond, zerolog.InfoLevel, zerolog.InfoLevel},
		"a listing":                  {"GET /events", &accessLog{status: 200}, time.Millisecond, zerolog.InfoLevel, zerolog.InfoLevel},
		"a change of a policy":       {"PUT /queues/{name}", &accessLog{status: 200}, time.Millisecond, zerolog.InfoLevel, zerolog.InfoLevel},
		"an unknown path":            {"GET ", &accessLog{status: 404}, time.Millisecond, zerolog.InfoLevel, zerolog.InfoLevel},
	} {
		for all, want := range map[bool]zerolog.Level{false: tc.slow, true: tc.all} {
			if got := New(Config{LogAll: all}).level(tc.log, tc.pattern, tc.took); got != want {
				t.Errorf("%s is logged at %s, want %s (all: %t)", name, got, want, all)
			}
		}
	}
	for pattern := range busyRoutes {
		if !slices.Contains(routePatterns(t), pattern) {
			t.Errorf("no route is %s", pattern)
		}
	}
}

func TestEveryCallExceptHealthChecksRequiresTheKey(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{keys: func(cfg *access.Config) { cfg.Key = "s3cret" }})
	h.topics.Drain() // so that streams end
	basic := func(password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+password))
	}
	for _, r := range everyRoute(t) {
		if r.isHealth() {
			h.try(r.method, r.path, r.body).want(200)
			continue
		}
		if r.isWebhook() {
			continue
		}
		for _, wrong := range []string{"", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets", "Bearer S3CRET", "s3cret", "Basic s3cret", "Token s3cret", basic("wrong"), basic("")} {
			got := h.with("Authorization", wrong).try(r.method, r.path, r.body)
			got.wantProblem(problem.Unauthorized)
			challenges := got.header.Values("Www-Authenticate")
			if challenges[0] != "Bearer" || slices.ContainsFunc(challenges, func(c string) bool { return strings.HasPrefix(c, "Basic") }) != strings.Contains(r.path+"/", "/docs/") && r.path != "/openapi.yaml" {
				t.Errorf("%s was challenged with %q", r.id, challenges)
			}
		}
		for _, right := range []string{"Bearer s3cret", "bearer  s3cret"} {
			if got := h.with("Authorization", right).try(r.method, r.path, r.body); got.status == 401 {
				t.Errorf("%s with %q returned %s", r.id, right, got.body)
			}
		}
		readable := strings.HasPrefix(r.path, "/docs") || r.path == "/openapi.yaml"
		if got := h.with("Authorization", basic("s3cret")).try(r.method, r.path, r.body); (got.status != 401) != readable {
			t.Errorf("%s with the key as a password returned %d", r.id, got.status)
		}
	}
	h.try("GET", "/nothing", "").wantProblem(problem.Unauthorized)
	h.with("Authorization", "Bearer s3cret").try("GET", "/nothing", "").wantProblem(problem.NotFound)
	if strings.Contains(h.log.String(), "s3cret") {
		t.Error("the key is in the log")
	}
}

func TestCrossOriginWritesAreRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.with("Sec-Fetch-Site", "same-origin").try("POST", "/events", "{}").want(201)
	h.with("Sec-Fetch-Site", "none").try("POST", "/events", "{}").want(201)
	h.with("Origin", h.url).try("POST", "/events", "{}").want(201)
	h.with("Sec-Fetch-Site", "cross-site").try("POST", "/events", "{}").wantProblem(problem.CrossOrigin)
	h.with("Sec-Fetch-Site", "same-site").try("POST", "/claim", "").wantProblem(problem.CrossOrigin)
	h.with("Origin", "https://evil.example").try("DELETE", "/events/1", "").wantProblem(problem.CrossOrigin)
	h.with("Origin", "null").try("POST", "/sweep", "").wantProblem(problem.CrossOrigin)
	h.with("Origin", "https://evil.example").try("GET", "/queues", "").want(200) // without CORS the page cannot read it
	if got := h.with("Origin", "https://evil.example").try("OPTIONS", "/events", ""); got.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a preflight request was granted: %v", got.header)
	}
}

func TestServerOnLoopbackAnswersOnlyLoopbackHosts(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http: func(cfg *Config) { cfg.LoopbackOnly = true }})
	for _, host := range []string{"localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:8080", "127.9.8.7:1", "[::1]", "[::1]:8080", "[::ffff:127.0.0.1]:80"} {
		h.with("Host", host).try("GET", "/queues", "").want(200)
	}
	for _, host := range []string{"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io:8080", "10.0.0.1", "[::2]:80", "0.0.0.0:8080", "2130706433", "127.1"} {
		h.with("Host", host).try("GET", "/queues", "").wantProblem(problem.HostNotAllowed)
		h.with("Host", host).try("GET", "/nothing", "").wantProblem(problem.HostNotAllowed)
		h.with("Host", host).try("GET", "/livez", "").want(200)
		h.with("Host", host).try("GET", "/readyz", "").want(200)
	}
}

func TestServerAnswersOnlyItsHostsAlsoWhenKeysAreNeeded(t *testing.T) {
	t.Parallel()
	const key = "sixteen-or-more-characters"
	keyed := func(change func(*Config)) *client {
		return setupWith(t, settings{keys: func(cfg *access.Config) { cfg.Key = key }, http: change}).key(key)
	}
	loopback := keyed(func(cfg *Config) { cfg.LoopbackOnly = true })
	loopback.with("Host", "127.0.0.1:8080").try("GET", "/queues", "").want(200)
	loopback.with("Host", "evil.example").try("GET", "/queues", "").wantProblem(problem.HostNotAllowed)
	loopback.with("Host", "evil.example").try("GET", "/livez", "").want(200)

	named := keyed(func(cfg *Config) { cfg.LoopbackOnly, cfg.Hosts = true, []string{"queue.example.com", "10.0.0.5"} })
	for _, host := range []string{"queue.example.com", "Queue.Example.COM:443", "10.0.0.5:8080", "localhost"} {
		named.with("Host", host).try("GET", "/queues", "").want(200)
	}
	for _, host := range []string{"evil.example", "queue.example.com.evil.example", "x.queue.example.com", "10.0.0.6"} {
		named.with("Host", host).try("GET", "/queues", "").wantProblem(problem.HostNotAllowed)
	}
	public := keyed(func(cfg *Config) { cfg.Hosts = []string{"queue.example.com"} })
	public.with("Host", "evil.example").try("GET", "/queues", "").wantProblem(problem.HostNotAllowed)
	keyed(nil).with("Host", "evil.example").try("GET", "/queues", "").want(200)
	keyed(func(cfg *Config) { cfg.LoopbackOnly, cfg.Hosts = true, []string{request.AnyHost} }).with("Host", "evil.example").try("GET", "/queues", "").want(200)
}

// refuseClient is a Config.VerifyClient that refuses clients without a certificate, as all are over plain HTTP.
func refuseClient(state *tls.ConnectionState) (string, error) {
	if state != nil {
		return "CN=" + state.ServerName, nil
	}
	return "", errors.New("this server answers only clients that show a certificate")
}

func TestClientCertificateIsRequiredOfAllButHealthChecks(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http: func(cfg *Config) { cfg.VerifyClient = refuseClient }, keys: func(cfg *access.Config) { cfg.Key = "secret" }})
	h.try("GET", "/livez", "").want(http.StatusOK)
	h.try("GET", "/readyz", "").want(http.StatusOK)
	keyed := h.with("Authorization", "Bearer secret")
	for _, path := range []string{"/queues", "/docs", "/metrics", "/nothing", "/livez/", "//livez"} {
		if p := keyed.try("GET", path, "").wantProblem(problem.ClientCertificate); p.Detail != "This server answers only clients that show a certificate." {
			t.Errorf("%s: the detail is %q", path, p.Detail)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "https://queue.example/version", nil)
	r.Header.Set("Authorization", "Bearer secret")
	w := httptest.NewRecorder()
	h.srv.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Errorf("with a certificate: %d %s", w.Code, w.Body)
	}
	h.log.wait(t, `"client":"CN=queue.example"`)
}

// failures serves each handler so often at the same time, and returns the lines of the log at level error, by what they have in common, with
// how many they stand for.
func failures(t *testing.T, cfg Config, times int, handlers ...http.HandlerFunc) (lines, total map[string]int) {
	t.Helper()
	log := new(logBuffer)
	limiter := failure.NewLimiter(log, func() time.Time { return time.Time{} }) // within a second
	cfg.Logger = zerolog.New(limiter)
	s := New(cfg)
	var asking sync.WaitGroup
	for range 10 {
		asking.Go(func() {
			for range times / 10 {
				for _, handler := range handlers {
					ask(t, s, handler, "")
				}
			}
		})
	}
	asking.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	limiter.Run(ended) // it writes what is left
	lines, total = make(map[string]int), make(map[string]int)
	for _, line := range log.lines {
		var got struct {
			Level, Message, Code string
			Kind                 string
			Suppressed           int
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if got.Level != "error" {
			continue
		}
		of := got.Message + " " + cmp.Or(got.Kind, got.Code)
		lines[of]++
		total[of] += 1 + got.Suppressed
	}
	return lines, total
}

func TestFailingRequestsGiveFewLinesWhoseCountsAddUp(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	failing := func(cause error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			fail(w, r, fmt.Errorf("call %d: %w: %w", n.Add(1), queue.ErrUnavailable, cause))
		}
	}
	lines, total := failures(t, Config{}, 5000,
		failing(&pgconn.PgError{Code: "53100"}),
		failing(syscall.ECONNREFUSED),
		func(w http.ResponseWriter, r *http.Request) { fail(w, r, queue.ErrOverloaded) },
		func(w http.ResponseWriter, r *http.Request) { fail(w, r, fmt.Errorf("fault %d", n.Add(1))) },
	)
	for _, kind := range []string{
		"request database_unavailable 53100", "request database_unavailable connection refused", "request overloaded", "request internal GET unmatched",
	} {
		if lines[kind] != 2 || total[kind] != 5000 {
			t.Errorf("%s: %d lines stand for %d requests", kind, lines[kind], total[kind])
		}
	}
	if len(lines) != 4 {
		t.Errorf("lines of %d kinds: %v", len(lines), lines)
	}
}

func TestAccessLogOfAllRequestsHasALineForEachThatFails(t *testing.T) {
	t.Parallel()
	lines, total := failures(t, Config{LogAll: true}, 500, func(w http.ResponseWriter, r *http.Request) { fail(w, r, queue.ErrUnavailable) })
	if kind := "request database_unavailable"; lines[kind] != 500 || total[kind] != 500 || len(lines) != 1 {
		t.Errorf("of 500 requests: %v lines", lines)
	}
}

func TestPanicsGiveALineForEachPlaceTheyBeginAt(t *testing.T) {
	t.Parallel()
	var missing map[string]int
	lines, total := failures(t, Config{LogAll: true}, 50,
		func(http.ResponseWriter, *http.Request) { panic("at one place") },
		func(http.ResponseWriter, *http.Request) { missing["at"] = 1 },
	)
	panics := 0
	for kind := range lines {
		if strings.HasPrefix(kind, "panic ") {
			panics++
			if !strings.Contains(kind, "TestPanicsGiveALineForEachPlaceTheyBeginAt.func") || lines[kind] != 2 || total[kind] != 50 {
				t.Errorf("%s: %d lines stand for %d panics", kind, lines[kind], total[kind])
			}
		}
	}
	if panics != 2 {
		t.Errorf("lines of %d places: %v", panics, lines)
	}
}

func TestReportsOfNetHTTPGiveFewLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := warnings{zerolog.New(failure.NewLimiter(&out, func() time.Time { return time.Time{} }))}
	for n := range 100 {
		_, _ = fmt.Fprintf(w, "http: TLS handshake error from 192.0.2.1:%d: EOF\n", n)
		_, _ = fmt.Fprintln(w, "http: Accept error: too many open files; retrying in 1s")
	}
	if got := out.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, `"error":"http: TLS handshake error from 192.0.2.1:0: EOF"`) || !strings.Contains(got, "too many open files") {
		t.Errorf("got\n%.2000s", got)
	}
}
