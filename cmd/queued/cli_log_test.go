package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/pgtest"
)

// published returns the events of the log that a command wrote, a line each.
func (r ran) published() (all []client.PublishedEvent) {
	r.t.Helper()
	for line := range strings.Lines(r.want(0).stdout) {
		var e client.PublishedEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			r.t.Fatalf("%q wrote %q: %v", r.args, line, err)
		}
		all = append(all, e)
	}
	return all
}

func TestPublishedEventsAreTailed(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	first := p.cli("publish", "order.placed", `{"total":250}`, "--event-key", "4711", "--idempotency-key", "k").published()[0]
	again := p.cliWith(`{"total":250}`, nil, "publish", "order.placed", "--event-key", "4711", "--idempotency-key", "k")
	if got := again.published(); got[0].Position != first.Position || !strings.Contains(again.stderr, "published before") {
		t.Errorf("published again it is %+v, %q", got, again.stderr)
	}
	p.cli("publish", "user.login", `{"user":1}`, "--meta", `{"a":1}`).want(0)
	p.cli("publish", "order.placed", `{"total":50}`).want(0)
	p.cli("publish", "order.placed", `{"total":50}`, "--at", "2035-01-01T00:00:00Z").want(0)
	got := p.cli("tail", "order.*", "--match", `{"total":[{"numeric":[">",100]}]}`, "--after", "earliest", "-n", "1").published()
	if len(got) != 1 || got[0].Position != first.Position || got[0].Key != "4711" || string(got[0].Payload) != `{"total":250}` {
		t.Errorf("tailed is %+v", got)
	}
	if got := p.cli("tail", "--since", "1h", "-n", "3").published(); len(got) != 3 || string(got[1].Meta) != `{"a":1}` {
		t.Errorf("tailed since an hour ago is %+v", got)
	}
	if got := p.cli("tail", "order.*", "--last", "1", "-n", "1").published(); len(got) != 1 || !strings.HasPrefix(got[0].Topic, "order.") || got[0].Position <= first.Position {
		t.Errorf("the last one is %+v", got)
	}
	p.cli("tail", "--last", "1", "--subscription", "billing").wantError(exitUsage, "--last")
	table := p.cli("tail", "--after", fmt.Sprint(first.Position), "-n", "1", "-o", "table").want(0).stdout
	if !strings.HasSuffix(table, `  user.login  {"user":1}`+"\n") {
		t.Errorf("for people it is %q", table)
	}
	p.cli("publish", "order.placed", `[1]`).wantError(exitUsage, "is not a JSON object")
	p.cli("publish", "order placed", `{}`).wantError(exitFailure, "topic")
	p.cli("tail", "--after", "soon").wantError(exitUsage, `--after is "soon"`)
}

func TestFileIsPublishedInOrder(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	var text strings.Builder
	for n := range 2500 {
		fmt.Fprintf(&text, "{\"n\":%d}\n", n)
	}
	path := filepath.Join(t.TempDir(), "events.ndjson")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	p.cli("publish", "sensor.reading", "-f", path).want(0)
	for n, e := range p.cli("tail", "sensor.reading", "--after", "earliest", "-n", "2500").published() {
		if want := fmt.Sprintf(`{"n":%d}`, n); string(e.Payload) != want {
			t.Fatalf("event %d is %s", n, e.Payload)
		}
	}
	broken := p.cliWith("{\"n\":1}\n\n{\"n\":2}\nnonsense\n{\"n\":3}\n", nil, "publish", "broken", "-f", "-")
	broken.wantError(exitFailure, "-:4: the event is not JSON")
	if !strings.Contains(broken.stderr, "tail -n +4") {
		t.Errorf("it does not say how to go on: %q", broken.stderr)
	}
	if got := p.cli("tail", "broken", "--after", "earliest", "-n", "2").published(); string(got[1].Payload) != `{"n":2}` {
		t.Errorf("before the broken line: %+v", got)
	}
}

// TestTailOutlivesARestartOfTheServer tails over a server that is stopped and started again at the same address.
func TestTailOutlivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	database := "QUEUED_DATABASE_URL=" + pgtest.New(t).ServiceURL
	first := serve(t, nil, database)
	first.cli("publish", "a", `{"n":1}`).want(0)
	tail := startBeside(t, []string{"QUEUED_URL=http://" + first.addr}, binary(t), "tail", "--after", "earliest", "-o", "jsonl")
	tail.waitForLine("the first event", func(line string) bool { return strings.Contains(line, `{"n":1}`) })
	first.signal(syscall.SIGTERM)
	first.wait()
	second := serve(t, nil, database, "QUEUED_LISTEN="+first.addr)
	second.cli("publish", "a", `{"n":2}`).want(0)
	tail.waitForLine("the second event", func(line string) bool { return strings.Contains(line, `{"n":2}`) })
	tail.signal(syscall.SIGINT)
	if code := tail.wait(); code != exitOK {
		t.Errorf("exit code %d after SIGINT", code)
	}
	if n := strings.Count(tail.output(), `{"n":1}`); n != 1 {
		t.Errorf("the first event came %d times", n)
	}
}

func TestSubscriptionIsManagedByCommands(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	for n := range 3 {
		p.cli("publish", "order.placed", fmt.Sprintf(`{"n":%d}`, n)).want(0)
	}
	p.cli("subscriptions", "read", "billing").wantError(3, "Subscription not found")
	p.cli("subscriptions", "put", "billing", "-t", "order.**", "--match", `{"n":[0,1]}`, "--start", "earliest").want(0)
	if got := p.cli("subscriptions").want(0).stdout; !strings.Contains(got, `"name":"billing"`) || !strings.Contains(got, `"filter_count":1`) {
		t.Errorf("listed is %s", got)
	}
	if got := p.cli("subscriptions", "show", "billing", "-o", "table").want(0).stdout; !strings.Contains(got, `order.** {"n":[0,1]}`) {
		t.Errorf("shown is %s", got)
	}
	if got := p.cli("tail", "--subscription", "billing", "-n", "2").published(); string(got[1].Payload) != `{"n":1}` {
		t.Errorf("tailed is %+v", got)
	}
	var page client.SubscribedPage
	if err := json.Unmarshal([]byte(p.cli("subscriptions", "read", "billing", "-n", "1", "-o", "json").want(0).stdout), &page); err != nil || len(page.Events) != 1 {
		t.Fatalf("read is %+v, %v", page, err)
	}
	p.cli("subscriptions", "commit", "billing", page.Cursor).want(0)
	if got := p.cli("subscriptions", "read", "billing", "--commit").published(); len(got) != 1 || string(got[0].Payload) != `{"n":1}` {
		t.Errorf("after the commit: %+v", got)
	}
	p.cli("subscriptions", "read", "billing").wantError(3, "nothing to read")
	p.cli("subscriptions", "commit", "billing", page.Cursor).wantError(exitFailure, "Cursor lost")
	p.cli("subscriptions", "seek", "billing", "earliest").want(0)
	if got := p.cli("subscriptions", "read", "billing").published(); len(got) != 2 {
		t.Errorf("after the seek: %+v", got)
	}
	p.cli("subscriptions", "pause", "billing").want(0)
	p.cli("subscriptions", "read", "billing").wantError(3, "paused")
	p.cli("subscriptions", "resume", "billing").want(0)
	p.cli("subscriptions", "delete", "billing").wantError(exitUsage, "--yes")
	p.cli("subscriptions", "delete", "billing", "--yes").want(0)
	p.cli("subscriptions", "show", "billing").wantError(3, "Subscription not found")

	p.cli("subscriptions", "put", "mailer", "-t", "order.**", "--deliver", "mail", "--deliver-type", "mail.order", "--start", "earliest").want(0)
	until(t, "the events are delivered", func() bool {
		listed := p.cli("events", "-q", "mail") // the queue is not known before the first one
		return listed.code == 0 && len(listed.events()) == 3
	})
	if got := p.cli("subscriptions", "replay", "mailer", "--from", "earliest", "--dry-run").want(0).stdout; got != "{\"events\":3}\n" {
		t.Errorf("a replay would deliver %s", got)
	}
	p.cli("subscriptions", "put", "x", "--max-waiting", "5").wantError(exitUsage, "need --deliver")
	p.cli("subscriptions", "put", "x", "--filters", `{"a":1}`).wantError(exitUsage, "want an array")
}

func TestTopWithoutATerminalWritesEachLook(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	p.cli("post", "-q", "mail", `{"n":1}`).want(0)
	p.cli("post", "-q", "images", `{"n":1}`, "--delay", "1h").want(0)
	lines := strings.Split(strings.TrimSpace(p.cli("top", "-n", "2", "-d", "100ms").want(0).stdout), "\n")
	if len(lines) != 2 {
		t.Fatalf("it wrote %q", lines)
	}
	var look struct{ Queues []client.QueueStats }
	if err := json.Unmarshal([]byte(lines[1]), &look); err != nil || len(look.Queues) != 2 {
		t.Errorf("it wrote %s: %v", lines[1], err)
	}
	table := p.cli("top", "-o", "table", "--sort", "scheduled").want(0).stdout
	images, mail := strings.Index(table, "\nimages "), strings.Index(table, "\nmail ")
	if !strings.Contains(table, "2 queues: 1 ready, 1 scheduled, 0 waiting, 0 leased") || images < 0 || mail < images {
		t.Errorf("for people it is\n%s", table)
	}
	p.cli("top", "-d", "1ms").wantError(exitUsage, "--interval is 1ms")
}
