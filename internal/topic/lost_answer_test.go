//go:build unix

package topic_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queued/queued/internal/faults"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/topic"
)

// setupWire returns an environment whose service, which is running, reaches its database through a wire.
func setupWire(t *testing.T) (environment, *faults.Wire) {
	t.Helper()
	url := pgtest.New(t).URL
	wire := faults.StartWire(t, url)
	env := environmentWith(t, pg.Config{URL: wire.Through(pgtest.AsService(url))}, url)
	env.run(t)
	return env, wire
}

// loseNext makes a wire lose the next answer of a commit that a function of the schema has made, and returns whether it has.
func loseNext(wire *faults.Wire, function string) (isLost *atomic.Bool) {
	isLost = new(atomic.Bool)
	wire.Lose(func(transaction string) bool {
		return strings.Contains(transaction, "."+function+"(") && isLost.CompareAndSwap(false, true)
	})
	return isLost
}

// TestDeliveryWhoseAnswerIsLostHappensOnce loses the answer of each kind of commit that the router makes, again and again.
func TestDeliveryWhoseAnswerIsLostHappensOnce(t *testing.T) {
	t.Parallel()
	env, wire := setupWire(t)
	env.deliver(t, "early", everything(t))
	all := env.publish(t, "a")
	env.awaitDelivered(t, "early", all)
	env.awaitState(t, "early", "in step", isInStep)
	// It leaves those in step when its queue is full.
	allow := func(name string, maxWaiting int) {
		t.Helper()
		env.put(t, topic.PutSubscriptionParams{
			Name: name, Filters: []topic.SubscriptionFilter{everything(t)}, Deliver: &topic.Delivery{Queue: name}, MaxWaiting: maxWaiting,
		})
	}
	for i, function := range []string{
		"deliver_in_step", "begin_routing", "deliver_alone", "join_step", "leave_router", "route_changes", "read_routes", "deliver_in_step", "leave_router", "join_step",
	} {
		late := fmt.Sprintf("late-%d", i)
		if function == "leave_router" {
			allow(late, 100_000)
			env.awaitState(t, late, "in step", isInStep)
		}
		isLost := loseNext(wire, function)
		if function == "leave_router" {
			allow(late, 1)
		} else {
			allow(late, 100_000) // it catches up, and joins the others
		}
		all = append(all, env.publish(t, "a", "b", "c")...)
		await(t, "the answer of "+function+" to be lost", isLost.Load)
		wire.Lose(nil)
		allow(late, 100_000)
		all = append(all, env.publish(t, "e", "f")...)
		for _, sub := range []string{"early", late} {
			env.awaitDelivered(t, sub, all)
			env.awaitState(t, sub, "in step", isInStep)
		}
	}
	env.awaitDelivered(t, "early", all)
}

// TestDeliveryGoesOnFromWhatAFailoverHasLeft has the tables of the router and of subscriptions be as they were before, again and again, as a standby has
// them that lacks the latest transactions, while the process that routes notices nothing. Events that were published since are still in the log.
func TestDeliveryGoesOnFromWhatAFailoverHasLeft(t *testing.T) {
	t.Parallel()
	env := setup(t, func(c *topic.Config) { c.PollInterval = 100 * time.Millisecond })
	tables := []string{"subscription", "subscription_filter", "subscription_position", "route_version"}
	keep := func() {
		t.Helper()
		for _, table := range tables {
			env.exec(t, `create table public.`+table+` as table agent.`+table)
		}
	}
	// The deliveries since are lost, too.
	lose := func() {
		t.Helper()
		env.exec(t, `begin`)
		env.exec(t, `select from agent.router for update`)
		for _, table := range tables {
			env.exec(t, `delete from agent.`+table)
			env.exec(t, `insert into agent.`+table+` overriding system value table public.`+table)
		}
		env.exec(t, `delete from agent.event e where e.publication is not null and (e.publication ->> 'position')::int8 >
			(select p.position from agent.subscription_position p join agent.subscription s on p.reader = case when s.is_in_step then 0 else s.id end
			where s.name = e.publication ->> 'subscription' order by p.number desc limit 1)`)
		env.exec(t, `commit`)
		for _, table := range tables {
			env.exec(t, `drop table public.`+table)
		}
	}
	put := func(maxWaiting int, filters ...topic.SubscriptionFilter) {
		t.Helper()
		env.put(t, topic.PutSubscriptionParams{Name: "changed", Filters: filters, Deliver: &topic.Delivery{Queue: "changed"}, MaxWaiting: maxWaiting})
	}
	env.deliver(t, "all", everything(t))
	put(100_000, wants(t, "b", []string{"b"}, ""))
	var all, changed []int64
	publish := func() {
		t.Helper()
		published := env.publish(t, "a", "b", "c")
		all, changed = append(all, published...), append(changed, published[1])
	}
	settle := func() {
		t.Helper()
		env.awaitDelivered(t, "all", all)
		env.awaitDelivered(t, "changed", changed)
		env.awaitState(t, "all", "in step", isInStep)
		env.awaitState(t, "changed", "in step", isInStep)
	}
	publish()
	settle()
	b, c := wants(t, "b", []string{"b"}, ""), wants(t, "b", []string{"c"}, "")
	for _, lost := range []func(){
		func() { publish(); settle() },
		func() { put(1, b); publish(); env.awaitState(t, "changed", "alone", isAlone) },
		func() { put(100_000, c); env.awaitState(t, "changed", "in step", isInStep) },
		func() { publish(); settle(); publish(); settle() },
	} {
		keep()
		lost()
		lose()
		publish()
		settle()
	}

	put(1, b) // its queue is full
	publish()
	env.awaitState(t, "changed", "alone", isAlone)
	keep()
	put(100_000, b)
	env.awaitState(t, "changed", "in step", isInStep)
	lose()
	put(100_000, b)
	settle()
}

func isAlone(sub topic.Subscription) bool { return !sub.IsInStep }
