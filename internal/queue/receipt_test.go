package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// claimedThreeWays returns three leases: of a claim, of a claim of some types, and of a claim that was waiting for the event.
func claimedThreeWays(t *testing.T, b env) map[string]queue.Event {
	t.Helper()
	if _, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`), Queue: "typed", Type: "letter"}}); err != nil {
		t.Fatal(err)
	}
	b.insert(t, "plain", `{}`)
	p := queue.ClaimParams{InvisibleFor: time.Hour}
	waited, _ := insertWhileWaiting(t, b, p, queue.InsertParams{Event: json.RawMessage(`{}`)})
	keyed, _ := insertWhileWaiting(t, b, p, queue.InsertParams{Event: json.RawMessage(`{}`), IdempotencyKey: "k"})
	return map[string]queue.Event{
		"plain":  b.claim(t, queue.ClaimParams{Queue: "plain"}, 1)[0],
		"typed":  b.claim(t, queue.ClaimParams{Queue: "typed", Types: []string{"letter"}}, 1)[0],
		"waited": waited[0],
		"keyed":  keyed[0],
	}
}

func TestReceiptHas64RandomBits(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	form := regexp.MustCompile(`^\d+\.1\.[0-9a-f]{16}$`)
	seen := make(map[string]bool)
	for how, e := range claimedThreeWays(t, b) {
		if !form.MatchString(e.Receipt) || !strings.HasPrefix(e.Receipt, fmt.Sprintf("%d.", e.ID)) {
			t.Errorf("%s: the receipt of event %d is %s", how, e.ID, e.Receipt)
		}
		seen[e.Receipt[strings.LastIndexByte(e.Receipt, '.'):]] = true
	}
	b.insertN(t, "many", 50)
	for _, e := range b.claim(t, queue.ClaimParams{Queue: "many", Limit: 50}, 50) {
		seen[e.Receipt[strings.LastIndexByte(e.Receipt, '.'):]] = true
	}
	if len(seen) != 54 {
		t.Errorf("54 claims have %d tokens", len(seen))
	}
}

// TestReaderOfAnEventCannotEndItsLease tries everything that a reader of the event, over HTTP or of the table, can make a receipt of.
func TestReaderOfAnEventCannotEndItsLease(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	for how, owner := range claimedThreeWays(t, b) {
		seen := b.get(t, owner.ID)
		at := seen.Claimed[len(seen.Claimed)-1].UnixMicro()
		hash := pgtest.Query[string](t, b.sql, `select encode(receipt_hash, 'hex') from agent.event where id = $1`, owner.ID)
		for _, receipt := range []string{
			fmt.Sprintf("%d.%d.%d", owner.ID, seen.Attempts, at),
			fmt.Sprintf("%d.%d.%016x", owner.ID, seen.Attempts, at),
			fmt.Sprintf("%d.%d.%s", owner.ID, seen.Attempts, hash),
			fmt.Sprintf("%d.%d.%016d", owner.ID, seen.Attempts, 0),
			fmt.Sprintf("%d.%d.", owner.ID, seen.Attempts),
			fmt.Sprintf("%d.%d", owner.ID, seen.Attempts),
			owner.Receipt + "0", owner.Receipt[:len(owner.Receipt)-1], " " + owner.Receipt, strings.ToUpper(owner.Receipt) + " ",
			strings.Replace(owner.Receipt, ".1.", ".2.", 1),
			`\`, ".", "é.1.éééééééééééééééé",
		} {
			guess := queue.Lease{ID: owner.ID, Receipt: receipt}
			if r := b.ack(t, guess); !errors.Is(r.Err, queue.ErrLeaseLost) {
				t.Fatalf("%s: the ack with %q returned %+v", how, receipt, r)
			}
			if _, err := b.Nack(t.Context(), queue.NackParams{Lease: guess}); !errors.Is(err, queue.ErrLeaseLost) {
				t.Errorf("%s: the nack with %q returned %v", how, receipt, err)
			}
			if _, err := b.Extend(t.Context(), guess, time.Hour); !errors.Is(err, queue.ErrLeaseLost) {
				t.Errorf("%s: extending with %q returned %v", how, receipt, err)
			}
			if err := b.Release(t.Context(), []queue.Lease{guess}); err != nil {
				t.Error(err)
			}
		}
		if n := pgtest.Query[int](t, b.sql, `select count(agent.receipt(e)) from agent.event e where e.id = $1`, owner.ID); n != 0 {
			t.Errorf("%s: agent.receipt returned a receipt of a row that no claim returned", how)
		}
		token := owner.Receipt[strings.LastIndexByte(owner.Receipt, '.')+1:]
		if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event e where to_jsonb(e)::text like '%' || $1 || '%'`, token); n != 0 {
			t.Errorf("%s: the row has the token", how)
		}
		checkStillHeld(t, b, owner)
		if r := b.ack(t, queue.Lease{ID: owner.ID, Receipt: fmt.Sprintf("%d.%d.%d", owner.ID, seen.Attempts, at)}); !errors.Is(r.Err, queue.ErrLeaseLost) {
			t.Errorf("%s: the ack of the event in history returned %+v", how, r)
		}
		if r := b.ack(t, lease(owner)); r.Err != nil || r.Outcome != queue.Done {
			t.Errorf("%s: the repeated ack returned %+v", how, r)
		}
		if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist h where to_jsonb(h)::text like '%' || $1 || '%'`, token); n != 0 {
			t.Errorf("%s: history has the token", how)
		}
	}
}

func TestReceiptOfARowThatClaimEventReturnsIsGood(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 6)
	for _, call := range []string{`agent.claim_event()`, `agent.claim_events(_limit => 1)`, `agent.claim_event(_worker => 'w')`} {
		for _, end := range []string{`agent.delete_event(id, receipt)`, `agent.nack_event(id, receipt, '1h')`} {
			var id int64
			var receipt string
			if err := b.sql.QueryRow(t.Context(), `select e.id, agent.receipt(e) from `+call+` e`).Scan(&id, &receipt); err != nil {
				t.Fatal(err)
			}
			b.exec(t, `select agent.extend_event($1, $2)`, id, receipt)
			b.exec(t, `select `+end+` from (values ($1::int8, $2)) as v (id, receipt)`, id, receipt)
		}
	}
}

// TestEachEventOfALargeClaimHasAReceiptOfItsOwn: the service makes the tokens of some events, and the database those of the others, whichever priorities they have.
func TestEachEventOfALargeClaimHasAReceiptOfItsOwn(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	const n = 600
	b.exec(t, `select from agent.insert_events(array_fill('{}'::jsonb, array[$1::int]), array_fill('many'::text, array[$1::int]), _options => (
		select array_agg(jsonb_build_object('priority', n % 3, 'type', 't' || n % 2)) from generate_series(1, $1::int) n))`, n)
	for _, p := range []queue.ClaimParams{{Limit: n / 2}, {Limit: n / 4, Types: []string{"t0"}}, {Limit: n / 2, Types: []string{"t0", "t1"}, Order: queue.Random}} {
		p.Queue, p.InvisibleFor = "many", time.Hour
		events, err := b.Claim(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		token := func(e *queue.Event) string { return e.Receipt[strings.LastIndexByte(e.Receipt, '.')+1:] }
		seen := make(map[string]bool)
		guesses, owned := make([]queue.Ack, len(events)), make([]queue.Ack, len(events))
		for i := range events {
			seen[token(&events[i])] = true
			other := &events[(i+1)%len(events)]
			guesses[i] = queue.Ack{Lease: queue.Lease{ID: events[i].ID, Receipt: fmt.Sprintf("%d.%d.%s", events[i].ID, events[i].Attempts, token(other))}}
			owned[i] = queue.Ack{Lease: lease(events[i])}
		}
		if len(events) == 0 || len(seen) != len(events) {
			t.Errorf("%d events of the claim %+v have %d tokens", len(events), p, len(seen))
		}
		for _, c := range []struct {
			acks []queue.Ack
			want error
		}{{guesses, queue.ErrLeaseLost}, {owned, nil}, {owned, nil}} {
			results, err := b.Ack(t.Context(), c.acks)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range results {
				if !errors.Is(r.Err, c.want) || c.want == nil && r.Outcome != queue.Done {
					t.Fatalf("the ack of event %d returned %+v, want %v", r.ID, r, c.want)
				}
			}
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where attempts > 0`); n != 0 {
		t.Errorf("%d events are claimed that no claim returned", n)
	}
}

func TestAcksOfOneTransactionMayHaveReceiptsOfAnyKind(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 4)
	events := b.claim(t, queue.ClaimParams{Limit: 4, InvisibleFor: time.Hour}, 4)
	wrong, unreadable, unconditional := lease(events[1]), lease(events[2]), queue.Lease{ID: events[3].ID}
	wrong.Receipt = strings.Replace(wrong.Receipt, ".1.", ".2.", 1)
	unreadable.Receipt = strings.Replace(unreadable.Receipt, ".", "..", 1)
	for range 2 {
		results, err := b.Ack(t.Context(), acks(lease(events[0]), wrong, unreadable, unconditional))
		if err != nil {
			t.Fatal(err)
		}
		got := make([]string, len(results))
		for i, r := range results {
			got[i] = string(r.Outcome) + errorText(r.Err)
		}
		lost := queue.ErrLeaseLost.Error()
		want := []string{"done", lost, lost, "done"}
		if !slices.Equal(got, want) {
			t.Errorf("the acks returned %q, want %q", got, want)
		}
		b.insertN(t, "", 1) // the one without a receipt is unknown from here on
		unconditional = queue.Lease{ID: b.claimOne(t).ID}
	}
}

func TestReleaseMakesTheReceiptBeforeValidAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 1)
	first := b.claimOne(t)
	for i := range 4 { // each claim has the attempt number of the one before, and a receipt of its own
		b.endLease(t, first.ID)
		released := b.claimOne(t)
		if i%2 == 0 {
			if err := b.Release(t.Context(), []queue.Lease{lease(released)}); err != nil {
				t.Fatal(err)
			}
		} else if results, err := b.ReleaseEach(t.Context(), []queue.Lease{lease(released)}, 0, nil); err != nil || results[0].Err != nil {
			t.Fatal(results, err)
		}
		if r := b.ack(t, lease(released)); !errors.Is(r.Err, queue.ErrLeaseLost) {
			t.Errorf("the ack of a claim that was released returned %+v", r)
		}
	}
	for range 2 {
		if r := b.ack(t, lease(first)); r.Err != nil || r.Outcome != queue.Done {
			t.Errorf("the ack with the receipt before returned %+v", r)
		}
	}
}
