package http

import (
	"testing"
	"time"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/schedule"
)

// provokeSchedules provokes every documented response about schedules and owners.
func provokeSchedules(h *environment) {
	const body = `{"event":{"n":4},"owner":"ada","cron":"@yearly","idempotency_key":"k"}`
	h.call("PUT", "/owners/ada", `{"timezone":"Europe/London"}`).want(201)
	h.call("PUT", "/owners/ada", `{"timezone":"Europe/Paris","attributes":{"a":1}}`).want(200)
	h.with("If-Match", `"99"`).call("PUT", "/owners/ada", `{"timezone":"Europe/Paris"}`).wantProblem(problem.PreconditionFailed)
	h.call("GET", "/owners/ada", "").want(200)
	h.call("GET", "/owners", "").want(200)
	made := h.call("POST", "/schedules", body).want(201)
	h.call("POST", "/schedules", body).want(200)
	h.call("POST", "/schedules", `{"event":{},"cron":"@daily","timezone":"Europe/Berlin","idempotency_key":"k"}`).wantProblem(problem.KeyReused)
	h.call("POST", "/schedules/preview", `{"cron":"@daily","timezone":"Europe/Berlin"}`).want(200)
	h.call("GET", "/schedules", "").want(200)
	at := made.header.Get("Location")
	h.call("GET", at, "").want(200)
	h.call("PATCH", at, `{"cron":"@monthly"}`).want(200)
	h.with("If-Match", `"99"`).call("PATCH", at, `{"cron":"@daily"}`).wantProblem(problem.PreconditionFailed)
	h.call("POST", at+"/pause", "").want(200)
	h.call("POST", at+"/resume", "").want(200)
	h.call("POST", at+"/run", "").want(201)
	h.call("GET", at+"/occurrences", "").want(200)
	h.with("If-Match", `"99"`).call("DELETE", at, "").wantProblem(problem.PreconditionFailed)
	h.call("DELETE", at, "").want(204)
	h.call("PATCH", at, `{"cron":"@daily"}`).wantProblem(problem.ScheduleEnded)
	for _, verb := range []string{"/pause", "/resume", "/run"} {
		h.call("POST", at+verb, "").wantProblem(problem.ScheduleEnded)
	}
	h.with("If-Match", `"99"`).call("DELETE", "/owners/ada", "").wantProblem(problem.PreconditionFailed)
	h.call("DELETE", "/owners/ada", "").want(204)

	const nowhere = "/schedules/1152921504606846976"
	h.call("GET", nowhere, "").wantProblem(problem.ScheduleNotFound)
	h.call("PATCH", nowhere, `{"name":"x"}`).wantProblem(problem.ScheduleNotFound)
	h.call("DELETE", nowhere, "").wantProblem(problem.ScheduleNotFound)
	h.call("GET", nowhere+"/occurrences", "").wantProblem(problem.ScheduleNotFound)
	for _, verb := range []string{"/pause", "/resume", "/run"} {
		h.call("POST", nowhere+verb, "").wantProblem(problem.ScheduleNotFound)
	}
	h.call("GET", "/owners/nobody", "").wantProblem(problem.OwnerNotFound)
	h.call("DELETE", "/owners/nobody", "").wantProblem(problem.OwnerNotFound)
}

func TestSlowListingOfSchedulesIsAProblem(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{plans: func(cfg *schedule.Config) { cfg.QueryTimeout = 50 * time.Millisecond }})
	tx, err := h.connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table agent.schedule, agent.owner, agent.occurrence in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	wantSlow := func(a answer) { // the time of the listing and that of the wait for the lock are over together
		if decode[problem.Document](a).Code == problem.Locked.Code {
			a.wantProblem(problem.Locked)
		} else {
			a.wantProblem(problem.QueryTimeout)
		}
	}
	for _, path := range []string{"/schedules", "/schedules/7/occurrences", "/owners"} {
		wantSlow(h.call("GET", path, ""))
	}
	wantSlow(h.call("POST", "/schedules/preview", `{"owner":"ada","cron":"@daily"}`))
}
