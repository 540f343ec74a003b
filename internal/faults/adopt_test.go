//go:build unix

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// acting is a database that acts by itself: it pushes a queue, fires a schedule every second, and delivers a subscription.
type acting struct {
	t        *testing.T
	receiver *endpoint
	environ  []string
}

// startActing starts a program on a database, and returns when everything has happened that it does by itself.
func startActing(t *testing.T, server *Server) (*acting, *queued) {
	t.Helper()
	a := &acting{
		t: t, receiver: &endpoint{came: make(map[string]int), active: make(map[string]bool)},
		environ: []string{"QUEUED_PUSH_ALLOW=127.0.0.1", "QUEUED_SECRET_KEY=a-key-that-seals-secrets"},
	}
	receiver := httptest.NewServer(a.receiver)
	t.Cleanup(receiver.Close)
	q := startQueued(t, unmodified, server.URL(), a.environ...)
	q.send(http.MethodPut, "/queues/pushed/push", fmt.Sprintf(`{"url":%q}`, receiver.URL))
	q.send(http.MethodPost, "/schedules", `{"queue":"fired","event":{},"rrule":"FREQ=SECONDLY","timezone":"UTC"}`)
	q.send(http.MethodPut, "/subscriptions/s", `{"filters":[{"topics":["a"]}],"deliver":{"queue":"delivered"}}`)
	a.cause(q)
	a.awaitMore(server.AdminURL(), acts{}, "at first")
	return a, q
}

// cause makes something to push and to deliver.
func (a *acting) cause(q *queued) {
	a.t.Helper()
	q.send(http.MethodPost, "/events?queue=pushed", `{}`)
	q.send(http.MethodPost, "/topics/a", `{}`)
}

// acts count what a database has done by itself: the events that it has pushed, fired and delivered.
type acts struct{ pushed, fired, delivered int }

// acts returns what a database has done so far. The events that were pushed are those of all databases.
func (a *acting) acts(url string) acts {
	a.t.Helper()
	return acts{
		pushed:    a.receiver.count(),
		fired:     query[int](a.t, url, `select count(*)::int from agent.occurrence where status = 'fired'`),
		delivered: query[int](a.t, url, `select count(*)::int from agent.event where queue = 'delivered'`),
	}
}

// awaitMore waits until a database has done more of everything than before.
func (a *acting) awaitMore(url string, before acts, when string) {
	a.t.Helper()
	await(a.t, "pushed, fired and delivered "+when, func() bool {
		now := a.acts(url)
		return now.pushed > before.pushed && now.fired > before.fired && now.delivered > before.delivered
	})
}

// isQuiet checks that a program on a database answers calls and does nothing by itself, while the original fires eight times.
func (a *acting) isQuiet(q *queued, url, original, background string) {
	a.t.Helper()
	if got := q.background(); got != background {
		a.t.Errorf("the background is %q, want %q", got, background)
	}
	if _, body, _ := q.get("/readyz", startLimit); !strings.Contains(body, "schedules") {
		a.t.Errorf("/readyz answers %s, want what does not run", body)
	}
	before := a.acts(url)
	a.cause(q)
	q.send(http.MethodPost, "/claim", `{"queue":"fired"}`)
	q.send(http.MethodGet, "/log?after=0", ``)
	there := a.acts(original)
	await(a.t, "the original fires", func() bool {
		return a.acts(original).fired >= there.fired+8 // a process looks at the pushes every 5 s
	})
	if now := a.acts(url); now != before {
		a.t.Errorf("pushed, fired and delivered were %+v events, and are %+v now; want no more", before, now)
	}
}

// background returns what /version says about what a program does by itself.
func (q *queued) background() string {
	_, body, _ := q.get("/version", startLimit)
	var version struct{ Background string }
	_ = json.Unmarshal([]byte(body), &version)
	return version.Background
}

// adopt runs queued adopt, and returns what it says.
func (q *queued) adopt(databaseURL string) string {
	q.t.Helper()
	ctx, cancel := context.WithTimeout(q.t.Context(), startLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, q.program, "adopt")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nowhere", "QUEUED_DATABASE_URL=" + databaseURL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		q.t.Fatalf("queued adopt: %v\n%s", err, out)
	}
	return string(out)
}

func TestCopyDoesNothingByItselfUntilItIsAdopted(t *testing.T) {
	t.Parallel()
	server := Start(t, Config{})
	a, _ := startActing(t, server)
	c := clone(t, server)()
	copyURL, adminURL := server.urlOf(c.database), server.adminURL(c.database)
	server.Exec(c.database, `delete from agent.process_metric`) // those of the original, which would be left to push for a while
	first, second := startQueued(t, unmodified, copyURL, a.environ...), startQueued(t, unmodified, copyURL, a.environ...)
	a.isQuiet(first, adminURL, server.AdminURL(), "suspended")
	if got := second.background(); got != "suspended" {
		t.Errorf("the background of the other process is %q", got)
	}
	if metrics := second.metrics(); !strings.Contains(metrics, `queued_background_suspended{reason="copy"} 1`) {
		t.Error("the metrics do not say that the background is suspended")
	}
	before := a.acts(adminURL)
	if said := first.adopt(copyURL); !strings.Contains(said, "adopted") {
		t.Errorf("queued adopt said %s", said)
	}
	a.awaitMore(adminURL, before, "once the copy was adopted")
	await(t, "both processes know", func() bool { return first.background() == "on" && second.background() == "on" })
	if said := first.adopt(copyURL); !strings.Contains(said, "nothing to do") {
		t.Errorf("queued adopt said %s the second time", said)
	}
	if n := query[int](t, adminURL, `select count(*)::int from agent.audit where action = 'database.adopt'`); n != 1 {
		t.Errorf("the audit has %d adoptions, want 1", n)
	}
}

// metrics returns what /metrics answers.
func (q *queued) metrics() string {
	_, body, _ := q.get("/metrics", startLimit)
	return body
}

func TestCopyIsAdoptedAtOnceWhereTheSettingSaysSo(t *testing.T) {
	t.Parallel()
	server := Start(t, Config{})
	a, _ := startActing(t, server)
	c := clone(t, server)()
	before := a.acts(server.adminURL(c.database))
	var processes []*queued
	for range 2 {
		processes = append(processes, startQueued(t, unmodified, server.urlOf(c.database), append(a.environ, "QUEUED_ADOPT=always")...))
	}
	a.cause(processes[0])
	a.awaitMore(server.adminURL(c.database), before, "by the adopted copy")
	if n := query[int](t, server.adminURL(c.database), `select count(*)::int from agent.audit where action = 'database.adopt'`); n != 1 {
		t.Errorf("the audit has %d adoptions, want 1", n)
	}
}

// TestCopyThatTakesThePlaceOfTheDatabaseIsSuspended replaces the database under a program that runs.
func TestCopyThatTakesThePlaceOfTheDatabaseIsSuspended(t *testing.T) {
	t.Parallel()
	server := Start(t, Config{})
	a, q := startActing(t, server)
	a.cause(q)
	server.Exec(ordinary, `insert into agent.event (event, queue) select '{}', 'pushed' from generate_series(1, 200)`) // some are not pushed yet
	bringUp := clone(t, server)
	c := bringUp()
	copied := query[time.Time](t, server.adminURL(c.database), `select clock_timestamp()`)
	server.disconnect(ordinary)
	server.Exec("", `alter database `+ordinary+` rename to original`)
	server.Exec("", `alter database `+c.database+` rename to `+ordinary)
	server.Exec("", `alter database original with allow_connections true`)
	startQueued(t, unmodified, server.urlOf("original"), a.environ...)
	await(t, "the program sees it", func() bool { return q.background() == "suspended" })
	await(t, "the original has pushed everything", func() bool {
		return query[int](t, server.adminURL("original"), `select count(*)::int from agent.event where queue = 'pushed'`) == 0
	})
	a.isQuiet(q, server.AdminURL(), server.adminURL("original"), "suspended")
	if n := query[int](t, server.AdminURL(), `
		select count(*)::int
		from (select queue, claimed from agent.event union all select queue, claimed from agent.event_hist) e
		where e.queue = 'pushed' and e.claimed[cardinality(e.claimed)] > $1`, copied); n != 0 {
		t.Errorf("the copy has claimed %d events to push", n)
	}
}

func TestPromotedStandbyIsNoCopy(t *testing.T) {
	t.Parallel()
	pair := StartPair(t, Asynchronous, Config{})
	a, q := startActing(t, pair.Primary)
	pair.Primary.AwaitStandby(pair.Standby)
	_, _ = q.terminate()
	pair.Primary.Kill()
	pair.Failover()
	before := a.acts(pair.Primary.AdminURL())
	q = startQueued(t, unmodified, pair.Primary.URL(), a.environ...)
	a.cause(q)
	a.awaitMore(pair.Primary.AdminURL(), before, "by the promoted standby")
	if got := q.background(); got != "on" {
		t.Errorf("the background is %q", got)
	}
}

// TestBaseBackupIsQuietWithTheSetting has a base backup, which cannot be told from its original, used beside it.
func TestBaseBackupIsQuietWithTheSetting(t *testing.T) {
	t.Parallel()
	pair := StartPair(t, Asynchronous, Config{})
	a, _ := startActing(t, pair.Primary)
	pair.Primary.AwaitStandby(pair.Standby)
	pair.Standby.Promote()
	q := startQueued(t, unmodified, pair.Standby.URL(), append(a.environ, "QUEUED_BACKGROUND=off")...)
	a.isQuiet(q, pair.Standby.AdminURL(), pair.Primary.AdminURL(), "off")
	if metrics := q.metrics(); !strings.Contains(metrics, `queued_background_suspended{reason="setting"} 1`) {
		t.Error("the metrics do not say that the background is off")
	}
}
