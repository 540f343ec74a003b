package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnknownVariableIsReportedWithTheClosestSetting(t *testing.T) {
	t.Parallel()
	var g grammar
	reader := newSettingsReader([]string{
		"QUEUED_LISTEM=:1", "QUEUED_DATABASEURL=postgres://u:hunter2@h/d", "QUEUED_SWEEP_INTERVALL=1s", // typing errors
		"QUEUED_LISTEN=:1", "QUEUED_NO_MIGRATE=1", // ours
		"QUEUED_TEST_DATABASE_URL=x", "QUEUED_EMPTY=", "OTHER_LISTEM=:1", // none of our business
		"QUEUED_PORT=tcp://10.0.0.1:80", "QUEUED_SERVICE_HOST=10.0.0.1", "QUEUED_SERVICE_PORT_HTTP=80", "QUEUED_PORT_80_TCP_ADDR=10.0.0.1",
		"QUEUED_PORT_80_TCP=tcp://10.0.0.1:80",
	})
	parser, err := newParser(&g, reader)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"QUEUED_DATABASEURL":     "QUEUED_DATABASE_URL",
		"QUEUED_LISTEM":          "QUEUED_LISTEN",
		"QUEUED_SWEEP_INTERVALL": "QUEUED_SWEEP_INTERVAL",
	}
	if diff := cmp.Diff(want, reader.unknown(parser.Model)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
