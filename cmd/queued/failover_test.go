//go:build unix

package main

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queued/queued/internal/faults"
)

// quickServer configures a server that does not sync its data to disk.
var quickServer = faults.Config{Settings: map[string]string{"fsync": "off"}}

func TestStartWaitsForADatabaseThatTakesWrites(t *testing.T) {
	t.Parallel()
	server := faults.Start(t, quickServer)
	server.Kill()
	p := startProgram(t, nil, []string{"QUEUED_DATABASE_URL=" + server.URL()})
	p.addr, _ = p.waitFor("starting")["addr"].(string)
	p.waitFor("waiting for the database")
	p.want(http.StatusOK, http.MethodGet, "/livez", "")
	p.want(http.StatusServiceUnavailable, http.MethodGet, "/readyz", "")
	if got := p.want(http.StatusServiceUnavailable, http.MethodPost, "/events", "{}"); !strings.Contains(got.body, `"not_ready"`) {
		t.Errorf("a call was answered %s", got.body)
	}
	server.Start()
	p.waitFor("serving")
	p.wantReady()
	p.want(http.StatusCreated, http.MethodPost, "/events", "{}")
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestStopDuringTheWaitForTheDatabaseIsClean(t *testing.T) {
	t.Parallel()
	p := startProgram(t, nil, []string{"QUEUED_DATABASE_URL=postgres://queued@" + closedAddress(t) + "/queued"})
	p.waitFor("waiting for the database")
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestStartFailsAfterStartTimeout(t *testing.T) {
	t.Parallel()
	p := startProgram(t, nil, []string{"QUEUED_DATABASE_URL=postgres://queued@" + closedAddress(t) + "/queued", "QUEUED_START_TIMEOUT=1s"})
	if code := p.wait(); code != exitFailure || !strings.Contains(p.output(), "QUEUED_START_TIMEOUT") {
		t.Errorf("exit code %d", code)
	}
}

func TestStartFailsAtOnceOnAPermanentError(t *testing.T) {
	t.Parallel()
	server := faults.Start(t, quickServer)
	p := startProgram(t, nil, []string{"QUEUED_DATABASE_URL=" + strings.Replace(server.URL(), "/queued?", "/another?", 1), "QUEUED_START_TIMEOUT=1h"})
	if code := p.wait(); code != exitFailure || !strings.Contains(p.output(), `database \"another\" does not exist`) {
		t.Errorf("exit code %d", code)
	}
}

func TestStopIsBoundedWhileTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	server := faults.Start(t, quickServer)
	p := serve(t, nil, "QUEUED_DATABASE_URL="+server.URL(), "QUEUED_SHUTDOWN_TIMEOUT=5s")
	p.want(http.StatusCreated, http.MethodPost, "/events", "{}")
	server.Freeze()
	p.signal(syscall.SIGTERM)
	told := time.Now()
	if code := p.wait(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	const slack = 30 * time.Second // for a busy machine
	took := time.Since(told)
	t.Logf("it ended after %s", took)
	if took > 5*time.Second+closeTimeout+slack {
		t.Errorf("it ended after %s", took)
	}
}

func TestRequireSyncMakesReadinessNeedAStandby(t *testing.T) {
	t.Parallel()
	pair := faults.StartPair(t, faults.Asynchronous, quickServer)
	p := serve(t, nil, "QUEUED_DATABASE_URL="+pair.URL(), "QUEUED_REQUIRE_SYNC=true")
	p.want(http.StatusServiceUnavailable, http.MethodGet, "/readyz", "")
	until(t, "the settings are in the metrics", func() bool {
		got := p.want(http.StatusOK, http.MethodGet, "/metrics", "").body
		return strings.Contains(got, `queued_database_unsafe_setting{setting="fsync"} 1`) &&
			strings.Contains(got, `queued_database_unsafe_setting{setting="synchronous_standby_names"} 1`) &&
			strings.Contains(got, `queued_database_unsafe_setting{setting="full_page_writes"} 0`)
	})
	p.waitForLine("the warning of fsync", func(line string) bool { return strings.Contains(line, `"setting":"fsync"`) })
	pair.Primary.RequireSync(pair.Standby)
	until(t, "it is ready", func() bool {
		got, err := p.send(http.MethodGet, "/readyz", "")
		return err == nil && got.status == http.StatusOK
	})
}
