package http

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pgtest"
)

// inCell has the database be a cell.
func inCell(number int) func(*cell.Config) { return func(cfg *cell.Config) { cfg.Number = number } }

// setIDs has the next event, schedule and redrive of a database have this id.
func (h *environment) setIDs(next int64) {
	h.t.Helper()
	conn := pgtest.Connect(h.t, h.db.URL)
	for _, name := range []string{"event", "schedule", "redrive"} {
		pgtest.Query[int64](h.t, conn, fmt.Sprintf(`select setval('agent.%s_id_seq', $1, false)`, name), next)
	}
}

func TestCellSaysWhichIDsItGivesOut(t *testing.T) {
	t.Parallel()
	for number, want := range map[int]string{
		0:   `{"cell":0,"is_home":true,"ids":{"first":1,"last":35184372088831,"left":35184372088831},"version":"1.2.3"}`,
		3:   `{"cell":3,"is_home":false,"ids":{"first":105553116266496,"last":140737488355327,"left":35184372088832},"version":"1.2.3"}`,
		255: `{"cell":255,"is_home":false,"ids":{"first":8972014882652160,"last":9007199254740991,"left":35184372088832},"version":"1.2.3"}`,
	} {
		h := setupWith(t, settings{cell: inCell(number)})
		body := h.call("GET", "/cell", "").want(http.StatusOK).body
		if got := regexp.MustCompile(`"placement_version":[0-9]+,"keys_version":[0-9]+,"epoch":"[0-9a-f]+",`).ReplaceAllString(body, ""); got != want || got == body {
			t.Errorf("got  %s\nwant %s", body, want)
		}
		if got := h.call("GET", "/metrics", "").want(http.StatusOK).body; !strings.Contains(got, fmt.Sprintf("\nqueued_cell %d\n", number)) {
			t.Errorf("/metrics does not say that it is cell %d", number)
		}
	}
}

// TestIDsAtTheEndsOfACellWorkEverywhere makes every call that takes the id of an event, a schedule or a redrive with the first and the last ids of cells.
func TestIDsAtTheEndsOfACellWorkEverywhere(t *testing.T) {
	t.Parallel()
	for _, number := range []int{0, 1, 255} {
		h := setupWith(t, settings{cell: inCell(number)})
		first, last := int64(max(1, number<<45)), int64(number+1)<<45-1
		called := make(map[string]bool)
		call := func(id, method, pattern string, thing int64, query, body string, status int) answer {
			t.Helper()
			called[id] = true
			return h.call(method, strings.Replace(pattern, "{id}", fmt.Sprint(thing), 1)+query, body).want(status)
		}
		for range 2 { // first from the first id on, then up to the last
			insert := func(query string) int64 {
				t.Helper()
				id := decode[seenEvent](h.call("POST", "/events?queue=q"+query, `{"n":1}`).want(http.StatusCreated)).ID
				if id < first || id > last || id>>45 != int64(number) {
					t.Fatalf("cell %d gave out the id %d", number, id)
				}
				return id
			}
			claim := func() (int64, string) {
				t.Helper()
				e := h.claimOneBy(`{"queue":"q"}`)
				return e.ID, fmt.Sprintf(`{"receipt":%q}`, e.Receipt)
			}
			later := insert("&delay=1h")
			call("getEvent", "GET", "/events/{id}", later, "", "", 200)
			call("runEvent", "POST", "/events/{id}/run", later, "", "", 200)
			id, receipt := claim()
			call("extend", "POST", "/events/{id}/extend", id, "", receipt, 200)
			call("release", "POST", "/events/{id}/release", id, "", receipt, 200)
			id, receipt = claim()
			call("nack", "POST", "/events/{id}/nack", id, "", receipt, 200)
			id, receipt = claim()
			call("extendBatch", "POST", "/extend", id, "", `{"events":[{"id":`+fmt.Sprint(id)+`,`+receipt[1:]+`]}`, 200)
			call("ackWithResult", "POST", "/events/{id}/ack", id, "", receipt, 200)
			call("listAttempts", "GET", "/events/{id}/attempts", id, "", "", 200)
			copied := decode[seenEvent](call("requeue", "POST", "/history/{id}/requeue", id, "", "", 201)).ID
			call("ack", "DELETE", "/events/{id}", copied, "", "", 204)
			raw := insert("&keep_raw=1h")
			call("getRawBody", "GET", "/events/{id}/raw", raw, "", "", 200)
			id, receipt = claim()
			call("releaseBatch", "POST", "/release", id, "", `{"events":[{"id":`+fmt.Sprint(id)+`,`+receipt[1:]+`]}`, 200)
			call("ackBatch", "POST", "/ack", id, "", fmt.Sprintf(`{"events":[{"id":%d}]}`, id), 200)

			s := decode[seenEvent](h.call("POST", "/schedules", `{"event":{},"queue":"s","cron":"@yearly","timezone":"UTC"}`).want(http.StatusCreated)).ID
			call("getSchedule", "GET", "/schedules/{id}", s, "", "", 200)
			call("patchSchedule", "PATCH", "/schedules/{id}", s, "", `{"priority":1}`, 200)
			call("pauseSchedule", "POST", "/schedules/{id}/pause", s, "", "", 200)
			call("resumeSchedule", "POST", "/schedules/{id}/resume", s, "", "", 200)
			call("runSchedule", "POST", "/schedules/{id}/run", s, "", "", 201)
			call("listOccurrences", "GET", "/schedules/{id}/occurrences", s, "", "", 200)
			call("deleteSchedule", "DELETE", "/schedules/{id}", s, "", "", 204)

			r := decode[redrive](h.call("POST", "/redrives", `{"filter":{"queue":"q"},"to":"again","rate":0.01}`).want(http.StatusAccepted)).ID
			call("getRedrive", "GET", "/redrives/{id}", r, "", "", 200)
			for _, verb := range []string{"pause", "resume", "cancel"} {
				call(verb+"Redrive", "POST", "/redrives/{id}/"+verb, r, "", "", 200)
			}
			for listing, things := range map[string][]int64{"/history?queue=q": {id, copied}, "/redrives": {r}, "/schedules?status=cancelled": {s}} {
				page := h.call("GET", listing, "").want(http.StatusOK).body
				for _, thing := range things {
					if !strings.Contains(page, fmt.Sprintf(`"id":%d,`, thing)) {
						t.Errorf("%s does not have %d: %s", listing, thing, page)
					}
				}
			}
			first = last - 7 // for three events, and those that a schedule and a redrive make
			h.setIDs(first)
		}
		for _, r := range everyRoute(t) {
			if strings.Contains(r.pattern, "{id}") && !called[r.id] && !strings.HasPrefix(r.pattern, "/keys/") && !strings.HasPrefix(r.pattern, "/owners/") {
				t.Errorf("%s takes an id, and was not called", r.id)
			}
		}
	}
}

func TestCallsThatNeedAnIDSayThatThereAreNone(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{cell: inCell(3)})
	kept := h.insert(`{"n":1}`)
	done := h.insert(`{"n":2}`)
	h.call("DELETE", fmt.Sprintf("/events/%d", done), "").want(http.StatusNoContent)
	schedule := decode[seenEvent](h.call("POST", "/schedules", `{"event":{},"cron":"@yearly","timezone":"UTC"}`).want(http.StatusCreated)).ID
	h.setIDs(4<<45 - 1)
	h.call("POST", "/events", `{"n":3}`).want(http.StatusCreated)
	h.call("POST", "/schedules", `{"event":{},"cron":"@yearly","timezone":"UTC"}`).want(http.StatusCreated)
	h.call("POST", "/redrives", `{"filter":{"queue":"nothing"}}`).want(http.StatusAccepted)
	for path, body := range map[string]string{
		"/events":                                `{"n":4}`,
		"/events?key=k":                          `{"n":4}`,
		"/events/batch":                          `{"events":[{"event":{}},{"event":{}}]}`,
		"/cloudevents":                           ce("1", ""),
		fmt.Sprintf("/history/%d/requeue", done): "",
		"/history/requeue":                       `{"outcome":"cancelled"}`,
		"/schedules":                             `{"event":{},"cron":"@yearly","timezone":"UTC"}`,
		fmt.Sprintf("/schedules/%d/run", schedule): "",
		"/redrives": `{"filter":{"queue":"nothing"}}`,
	} {
		got := h.call("POST", path, body)
		if got.wantProblem(problem.IDsExhausted); got.header.Get("Retry-After") != "" {
			t.Errorf("%s: a Retry-After, as if there were ids in a moment", path)
		}
	}
	for range 2 { // everything else goes on
		e := h.claim("")
		h.call("POST", fmt.Sprintf("/events/%d/ack", e[0].ID), fmt.Sprintf(`{"receipt":%q}`, e[0].Receipt)).want(http.StatusOK)
	}
	if got := h.get(kept); got.Outcome != "done" {
		t.Errorf("the event is %+v", got)
	}
	if got := h.call("GET", "/cell", "").want(http.StatusOK).body; !strings.Contains(got, `"left":0},`) {
		t.Errorf("got %s", got)
	}
}

func provokePlacements(h *environment) {
	const path = "/queues/placed/placement"
	h.call("GET", path, "").wantProblem(problem.PlacementNotFound)
	h.call("POST", path+"/drained", `{"cells":"all"}`).wantProblem(problem.PlacementNotFound)
	h.call("POST", "/queues/fresh/placement", `{"cell":2}`).want(http.StatusOK)
	h.try("POST", "/queues/fresh/placement", `{"cell":256}`).wantProblem(problem.ValidationFailed)
	h.call("DELETE", path, "").wantProblem(problem.PlacementNotFound)
	h.with("If-None-Match", "*").call("PUT", path, `{"cells":[0]}`).want(http.StatusOK)
	h.with("If-None-Match", "*").call("PUT", path, `{"cells":[1]}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", h.call("GET", path, "").want(http.StatusOK).header.Get("Etag")).call("PUT", path, `{"cells":[1,2],"keys":"now"}`).want(http.StatusOK)
	h.with("If-Match", `"1"`).call("PUT", path, `{"cells":[1]}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `"1"`).call("POST", path+"/drained", `{"cells":[0]}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `"1"`).call("DELETE", path, "").wantProblem(problem.PreconditionFailed)
	h.call("POST", path+"/drained", `{"cells":[0]}`).want(http.StatusOK)
	page := decode[listPlacementsResponse](h.call("GET", "/placements?limit=10", "").want(http.StatusOK))
	h.call("DELETE", path, "").want(http.StatusNoContent)
	h.call("GET", fmt.Sprintf("/placements?after_version=%d&epoch=%s&wait=10ms", page.Version, page.Epoch), "").want(http.StatusOK)
	h.call("GET", "/placements?cursor=x", "").wantProblem(problem.InvalidCursor)
	for _, cells := range []string{`[]`, `[256]`, `[-1]`, `[1,1]`, `"some"`, `null`, `1`, `[1.5]`} {
		h.try("PUT", path, `{"cells":`+cells+`}`).wantProblem(problem.ValidationFailed)
		h.try("POST", path+"/drained", `{"cells":`+cells+`}`).want(http.StatusUnprocessableEntity)
	}
}

// provokeCells makes the calls about the list of cells that gateways are told of.
func provokeCells(h *environment) {
	h.call("PUT", "/cells/4", `{"url":"https://c.internal:8080"}`).want(http.StatusOK)
	h.call("PUT", "/cells/0", `{"takes_new":false,"keys":"now"}`).want(http.StatusOK)
	h.try("PUT", "/cells/0", `{"keys":"later"}`).wantProblem(problem.ValidationFailed)
	for _, url := range []string{`""`, `"c.internal"`, `"ftp://c"`, `"https://user@c"`, `"https://c/path"`, `"https://c?q"`, `"https://c d"`} {
		h.try("PUT", "/cells/4", `{"url":`+url+`}`).wantProblem(problem.ValidationFailed)
	}
	h.try("PUT", "/cells/456", `{}`).wantProblem(problem.InvalidParameter)
	h.call("DELETE", "/cells/9", "").wantProblem(problem.CellNotFound)
	h.call("PUT", "/queues/listed/placement", `{"cells":[4]}`).want(http.StatusOK)
	listed := decode[listCellsResponse](h.call("GET", "/cells", "").want(http.StatusOK)).Cells
	if len(listed) != 2 || listed[0].Cell != 0 || listed[0].TakesNew || listed[0].URL != nil || listed[1].Placed != 1 || *listed[1].URL != "https://c.internal:8080" {
		h.t.Errorf("the list is %+v", listed)
	}
	h.call("DELETE", "/cells/4", "").wantProblem(problem.CellInUse)
	h.call("PUT", "/queues/listed/placement", `{"cells":[1]}`).want(http.StatusOK)
	h.call("DELETE", "/cells/4", "").wantProblem(problem.CellInUse) // it may have events still
	page := decode[listPlacementsResponse](h.call("GET", "/placements", "").want(http.StatusOK))
	if len(page.Cells) != 2 || page.Cells[1].Cell != 4 || !page.Cells[1].TakesNew || len(page.Cells[1].Turns) != 1 || !page.Cells[1].Turns[0].TakesNew {
		h.t.Errorf("who follows placements sees the cells %+v", page.Cells)
	}
	h.call("POST", "/queues/listed/placement/drained", `{"cells":"all"}`).want(http.StatusOK)
	if got := h.call("DELETE", "/cells/4", "").wantProblem(problem.CellInUse).Detail; !regexp.MustCompile(`count until 20[0-9T:-]+Z: .*keys=now`).MatchString(got) {
		h.t.Errorf("a cell where keys count is not deleted, and the problem is %s", got)
	}
	h.try("DELETE", "/cells/4?keys=later", "").wantProblem(problem.InvalidParameter)
	h.call("DELETE", "/cells/4?keys=now", "").want(http.StatusNoContent)
	h.call("PUT", "/cells/4", `{"url":"https://c.internal:8080"}`).want(http.StatusOK)
	h.call("DELETE", "/queues/listed/placement", "").want(http.StatusNoContent)
	page = decode[listPlacementsResponse](h.call("GET", "/placements", "").want(http.StatusOK))
	h.call("DELETE", "/cells/4", "").want(http.StatusNoContent)
	// A change of the list alone ends the wait of who follows.
	page = decode[listPlacementsResponse](h.call("GET", fmt.Sprintf("/placements?after_version=%d&epoch=%s&wait=1m", page.Version, page.Epoch), "").want(http.StatusOK))
	if len(page.Cells) != 1 || page.Complete {
		h.t.Errorf("who follows placements sees %+v", page)
	}
	h.call("DELETE", "/cells/0", "").want(http.StatusNoContent)
}

// provokeQueueCopies makes the calls that have queues be set on one cell as on another.
func provokeQueueCopies(h *environment) {
	put := func(copied string) putQueueCopy {
		h.t.Helper()
		return decode[putQueueCopiesResponse](h.call("PUT", "/cell/settings", `{"queues":[`+copied+`]}`).want(http.StatusOK)).Queues[0]
	}
	if got := put(`{"queue":"copied","policy":{"max_attempts":5},"push":null}`); got.Result != "applied" {
		h.t.Errorf("a copy: %+v", got)
	}
	h.call("GET", "/cell/settings?queue=copied", "").want(http.StatusOK)
	for _, copied := range []string{
		`"policy":7`, `"policy":{"max_attempts":0}`, `"policy":{"max_attempts":"x"}`, `"policy":{"delay":"long"}`, `"policy":{"nonsense":1}`, `"policy":{},"push":7`, `"policy":{},"push":{}`,
		`"policy":{},"push":{"secrets":[]}`, `"policy":{},"push":{"secrets":[{"secret":"xyz"}]}`, `"policy":{"dead_letter":{"queue":"copied"}}`, `"policy":{},"nonsense":1`,
	} {
		if got := put(`{"queue":"copied",` + copied + `}`); got.Result != access.CopyRefused || got.Code != "validation_failed" || got.Detail == "" {
			h.t.Errorf("%s: %+v", copied, got)
		}
	}
	if got := put(`{"queue":"queued.x","policy":{}}`); got.Result != access.CopyRefused {
		h.t.Errorf("a queue of the service: %+v", got)
	}
	if got := put(`{"queue":"copied","policy":{},"push":{"secrets":[{"secret":"0a"}]}}`); got.Code != "sealing_unavailable" {
		h.t.Errorf("a push that cannot be opened: %+v", got)
	}
	for _, body := range []string{`{"queues":[]}`, `{"queues":[],"complete":true}`, `{"queues":[{"queue":"copied","policy":{},"change":1}],"epoch":"home"}`} {
		h.try("PUT", "/cell/settings", body).wantProblem(problem.ValidationFailed)
	}
	h.call("GET", "/cell/settings?cursor=x", "").wantProblem(problem.InvalidCursor)
}

// settingsOf returns copies of settings as a cell says them now.
func (h *environment) settingsOf(query string) listQueueCopiesResponse {
	h.t.Helper()
	return decode[listQueueCopiesResponse](h.call("GET", "/cell/settings"+query, "").want(http.StatusOK))
}

// putSettings puts copies of an epoch, and returns what became of each.
func (h *environment) putSettings(page listQueueCopiesResponse, more string) string {
	h.t.Helper()
	copies, err := json.Marshal(page.Queues)
	if err != nil {
		h.t.Fatal(err)
	}
	got := decode[putQueueCopiesResponse](h.call("PUT", "/cell/settings", fmt.Sprintf(`{"queues":%s,"epoch":%q%s}`, copies, page.Epoch, more)).want(http.StatusOK))
	var results []string
	for _, one := range got.Queues {
		results = append(results, one.Result)
	}
	if got.Epoch == nil || *got.Epoch != page.Epoch {
		return "stale"
	}
	return strings.Join(results, " ")
}

func TestQueuesAreSetAsAtHome(t *testing.T) {
	t.Parallel()
	home, to := setup(t), setupWith(t, settings{cell: inCell(3)})
	policy := `{"max_attempts":7,"invisible_for":"90s","backoff":{"kind":"exponential","base":"2s","factor":3,"max":"1h","jitter":0.5},"paused":true,` +
		`"history_retention":"48h","dead_letter":{"queue":"mail.dead"},"delay":"1s","wait":"5s","group_from":"/customer","flow":{"concurrency":2}}`
	home.call("PUT", "/queues/mail", policy).want(http.StatusOK)
	home.call("PUT", "/queues/mail/push", `{"url":"https://example.com/in","headers":{"X-Token":"t0p"},"timeout":"9s","max_in_flight":3,"rate":{"per_second":2,"burst":4},`+
		`"final_statuses":[410,422],"disable_after":"24h"}`).want(http.StatusCreated)
	home.call("POST", "/queues/mail/push/secret", `{"keep":"1h"}`).want(http.StatusOK)
	home.call("PUT", "/queues/other", `{"max_attempts":2}`).want(http.StatusOK)
	first := home.settingsOf("")
	if text := fmt.Sprintf("%s", first.Queues); !first.Complete || len(first.Queues) != 2 || strings.Contains(text, "t0p") || strings.Contains(text, "whsec_") {
		t.Fatalf("the copies are %+v %s", first, text)
	}
	if got := to.putSettings(first, `,"complete":true`); got != "applied applied" {
		t.Errorf("copies: %s", got)
	}
	if got := to.putSettings(first, ""); got != "unchanged unchanged" {
		t.Errorf("the same copies: %s", got)
	}
	same := func(paths ...string) {
		t.Helper()
		for _, path := range paths {
			a, b := home.call("GET", path, ""), to.call("GET", path, "")
			if a.body != b.body || a.header.Get("Etag") != b.header.Get("Etag") {
				t.Errorf("%s differs:\n%s %s\n%s %s", path, a.header.Get("Etag"), a.body, b.header.Get("Etag"), b.body)
			}
		}
	}
	secrets := func(h *environment) string {
		return pgtest.Query[string](t, pgtest.Connect(t, h.db.URL), `select string_agg(encode(secret, 'hex'), ',' order by live_until desc nulls first) from agent.push_secret`)
	}
	same("/queues/mail", "/queues/mail/push", "/queues/other")
	if secrets(home) != secrets(to) {
		t.Error("the secrets differ")
	}

	// Changes come by themselves, and an older copy changes nothing any more.
	following := fmt.Sprintf("?after_version=%d&epoch=%s", first.Version, first.Epoch)
	for page := home.settingsOf(following); ; page = home.settingsOf(following) {
		if page.Complete {
			t.Fatalf("of a change all are listed: %+v", page)
		}
		if len(page.Queues) == 0 { // until no transaction on this server is as old as the changes are
			break
		}
		following = fmt.Sprintf("?after_version=%d&epoch=%s", page.Version, page.Epoch)
	}
	home.call("POST", "/queues/mail/resume", "").want(http.StatusOK)
	home.call("DELETE", "/queues/mail/push", "").want(http.StatusNoContent)
	if got := to.putSettings(home.settingsOf(following), ""); got != "applied" {
		t.Errorf("a change: %s", got)
	}
	same("/queues/mail")
	to.call("GET", "/queues/mail/push", "").wantProblem(problem.PushNotFound)
	if got := to.putSettings(first, ""); got != "unchanged unchanged" {
		t.Errorf("older copies: %s", got)
	}
	same("/queues/mail")

	// A queue that is deleted at home is deleted, or is set to nothing where it has events.
	home.call("PUT", "/queues/full", `{"max_attempts":9}`).want(http.StatusOK)
	to.putSettings(home.settingsOf(following), "")
	to.call("POST", "/events?queue=full", `{}`).want(http.StatusCreated)
	home.call("DELETE", "/queues/full", "").want(http.StatusOK)
	home.call("DELETE", "/queues/other", "").want(http.StatusOK)
	to.putSettings(home.settingsOf(following), "")
	if names := fmt.Sprintf("%s", to.settingsOf("").Queues); strings.Contains(names, `"other"`) || strings.Contains(names, "max_attempts\": 9") {
		t.Errorf("the cell has %s", names)
	}

	// Another epoch of home counts once somebody who has asked since says what it follows.
	page := home.settingsOf("")
	before := page.Epoch
	page.Epoch, page.Queues = "later", page.Queues[:0]
	if got := to.putSettings(page, `,"complete":true`); got != "stale" {
		t.Errorf("another epoch: %s", got)
	}
	to.putSettings(page, fmt.Sprintf(`,"complete":true,"before":%q`, before))
	if names := fmt.Sprintf("%s", to.settingsOf("").Queues); strings.Contains(names, `"mail"`) {
		t.Errorf("what home does not have any more is %s", names)
	}
}

func provokeNotHome(h *environment) {
	const path = "/queues/placed/placement"
	h.call("PUT", path, `{"cells":[0]}`).wantProblem(problem.NotHome)
	h.call("GET", path, "").wantProblem(problem.NotHome)
	h.call("POST", path, `{"cell":3}`).wantProblem(problem.NotHome)
	h.call("DELETE", path, "").wantProblem(problem.NotHome)
	h.call("POST", path+"/drained", `{"cells":[0]}`).wantProblem(problem.NotHome)
	h.call("GET", "/placements", "").wantProblem(problem.NotHome)
	h.call("GET", "/cells", "").wantProblem(problem.NotHome)
	h.call("PUT", "/cells/3", `{}`).wantProblem(problem.NotHome)
	h.call("DELETE", "/cells/3", "").wantProblem(problem.NotHome)
}

// keyCopy is a copy of a key.
var keyCopy = `{"id":"k3x7q2ac","name":"copied","scopes":["read"],"queues":null,"topics":null,"rate_per_second":null,"rate_burst":null,"hash":"` + strings.Repeat("0a", 32) + `","verifier":"` + strings.Repeat("0b", 32) + `","previous_hash":null,"previous_verifier":null,"previous_until":null,"expires_at":null,"revoked_at":null,"version":1,"created_at":"2026-02-03T04:05:06+00:00","updated_at":"2026-02-03T04:05:06+00:00"}`

func provokeKeyCopies(h *environment) {
	h.call("PUT", "/cell/keys", `{"keys":[`+keyCopy+`]}`).wantProblem(problem.LastAdminKey)                                                             // without a key, nobody could manage keys then
	for _, body := range []string{`{"keys":[]}`, `{"keys":[],"epoch":"e"}`, `{"keys":[],"complete":true}`, `{"keys":[],"epoch":"e","complete":true}`} { // the last one because this is home
		h.try("PUT", "/cell/keys", body).wantProblem(problem.ValidationFailed)
	}
	h.call("PUT", "/cell/keys", `{"keys":[{"id":"k3x7q2ad","deleted":true}]}`).want(http.StatusOK)
	h.call("GET", "/cell/keys?cursor=x", "").wantProblem(problem.InvalidCursor)
	h.call("GET", "/cell/queues?cursor=x", "").wantProblem(problem.InvalidCursor)
}

func TestQueuesOfACellAreThoseWithEvents(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, queue := range []string{"c", "a", "b", "d"} {
		h.call("POST", "/events?queue="+queue, "{}").want(http.StatusCreated)
		h.call("POST", "/events?queue="+queue+"&delay=1h", "{}").want(http.StatusCreated)
	}
	h.call("POST", "/queues/d/purge", "").want(http.StatusOK)
	h.call("PUT", "/queues/e", "{}").want(http.StatusOK)
	h.call("POST", "/claim", `{"queue":"a"}`).want(http.StatusOK)
	var got []string
	cursor := ""
	for range 10 {
		page := decode[listCellQueuesResponse](h.call("GET", "/cell/queues?limit=2"+cursor, "").want(http.StatusOK))
		got = append(got, page.Queues...)
		if page.Next == nil {
			break
		}
		cursor = "&cursor=" + url.QueryEscape(*page.Next)
	}
	if !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("listed %v", got)
	}
}

func TestQueueIsPlacedOnceByWhoeverUsesItFirst(t *testing.T) {
	t.Parallel()
	h := setup(t)
	place := func(queue string, cell int) []int {
		got := h.call("POST", "/queues/"+queue+"/placement", fmt.Sprintf(`{"cell":%d}`, cell))
		if got.status != http.StatusOK {
			t.Errorf("placing %s on %d: %d %s", queue, cell, got.status, got.body)
			return nil
		}
		return decode[struct{ Cells []int }](got).Cells
	}
	answers := make(chan []int, 8)
	for i := range cap(answers) {
		go func() { answers <- place("new", i+1) }()
	}
	first := <-answers
	for range cap(answers) - 1 {
		if got := <-answers; !slices.Equal(got, first) {
			t.Errorf("placed on %v and on %v", first, got)
		}
	}
	if got := place("new", 77); !slices.Equal(got, first) || len(first) != 1 {
		t.Errorf("placed on %v, and then on %v", first, got)
	}
	// What home had before there were other cells stays there.
	h.call("POST", "/events?queue=filled", `{}`).want(http.StatusCreated)
	h.call("PUT", "/queues/set", `{}`).want(http.StatusOK)
	h.call("POST", "/events?queue=emptied", `{}`).want(http.StatusCreated)
	e := h.claimOneBy(`{"queue":"emptied"}`)
	h.call("POST", fmt.Sprintf("/events/%d/ack", e.ID), fmt.Sprintf(`{"receipt":%q}`, e.Receipt)).want(http.StatusOK)
	for _, queue := range []string{"filled", "set", "emptied"} {
		if got := place(queue, 5); !slices.Equal(got, []int{0}) {
			t.Errorf("%s is placed on %v", queue, got)
		}
	}
}

// Who places a queue elsewhere that home has, and that is placed nowhere yet, moves it: events are claimed from home, and keys meet their first there.
func TestQueueOfHomeIsMovedByItsFirstPlacement(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.with("Idempotency-Key", "k").call("POST", "/events?queue=old", `{}`).want(http.StatusCreated)
	h.call("POST", "/events?queue=deleted", `{}`).want(http.StatusCreated)
	h.call("PUT", "/queues/deleted/placement", `{"cells":[4]}`).want(http.StatusOK)
	h.call("DELETE", "/queues/deleted/placement", "").want(http.StatusNoContent)
	for queue, past := range map[string]string{"old": "[0]", "deleted": "[0,4]"} {
		got := h.call("PUT", "/queues/"+queue+"/placement", `{"cells":[1]}`).want(http.StatusOK).body
		for _, want := range []string{`"cells":[1]`, `"former":[{"cells":[0],`, `"keys":{"cells":[0],`, `"past":` + past, `"asked":[{"cells":[0],`} {
			if !strings.Contains(got, want) {
				t.Errorf("%s has no %s: %s", queue, want, got)
			}
		}
	}
	if got := h.call("PUT", "/queues/new/placement", `{"cells":[1]}`).want(http.StatusOK).body; !strings.Contains(got, `"former":[]`) || !strings.Contains(got, `"keys":null`) {
		t.Errorf("a queue that home does not have: %s", got)
	}
	h.call("POST", "/events?queue=used", `{}`).want(http.StatusCreated)
	for queue, want := range map[string]string{"used": `"cells":[0]`, "other": `"cells":[3]`} {
		if got := h.call("PUT", "/queues/"+queue+"/placement", `{"cells":[3],"first_use":true}`).want(http.StatusOK).body; !strings.Contains(got, want) || !strings.Contains(got, `"first_use":true`) {
			t.Errorf("%s, at its first use: %s", queue, got)
		}
	}
}

func TestKeyPlacesSoManyQueuesAnHour(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	publisher := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Publish}, Queues: []string{"q*"}, Topics: []string{"q.**"}}))
	manager := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Publish, access.Manage, access.Read}}))
	var placing sync.WaitGroup
	var refused atomic.Int64
	for worker := range 4 {
		placing.Go(func() {
			for i := range access.PlacesPerHour/4 + 10 {
				switch got := publisher.call("POST", fmt.Sprintf("/queues/q-%d-%d/placement", worker, i), `{"cell":1}`); got.status {
				case http.StatusOK:
				case http.StatusTooManyRequests:
					refused.Add(1)
					if got.wantProblem(problem.RateLimited); got.header.Get("Retry-After") == "" {
						t.Error("there is no Retry-After")
					}
				default:
					t.Errorf("%d %s", got.status, got.body)
				}
			}
		})
	}
	placing.Wait()
	if n := refused.Load(); n < 10 || n > 40 { // some come anew while it lasts
		t.Errorf("%d queues were not placed, want 40", n)
	}
	publisher.call("POST", "/queues/q-0-0/placement", `{"cell":1}`).want(http.StatusOK) // it is placed
	manager.call("POST", "/queues/more/placement", `{"cell":1}`).want(http.StatusOK)
	if got := manager.call("GET", "/queues/more/placement", "").want(http.StatusOK).body; !strings.Contains(got, `"first_use":true`) {
		t.Errorf("a first use has placed %s", got)
	}
	if got := manager.call("PUT", "/queues/more/placement", `{"cells":[2]}`).want(http.StatusOK).body; strings.Contains(got, `"first_use"`) {
		t.Errorf("a manager has placed %s", got)
	}
}

func TestKeyOfAHostileCopyCanBeChangedRotatedAndRevoked(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.adminKey())
	const path = "/keys/k3x7q2ac"
	put := func(copied string) putKeyCopy {
		t.Helper()
		return decode[putKeyCopiesResponse](admin.call("PUT", "/cell/keys", `{"keys":[`+copied+`]}`).want(http.StatusOK)).Keys[0]
	}
	with := func(member, value string) string {
		return regexp.MustCompile(`"`+member+`":("[^"]*"|\[[^]]*\]|[0-9a-z]+)`).ReplaceAllString(keyCopy, `"`+member+`":`+value)
	}
	for member, values := range map[string][]string{
		"version": {"9223372036854775807", "9007199254740992", "0", "-1"}, "created_at": {`"294276-12-31T23:59:59Z"`, `"0001-01-01T00:00:00Z"`}, "updated_at": {`"infinity"`, `"9999-01-01T00:00:00Z"`},
		"expires_at": {`"10000-01-01T00:00:00Z"`},
	} {
		for _, value := range values {
			got := put(with(member, value))
			if got.Result != "refused" || got.Code != "validation_failed" || !strings.HasPrefix(got.Detail, member+": ") {
				t.Errorf("a copy with the %s %s: %+v", member, value, got)
			}
			admin.call("GET", path, "").wantProblem(problem.KeyNotFound)
		}
	}
	if got := put(with("version", "9007199254740991")); got.Result != "applied" {
		t.Fatalf("a copy with the greatest version: %+v", got)
	}
	for _, version := range []string{"9007199254740991", "9223372036854775807"} {
		h.sql(`update agent.api_key set version = $1::text::int8 where id = 'k3x7q2ac'`, version)
		etag := admin.call("GET", path, "").want(http.StatusOK).header.Get("Etag")
		if etag != `"`+version+`"` {
			t.Errorf("the version is %s, want %s", etag, version)
		}
		admin.with("If-Match", etag).call("PATCH", path, `{"name":"of `+version+`"}`).want(http.StatusOK)
		h.sql(`update agent.api_key set version = $1::text::int8 where id = 'k3x7q2ac'`, version)
		admin.call("POST", path+"/rotate", `{"grace":"0s"}`).want(http.StatusOK)
		h.sql(`update agent.api_key set version = $1::text::int8, updated_at = '294276-12-31' where id = 'k3x7q2ac'`, version)
		admin.call("GET", "/keys", "").want(http.StatusOK)
	}
	admin.call("DELETE", path, "").want(http.StatusNoContent)
	if got := decode[keyBody](admin.call("GET", path, "").want(http.StatusOK)); got.Status != "revoked" || got.RevokedAt == nil || got.Version != 1<<53-1 {
		t.Errorf("the key is %+v", got)
	}
	if put(with("version", "9007199254740991")); decode[keyBody](admin.call("GET", path, "").want(http.StatusOK)).Status != "revoked" {
		t.Error("a copy has brought the key back")
	}
}

func TestTimesOfSecretsInTheCopyOfAQueueAreBounded(t *testing.T) {
	t.Parallel()
	from, to := setup(t), setupWith(t, settings{cell: inCell(3)})
	from.call("PUT", "/queues/mail/push", `{"url":"https://example.com/in"}`).want(http.StatusCreated)
	from.call("POST", "/queues/mail/push/secret", `{"keep":"8760h"}`).want(http.StatusOK)
	copied := from.settingsOf("")
	for member, values := range map[string][]string{
		"live_until": {"infinity", "294276-12-31T23:59:59", "1999-12-31T23:59:59", time.Now().Add(367 * 24 * time.Hour).UTC().Format("2006-01-02T15:04:05")},
		"created_at": {"infinity", "-infinity", "294276-12-31T23:59:59", "0001-01-01T00:00:00", time.Now().Add(25 * time.Hour).UTC().Format("2006-01-02T15:04:05")},
	} {
		for _, value := range values {
			hostile := copied
			text := regexp.MustCompile(`"`+member+`": ?"[^"]*"`).ReplaceAllString(string(copied.Queues[0]), `"`+member+`":"`+value+`"`)
			if hostile.Queues = []json.RawMessage{json.RawMessage(text)}; text == string(copied.Queues[0]) {
				t.Fatalf("there is no %s in %s", member, text)
			}
			if got := to.putSettings(hostile, ""); got != access.CopyRefused {
				t.Errorf("a secret with the %s %s: %s", member, value, got)
			}
			if got := to.settingsOf(""); len(got.Queues) > 0 {
				t.Errorf("a copy that was refused has set %s", got.Queues)
			}
		}
	}
	if got := to.putSettings(copied, ""); got != "applied" {
		t.Errorf("the copy itself: %s", got)
	}
}
