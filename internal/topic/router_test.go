package topic_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/topic"
)

// deliver creates or replaces a subscription that is delivered into the queue of its name, from the beginning of the log on.
func (env environment) deliver(t *testing.T, name string, filters ...topic.SubscriptionFilter) {
	t.Helper()
	env.put(t, topic.PutSubscriptionParams{Name: name, Filters: filters, Deliver: &topic.Delivery{Queue: name}, MaxWaiting: 100_000})
}

// delivered are the positions of the events that a subscription has delivered and that are still in its queue, in the order in which they got there.
func (env environment) delivered(t *testing.T, name string) []int64 {
	t.Helper()
	return value[[]int64](t, env, `select coalesce(array_agg((e.publication ->> 'position')::int8 order by e.id), '{}') from agent.event e
		where e.publication ->> 'subscription' = $1`, name)
}

// awaitDelivered waits until a subscription has delivered as many events as there are positions, and compares.
func (env environment) awaitDelivered(t *testing.T, name string, want []int64) {
	t.Helper()
	var got []int64
	await(t, fmt.Sprintf("%d events for %s", len(want), name), func() bool {
		got = env.delivered(t, name)
		return len(got) >= len(want)
	})
	if !slices.Equal(got, want) {
		t.Errorf("%s got %d events, want %d: %s", name, len(got), len(want), difference(got, want))
	}
}

// difference says where positions differ from those wanted.
func difference(got, want []int64) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("the event %d of them is at %d, not at %d", i, got[i], want[i])
		}
	}
	return "some are missing, or too many"
}

// awaitState waits until a subscription satisfies a condition.
func (env environment) awaitState(t *testing.T, name, what string, is func(topic.Subscription) bool) {
	t.Helper()
	await(t, name+" to be "+what, func() bool {
		sub, err := env.Subscription(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return is(sub)
	})
}

func isInStep(sub topic.Subscription) bool { return sub.IsInStep }

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(busyTimeout); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", busyTimeout, what)
		}
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // between two looks at the database, which sends no signal of this
	}
}

func TestEventsAreDeliveredInOrderOnce(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.deliver(t, "all", everything(t))
	env.deliver(t, "some", wants(t, "b", []string{"b"}, ""), wants(t, "even", nil, `{"n": [0, 2]}`))
	env.deliver(t, "none", wants(t, "c", []string{"c"}, ""))
	var all, some []int64
	for range 20 {
		published := env.publish(t, "a", "b", "a", "a")
		all, some = append(all, published...), append(some, published[:3]...)
	}
	env.awaitDelivered(t, "all", all)
	env.awaitDelivered(t, "some", some)
	env.awaitDelivered(t, "none", []int64{})

	_, err := env.Publish(t.Context(), []topic.Publication{{
		Topic: "b", Event: json.RawMessage(`{"n": 2}`), Key: "k", Meta: json.RawMessage(`{"m": 1}`), Subscription: "some",
	}})
	if err != nil {
		t.Fatal(err)
	}
	var events []queue.Event
	await(t, "the event for one subscription alone", func() bool {
		page, err := env.queue.List(t.Context(), queue.ListParams{Queue: "some", Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		events = page.Events
		return len(events) > len(some)
	})
	last := events[len(events)-1]
	var publication struct {
		Subscription string    `json:"subscription"`
		Position     int64     `json:"position"`
		Topic        string    `json:"topic"`
		PublishedAt  time.Time `json:"published_at"`
		Matched      []string  `json:"matched"`
	}
	if err := json.Unmarshal(last.Publication, &publication); err != nil {
		t.Fatal(err)
	}
	if publication.Subscription != "some" || publication.Topic != "b" || !slices.Equal(publication.Matched, []string{"b", "even"}) ||
		publication.Position <= all[len(all)-1] || publication.PublishedAt.IsZero() || last.IdempotencyKey != "k" || string(last.Meta) != `{"m": 1}` || !last.EventTS.Equal(publication.PublishedAt) {
		t.Errorf("the event is %+v, its publication %+v", last, publication)
	}
	env.awaitDelivered(t, "all", all)
}

func TestSubscriptionThatBeginsInThePastCatchesUpAndStaysInStep(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.deliver(t, "first", everything(t))
	var all []int64
	for range 5 {
		all = append(all, env.publish(t, slices.Repeat([]string{"a"}, 700)...)...)
	}
	env.awaitDelivered(t, "first", all)
	env.awaitState(t, "first", "in step", isInStep)
	env.deliver(t, "second", everything(t))
	all = append(all, env.publish(t, "a")...)
	env.awaitDelivered(t, "second", all)
	env.awaitState(t, "second", "in step", isInStep)
	all = append(all, env.publish(t, "a", "b")...)
	env.awaitDelivered(t, "first", all)
	env.awaitDelivered(t, "second", all)
	env.awaitState(t, "second", "level", func(sub topic.Subscription) bool { return sub.LagEvents == 0 && sub.Position == sub.Head })
}

func TestNothingIsDeliveredWhilePaused(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.deliver(t, "paused", everything(t))
	env.deliver(t, "other", everything(t))
	all := env.publish(t, "a", "b")
	env.awaitDelivered(t, "paused", all)
	if err := env.PauseSubscription(t.Context(), "paused"); err != nil {
		t.Fatal(err)
	}
	more := env.publish(t, "a", "b")
	env.awaitDelivered(t, "other", append(all, more...))
	env.awaitDelivered(t, "paused", all)
	if err := env.ResumeSubscription(t.Context(), "paused"); err != nil {
		t.Fatal(err)
	}
	env.awaitDelivered(t, "paused", append(all, more...))
}

// TestDeliveryStopsWhenTheQueueIsFullOfEventsThatWaitForTheirTurn has all events in one group, of which one is ready at a time.
func TestDeliveryStopsWhenTheQueueIsFullOfEventsThatWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	env := setup(t)
	const room = 30
	if _, err := env.queue.PutPolicy(t.Context(), queue.Policy{Queue: "small", Flow: &queue.Flow{Concurrency: new(1)}}, queue.Precondition{}); err != nil {
		t.Fatal(err)
	}
	env.put(t, topic.PutSubscriptionParams{
		Name: "small", Filters: []topic.SubscriptionFilter{everything(t)}, Deliver: &topic.Delivery{Queue: "small", GroupFrom: "topic"}, MaxWaiting: room,
	})
	env.deliver(t, "other", everything(t))
	all := env.publish(t, slices.Repeat([]string{"a"}, 100)...)
	env.awaitDelivered(t, "other", all)
	for worked := range len(all) {
		await(t, "more events", func() bool { return len(env.delivered(t, "small")) > 0 })
		if n := len(env.delivered(t, "small")); n > room {
			t.Fatalf("after %d, %d events are due in the queue, of which there may be %d", worked, n, room)
		}
		claimed, err := env.queue.Claim(t.Context(), queue.ClaimParams{Queue: "small", Limit: 7})
		if err != nil || len(claimed) != 1 {
			t.Fatalf("claimed %d events, %v", len(claimed), err)
		}
		if _, err := env.queue.Ack(t.Context(), []queue.Ack{{Lease: queue.Lease{ID: claimed[0].ID, Receipt: claimed[0].Receipt}}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDeliveryStopsWhenTheQueueIsFull(t *testing.T) {
	t.Parallel()
	env := setup(t)
	const room = 30
	env.put(t, topic.PutSubscriptionParams{Name: "small", Filters: []topic.SubscriptionFilter{everything(t)}, Deliver: &topic.Delivery{Queue: "small"}, MaxWaiting: room})
	env.deliver(t, "other", everything(t))
	var all []int64
	for range 10 {
		all = append(all, env.publish(t, slices.Repeat([]string{"a"}, 50)...)...)
	}
	env.awaitDelivered(t, "other", all)
	var got []int64
	for len(got) < len(all) {
		await(t, "more events", func() bool { return len(env.delivered(t, "small")) > 0 })
		if n := len(env.delivered(t, "small")); n > room {
			t.Fatalf("%d events are ready in the queue, of which there may be %d", n, room)
		}
		claimed, err := env.queue.Claim(t.Context(), queue.ClaimParams{Queue: "small", Limit: 7})
		if err != nil {
			t.Fatal(err)
		}
		var acks []queue.Ack
		for _, e := range claimed {
			var publication struct{ Position int64 }
			if err := json.Unmarshal(e.Publication, &publication); err != nil {
				t.Fatal(err)
			}
			got = append(got, publication.Position)
			acks = append(acks, queue.Ack{Lease: queue.Lease{ID: e.ID, Receipt: e.Receipt}})
		}
		if _, err := env.queue.Ack(t.Context(), acks); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, all) {
		t.Errorf("the queue got %d events, want %d: %s", len(got), len(all), difference(got, all))
	}
}

func TestReplayDeliversOnceMore(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.deliver(t, "s", wants(t, "a", []string{"a"}, ""))
	all := env.publish(t, "a", "b", "a", "a", "a")
	wanted := []int64{all[0], all[2], all[3], all[4]}
	env.awaitDelivered(t, "s", wanted)
	for _, isDryRun := range []bool{true, false} {
		if n, err := env.Replay(t.Context(), "s", all[0], all[3], isDryRun); err != nil || n != 2 {
			t.Errorf("replaying: %d events, %v", n, err)
		}
	}
	env.awaitDelivered(t, "s", append(wanted, all[2], all[3]))
	env.awaitState(t, "s", "done with the replay", func(sub topic.Subscription) bool { return sub.Replays == 0 })
	next := env.publish(t, "a")
	env.awaitDelivered(t, "s", append(wanted, all[2], all[3], next[0]))
}

func TestSeekMovesADeliveredSubscription(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.deliver(t, "s", everything(t))
	all := env.publish(t, "a", "b", "c")
	env.awaitDelivered(t, "s", all)
	if err := env.seek(t.Context(), all[1]); err != nil {
		t.Fatal(err)
	}
	env.awaitDelivered(t, "s", append(all, all[2]))
	next := env.publish(t, "a")
	env.awaitDelivered(t, "s", append(all, all[2], next[0]))
}

func TestFiltersThatWereChangedBeforeAnEventWasPublishedDecideAboutIt(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.deliver(t, "other", everything(t))
	env.deliver(t, "s")
	var want []int64
	for i := range 50 {
		name := fmt.Sprintf("topic-%d", i)
		if err := env.PutFilter(t.Context(), "s", wants(t, name, []string{name}, "")); err != nil {
			t.Fatal(err)
		}
		want = append(want, env.publish(t, name)...)
		env.awaitDelivered(t, "s", want)
		if err := env.DeleteFilter(t.Context(), "s", name); err != nil {
			t.Fatal(err)
		}
		env.publish(t, name)
	}
	env.awaitState(t, "s", "level", func(sub topic.Subscription) bool { return sub.LagEvents == 0 })
	env.awaitDelivered(t, "s", want)
}

func TestSubscriptionThatIsRefusedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.exec(t, `create function public.refuse() returns trigger language plpgsql as 'begin raise exception ''not here''; end'`)
	env.exec(t, `create trigger refuse before insert on agent.event for each row when (new.queue = 'refused') execute function public.refuse()`)
	for _, name := range []string{"one", "refused", "two"} {
		env.deliver(t, name, everything(t))
	}
	all := env.publish(t, "a", "b")
	env.awaitDelivered(t, "one", all)
	env.awaitDelivered(t, "two", all)
	env.awaitDelivered(t, "refused", []int64{})
	env.exec(t, `drop trigger refuse on agent.event`)
	env.awaitDelivered(t, "refused", all)
}

func TestOpenTransactionThatChangesASubscriptionHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.deliver(t, "changed", everything(t))
	env.deliver(t, "other", everything(t))
	tx, err := pgtest.Connect(t, env.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `select agent.pause_subscription('changed')`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 50 {
		if err := env.PutFilter(ctx, "other", wants(t, fmt.Sprint(i), []string{"a"}, "")); err != nil {
			t.Fatal(err)
		}
	}
	env.deliver(t, "new", everything(t))
	want := env.publish(t, "a", "b", "c")
	env.awaitDelivered(t, "other", want)
	env.awaitDelivered(t, "new", want)
	await(t, "the versions are one row", func() bool { return value[int64](t, env, `select count(*) from agent.route_version`) <= 21 })
	if err := env.DeleteSubscription(ctx, "other", nil); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherProcessGoesOnRouting(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.deliver(t, "s", everything(t))
	all := env.publish(t, "a")
	env.awaitDelivered(t, "s", all)
	other := environmentOn(t, env.url)
	other.run(t)
	all = append(all, other.publish(t, "a", "b")...)
	env.awaitDelivered(t, "s", all)
	env.exec(t, `update agent.subscription_position set lease_token = 1 where reader = 0`) // as if a third process had taken it over
	all = append(all, other.publish(t, "a", "b")...)
	env.awaitDelivered(t, "s", all)
	env.exec(t, `update agent.subscription_position set lease_token = 1, leased_until = 'infinity' where reader = 0`) // by a clock that was set back
	all = append(all, other.publish(t, "a", "b")...)
	env.awaitDelivered(t, "s", all)
}

// TestDeliveryThatIsKilledAtAnyStatementHappensOnce kills the session of the router at each row that it changes, one after the other.
func TestDeliveryThatIsKilledAtAnyStatementHappensOnce(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.exec(t, `create sequence public.steps`)
	env.exec(t, `create sequence public.kill_at`)
	env.exec(t, `grant usage, select on public.steps, public.kill_at to public`)
	env.exec(t, `create function public.kill() returns trigger language plpgsql security definer as $$
		begin
			if current_query() ~ 'agent_service[.](begin_routing|deliver_in_step|deliver_alone|leave_router|join_step)' then
				if nextval('public.steps') = (select last_value from public.kill_at) then
					perform pg_terminate_backend(pg_backend_pid());
				end if;
			end if;
			return null;
		end $$`)
	for _, table := range []string{"event", "subscription_position", "subscription", "route_version"} {
		env.exec(t, `create trigger kill after insert or update or delete on agent.`+table+` for each row execute function public.kill()`)
	}
	var all []int64
	env.deliver(t, "early", everything(t))
	for i := range 40 {
		env.exec(t, `select setval('public.kill_at', nextval('public.steps') + $1)`, i%14)
		if i%4 == 3 { // one of them catches up then
			sub := fmt.Sprintf("late-%d", i)
			env.deliver(t, sub, everything(t))
			all = append(all, env.publish(t, "a", "b", "c")...)
			env.awaitDelivered(t, sub, all)
		} else {
			all = append(all, env.publish(t, "a", "b", "c")...)
		}
		env.awaitDelivered(t, "early", all)
	}
	if n := value[int64](t, env, `select last_value from public.steps`); n < 100 {
		t.Errorf("only %d steps were taken", n)
	}
}

func TestGapOfADeliveredSubscriptionIsCounted(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.put(t, topic.PutSubscriptionParams{
		Name: "s", Filters: []topic.SubscriptionFilter{everything(t)}, Deliver: &topic.Delivery{Queue: "s"}, ExpiresAfter: new(time.Hour),
	})
	env.publish(t, "a", "b")
	env.closeSegment(t)
	env.maintain(t)
	if n := env.drop(t); n != 1 {
		t.Fatalf("%d segments were dropped, want 1", n)
	}
	rest := env.publish(t, "c")
	env.run(t)
	env.awaitDelivered(t, "s", rest)
	env.awaitState(t, "s", "told of the gap", func(sub topic.Subscription) bool { return sub.Gaps == 1 })
}

func TestOnlyOneKindOfCallsFitsASubscription(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.deliver(t, "delivered", everything(t))
	env.subscribe(t, everything(t))
	wantWrong := func(doing string, err error) {
		t.Helper()
		if !errors.Is(err, topic.ErrWrongDelivery) {
			t.Errorf("%s: %v, want ErrWrongDelivery", doing, err)
		}
	}
	_, err := env.ReadSubscription(t.Context(), "delivered", topic.SubscribedParams{})
	wantWrong("reading", err)
	page := env.next(t, topic.SubscribedParams{})
	env.exec(t, `update agent.subscription set deliver_queue = 'q' where name = 's'`)
	_, err = env.Commit(t.Context(), "s", page.Cursor)
	wantWrong("committing", err)
	env.exec(t, `update agent.subscription set deliver_queue = null where name = 's'`)
	_, err = env.Replay(t.Context(), "s", 0, 0, false)
	wantWrong("replaying", err)
	_, err = env.PutSubscription(t.Context(), topic.PutSubscriptionParams{Name: "s", MaxWaiting: 1, Deliver: &topic.Delivery{Queue: "q"}})
	wantWrong("delivering what is read by cursor", err)
	_, err = env.PutSubscription(t.Context(), topic.PutSubscriptionParams{Name: "delivered", MaxWaiting: 1})
	wantWrong("reading what is delivered", err)
}

func TestDeliveryIntoAReservedQueueIsRefused(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	for _, name := range []string{"queued.publish", "queued.x", "", "a b"} {
		_, err := env.PutSubscription(t.Context(), topic.PutSubscriptionParams{Name: "s", MaxWaiting: 1, Deliver: &topic.Delivery{Queue: name}})
		if !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("delivering into %q: %v, want ErrInvalid", name, err)
		}
	}
}

func TestDeletedSubscriptionLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.deliver(t, "s", everything(t))
	env.deliver(t, "other", everything(t))
	all := env.publish(t, "a")
	env.awaitDelivered(t, "s", all)
	if _, err := env.Replay(t.Context(), "s", 0, all[0], false); err != nil {
		t.Fatal(err)
	}
	if err := env.DeleteSubscription(t.Context(), "s", nil); err != nil {
		t.Fatal(err)
	}
	all = append(all, env.publish(t, "b")...)
	env.awaitDelivered(t, "other", all)
	if n := value[int64](t, env, `select (select count(*) from agent.subscription_replay) + (select count(*) from agent.subscription_position)`); n != 2 {
		t.Errorf("%d positions and replays are left, want those of the router and of the other subscription", n)
	}
}

func TestDeliveryGoesOnAfterAGapThatTheTailDoesNotHave(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.deliver(t, "other", everything(t))
	env.put(t, topic.PutSubscriptionParams{
		Name: "s", Filters: []topic.SubscriptionFilter{everything(t)}, Deliver: &topic.Delivery{Queue: "s"}, MaxWaiting: 100, ExpiresAfter: new(time.Hour),
	})
	env.awaitState(t, "s", "in step", isInStep)
	if err := env.PauseSubscription(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	all := env.publish(t, "a", "b")
	env.awaitDelivered(t, "other", all)
	env.closeSegment(t)
	env.maintain(t)
	rest := env.publish(t, "c", "d", "e")
	env.awaitDelivered(t, "other", append(all, rest...))
	if n := env.drop(t); n != 1 {
		t.Fatalf("%d segments were dropped, want 1", n)
	}
	if n, err := env.Replay(t.Context(), "other", 0, rest[2], true); err != nil || n != 3 {
		t.Errorf("a replay of what is left has %d events, %v", n, err)
	}
	if err := env.ResumeSubscription(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	env.awaitDelivered(t, "s", rest)
	env.awaitState(t, "s", "told of the gap", func(sub topic.Subscription) bool { return sub.Gaps == 1 })
}

// TestRouterReadsOnlyTheSubscriptionsThatHaveChanged calls what the router asks for changes, as a process that knows those up to a time.
func TestRouterReadsOnlyTheSubscriptionsThatHaveChanged(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	known := func(before []int64) (now []int64) {
		t.Helper()
		return value[[]int64](t, env, `select known from agent_service.route_changes($1)`, before)
	}
	wantChanged := func(what string, before []int64, names ...string) {
		t.Helper()
		got := value[[]string](t, env, `select case when c.changed is null then '{any}'
			else (select coalesce(array_agg(s.name order by s.name), '{}') from agent.subscription s where s.id = any (c.changed)) end from agent_service.route_changes($1) c`, before)
		if !slices.Equal(got, names) {
			t.Errorf("%s: %q have changed, want %q", what, got, names)
		}
	}
	wantChanged("to who knows nothing", nil, "any")
	env.deliver(t, "a", everything(t))
	env.deliver(t, "b", everything(t))
	first := known(nil)
	wantChanged("without a change", first)
	env.deliver(t, "b", wants(t, "b", []string{"b"}, ""))
	wantChanged("after one", first, "b")
	env.deliver(t, "a", wants(t, "b", []string{"b"}, ""))
	second := known(first)
	wantChanged("after both", first, "a", "b")
	wantChanged("to who knows of them", second)
	env.exec(t, `delete from agent.route_version where subscription = (select id from agent.subscription where name = 'a')`)
	wantChanged("when some were lost", second, "any")
	for i := range 25 {
		env.deliver(t, "c", wants(t, "c", []string{fmt.Sprintf("c%d", i)}, ""))
	}
	before := known(nil) // which makes one of them
	if len(before) != 1 {
		t.Errorf("many changes have become %d", len(before))
	}
	env.deliver(t, "c", everything(t))
	wantChanged("after many", before, "c")
	wantChanged("to who knows of those that are one now", second, "any")
}
