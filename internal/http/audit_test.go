package http

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pgtest"
)

// seenAction is an action in a response.
type seenAction struct {
	ID                          int64
	Actor, Role, Action, Target string
	Detail                      json.RawMessage
}

// audit returns the actions of the audit that a query selects, the latest first.
func (c *client) audit(query string) []seenAction {
	c.t.Helper()
	return decode[struct{ Actions []seenAction }](c.call("GET", "/audit?limit=1000&"+query, "").want(http.StatusOK)).Actions
}

// audited has what each operation that manages is recorded as; "" for those that have nothing to record.
var audited = map[string]string{
	"sweep": "", "runEvent": "event.run", "runQueue": "queue.run", "requeue": "event.requeue", "requeueMatching": "history.requeue",
	"putQueue": "queue.put", "patchQueue": "queue.put", "deleteQueue": "queue.delete", "pauseQueue": "queue.pause", "resumeQueue": "queue.resume", "purgeQueue": "queue.purge", "moveEvents": "queue.move",
	"putGroup": "group.put", "deleteGroup": "group.delete", "unblockGroup": "group.unblock",
	"createRedrive": "redrive.create", "pauseRedrive": "redrive.pause", "resumeRedrive": "redrive.resume", "cancelRedrive": "redrive.cancel",
	"putQueueCopies": "queue.put", "putKeyCopies": "key.copy", "insertForwarded": "", "putCell": "cell.put", "deleteCell": "cell.delete",
	"putPlacement": "placement.put", "drainPlacement": "placement.drain", "deletePlacement": "placement.delete",
	"putPush": "push.put", "deletePush": "push.delete", "rotatePushSecret": "push.rotate", "enablePush": "push.enable", "testPush": "",
	"createSchedule": "schedule.create", "patchSchedule": "schedule.update", "deleteSchedule": "schedule.delete",
	"pauseSchedule": "schedule.pause", "resumeSchedule": "schedule.resume", "runSchedule": "schedule.run",
	"putOwner": "owner.put", "deleteOwner": "owner.delete", "putLogSettings": "log.put",
	"putSubscription": "subscription.put", "deleteSubscription": "subscription.delete", "putFilter": "filter.put", "deleteFilter": "filter.delete",
	"seekSubscription": "subscription.seek", "replaySubscription": "subscription.replay", "pauseSubscription": "subscription.pause", "resumeSubscription": "subscription.resume",
	"putSource": "source.put", "deleteSource": "source.delete", "testSource": "",
	"createKey": "key.create", "patchKey": "key.update", "rotateKey": "key.rotate", "revokeKey": "key.revoke",
}

// TestAuditSaysWhoManagedWhat makes each call that manages with a key of its own, and looks for it in the audit.
func TestAuditSaysWhoManagedWhat(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	in := &side{name: "in", admin: admin}
	in.fill("EVENT DONE SCHEDULE POSITION SOURCE READER DELIVERED", make(map[string]string))
	needed := scopesOfContract(t)
	for _, r := range everyRoute(t) {
		scope := needed[r.method+" "+r.pattern]
		action, isListed := audited[r.id]
		if isListed != (scope == access.Manage || scope == access.Admin && r.writes()) {
			t.Errorf("%s is not in the table, or should not be", r.id)
		}
		if action == "" {
			continue
		}
		call := restrictedCalls[r.id]
		known := make(map[string]string)
		key := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
		id := key[3:11]
		path := strings.ReplaceAll(in.fill(call.path, known), "k3x7q2ab", id)
		body := in.fill(call.body, known)
		switch r.id {
		case "purgeQueue":
			admin.call("POST", "/events?queue=in.purged", "{}").want(http.StatusCreated)
		case "resumeRedrive":
			admin.call("POST", "/redrives/"+known["REDRIVE"]+"/pause", "").want(http.StatusOK)
		case "resumeSchedule":
			admin.call("POST", "/schedules/"+known["SCHEDULE"]+"/pause", "").want(http.StatusOK)
		case "deleteGroup":
			admin.call("PUT", path, `{"paused":true}`).want(http.StatusOK)
		case "unblockGroup":
			name := strings.Split(path, "/")[2]
			admin.call("PUT", "/queues/"+name, `{"max_attempts":1,"flow":{"order":true,"on_failed":"block"}}`).want(http.StatusOK)
			admin.call("POST", "/events?group=g&priority=-2147483648&queue="+name, "{}").want(http.StatusCreated)
			e := decode[seenPage](admin.call("POST", "/claim", `{"queue":"`+name+`"}`).want(http.StatusOK)).Events[0]
			admin.call("POST", fmt.Sprintf("/events/%d/nack", e.ID), fmt.Sprintf(`{"receipt":%q,"final":true}`, e.Receipt)).want(http.StatusOK)
		case "deleteOwner":
			admin.call("PUT", "/owners/ada", `{"timezone":"UTC"}`).want(http.StatusCreated)
		case "replaySubscription":
			body = `{"from":0}`
		case "patchKey":
			body = `{"name":"other"}`
		case "runQueue":
			in.fill("LATER", make(map[string]string))
		case "moveEvents":
			in.fill("EVENT", make(map[string]string))
			in.fill("RAW", make(map[string]string))
		}
		if got := h.key(key).try(r.method, path, body); got.status >= http.StatusBadRequest {
			t.Errorf("%s %s: got %d %s", r.id, path, got.status, got.body)
			continue
		}
		found := admin.audit("actor=key:" + id)
		if len(found) != 1 || found[0].Action != action || found[0].Target == "" || found[0].Role == "" {
			t.Errorf("%s is recorded as %+v, want %s", r.id, found, action)
		}
	}
	if found := admin.audit("action=queue.*"); len(found) < 4 || slices.ContainsFunc(found, func(a seenAction) bool { return !strings.HasPrefix(a.Action, "queue.") }) {
		t.Errorf("the actions on queues are %+v", found)
	}
	all := admin.audit("")
	page := decode[listAuditResponse](admin.call("GET", "/audit?limit=2", "").want(http.StatusOK))
	next := decode[listAuditResponse](admin.call("GET", "/audit?limit=2&cursor="+*page.Next, "").want(http.StatusOK))
	for i, a := range append(page.Actions, next.Actions...) {
		if a.ID != all[i].ID {
			t.Errorf("the action %d of the pages is %d, want %d", i, a.ID, all[i].ID)
		}
	}
	h.atHome().sql(`select agent.pause_queue('by-sql')`)
	if found := admin.audit("target=by-sql"); len(found) != 1 || found[0].Actor != found[0].Role || strings.HasPrefix(found[0].Actor, "key:") {
		t.Errorf("a session of SQL is recorded as %+v", found)
	}
}

func TestAuditIsOfTheTransactionOfItsAction(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	h.sql(`do $$ begin perform agent.pause_queue('undone'); raise exception 'no'; exception when raise_exception then null; end $$`)
	admin.call("PATCH", "/schedules/7", `{"name":"n"}`).wantProblem(problem.ScheduleNotFound)
	if found := admin.audit("target=undone"); len(found) != 0 {
		t.Errorf("what was rolled back is recorded: %+v", found)
	}
	h.sql(`alter table agent.audit add constraint refuse check (action <> 'queue.put')`)
	if got := admin.try("PUT", "/queues/a", "{}"); got.status < 400 {
		t.Errorf("what cannot be recorded returned %d", got.status)
	}
	if n := h.count(`select count(*) from agent.queue where name = 'a'`); n != 0 {
		t.Error("what cannot be recorded was done")
	}
}

func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	h := setup(t)
	if pgtest.Flavour() == pgtest.Timescale {
		t.Skip("pg_dump reads no server that is newer than itself: the server of the other flavour is this machine's, too")
	}
	first := decode[seenKey](h.call("POST", "/keys", `{"name":"first","scopes":["admin"]}`).want(http.StatusCreated))
	admin := h.key(first.Key)
	made := decode[seenKey](admin.call("POST", "/keys", `{"name":"made","scopes":["read"]}`).want(http.StatusCreated))
	rotated := decode[seenKey](admin.call("POST", "/keys/"+made.ID+"/rotate", "").want(http.StatusOK))
	token := decode[createStreamTokenResponse](h.key(rotated.Key).call("POST", "/stream/tokens", `{"topics":["a"]}`).want(http.StatusCreated)).Token
	var shown strings.Builder
	for _, got := range []answer{
		h.key(made.Key).try("POST", "/claim", ""), h.key(made.Key+"x").try("GET", "/queues", ""), h.try("GET", "/nothing?token="+token, ""), h.try("GET", "/stream?token="+token+"&x=1", ""),
		h.with("Authorization", "Basic "+made.Key).try("GET", "/docs", ""), admin.try("GET", "/keys/"+made.Key, ""), admin.try("GET", "/queues?"+made.Key+"=1", ""),
		admin.try("GET", "/keys", ""), admin.try("GET", "/keys/"+made.ID, ""), admin.try("GET", "/keys/self", ""), admin.try("GET", "/audit", ""), admin.try("GET", "/metrics", ""),
		admin.try("DELETE", "/keys/"+made.ID, ""), h.key(rotated.Key).try("GET", "/queues", ""),
	} {
		if got.status < 400 || strings.Contains(got.body, "?"+made.Key[:3]) { // an unknown parameter is repeated to who has sent it
			continue
		}
		shown.WriteString(got.body)
	}
	for _, a := range admin.audit("") {
		fmt.Fprintf(&shown, "%+v %s", a, a.Detail)
	}
	shown.WriteString(h.log.String())
	shown.WriteString(dump(t, h))
	for name, secret := range map[string]string{"a key": made.Key, "a rotated key": rotated.Key, "the first key": first.Key, "a token": token} {
		if strings.Contains(shown.String(), secret) || strings.Contains(shown.String(), secret[12:]) {
			t.Errorf("%s is in a log, an error, the audit or a dump", name)
		}
	}
	if !strings.Contains(shown.String(), made.ID) || !strings.Contains(shown.String(), "COPY agent.api_key") {
		t.Error("the search has not seen what it has to")
	}
}

// dump returns what pg_dump writes of the test's database.
func dump(t *testing.T, h *environment) string {
	t.Helper()
	program, err := exec.LookPath("pg_dump")
	if err != nil {
		found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pg_dump")
		if len(found) == 0 {
			t.Fatal("there is no pg_dump")
		}
		program = found[len(found)-1]
	}
	cmd := exec.CommandContext(t.Context(), program, "--dbname", h.db.URL, "--schema", "agent", "--data-only")
	cmd.Env = os.Environ()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	return string(out)
}

func TestRotationInterruptsNobody(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	beside := setupWith(t, settings{beside: h})
	key := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Claim}})
	const claims = 1000
	for n := range claims {
		if n == claims/2 {
			key = decode[seenKey](admin.call("POST", "/keys/"+key[3:11]+"/rotate", `{"grace":"1h"}`).want(http.StatusOK)).Key
		}
		server := h
		if n%2 == 1 {
			server = beside
		}
		server.key(key).try("POST", "/claim", "").want(http.StatusOK)
	}
}
