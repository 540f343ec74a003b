//go:build unix

package topic_test

import (
	"context"
	"testing"

	"github.com/queued/queued/internal/faults"
	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/topic"
)

// TestDeliveryMissesNothingThatAStandbyHasWhichLacksTheTail promotes an asynchronous standby that has events which the old primary had delivered in
// transactions that the standby lacks. Whatever is in its log is delivered, once.
func TestDeliveryMissesNothingThatAStandbyHasWhichLacksTheTail(t *testing.T) {
	t.Parallel()
	pair := faults.StartPair(t, faults.Asynchronous, faults.Config{Settings: map[string]string{"fsync": "off"}})
	if _, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: pair.URL()}); err != nil {
		t.Fatal(err)
	}
	env := environmentWith(t, pg.Config{URL: pair.URL()}, pair.Primary.URL())
	ctx, cancel := context.WithCancel(t.Context())
	env.deliver(t, "s", everything(t))
	env.deliver(t, "late", wants(t, "b", []string{"b"}, ""))
	done := make(chan error, 1)
	go func() { done <- env.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	env.publish(t, "a", "b")
	env.awaitState(t, "s", "in step", isInStep)
	env.awaitState(t, "late", "in step", isInStep)

	// The published events arrive at the standby, and their deliveries do not: another session has the lock of the router until then.
	env.exec(t, `begin`)
	env.exec(t, `select from agent.router for update`)
	env.publish(t, "a", "b", "b")
	standby := pgtest.Connect(t, pair.Standby.AdminURL())
	await(t, "the standby to have the log", func() bool { return pgtest.Query[int](t, standby, `select count(*)::int from agent.log`) == 5 })
	pair.Primary.PauseReplication()
	env.exec(t, `commit`)
	await(t, "the primary to deliver", func() bool { return len(env.delivered(t, "s")) == 5 && len(env.delivered(t, "late")) == 3 })

	pair.Primary.Kill()
	pair.Failover()
	env.sql = pgtest.Connect(t, pair.Primary.URL())
	await(t, "an event to be published", func() bool {
		_, err := env.Publish(t.Context(), []topic.Publication{{Topic: "b", Event: []byte(`{}`)}})
		return err == nil
	})
	all := value[[]int64](t, env, `select array_agg(position order by position) from agent.log`)
	if len(all) < 6 {
		t.Errorf("the log has %d events, want 6", len(all))
	}
	env.awaitDelivered(t, "s", all)
	env.awaitDelivered(t, "late", value[[]int64](t, env, `select array_agg(position order by position) from agent.log where topic = 'b'`))
}
