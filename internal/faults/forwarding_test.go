//go:build unix

package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const operatorKey = "the-key-of-the-operator"

// forwarding are the functions of agent that forward to agent_service for processes of the previous version.
const forwarding = `select count(*)::int from pg_proc p
	where p.pronamespace = 'agent'::regnamespace and obj_description(p.oid, 'pg_proc') = agent_private.forwarding_comment()`

// TestPreviousVersionFindsItsFunctionsUntilItIsGone has a process of the previous version, whose role may run the service and nothing else, serve on
// an upgraded database. A process of this version serves beside it, as the same role.
func TestPreviousVersionFindsItsFunctionsUntilItIsGone(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	before, version := previous(t)
	server := Start(t, Config{})
	server.Exec("", `alter role `+ordinary+` superuser`) // in case the installation of the previous version needs one
	if err := migrateOne(t, before, server, ordinary); err != nil {
		t.Fatal(err)
	}
	server.Exec("", `alter role `+ordinary+` nosuperuser; create role restricted login`)
	server.Exec(ordinary, `select agent.grant_service('restricted')`)
	asRestricted := strings.Replace(server.URL(), ordinary+"@", "restricted@", 1)
	environ := []string{"QUEUED_NO_MIGRATE=true", "QUEUED_API_KEY=" + operatorKey, "QUEUED_PUSH_ALLOW=127.0.0.1", "QUEUED_SECRET_KEY=a-key-that-seals-secrets"}
	old := startProgram(t, before, asRestricted, environ...)
	callEach(t, old, "before") // statements are prepared from now on

	if err := migrateOne(t, unmodified.program(t), server, ordinary); err != nil {
		t.Fatal(err)
	}
	if n := query[int](t, server.AdminURL(), forwarding); n < 80 {
		t.Errorf("%d functions forward", n)
	}
	callEach(t, old, "after")
	next := startProgram(t, unmodified.program(t), asRestricted, environ...)
	callEach(t, next, "beside")
	callEach(t, old, "still")

	const drop = `select agent_service.drop_forwarding_functions('0')::int`
	if n := query[int](t, server.AdminURL(), drop); n != 0 {
		t.Errorf("%d functions were dropped beside a process of version %s", n, version)
	}
	callEach(t, old, "alive")
	if code, took := old.terminate(); code != 0 {
		t.Errorf("%s ended with exit code %d after %v", version, code, took)
	}
	if n := query[int](t, server.AdminURL(), `select agent_service.drop_forwarding_functions()::int`); n != 0 {
		t.Errorf("%d functions were dropped right after the migration", n)
	}
	if n := query[int](t, server.AdminURL(), drop); n < 80 {
		t.Errorf("%d functions were dropped", n)
	}
	if n := query[int](t, server.AdminURL(), forwarding); n != 0 {
		t.Errorf("%d functions still forward", n)
	}
	callEach(t, next, "alone")
}

// callEach makes calls of each kind, all of which have to succeed. Names end with suffix.
func callEach(t *testing.T, q *queued, suffix string) {
	t.Helper()
	const post, put, del = http.MethodPost, http.MethodPut, http.MethodDelete
	c := &answerless{t: t, queued: q, key: operatorKey}
	must := func(method, path, body string, into any) {
		t.Helper()
		c.must(method, path, body, into)
	}
	type event struct {
		ID      int64
		Receipt string
	}
	claim := func() event {
		t.Helper()
		var claimed struct{ Events []event }
		must(post, "/claim", `{"queue":"`+suffix+`","wait":"30s"}`, &claimed)
		if len(claimed.Events) != 1 {
			t.Fatalf("%s: claimed %+v", suffix, claimed.Events)
		}
		return claimed.Events[0]
	}
	var page struct {
		Events []json.RawMessage
		Cursor string
	}
	must(post, "/events?queue="+suffix, `{"n":1}`, nil)
	e := claim()
	must(post, fmt.Sprintf("/events/%d/extend", e.ID), fmt.Sprintf(`{"receipt":%q,"invisible_for":"2h"}`, e.Receipt), nil)
	must(post, fmt.Sprintf("/events/%d/nack", e.ID), fmt.Sprintf(`{"receipt":%q,"error":"on purpose","delay":"1ms"}`, e.Receipt), nil)
	e = claim()
	must(del, fmt.Sprintf("/events/%d?receipt=%s", e.ID, e.Receipt), "", nil)
	must(post, "/sweep", `{}`, nil)
	must(http.MethodGet, "/queues", "", nil)

	must(put, "/subscriptions/"+suffix, `{"filters":[{"topics":["`+suffix+`.*"]}]}`, nil)
	must(put, "/subscriptions/d"+suffix, `{"filters":[{"topics":["`+suffix+`.*"]}],"deliver":{"queue":"`+suffix+`"}}`, nil)
	must(post, "/topics/"+suffix+".placed", `{"n":1}`, nil)
	must(post, "/topics/"+suffix+".placed?delay=1h", `{"n":1}`, nil)
	must(post, "/subscriptions/"+suffix+"/read", `{"wait":"30s"}`, &page)
	if len(page.Events) != 1 {
		t.Errorf("%s: read %q", suffix, page.Events)
	}
	must(post, "/subscriptions/"+suffix+"/commit", fmt.Sprintf(`{"cursor":%q}`, page.Cursor), nil)
	must(post, "/subscriptions/"+suffix+"/seek", `{"to":"earliest"}`, nil)
	must(http.MethodGet, "/log?topic="+suffix+".*", "", nil)
	e = claim() // what was delivered
	must(post, "/ack", fmt.Sprintf(`{"events":[{"id":%d,"receipt":%q}]}`, e.ID, e.Receipt), nil)
	must(del, "/subscriptions/"+suffix, "", nil)
	must(del, "/subscriptions/d"+suffix, "", nil)

	var made struct{ ID int64 }
	must(put, "/owners/"+suffix, `{"timezone":"Europe/London"}`, nil)
	must(post, "/schedules", `{"at":"2031-03-28T09:00:00","rrule":"FREQ=YEARLY","owner":"`+suffix+`","event":{},"queue":"`+suffix+`"}`, &made)
	must(http.MethodPatch, fmt.Sprintf("/schedules/%d", made.ID), `{"event":{"n":2}}`, nil)
	must(post, fmt.Sprintf("/schedules/%d/run", made.ID), "", nil)
	e = claim()
	must(del, fmt.Sprintf("/events/%d?receipt=%s", e.ID, e.Receipt), "", nil)
	must(del, fmt.Sprintf("/schedules/%d", made.ID), "", nil)
	must(del, "/owners/"+suffix, "", nil)

	must(put, "/sources/"+suffix, fmt.Sprintf(`{"kind":"token","queue":"%s","secrets":[%q]}`, suffix, sourceSecret), nil)
	if status, text := c.call(post, "/in/"+suffix, `{"id":"a"}`, "Authorization: Bearer "+sourceSecret); status >= 300 {
		t.Errorf("%s: a webhook was answered %d %s", suffix, status, text)
	}
	must(del, "/sources/"+suffix, "", nil)
	must(put, "/queues/pushed-"+suffix+"/push", `{"url":"http://127.0.0.1:9/"}`, nil)
	must(post, "/queues/pushed-"+suffix+"/push/enable", "", nil)
	must(del, "/queues/pushed-"+suffix+"/push", "", nil)

	var key struct{ ID, Key string }
	must(post, "/keys", `{"name":"`+suffix+`","scopes":["admin"]}`, &key)
	c.key = key.Key
	var second struct{ ID string }
	must(post, "/keys", `{"name":"second","scopes":["read"]}`, &second)
	must(http.MethodGet, "/keys/self", "", nil)
	must(http.MethodPatch, "/keys/"+second.ID, `{"scopes":["publish"]}`, nil)
	must(post, "/keys/"+second.ID+"/rotate", `{}`, nil)
	must(del, "/keys/"+second.ID, "", nil)
}
