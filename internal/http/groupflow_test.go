package http

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// A limitedQueue is a queue whose groups are limited, with all that a test holds of it.
type limitedQueue struct {
	*environment
	conn    *pgx.Conn
	name    string
	limit   int           // of the group
	patient time.Duration // for how long a claim waits for what has to come
	held    []seenEvent   // leased
}

// flowSettings are those of the server of these tests: a claim that nobody wakes waits for ever.
var flowSettings = settings{queue: func(cfg *queue.Config) { cfg.PollInterval = time.Hour }}

// newLimitedQueue returns a queue whose group is in the payload, with further members of its policy.
func newLimitedQueue(h *environment, conn *pgx.Conn, name string, limit int, members string) *limitedQueue {
	h.t.Helper()
	for _, beside := range []string{"", ".from", ".failing", ".dead", ".before"} {
		h.placeOn(0, name+beside)
	}
	h.call("PUT", "/queues/"+name, fmt.Sprintf(`{"group_from":"/tenant","flow":{"concurrency":%d}%s}`, limit, members)).want(200)
	return &limitedQueue{environment: h, conn: conn, name: name, limit: limit, patient: time.Minute}
}

// sql runs a statement.
func (q *limitedQueue) sql(statement string, args ...any) {
	q.t.Helper()
	if _, err := q.conn.Exec(q.t.Context(), statement, args...); err != nil {
		q.t.Fatalf("%s: %v", statement, err)
	}
}

// left returns how many events are in the queue.
func (q *limitedQueue) left() int {
	q.t.Helper()
	return pgtest.Query[int](q.t, q.conn, `select count(*)::int4 from agent.event where queue = $1`, q.name)
}

// post inserts events of the group, with these parameters.
func (q *limitedQueue) post(n int, query string) (ids []int64) {
	q.t.Helper()
	for range n {
		ids = append(ids, decode[seenEvent](q.call("POST", "/events?queue="+q.name+query, `{"tenant":"g"}`).want(201)).ID)
	}
	return ids
}

// claim takes what there is, and fails if that is more than the limit allows.
func (q *limitedQueue) claim(wait time.Duration) ([]seenEvent, error) {
	return q.note(<-q.waiting(wait))
}

// waiting begins a claim that waits.
func (q *limitedQueue) waiting(wait time.Duration) <-chan []seenEvent {
	got := make(chan []seenEvent, 1)
	body := fmt.Sprintf(`{"queue":%q,"limit":100,"max_attempts":100,"wait":%q}`, q.name, wait)
	go func() {
		var page seenPage
		res, err := q.http.Do(q.request(context.WithoutCancel(q.t.Context()), "POST", "/claim", body))
		if err == nil {
			text, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			_ = json.Unmarshal(text, &page)
		}
		got <- page.Events
	}()
	return got
}

// note remembers what a claim has got.
func (q *limitedQueue) note(events []seenEvent) ([]seenEvent, error) {
	q.held = append(q.held, events...)
	if len(q.held) > q.limit {
		return events, fmt.Errorf("%d events are leased at once, the limit is %d", len(q.held), q.limit)
	}
	return events, nil
}

// want claims and fails unless that gets exactly n events.
func (q *limitedQueue) want(when string, n int, got []seenEvent, err error) error {
	if err == nil && len(got) != n {
		err = fmt.Errorf("%d events were claimed, want %d", len(got), n)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", when, err)
	}
	return nil
}

// wantNothing fails if there is something to claim.
func (q *limitedQueue) wantNothing(when string) error {
	got, err := q.claim(0)
	return q.want(when, 0, got, err)
}

// drop forgets an event, which is not leased any more.
func (q *limitedQueue) drop(id int64) {
	q.held = slices.DeleteFunc(q.held, func(e seenEvent) bool { return e.ID == id })
}

// ackAll ends what is held, one by one: after each the next one has its turn, if there is one.
func (q *limitedQueue) ackAll() error {
	for len(q.held) > 0 {
		e := q.held[0]
		q.call("POST", fmt.Sprintf("/events/%d/ack", e.ID), `{"receipt":"`+e.Receipt+`"}`).want(200)
		q.drop(e.ID)
		left := q.left()
		got, err := q.claim(0)
		if err := q.want("while the queue is emptied", min(1, max(0, left-len(q.held)+len(got))), got, err); err != nil {
			return err
		}
	}
	if left := q.left(); left > 0 {
		return fmt.Errorf("%d events are left, and nobody gets them", left)
	}
	return nil
}

// eventuallyIn waits until a queue has so many events.
func (q *limitedQueue) eventuallyIn(n int) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { //nolint:forbidigo // no signal announces it
		is := q.left()
		switch {
		case is == n:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("the queue has %d events, want %d", is, n)
		}
	}
}

// makers are ways in which an event of the group comes into the queue. Each is called twice, with 1 and 2.
var makers = map[string]func(q *limitedQueue, i int){
	"an insert":          func(q *limitedQueue, _ int) { q.post(1, "") },
	"a delayed insert":   func(q *limitedQueue, _ int) { q.post(1, "&delay=1us") },
	"an insert with key": func(q *limitedQueue, i int) { q.post(1, fmt.Sprintf("&key=k%d", i)) },
	"a batch": func(q *limitedQueue, _ int) {
		q.call("POST", "/events/batch", `{"events":[{"event":{"n":1},"queue":"elsewhere"},{"event":{},"group":"g","queue":"`+q.name+`"}]}`).want(201)
	},
	"a batch with keys": func(q *limitedQueue, i int) {
		q.call("POST", "/events/batch", fmt.Sprintf(`{"events":[{"event":{"n":1},"queue":"elsewhere"},{"event":{},"group":"g","key":"k%d","queue":%q}]}`, i, q.name)).want(201)
	},
	"SQL": func(q *limitedQueue, _ int) { q.sql(`select agent.insert_event('{"tenant": "g"}', $1)`, q.name) },
	"a row by hand": func(q *limitedQueue, _ int) {
		q.sql(`insert into agent.event (event, queue, group_key) values ('{}', $1, 'g')`, q.name)
		q.sql(`select agent.notify_queues(array[$1])`, q.name)
	},
	"a CloudEvent": func(q *limitedQueue, i int) {
		q.with("Content-Type", "application/cloudevents+json").call("POST", "/cloudevents?queue="+q.name,
			fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/s","type":"t","partitionkey":"g"}`, i)).want(201)
	},
	"a source": func(q *limitedQueue, _ int) {
		q.try("PUT", "/sources/"+q.name, `{"kind":"token","secrets":["0123456789abcdef"],"queue":"`+q.name+`","group":"{/tenant}"}`)
		q.with("Authorization", "Bearer 0123456789abcdef").call("POST", "/in/"+q.name, `{"tenant":"g"}`).want(200)
	},
	"a schedule": func(q *limitedQueue, _ int) {
		at := q.call("POST", "/schedules", `{"event":{},"cron":"@yearly","timezone":"UTC","group":"g","queue":"`+q.name+`"}`).want(201).header.Get("Location")
		q.call("POST", at+"/run", "").want(201)
	},
	"a schedule that is due": func(q *limitedQueue, _ int) {
		at := q.call("POST", "/schedules", `{"event":{"tenant":"g"},"cron":"@yearly","timezone":"UTC","queue":"`+q.name+`"}`).want(201).header.Get("Location")
		q.sql(`update agent.schedule set next_at = now() - interval '1 second' where id = $1::text::int8`, strings.TrimPrefix(at, "/schedules/"))
		q.sql(`select pg_notify('agent_schedule', '')`)
	},
	"a delivery": func(q *limitedQueue, _ int) {
		q.try("PUT", "/subscriptions/"+q.name, `{"filters":[{"topics":["`+q.name+`"]}],"deliver":{"queue":"`+q.name+`","group_from":"key"}}`)
		q.call("POST", "/topics/"+q.name+"?key=g", `{}`).want(201)
	},
	"a move": func(q *limitedQueue, _ int) {
		q.call("POST", "/events?queue="+q.name+".from", `{"tenant":"g"}`).want(201)
		q.call("POST", "/queues/"+q.name+".from/move", `{"to":"`+q.name+`"}`).want(200)
	},
	"a requeue": func(q *limitedQueue, _ int) {
		q.call("POST", fmt.Sprintf("/history/%d/requeue", q.ended("done")), "").want(201)
	},
	"a requeue by filter": func(q *limitedQueue, _ int) {
		q.ended("done")
		q.call("POST", "/history/requeue", `{"queue":"`+q.name+`"}`).want(200)
	},
	"a redrive": func(q *limitedQueue, _ int) {
		q.ended("done")
		q.call("POST", "/redrives", `{"filter":{"queue":"`+q.name+`"},"rate":1000}`).want(202)
	},
	"a dead letter": func(q *limitedQueue, _ int) {
		q.call("PUT", "/queues/"+q.name+".failing", `{"dead_letter":{"queue":"`+q.name+`"}}`).want(200)
		q.fail(q.name + ".failing")
	},
	"a redrive of dead letters": func(q *limitedQueue, _ int) {
		q.call("PUT", "/queues/"+q.name+".failing", `{"dead_letter":{"queue":"`+q.name+`.dead"}}`).want(200)
		q.fail(q.name + ".failing")
		q.call("POST", "/redrives", `{"queue":"`+q.name+`.dead","to":"`+q.name+`","rate":1000}`).want(202)
	},
}

// fail has an event of the group fail in another queue.
func (q *limitedQueue) fail(in string) {
	q.t.Helper()
	q.call("POST", "/events?group=g&queue="+in, `{}`).want(201)
	e := decode[seenPage](q.call("POST", "/claim", `{"queue":"`+in+`"}`).want(200)).Events[0]
	q.call("POST", fmt.Sprintf("/events/%d/nack", e.ID), `{"receipt":"`+e.Receipt+`","final":true}`).want(200)
}

// ended returns an event of the group that has ended in a queue of its own, and is in history as one of this queue.
func (q *limitedQueue) ended(outcome string) int64 {
	q.t.Helper()
	id := decode[seenEvent](q.call("POST", "/events?group=g&queue="+q.name+".before", `{}`).want(201)).ID
	q.sql(`select agent.delete_event(e.id) from agent.claim_events($1 || '.before') e`, q.name)
	q.sql(`update agent.event_hist set queue = $1, outcome = $2 where id = $3`, q.name, outcome, id)
	return id
}

// testMaker has two events made in a way while the only slot of their group is taken, and returns the promise that is broken.
func testMaker(q *limitedQueue, made func(q *limitedQueue, i int)) error {
	q.post(1, "&type=first")
	got, err := q.claim(0)
	if err := q.want("the first one", 1, got, err); err != nil {
		return err
	}
	waiting := q.waiting(q.patient)
	for i := 1; i <= 2; i++ {
		made(q, i)
		if err := q.eventuallyIn(1 + i); err != nil {
			return err
		}
	}
	if err := q.wantNothing("while the slot is taken"); err != nil {
		return err
	}
	for i := range 2 {
		select {
		case got := <-waiting:
			return fmt.Errorf("%d events were claimed while the slot was taken", len(got))
		default:
		}
		q.call("DELETE", fmt.Sprintf("/events/%d?receipt=%s", q.held[0].ID, q.held[0].Receipt), "").want(204)
		q.held = nil
		got, err := q.note(<-waiting)
		if err := q.want(fmt.Sprintf("the claim that waits for event %d", i+1), 1, got, err); err != nil {
			return err
		}
		waiting = q.waiting(q.patient / time.Duration(1+i*1000))
		if err := q.wantNothing("after the hand-over"); err != nil {
			return err
		}
	}
	got, err = q.note(<-waiting)
	if err := q.want("at last", 0, got, err); err != nil {
		return err
	}
	return q.ackAll()
}

// An ender is a way in which a slot becomes free, of the group of a queue with a limit of 2 and five events, of which it gets the first one.
type ender struct {
	policy    string // further members
	query     string // of the first event
	unclaimed bool   // nothing is claimed before; else two are
	end       func(q *limitedQueue, e seenEvent)
	keeps     bool // the event is still there: it may be claimed next
}

var enders = map[string]ender{
	"an ack": {end: func(q *limitedQueue, e seenEvent) {
		q.call("POST", fmt.Sprintf("/events/%d/ack", e.ID), `{"receipt":"`+e.Receipt+`"}`).want(200)
	}},
	"a batch of acks": {end: func(q *limitedQueue, e seenEvent) {
		q.call("POST", "/ack", fmt.Sprintf(`{"events":[{"id":%d,"receipt":%q}]}`, e.ID, e.Receipt)).want(200)
	}},
	"an ack by SQL": {end: func(q *limitedQueue, e seenEvent) { q.sql(`select agent.delete_event($1, $2)`, e.ID, e.Receipt) }},
	"a batch by SQL": {end: func(q *limitedQueue, e seenEvent) {
		q.sql(`select agent.delete_events(array[$1::int8], array[$2])`, e.ID, e.Receipt)
	}},
	"an unfenced ack": {end: func(q *limitedQueue, e seenEvent) { q.call("DELETE", fmt.Sprintf("/events/%d", e.ID), "").want(204) }},
	"a nack": {keeps: true, end: func(q *limitedQueue, e seenEvent) {
		q.call("POST", fmt.Sprintf("/events/%d/nack", e.ID), `{"receipt":"`+e.Receipt+`"}`).want(200)
	}},
	"a nack with a delay": {keeps: true, end: func(q *limitedQueue, e seenEvent) {
		q.call("POST", fmt.Sprintf("/events/%d/nack", e.ID), `{"receipt":"`+e.Receipt+`","delay":"1h"}`).want(200)
	}},
	"a nack by SQL": {keeps: true, end: func(q *limitedQueue, e seenEvent) { q.sql(`select agent.nack_event($1, $2)`, e.ID, e.Receipt) }},
	"a final nack": {end: func(q *limitedQueue, e seenEvent) {
		q.call("POST", fmt.Sprintf("/events/%d/nack", e.ID), `{"receipt":"`+e.Receipt+`","final":true}`).want(200)
	}},
	"a dead letter": {policy: `,"dead_letter":{"queue":"dead"}`, end: func(q *limitedQueue, e seenEvent) {
		q.call("POST", fmt.Sprintf("/events/%d/nack", e.ID), `{"receipt":"`+e.Receipt+`","final":true}`).want(200)
	}},
	"a release": {keeps: true, end: func(q *limitedQueue, e seenEvent) { q.sql(`select agent.release_event($1, $2)`, e.ID, e.Receipt) }},
	"a lease that is lost": {keeps: true, end: func(q *limitedQueue, e seenEvent) {
		q.sql(`update agent.event set vt = now() where id = $1`, e.ID)
		q.sql(`select agent.notify_queues(array[$1])`, q.name) // nothing tells a claim of a row that was written
	}},
	"a sweep of the exhausted": {query: "&max_attempts=1", end: func(q *limitedQueue, e seenEvent) {
		q.sql(`update agent.event set vt = now() where id = $1`, e.ID)
		q.call("POST", "/sweep", `{"queue":"`+q.name+`"}`).want(200)
	}},
	"a nack of the exhausted": {query: "&max_attempts=1", end: func(q *limitedQueue, e seenEvent) {
		q.sql(`select agent.nack_event($1, $2)`, e.ID, e.Receipt)
		q.call("POST", "/sweep", `{"queue":"`+q.name+`"}`).want(200)
	}},
	"the expiry of an event": {end: func(q *limitedQueue, e seenEvent) {
		q.sql(`update agent.event set vt = now(), expires_at = now() where id = $1`, e.ID)
		q.call("POST", "/sweep", `{"queue":"`+q.name+`"}`).want(200)
	}},
	"the expiry of one that nobody claims": {unclaimed: true, end: func(q *limitedQueue, e seenEvent) {
		q.sql(`update agent.event set expires_at = now() where id = $1`, e.ID)
		q.call("POST", "/sweep", `{"queue":"`+q.name+`"}`).want(200)
	}},
	"a sweep by age": {unclaimed: true, end: func(q *limitedQueue, e seenEvent) {
		q.sql(`update agent.event set vt = now() - interval '1 day' where id = $1`, e.ID)
		q.call("POST", "/sweep", `{"queue":"`+q.name+`","max_vt_age":"1h"}`).want(200)
	}},
	"a cancellation": {unclaimed: true, end: func(q *limitedQueue, e seenEvent) { q.call("DELETE", fmt.Sprintf("/events/%d", e.ID), "").want(204) }},
	"a cancellation of one that waits": {unclaimed: true, end: func(q *limitedQueue, _ seenEvent) {
		q.sql(`select agent.delete_event((select max(id) from agent.event where queue = $1))`, q.name)
	}},
	"a move": {unclaimed: true, query: "&type=moved", end: func(q *limitedQueue, _ seenEvent) {
		q.call("POST", "/queues/"+q.name+"/move", `{"to":"elsewhere","types":["moved"]}`).want(200)
	}},
	"a purge": {unclaimed: true, end: func(q *limitedQueue, _ seenEvent) {
		q.call("POST", "/queues/"+q.name+"/purge", "").want(200)
		q.post(4, "")
	}},
	"a purge beside leases": {end: func(q *limitedQueue, e seenEvent) {
		q.call("POST", "/queues/"+q.name+"/purge", "").want(200)
		q.call("POST", fmt.Sprintf("/events/%d/ack", e.ID), `{"receipt":"`+e.Receipt+`"}`).want(200)
		q.post(3, "")
	}},
	"a redrive of dead letters": {unclaimed: true, end: func(q *limitedQueue, e seenEvent) {
		q.sql(`update agent.event set dead_letter_of = 1, meta = '{"dead_letter": {"queue": "origin"}}' where id = $1`, e.ID)
		q.call("POST", "/redrives", `{"queue":"`+q.name+`","rate":1000}`).want(202)
		if err := q.eventuallyIn(4); err != nil {
			q.t.Error(err)
		}
	}},
	"a row that is moved by hand": {unclaimed: true, end: func(q *limitedQueue, e seenEvent) {
		q.sql(`update agent.event set queue = 'elsewhere' where id = $1`, e.ID)
	}},
	"a row that leaves the group": {end: func(q *limitedQueue, e seenEvent) {
		q.sql(`update agent.event set group_key = 'other' where id = $1`, e.ID)
		q.sql(`select agent.notify_queues(array[$1])`, q.name)
		q.sql(`select agent.delete_event($1, $2)`, e.ID, e.Receipt)
	}},
}

// testEnder has a slot become free in a way, and returns the promise that is broken.
func testEnder(q *limitedQueue, by ender) error {
	first := seenEvent{ID: q.post(1, by.query)[0]}
	q.post(4, "")
	if !by.unclaimed {
		got, err := q.claim(0)
		if err := q.want("at first", 2, got, err); err != nil {
			return err
		}
		first = q.held[slices.IndexFunc(q.held, func(e seenEvent) bool { return e.ID == first.ID })]
		waiting := q.waiting(q.patient)
		if err := q.wantNothing("while the slots are taken"); err != nil {
			return err
		}
		q.drop(first.ID)
		by.end(q, first)
		got, err = q.note(<-waiting)
		if err := q.want("the claim that waits", 1, got, err); err != nil {
			return err
		}
	} else {
		by.end(q, first)
		got, err := q.claim(q.patient)
		if err := q.want("afterwards", 2, got, err); err != nil {
			return err
		}
	}
	if err := q.wantNothing("with the slots taken again"); err != nil {
		return err
	}
	if by.keeps {
		q.call("POST", "/queues/"+q.name+"/run", "").want(200) // what waits for its time
	}
	return q.ackAll()
}

func TestWhateverMakesEventsKeepsTheLimitsOfGroups(t *testing.T) {
	t.Parallel()
	h := setupWith(t, flowSettings)
	h.placeOn(0, "elsewhere", "dead", "origin")
	conn := h.connect()
	n := 0
	for name, made := range makers {
		n++
		if err := testMaker(newLimitedQueue(h, conn, fmt.Sprintf("made%d", n), 1, ""), made); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhateverEndsEventsKeepsTheLimitsOfGroups(t *testing.T) {
	t.Parallel()
	h := setupWith(t, flowSettings)
	h.placeOn(0, "elsewhere", "dead", "origin")
	conn := h.connect()
	n := 0
	for name, by := range enders {
		n++
		if err := testEnder(newLimitedQueue(h, conn, fmt.Sprintf("ended%d", n), 2, by.policy), by); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPushesKeepTheLimitsOfGroups(t *testing.T) {
	t.Parallel()
	h := setupWith(t, flowSettings)
	var (
		mu      sync.Mutex
		running = make(map[string]int)
		most    int
		failed  = make(map[string]bool)
	)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var e struct{ Tenant, N string }
		_ = json.NewDecoder(bytes.NewReader(body)).Decode(&e)
		mu.Lock()
		running[e.Tenant]++
		most = max(most, running[e.Tenant])
		isFirst := !failed[e.Tenant+e.N]
		failed[e.Tenant+e.N] = true
		mu.Unlock()
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // for others to come meanwhile
		mu.Lock()
		running[e.Tenant]--
		mu.Unlock()
		if isFirst && e.N == "1" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(endpoint.Close)
	h.placeOn(0, "q")
	h.call("PUT", "/queues/q", `{"group_from":"/tenant","flow":{"concurrency":2},"backoff":{"kind":"constant","base":"1ms"}}`).want(200)
	h.call("PUT", "/queues/q/push", `{"url":"`+endpoint.URL+`","format":"event","max_in_flight":16}`).want(201)
	var events []string
	for i := range 30 {
		events = append(events, fmt.Sprintf(`{"queue":"q","event":{"tenant":"%d","n":"%d"}}`, i%3, i))
	}
	h.call("POST", "/events/batch", `{"events":[`+strings.Join(events, ",")+`]}`).want(201)
	q := &limitedQueue{environment: h, conn: h.connect(), name: "q"}
	if err := q.eventuallyIn(0); err != nil {
		t.Fatal(err)
	}
	if n := h.count(`select count(*) from agent.event_hist where queue = 'q' and outcome = 'done'`); n != 30 {
		t.Errorf("%d events were delivered", n)
	}
	mu.Lock()
	defer mu.Unlock()
	if most != 2 {
		t.Errorf("up to %d requests of a group were under way at once, want 2", most)
	}
}

func TestBrokenLimitsOfMakersAndEndersAreCaught(t *testing.T) {
	t.Parallel()
	for name, breakage := range map[string]struct{ function, old, replacement, by string }{
		"slots are not counted": {"admit_events", `m.most - (select count(*)`, `m.most - 0 * (select count(*)`, "a row by hand"},
		"ends free no slots":    {"free_slots_and_notify", `free_slots(_queues, _keys)`, `free_slots('{}', '{}')`, "a sweep of the exhausted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setupWith(t, flowSettings)
			conn := h.connect()
			before := pgtest.Query[string](t, conn, `select pg_get_functiondef(('agent_private.' || $1)::regproc)`, breakage.function)
			after := strings.ReplaceAll(before, breakage.old, breakage.replacement)
			if after == before {
				t.Fatalf("%s does not have the text %q", breakage.function, breakage.old)
			}
			h.sql(after)
			broken := func(limit int) *limitedQueue {
				q := newLimitedQueue(h, conn, "q", limit, "")
				q.patient = 2 * time.Second
				return q
			}
			var err error
			if made, isMaker := makers[breakage.by]; isMaker {
				err = testMaker(broken(1), made)
			} else {
				err = testEnder(broken(2), enders[breakage.by])
			}
			if err == nil {
				t.Errorf("%s: no promise was broken", breakage.by)
			}
		})
	}
}
