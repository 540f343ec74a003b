package queue_test

import (
	"errors"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func TestReleasedEventIsClaimableAgainWithAllItsAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 2)
	claimed := b.claim(t, queue.ClaimParams{Limit: 2}, 2)
	first, second := claimed[0], claimed[1]
	results, err := b.ReleaseEach(t.Context(), []queue.Lease{
		lease(second), lease(first), lease(first), {ID: first.ID, Receipt: "x"}, {ID: 1 << 60, Receipt: "x"},
	}, 0, nil)
	if err != nil || len(results) != 5 {
		t.Fatal(results, err)
	}
	for i, want := range []error{nil, nil, queue.ErrLeaseLost, queue.ErrLeaseLost, queue.ErrNotFound} {
		if !errors.Is(results[i].Err, want) || results[i].VT.IsZero() != (want != nil) {
			t.Errorf("result %d is %+v, want %v", i, results[i], want)
		}
	}
	again, err := b.ReleaseEach(t.Context(), []queue.Lease{lease(first)}, 0, nil)
	if err != nil || !errors.Is(again[0].Err, queue.ErrLeaseLost) {
		t.Errorf("released again it is %+v, %v", again, err)
	}
	if result := b.ack(t, lease(first)); !errors.Is(result.Err, queue.ErrLeaseLost) {
		t.Errorf("an ack after the release: %v", result.Err)
	}
	taken := b.claim(t, queue.ClaimParams{Limit: 2}, 2)
	if taken[0].Attempts != 1 || len(taken[0].Claimed) != 1 || taken[0].ID+taken[1].ID != first.ID+second.ID {
		t.Errorf("claimed after the release: %+v", taken)
	}

	// With a delay it is scheduled, and an earlier attempt stays.
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(taken[0]), Delay: new(time.Duration(0)), Error: "first"}); err != nil {
		t.Fatal(err)
	}
	b.ack(t, lease(taken[1]))
	retried := b.claim(t, queue.ClaimParams{Limit: 2}, 1)[0]
	if retried.ID != taken[0].ID || retried.Attempts != 2 {
		t.Fatalf("%+v", retried)
	}
	if results, err = b.ReleaseEach(t.Context(), []queue.Lease{lease(retried)}, time.Hour, nil); err != nil || results[0].Err != nil {
		t.Fatal(results, err)
	}
	seen := b.get(t, retried.ID)
	if seen.State != queue.Scheduled || seen.Attempts != 1 || len(seen.Claimed) != 1 || seen.VT.Before(now(t, b.sql).Add(50*time.Minute)) {
		t.Errorf("released with a delay it is %+v", seen)
	}
}

func TestLeasesOfABatchAreExtendedEachOnItsOwn(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 4)
	claimed := b.claim(t, queue.ClaimParams{Limit: 4, InvisibleFor: time.Minute}, 4)
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(claimed[3]), Delay: new(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	b.ack(t, lease(claimed[2]))
	before := now(t, b.sql)
	results, err := b.ExtendEach(t.Context(), []queue.Extend{
		{Lease: lease(claimed[3])},
		{Lease: lease(claimed[1]), InvisibleFor: 2 * time.Hour},
		{Lease: lease(claimed[0])},
		{Lease: lease(claimed[2])},
		{Lease: queue.Lease{ID: claimed[0].ID, Receipt: claimed[1].Receipt}},
		{Lease: queue.Lease{ID: 1 << 60, Receipt: "x"}},
	}, nil)
	if err != nil || len(results) != 6 {
		t.Fatal(results, err)
	}
	for i, want := range []error{queue.ErrLeaseLost, nil, nil, queue.ErrLeaseLost, queue.ErrLeaseLost, queue.ErrNotFound} {
		if !errors.Is(results[i].Err, want) {
			t.Errorf("result %d is %+v, want %v", i, results[i], want)
		}
	}
	for i, want := range map[int]time.Duration{1: 2 * time.Hour, 2: queue.DefaultInvisibleFor} {
		if d := results[i].VT.Sub(before); d < want || d > want+time.Minute || !results[i].VT.Equal(b.get(t, results[i].ID).VT) {
			t.Errorf("result %d ends after %v, want %v", i, d, want)
		}
	}
	if results, err := b.ExtendEach(t.Context(), []queue.Extend{{Lease: lease(claimed[0])}}, []string{"other"}); err != nil || !errors.Is(results[0].Err, queue.ErrNotFound) {
		t.Errorf("an event of others: %+v, %v", results, err)
	}
	for _, e := range []queue.Event{claimed[0], claimed[2]} { // in its queue, and in history
		if results, err := b.ReleaseEach(t.Context(), []queue.Lease{lease(e)}, 0, []string{"other"}); err != nil || !errors.Is(results[0].Err, queue.ErrNotFound) {
			t.Errorf("an event of others: %+v, %v", results, err)
		}
	}
}

func TestLeasesOfABatchLastAsThePoliciesOfTheirQueuesSay(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.policy(t, queue.Policy{InvisibleFor: new(2 * time.Hour)})
	b.insertN(t, "", 2)
	b.insertN(t, "other", 1)
	claimed := append(b.claim(t, queue.ClaimParams{Limit: 2, InvisibleFor: time.Minute}, 2), b.claim(t, queue.ClaimParams{Queue: "other", InvisibleFor: time.Minute}, 1)...)
	results, err := b.ExtendEach(t.Context(), []queue.Extend{
		{Lease: lease(claimed[2])}, {Lease: lease(claimed[1])}, {Lease: lease(claimed[0]), InvisibleFor: 4 * time.Hour},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []time.Duration{queue.DefaultInvisibleFor, 2 * time.Hour, 4 * time.Hour} {
		checkNear(t, "the end of a lease", results[i].VT, now(t, b.sql).Add(want))
	}
}

// A release takes the event back to where the claim before left it.
func TestReleaseLeavesNothingOfItsClaim(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 1)
	first := b.claim(t, queue.ClaimParams{MaxAttempts: 100, Worker: "first"}, 1)[0]
	b.endLease(t, first.ID)
	second := b.claim(t, queue.ClaimParams{MaxAttempts: 100, Worker: "second"}, 1)[0]
	if results, err := b.ReleaseEach(t.Context(), []queue.Lease{lease(second)}, 0, nil); err != nil || results[0].Err != nil {
		t.Fatal(results, err)
	}
	if e := b.get(t, first.ID); e.Worker != "first" || e.Attempts != 1 || e.State != queue.Ready {
		t.Errorf("after the release it is %+v", e)
	}
	for _, l := range []queue.Lease{lease(first), lease(second)} {
		if results, err := b.ExtendEach(t.Context(), []queue.Extend{{Lease: l}}, nil); err != nil || !errors.Is(results[0].Err, queue.ErrLeaseLost) {
			t.Errorf("extended after the release: %+v, %v", results, err)
		}
	}

	// The time of a claim may be out of range, as whoever writes rows by SQL pleases.
	third := b.claim(t, queue.ClaimParams{MaxAttempts: 100}, 1)[0]
	b.exec(t, `update agent.event set claimed[2] = 'infinity'`)
	if results, err := b.ReleaseEach(t.Context(), []queue.Lease{lease(third)}, 0, nil); err != nil || results[0].Err != nil {
		t.Fatal(results, err)
	}
	b.claimOne(t)
}

func TestSQLReleasesAnEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 1)
	e := b.claimOne(t)
	if _, err := b.sql.Exec(t.Context(), `select agent.release_event($1, 'x')`, e.ID); err == nil {
		t.Error("a wrong receipt was taken")
	}
	listener := listen(t, b.url)
	if vt := pgtest.Query[time.Time](t, b.sql, `select agent.release_event($1, $2)`, e.ID, e.Receipt); !vt.Equal(e.Claimed[0]) {
		t.Errorf("it can be claimed from %v on, want %v", vt, e.Claimed[0])
	}
	if got := received(t, listener); got[queue.Default] != 1 {
		t.Errorf("notified %v, want of the queue", got)
	}
	if again := b.claimOne(t); again.Attempts != 1 {
		t.Errorf("claimed as attempt %d", again.Attempts)
	}
}

// The time of the claim, which a released event gets back, is in the future if the clock of the database's server was set back since.
func TestAReleasedEventIsClaimableAtOnceWhenTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"released": `select agent.release_event($1, $2)`, "undone": `select agent.release_events(array[$1::int8], array[$2])`,
	} {
		for _, flow := range []string{`null`, `{"order": true}`, `{"fair": true}`} {
			t.Run(name+" "+flow, func(t *testing.T) {
				t.Parallel()
				b := setup(t, nil)
				b.limit(t, "q", flow)
				id := b.insertGrouped(t, "q", "a")[0]
				receipt := pgtest.Query[string](t, b.sql, `select agent.receipt(e) from agent.claim_events('q') e`)
				b.exec(t, `update agent.event set claimed = array[now() + interval '1 hour']`)
				b.exec(t, statement, id, receipt)
				b.wantClaimed(t, "q", "afterwards", id)
			})
		}
	}
}
