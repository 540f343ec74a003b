package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

const deadQueue = "mail.dead"

// setupDead is setup with a queue "mail" whose dead letters go to deadQueue.
func setupDead(t *testing.T, policy queue.Policy, change func(*queue.Config)) env {
	t.Helper()
	b := setup(t, change)
	policy.Queue, policy.DeadLetter = "mail", &queue.DeadLetter{Queue: deadQueue}
	b.put(t, policy)
	return b
}

// put sets the policy of a queue.
func (b env) put(t *testing.T, p queue.Policy) {
	t.Helper()
	if _, err := b.PutPolicy(t.Context(), p, queue.Precondition{}); err != nil {
		t.Fatal(err)
	}
}

// cause is the member dead_letter of the metadata of a dead letter.
type cause struct {
	Queue    string    `json:"queue"`
	Outcome  string    `json:"outcome"`
	Attempts int       `json:"attempts"`
	Error    *string   `json:"error"`
	At       time.Time `json:"at"`
	Omitted  []string  `json:"omitted"`
}

func causeOf(t *testing.T, e queue.Event) cause {
	t.Helper()
	var meta struct {
		DeadLetter *cause `json:"dead_letter"`
	}
	if err := json.Unmarshal(e.Meta, &meta); err != nil || meta.DeadLetter == nil {
		t.Fatalf("the dead letter has the metadata %s, %v", e.Meta, err)
	}
	return *meta.DeadLetter
}

// deadLetterOf returns the dead letter of an event, and fails the test unless it has just one.
func (b env) deadLetterOf(t *testing.T, id int64) queue.Event {
	t.Helper()
	ended := b.get(t, id)
	if ended.DeadLetteredAs == nil {
		t.Fatalf("event %d has no dead letter: %s", id, describe(ended))
	}
	if n := pgtest.Query[int](t, b.sql, `select (select count(*) from agent.event where dead_letter_of = $1) + (select count(*) from agent.event_hist where dead_letter_of = $1)`, id); n != 1 {
		t.Errorf("event %d has %d dead letters", id, n)
	}
	dead := b.get(t, *ended.DeadLetteredAs)
	if dead.DeadLetterOf == nil || *dead.DeadLetterOf != id {
		t.Errorf("the dead letter of %d is %s", id, describe(dead))
	}
	return dead
}

func describe(e queue.Event) string {
	text, _ := json.Marshal(e)
	return string(text)
}

// leaseOn claims an event of the queue mail.
func (b env) leaseOn(t *testing.T) queue.Lease {
	t.Helper()
	return lease(b.claim(t, queue.ClaimParams{Queue: "mail", MaxAttempts: 100}, 1)[0])
}

// nackFinally claims an event of the queue mail, and nacks it for good.
func (b env) nackFinally(t *testing.T) int64 {
	t.Helper()
	l := b.leaseOn(t)
	if r, err := b.Nack(t.Context(), queue.NackParams{Lease: l, Error: "no such user", Final: true}); err != nil || r.Outcome != queue.Failed {
		t.Fatalf("the nack returned %+v, %v", r, err)
	}
	return l.ID
}

// expire claims an event of the queue mail, has its lease end, and sweeps.
func (b env) expire(t *testing.T) queue.Lease {
	t.Helper()
	l := b.leaseOn(t)
	b.endLease(t, l.ID)
	if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxAttempts: 1, Queue: "mail"}); n != 1 || err != nil {
		t.Fatalf("the sweep expired %d, %v", n, err)
	}
	return l
}

// Every way in which an event ends as failed or expired.
func TestEventThatFailsOrExpiresHasADeadLetter(t *testing.T) {
	t.Parallel()
	sweep := func(p queue.SweepParams) func(*testing.T, env, int64) {
		return func(t *testing.T, b env, _ int64) {
			t.Helper()
			if n, err := b.Sweep(t.Context(), p); n != 1 || err != nil {
				t.Fatalf("the sweep expired %d, %v", n, err)
			}
		}
	}
	nack := func(p queue.NackParams) func(*testing.T, env, int64) {
		return func(t *testing.T, b env, _ int64) {
			t.Helper()
			p.Lease, p.Error = b.leaseOn(t), "no such user"
			if r, err := b.Nack(t.Context(), p); err != nil || r.Outcome != queue.Failed {
				t.Fatalf("the nack returned %+v, %v", r, err)
			}
		}
	}
	claimOnce := func(then func(*testing.T, env, int64)) func(*testing.T, env, int64) {
		return func(t *testing.T, b env, id int64) {
			t.Helper()
			b.leaseOn(t)
			b.endLease(t, id)
			then(t, b, id)
		}
	}
	sql := func(statement string) func(*testing.T, env, int64) {
		return func(t *testing.T, b env, _ int64) {
			t.Helper()
			b.exec(t, statement)
		}
	}
	const failed, expired = queue.Failed, queue.Expired
	for name, c := range map[string]struct {
		policy   queue.Policy
		event    queue.InsertParams
		end      func(*testing.T, env, int64)
		outcome  queue.Outcome
		attempts int
		hasError bool
	}{
		"final nack":                     {end: nack(queue.NackParams{Final: true}), outcome: failed, attempts: 1, hasError: true},
		"nack that is not retryable":     {end: nack(queue.NackParams{Retryable: new(false)}), outcome: failed, attempts: 1, hasError: true},
		"nack of the policy's last":      {policy: queue.Policy{MaxAttempts: new(1)}, end: nack(queue.NackParams{}), outcome: failed, attempts: 1, hasError: true},
		"nack of the event's last":       {event: queue.InsertParams{MaxAttempts: 1}, end: nack(queue.NackParams{}), outcome: failed, attempts: 1, hasError: true},
		"nack from SQL":                  {end: sql(`select agent.nack_event(e.id, agent.receipt(e), _error => 'no such user', _final => true) from agent.claim_event(_queue => 'mail') e`), outcome: failed, attempts: 1, hasError: true},
		"exhausted by the sweep's limit": {end: claimOnce(sweep(queue.SweepParams{MaxAttempts: 1})), outcome: expired, attempts: 1},
		"exhausted by the policy":        {policy: queue.Policy{MaxAttempts: new(1)}, end: claimOnce(sweep(queue.SweepParams{})), outcome: expired, attempts: 1},
		"exhausted by the event":         {event: queue.InsertParams{MaxAttempts: 1}, end: claimOnce(sweep(queue.SweepParams{})), outcome: expired, attempts: 1},
		"over age":                       {end: sweep(queue.SweepParams{MaxVTAge: new(time.Duration(0))}), outcome: expired},
		"past its expires_at":            {event: queue.InsertParams{ExpiresAt: new(time.Now().Add(-time.Minute))}, end: sweep(queue.SweepParams{}), outcome: expired},
		"delete_expired_events":          {end: sql(`select agent.delete_expired_events(1, '0')`), outcome: expired},
		"delete_expired_events of one":   {end: sql(`select agent.delete_expired_events(1, '0', 'mail', 1)`), outcome: expired},
		"moved here, and failed":         {event: queue.InsertParams{Queue: "other"}, end: sql(`select agent.move_events('other', 'mail'); select agent.nack_event(e.id, agent.receipt(e), _error => 'no such user', _final => true) from agent.claim_event(_queue => 'mail') e`), outcome: failed, attempts: 1, hasError: true},
		"by a sweep that has to go alone": {end: sql(`
			alter table agent.event_hist add constraint no_bad check (event <> '{"bad": true}');
			insert into agent.event (event, queue) values ('{"bad": true}', 'mail');
			select agent.delete_expired_events(1, '0')`), outcome: expired},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupDead(t, c.policy, nil)
			in := c.event
			in.Event, in.Meta = json.RawMessage(`{"to":"ada","event_ts":1767225600}`), json.RawMessage(`{"trace":"4bf9"}`)
			in.Type, in.Source, in.Priority, in.IdempotencyKey = "mail.send", "shop", 3, "k"
			if in.Queue == "" {
				in.Queue = "mail"
			}
			id := b.insertEvents(t, in)[0]
			b.exec(t, `update agent.event set occurrence = '{"schedule_id": 7}', publication = '{"position": 9}', vt = least(vt, now() - interval '1 second')`)
			before := b.get(t, id)
			c.end(t, b, id)

			ended, dead := b.get(t, id), b.deadLetterOf(t, id)
			if ended.Outcome != c.outcome || dead.State != queue.Ready || dead.Queue != deadQueue || dead.Attempts != 0 || len(dead.Claimed) != 0 || dead.ID == id {
				t.Errorf("history has %s\nthe dead letter is %s", describe(ended), describe(dead))
			}
			if string(dead.Payload) != string(before.Payload) || dead.Type != "mail.send" || dead.Source != "shop" || dead.Priority != 3 || !dead.EventTS.Equal(before.EventTS) ||
				string(dead.Occurrence) != string(before.Occurrence) || string(dead.Publication) != string(before.Publication) || !strings.Contains(string(dead.Meta), `"trace": "4bf9"`) {
				t.Errorf("the event was %s\nthe dead letter is %s", describe(before), describe(dead))
			}
			if dead.IdempotencyKey != "" || dead.MaxAttempts != nil || dead.ExpiresAt != nil || dead.LastError != nil || dead.RequeuedFrom != nil {
				t.Errorf("the dead letter has what it should not have: %s", describe(dead))
			}
			why := causeOf(t, dead)
			if why.Queue != "mail" || why.Outcome != string(c.outcome) || why.Attempts != c.attempts || (why.Error != nil) != c.hasError || c.hasError && *why.Error != "no such user" || why.Omitted != nil {
				t.Errorf("the cause is %+v", why)
			}
			checkNear(t, "the end", why.At, *ended.FinishedAt)
			checkIDs(t, b.claim(t, queue.ClaimParams{Queue: deadQueue}, 1), []int64{dead.ID})
		})
	}
}

func TestEventThatEndsOtherwiseHasNoDeadLetter(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{MaxAttempts: new(2)}, nil)
	b.insertN(t, "mail", 4)
	for range 2 { // done, and cancelled
		if r := b.ack(t, b.leaseOn(t)); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	nacked := b.leaseOn(t)
	if r, err := b.Nack(t.Context(), queue.NackParams{Lease: nacked}); err != nil || r.Outcome != "" {
		t.Fatalf("%+v, %v", r, err)
	}
	if r := b.ack(t, queue.Lease{ID: b.insertN(t, "mail", 1)[0]}); r.Outcome != queue.Cancelled {
		t.Fatalf("%+v", r)
	}
	if n, err := b.Purge(t.Context(), "mail"); n != 2 || err != nil {
		t.Fatalf("purged %d, %v", n, err)
	}
	b.insertN(t, "mail", 1)
	if n, err := b.Delete(t.Context(), "mail", true, nil); n != 1 || err != nil {
		t.Fatalf("deleted with %d events, %v", n, err)
	}
	b.insertN(t, "mail", 1) // it has no policy any more
	b.nackFinally(t)
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where dead_lettered_as is not null`) + pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 0 {
		t.Errorf("there are %d dead letters", n)
	}
}

func TestDeadLetterThatFailsEndsInHistory(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	b.insertN(t, "mail", 1)
	first := b.nackFinally(t)
	dead := b.deadLetterOf(t, first)
	l := lease(b.claim(t, queue.ClaimParams{Queue: deadQueue}, 1)[0])
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: l, Final: true}); err != nil {
		t.Fatal(err)
	}
	if e := b.get(t, dead.ID); e.Outcome != queue.Failed || e.DeadLetteredAs != nil || e.DeadLetterOf == nil {
		t.Errorf("history has %s", describe(e))
	}
	// Back in its queue, it is an event like any other, and so is the copy of the first one.
	copied, err := b.Requeue(t.Context(), dead.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Move(t.Context(), deadQueue, "mail", nil, 0); err != nil {
		t.Fatal(err)
	}
	if id := b.nackFinally(t); id != copied {
		t.Fatalf("claimed %d", id)
	}
	if again := b.deadLetterOf(t, copied); causeOf(t, again).Queue != "mail" || strings.Count(string(again.Meta), "dead_letter") != 1 {
		t.Errorf("the second dead letter has the metadata %s", again.Meta)
	}
	if copied, err = b.Requeue(t.Context(), first, nil); err != nil {
		t.Fatal(err)
	}
	if e := b.get(t, first); *e.DeadLetteredAs != dead.ID || *e.RequeuedAs != copied {
		t.Errorf("history has %s", describe(e))
	}
	if e := b.get(t, copied); e.Queue != "mail" || e.DeadLetterOf != nil {
		t.Errorf("the copy is %s", describe(e))
	}
}

func TestDeadLetterKeepsMetadataOfTheLargestSize(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	meta := `{"a": "` + strings.Repeat("x", queue.MaxMeta-len(`{"a": ""}`)) + `"}`
	b.insertEvents(t, queue.InsertParams{Queue: "mail", Event: json.RawMessage(`{}`), Meta: json.RawMessage(meta)})
	l := b.leaseOn(t)
	message := strings.Repeat("\u0001é", 32_768)
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: l, Error: message, Final: true}); err != nil {
		t.Fatal(err)
	}
	dead := b.deadLetterOf(t, l.ID)
	if why := causeOf(t, dead); *why.Error != strings.Repeat("\u0001é", 500) || !strings.Contains(string(dead.Meta), strings.Repeat("x", 16_000)) {
		t.Errorf("the dead letter has %d bytes of metadata, and the error %.40q…", len(dead.Meta), *why.Error)
	}
	if e := b.get(t, l.ID); *e.LastError != message {
		t.Errorf("history has an error of %d bytes", len(*e.LastError))
	}
	// It can be worked on like any other event.
	if n, err := b.Move(t.Context(), deadQueue, "mail", nil, 0); n != 1 || err != nil {
		t.Fatalf("moved %d, %v", n, err)
	}
	b.expire(t)
	again := b.deadLetterOf(t, dead.ID)
	if _, err := b.Purge(t.Context(), deadQueue); err != nil {
		t.Fatal(err)
	}
	if r, err := b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: queue.HistoryFilter{ID: &again.ID}}); err != nil || r.Requeued != 1 {
		t.Errorf("requeued %+v, %v", r, err)
	}
	if _, err := b.sql.Exec(t.Context(), `update agent.event set meta = meta || '{"b": 1}'`); err == nil {
		t.Error("a dead letter may have more metadata of its sender's than other events")
	}
	if _, err := b.sql.Exec(t.Context(), `update agent.event set meta = jsonb_set(meta, '{dead_letter,error}', to_jsonb(repeat('x', 20000)))`); err == nil {
		t.Error("a dead letter may have a cause of any size")
	}
}

func TestEventThatCannotBeStoredAnewHasADeadLetterOfWhatCanBeKept(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	b.put(t, queue.Policy{Queue: "q", DeadLetter: &queue.DeadLetter{Queue: deadQueue}})
	id := b.insertUnchecked(t, hugeNumbers(1)) // it can be read, but not be stored anew
	b.exec(t, `alter table agent.event disable trigger user`)
	b.exec(t, `update agent.event set occurrence = '[1e131071]', meta = '[]'`)
	b.exec(t, `alter table agent.event enable trigger user`)
	claimed := b.claim(t, queue.ClaimParams{Queue: "q", Limit: 10}, 1)[0]
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(claimed), Final: true}); err != nil {
		t.Fatal(err)
	}
	dead := b.deadLetterOf(t, id)
	if why := causeOf(t, dead); string(dead.Payload) != `{}` || dead.Occurrence != nil || fmt.Sprint(why.Omitted) != "[event meta occurrence]" {
		t.Errorf("the dead letter is %s", describe(dead))
	}
}

func TestEventEndsInHistoryWhenItsDeadLetterIsRefused(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	b.exec(t, `create function agent.refuse() returns trigger language plpgsql as $$ begin if new.queue = 'mail.dead' and new.event = '{"n": 1}' then raise exception 'not this one'; end if; return new; end $$`)
	b.exec(t, `create trigger refuse before insert on agent.event for each row execute function agent.refuse()`)
	ids := b.insertN(t, "mail", 3)
	if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxVTAge: new(time.Duration(0))}); n != 3 || err != nil {
		t.Fatalf("the sweep expired %d, %v", n, err)
	}
	b.deadLetterOf(t, ids[0])
	b.deadLetterOf(t, ids[2])
	e := b.get(t, ids[1])
	if e.Outcome != queue.Expired || e.DeadLetteredAs != nil || e.LastError == nil || *e.LastError != "no dead letter could be inserted: not this one" {
		t.Errorf("history has %s", describe(e))
	}
}

func TestAckAfterASweepWithdrawsTheDeadLetter(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	b.insertN(t, "mail", 2)
	l := b.expire(t)
	dead := b.deadLetterOf(t, l.ID)
	for range 2 { // the second repeats the first
		if r := b.ack(t, l); r.Err != nil || r.Outcome != queue.Done {
			t.Fatalf("the ack returned %+v", r)
		}
	}
	if e := b.get(t, l.ID); e.Outcome != queue.Done || e.DeadLetteredAs != nil {
		t.Errorf("history has %s", describe(e))
	}
	if e := b.get(t, dead.ID); e.Outcome != queue.Cancelled || *e.DeadLetterOf != l.ID || e.LastError == nil || e.DeadLetteredAs != nil {
		t.Errorf("the dead letter is %s", describe(e))
	}
	b.claim(t, queue.ClaimParams{Queue: deadQueue}, 0)

	l = b.expire(t)
	dead = b.deadLetterOf(t, l.ID)
	taken := b.claim(t, queue.ClaimParams{Queue: deadQueue}, 1)[0]
	for range 2 {
		if r := b.ack(t, l); !errors.Is(r.Err, queue.ErrLeaseLost) {
			t.Fatalf("the ack of an event whose dead letter is being worked on returned %+v", r)
		}
		if r := b.ack(t, lease(taken)); r.Outcome != queue.Done {
			t.Fatalf("the ack of the dead letter returned %+v", r)
		}
	}
	if e := b.get(t, l.ID); e.Outcome != queue.Expired || *e.DeadLetteredAs != dead.ID {
		t.Errorf("history has %s", describe(e))
	}
}

// Of the ack of an event that has expired and the claim of its dead letter, one succeeds.
func TestAckAndClaimOfTheDeadLetterExcludeEachOther(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	const rounds, each = 10, 20
	withdrawn := 0
	for range rounds {
		b.insertN(t, "mail", each)
		events := b.claim(t, queue.ClaimParams{Queue: "mail", Limit: each}, each)
		b.exec(t, `update agent.event set vt = now() - interval '1 ms' where queue = 'mail'`)
		if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxAttempts: 1}); n != each || err != nil {
			t.Fatalf("the sweep expired %d, %v", n, err)
		}
		acked := make([]bool, each)
		taken := map[int64]bool{}
		var work sync.WaitGroup
		work.Go(func() {
			for i, e := range events {
				r, err := b.Ack(t.Context(), acks(lease(e)))
				if err != nil || r[0].Err != nil && !errors.Is(r[0].Err, queue.ErrLeaseLost) {
					t.Errorf("the ack returned %+v, %v", r, err)
					return
				}
				acked[i] = r[0].Err == nil
			}
		})
		work.Go(func() {
			for {
				got, err := b.Claim(t.Context(), queue.ClaimParams{Queue: deadQueue, Limit: 1, Order: queue.Random})
				if err != nil || len(got) == 0 {
					return
				}
				taken[*got[0].DeadLetterOf] = true
			}
		})
		work.Wait()
		for i, e := range events {
			if acked[i] {
				withdrawn++
			}
			// The claims end when they find nothing: the rest of the dead letters may be locked by acks that come too late.
			if acked[i] && taken[e.ID] {
				t.Errorf("event %d was acked, and its dead letter was claimed", e.ID)
			}
			if got := b.get(t, e.ID); acked[i] != (got.Outcome == queue.Done) || acked[i] != (got.DeadLetteredAs == nil) {
				t.Errorf("acked: %v; history has %s", acked[i], describe(got))
			}
		}
		if _, err := b.Purge(t.Context(), deadQueue); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of %d acks came in time", withdrawn, rounds*each)
}

func TestDeadLetterQueueHasNoDeadLettersOfItsOwn(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	to := func(from, to string) error {
		_, err := b.PutPolicy(t.Context(), queue.Policy{Queue: from, DeadLetter: &queue.DeadLetter{Queue: to}}, queue.Precondition{})
		return err
	}
	for _, chain := range [][2]string{{deadQueue, "graveyard"}, {"shop", "mail"}, {deadQueue, "mail"}, {deadQueue, deadQueue}, {"self", "self"}} {
		if err := to(chain[0], chain[1]); !errors.Is(err, queue.ErrDeadLetterChain) {
			t.Errorf("%s to %s: %v", chain[0], chain[1], err)
		}
		if _, err := b.sql.Exec(t.Context(), `insert into agent.queue (name, dead_letter_queue) values ($1, $2) on conflict (name) do update set dead_letter_queue = excluded.dead_letter_queue`, chain[0], chain[1]); err == nil {
			t.Errorf("%s to %s: a row can be written by hand", chain[0], chain[1])
		}
	}
	for _, invalid := range []string{"", "no name", "queued.publish"} {
		if err := to("shop", invalid); !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("to %q: %v", invalid, err)
		}
	}
	if err := to("shop", deadQueue); err != nil {
		t.Errorf("a dead-letter queue may be that of many: %v", err)
	}
	b.insertN(t, deadQueue, 1)
	queues, err := b.Queues(t.Context(), queue.QueuesParams{Queues: []string{"mail*"}})
	if err != nil || len(queues.Queues) != 2 || fmt.Sprint(queues.Queues[0].DeadLettersOf, queues.Queues[1].DeadLettersOf) != "[] [mail]" {
		t.Errorf("the queues that a key may use are %+v, %v", queues, err)
	}
	if p, stats, err := b.Queue(t.Context(), deadQueue, 0, nil); err != nil || p.DeadLetter != nil || fmt.Sprint(stats.DeadLettersOf) != "[mail shop]" {
		t.Errorf("the dead-letter queue is %+v, %+v, %v", p, stats, err)
	}

	// In use, it is not deleted.
	var refused *queue.RefusedError
	if _, err := b.Delete(t.Context(), deadQueue, true, nil); !errors.As(err, &refused) || !errors.Is(err, queue.ErrQueueInUse) || refused.Detail != "queue mail, queue shop" {
		t.Errorf("the deletion: %v", err)
	}
	b.put(t, queue.Policy{Queue: "mail"})
	b.put(t, queue.Policy{Queue: "shop"})
	b.put(t, queue.Policy{Queue: deadQueue, DeadLetter: &queue.DeadLetter{Queue: "mail"}}) // the other way round
	if _, err := b.Delete(t.Context(), deadQueue, true, nil); err != nil {
		t.Errorf("the deletion of one that is none any more: %v", err)
	}
}

// Policies that are put at the same time make no chain, nor is a queue deleted that becomes a dead-letter queue meanwhile.
func TestPoliciesPutAtTheSameTimeMakeNoChain(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	names := []string{"a", "b", "c", "d"}
	var work sync.WaitGroup
	for i, from := range names {
		work.Go(func() {
			for n := range 25 {
				p := queue.Policy{Queue: from}
				if n%3 != 2 {
					p.DeadLetter = &queue.DeadLetter{Queue: names[(i+1+n%3)%len(names)]}
				}
				if _, err := b.PutPolicy(t.Context(), p, queue.Precondition{}); err != nil && !errors.Is(err, queue.ErrDeadLetterChain) && !errors.Is(err, queue.ErrLocked) {
					t.Errorf("putting: %v", err)
				}
				if n%5 == 4 {
					if _, err := b.Delete(t.Context(), from, false, nil); err != nil && !errors.Is(err, queue.ErrQueueInUse) && !errors.Is(err, queue.ErrQueueNotFound) && !errors.Is(err, queue.ErrLocked) {
						t.Errorf("deleting: %v", err)
					}
				}
			}
		})
	}
	work.Go(func() {
		for range 100 {
			if n := chains(t, b); n != 0 {
				t.Errorf("there are %d chains", n)
			}
		}
	})
	work.Wait()
	if n := chains(t, b); n != 0 {
		t.Errorf("there are %d chains", n)
	}
}

func chains(t *testing.T, b env) int {
	t.Helper()
	return pgtest.Query[int](t, b.sql, `select count(*) from agent.queue q join agent.queue d on d.name = q.dead_letter_queue where d.dead_letter_queue is not null`)
}

func TestDeadLettersOfAnUndeclaredQueue(t *testing.T) {
	t.Parallel()
	b := setupDeclared(t)
	mail := queue.Policy{Queue: "mail", DeadLetter: &queue.DeadLetter{Queue: deadQueue}}
	_, err := b.PutPolicy(t.Context(), mail, queue.Precondition{})
	wantUndeclared(t, "a policy", deadQueue, err)
	b.declare(t, deadQueue)
	b.put(t, mail)
	b.put(t, queue.Policy{Queue: "plain"}) // which needs nothing that is declared
	b.exec(t, `delete from agent.queue where name = $1`, deadQueue)
	b.insertN(t, "mail", 1)
	if dead := b.deadLetterOf(t, b.nackFinally(t)); dead.State != queue.Ready || dead.Queue != deadQueue {
		t.Errorf("the dead letter is %s", describe(dead))
	}
}

func TestWaitingClaimsGetDeadLetters(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, neverPolls)
	runService(t, b.Service)
	awaitListening(t, b)
	other := anotherService(t, b.url, neverPolls)
	b.put(t, queue.Policy{Queue: deadQueue, Delay: new(time.Hour)}) // for which dead letters do not wait
	for name, end := range map[string]func(queue.Lease) error{
		"by a nack here": func(l queue.Lease) error {
			_, err := b.Nack(t.Context(), queue.NackParams{Lease: l, Final: true})
			return err
		},
		"by a nack elsewhere": func(l queue.Lease) error {
			_, err := other.Nack(t.Context(), queue.NackParams{Lease: l, Final: true})
			return err
		},
		"by a nack from SQL": func(l queue.Lease) error {
			b.exec(t, `select agent.nack_event($1, $2, _final => true)`, l.ID, l.Receipt)
			return nil
		},
		"by a nack that notifies nobody": func(l queue.Lease) error {
			b.exec(t, `select vt, outcome, queue, repeated from agent.nack_event($1, $2, null, 'no', true, _notify => false, _retryable => null, _queues => null)`, l.ID, l.Receipt)
			return nil
		},
		"by a sweep elsewhere": func(l queue.Lease) error {
			b.endLease(t, l.ID)
			_, err := other.Sweep(t.Context(), queue.SweepParams{MaxAttempts: 1, Queue: "mail"})
			return err
		},
	} {
		if name == "by a nack elsewhere" { // it tells others in its loops
			runService(t, other)
		}
		b.insertN(t, "mail", 1)
		l := b.leaseOn(t)
		got := whileWaiting(t, b, queue.ClaimParams{Queue: deadQueue}, func() {
			if err := end(l); err != nil {
				t.Error(err)
			}
		})
		if len(got) != 1 || *got[0].DeadLetterOf != l.ID {
			t.Fatalf("%s: claimed %v", name, idsOf(got))
		}
	}
	if c := countersOf(b.Service, "mail"); c.DeadLettered != 1 || c.Failed != 1 {
		t.Errorf("counted %+v", c)
	}
	if c := countersOf(other, "mail"); c.DeadLettered != 2 || c.Expired != 1 || c.Failed != 1 {
		t.Errorf("the other one counted %+v", c)
	}
}

func countersOf(s *queue.Service, name string) queue.Counters {
	for _, c := range s.Counters() {
		if c.Queue == name {
			return c
		}
	}
	return queue.Counters{}
}

func TestPausedQueueTakesDeadLetters(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	b.put(t, queue.Policy{Queue: deadQueue, Paused: true})
	b.insertN(t, "mail", 1)
	b.deadLetterOf(t, b.nackFinally(t))
	b.claim(t, queue.ClaimParams{Queue: deadQueue}, 0)
	if err := b.Resume(t.Context(), deadQueue); err != nil {
		t.Fatal(err)
	}
	b.claim(t, queue.ClaimParams{Queue: deadQueue}, 1)
}

func TestInsertsWithoutADelayGetThatOfThePolicy(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	b.put(t, queue.Policy{Queue: "later", Delay: new(time.Hour), DeadLetter: &queue.DeadLetter{Queue: "now"}})
	at := time.Now().Add(2 * time.Hour)
	ids := b.insertEvents(t,
		queue.InsertParams{Queue: "later", Event: json.RawMessage(`{"n":0}`)},
		queue.InsertParams{Queue: "later", Event: json.RawMessage(`{"n":1}`), IdempotencyKey: "k"},
		queue.InsertParams{Queue: "later", Event: json.RawMessage(`{"n":2}`), Delay: time.Minute},
		queue.InsertParams{Queue: "later", Event: json.RawMessage(`{"n":3}`), VT: &at},
		queue.InsertParams{Queue: "later", Event: json.RawMessage(`{"n":4}`), AtOnce: true},
		queue.InsertParams{Queue: "now", Event: json.RawMessage(`{"n":5}`)},
	)
	ids = append(ids,
		b.insertEvents(t, queue.InsertParams{Queue: "later", Event: json.RawMessage(`{"n":1}`), IdempotencyKey: "k"})[0],
		b.insert(t, "later", `{"n":7}`)[0],
		pgtest.Query[int64](t, b.sql, `select agent.insert_event('{"n": 8}', 'later')`),
		pgtest.Query[int64](t, b.sql, `select agent.insert_event('{"n": 9}', 'later', _delay => '0')`),
		pgtest.Query[int64](t, b.sql, `select id from agent.insert_events('{"{}"}', '{later}')`),
		pgtest.Query[int64](t, b.sql, `select agent.insert_event('{"n": 1}', 'later', _key => 'k')`),
	)
	if ids[6] != ids[1] || ids[11] != ids[1] {
		t.Errorf("a repeated insert made another event: %v", ids)
	}
	for i, want := range []time.Duration{time.Hour, time.Hour, time.Minute, 2 * time.Hour, 0, 0, time.Hour, time.Hour, time.Hour, 0, time.Hour, time.Hour} {
		e := b.get(t, ids[i])
		checkNear(t, fmt.Sprintf("the vt of event %d", i), e.VT, e.EnqueuedAt.Add(want))
	}
	b.put(t, queue.Policy{Queue: "later"})
	checkNear(t, "the vt without a policy", b.get(t, b.insert(t, "later", `{}`)[0]).VT, time.Now())
}

func TestEventsThatThePolicyDelaysAreNotHandedToWaitingClaimsBefore(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	runService(t, b.Service)
	awaitListening(t, b)
	const delay = 300 * time.Millisecond
	b.put(t, queue.Policy{Queue: "later", Delay: new(delay)})
	for _, atOnce := range []bool{false, true, false} {
		got := whileWaiting(t, b, queue.ClaimParams{Queue: "later"}, func() {
			b.insertEvents(t, queue.InsertParams{Queue: "later", Event: json.RawMessage(`{}`), AtOnce: atOnce})
		})
		if len(got) != 1 || got[0].Claimed[0].Sub(got[0].EnqueuedAt) < delay != atOnce {
			t.Fatalf("at once: %v, claimed %+v", atOnce, got)
		}
	}
}

func TestClaimsWaitAsThePolicySays(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	runService(t, b.Service)
	awaitListening(t, b)
	other := anotherService(t, b.url, nil)
	wait := func(name string) time.Duration {
		t.Helper()
		got, err := b.PolicyWait(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := wait("mail"); got != 0 {
		t.Errorf("without a policy: %v", got)
	}
	b.put(t, queue.Policy{Queue: "mail", Wait: new(20 * time.Second)})
	if got := wait("mail"); got != 20*time.Second {
		t.Errorf("by the policy: %v", got)
	}
	if _, err := other.PutPolicy(t.Context(), queue.Policy{Queue: "mail", Wait: new(10 * time.Second), Paused: true}, queue.Precondition{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the change of another process is known", func() bool { return wait("mail") == 10*time.Second })
	for field, p := range map[string]queue.Policy{"wait": {Queue: "mail", Wait: new(61 * time.Second)}, "delay": {Queue: "mail", Delay: new(-time.Second)}} {
		var invalid *queue.InvalidError
		if _, err := b.PutPolicy(t.Context(), p, queue.Precondition{}); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
