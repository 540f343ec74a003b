package cli_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/queued/queued/client"
)

func TestEventIsPostedClaimedAndAckedByCommands(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := h.run("post", `{"to":"ada"}`, "-q", "mail").want(0).lines()[0].ID
	claimed := h.run("claim", "-q", "mail", "-n", "5").want(0).lines()
	if len(claimed) != 1 || claimed[0].ID != id || string(claimed[0].Event) != `{"to":"ada"}` {
		t.Fatalf("claimed were %+v", claimed)
	}
	h.run("claim", "-q", "mail").want(3)
	h.run("ack", claimed[0].Receipt).want(0)
	if e, err := h.GetEvent(t.Context(), id); err != nil || e.Outcome != "done" {
		t.Errorf("the event is %+v, %v", e, err)
	}
	h.run("events", "1152921504606846976").want(3)
}

func TestAckWithAReceiptThatIsOverEndsWith4(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.run("post", `{}`).want(0)
	first := h.run("claim").want(0).lines()[0].Receipt
	h.run("release", first).want(0)
	h.run("claim").want(0)
	if c := h.run("ack", first).want(4); !strings.Contains(c.stderr.String(), "ease") {
		t.Errorf("standard error has %q", c.stderr.String())
	}
}

func TestWrongFlagsOfCommandsEndWith2(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, args := range [][]string{
		{"work", "--exec", "true", "-c", "0"},
		{"work", "--exec", "true", "--lease", "1ms"},
		{"work", "--exec", "no-such-program-anywhere"},
		{"tail", "--limit=-1"},
		{"tail", "a.b", "--subscription", "s"},
	} {
		h.run(args...).want(2)
	}
}

func TestListingsAreWrittenInTheFormatThatIsAskedFor(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.run("post", `{}`, "-q", "one").want(0)
	h.run("post", `{}`, "-q", "two").want(0)
	if got := h.run("queues", "-o", "json").want(0).stdout.String(); !strings.HasPrefix(got, "[") || !strings.Contains(got, `"one"`) || !strings.HasSuffix(got, "]\n") {
		t.Errorf("json: %s", got)
	}
	if got := h.run("queues", "-o", "jsonl").want(0); strings.Count(got.stdout.String(), "\n") != 2 || got.lines()[1].Queue != "two" {
		t.Errorf("jsonl: %s", got.stdout.String())
	}
	if auto, jsonl := h.run("events").want(0).stdout.String(), h.run("events", "-o", "jsonl").want(0).stdout.String(); auto != jsonl {
		t.Errorf("without a terminal it wrote %s, not %s", auto, jsonl)
	}
	table := strings.Split(h.run("queues", "-o", "table").want(0).stdout.String(), "\n")
	if len(table) != 4 || !strings.HasPrefix(table[0], "QUEUE") || !strings.HasPrefix(table[1], "one ") || !strings.HasPrefix(table[2], "two ") {
		t.Errorf("table: %q", table)
	}
}

func TestTailWritesWhatIsPublishedAndEndsAfterItsLimit(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.run("publish", "order.placed", `{"n":1}`).want(0)
	h.run("publish", "user.made", `{"n":2}`).want(0)
	h.run("publish", "order.paid", `{"n":3}`).want(0)
	got := h.run("tail", "order.*", "--after", "earliest", "-n", "2").want(0).lines()
	if len(got) != 2 || got[0].Topic != "order.placed" || got[1].Topic != "order.paid" || got[0].Position >= got[1].Position {
		t.Errorf("got %+v", got)
	}
	matched := h.run("tail", "--match", `{"n":[{"numeric":[">",1]}]}`, "--after", strconv.FormatInt(got[0].Position, 10), "-n", "1").want(0).lines()
	if len(matched) != 1 || string(matched[0].Event) != `{"n":2}` {
		t.Errorf("got %+v", matched)
	}
}

func TestContextsSayWhichServerAndWithWhichKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin, err := h.CreateKey(t.Context(), client.NewKey{Name: "root", Scopes: []string{"admin"}})
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{"HOME=" + t.TempDir(), "XDG_CONFIG_HOME=" + filepath.Join(t.TempDir(), "config")}
	run := func(stdin string, args ...string) *command { return start(t.Context(), t, stdin, environ, args...) }
	run(admin.Key+"\n", "context", "set", "here", "--url", h.url, "--key", "-").want(0)
	run("", "context", "set", "away", "--url", "http://127.0.0.1:1").want(0)
	run("", "post", `{}`, "-q", "mail").want(0)
	run("", "queues", "--url", h.url).want(1) // for which the key of the context is not
	run("", "context", "use", "away").want(0)
	if c := run("", "queues", "--retry-for", "0s").want(1); !strings.Contains(c.stderr.String(), "context away") {
		t.Errorf("standard error has %q", c.stderr.String())
	}
	if got := run("", "queues", "--context", "here").want(0).lines(); len(got) != 1 || got[0].Queue != "mail" {
		t.Errorf("got %+v", got)
	}
	shown := run("", "context", "show", "here")
	if got := shown.want(0).lines(); len(got) != 1 || !got[0].HasKey || got[0].URL != h.url || strings.Contains(shown.stdout.String(), admin.Key) {
		t.Errorf("the context is shown as %s", shown.stdout.String())
	}
	run("", "context", "delete", "here").want(0)
	run("", "queues", "--context", "here").want(2)
}

// inserted inserts an event and returns its id.
func (h *environment) inserted(event string) int64 {
	h.t.Helper()
	return h.run("post", event).want(0).lines()[0].ID
}

// event returns an event.
func (h *environment) event(id int64) client.Event {
	h.t.Helper()
	e, err := h.GetEvent(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	return e
}

// work runs queued work on the queue default, until the test ends or stop is called.
func (h *environment) work(exec string, args ...string) (c *command, stop func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	c = start(ctx, h.t, "", []string{"PATH=/usr/bin:/bin"}, append([]string{"work", "--url", h.url, "--exec", exec}, args...)...)
	h.t.Cleanup(func() {
		cancel()
		<-c.ended
	})
	return c, cancel
}

func TestExitCodeOfACommandDecidesWhatBecomesOfItsEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	done, failed, retried := h.inserted(`{"code":0}`), h.inserted(`{"code":65}`), h.inserted(`{"code":75}`)
	c, stop := h.work(`read -r event; echo "sorry" >&2; printf '{"got":%s}' "$event"; exit "$(printf %s "$event" | tr -dc 0-9)"`, "--max-attempts", "1")
	until(t, "each was worked on", func() bool {
		return h.event(done).Outcome != "" && h.event(failed).Outcome != "" && h.event(retried).LastError != ""
	})
	if e := h.event(done); e.Outcome != "done" || string(e.Result) != `{"got":{"code":0}}` {
		t.Errorf("after 0 it is %+v", e)
	}
	if e := h.event(failed); e.Outcome != "failed" || e.LastError != "exit status 65: sorry" {
		t.Errorf("after 65 it is %+v", e)
	}
	if e := h.event(retried); e.Outcome != "" || e.LastError != "exit status 75: sorry" {
		t.Errorf("after 75 it is %+v", e)
	}
	stop()
	c.want(0)
	if want := fmt.Sprintf("event %d: sorry", done); !strings.Contains(c.stderr.String(), want) || !strings.Contains(c.stderr.String(), "done=1 failed=1 retried=1") {
		t.Errorf("standard error has %s", c.stderr.String())
	}
}

func TestCommandIsKilledWhenItsLeaseIsLost(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := h.inserted(`{}`)
	c, _ := h.work(`trap "" TERM; echo begun >&2; while :; do sleep 60; done`, "--lease", "1s", "-v")
	until(t, "the command has begun", func() bool { return strings.Contains(c.stderr.String(), "begun") })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, fmt.Sprintf("%s/events/%d", h.url, id), nil) // without a receipt: whoever has the lease
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	until(t, "the command was killed", func() bool { return strings.Contains(c.stderr.String(), "lost") })
	next := h.inserted(`{}`)
	until(t, "the worker takes the next event", func() bool { return h.event(next).State == "leased" })
}

func TestKeysOfAServerAreCreatedRotatedAndRevoked(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := strings.TrimSpace(h.run("keys", "create", "--name", "root", "--scope", "admin").want(0).stdout.String())
	h.run("keys", "list").want(1) // now a key is needed
	with := func(args ...string) *command { return h.run(append(args, "--key", admin)...) }
	reader := strings.TrimSpace(with("keys", "create", "--scope", "read", "--queue", "mail").want(0).stdout.String())
	id := reader[3:11]
	if got := with("keys", "list").want(0).stdout.String(); !strings.Contains(got, id) || strings.Contains(got, reader) {
		t.Errorf("listed were %s", got)
	}
	h.run("queues", "--key", reader).want(0)
	h.run("post", "{}", "--key", reader).want(1)
	rotated := strings.TrimSpace(with("keys", "rotate", id, "--grace", "0s").want(0).stdout.String())
	h.run("queues", "--key", rotated).want(0)
	with("keys", "revoke", id).want(0)
	h.run("queues", "--key", rotated).want(1)
	with("keys", "revoke", "aaaaaaaa").want(3)
}

func TestExportsAreWholeOrFail(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeAtHome("mail") // whose audit commands show
	for range 3 {
		h.run("post", `{"to":"ada"}`, "-q", "mail").want(0)
	}
	h.run("queue", "purge", "mail", "--yes").want(0)
	c := h.run("history", "-q", "mail", "--export", "csv").want(0)
	if got := c.stdout.String(); !strings.HasPrefix(got, "id,queue,outcome,") || !strings.Contains(got, "\r\n#end,3,,") || !strings.Contains(c.stderr.String(), "3 rows") {
		t.Errorf("the export is %q, with the note %q", got, c.stderr.String())
	}
	c = h.run("history", "--export", "ndjson", "-n", "2").want(0)
	if got := strings.Count(c.stdout.String(), "\n"); got != 3 || !strings.Contains(c.stderr.String(), "there are more") {
		t.Errorf("the export has %d lines, with the note %q", got, c.stderr.String())
	}
	if c = h.run("audit", "--action", "queue.purge", "--export", "csv").want(0); !strings.Contains(c.stdout.String(), "\r\n#end,1,,") {
		t.Errorf("the export is %q", c.stdout.String())
	}
	h.run("history", "--export", "csv", "-o", "json").want(2)
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("id,queue\r\n1,mail\r\n")) }))
	t.Cleanup(cut.Close)
	h.url = cut.URL
	if c = h.run("history", "--export", "csv").want(1); !strings.Contains(c.stderr.String(), "cut short after 1 row") {
		t.Errorf("an export without its end says %q", c.stderr.String())
	}
}

func TestRedriveByCommands(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeAtHome("mail", "again") // where ids begin with 1
	for range 3 {
		h.run("post", "{}", "-q", "mail").want(0)
	}
	h.run("queue", "purge", "mail", "--yes").want(0)
	h.run("redrive").want(2)
	h.run("redrive", "--dead-letters", "mail.dead", "-q", "mail").want(2)
	h.run("redrive", "-q", "mail", "--dry-run", "--wait").want(2)
	for ended, want := range map[string]string{"--finished-from": "3", "--finished-to": "0"} {
		if c := h.run("redrive", "-q", "mail", ended, "1h", "--dry-run", "-o", "json").want(0); strings.Join(strings.Fields(c.stdout.String()), "") != `{"matched":`+want+`,"estimate":false}` {
			t.Errorf("a redrive with %s 1h would match %s", ended, c.stdout.String())
		}
		if c := h.run("requeue", "-q", "mail", ended, "1h", "--dry-run", "-o", "json").want(0); !strings.Contains(strings.Join(strings.Fields(c.stdout.String()), ""), `"matched":`+want) {
			t.Errorf("a requeue with %s 1h would match %s", ended, c.stdout.String())
		}
		if c := h.run("history", "-q", "mail", ended, "1h", "-o", "jsonl").want(0); strconv.Itoa(strings.Count(c.stdout.String(), "\n")) != want {
			t.Errorf("history with %s 1h is %s", ended, c.stdout.String())
		}
		h.run("errors", ended, "1h").want(0)
		h.run("errors", ended, "soon").want(2)
		h.run("redrive", "--dead-letters", "dead", ended, "1h").want(2)
	}
	if c := h.run("redrive", "-q", "mail", "--outcome", "cancelled", "--dry-run", "-o", "json").want(0); strings.Join(strings.Fields(c.stdout.String()), "") != `{"matched":3,"estimate":false}` {
		t.Errorf("a dry run wrote %s", c.stdout.String())
	}
	c := h.run("redrive", "-q", "mail", "--outcome", "cancelled", "--from", "1h", "--to-queue", "again", "--rate", "100", "--wait", "-o", "jsonl").want(0)
	for _, want := range []string{`"state":"done"`, `"requeued":3`, `"to":"again"`, `"rate":100`} {
		if !strings.Contains(c.stdout.String(), want) {
			t.Errorf("the redrive is %s, want %s", c.stdout.String(), want)
		}
	}
	if c := h.run("redrives", "-o", "table").want(0); !strings.Contains(c.stdout.String(), "done") || !strings.Contains(c.stdout.String(), "100/s") {
		t.Errorf("the list is %s", c.stdout.String())
	}
	h.run("redrives", "1").want(0)
	h.run("redrives", "4711").want(3)
	h.run("redrives", "pause", "1").want(1)
	h.run("redrives", "cancel", "4711").want(3)
}

func TestEventsOfOneCauseAreListedCountedAndRedriven(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeAtHome("mail")
	for _, failure := range []string{"no mailbox 4711", "no mailbox 4712", "timed out"} {
		h.run("post", "-q", "mail", "{}").want(0)
		receipt := h.run("claim", "-q", "mail").want(0).lines()[0].Receipt
		h.run("nack", receipt, "--final", "--error", failure).want(0)
	}
	const cause = "no mailbox <id>"
	if got := h.run("history", "--cause", cause).want(0).lines(); len(got) != 2 {
		t.Errorf("history of the cause is %+v", got)
	}
	h.run("requeue", "1", "--cause", cause).want(2)
	h.run("redrive", "--dead-letters", "dead", "--cause", cause).want(2)
	for _, args := range [][]string{{"redrive", "--dry-run"}, {"requeue", "--dry-run"}, {"requeue"}} {
		c := h.run(slices.Concat(args, []string{"--cause", cause, "-o", "jsonl"})...).want(0)
		if !strings.Contains(c.stdout.String(), `"matched":2`) {
			t.Errorf("%q counted %s", args, c.stdout.String())
		}
	}
}

func TestQueueThatTheServerKnowsNothingOfIsNoEmptyQueue(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeAtHome("mail", "mail.dead", "archive")
	h.run("post", "-q", "mail", "{}").want(0)
	h.run("post", "-q", "archive", "{}").want(0)
	h.run("queue", "set", "mail.dead").want(0)
	for _, args := range [][]string{
		{"queue", "mial"},
		{"queue", "stats", "mial"},
		{"queue", "show", "mial", "-o", "table"},
		{"events", "-q", "mial"},
		{"events", "-q", "mial", "-o", "table"},
		{"history", "-q", "mial"},
		{"history", "-q", "mial", "--export", "ndjson"},
		{"errors", "-q", "mial"},
	} {
		c := h.run(args...).want(3)
		if said := c.stderr.String(); !slices.Contains(args, "--export") && c.stdout.String() != "" || !strings.Contains(said, `there is no queue "mial"`) || !strings.Contains(said, `did you mean "mail"?`) {
			t.Errorf("%q wrote %s%s", args, c.stdout.String(), said)
		}
	}
	if said := h.run("queue", "dead").want(3).stderr.String(); !strings.Contains(said, `did you mean "mail.dead"?`) {
		t.Errorf("of a part of a name it said %s", said)
	}
	if said := h.run("queue", "nothing").want(3).stderr.String(); strings.Contains(said, "did you mean") || !strings.Contains(said, `"queued queues" lists the queues`) {
		t.Errorf("of another name it said %s", said)
	}
	// Settings, events, history and statistics each make a queue known.
	h.run("queue", "purge", "archive", "-y").want(0)
	for _, name := range []string{"mail", "mail.dead", "archive"} {
		h.run("queue", name).want(0)
		h.run("queue", "stats", name).want(0)
		h.run("events", "-q", name, "--state", "leased").want(0)
		h.run("history", "-q", name, "--outcome", "failed").want(0)
		h.run("errors", "-q", name).want(0)
	}
	h.run("queue", "pause", "new").want(0)
	h.run("queue", "new").want(0)

	// A key without rights is refused as before, and one for some queues is told of no others.
	admin := strings.TrimSpace(h.run("keys", "create", "--scope", "admin").want(0).stdout.String())
	blind := strings.TrimSpace(h.run("keys", "create", "--scope", "publish", "--key", admin).want(0).stdout.String())
	if said := h.run("queue", "mial", "--key", blind).want(1).stderr.String(); !strings.Contains(said, "Forbidden") {
		t.Errorf("a key that may not read was told %s", said)
	}
	some := strings.TrimSpace(h.run("keys", "create", "--scope", "read", "--queue", "mail.*", "--key", admin).want(0).stdout.String())
	if said := h.run("queue", "mail.ded", "--key", some).want(3).stderr.String(); !strings.Contains(said, `did you mean "mail.dead"?`) {
		t.Errorf("a key for some queues was told %s", said)
	}
}

func TestStatisticsMakeAQueueKnownWhoseHistoryIsGone(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/queues":
			_, _ = w.Write([]byte(`{"queues":[],"next":null}`))
		case strings.HasSuffix(r.URL.Path, "old/stats"):
			_, _ = w.Write([]byte(`{"queue":"old","bucket":"24h0m0s","totals":{"done":3},"buckets":[]}`))
		case strings.HasSuffix(r.URL.Path, "sampled/stats"):
			_, _ = w.Write([]byte(`{"queue":"sampled","bucket":"24h0m0s","totals":{},"buckets":[{"ready":0,"max_ready":2}]}`))
		case strings.HasSuffix(r.URL.Path, "/stats"):
			_, _ = w.Write([]byte(`{"queue":"none","bucket":"24h0m0s","totals":{},"buckets":[{"ready":0,"max_ready":0}]}`))
		default:
			_, _ = w.Write([]byte(`{"queue":"x","paused":false,"version":null}`))
		}
	}))
	defer server.Close()
	for name, code := range map[string]int{"old": 0, "sampled": 0, "none": 3} {
		start(t.Context(), t, "", nil, "queue", name, "--url", server.URL).want(code)
		start(t.Context(), t, "", nil, "queue", "stats", name, "--url", server.URL).want(code)
	}
}
