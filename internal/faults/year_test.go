//go:build linux

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	yearBegins = "2030-10-26T00:30:00Z" // clocks go back in Europe and America in the nine days of the short form
	yearKey    = "the-admin-key-of-the-year"
	yearWait   = 10 * time.Second // of claims
	yearLease  = 4 * time.Hour
	yearOutage = 6 * time.Hour // of the endpoint of a push, every fifth day
	// wrongClock is by how much the clock of the second process is wrong: that of the database counts.
	wrongClock = -26 * time.Hour
	// yearStall is how long what is due may take, by the clock of this process.
	yearStall = 30 * time.Second
)

// A year is a service that lives through a year within an hour or two, as its clock jumps. A little of everything happens in each hour, and all of it is accounted for.
type year struct {
	t        *testing.T
	clock    *movedClock
	server   *Server
	conn     *pgx.Conn
	services [2]*queued
	jumps    time.Duration // how far the clock jumps
	client   *http.Client
	requests int // of the goroutine of the test

	expected time.Time // until when occurrences are expected

	gate      sync.RWMutex // workers read-lock it while they claim and work
	mu        sync.Mutex
	due       map[string]time.Time // when something has to come, by its name
	came      map[string]bool
	leases    map[int64]time.Time // until when an event is leased
	active    map[string]int      // the number of events of a group that are worked on
	next      map[string]int      // the event of an ordered group whose turn it is
	failed    []string            // the events that wait to be redriven
	hasFailed map[string]bool
	lostUntil time.Time // what a claim has leased whose answer was lost comes again by then
	outage    time.Time // until when the endpoint fails
	lost      int       // answers
	repeated  int       // pushes

	keys       map[string]time.Time // when keys of callers expire
	sessions   map[string]time.Time // when log-ins began, by their cookies
	unread     map[string]time.Time // when subscriptions that nobody reads are gone
	unclaimed  map[int64]time.Time  // when events that nobody claims have expired
	weeks      []week
	totals     week // since the start
	violations atomic.Int32
}

// yearEvent is an event as a worker gets it.
type yearEvent struct {
	ID         int64       `json:"id"`
	Group      string      `json:"group"`
	Receipt    string      `json:"receipt"`
	VT         time.Time   `json:"vt"`
	Claimed    []time.Time `json:"claimed"`
	Occurrence occurrence  `json:"occurrence"`
	Event      struct {
		N    string `json:"n"`
		Turn int    `json:"turn"`
	} `json:"event"`
}

type occurrence struct {
	ScheduledFor time.Time `json:"scheduled_for"`
}

// of returns the end of the name of an occurrence; empty: it is none.
func (o occurrence) of() string {
	if o.ScheduledFor.IsZero() {
		return ""
	}
	return " " + o.ScheduledFor.UTC().Format(time.RFC3339)
}

func (y *year) violated(format string, args ...any) {
	y.violations.Add(1)
	y.t.Errorf("%s: %s", y.clock.now().Format(time.DateTime), fmt.Sprintf(format, args...))
}

// locked calls do with the lock of the account.
func (y *year) locked(do func()) {
	y.mu.Lock()
	defer y.mu.Unlock()
	do()
}

// expect says that something has to come once, from a time on.
func (y *year) expect(due time.Time, name string) { y.locked(func() { y.due[name] = due }) }

// note says that something has come. Pushes may come again, and are counted.
func (y *year) note(name string, isPush bool) {
	y.locked(func() {
		_, isDue := y.due[name]
		switch {
		case y.came[name] && isPush:
			y.repeated++
		case y.came[name]:
			y.violated("%s came twice", name)
		case !isDue:
			y.violated("%s came, and nobody had sent it", name)
		}
		delete(y.due, name)
		y.came[name] = true
	})
}

// overdue returns what should have come by a time.
func (y *year) overdue(by time.Time) (names []string) {
	y.locked(func() {
		for name, due := range y.due {
			if !due.After(by) {
				names = append(names, name)
			}
		}
	})
	slices.Sort(names)
	return names
}

// ask makes a request of a service. Status 0: there was no answer.
func (y *year) ask(ctx context.Context, q *queued, method, path string, body any, header ...string) (status int, answer []byte) {
	text, err := json.Marshal(body)
	if err != nil {
		y.t.Error(err)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+q.addr+path, bytes.NewReader(text))
	if err != nil {
		y.t.Error(err)
		return 0, nil
	}
	for i, all := 0, append([]string{"Content-Type", "application/json", "Authorization", "Bearer " + yearKey}, header...); i < len(all); i += 2 {
		r.Header.Set(all[i], all[i+1])
	}
	res, err := y.client.Do(r)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer func() { _ = res.Body.Close() }()
	if answer, err = io.ReadAll(res.Body); err != nil {
		return 0, []byte(err.Error())
	}
	return res.StatusCode, answer
}

// isUnknown reports whether a request may or may not have taken effect: the clock jumped while it was under way.
func isUnknown(status int) bool { return status == 0 || status == http.StatusServiceUnavailable }

// repeat makes a request until its outcome is known.
func (y *year) repeat(q *queued, method, path string, body any, header ...string) (status int, answer []byte) {
	for began := time.Now(); ; pause(20 * time.Millisecond) {
		if status, answer = y.ask(context.Background(), q, method, path, body, header...); !isUnknown(status) || time.Since(began) > yearStall {
			return status, answer
		}
		y.locked(func() { y.lost++ })
	}
}

// must makes a request, which has to succeed, of the services in turn.
func (y *year) must(method, path string, body any, header ...string) []byte {
	y.requests++
	status, answer := y.repeat(y.services[y.requests%2], method, path, body, header...)
	if status >= http.StatusMultipleChoices || status == 0 {
		y.violated("%s %s: HTTP %d %s", method, path, status, answer)
	}
	return answer
}

// mustTwice is must, and the same of the other service, as of a caller who has lost the answer.
func (y *year) mustTwice(method, path string, body any, header ...string) {
	first := y.must(method, path, body, header...)
	if again := y.must(method, path, body, header...); !bytes.Equal(first, again) {
		y.violated("%s %s was answered %s, and %s when it was repeated", method, path, first, again)
	}
}

// claim has a worker claim once, and work.
func (y *year) claim(ctx context.Context, q *queued, queue string) {
	y.gate.RLock()
	defer y.gate.RUnlock()
	status, answer := y.ask(ctx, q, http.MethodPost, "/claim", map[string]any{"queue": queue, "limit": 10, "wait": yearWait.String(), "invisible_for": yearLease.String()},
		"X-Worker", y.clock.now().Format("worker-0102"))
	var claim struct{ Events []yearEvent }
	switch {
	case ctx.Err() != nil:
		return
	case isUnknown(status):
		y.locked(func() { y.lost++; y.lostUntil = y.clock.now().Add(yearLease) })
	case status != http.StatusOK || json.Unmarshal(answer, &claim) != nil:
		y.violated("a claim of %s got HTTP %d %s", queue, status, answer)
	}
	for i := range claim.Events {
		y.work(q, queue, &claim.Events[i]) //nolint:contextcheck // what has been claimed is done to its end
	}
}

// work does what a worker does with an event, and checks that it may have it.
func (y *year) work(q *queued, queue string, e *yearEvent) {
	name, group, begun := queue+" "+e.Event.N+e.Occurrence.of(), queue+" "+e.Group, e.Claimed[len(e.Claimed)-1]
	var isFirst bool
	y.locked(func() {
		y.active[group]++
		isFirst = !y.hasFailed[name]
		until, isLeased := y.leases[e.ID]
		y.leases[e.ID] = e.VT
		switch {
		case isLeased && begun.Before(until):
			y.violated("%s was claimed at %s, and is leased until %s", name, begun, until)
		case queue == "limited" && y.active[group] > 1:
			y.violated("two events of the group %q were leased at once", group)
		case queue == "ordered" && y.next[group] != e.Event.Turn:
			y.violated("%s of %q was claimed before its turn", name, group)
		case begun.Before(e.Occurrence.ScheduledFor):
			y.violated("%s was claimed at %s", name, begun)
		}
	})
	verb, body := "ack", map[string]any{"receipt": e.Receipt}
	switch {
	case queue == "flaky" && isFirst:
		verb, body["error"], body["retryable"] = "nack", "it fails at first", false
	case queue == "plain" && e.Event.Turn%6 == 0 && isFirst:
		verb, body["error"], body["delay"] = "nack", "later", "3h"
	}
	y.locked(func() { y.active[group]-- })
	status, answer := y.repeat(q, http.MethodPost, fmt.Sprintf("/events/%d/%s", e.ID, verb), body)
	switch {
	case status == http.StatusConflict && y.clock.now().After(e.VT): // it comes again
	case status != http.StatusOK:
		y.violated("%s of %s got HTTP %d %s", verb, name, status, answer)
	case verb == "ack":
		y.locked(func() { y.next[group]++ })
		y.note(name, false)
	default:
		y.locked(func() {
			y.hasFailed[name], y.due[name] = true, y.clock.now().Add(3*time.Hour)
			delete(y.leases, e.ID)
			if queue == "flaky" {
				y.failed = append(y.failed, name)
				delete(y.due, name) // until it is redriven
			}
		})
	}
}

// push is the endpoint.
func (y *year) push(w http.ResponseWriter, r *http.Request) {
	var body struct{ Data struct{ N string } }
	err := json.NewDecoder(r.Body).Decode(&body)
	var isOut bool
	y.locked(func() { isOut = y.clock.now().Before(y.outage) })
	if err != nil || isOut {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusNoContent)
	y.note("pushed "+body.Data.N, true)
}

// setUp makes what there is for the whole year.
func (y *year) setUp(endpoint string) {
	for path, body := range map[string]string{
		"/queues/ordered": `{"flow":{"order":true}}`, "/queues/limited": `{"flow":{"concurrency":1}}`, "/queues/flaky": `{"dead_letter":{"queue":"flaky.dead"}}`,
		"/queues/fired": `{"history_retention":"48h"}`, "/queues/pushed/push": fmt.Sprintf(`{"url":%q}`, endpoint),
		"/sources/shop":         `{"kind":"token","queue":"hooked","key":"{/n}","secrets":["the-secret-of-the-shop"],"keep_raw":"24h","dedup_for":"48h"}`,
		"/subscriptions/reader": `{"filters":[{"topics":["order.*","report.*"]}]}`, "/subscriptions/delivered": `{"filters":[{"topics":["order.*"]}],"deliver":{"queue":"delivered"}}`,
	} {
		y.must(http.MethodPut, path, json.RawMessage(body))
	}
	for _, s := range yearSchedules {
		y.must(http.MethodPost, "/schedules", s.body(), "Idempotency-Key", s.name)
	}
}

// trickle has a little of everything happen in an hour.
func (y *year) trickle(step int) {
	now, n := y.clock.now(), strconv.Itoa(step)
	every := func(period, offset time.Duration) bool { // in the step that has the time
		return (time.Duration(step)*y.jumps+period-offset)%period < y.jumps
	}
	if every(120*time.Hour, 106*time.Hour) {
		y.locked(func() { y.outage = now.Add(yearOutage) })
	}
	insert := func(due time.Time, queue, options string, turn int) {
		y.expect(due, queue+" "+n)
		y.mustTwice(http.MethodPost, "/events?queue="+queue+options, map[string]any{"n": n, "turn": turn}, "Idempotency-Key", n)
	}
	insert(now, "plain", "", step)
	insert(now, "ordered", fmt.Sprint("&group=", step%5), step/5)
	insert(now, "limited", now.Format("&group=0102"), step)
	pushed := now
	if now.Before(y.outage.Add(yearOutage)) { // the endpoint is tried again now and then, and events by the backoff of the queue
		pushed = y.outage.Add(30 * time.Hour)
	}
	insert(pushed, "pushed", "", step)
	delay := time.Duration(5+step%40) * time.Hour
	insert(now.Add(delay), "later", "&delay="+delay.String(), step)
	y.expect(now, "hooked "+n)
	y.mustTwice(http.MethodPost, "/in/shop", map[string]any{"n": n}, "Authorization", "the-secret-of-the-shop")
	y.expect(now, "delivered "+n)
	y.expect(now, "read "+n)
	y.mustTwice(http.MethodPost, "/topics/order.placed", map[string]any{"n": n}, "Idempotency-Key", n)
	var made struct {
		ID        int64
		Key       string
		ExpiresAt time.Time `json:"expires_at"`
	}
	if every(6*time.Hour, 0) {
		insert(now, "flaky", "", step)
		_ = json.Unmarshal(y.must(http.MethodPost, "/events?queue=unclaimed&expires_at="+now.Add(5*time.Hour).Format(time.RFC3339), map[string]any{}, "Idempotency-Key", n), &made)
		y.unclaimed[made.ID] = now.Add(7 * time.Hour)
	}
	const day = 24 * time.Hour
	if every(day, 3*time.Hour) {
		y.locked(func() {
			for _, name := range y.failed {
				y.due[name] = now
			}
			y.failed = nil
		})
		y.must(http.MethodPost, "/redrives", json.RawMessage(`{"queue":"flaky.dead","to":"origin"}`), "Idempotency-Key", n)
	}
	if every(day, 5*time.Hour) {
		_ = json.Unmarshal(y.must(http.MethodPost, "/keys", map[string]any{"name": n, "scopes": []string{"publish"}, "expires_at": now.Add(30 * time.Hour)}), &made)
		y.keys[made.Key] = made.ExpiresAt
	}
	if every(day, 7*time.Hour) {
		y.logIn(now)
	}
	if every(day, 9*time.Hour) {
		y.must(http.MethodPut, "/subscriptions/unread-"+n, json.RawMessage(`{"filters":[{"topics":["order.*"]}],"expires_after":"3h"}`))
		y.unread["/subscriptions/unread-"+n] = now.Add(5 * time.Hour)
	}
}

// logIn begins a session.
func (y *year) logIn(now time.Time) {
	res, err := y.client.PostForm("http://"+y.services[0].addr+"/ui/login", url.Values{"key": {yearKey}})
	if err != nil {
		y.violated("logging in: %v", err)
		return
	}
	_ = res.Body.Close()
	for _, cookie := range res.Cookies() {
		y.sessions[cookie.Name+"="+cookie.Value] = now
	}
	if len(res.Cookies()) == 0 {
		y.violated("logging in got HTTP %d, and no cookie", res.StatusCode)
	}
}

// read reads the subscription, and commits what it has got.
func (y *year) read() {
	for {
		var page struct {
			Events []struct {
				Meta  struct{ Occurrence occurrence }
				Event struct{ N string }
			}
			Cursor string
			Gap    json.RawMessage
		}
		answer := y.must(http.MethodPost, "/subscriptions/reader/read", map[string]any{"limit": 100})
		if err := json.Unmarshal(answer, &page); err != nil || page.Gap != nil {
			y.violated("a read was answered %s", answer)
		}
		if len(page.Events) == 0 {
			return
		}
		y.must(http.MethodPost, "/subscriptions/reader/commit", map[string]any{"cursor": page.Cursor})
		for _, e := range page.Events {
			y.note("read "+e.Event.N+e.Meta.Occurrence.of(), false)
		}
	}
}

// look checks what ends by itself, a minute before its end and after it, with both services.
func (y *year) look() {
	now := y.clock.now()
	check := func(ends time.Time, before, after int, path string, header ...string) (isOver bool) {
		want := before
		if isOver = now.After(ends.Add(time.Minute)); isOver {
			want = after
		}
		if want == 0 || now.Sub(ends).Abs() < time.Minute {
			return false
		}
		for i, q := range y.services {
			if status, answer := y.repeat(q, http.MethodGet, path, nil, header...); status != want {
				y.violated("%s, which ends at %s: process %d answered HTTP %d, want %d: %.200s", path, ends, i, status, want, answer)
			}
		}
		return isOver
	}
	maps.DeleteFunc(y.keys, func(key string, ends time.Time) bool {
		return check(ends, http.StatusOK, http.StatusUnauthorized, "/keys/self", "Authorization", "Bearer "+key)
	})
	maps.DeleteFunc(y.sessions, func(cookie string, began time.Time) bool {
		return check(began.Add(12*time.Hour), http.StatusOK, http.StatusSeeOther, "/ui/audit", "Cookie", cookie, "Authorization", "")
	})
	maps.DeleteFunc(y.unread, func(path string, ends time.Time) bool { return check(ends, 0, http.StatusNotFound, path) })
	maps.DeleteFunc(y.unclaimed, func(id int64, ends time.Time) bool {
		if now.Before(ends) {
			return false
		}
		if answer := y.must(http.MethodGet, fmt.Sprint("/events/", id), nil); !bytes.Contains(answer, []byte(`"outcome":"expired"`)) {
			y.violated("nobody has claimed the event %d in time, and it has not expired: %s", id, answer)
		}
		return true
	})
}

// drain waits until everything has come that is due. What a claim has leased whose answer was lost comes later.
func (y *year) drain() {
	for began := time.Now(); ; pause(10 * time.Millisecond) {
		now := y.clock.now()
		left := y.overdue(now)
		if slices.ContainsFunc(left, func(name string) bool { return strings.HasPrefix(name, "read ") }) {
			y.read()
		}
		var mayBeLeased bool
		y.locked(func() { mayBeLeased = now.Before(y.lostUntil) })
		if len(left) == 0 || mayBeLeased && time.Since(began) > time.Second && len(y.overdue(now.Add(-2*yearLease))) == 0 {
			return
		}
		if time.Since(began) > yearStall {
			y.violated("%d are due and have not come within %v, such as %q", len(left), yearStall, left[:min(5, len(left))])
			y.locked(func() {
				maps.DeleteFunc(y.due, func(name string, _ time.Time) bool { return slices.Contains(left, name) })
			})
			return
		}
	}
}

// jump moves the clock on. All time limits are over then. Waiting claims end before, and statements do; now and then the clock jumps in the midst of them.
func (y *year) jump(isAmid bool) {
	by := y.jumps
	if !isAmid {
		const first = yearWait + time.Second
		y.clock.move(first)
		by -= first
		y.gate.Lock()
		defer y.gate.Unlock()
		isBusy := true
		for began := time.Now(); isBusy && time.Since(began) < 2*time.Second; pause(5 * time.Millisecond) {
			if err := y.conn.QueryRow(y.t.Context(), `select exists (select from pg_stat_activity a where a.datname = current_database() and a.state <> 'idle' and a.pid <> pg_backend_pid())`).
				Scan(&isBusy); err != nil {
				y.t.Fatal(err)
			}
		}
	}
	y.clock.move(by)
}

// live lets a time pass, in jumps with an interval between them.
func (y *year) live(length, interval time.Duration, happens bool) {
	for step := range int(length / y.jumps) {
		began := time.Now()
		y.expectOccurrences(y.clock.now().Add(y.jumps + time.Minute)) // as the clock runs on while it jumps
		y.jump(step%10 == 9)
		if happens {
			y.trickle(step)
		}
		if step%10 != 8 {
			y.drain()
		}
		y.look()
		if happens && time.Duration(step+1)*y.jumps%(7*24*time.Hour) < y.jumps {
			y.measure()
		}
		if y.violations.Load() > 20 {
			return
		}
		pause(interval - time.Since(began))
	}
}

// TestYearPassesAndNothingIsLostOrGrows has a year pass, or nine days in the short form.
func TestYearPassesAndNothingIsLostOrGrows(t *testing.T) {
	t.Parallel()
	length := yearSetting(t, "QUEUED_YEAR_LENGTH", 9*24*time.Hour, 365*24*time.Hour)
	interval := yearSetting(t, "QUEUED_YEAR_INTERVAL", 200*time.Millisecond, 400*time.Millisecond)
	begins, err := time.Parse(time.RFC3339, yearBegins)
	if err != nil {
		t.Fatal(err)
	}
	y := &year{
		t: t, jumps: yearSetting(t, "QUEUED_YEAR_JUMP", 3*time.Hour, time.Hour), client: &http.Client{
			Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		due: map[string]time.Time{}, came: map[string]bool{}, leases: map[int64]time.Time{}, active: map[string]int{}, next: map[string]int{}, hasFailed: map[string]bool{},
		keys: map[string]time.Time{}, sessions: map[string]time.Time{}, unread: map[string]time.Time{}, unclaimed: map[int64]time.Time{},
	}
	y.clock = newMovedClock(t, begins)
	y.server = Start(t, Config{Environ: append(y.clock.environ(0), "LD_PRELOAD="+y.clock.preload), Settings: map[string]string{"autovacuum_naptime": "5s"}})
	if y.conn, err = pgx.Connect(t.Context(), y.server.AdminURL()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = y.conn.Close(context.Background()) })
	endpoint := httptest.NewServer(http.HandlerFunc(y.push))
	t.Cleanup(endpoint.Close)
	for i, wrong := range []time.Duration{0, wrongClock} {
		// Connections are replaced once a day instead of once an hour, which would be most of what an hour costs.
		y.services[i] = startQueued(t, clockMoved, y.server.URL()+"&pool_max_conn_lifetime=24h&pool_max_conn_idle_time=24h", append(y.clock.environ(wrong), "QUEUED_API_KEY="+yearKey,
			"QUEUED_SECRET_KEY=a-key-that-seals-secrets", "QUEUED_PUSH_ALLOW=127.0.0.1", "QUEUED_MAX_ATTEMPTS=5", "QUEUED_SWEEP_INTERVAL=10s", "QUEUED_HISTORY_RETENTION=72h",
			"QUEUED_OCCURRENCE_RETENTION=48h", "QUEUED_AUDIT_RETENTION=48h")...)
	}
	y.setUp(endpoint.URL)
	y.expected = y.clock.now()
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	for _, queue := range []string{"plain", "ordered", "limited", "limited", "hooked", "delivered", "fired", "later", "flaky"} {
		working.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				y.claim(ctx, y.services[i%2], queue)
			}
		})
	}
	t.Cleanup(func() { stop(); working.Wait() })
	began := time.Now()
	y.live(length, interval, true)
	y.live(48*time.Hour, interval, false) // what is delayed comes
	y.drain()
	stop()
	working.Wait()
	t.Logf("%s passed in %s: %d came, %d answers were lost, %d pushes repeated", length, time.Since(began).Round(time.Second), len(y.came), y.lost, y.repeated)
	if left := y.overdue(y.clock.now()); len(left) > 0 {
		y.violated("%d have not come, such as %q", len(left), left[:min(5, len(left))])
	}
	if y.repeated > len(y.came)/100 {
		y.violated("%d pushes were repeated", y.repeated)
	}
	if log, err := os.ReadFile(y.server.logFile()); err != nil || bytes.Contains(log, []byte("terminated by signal")) {
		y.violated("PostgreSQL has crashed (%v)", err)
	}
	y.compare()
}

// yearSetting returns the duration of a variable, or that of the form.
func yearSetting(t *testing.T, name string, short, long time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(name)
	if text == "" && form() == longForm {
		return long
	} else if text == "" {
		return short
	}
	d, err := time.ParseDuration(text)
	if err != nil || name == "QUEUED_YEAR_JUMP" && (d < time.Hour || d > yearLease) {
		t.Fatalf("%s is %q; want a duration such as 336h, of a jump from 1h to %s", name, text, yearLease)
	}
	return d
}
