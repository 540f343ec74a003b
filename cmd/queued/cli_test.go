package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// ran is a command that has ended.
type ran struct {
	t              *testing.T
	args           []string
	code           int
	stdout, stderr string
}

// cli runs a command against the server.
func (p *program) cli(args ...string) ran {
	p.t.Helper()
	return p.cliWith("", nil, args...)
}

// cliWith runs a command against the server, with a standard input and further variables.
func (p *program) cliWith(stdin string, environ []string, args ...string) ran {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), commandBinary(p.t), args...)
	cmd.Env = append([]string{"QUEUED_URL=http://" + p.addr}, environ...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	return ran{p.t, args, cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// want fails the test unless the command has ended with the exit code.
func (r ran) want(code int) ran {
	r.t.Helper()
	if r.code != code {
		r.t.Fatalf("%q ended with %d, want %d\n%s%s", r.args, r.code, code, r.stdout, r.stderr)
	}
	return r
}

// wantError fails the test unless the command has ended with the exit code and an error that has the text.
func (r ran) wantError(code int, text string) {
	r.t.Helper()
	if r.want(code); !strings.Contains(r.stderr, text) {
		r.t.Errorf("%q wrote the error %q, which does not have %q", r.args, r.stderr, text)
	}
}

// cliEvent is what tests look at of an event or a schedule that a command wrote.
type cliEvent struct {
	ID           int64           `json:"id"`
	Queue        string          `json:"queue"`
	Type         string          `json:"type"`
	State        string          `json:"state"`
	Outcome      string          `json:"outcome"`
	Attempts     int             `json:"attempts"`
	Receipt      string          `json:"receipt"`
	LastError    string          `json:"last_error"`
	RequeuedFrom int64           `json:"requeued_from"`
	Result       json.RawMessage `json:"result"`
	Meta         json.RawMessage `json:"meta"`
	Event        json.RawMessage `json:"event"`
}

// events returns the lines of standard output.
func (r ran) events() (all []cliEvent) {
	r.t.Helper()
	for line := range strings.Lines(r.want(0).stdout) {
		var event cliEvent
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			r.t.Fatalf("%q wrote %q: %v", r.args, line, err)
		}
		all = append(all, event)
	}
	return all
}

// event returns the only line of standard output.
func (r ran) event() cliEvent {
	r.t.Helper()
	all := r.events()
	if len(all) != 1 {
		r.t.Fatalf("%q wrote %d lines, want 1\n%s", r.args, len(all), r.stdout)
	}
	return all[0]
}

func TestCommandsTakeAnEventThroughItsLife(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	id := p.cli("post", "-q", "mail", "-t", "mail.welcome", "--meta", `{"trace":"a"}`, "--idempotency-key", "k", `{"to":"<ada>"}`).event().ID
	again := p.cliWith(`{"to":"<ada>"}`, nil, "post", "-q", "mail", "-t", "mail.welcome", "--meta", `{"trace":"a"}`, "--idempotency-key", "k")
	if again.event().ID != id || !strings.Contains(again.stderr, "inserted before") {
		t.Errorf("posted again it is %s%s", again.stdout, again.stderr)
	}
	if seen := p.cli("events", "-q", "mail", "--state", "ready", "--contains", `{"to":"<ada>"}`).event(); seen.ID != id || string(seen.Event) != `{"to":"<ada>"}` {
		t.Errorf("listed is %+v", seen)
	}
	p.cli("claim", "-q", "mail", "-t", "mail.other").wantError(3, "nothing to claim")
	first := p.cli("claim", "-q", "mail", "-t", "mail.welcome", "-l", "1h", "--worker", "w", "--wait", "1s").event()
	if first.ID != id || first.Receipt == "" || string(first.Meta) != `{"trace":"a"}` {
		t.Errorf("claimed is %+v", first)
	}
	if released := p.cli("release", first.Receipt).event(); released.ID != id {
		t.Errorf("released is %+v", released)
	}
	p.cli("release", first.Receipt).wantError(4, "Lease lost")
	first = p.cli("claim", "-q", "mail", "-l", "1h").event()
	if first.Attempts != 1 {
		t.Errorf("claimed after the release it is %+v", first)
	}
	p.cli("extend", first.Receipt, "-l", "2h").event()
	p.cli("extend", first.Receipt, "--invisible-for", "1d12h").event()
	p.cli("extend", first.Receipt, "--lease", "1day").wantError(2, `--lease: got "1day"; want a duration such as 90s, 10m or 7d`)
	p.cli("extend", first.Receipt, "--lease", "52w2d").wantError(2, "--lease is 8784h0m0s; want 1us to 8760h")
	p.cli("nack", first.Receipt, "--error", "mailbox full", "--delay", "0s").event()
	second := p.cli("claim", "-q", "mail").event()
	for _, lost := range [][]string{{"ack", first.Receipt}, {"nack", first.Receipt}, {"extend", first.Receipt}} {
		p.cli(lost...).wantError(4, "Lease lost")
	}
	p.cli("ack", second.Receipt, "--result", `{"sent":true}`).want(0)
	done := p.cli("history", "--outcome", "done", "--from", "1h").event()
	if done.ID != id || done.Attempts != 2 || done.LastError != "mailbox full" || string(done.Result) != `{"sent":true}` {
		t.Errorf("in history is %+v", done)
	}
	if shown := p.cli("events", strconv.FormatInt(id, 10), "-o", "json").want(0); !strings.Contains(shown.stdout, "\n  \"outcome\": \"done\"") {
		t.Errorf("shown is %s", shown.stdout)
	}
	p.cli("events", "4711").wantError(3, "Event not found")
}

func TestPostAndEventsWaitForTheEndOfAnEvent(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	replies := make(chan ran, 1)
	go func() { replies <- p.cli("post", "-q", "pdf", "--wait", `{"invoice":17}`) }()
	claimed := p.cli("claim", "-q", "pdf", "--wait", "30s").event()
	p.cli("events", "--wait=300ms", strconv.FormatInt(claimed.ID, 10)).wantError(3, "has not ended")
	p.cli("ack", claimed.Receipt, "--result", `{"pages":3}`).want(0)
	reply := <-replies
	if e := reply.event(); e.ID != claimed.ID || e.Outcome != "done" || string(e.Result) != `{"pages":3}` || !strings.Contains(reply.stderr, "waiting for the end of event") {
		t.Errorf("the reply is %s%s", reply.stdout, reply.stderr)
	}
	id := strconv.FormatInt(claimed.ID, 10)
	if e := p.cli("events", id, "--wait", "30s").event(); e.Outcome != "done" {
		t.Errorf("later it is %+v", e)
	}

	go func() { replies <- p.cli("post", "--queue", "pdf", `{"invoice":18}`, "--wait=1m") }()
	claimed = p.cli("claim", "-q", "pdf", "--wait", "30s").event()
	p.cli("nack", claimed.Receipt, "--error", "no paper", "--final").want(0)
	(<-replies).wantError(1, fmt.Sprintf("event %d has failed: no paper", claimed.ID))

	p.cli("post", "--wait", "1s", "-q", "pdf", `{}`).wantError(3, "has not ended")
	p.cli("post", "--wait=soon", `{}`).wantError(2, `--wait: got "soon"; want a duration`)
	p.cli("post", "--wait=-1s", `{}`).wantError(2, `--wait: got "-1s"; want a duration`)
	p.cli("post", "--wait", "-f", "none").wantError(2, "--wait is for one event")
	p.cli("events", "--wait").wantError(2, "--wait needs the id")
	p.cli("events", "4711", "--wait").wantError(3, "Event not found")
	p.cli("events", id, "--wait=1s", "-q", "other").wantError(2, "not both")
	p.cli("ack", "--unconditional", strconv.FormatInt(p.cli("post", "-q", "mail", `{}`).event().ID, 10)).want(0)
	last := p.cli("history", "-q", "mail").event().ID
	p.cli("events", strconv.FormatInt(last, 10), "--wait").wantError(1, fmt.Sprintf("event %d was cancelled", last))
}

func TestAcksOfSeveralEventsAreIndependent(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	for range 3 {
		p.cli("post", `{}`).event()
	}
	claimed := p.cli("claim", "-n", "3").events()
	lost := fmt.Sprintf("%d.9.1", claimed[1].ID)
	got := p.cli("ack", claimed[0].Receipt, lost, claimed[2].Receipt)
	got.wantError(4, fmt.Sprintf("event %d: ", claimed[1].ID))
	if strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("the error is written more than once:\n%s", got.stderr)
	}
	if n := len(p.cli("history").events()); n != 2 {
		t.Errorf("%d events are in history, want 2", n)
	}
	p.cli("ack", "--unconditional", strconv.FormatInt(claimed[1].ID, 10)).want(0)
	p.cli("ack", "--unconditional", "4711").wantError(3, "event 4711: ")
}

func TestGroupsOfAQueueAreListedAndSet(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	type shown struct {
		Concurrency int
		Paused      bool
		HeldUntil   *string                  `json:"held_until"`
		BlockedBy   *struct{ Reason string } `json:"blocked_by"`
		Version     int64
	}
	group := func(args ...string) (g shown) {
		t.Helper()
		if r := p.cli(append([]string{"groups"}, args...)...).want(0); json.Unmarshal([]byte(r.stdout), &g) != nil {
			t.Fatalf("%q wrote %s", args, r.stdout)
		}
		return g
	}
	p.cli("queue", "set", "mail", "--concurrency", "1").want(0)
	for _, name := range []string{"a/b", "a/b", "c", "c", "c"} {
		p.cli("post", "-q", "mail", "--group", name, `{}`).want(0)
	}
	if g := group("pause", "mail", "a/b"); !g.Paused || g.BlockedBy == nil || g.BlockedBy.Reason != "paused" {
		t.Errorf("paused %+v", g)
	}
	if g := group("set", "mail", "a/b", "--concurrency", "3"); !g.Paused || g.Concurrency != 3 {
		t.Errorf("set %+v", g)
	}
	if g := group("hold", "mail", "a/b", "1h"); !g.Paused || g.Concurrency != 3 || g.HeldUntil == nil {
		t.Errorf("held %+v", g)
	}
	p.cli("claim", "-q", "mail", "-n", "10").want(0)
	if table := p.cli("groups", "mail", "-o", "table").want(0).stdout; !strings.HasPrefix(table, "GROUP  WAITING") || !strings.Contains(table, "\nc      2        0         1       0") || !strings.Contains(table, "concurrency 1") {
		t.Errorf("the groups are\n%s", table)
	}
	if shown := p.cli("queue", "mail", "-o", "table").want(0).stdout; !strings.Contains(shown, "\nwaiting:          4\n") {
		t.Errorf("the queue is\n%s", shown)
	}
	if table := p.cli("queues", "-o", "table").want(0).stdout; !strings.Contains(table, "WAITING") {
		t.Errorf("the queues are\n%s", table)
	}
	if first := p.cli("groups", "mail", "--blocked", "--longest", "-n", "1", "-o", "jsonl").want(0).stdout; !strings.Contains(first, `"group":"a/b"`) || strings.Count(first, "\n") != 1 {
		t.Errorf("the longest line is %s", first)
	}
	if g := group("resume", "mail", "a/b"); g.Paused || g.HeldUntil != nil || g.Concurrency != 3 {
		t.Errorf("resumed %+v", g)
	}
	p.cli("groups", "delete", "mail", "a/b").want(0)
	if g := group("show", "mail", "a/b"); g.Version != 0 || g.Concurrency != 0 {
		t.Errorf("with nothing set %+v", g)
	}
	p.cli("groups", "set", "mail", "a/b").wantError(2, "--concurrency")
	p.cli("groups", "unblock", "mail", "a/b").wantError(1, "had not stopped")
	p.cli("groups", "pause", "queued.x", "a").wantError(1, "queued.")
}

func TestQueuesAreSetPausedMovedAndPurged(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	policy := func(args ...string) map[string]any {
		var got map[string]any
		if r := p.cli(args...).want(0); json.Unmarshal([]byte(r.stdout), &got) != nil {
			t.Fatalf("%q wrote %s", args, r.stdout)
		}
		return got
	}
	policy("queue", "set", "mail", "--max-attempts", "5", "--lease", "2m")
	set := policy("queue", "set", "mail", "--backoff", "exponential", "--backoff-base", "10s", "--backoff-jitter", "0.2")
	backoff, _ := set["backoff"].(map[string]any)
	if set["max_attempts"] != 5.0 || set["invisible_for"] != "2m0s" || backoff["kind"] != "exponential" || backoff["base"] != "10s" || backoff["jitter"] != 0.2 {
		t.Errorf("the policy is %v", set)
	}
	if set := policy("queue", "set", "mail", "--backoff", "none"); set["backoff"] != nil || set["max_attempts"] != 5.0 {
		t.Errorf("without a backoff the policy is %v", set)
	}
	p.cli("queue", "set", "mail", "--backoff-max", "1h").wantError(2, "--backoff")
	if set := policy("queue", "set", "mail", "--concurrency", "2", "--total", "9", "--group-order", "block"); set["flow"] == nil {
		t.Errorf("with limits the policy is %v", set)
	}
	if set := policy("queue", "set", "mail", "--concurrency", "none", "--total", "none", "--group-order", "none"); set["flow"] != nil {
		t.Errorf("without limits the policy is %v", set)
	}
	p.cli("queue", "set", "mail", "--total", "many").wantError(2, "want a number, or none")
	p.cli("queue", "set", "mail", "--group-order", "").wantError(2, `must be one of "none","continue","block" but got ""`)
	p.cli("queue", "set", "mail").wantError(2, "--max-attempts")
	if policy("queue", "pause", "mail")["paused"] != true || policy("queue", "mail")["paused"] != true {
		t.Error("the queue is not paused")
	}
	p.cli("post", "-q", "mail", `{}`).want(0)
	p.cli("claim", "-q", "mail").want(3)
	policy("queue", "resume", "mail")
	if table := p.cli("queues", "-o", "table").want(0).stdout; !strings.HasPrefix(table, "QUEUE  READY") || !strings.Contains(table, "\nmail   1 ") {
		t.Errorf("the queues are\n%s", table)
	}
	if policy("queue", "move", "mail", "there", "--type", "none")["moved"] != 0.0 || policy("queue", "move", "mail", "there", "-n", "5")["moved"] != 1.0 ||
		policy("queue", "move", "there", "mail")["moved"] != 1.0 {
		t.Error("the event was not moved there and back")
	}
	p.cli("queue", "move", "mail", "mail").wantError(1, "another queue")
	p.cli("queue", "move", "mail", "there", "-n", "-1").wantError(2, "--limit")
	p.cli("queue", "move", "mail").wantError(2, "<to>")
	waits := p.cli("post", "-q", "later", "--delay", "1h", `{}`).event().ID
	if run := p.cli("run", strconv.FormatInt(waits, 10)).event(); run.ID != waits {
		t.Errorf("run is %+v", run)
	}
	p.cli("post", "-q", "later", "--delay", "1h", `{}`).event()
	if policy("run", "-q", "later", "--nacked-only")["run"] != 0.0 || policy("run", "-q", "later")["run"] != 1.0 {
		t.Error("running a queue does not count")
	}
	if n := len(p.cli("claim", "-q", "later", "-n", "5").events()); n != 2 {
		t.Errorf("%d events are claimable, want 2", n)
	}
	p.cli("run", strconv.FormatInt(waits, 10)).wantError(1, "Event leased")
	p.cli("run", "4711").wantError(3, "Event not found")
	p.cli("run").wantError(2, "--queue")
	p.cli("run", "1", "-q", "later").wantError(2, "not both")
	p.cli("queue", "purge", "mail").wantError(2, "--yes")
	if policy("queue", "purge", "mail", "--yes")["purged"] != 1.0 {
		t.Error("the queue was not purged")
	}
	p.cli("post", "-q", "mail", `{}`).want(0)
	p.cli("queue", "delete", "mail").wantError(2, "--yes")
	p.cli("queue", "delete", "mail", "--yes").wantError(1, "add --purge")
	if policy("queue", "delete", "mail", "--purge", "--yes")["purged"] != 1.0 || policy("queue", "mail")["version"] != nil {
		t.Error("the queue was not deleted")
	}
	p.cli("queue", "delete", "mail", "--yes").wantError(3, "neither a policy nor a push nor an event")
}

func TestSettingsOfAQueueThatAreChangedAtTheSameTimeAreAllKept(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	changes := [][]string{{"--max-attempts", "5"}, {"--lease", "2m"}, {"--history-retention", "48h"}, {"--backoff", "constant", "--backoff-base", "10s"}}
	var sets sync.WaitGroup
	for _, change := range changes {
		sets.Go(func() { p.cli(append([]string{"queue", "set", "mail"}, change...)...).want(0) })
	}
	sets.Wait()
	var got map[string]any
	if r := p.cli("queue", "mail").want(0); json.Unmarshal([]byte(r.stdout), &got) != nil {
		t.Fatalf("queue mail wrote %s", r.stdout)
	}
	backoff, _ := got["backoff"].(map[string]any)
	if got["max_attempts"] != 5.0 || got["invisible_for"] != "2m0s" || got["history_retention"] != "48h0m0s" || backoff["base"] != "10s" || got["ready"] != 0.0 {
		t.Errorf("the queue is %v", got)
	}
}

func TestRequeueByIDAndByFilter(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	first := p.cli("post", "-q", "a", `{"n":1}`).event().ID
	p.cli("post", "-q", "b", `{"n":2}`).event()
	p.cli("queue", "purge", "a", "-y").want(0)
	p.cli("queue", "purge", "b", "-y").want(0)
	var counted struct{ Matched, Requeued int }
	count := func(args ...string) {
		if r := p.cli(append([]string{"requeue"}, args...)...).want(0); json.Unmarshal([]byte(r.stdout), &counted) != nil {
			t.Fatalf("%q wrote %s", args, r.stdout)
		}
	}
	if count("--outcome", "cancelled", "--dry-run"); counted.Matched != 2 || counted.Requeued != 0 {
		t.Errorf("the dry run counted %+v", counted)
	}
	if count("--outcome", "cancelled", "--limit", "1"); counted.Requeued != 1 {
		t.Errorf("up to 1 counted %+v", counted)
	}
	if count("--outcome", "cancelled"); counted.Requeued != 1 {
		t.Errorf("the rest counted %+v", counted)
	}
	if n := len(p.cli("events").events()); n != 2 {
		t.Errorf("%d events are in queues, want 2", n)
	}
	const many = 1100 // more than one request requeues
	p.cliWith(numbered(1, many), nil, "post", "-f", "-", "-q", "many").want(0)
	p.cli("queue", "purge", "many", "-y").want(0)
	if count("-q", "many", "--outcome", "cancelled"); counted.Requeued != many {
		t.Errorf("of %d events %+v are counted", many, counted)
	}
	p.cli("requeue", strconv.FormatInt(first, 10)).wantError(1, "its copy, the event ")
	p.cli("queue", "purge", "a", "-y").want(0)
	p.cli("requeue", strconv.FormatInt(first, 10)).want(0)
	p.cli("requeue", "4711").wantError(3, "event 4711")
	p.cli("requeue").wantError(2, "needs ids, or a filter")
	p.cli("requeue", "1", "--outcome", "failed").wantError(2, "not both")
}

func TestSchedulesAreListedAndShown(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	p.want(http.StatusCreated, http.MethodPost, "/schedules", `{"name":"weekly","queue":"mail","event":{"n":1},"cron":"0 9 * * 1","timezone":"Europe/Berlin"}`)
	id := strconv.FormatInt(p.cli("schedules", "-q", "mail", "--status", "active").event().ID, 10)
	if got := p.cli("schedules", "--due", "1s").want(0); got.stdout != "" {
		t.Errorf("due within a second are %s", got.stdout)
	}
	table := p.cli("schedules", id, "-o", "table").want(0).stdout
	for _, part := range []string{"cron:     0 9 * * 1", "zone:     Europe/Berlin", "NEXT, LOCAL"} {
		if !strings.Contains(table, part) {
			t.Errorf("the schedule has no %q:\n%s", part, table)
		}
	}
	p.cli("schedules", "4711").wantError(3, "Schedule not found")
}

func TestTablesFitTheTerminalAndShowNoControlCharacters(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	p.cli("post", "-q", strings.Repeat("q", 60), "-t", strings.Repeat("t", 60), `{"text":"`+strings.Repeat("x", 300)+`"}`).want(0)
	p.cli("post", "--type", "\x1b[2Jevil", `{}`).want(0)
	p.want(http.StatusCreated, http.MethodPost, "/schedules", `{"name":"`+strings.Repeat("n", 60)+`","queue":"mail","event":{},"cron":"0 9 * * 1","timezone":"America/Argentina/Buenos_Aires"}`)
	first := p.cli("claim", "-q", strings.Repeat("q", 60)).event().Receipt
	p.cli("nack", first, "--error", strings.Repeat("e", 300), "--final").want(0)
	p.cli("post", "-q", "other", "-t", strings.Repeat("t", 60), `{}`).want(0)
	for _, width := range []int{100, 80} {
		for _, args := range [][]string{{"events"}, {"history"}, {"queues"}, {"schedules"}, {"errors"}, {"queue", "stats", "other"}, {"claim", "-q", "other"}, {"events", "1"}} {
			table := p.cliWith("", []string{"COLUMNS=" + strconv.Itoa(width)}, append(args, "-o", "table")...).stdout
			for line := range strings.Lines(table) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
					t.Errorf("%q: %d characters in a line of %d:\n%s", args, n, width, line)
				}
			}
			if strings.Contains(table, "\x1b") {
				t.Errorf("the table is %q", table)
			}
		}
	}
	whole := p.cli("events", "-o", "table").want(0).stdout
	if !strings.Contains(p.cli("history", "-o", "table").stdout, strings.Repeat("x", 300)) || !strings.Contains(whole, `\u001b[2Jevil`) {
		t.Errorf("the table for no terminal is %q", whole)
	}
}

func TestListingsAreCompleteOrSaySo(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	for range 3 {
		p.cli("post", `{}`).want(0)
	}
	got := p.cli("events", "-n", "2")
	if len(got.events()) != 2 || !strings.Contains(got.stderr, "there are more") {
		t.Errorf("two of three are\n%s%s", got.stdout, got.stderr)
	}
	for _, limit := range []string{"3", "0"} {
		if got := p.cli("events", "-n", limit); len(got.events()) != 3 || got.stderr != "" {
			t.Errorf("with -n %s three are\n%s%s", limit, got.stdout, got.stderr)
		}
	}
	var all []cliEvent
	if got := p.cli("events", "-o", "json").want(0); json.Unmarshal([]byte(got.stdout), &all) != nil || len(all) != 3 {
		t.Errorf("as JSON they are %s", got.stdout)
	}
	if got := p.cli("history", "-o", "json").want(0); got.stdout != "[]\n" {
		t.Errorf("no events as JSON are %q", got.stdout)
	}
}

func TestMistakesNameTheFlagAndTheNearestRightOne(t *testing.T) {
	t.Parallel()
	p := setupFront(t, "QUEUED_API_KEY=secret-of-sixteen-or-more")
	key := []string{"QUEUED_KEY=secret-of-sixteen-or-more"}
	for _, c := range []struct {
		line string
		code int
		says string
	}{
		{"clam", 2, `did you mean "claim" instead of "clam"?`},
		{"queue pasue mail", 2, `did you mean "pause" instead of "pasue"?`},
		{"claim --limt 3", 2, `unknown flag --limt, did you mean "--limit"?`},
		{"claim --limt 3", 2, `Run "queued claim --help"`},
		{"claim -o tabel", 2, `did you mean "table" instead of "tabel"?`},
		{"history --outcome=faild", 2, `did you mean "failed" instead of "faild"?`},
		{"claim --limit x", 2, "--limit: "},
		{"claim --limit 5000", 2, "--limit is 5000; want 1 to 1000"},
		{"nack 1.1.a --error " + strings.Repeat("x", 70_000), 1, "--error: "},
		{"post -q a/b {}", 1, "--queue: must be"},
		{"post [1]", 2, "not a JSON object"},
		{"post {} -f x", 2, "not both"},
		{"post -f /nowhere", 2, "--file: open /nowhere"},
		{"owners ada", 2, `unexpected argument ada: did you mean "queued owners show ada"?`},
		{"context here", 2, `did you mean "queued context show here"?`},
		{"sources -o json shop", 2, `did you mean "queued sources get shop"?`},
		{"ack foo", 2, `the receipt is "foo"`},
		{"events --contains {x", 2, "--contains: "},
		{"history --from yesterday", 2, "--from is"},
		{"post {} --expires-at tomorrow", 2, `--expires-at: got "tomorrow"; want a time such as 2026-`},
		{"history --from 99999999w", 2, "out of range; want up to 106751d ago"},
		{"claim --lease 99999999w", 2, `--lease: got "99999999w", which is out of range; want a duration up to 106751d`},
		{"post --wait=99999999w {}", 2, "out of range"},
		{"queues --url ftp://x", 2, "--url: got a URL that does not fit"},
	} {
		p.cliWith("", key, strings.Fields(c.line)...).wantError(c.code, c.says)
	}
	if r := p.cliWith("", key, "queue", "mail", "other").want(2); strings.Contains(r.stderr, "did you mean") {
		t.Errorf("a word too many is taken for a name: %s", r.stderr)
	}
	for what, args := range map[string][]string{
		"the name of the queue": {"queue", ""}, "the id of the owner": {"owners", "show", ""}, "the id of the key": {"keys", "revoke", ""}, "the topic": {"publish", "", "{}"},
	} {
		p.cliWith("", key, args...).wantError(2, what+" must not be empty")
	}
	p.cliWith("", key, "queue", "move", "mail", "mail").wantError(1, "<to>: must be another queue")
	p.cliWith("", key, "queue", "pause", "a b").wantError(1, "<queue>: ")
	p.cli("queues").wantError(1, "$QUEUED_KEY")
	p.cliWith("", key, "queues").want(0)
	p.cli("queues", "--url", "http://"+closedAddress(t), "--retry-for", "0s").wantError(1, "(--url): ")
	p.cliWith("", key, "claim", "--url", "http://"+p.addr+"/elsewhere").wantError(1, "It was POST /claim: is the URL (--url)")
}

func TestUndeclaredQueueIsNamedAndIsNoEmptyQueue(t *testing.T) {
	t.Parallel()
	p := setupFront(t, "QUEUED_QUEUES=declared")
	p.placeAtHome("mail", "mial") // each cell knows the queues that it has
	p.cli("queue", "set", "mail").want(0)
	for _, args := range [][]string{{"post", "-q", "mial", "{}"}, {"claim", "-q", "mial"}, {"work", "-q", "mial", "--exec", "true"}, {"queue", "mial"}, {"events", "-q", "mial"}, {"run", "-q", "mial"}, {"queue", "purge", "mial", "-y"}} {
		failed := p.cli(args...)
		for _, want := range []string{`the queue "mial"`, `Did you mean "mail"?`, "queued queue set mial"} {
			failed.wantError(1, want)
		}
	}
	p.cli("claim", "-q", "mail").wantError(3, "nothing to claim")
}
