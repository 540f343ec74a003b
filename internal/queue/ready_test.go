package queue_test

import (
	"errors"
	"testing"

	"github.com/queued/queued/internal/queue"
)

func TestReadyOnTheSchemaNeededOrALaterOne(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *queue.Config) { c.SchemaVersion = "1.10.0" })
	for version, ready := range map[string]bool{"1.10.0": true, "1.10.1": true, "2.0.0": true, "1.9.0": false, "0.1.0": false} {
		b.exec(t, `update agent.version set version = $1`, version)
		if err := b.CheckReady(t.Context()); (err == nil) != ready {
			t.Errorf("schema at %s: %v", version, err)
		}
	}
}

func TestOpenWithoutADatabaseSaysUnavailable(t *testing.T) {
	t.Parallel()
	_, err := queue.Open(t.Context(), queue.Config{DatabaseURL: "postgres://nobody@/none?host=" + t.TempDir()})
	if !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("open: %v", err)
	}
}
