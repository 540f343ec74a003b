package http

import (
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/queued/queued/internal/access"
)

func TestPagesOfferWhatTheKeyAllows(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail", "payroll")
	admin := h.key(h.adminKey())
	admin.call("POST", "/schedules", `{"name":"Report","queue":"mail","event":{},"cron":"@daily","timezone":"UTC"}`).want(201)
	admin.call("POST", "/schedules", `{"name":"Secret","queue":"payroll","event":{},"cron":"@daily","timezone":"UTC"}`).want(201)
	admin.call("POST", "/topics/order.placed", `{"n":1}`).want(201)
	admin.call("POST", "/topics/payroll.run", `{"salary":1}`).want(201)
	admin.call("PUT", "/subscriptions/orders", `{"filters":[{"topics":["order.*"]}],"deliver":{"queue":"mail"}}`).want(201)
	admin.call("PUT", "/subscriptions/payroll", `{"filters":[{"topics":["payroll.*"]}],"deliver":{"queue":"payroll"}}`).want(201)

	admin.call("POST", "/events?queue=mail&keep_raw=1h", `{"n":1}`).want(201)
	admin.call("POST", "/events?queue=payroll&keep_raw=1h", `{"salary":1}`).want(201)
	admin.call("POST", "/queues/mail/purge", "").want(200)

	reader := h.browseAs(t, h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}}))
	reader.get("schedules").want(200).says("Report", "Secret").saysNot("New schedule")
	reader.get("schedules/1").want(200).says("Next runs").saysNot("Run now", "Pause", "Change…", "Delete…")
	reader.get("schedules/new").want(200).says("Preview the next runs").saysNot("Create the schedule")
	reader.post("schedules/preview", scheduleForm()).want(200).says("nothing is stored yet")
	reader.get("subscriptions/orders").want(200).saysNot("Pause", "Seek…", "Replay…", "Delete…")
	reader.get("topics").want(200).saysNot("Publish an event")
	reader.get("topics/order.placed").want(200).saysNot("Publish an event")
	reader.get("fleet").want(200)
	reader.get("events/1").want(200).says("Raw body").saysNot("Requeue")
	reader.get("events/2").want(200).saysNot("Run now", "Cancel…")
	reader.get("history?queue=mail").want(200).says("events/1").saysNot("Requeue", `type="checkbox"`)
	reader.get("redrives").want(200)
	for path, form := range map[string]url.Values{
		"schedules/create": scheduleForm(), "schedules/1/change": scheduleForm("version", "1", "name", "Other"), "schedules/1/pause": nil, "schedules/1/resume": nil, "schedules/1/run": nil,
		"schedules/1/delete": {"version": {"1"}}, "subscriptions/orders/pause": nil, "subscriptions/orders/resume": nil, "subscriptions/orders/seek/confirmed": {"to": {"latest"}},
		"subscriptions/orders/replay/confirmed": {"from": {"earliest"}}, "subscriptions/orders/delete": {"version": {"1"}}, "topics/publish": {"topic": {"a"}, "event": {"{}"}},
		"topics/order.placed/publish": {"event": {"{}"}}, "events/2/run": nil, "events/1/requeue": {"seen": {"cancelled 0 0"}}, "history/requeue": {"id": {"1"}},
		"redrives": {"queue": {"mail"}},
	} {
		reader.post(path, form).want(403).says(`role="alert"`)
	}

	some := h.browseAs(t, h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read, access.Manage, access.Publish}, Queues: []string{"mail"}, Topics: []string{"order.*"}}))
	some.get("schedules").want(200).says("Report", "New schedule").saysNot("Secret")
	some.get("schedules/1").want(200).says("Run now")
	some.get("subscriptions").want(200).says("subscriptions/orders").saysNot("payroll")
	some.get("history").want(200).says("events/1").saysNot("events/2", "salary")
	some.get("history/errors").want(200)
	some.get("events/1").want(200).says("Raw body", "Requeue…")
	some.get("history/download?format=ndjson").want(200).saysNot("salary")
	some.get("redrives/new?outcome=cancelled").want(200).says("Requeue 1 event?")
	some.get("topics").want(200).says("order.placed", "Publish an event").saysNot("payroll")
	for _, path := range []string{"schedules/2", "schedules/2/change", "schedules/2/delete", "subscriptions/payroll", "subscriptions/payroll/delete", "topics/payroll.run", "log/4294967298", "events/2", "events/2/payload", "events/2/raw", "events/2/cancel", "events/2/requeue", "queues/payroll/events", "history?queue=payroll"} {
		page := some.get(path).saysNot("salary", "Secret")
		if page.status != 403 && page.status != 404 {
			t.Errorf("%s: status %d, want 403 or 404", path, page.status)
		}
	}
	for path, form := range map[string]url.Values{
		"schedules/2/run": nil, "schedules/2/delete": {"version": {"1"}}, "schedules/create": scheduleForm("queue", "payroll"), "schedules/1/change": scheduleForm("queue", "payroll", "version", "1"),
		"subscriptions/payroll/pause": nil, "topics/payroll.run/publish": {"event": {"{}"}},
	} {
		page := some.post(path, form).says(`role="alert"`)
		if page.status != 403 && page.status != 404 {
			t.Errorf("%s: status %d, want 403 or 404", path, page.status)
		}
	}
	if got := decode[pageOfMany](admin.call("GET", "/schedules", "").want(200)).Schedules; len(got) != 2 || got[0].Status != "active" || got[1].Status != "active" {
		t.Errorf("the schedules are %+v", got)
	}
}

func TestPagesOfSchedulesAndTopicsHidePayloads(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http: func(c *Config) { c.HidePayloads = true }})
	b := h.browse(t)
	_, at := h.createSchedule(`{"name":"Report","queue":"reports","event":{"secret":17},"cron":"30 7 * * 1-5","timezone":"Asia/Kolkata"}`)
	at = strings.TrimPrefix(at, "/")
	h.call("POST", "/publish", `{"events":[{"topic":"order.placed","event":{"secret":17},"meta":{"secret":18}}]}`).want(201)
	position := decode[struct {
		Topics []struct {
			Last int64 `json:"last_position"`
		}
	}](h.call("GET", "/topics", "").want(200)).Topics[0].Last
	for _, path := range []string{"schedules", at, at + "/change", "topics/order.placed", "log/" + strconv.FormatInt(position, 10)} {
		b.get(path).want(200).saysNot("secret")
	}
	b.get(at).says("QUEUED_UI_PAYLOADS=hidden")
	b.get("log/" + strconv.FormatInt(position, 10)).says("QUEUED_UI_PAYLOADS=hidden")
	form := scheduleForm("name", "Other", "version", "1", "event", "", "queue", "reports", "type", "")
	b.post(at+"/preview", form).want(200).says("nothing is stored yet").saysNot("secret")
	b.follow(at+"/change", form).want(200).says("The change is stored")
	if got := h.call("GET", "/"+at, "").want(200).body; !strings.Contains(got, `"secret":17`) || !strings.Contains(got, `"Other"`) {
		t.Errorf("the payload is not as it was: %s", got)
	}
}
