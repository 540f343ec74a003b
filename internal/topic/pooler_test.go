//go:build unix

package topic_test

import (
	"testing"

	"github.com/queued/queued/internal/faults"
	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pg"
)

func TestSubscriptionsWorkBehindAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	server := faults.Start(t, faults.Config{Settings: map[string]string{"fsync": "off"}})
	// Each transaction can get another session, with the settings that the previous one left.
	pooler := faults.StartPooler(t, server, "transaction", "default_pool_size = 4")
	if _, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: pooler.URL()}); err != nil {
		t.Fatal(err)
	}
	var both [2]environment
	for i := range both {
		both[i] = environmentWith(t, pg.Config{URL: pooler.URL(), ListenURL: server.URL()}, server.URL())
		both[i].run(t)
	}
	consumeOnce(t, both[0], both[1])
	// The pooler's sessions have no limit of their own.
	for _, pool := range both[0].database.Pools() {
		var limit string
		if err := pool.QueryRow(t.Context(), `select current_setting('lock_timeout')`).Scan(&limit); err != nil || limit == "0" {
			t.Errorf("a pool waits for locks for %q: %v", limit, err)
		}
	}
}
