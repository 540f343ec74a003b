package http

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pgtest"
)

// TestRestrictedKeyChangesNothingThatIsMovedAwayMeanwhile has what a call is about go to a queue of others after the call has begun: its row is
// locked by who moves it, so the call has looked for it, sees it as it was, and goes on when it has been moved.
func TestRestrictedKeyChangesNothingThatIsMovedAwayMeanwhile(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	all := slices.DeleteFunc(slices.Clone(access.Scopes), func(s access.Scope) bool { return s == access.Admin })
	key := h.key(h.createKey(access.CreateParams{Scopes: all, Queues: []string{"in.*"}, Topics: []string{"in.**"}}))
	watcher := h.connect()
	for _, c := range []struct {
		name, method, path, body string // with the word ID, and RECEIPT
		table                    string
		also                     string // what else shows that nothing was changed, as SQL
	}{
		{"ack", "DELETE", "/events/ID?receipt=RECEIPT", ``, "event", "attempts = 1"},
		{"ack with a result", "POST", "/events/ID/ack", `{"receipt":"RECEIPT","result":1}`, "event", "attempts = 1"},
		{"ack without a receipt", "DELETE", "/events/ID", ``, "event", "attempts = 1"},
		{"ack of a batch", "POST", "/ack", `{"events":[{"id":ID,"receipt":"RECEIPT"}]}`, "event", "attempts = 1"},
		{"ack by a claim", "POST", "/claim", `{"queue":"in.empty","acks":[{"id":ID,"receipt":"RECEIPT"}]}`, "event", "attempts = 1"},
		{"nack", "POST", "/events/ID/nack", `{"receipt":"RECEIPT","error":"mine"}`, "event", "last_error is null and nacked_at is null"},
		{"final nack", "POST", "/events/ID/nack", `{"receipt":"RECEIPT","final":true}`, "event", "nacked_at is null"},
		{"extend", "POST", "/events/ID/extend", `{"receipt":"RECEIPT","invisible_for":"10h"}`, "event", "vt < now() + interval '1 hour'"},
		{"extend of a batch", "POST", "/extend", `{"events":[{"id":ID,"receipt":"RECEIPT","invisible_for":"10h"}]}`, "event", "vt < now() + interval '1 hour'"},
		{"release", "POST", "/events/ID/release", `{"receipt":"RECEIPT"}`, "event", "attempts = 1"},
		{"release of a batch", "POST", "/release", `{"events":[{"id":ID,"receipt":"RECEIPT"}]}`, "event", "attempts = 1"},
		{"run of an event", "POST", "/events/ID/run", ``, "event", "attempts = 1"},
		{"run", "POST", "/schedules/ID/run", ``, "schedule", "not exists (select from agent.occurrence)"},
		{"pause", "POST", "/schedules/ID/pause", ``, "schedule", "status = 'active'"},
		{"resume", "POST", "/schedules/ID/resume", ``, "schedule", "status = 'active'"},
		{"delete", "DELETE", "/schedules/ID", ``, "schedule", "status = 'active'"},
		{"patch", "PATCH", "/schedules/ID", `{"name":"mine"}`, "schedule", "name is null"},
	} {
		var id int64
		receipt := ""
		if c.table == "event" {
			admin.try("POST", "/events?queue=in.q", `{}`).want(http.StatusCreated)
			e := decode[seenPage](admin.try("POST", "/claim", `{"queue":"in.q"}`).want(http.StatusOK)).Events[0]
			id, receipt = e.ID, e.Receipt
		} else {
			id = decode[seenEvent](admin.try("POST", "/schedules", `{"event":{},"queue":"in.q","cron":"@yearly","timezone":"UTC"}`).want(http.StatusCreated)).ID
		}
		fill := strings.NewReplacer("ID", fmt.Sprint(id), "RECEIPT", receipt)

		mover := h.connect()
		tx, err := mover.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		version := ""
		if c.table == "schedule" {
			version = ", version = version + 1"
		}
		if _, err := tx.Exec(t.Context(), `update agent.`+c.table+` set queue = 'out.q'`+version+` where id = $1`, id); err != nil {
			t.Fatal(err)
		}
		answered := make(chan answer, 1)
		go func() { answered <- key.try(c.method, fill.Replace(c.path), fill.Replace(c.body)) }()
		for deadline := time.Now().Add(busyTimeout); pgtest.Query[int](t, watcher, `
			select count(*) from pg_stat_activity where $1 = any (pg_blocking_pids(pid))`, mover.PgConn().PID()) == 0; {
			if time.Now().After(deadline) {
				t.Fatalf("%s does not wait for the row; answered %+v", c.name, <-answered)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := <-answered
		switch {
		case !strings.Contains(c.path, "ID"):
			if !strings.Contains(got.want(http.StatusOK).body, `"status":404,"code":"event_not_found"`) {
				t.Errorf("%s: got %s", c.name, got.body)
			}
		case c.table == "event":
			got.wantProblem(problem.EventNotFound)
		default:
			got.wantProblem(problem.ScheduleNotFound)
		}
		if h.count(`select count(*) from agent.`+c.table+` where id = $1 and queue = 'out.q' and `+c.also, id) != 1 {
			t.Errorf("%s: what was moved to others was changed, or has gone", c.name)
		}
		h.sql(`truncate agent.event`)
	}
}
