//go:build unix

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The broken builds of this file; transactionResent is another one.
var (
	scanRemembered = build{name: "a router that goes on from what it remembers after an error", edits: []edit{
		{"internal/topic/router.go", "r.isBehind = pg.LostRace(err)\n\t\tr.forget()\n", "r.isBehind = pg.LostRace(err)\n\t\tr.confirmedAt = now.Add(-renewAfter)\n"},
		{"internal/topic/router.go", "if !begun.WasHeld || begun.Position != r.position {", "if false {"},
	}}
	lostAnswerIsFailure = build{name: "a lost answer that is told as an error of the program", edits: []edit{
		{"internal/pg/errors.go", "errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),", "errors.Is(err, io.EOF) && false,"},
	}}
)

// losses decides which answers of commits a wire loses, by the functions of the schema that the transactions call.
type losses struct {
	wire *Wire

	mu     sync.Mutex
	lost   map[string]int // by function
	next   string         // the function of which an answer is lost
	before int            // so many of its answers are not lost before
	random *rand.Rand     // loses the first two answers of each function, and some of all others; nil: none
	only   []string       // of transactions that call one of these
}

func newLosses(wire *Wire, random *rand.Rand, only ...string) *losses {
	l := &losses{wire: wire, lost: map[string]int{}, random: random, only: only}
	wire.Lose(l.isLost)
	return l
}

var calledFunction = regexp.MustCompile(`\bagent(?:_service)?\.(\w+)\(`)

func (l *losses) isLost(transaction string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	var called []string
	for _, match := range calledFunction.FindAllStringSubmatch(transaction, -1) {
		called = append(called, match[1])
	}
	isLost := l.next != "" && slices.Contains(called, l.next)
	if isLost && l.before > 0 {
		l.before--
		isLost = false
	}
	if l.random != nil {
		isFirst := slices.ContainsFunc(called, func(name string) bool { return slices.Contains(l.only, name) && l.lost[name] < 2 })
		isOne := slices.ContainsFunc(called, func(name string) bool { return slices.Contains(l.only, name) })
		isLost = isFirst || isOne && l.random.IntN(10) == 0
	}
	if isLost {
		l.next = ""
		for _, name := range called {
			l.lost[name]++
		}
	}
	return isLost
}

// loseNext loses the answer of the next transaction that calls a function, or of a later one.
func (l *losses) loseNext(function string, before int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next, l.before = function, before
}

// isDone reports whether the answer that loseNext asked for was lost.
func (l *losses) isDone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next == ""
}

// await waits until answers of all the functions were lost, n times each.
func (l *losses) await(t *testing.T, n int) {
	t.Helper()
	defer func() {
		if t.Failed() {
			l.stop(t)
		}
	}()
	await(t, fmt.Sprintf("answers of %q are lost %d times each", l.only, n), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return !slices.ContainsFunc(l.only, func(name string) bool { return l.lost[name] < n })
	})
}

// stop loses no more answers.
func (l *losses) stop(t *testing.T) {
	t.Helper()
	l.wire.Lose(nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("answers lost: %v", l.lost)
}

// queueAnswersLost loses answers of what the queue commits, while events are inserted, claimed and finished.
func queueAnswersLost(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	wire := StartWire(t, server.URL())
	servers := []*queued{startQueued(t, b, wire.URL()), startQueued(t, b, wire.URL())}
	b.breakDatabase(t, server)
	d := startLoad(t, l, servers...)
	d.awaitInserts(20)
	lost := newLosses(wire, rand.New(rand.NewPCG(d.seed, 300)),
		"insert_and_claim_events", "ack_events", "claim_from_watermarks", "nack_event", "extend_event", "record_executions", "sweep_events")
	for range rounds {
		d.awaitInserts(20)
	}
	lost.await(t, rounds)
	lost.stop(t)
	d.awaitInserts(20)
	d.finish(server.AdminURL())
}

func TestNothingIsLostOrDoneTwiceWhenAnswersOfCommitsAreLost(t *testing.T) {
	t.Parallel()
	runScenario(t, queueAnswersLost, 1, 50)
}

func TestBrokenBuildWithResentTransactionIsCaughtByLostAnswers(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, queueAnswersLost, transactionResent, 3)
}

// logAnswersLost loses answers of what is published, and of the router.
func logAnswersLost(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	wire := StartWire(t, server.URL())
	servers := []*queued{startQueued(t, b, wire.URL()), startQueued(t, b, wire.URL())}
	b.breakDatabase(t, server)
	d := startLogLoad(t, l, server.URL(), servers...)
	d.awaitPublished(20)
	lost := newLosses(wire, rand.New(rand.NewPCG(d.seed, 301)),
		"append_log", "deliver_in_step", "deliver_alone", "join_step", "begin_routing", "pause_subscription", "notify_log")
	for range rounds {
		d.awaitPublished(20)
	}
	lost.await(t, rounds)
	lost.stop(t)
	d.awaitPublished(20)
	d.finish(server.AdminURL())
}

func TestEventsAreDeliveredOnceWhenAnswersOfCommitsAreLost(t *testing.T) {
	t.Parallel()
	runScenario(t, logAnswersLost, 2, 50)
}

func TestBrokenBuildWithRememberedScanIsCaughtByLostAnswers(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, logAnswersLost, scanRemembered, 3)
}

// readOnly are the functions that the service calls and that write nothing, or only what they would write again: locks, and times of reading.
var readOnly = strings.Fields(`
	begin_read busiest_queues check_watermarks check_zone_rules count_deliveries count_ready count_redrives declared_queues dropped_push_deliveries dropped_source_deliveries event_errors event_queues event_traces expansion_start find_ended get_cell get_placement key_versions list_cells listed_cells list_waiting_queues queue_versions read_queue_copies list_placements placement_versions queue_waits read_key_copies
	first_events get_event get_group get_identity get_log_settings get_owner get_published get_queue get_raw_body get_redrive get_route get_schedule
	history_stats is_key_required last_occurrences last_published list_api_keys list_attempts list_audit list_events list_executions list_failures list_filters list_group_samples list_groups
	list_history list_holders list_occurrences list_owners list_processes list_proof_fields list_push_deliveries list_pushers list_pushes list_redrives list_schedules list_sealed
	list_source_deliveries list_sources list_subscriptions list_topics list_upkeep list_workers lock_due_schedules locked_events log_bounds log_gap_reason log_holder log_origin log_position longest_groups next_due
	next_publication next_vt next_vts old_history oldest_beside outcome_series queue_overview queue_series queue_stats read_api_keys read_filters read_log_back read_log_page read_pushes read_routes read_sessions read_sources replica_versions require_queue_of_schedule require_queues resolve_locals undeclared_queues
	schedule_position schedule_zone slowest_subscriptions subscription_allowed watch_subscriptions`)

// repeated are those that a process calls again and again whatever the answer was, and whose effect is the same when they are called twice: they count, delete
// what is old, prepare what is needed later, or say that a process lives.
var repeated = strings.Fields(`
	adopt_database count_outcomes count_topics delete_old_history drop_history drop_log_segment end_routing hold_group keep_raw_body leave_keys leave_router log_deliveries log_pushes maintain_log notify_queues
	pause_faulty_schedules prepare_history probe_write prune_api_keys prune_audit prune_deliveries prune_executions prune_groups prune_history prune_keys prune_occurrences
	prune_processes prune_publication_keys prune_queue_samples prune_raw_bodies prune_redrives prune_sessions prune_subscriptions record_key_use record_push_seen record_refusals record_server
	record_upkeep release_events report_process reseal route_changes sample_groups sample_queues take_cell`)

// ofSessions are those that the log-in and the log-out of browsers call. A log-in whose answer was lost leaves a session whose token nobody has, which is not used and expires; a log-out
// may be repeated.
var ofSessions = strings.Fields(`create_session end_session end_sessions`)

// A lostCall is a call whose answer from the database is lost: the client is told 503. It is repeated, unless what it does is to happen once, and then the
// statement counts as wanted.
type lostCall struct {
	function           string // that the transaction calls
	method, path, body string
	headers            []string
	isOnce             bool // it is not repeated
	statement          string
	want               int
	before             int // it calls the function so often before
}

// callAnswersLost loses the answer of each call that writes, one after the other.
func callAnswersLost(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	for round := range rounds {
		server := Start(t, Config{})
		wire := StartWire(t, server.URL())
		q := startQueued(t, b, wire.URL(), "QUEUED_PUSH_ALLOW=127.0.0.1", "QUEUED_SECRET_KEY=a-key-that-seals-secrets")
		b.breakDatabase(t, server)
		c := &answerless{t: t, queued: q, server: server, losses: newLosses(wire, nil), ledger: l, covered: map[string]bool{}}
		c.run()
		c.background()
		c.keys()
		c.losses.stop(t)
		c.requireAll()
		t.Logf("round %d: %d kinds of transactions", round, len(c.covered))
	}
}

type answerless struct {
	t       *testing.T
	queued  *queued
	server  *Server
	losses  *losses
	ledger  *ledger
	covered map[string]bool
	key     string // of the caller; empty: none is needed
}

// call makes a call and returns the status and the answer.
func (c *answerless) call(method, path, body string, headers ...string) (int, string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+c.queued.addr+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(bytes.TrimSpace(text))
}

// must makes a call that succeeds, and reads the answer into a value unless that is nil.
func (c *answerless) must(method, path, body string, into any) {
	c.t.Helper()
	status, text := c.call(method, path, body)
	if status >= http.StatusMultipleChoices {
		c.t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	if into != nil {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			c.t.Fatalf("%s %s: %s: %v", method, path, text, err)
		}
	}
}

// lose makes a call whose answer is lost.
func (c *answerless) lose(call lostCall) {
	c.t.Helper()
	c.covered[call.function] = true
	c.losses.loseNext(call.function, call.before)
	status, text := c.call(call.method, call.path, call.body, call.headers...)
	switch {
	case !c.losses.isDone():
		c.t.Fatalf("%s %s does not call %s: %d %s", call.method, call.path, call.function, status, text)
	case status != http.StatusServiceUnavailable:
		c.ledger.violated("%s %s, whose answer was lost, was answered %d %s", call.method, call.path, status, text)
	}
	for try := 0; !call.isOnce && status == http.StatusServiceUnavailable && try < 10; try++ {
		status, text = c.call(call.method, call.path, call.body, call.headers...)
	}
	if status >= http.StatusBadRequest && status != http.StatusConflict && status != http.StatusNotFound && !call.isOnce {
		c.ledger.violated("%s %s, repeated, was answered %d %s", call.method, call.path, status, text)
	}
	if call.statement != "" {
		if n := query[int](c.t, c.server.AdminURL(), call.statement); n != call.want {
			c.ledger.violated("after %s %s the statement %q counts %d, want %d", call.method, call.path, call.statement, n, call.want)
		}
	}
}

// claimed inserts an event into a queue and claims it.
func (c *answerless) claimed(queue string) (e lease) {
	c.t.Helper()
	c.must(http.MethodPost, "/events?queue="+queue, `{"n":"claimed"}`, nil)
	var claim struct{ Events []lease }
	c.must(http.MethodPost, "/claim", fmt.Sprintf(`{"queue":%q,"invisible_for":"1h","wait":"10s"}`, queue), &claim)
	if len(claim.Events) != 1 {
		c.t.Fatalf("%d events were claimed from %s, want 1", len(claim.Events), queue)
	}
	return claim.Events[0]
}

// run makes the calls.
func (c *answerless) run() {
	c.t.Helper()
	const put, post, del = http.MethodPut, http.MethodPost, http.MethodDelete
	count := func(from string) string { return "select count(*)::int from " + from }

	c.lose(lostCall{"insert_and_claim_events", post, "/events?queue=once", `{"n":1}`, []string{"Idempotency-Key: k"}, false, count(`agent.event where queue = 'once'`), 1, 0})
	c.lose(lostCall{"claim_from_watermarks", post, "/claim", `{"queue":"once","invisible_for":"1s","wait":"10s"}`, nil, true, count(`agent.event where queue = 'once' and attempts = 1`), 1, 0})
	e := c.claimed("acked")
	c.lose(lostCall{"ack_events", del, fmt.Sprintf("/events/%d?receipt=%s", e.ID, e.Receipt), "", nil, false, count(`agent.event_hist where queue = 'acked' and outcome = 'done'`), 1, 0})
	c.lose(lostCall{"requeue_event", post, fmt.Sprintf("/history/%d/requeue", e.ID), "", nil, true, count(fmt.Sprintf(`agent.event where requeued_from = %d`, e.ID)), 1, 0})
	e = c.claimed("extended")
	c.lose(lostCall{"extend_event", post, fmt.Sprintf("/events/%d/extend", e.ID), fmt.Sprintf(`{"receipt":%q,"invisible_for":"2h"}`, e.Receipt), nil, false, count(`agent.event where queue = 'extended' and vt > now() + interval '90 minutes'`), 1, 0})
	c.lose(lostCall{"nack_event", post, fmt.Sprintf("/events/%d/nack", e.ID), fmt.Sprintf(`{"receipt":%q,"error":"on purpose","delay":"1h"}`, e.Receipt), nil, false, count(`agent.event where queue = 'extended' and last_error = 'on purpose' and attempts = 1`), 1, 0})
	c.must(post, "/events?queue=moved", `{"n":1}`, nil)
	c.lose(lostCall{"move_events", post, "/queues/moved/move", `{"to":"purged"}`, nil, false, count(`agent.event where queue = 'purged'`), 1, 0})
	e = c.claimed("released")
	c.lose(lostCall{"extend_leases", post, "/extend", fmt.Sprintf(`{"events":[{"id":%d,"receipt":%q}],"invisible_for":"2h"}`, e.ID, e.Receipt), nil, false, count(`agent.event where queue = 'released' and vt > now() + interval '90 minutes'`), 1, 0})
	c.lose(lostCall{"release_leases", post, "/release", fmt.Sprintf(`{"events":[{"id":%d,"receipt":%q}]}`, e.ID, e.Receipt), nil, false, count(`agent.event where queue = 'released' and vt <= now() and attempts = 0`), 1, 0})
	c.must(post, "/events?queue=run&delay=1h", `{"n":1}`, nil)
	waiting := query[int](c.t, c.server.AdminURL(), `select max(id)::int from agent.event where queue = 'run'`)
	c.lose(lostCall{"run_event", post, fmt.Sprintf("/events/%d/run", waiting), "", nil, false, count(`agent.event where queue = 'run' and vt <= now()`), 1, 0})
	c.must(post, "/events?queue=run&delay=1h", `{"n":2}`, nil)
	c.lose(lostCall{"run_events", post, "/queues/run/run", "", nil, false, count(`agent.event where queue = 'run' and vt <= now()`), 2, 0})
	c.lose(lostCall{"purge_queue", post, "/queues/purged/purge", "", nil, false, count(`agent.event_hist where queue = 'purged' and outcome = 'cancelled'`), 1, 0})
	c.must(put, "/queues/deleted", "{}", nil)
	c.lose(lostCall{"delete_queue", del, "/queues/deleted", "", nil, false, count(`agent.queue where name = 'deleted'`), 0, 0})
	c.lose(lostCall{"requeue_events", post, "/history/requeue", `{"queue":"purged"}`, nil, true, count(`agent.event where queue = 'purged' and requeued_from is not null`), 1, 0})
	for range 3 {
		c.must(post, "/events?queue=redriven", `{}`, nil)
	}
	c.must(post, "/queues/redriven/purge", "", nil)
	c.lose(lostCall{"create_redrive", post, "/redrives", `{"filter":{"queue":"redriven"},"rate":0.01}`, []string{"Idempotency-Key: k"}, false, count(`agent.redrive`), 1, 0})
	redrive := fmt.Sprintf("/redrives/%d", query[int](c.t, c.server.AdminURL(), `select max(id)::int from agent.redrive`))
	c.lose(lostCall{"pause_redrive", post, redrive + "/pause", "", nil, false, "", 0, 0})
	c.lose(lostCall{"resume_redrive", post, redrive + "/resume", "", nil, false, "", 0, 0})
	c.lose(lostCall{"cancel_redrive", post, redrive + "/cancel", "", nil, false, "", 0, 0})
	c.lose(lostCall{"put_queue", put, "/queues/q", `{"max_attempts":7}`, nil, false, count(`agent.queue where name = 'q' and max_attempts = 7`), 1, 0})
	c.lose(lostCall{"put_group", put, "/queues/q/groups/a", `{"concurrency":7}`, nil, false, count(`agent.queue_group where queue = 'q' and concurrency = 7`), 1, 0})
	c.lose(lostCall{"delete_group", del, "/queues/q/groups/a", "", nil, false, count(`agent.queue_group where queue = 'q' and concurrency = 7`), 0, 0})
	c.lose(lostCall{"unblock_group", post, "/queues/q/groups/a/unblock", "", nil, false, "", 0, 0})
	c.lose(lostCall{"pause_queue", post, "/queues/q/pause", "", nil, false, count(`agent.queue where name = 'q' and paused`), 1, 0})

	c.lose(lostCall{"place_queue", put, "/queues/placed/placement", `{"cells":[1]}`, nil, false, count(`agent.placement where queue = 'placed' and cells = '{1}'`), 1, 0})
	c.lose(lostCall{"put_queue_copies", put, "/cell/settings", `{"queues":[{"queue":"copied","policy":{"max_attempts":5}}]}`, nil, false, count(`agent.queue where name = 'copied' and max_attempts = 5`), 1, 0})
	c.lose(lostCall{"insert_forwarded_events", post, "/cell/events", `{"events":[{"id":7,"event":{},"publication":{"forward":{"queue":"forwarded"}}}]}`, nil, false, count(`agent.event where queue = 'forwarded'`), 1, 0})
	c.lose(lostCall{"put_cell", put, "/cells/9", `{"takes_new":false}`, nil, false, count(`agent.listed_cell where cell = 9`), 1, 0})
	c.lose(lostCall{"delete_cell", del, "/cells/9", "", nil, false, count(`agent.listed_cell where cell = 9`), 0, 0})
	c.lose(lostCall{"drain_placement", post, "/queues/placed/placement/drained", `{"cells":[0]}`, nil, false, count(`agent.placement where queue = 'placed'`), 1, 0})
	c.lose(lostCall{"delete_placement", del, "/queues/placed/placement", "", nil, false, count(`agent.placement where queue = 'placed' and removed_at is null`), 0, 0})

	c.lose(lostCall{"append_log", post, "/topics/a.b", `{"n":1}`, []string{"Idempotency-Key: k"}, false, count(`agent.log where topic = 'a.b'`), 1, 0})
	c.lose(lostCall{"publish_later", post, "/topics/a.c?delay=1h", `{"n":1}`, []string{"Idempotency-Key: k"}, false, count(`agent.event where queue = 'queued.publish'`), 1, 0})
	c.lose(lostCall{"put_log_settings", put, "/log/settings", `{"retention":"48h","hold":"240h"}`, nil, false, count(`agent.log_settings where retention = interval '48 hours'`), 1, 0})
	c.lose(lostCall{"put_subscription_if_match", put, "/subscriptions/s", `{"filters":[{"name":"f"}],"start":"earliest"}`, nil, false, count(`agent.subscription where name = 's'`), 1, 0})
	c.lose(lostCall{"put_filter", put, "/subscriptions/s/filters/g", `{"topics":["a.*"]}`, nil, false, count(`agent.subscription_filter`), 2, 0})
	c.lose(lostCall{"delete_filter", del, "/subscriptions/s/filters/g", "", nil, false, count(`agent.subscription_filter`), 1, 0})
	c.lose(lostCall{"end_read", post, "/subscriptions/s/read", `{"lease":"1s"}`, nil, false, "", 0, 0})
	c.lose(lostCall{"seek_subscription", post, "/subscriptions/s/seek", `{"to":"earliest"}`, nil, false, "", 0, 0})
	var page struct{ Cursor string }
	c.must(post, "/subscriptions/s/read", `{}`, &page)
	c.lose(lostCall{
		"commit_cursor", post, "/subscriptions/s/commit", fmt.Sprintf(`{"cursor":%q}`, page.Cursor), nil, false,
		count(`agent.subscription s join agent.subscription_position p on p.reader = s.id where s.name = 's' and p.position >= (select max(position) from agent.log)`), 1, 0,
	})
	c.lose(lostCall{"pause_subscription", post, "/subscriptions/s/pause", "", nil, false, count(`agent.subscription where is_paused`), 1, 0})
	c.lose(lostCall{"delete_subscription_if_match", del, "/subscriptions/s", "", nil, false, count(`agent.subscription where name = 's'`), 0, 0})
	c.must(put, "/subscriptions/r", `{"filters":[{"name":"f"}],"start":"earliest","deliver":{"queue":"replayed"}}`, nil)
	await(c.t, "a subscription is delivered", func() bool {
		return query[int](c.t, c.server.AdminURL(), count(`agent.event where queue = 'replayed'`)) == 1
	})
	c.lose(lostCall{"replay_subscription", post, "/subscriptions/r/replay", `{"from":"earliest"}`, nil, true, "", 0, 1}) // first it is checked
	await(c.t, "the replay has ended", func() bool { return query[int](c.t, c.server.AdminURL(), count(`agent.subscription_replay`)) == 0 })
	if n := query[int](c.t, c.server.AdminURL(), count(`agent.event where queue = 'replayed'`)); n != 2 {
		c.ledger.violated("an event that was replayed once was delivered %d times in all", n)
	}

	const later = `"queue":"later","event":{},"at":"2090-01-01T00:00:00Z"`
	c.lose(lostCall{"insert_schedule", post, "/schedules", "{" + later + "}", nil, true, count(`agent.schedule`), 1, 0})
	id := query[int](c.t, c.server.AdminURL(), `select max(id)::int from agent.schedule`)
	path := fmt.Sprintf("/schedules/%d", id)
	c.lose(lostCall{"update_schedule", http.MethodPatch, path, `{"event":{"n":2}}`, nil, false, count(`agent.schedule where event ? 'n'`), 1, 0})
	c.lose(lostCall{"pause_schedule", post, path + "/pause", "", nil, false, count(`agent.schedule where status = 'paused'`), 1, 0})
	c.lose(lostCall{"resume_schedule", post, path + "/resume", "", nil, false, count(`agent.schedule where status = 'active'`), 1, 0})
	c.lose(lostCall{"run_schedule", post, path + "/run", "", nil, true, count(`agent.event where queue = 'later'`), 1, 0})
	c.lose(lostCall{"delete_schedule_if_match", del, path, "", nil, false, count(`agent.schedule where status = 'active'`), 0, 0})
	c.lose(lostCall{"put_owner_if_match", put, "/owners/ada", `{"timezone":"Europe/London"}`, nil, false, count(`agent.owner where id = 'ada'`), 1, 0})
	c.lose(lostCall{"delete_owner_if_match", del, "/owners/ada", "", nil, false, count(`agent.owner where id = 'ada'`), 0, 0})

	c.lose(lostCall{"put_source", put, "/sources/shop", fmt.Sprintf(`{"kind":"token","queue":"in","key":"{/id}","secrets":[%q],"keep_raw":"24h"}`, sourceSecret), nil, false, count(`agent.source`), 1, 0})
	c.lose(lostCall{"insert_and_claim_events", post, "/in/shop", `{"id":"a"}`, []string{"Authorization: Bearer " + sourceSecret}, false, count(`agent.event where queue = 'in'`), 1, 0})
	c.lose(lostCall{"delete_source", del, "/sources/shop", "", nil, false, count(`agent.source`), 0, 0})
	c.lose(lostCall{"put_push", put, "/queues/nowhere/push", `{"url":"http://127.0.0.1:9/"}`, nil, false, count(`agent.push`), 1, 0})
	c.lose(lostCall{"rotate_push_secret", post, "/queues/nowhere/push/secret", "", nil, true, "", 0, 0})
	c.lose(lostCall{"enable_push", post, "/queues/nowhere/push/enable", "", nil, false, "", 0, 0})
	c.lose(lostCall{"delete_push", del, "/queues/nowhere/push", "", nil, false, count(`agent.push`), 0, 0})

	c.must(put, "/queues/pushed", `{"backoff":{"kind":"constant","base":"1s"}}`, nil)
}

// background loses answers of what the service does by itself, and compares what comes of it.
func (c *answerless) background() {
	c.t.Helper()
	e := &endpoint{came: map[string]int{}, active: map[string]bool{}}
	receiver := httptest.NewServer(e)
	c.t.Cleanup(receiver.Close)
	c.must(http.MethodPut, "/queues/pushed/push", fmt.Sprintf(`{"url":%q}`, receiver.URL), nil)
	c.must(http.MethodPut, "/subscriptions/d", `{"filters":[{"name":"f","topics":["due"]}],"start":"earliest","deliver":{"queue":"pushed"}}`, nil)
	happens := func(function string, prompt func()) {
		c.t.Helper()
		c.covered[function] = true
		c.losses.loseNext(function, 0)
		await(c.t, "the answer of "+function+" is lost", func() bool {
			if c.losses.isDone() {
				return true
			}
			prompt()
			return false
		})
	}
	published := 0
	publish := func(path string) func() {
		return func() {
			c.must(http.MethodPost, path, `{}`, nil)
			published++
		}
	}
	for range 3 {
		happens("deliver_in_step", publish("/topics/due"))
		happens("begin_routing", func() {}) // it comes when nothing was delivered for a second
		happens("publish_due", publish("/topics/due?delay=100ms"))
		happens("notify_log", publish("/topics/due"))
	}
	pauses := 0
	for _, function := range []string{"deliver_alone", "join_step"} {
		happens(function, func() {
			pauses++
			c.must(http.MethodPost, "/subscriptions/d/pause", "", nil)
			publish("/topics/due")()
			c.must(http.MethodPost, "/subscriptions/d/resume", "", nil)
		})
	}
	await(c.t, "everything is pushed", func() bool {
		return query[int](c.t, c.server.AdminURL(), `select count(*)::int from agent.event where queue = 'pushed' or queue = 'queued.publish' and vt < now() + interval '1 minute'`) == 0 &&
			query[int](c.t, c.server.AdminURL(), `select count(*)::int from agent.event_hist where queue = 'pushed'`) >= published
	})
	if n := query[int](c.t, c.server.AdminURL(), `select count(*)::int from agent.event_hist where queue = 'pushed' and outcome = 'done'`); n != published {
		c.ledger.violated("%d events were published, and %d delivered and pushed", published, n)
	}

	at := time.Now().UTC().Add(-time.Second).Format("2006-01-02T15:04:05")
	c.must(http.MethodPost, "/schedules", fmt.Sprintf(`{"queue":"fired","event":{},"at":%q,"timezone":"UTC","rrule":"FREQ=SECONDLY"}`, at), nil)
	for range 3 {
		happens("fire_schedules", func() {})
	}
	c.must(http.MethodPost, "/schedules/"+query[string](c.t, c.server.AdminURL(), `select max(id)::text from agent.schedule`)+"/pause", "", nil)
	// Those that were missed fire one after the other, without a lock.
	c.must(http.MethodPost, "/schedules", `{"queue":"missed","event":{},"timezone":"UTC","cron":"* * * * *","misfire":"all"}`, nil)
	happens("fire_schedules_if_unchanged", func() {
		c.server.Exec(ordinary, `update agent.schedule set next_at = next_at - interval '1 hour', next_local = next_local - interval '1 hour'
			where queue = 'missed' and next_at > now() - interval '30 minutes' and fired = 0`)
		pause(time.Second)
	})
	await(c.t, "what was missed has fired", func() bool {
		return query[int](c.t, c.server.AdminURL(), `select count(*)::int from agent.schedule where queue = 'missed' and next_at > now()`) == 1
	})
	for queue, least := range map[string]int{"fired": 3, "missed": 59} {
		fired := query[int](c.t, c.server.AdminURL(), fmt.Sprintf(`select count(*)::int from agent.event where queue = '%s'`, queue))
		if n := query[int](c.t, c.server.AdminURL(), fmt.Sprintf(`select count(*)::int from agent.occurrence o join agent.schedule s on s.id = o.schedule_id where s.queue = '%s'`, queue)); n < least || n != fired {
			c.ledger.violated("%d occurrences are recorded in the queue %s, and there are %d events of them", n, queue, fired)
		}
		if n := query[int](c.t, c.server.AdminURL(), fmt.Sprintf(`select count(distinct occurrence::text)::int from agent.event where queue = '%s'`, queue)); n != fired {
			c.ledger.violated("%d events in the queue %s are of %d occurrences", fired, queue, n)
		}
	}

	happens("sweep_events", func() {})
	c.must(http.MethodPost, "/redrives", `{"filter":{"queue":"pushed"},"to":"again","rate":2}`, nil)
	for range 3 {
		happens("redrive_step", func() {})
	}
	redriven := query[int](c.t, c.server.AdminURL(), `select max(id)::int from agent.redrive`)
	c.must(http.MethodPost, fmt.Sprintf("/redrives/%d/cancel", redriven), "", nil)
	if n := query[int](c.t, c.server.AdminURL(), fmt.Sprintf(`select (count(*) - count(distinct requeued_from))::int + abs(count(*) - (select requeued from agent.redrive where id = %d))::int
		from agent.event where queue = 'again'`, redriven)); n != 0 {
		c.ledger.violated("a redrive and its copies differ by %d", n)
	}
	happens("record_executions", func() {
		e := c.claimed("executed") // the statistics go with the next ack
		_, _ = c.call(http.MethodDelete, fmt.Sprintf("/events/%d?receipt=%s", e.ID, e.Receipt), "")
	})
	c.must(http.MethodPut, "/queues/refused/push", `{"url":"http://127.0.0.1:9/"}`, nil)
	happens("record_push_change", func() { c.must(http.MethodPost, "/events?queue=refused", `{}`, nil) })
	await(c.t, "the endpoint counts as failing", func() bool {
		return query[int](c.t, c.server.AdminURL(), `select count(*)::int from agent.push_state where queue = 'refused' and failing_since is not null`) == 1
	})
}

// keys loses answers about keys. From the first one on every call needs one.
func (c *answerless) keys() {
	c.t.Helper()
	var admin, other struct{ ID, Key string }
	c.must(http.MethodPost, "/keys", `{"name":"admin","scopes":["admin"]}`, &admin)
	c.key = admin.Key
	count := func(where string) string {
		return `select count(*)::int from agent.api_key where name = 'lost' ` + where
	}
	c.lose(lostCall{"create_api_key", http.MethodPost, "/keys", `{"name":"lost","scopes":["read"]}`, nil, true, count(""), 1, 0})
	c.must(http.MethodPost, "/keys", `{"name":"lost","scopes":["read"]}`, &other)
	path := "/keys/" + other.ID
	c.lose(lostCall{"update_api_key", http.MethodPatch, path, `{"scopes":["publish"]}`, nil, false, count(`and scopes = '{publish}'`), 1, 0})
	c.lose(lostCall{"rotate_api_key", http.MethodPost, path + "/rotate", `{}`, nil, true, "", 0, 0})
	c.lose(lostCall{"revoke_api_key", http.MethodDelete, path, "", nil, false, count(`and revoked_at is not null`), 1, 0})
	const copied = `{"keys":[{"id":"k3x7q2ac","name":"copied","scopes":["read"],"queues":null,"topics":null,"rate_per_second":null,"rate_burst":null,"hash":"%s","verifier":"%[1]s",` +
		`"previous_hash":null,"previous_verifier":null,"previous_until":null,"expires_at":null,"revoked_at":null,"version":1,` +
		`"created_at":"2026-02-03T04:05:06+00:00","updated_at":"2026-02-03T04:05:06+00:00"}]}`
	c.lose(lostCall{"put_key_copies", http.MethodPut, "/cell/keys", fmt.Sprintf(copied, strings.Repeat("0a", 32)), nil, false, `select count(*)::int from agent.api_key where name = 'copied'`, 1, 0})
	// This process's memory of keys agrees with the database.
	if status, text := c.call(http.MethodGet, "/keys/self", "", "Authorization: Bearer "+other.Key); status != http.StatusUnauthorized {
		c.ledger.violated("a key that was revoked is answered %d %s", status, text)
	}
}

// requireAll has every function of the service covered.
func (c *answerless) requireAll() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.server.AdminURL())
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	rows, _ := conn.Query(ctx, `
		select p.proname::text from pg_catalog.pg_proc p where p.pronamespace = 'agent_service'::regnamespace
		union select agent_private.shared_functions()`)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		c.t.Fatal(err)
	}
	for _, name := range names {
		if !c.covered[name] && !slices.Contains(readOnly, name) && !slices.Contains(repeated, name) && !slices.Contains(ofSessions, name) {
			c.t.Errorf("no answer of %s was lost: add a call of it, or say why none is needed", name)
		}
	}
}

func TestCallsWhoseAnswerIsLostAreNeverAnsweredAsFailed(t *testing.T) {
	t.Parallel()
	runScenario(t, callAnswersLost, 1, 5)
}

func TestBrokenBuildThatTellsLostAnswersAsErrorsIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, callAnswersLost, lostAnswerIsFailure, 1)
}
