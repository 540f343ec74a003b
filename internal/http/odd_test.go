package http

import (
	"fmt"
	"strings"
	"testing"
)

// Rows that SQL wrote past the checks are answered as the contract has it: the harness holds every answer against that.
func TestOddRowsAreAnsweredAsTheContractHasThem(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	odd := []string{
		"attempts = -5", "max_attempts = 0", "claimed = '{null,infinity}'", "claimed = '{{-infinity,null}}'", "past_attempts = '5'",
		`past_attempts = '[7,{"attempt":1,"ended_at":"-infinity","outcome":"odd"}]'`, "occurrence = '5'", "type = ''", "worker = ''",
		"event_ts = '20000-01-01Z'", "enqueued_at = '-infinity'", "expires_at = 'infinity'",
	}
	for i, assignment := range odd {
		for n, table := range []string{"agent.event", "agent.event_hist"} {
			columns, values := "", ""
			if table == "agent.event_hist" {
				columns, values = ", outcome, finished_at, result", ", 'done', 'infinity', '5'"
			} else {
				h.sql(`alter table agent.event disable trigger user`)
			}
			eventTS := "now()"
			if value, ok := strings.CutPrefix(assignment, "event_ts = "); ok { // which an update cannot move to another chunk of a hypertable
				eventTS = value
			}
			id := 1000*(n+1) + i
			h.sql(`insert into `+table+` (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at`+columns+`) overriding system value
				values ($1, `+eventTS+`, 1, now(), array[now()], '{}', 'odd', now()`+values+`)`, id)
			h.sql(`update `+table+` set `+assignment+` where id = $1`, id)
			h.call("GET", fmt.Sprintf("/events/%d", id), "").want(200)
			h.call("GET", fmt.Sprintf("/events/%d/attempts", id), "").want(200)
		}
	}
	for _, path := range []string{"/events", "/events?queue=odd&state=ready", "/history", "/history?queue=odd&min_duration=1s", "/queues", "/history/stats"} {
		h.call("GET", path, "").want(200)
	}
	if got := len(h.claim(`{"queue":"odd","limit":100,"max_attempts":100}`)); got != len(odd)-1 { // but the one whose own attempts are used up
		t.Errorf("claimed %d", got)
	}
}
