package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/queued/queued/internal/pgtest"
)

// object returns the object that a command wrote.
func (r ran) object() map[string]any {
	r.t.Helper()
	var got map[string]any
	if err := json.Unmarshal([]byte(r.want(0).stdout), &got); err != nil {
		r.t.Fatalf("%q wrote %s: %v", r.args, r.stdout, err)
	}
	return got
}

func TestKeysAndTheAuditOverHTTP(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	p.cli("keys", "create", "--scope", "publish").wantError(1, "--scope: must have admin for the first key")
	first := p.cli("keys", "create", "--scope", "admin", "--name", "ops").want(0)
	if !strings.Contains(first.stderr, "from now on every call needs a key") {
		t.Errorf("of the first key it said %s", first.stderr)
	}
	match := keyText.FindStringSubmatch(first.stdout)
	if match == nil || !strings.Contains(first.stderr, "in the server http://"+p.addr) {
		t.Fatalf("created is %s%s", first.stdout, first.stderr)
	}
	run := func(args ...string) ran {
		t.Helper()
		return p.cliWith("", []string{"QUEUED_KEY=" + strings.TrimSpace(first.stdout)}, args...)
	}
	p.cli("keys", "list").wantError(1, "$QUEUED_KEY")
	mailer := run("keys", "create", "--scope", "publish,claim", "--queue", "mail", "--rate", "5", "--expires-in", "30d", "-o", "json").object()
	id, _ := mailer["id"].(string)
	if text, _ := mailer["key"].(string); !strings.HasPrefix(text, "qk_"+id) || mailer["expires_at"] == nil {
		t.Errorf("created is %v", mailer)
	}
	if table := run("keys", "list", "-o", "table").want(0).stdout; !strings.HasPrefix(table, "ID ") || !strings.Contains(table, id+"  publish,claim  publish,claim  mail    none ") {
		t.Errorf("the keys are\n%s", table)
	}
	if n := strings.Count(run("keys", "list", "-o", "jsonl").want(0).stdout, "\n"); n != 2 {
		t.Errorf("%d keys are listed", n)
	}
	if bare := run("keys", "-o", "jsonl").want(0).stdout; strings.Count(bare, "\n") != 2 {
		t.Errorf("without a verb the keys are %s", bare)
	}
	run("keys", id).wantError(2, `did you mean "queued keys show `+id+`"?`)
	set := run("keys", "set", id, "--unrestricted", "--no-rate", "--no-expiry", "--scope", "read").object()
	if scopes, _ := json.Marshal(set["scopes"]); set["queues"] != nil || set["rate_limit"] != nil || set["expires_at"] != nil || string(scopes) != `["read"]` {
		t.Errorf("changed it is %v", set)
	}
	if shown := run("keys", "show", id).object(); shown["key"] != nil || shown["status"] != "active" {
		t.Errorf("shown it is %v", shown)
	}
	if rotated := run("keys", "rotate", id, "--grace", "0s").want(0); rotated.stdout == mailer["key"].(string)+"\n" || keyText.FindString(rotated.stdout) == "" {
		t.Errorf("rotated to %s", rotated.stdout)
	}
	p.cliWith("", []string{"QUEUED_KEY=" + mailer["key"].(string)}, "queues").wantError(1, "$QUEUED_KEY")
	run("keys", "revoke", id).want(0)
	if shown := run("keys", "show", id).object(); shown["status"] != "revoked" {
		t.Errorf("revoked it is %v", shown)
	}
	run("keys", "revoke", "aaaaaaaa").wantError(3, "no key has this id")
	run("keys", "show", "aaaaaaaa").wantError(3, "")
	run("keys", "set", id).wantError(2, "something to change")
	run("keys", "set", id, "--no-rate", "--rate", "3").wantError(2, "--no-rate")

	actions := run("audit", "--action", "key.*", "--from", "1d", "-n", "2")
	if !strings.Contains(actions.want(0).stdout, `"action":"key.revoke"`) || !strings.Contains(actions.stderr, "there are more") {
		t.Errorf("the audit has %s%s", actions.stdout, actions.stderr)
	}
	if table := run("audit", "--actor", "key:"+match[1], "-o", "table").want(0).stdout; !strings.Contains(table, "key.rotate") {
		t.Errorf("the audit has\n%s", table)
	}
	if all := run("audit", "-o", "json").want(0).stdout; !json.Valid([]byte(all)) {
		t.Errorf("the audit is %s", all)
	}
	run("audit", "--from", "yesterday").wantError(2, "--from is")
}

func TestKeysAreThoseOfTheDatabaseOrServerThatIsNamed(t *testing.T) {
	t.Parallel()
	db, away := pgtest.New(t).ServiceURL, "http://"+closedAddress(t)
	p := serve(t, nil, "QUEUED_DATABASE_URL="+db)
	server, database := "QUEUED_URL="+away, "QUEUED_DATABASE_URL="+db
	missing := filepath.Join(t.TempDir(), "data")
	dir := "QUEUED_DATA_DIR=" + missing
	for _, c := range []struct {
		args, environ []string
		code          int
		says          string
	}{
		{nil, []string{database, server}, 0, ""},
		{nil, []string{database, "QUEUED_URL="}, 0, ""},
		{nil, []string{database, "QUEUED_URL=", "QUEUED_KEY=k"}, 0, ""},
		{[]string{"--database-url", db}, []string{server}, 0, ""},
		{nil, []string{server}, 1, "no answer from the server " + away},
		{nil, []string{server, dir}, 1, "no answer from the server " + away},
		{nil, []string{"QUEUED_URL=", "QUEUED_KEY=k", dir}, 1, "(--url, $QUEUED_URL)"},
		{nil, []string{database, server, dir}, 0, ""},
		{nil, []string{"QUEUED_URL=", dir}, 1, "there is no private PostgreSQL in " + missing + " yet"},
		{[]string{"--data-dir", missing}, []string{server}, 1, "there is no private PostgreSQL in " + missing + " yet"},
		{[]string{"--data-dir", missing}, []string{database}, 2, "--data-dir is about the private PostgreSQL, and QUEUED_DATABASE_URL names another one"},
		{[]string{"--url", away}, []string{database}, 1, "no answer from the server " + away},
		{[]string{"--url", away, "--database-url", db}, nil, 2, "want one of them"},
		{[]string{"--context", "x"}, []string{database, "QUEUED_URL="}, 2, `no context "x"`},
	} {
		p.cliWith("", c.environ, append([]string{"keys", "list", "--retry-for", "0s"}, c.args...)...).wantError(c.code, c.says)
	}
	if _, err := os.Stat(missing); !os.IsNotExist(err) {
		t.Errorf("a listing has made a PostgreSQL: %v", err)
	}
	home := "HOME=" + t.TempDir()
	p.cliWith("", []string{home}, "context", "set", "away", "--url", away).want(0)
	p.cliWith("", []string{home, "QUEUED_URL="}, "keys", "list", "--retry-for", "0s").wantError(1, "(context away)")
	p.cliWith("", []string{home, "QUEUED_URL=", dir}, "keys", "list", "--retry-for", "0s").wantError(1, "(context away)")
}

func TestSchedulesOwnersAndTopics(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	p.placeAtHome("mail")
	p.cli("owners", "put", "ada").wantError(2, "--timezone")
	p.cli("owners", "put", "ada", "-z", "Mars/Base").wantError(1, "--timezone")
	if owner := p.cli("owners", "put", "ada", "-z", "Asia/Tokyo", "--attributes", `{"name":"Ada"}`).object(); owner["timezone"] != "Asia/Tokyo" {
		t.Errorf("the owner is %v", owner)
	}
	if table := p.cli("owners", "-o", "table").want(0).stdout; !strings.Contains(table, "ada  Asia/Tokyo") {
		t.Errorf("the owners are\n%s", table)
	}
	p.cli("owners", "show", "bob").want(3)

	rule := []string{"--cron", "0 9 * * 1", "--owner", "ada"}
	if n := strings.Count(p.cli(append([]string{"schedules", "preview", "-n", "3", "--after", "2027-02-03T00:00:00Z"}, rule...)...).want(0).stdout, `T09:00:00","utc"`); n != 3 {
		t.Errorf("%d occurrences are previewed", n)
	}
	p.cli("schedules", "create", `{}`).wantError(2, "--at, --rrule or --cron")
	p.cli(append([]string{"schedules", "create", `[]`}, rule...)...).wantError(2, "not a JSON object")
	p.cli("schedules", "create", "{}", "--cron", "x", "-z", "UTC").wantError(1, "--cron")
	created := p.cli(append([]string{"schedules", "create", "-q", "mail", "-t", "report", "--name", "weekly", "--misfire", "skip", `{"report":"week"}`}, rule...)...).object()
	if created["zone"] != "Asia/Tokyo" || created["misfire"] != "skip" || created["type"] != "report" || created["queue"] != "mail" {
		t.Errorf("created is %v", created)
	}
	for call, status := range map[string]string{"pause": "paused", "resume": "active"} {
		if call == "resume" {
			p.cli("schedules", "pause", "1").want(0)
		}
		if got := p.cli("schedules", call, "1").object(); got["status"] != status {
			t.Errorf("after %s it is %v", call, got)
		}
	}
	p.cli("schedules", "resume", "1").want(0)
	if run := p.cli("schedules", "run", "1").object(); run["manual"] != true || run["event_id"] == nil {
		t.Errorf("run is %v", run)
	}
	if events := p.cli("events", "-q", "mail").events(); len(events) != 1 || string(events[0].Event) != `{"report":"week"}` {
		t.Errorf("in the queue is %+v", events)
	}
	if table := p.cli("schedules", "occurrences", "1", "-o", "table").want(0).stdout; !strings.Contains(table, "pending") {
		t.Errorf("the occurrences are\n%s", table)
	}
	for _, line := range [][]string{{"schedules", "1"}, {"schedules", "show", "1"}, {"schedules", "-q", "mail"}, {"schedules", "list", "--due", "8d"}} {
		if got := p.cli(append(line, "-o", "table")...).want(0).stdout; !strings.Contains(got, "0 9 * * 1") {
			t.Errorf("%q wrote\n%s", line, got)
		}
	}
	p.cli("schedules", "cancel", "1").wantError(2, "--yes")
	if got := p.cli("schedules", "cancel", "1", "--yes").object(); got["id"] != 1.0 || got["status"] != "cancelled" {
		t.Errorf("the cancelled schedule is shown as %v", got)
	}
	if got := p.cli("schedules", "show", "1").object(); got["status"] != "cancelled" {
		t.Errorf("cancelled it is %v", got)
	}
	p.cli("schedules", "pause", "4711").want(3)
	p.cli("owners", "delete", "ada").wantError(2, "--yes")
	p.cli("owners", "delete", "ada", "--yes").want(0)
	p.cli("owners", "show", "ada").want(3)

	p.cli("publish", "order.placed", `{}`).want(0)
	p.cli("publish", "order.paid", `{}`).want(0)
	if table := p.cli("topics", "-o", "table").want(0).stdout; !strings.HasPrefix(table, "TOPIC         EVENTS  LAST POSITION  LAST PUBLISHED\norder.paid    1 ") {
		t.Errorf("the topics are\n%s", table)
	}
	if lines := strings.Count(p.cli("topics").want(0).stdout, "\n"); lines != 2 {
		t.Errorf("%d topics are listed", lines)
	}
}
