package webhook_test

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/webhook"
)

// logged makes a delivery to a source and logs it, as HTTP does.
func (h *env) logged(name string, header http.Header, body string) error {
	h.t.Helper()
	began := time.Now()
	admission, err := h.Admit(h.t.Context(), name, "request-1")
	var result webhook.Result
	if err == nil {
		_, err = admission.VerifyHeader(header)
	}
	if err == nil {
		result, err = admission.Receive(h.t.Context(), webhook.Delivery{Header: header, Body: []byte(body)})
	}
	status := http.StatusOK
	if err != nil {
		status = http.StatusUnauthorized
	}
	h.Log(&webhook.Answered{
		Source: name, Admission: admission, RequestID: "request-1", Address: "192.0.2.7", Began: began, Status: status, Body: []byte(body), Result: result, Err: err,
	})
	return err
}

// running has the service write its counts and its log.
func (h *env) running() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	ended := make(chan struct{})
	go func() {
		_ = h.Run(ctx)
		close(ended)
	}()
	h.t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// deliveries returns the deliveries of a source once there are n that match.
func (h *env) deliveries(p webhook.DeliveriesParams, n int) webhook.DeliveriesPage {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	for {
		page, err := h.Deliveries(ctx, p)
		if err != nil {
			h.t.Fatal(err)
		}
		if len(page.Deliveries) >= n {
			if len(page.Deliveries) > n {
				h.t.Fatalf("got %d deliveries, want %d", len(page.Deliveries), n)
			}
			return page
		}
		if !pg.Pause(ctx, 5*time.Millisecond) {
			h.t.Fatalf("got %d deliveries, want %d", len(page.Deliveries), n)
		}
	}
}

func (h *env) putGitHub(name string) {
	h.t.Helper()
	p := webhook.Params{Kind: webhook.GitHub, Queue: "in", Secrets: []string{"secret"}, DedupFor: time.Hour, Tolerance: time.Minute}
	h.put(name, p)
}

func TestLogHasDeliveriesAndWhyTheyWereRefused(t *testing.T) {
	t.Parallel()
	h := setupOn(t, pgtest.New(t), func(c *webhook.Config) { c.RecordInterval = 10 * time.Millisecond })
	h.putGitHub("github")
	h.running()
	good := `{"n":1}`
	deliver := func(header http.Header, body string, isTaken bool) {
		t.Helper()
		if err := h.logged("github", header, body); (err == nil) != isTaken {
			t.Fatalf("the delivery of %s returned %v", body, err)
		}
	}
	deliver(fromGitHub("secret", "d-1", "application/json", good), good, true)
	deliver(fromGitHub("secret", "d-1", "application/json", good), good, true)
	bad := `{"password":"hunter2","name":"\u0000` + "\x00\xff" + `"}`
	deliver(fromGitHub("wrong", "d-2", "application/json", bad), bad, false)
	nonsense := `{"n":"nonsense\u0000"}`
	deliver(fromGitHub("secret", "d-3", "application/json", nonsense), nonsense, false)
	all := h.deliveries(webhook.DeliveriesParams{Source: "github"}, 4).Deliveries
	invalid, rejected, duplicate, received := all[0], all[1], all[2], all[3]
	if received.Result != "received" || received.EventID == nil || received.Position != nil || received.Events != 1 || received.Key != "d-1" || received.Status != 200 ||
		received.Address != "192.0.2.7" || received.RequestID != "request-1" || received.Size == nil || *received.Size != int64(len(good)) || received.Body != "" {
		t.Errorf("the first delivery is %+v", received)
	}
	if duplicate.Result != "duplicate" || duplicate.EventID == nil || *duplicate.EventID != *received.EventID {
		t.Errorf("the second delivery is %+v", duplicate)
	}
	if rejected.Result != "rejected" || rejected.Code != "signature_mismatch" && rejected.Code == "" || rejected.EventID != nil || rejected.Key != "" ||
		strings.Contains(rejected.Body, "hunter2") || !strings.Contains(rejected.Body, "[redacted]") || !strings.Contains(rejected.Body, "name") {
		t.Errorf("the third delivery is %+v", rejected)
	}
	if invalid.Result != "invalid" || !strings.Contains(invalid.Body, "nonsense") {
		t.Errorf("the fourth delivery is %+v", invalid)
	}
	h.deliveries(webhook.DeliveriesParams{Source: "github", Result: "rejected"}, 1)
	h.deliveries(webhook.DeliveriesParams{Source: "github", From: &invalid.At}, 1)
	h.deliveries(webhook.DeliveriesParams{Source: "github", To: &invalid.At}, 3)
	page := h.deliveries(webhook.DeliveriesParams{Source: "github", Limit: 3}, 3)
	h.deliveries(webhook.DeliveriesParams{Source: "github", Limit: 3, Cursor: page.Next}, 1)
	if _, err := h.Deliveries(t.Context(), webhook.DeliveriesParams{Source: "nobody"}); !errors.Is(err, webhook.ErrNotFound) {
		t.Errorf("of a source that there is not got %v", err)
	}
}

// A stranger who floods a source must neither fill the database nor displace what its sender has sent.
func TestLogOfAFloodWithoutProofIsBounded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	h := setupOn(t, db)
	h.putGitHub("github")
	h.putGitHub("other")
	good := `{"n":1}`
	for range 3 {
		if err := h.logged("github", fromGitHub("secret", "d", "application/json", good), good); err != nil {
			t.Fatal(err)
		}
	}
	flood := func(source string, n int) {
		t.Helper()
		body := strings.Repeat("x", 8<<10)
		for range n {
			if err := h.logged(source, fromGitHub("wrong", "d", "application/json", good), body); err == nil {
				t.Fatal("a delivery without a proof was taken")
			}
		}
	}
	write := func() { // as at the end of a process
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := h.Run(ctx); err != nil {
			t.Fatal(err)
		}
	}
	flood("other", 1)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	flood("github", 1000)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("the flood has left %d KiB in memory", grown>>10)
	}
	for range 8 {
		write()
		flood("github", 50)
	}
	write()
	conn := pgtest.Connect(t, db.URL)
	const accounted = `select coalesce(sum(last_number + dropped), 0)::int from agent.source_delivery_log where source = 'github' and class = 2`
	if n := pgtest.Query[int](t, conn, accounted); n != 1400 {
		t.Errorf("%d deliveries were logged or dropped, want 1400", n)
	}
	if n := pgtest.Query[int](t, conn, `select count(*)::int from agent.source_delivery where source = 'github' and result = 'rejected'`); n != 100 {
		t.Errorf("%d deliveries without a proof are kept, want 100", n)
	}
	if n := pgtest.Query[int](t, conn, `select max(length(body)) from agent.source_delivery where source = 'github' and result = 'rejected'`); n != 1024 {
		t.Errorf("%d bytes of a body are kept, want 1024", n)
	}
	for _, c := range []struct {
		source, result string
		want           int
	}{{"github", "received", 1}, {"github", "duplicate", 2}, {"other", "rejected", 1}} {
		h.deliveries(webhook.DeliveriesParams{Source: c.source, Result: c.result}, c.want)
	}
	if page := h.deliveries(webhook.DeliveriesParams{Source: "github", Result: "received"}, 1); page.Dropped != 1400-9*20 || page.DroppedAt == nil {
		t.Errorf("%d deliveries were dropped, at %v", page.Dropped, page.DroppedAt)
	}
	if err := h.Delete(t.Context(), "github", nil); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, conn, `select count(*)::int from agent.source_delivery where source = 'github'`); n != 0 {
		t.Errorf("%d rows of a source that was deleted are there", n)
	}
}

func TestSecretsAreRedacted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ body, want string }{
		{`{"a":1}`, `{"a":1}`},
		{`{"token":"abc","a":1}`, `{"token":"[redacted]","a":1}`},
		{`{"token" : "a\"b" , "a":1}`, `{"token" : "[redacted]" , "a":1}`},
		{`{"apiKey":123,"a":1}`, `{"apiKey":"[redacted]","a":1}`},
		{`{"client_secret":"cut off`, `{"client_secret":"[redacted]"`},
		{`{"client_secret":"cut off\`, `{"client_secret":"[redacted]"`},
		{`{"tokens":["a","b"],"c":1}`, `{"tokens":"[redacted]"`},
		{`{"credentials":{"user":"u"},"c":1}`, `{"credentials":"[redacted]"`},
		{`{"a":"x token y","b":"c"}`, `{"a":"x token y","b":"c"}`},
		{`user=u&password=p%20q&x=1`, `user=u&password=[redacted]&x=1`},
		{"Authorization: Bearer abc.def", "Authorization: [redacted]"},
		{`{"a":"sk_live_1234567890"}`, `{"a":"[redacted]"}`},
		{"a\x00\n\u202eb\xff", "a   b?"},
		{"", ""},
	} {
		if got := webhook.Redact([]byte(c.body)); got != c.want {
			t.Errorf("%q became %q, want %q", c.body, got, c.want)
		}
	}
	if got := webhook.Redact([]byte(strings.Repeat(`{"token":1},`, 1000))); len(got) > 1024 {
		t.Errorf("%d bytes are left", len(got))
	}
}

func FuzzRedactedTextCanBeStored(f *testing.F) {
	f.Add([]byte(`{"token":"abc"}`))
	f.Add([]byte("\xff\x00password=1"))
	f.Fuzz(func(t *testing.T, body []byte) {
		if got := webhook.Redact(body); len(got) > 1024 || strings.Contains(got, "\x00") || strings.ToValidUTF8(got, "") != got {
			t.Errorf("%q became %q", body, got)
		}
	})
}
