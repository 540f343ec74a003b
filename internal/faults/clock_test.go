//go:build unix

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// futureEventsLeft is the broken build of this file.
var futureEventsLeft = build{name: "events whose vt is in the future of the new server", sql: []edit{{
	"record_server", "if _highest > _now then", "if false then",
}}}

// turnsLeftInFuture is one that has groups take turns by when they were served, by whatever clock.
var turnsLeftInFuture = build{name: "groups that were served in the future", sql: []edit{{
	"admit_paced_events", "case when l.served_at > _latest then _latest else l.served_at end", "l.served_at",
}}}

// limitedFlows are limits of queues whose groups go on when the clock is set back, by the names of the queues.
var limitedFlows = map[string]string{
	"concurrency": `{"concurrency":1}`, "order": `{"order":true}`, "fair": `{"fair":true,"concurrency":1}`, "rate": `{"concurrency":1,"rate":{"limit":1000,"period":"1s"}}`,
}

// fakeClock is the environment of a server whose clock is offset.
func fakeClock(t *testing.T, off string) []string {
	t.Helper()
	for _, path := range []string{"/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1"} {
		if _, err := os.Stat(path); err == nil {
			return []string{"LD_PRELOAD=" + path, "FAKETIME=" + off, "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_RESET=1"}
		}
	}
	t.Fatal("this test needs libfaketime (for example `apt-get install faketime`)")
	return nil
}

// stepClock fails over to a server whose clock is offset.
func stepClock(off string) scenario {
	return func(t *testing.T, b build, l *ledger, rounds int) {
		t.Helper()
		for range rounds {
			one := newLedger() // of a database of its own
			one.clockSetBack = strings.HasPrefix(off, "-")
			stepOnce(t, off, b, one)
			l.add(one)
		}
	}
}

func stepOnce(t *testing.T, off string, b build, l *ledger) {
	t.Helper()
	primary := Start(t, Config{})
	pair := &Pair{Primary: primary, Standby: primary.Standby(Config{Environ: fakeClock(t, off)}), replication: Synchronous}
	pair.first = [2]*Server{pair.Primary, pair.Standby}
	pair.Primary.RequireSync(pair.Standby)
	q := startQueued(t, b, pair.URL())
	b.breakDatabase(t, pair.Primary)
	d := startLoad(t, l, q)
	d.awaitInserts(50)

	// Events that are ready when the clock steps.
	c := d.newClient(998)
	const waiting = 20
	for range waiting {
		if status := c.call(t.Context(), http.MethodPost, "/events?queue=waiting", map[string]any{}, nil); status != http.StatusCreated {
			t.Fatalf("inserting returned %d", status)
		}
	}
	// Leases that, by the old clock, end long after the failover.
	const leased = 10
	names := make([]map[string]any, leased)
	for i := range names {
		n := c.name()
		names[i] = map[string]any{"event": map[string]any{"n": n}, "queue": "held"}
	}
	var ids struct{ IDs []int64 }
	if status := c.call(t.Context(), http.MethodPost, "/events/batch", map[string]any{"events": names}, &ids); status != http.StatusCreated {
		t.Fatalf("inserting returned %d", status)
	}
	held := claimHeld(t, c, leased)
	if len(held) != leased {
		t.Fatalf("claimed %d events, want %d", len(held), leased)
	}
	pair.Primary.Kill()
	pair.Failover()
	promoted := time.Now()
	d.awaitInsertAfter(promoted)
	got := 0
	for got < waiting && time.Since(promoted) < startLimit {
		var claim struct{ Events []struct{ ID int64 } }
		c.call(t.Context(), http.MethodPost, "/claim", map[string]any{"queue": "waiting", "limit": waiting, "wait": "1s"}, &claim)
		got += len(claim.Events)
	}
	took := time.Since(promoted)
	t.Logf("clock %s: the ready events were claimed %v after the promotion", off, took)
	if took > recoveryLimit {
		l.violated("clock %s: the ready events were claimed %v after the promotion", off, took)
	}
	again := claimHeld(t, c, leased) // if the leases have ended by the new clock
	for _, e := range append(held, again...) {
		if c.call(t.Context(), http.MethodDelete, fmt.Sprintf("/events/%d?receipt=%s", e.ID, e.Receipt), nil, nil) == http.StatusNoContent {
			l.ackSucceeded(e)
		}
	}
	d.awaitInserts(20)
	d.finish(pair.Primary.AdminURL())
	q.kill()
	pair.Primary.Kill()
}

// movingClock is the environment of a server whose clock is what a file says, as an offset, and the path of that file. It is read anew with each look at the
// clock.
func movingClock(t *testing.T) (environ []string, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "clock")
	for dir := filepath.Dir(path); dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
		_ = os.Chmod(dir, 0o755) // PostgreSQL runs as another user
	}
	environ = slices.DeleteFunc(fakeClock(t, ""), func(entry string) bool { return strings.HasPrefix(entry, "FAKETIME=") })
	setClock(t, path, "+0")
	return append(environ, "FAKETIME_TIMESTAMP_FILE="+path, "FAKETIME_NO_CACHE=1"), path
}

// setClock sets a clock of movingClock.
func setClock(t *testing.T, path, off string) {
	t.Helper()
	next := path + ".next"
	err := os.WriteFile(next, []byte(off+"\n"), 0o644)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// setBack sets the clock of a server back by ten minutes while queued runs. Ready events must be claimed, and it must be said.
func setBack(t *testing.T, b build, l *ledger, _ int) {
	t.Helper()
	environ, clock := movingClock(t)
	server := Start(t, Config{Environ: environ})
	q, other := startQueued(t, b, server.URL()), startQueued(t, b, server.URL())
	b.breakDatabase(t, server)
	const waiting = 20
	q.send(http.MethodPost, "/events/batch", `{"events":[`+strings.TrimSuffix(strings.Repeat(`{"event":{},"queue":"waiting"},`, waiting), ",")+`]}`)
	const grouped = 6
	work := func(queue string) bool { // one event
		var claim struct{ Events []lease }
		_, body := other.post("/claim", `{"queue":"`+queue+`","wait":"1s"}`)
		if json.Unmarshal([]byte(body), &claim) != nil || len(claim.Events) == 0 {
			return false
		}
		status, _ := other.post(fmt.Sprintf("/events/%d/ack", claim.Events[0].ID), fmt.Sprintf(`{"receipt":%q}`, claim.Events[0].Receipt))
		return status == http.StatusOK
	}
	for queue, flow := range limitedFlows {
		q.send(http.MethodPut, "/queues/"+queue, `{"flow":`+flow+`}`)
		q.send(http.MethodPost, "/events/batch", `{"events":[`+strings.TrimSuffix(strings.Repeat(`{"event":{},"queue":"`+queue+`","group":"g"},`, grouped), ",")+`]}`)
		await(t, "the group is served", func() bool { return work(queue) })
		await(t, "the group is served again", func() bool { return work(queue) })
	}
	before := query[time.Time](t, server.AdminURL(), `select clock_timestamp()`)
	await(t, "the clock is recorded", func() bool {
		return query[bool](t, server.AdminURL(), `select s.clock >= $1 from agent.server s`, before)
	})
	setClock(t, clock, "-600")
	if now := query[time.Time](t, server.AdminURL(), `select clock_timestamp()`); before.Sub(now) < 5*time.Minute {
		t.Fatalf("the clock shows %s after %s: it was not set back", now, before)
	}
	began := time.Now()
	got := 0
	for got < waiting && time.Since(began) < startLimit {
		var claim struct{ Events []struct{ ID int64 } }
		_, body := other.post("/claim", `{"queue":"waiting","limit":20,"wait":"1s"}`)
		if err := json.Unmarshal([]byte(body), &claim); err == nil {
			got += len(claim.Events)
		}
		if time.Since(began) > recoveryLimit && !l.clean() {
			break
		}
		if time.Since(began) > recoveryLimit {
			l.violated("%d of %d ready events were claimed %v after the clock was set back", got, waiting, time.Since(began))
		}
	}
	t.Logf("%d ready events were claimed %v after the clock was set back", got, time.Since(began))
	for queue := range limitedFlows {
		done, since := 0, time.Now()
		for done < grouped-2 && time.Since(since) < recoveryLimit {
			if work(queue) {
				done, since = done+1, time.Now()
			}
		}
		if done < grouped-2 {
			l.violated("%d of %d events of a group with %s were claimed after the clock was set back", done, grouped-2, queue)
		}
	}
	if !l.clean() {
		return
	}
	for _, process := range []*queued{q, other} {
		await(t, "it is said", func() bool {
			said, _ := os.ReadFile(process.log)
			value := regexp.MustCompile(`(?m)^queued_database_clock_set_back_seconds_total ([0-9.e+]+)$`).FindStringSubmatch(process.metrics())
			if value == nil || !strings.Contains(string(said), "was set back") {
				return false
			}
			seconds, err := strconv.ParseFloat(value[1], 64)
			return err == nil && seconds > 590 && seconds < 620
		})
	}
}

// post makes a request and returns the answer. Status 0 means that there was none.
func (q *queued) post(path, body string) (status int, text string) {
	ctx, cancel := context.WithTimeout(q.t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+q.addr+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	answer, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(answer)
}

func TestReadyEventsAreClaimedWhenTheClockOfTheServerIsSetBack(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	runScenario(t, setBack, 0, 3)
}

func TestBrokenBuildWithEventsLeftInFutureIsCaughtByAClockSetBack(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, setBack, futureEventsLeft, 1)
}

func TestBrokenBuildWithTurnsLeftInFutureIsCaughtByAClockSetBack(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, setBack, turnsLeftInFuture, 1)
}

func claimHeld(t *testing.T, c *client, limit int) []*lease {
	t.Helper()
	var claim struct{ Events []*lease }
	c.call(t.Context(), http.MethodPost, "/claim", map[string]any{"queue": "held", "limit": limit, "invisible_for": "40s"}, &claim)
	c.ledger.claimed(claim.Events)
	return claim.Events
}

func TestNothingIsLostOrDoneTwiceWhenNewPrimaryClockIsAhead(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	runScenario(t, stepClock("+60"), 0, 5)
}

func TestReadyEventsAreClaimedAtOnceWhenNewPrimaryClockIsBehind(t *testing.T) {
	t.Parallel()
	inLongForm(t) // leases of the old server take a minute to end
	runScenario(t, stepClock("-60"), 0, 5)
}

func TestBrokenBuildWithEventsLeftInFutureIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, stepClock("-60"), futureEventsLeft, 1)
}

func TestBrokenBuildWithUnfencedAckIsCaughtByClockStep(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, stepClock("+60"), ackUnfenced, 2)
}
