package queue_test

import (
	"errors"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// takenOver returns the lost lease of a first worker and the event as the second worker claimed it.
func takenOver(t *testing.T, b env) (lost queue.Lease, owner queue.Event) {
	t.Helper()
	b.insert(t, "", `{"a":1}`)
	first := b.claimOne(t)
	b.endLease(t, first.ID)
	owner = b.claimOne(t)
	if owner.ID != first.ID || owner.Receipt == first.Receipt {
		t.Fatalf("second claim got event %d with receipt %s, the first %d with %s", owner.ID, owner.Receipt, first.ID, first.Receipt)
	}
	return lease(first), owner
}

// checkStillHeld fails the test unless the second worker's lease is unchanged and can be acked.
func checkStillHeld(t *testing.T, b env, owner queue.Event) {
	t.Helper()
	now := b.get(t, owner.ID)
	if now.State != queue.Leased || !now.VT.Equal(owner.VT) || now.Attempts != owner.Attempts {
		t.Errorf("the event under the new lease is %+v, was %+v", now, owner)
	}
	if r := b.ack(t, lease(owner)); r.Err != nil || r.Outcome != queue.Done {
		t.Errorf("the ack with the new lease returned %+v", r)
	}
}

func TestAckAfterLeaseTakenOverIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	lost, owner := takenOver(t, b)
	if r := b.ack(t, lost); !errors.Is(r.Err, queue.ErrLeaseLost) {
		t.Errorf("ack with the lost lease returned %+v", r)
	}
	checkStillHeld(t, b, owner)
	if r := b.ack(t, lost); !errors.Is(r.Err, queue.ErrLeaseLost) {
		t.Errorf("ack with the lost lease after the ack with the new one returned %+v", r)
	}
}

func TestNackAfterLeaseTakenOverIsRefused(t *testing.T) {
	t.Parallel()
	for _, final := range []bool{false, true} {
		b := setup(t, nil)
		lost, owner := takenOver(t, b)
		if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lost, Final: final}); !errors.Is(err, queue.ErrLeaseLost) {
			t.Errorf("nack (final %v) with the lost lease: %v", final, err)
		}
		checkStillHeld(t, b, owner)
	}
}

func TestExtendAfterLeaseTakenOverIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	lost, owner := takenOver(t, b)
	if _, err := b.Extend(t.Context(), lost, time.Hour); !errors.Is(err, queue.ErrLeaseLost) {
		t.Errorf("extend with the lost lease: %v", err)
	}
	checkStillHeld(t, b, owner)
}

func TestReleaseAfterLeaseTakenOverChangesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	lost, owner := takenOver(t, b)
	if err := b.Release(t.Context(), []queue.Lease{lost}); err != nil {
		t.Error(err)
	}
	checkStillHeld(t, b, owner)
}

func TestAckAfterLeaseEndedSucceedsUntilTheNextClaim(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{}`)
	e := b.claimOne(t)
	b.endLease(t, e.ID)
	if r := b.ack(t, lease(e)); r.Err != nil || r.Outcome != queue.Done {
		t.Errorf("ack returned %+v", r)
	}
}

func TestAckRepeatedWithItsReceiptSucceeds(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.insert(t, "", `{}`)[0]
	e := b.claimOne(t)
	for range 3 {
		if r := b.ack(t, lease(e)); r.Err != nil || r.Outcome != queue.Done {
			t.Errorf("ack returned %+v", r)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where id = $1`, id); n != 1 {
		t.Errorf("%d rows in history", n)
	}
	if c := b.Counters(); len(c) != 1 || c[0].Acked != 1 {
		t.Errorf("counted %+v, want one ack", c)
	}
}

func TestAckReturnsAResultForEachEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertN(t, "", 3)
	claimed := b.claim(t, queue.ClaimParams{Limit: 2}, 2)
	results, err := b.Ack(t.Context(), acks(
		lease(claimed[1]),
		queue.Lease{ID: 1 << 60},
		queue.Lease{ID: claimed[0].ID, Receipt: claimed[1].Receipt}, // another event's
		lease(claimed[1]),       // twice in one call
		queue.Lease{ID: ids[2]}, // unconditional, and never claimed
		queue.Lease{ID: claimed[0].ID, Receipt: "nonsense"},
	))
	if err != nil {
		t.Fatal(err)
	}
	want := []queue.AckResult{
		{ID: claimed[1].ID, Outcome: queue.Done},
		{ID: 1 << 60, Err: queue.ErrNotFound},
		{ID: claimed[0].ID, Err: queue.ErrLeaseLost},
		{ID: claimed[1].ID, Outcome: queue.Done},
		{ID: ids[2], Outcome: queue.Cancelled},
		{ID: claimed[0].ID, Err: queue.ErrLeaseLost},
	}
	for i := range want {
		if results[i] != want[i] {
			t.Errorf("result %d is %+v, want %+v", i, results[i], want[i])
		}
	}
	if e := b.get(t, claimed[0].ID); e.State != queue.Leased {
		t.Errorf("the event whose ack was refused is %+v", e)
	}
}

func TestNackReturnsTheEventToItsQueueAndStoresTheError(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{}`)
	first := b.claimOne(t)
	p := queue.NackParams{Lease: lease(first), Delay: new(time.Hour), Error: "no luck"}
	r, err := b.Nack(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	checkNear(t, "vt", r.VT, time.Now().Add(time.Hour))
	e := b.get(t, first.ID)
	if e.State != queue.Scheduled || e.LastError == nil || *e.LastError != "no luck" || e.Attempts != 1 {
		t.Errorf("after the nack: %+v", e)
	}

	again, err := b.Nack(t.Context(), queue.NackParams{Lease: p.Lease})
	if err != nil || !again.VT.Equal(r.VT) {
		t.Errorf("the repeated nack returned %+v, %v; the first %+v", again, err, r)
	}
	if _, err := b.Extend(t.Context(), p.Lease, time.Hour); !errors.Is(err, queue.ErrLeaseLost) {
		t.Errorf("extend of a nacked lease: %v", err)
	}

	b.endLease(t, first.ID)
	if e := b.claimOne(t); e.Attempts != 2 || len(e.Claimed) != 2 || *e.LastError != "no luck" {
		t.Errorf("second claim got %+v", e)
	}
}

func TestFinalNackMovesToHistoryAsFailed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{}`)
	e := b.claimOne(t)
	p := queue.NackParams{Lease: lease(e), Error: "hopeless", Final: true}
	for range 2 {
		r, err := b.Nack(t.Context(), p)
		if err != nil || r.Outcome != queue.Failed {
			t.Fatalf("the final nack returned %+v, %v", r, err)
		}
	}
	h := b.get(t, e.ID)
	if h.Outcome != queue.Failed || h.LastError == nil || *h.LastError != "hopeless" || h.State != "" || h.FinishedAt == nil {
		t.Errorf("history has %+v", h)
	}
	if r := b.ack(t, lease(e)); !errors.Is(r.Err, queue.ErrLeaseLost) {
		t.Errorf("ack of a failed event returned %+v", r)
	}
}

func TestExtendMovesTheLease(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{}`)
	e := b.claimOne(t)
	vt, err := b.Extend(t.Context(), lease(e), 3*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	checkNear(t, "vt", vt, time.Now().Add(3*time.Hour))
	if now := b.get(t, e.ID); now.State != queue.Leased || !now.VT.Equal(vt) {
		t.Errorf("after the extension: %+v", now)
	}
}

func TestLeaseCallsOnUnknownEventsReturnNotFound(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	l := queue.Lease{ID: 4711, Receipt: "x"}
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: l}); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("nack: %v", err)
	}
	if _, err := b.Extend(t.Context(), l, time.Hour); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("extend: %v", err)
	}
	if _, err := b.Get(t.Context(), l.ID); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if _, err := b.Requeue(t.Context(), l.ID, nil); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("requeue: %v", err)
	}
}

func TestReleaseDoesNotCountTheAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{}`)
	first := b.claimOne(t)
	if err := b.Release(t.Context(), []queue.Lease{lease(first)}); err != nil {
		t.Fatal(err)
	}
	if e := b.get(t, first.ID); e.State != queue.Ready || e.Attempts != 0 || len(e.Claimed) != 0 {
		t.Errorf("after the release: %+v", e)
	}
	second := b.claimOne(t)
	if second.Attempts != 1 || second.Receipt == first.Receipt {
		t.Errorf("second claim is attempt %d with receipt %s; the first had %s", second.Attempts, second.Receipt, first.Receipt)
	}
	if r := b.ack(t, lease(first)); !errors.Is(r.Err, queue.ErrLeaseLost) {
		t.Errorf("ack with the released receipt returned %+v", r)
	}
}

func TestReleaseDoesNotRestoreANackedLease(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{}`)
	first := b.claimOne(t)
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(first)}); err != nil {
		t.Fatal(err)
	}
	if err := b.Release(t.Context(), []queue.Lease{lease(b.claimOne(t))}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Extend(t.Context(), lease(first), time.Hour); !errors.Is(err, queue.ErrLeaseLost) {
		t.Errorf("extend of the nacked lease: %v", err)
	}
}

func TestFinalNackRepeatedDuringTheFirstOnesCommitSucceeds(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{}`)
	e := b.claimOne(t)
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent.nack_event($1, $2, _error => 'first', _final => true)`, e.ID, e.Receipt); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		result queue.NackResult
		err    error
	}
	done := make(chan answer, 1)
	go func() {
		r, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(e), Error: "second", Final: true})
		done <- answer{r, err}
	}()
	awaitLockWait(t, b, tx.Conn())
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-done; a.err != nil || a.result.Outcome != queue.Failed {
		t.Errorf("the repeated nack returned %+v", a)
	}
	if h := b.get(t, e.ID); h.Outcome != queue.Failed || *h.LastError != "first" {
		t.Errorf("history has %+v", h)
	}
}

func TestTextThatIsNotUTF8IsUnrepresentable(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{}`)
	e := b.claimOne(t)
	const bad = "a\xffb"
	for name, call := range map[string]func() error{
		"insert": func() error {
			_, err := b.Insert(t.Context(), []queue.InsertParams{{Event: []byte(`{}`), Queue: bad}})
			return err
		},
		"payload": func() error {
			_, err := b.Insert(t.Context(), []queue.InsertParams{{Event: []byte(`{"a":"` + bad + `"}`)}})
			return err
		},
		"claim": func() error { _, err := b.Claim(t.Context(), queue.ClaimParams{Queue: bad}); return err },
		"ack":   func() error { _, err := b.Ack(t.Context(), acks(queue.Lease{ID: e.ID, Receipt: bad})); return err },
		"nack":  func() error { _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(e), Error: bad}); return err },
		"extend": func() error {
			_, err := b.Extend(t.Context(), queue.Lease{ID: e.ID, Receipt: bad}, time.Hour)
			return err
		},
		"release": func() error { return b.Release(t.Context(), []queue.Lease{{ID: e.ID, Receipt: bad}}) },
	} {
		if err := call(); !errors.Is(err, queue.ErrUnrepresentable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	checkStillHeld(t, b, e)
}
