package e2e_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// TestEachFormWorksWithoutScripts sends every form there is, in a narrow browser that runs no script, and looks at what it leads to.
func TestEachFormWorksWithoutScripts(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnprocessableEntity) }))
	t.Cleanup(endpoint.Close)
	p := start(t, build(t), newDatabase(t), freeAddress(t), "QUEUED_API_KEY="+adminKey, "QUEUED_SECRET_KEY=a-key-that-seals-secrets", "QUEUED_PUSH_ALLOW=127.0.0.1")
	p.key = adminKey
	for range 3 {
		p.request(t, "POST", "/events?queue=mail", `{}`)
	}
	for _, e := range p.claim(t, "mail", "worker-1", 3) {
		p.fail(t, e, "refused")
	}
	later := id(t, p.request(t, "POST", "/events?queue=mail&delay=1h", `{}`))
	p.request(t, "PUT", "/queues/pushed", `{"max_attempts":1}`)
	p.request(t, "PUT", "/subscriptions/billing", `{"filters":[{"topics":["order.*"]}],"deliver":{"queue":"billing"}}`)
	slow := make([]map[string]any, 100)
	for i := range slow {
		slow[i] = map[string]any{"queue": "slow", "event": map[string]any{"n": i}}
	}
	p.request(t, "POST", "/events/batch", string(encode(t, map[string]any{"events": slow})))
	p.request(t, "POST", "/queues/slow/purge", "")
	p.request(t, "POST", "/redrives", `{"filter":{"queue":"slow"},"to":"other","rate":0.01}`)
	p.request(t, "PUT", "/queues/elsewhere", `{}`)
	p.request(t, "PUT", "/queues/grouped", `{"flow":{"concurrency":1}}`)
	p.request(t, "POST", "/events?queue=grouped&group=a", `{}`)

	b := openTab(t, "http://"+p.address)
	b.look(360, "dark")
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	routes := routesOf(t, "Post")
	sent := map[string]bool{}
	// send fills in a form of a page and presses its button, whose action ends with suffix. What it leads to says want. An empty page is the one that is open.
	send := func(page, suffix, want string, fields ...string) {
		t.Helper()
		if page != "" {
			b.open(page)
		}
		button := fmt.Sprintf(`:is(form[method=post][action$=%q] button:not([formaction]), button[formaction$=%q])`, suffix, suffix)
		target := evaluate[string](b.ctx, t, `(e => e ? (e.hasAttribute("formaction") ? e.formAction : e.form.action) : "")(document.querySelector(`+strconv.Quote(button)+`))`)
		if target == "" {
			t.Fatalf("/ui/%s has no form that sends to …%s:\n%s", page, suffix, evaluate[string](b.ctx, t, `document.querySelector("main").innerText`))
		}
		for i := 0; i < len(fields); i += 2 {
			field := fmt.Sprintf(`[name=%q]:is(input:not([type=hidden]), select, textarea)`, fields[i])
			if is := evaluate[bool](b.ctx, t, fmt.Sprintf(`(() => {
				const field = document.querySelector(%q).form.querySelector(%q);
				if (!field) return false;
				if (field.type === "checkbox" || field.type === "radio") field.checked = true; else field.value = %q;
				return true;
			})()`, button, field, fields[i+1])); !is {
				t.Fatalf("the form …%s has no field %s", suffix, fields[i])
			}
		}
		b.press(button)
		if text := b.text(); !strings.Contains(text, want) {
			t.Errorf("the form …%s of /ui/%s leads to a page that does not say %q:\n%s", suffix, page, want, evaluate[string](b.ctx, t, `document.querySelector("main").innerText`))
		}
		what := "after the form …" + suffix
		b.check(what)
		b.picture("forms/" + strings.Trim(unfit.ReplaceAllString(strings.ReplaceAll(suffix, "/", "-"), "-"), "-"))
		sent[routeOf(t, routes, strings.TrimPrefix(target, b.base+"/ui/"))] = true
	}

	send("login", "login", "1 problem", "key", adminKey)
	send("queues/mail", "mail/pause", "The queue is paused")
	send("", "mail/resume", "no longer paused")
	send("queues/grouped", "grouped/groups", "The group is paused")
	send("queues/mail", "mail/post", "must be JSON", "event", "{")
	send("", "mail/post", "Posted the event", "event", `{"n":1}`, "type", "mail.welcome", "delay", "5m")
	send("queues/mail/policy", "mail/policy", "Validation failed", "max_attempts", "many")
	send("", "mail/policy", "The policy is stored", "max_attempts", "3", "backoff/kind", "constant", "backoff/base", "5s")
	send("queues/grouped/policy", "grouped/policy", "Validation failed", "flow/concurrency", "many", "flow/on_failed", "block", "flow/rate/limit", "10", "flow/rate/period", "soon")
	send("", "grouped/policy", "50 of the queue, each group in order, stopped by a failed event, 10 of a group claimed each", "group_from", "/tenant", "flow/concurrency", "", "flow/total", "50", "flow/rate/period", "1m", "flow/rate/burst", "3")
	send("queues/mail/move", "mail/move", "Events moved: 1", "to", "elsewhere", "limit", "1")
	send("queues/elsewhere/purge", "elsewhere/purge", "Events purged: 1")
	send("queues/elsewhere/delete", "elsewhere/delete", "The queue is deleted")

	send("events/"+later, later+"/run", "The event can be claimed now")
	send("events/"+later+"/cancel", later+"/cancel", "The event is in history")
	send("events/"+later+"/requeue", later+"/requeue", "This is the new event")
	send("history/requeue?id=1&id=2", "history/requeue", "Events requeued: 2")
	send("redrives/new?queue=mail&outcome=failed", "redrives", "goes on in the background", "target", "again", "rate", "1000")
	send("redrives/1", "1/pause", "The redrive is paused")
	send("", "1/resume", "The redrive goes on")
	send("redrives/1/cancel", "1/cancel", "The redrive is cancelled")

	send("queues/pushed/push/new", "push/new", "Validation failed", "url", endpoint.URL, "final_statuses", "many")
	send("", "push/new", "It is shown this once", "url", endpoint.URL, "final_statuses", "422")
	send("queues/pushed/push", "push/test", "Not delivered")
	p.request(t, "POST", "/events?queue=pushed", `{}`)
	await(t, "the event was pushed", func() bool {
		return strings.Contains(string(p.request(t, "GET", "/queues/pushed/push/deliveries", "")), `"failed"`)
	})
	send("queues/pushed/push", "push/again?", "A copy of the event is in the queue")
	send("queues/pushed/push/change", "push/change", "The change is stored", "timeout", "20s")
	send("queues/pushed/push", "push/enable", "The push begins anew")
	send("queues/pushed/push/secret", "push/secret", "Requests are signed with the new secret", "keep", "1h")
	send("queues/pushed/push/delete", "push/delete", "The push is deleted")

	send("schedules/new", "schedules/preview", "nothing is stored yet", "queue", "reports", "cron", "30 7 * * *", "timezone", "Europe/Berlin", "name", "nightly")
	send("", "schedules/create", "The schedule is stored")
	send("schedules/1/change", "1/preview", "nothing is stored yet", "cron", "40 7 * * *")
	send("", "1/change", "The change is stored")
	send("schedules/1", "1/pause", "The schedule is paused")
	send("", "1/resume", "no longer paused")
	send("", "1/run", "The schedule has made the event")
	send("schedules/1/delete", "1/delete", "does not run again")

	send("topics", "topics/publish", "Published at position", "topic", "order.placed", "event", `{"n":1}`)
	send("topics/order.placed", "order.placed/publish", "Published at position", "event", `{"n":2}`)
	send("subscriptions/billing", "billing/pause", "The subscription is paused")
	send("", "billing/resume", "no longer paused")
	send("", "billing/seek", "Move billing to earliest?", "to", "earliest")
	send("", "seek/confirmed", "goes on after position")
	send("subscriptions/billing", "billing/replay", "once more", "from", "earliest")
	send("", "replay/confirmed", "delivered once more")
	send("subscriptions/billing/delete", "billing/delete", "The subscription is deleted")

	send("new/source", "new/source", "Validation failed", "name", "shop", "queue", "shop in")
	send("", "new/source", "The source is stored", "name", "shop", "kind", "token", "header", "X-Token", "secrets/0", "0123456789abcdef", "queue", "shop")
	send("sources/shop", "shop/pause", "The source is paused")
	send("", "shop/resume", "no longer paused")
	send("sources/shop/test", "shop/test", "It would be refused", "body", `{"kind":"paid"}`)
	send("", "shop/test", "the delivery would be taken", "headers", "Content-Type: application/json\nX-Token: 0123456789abcdef")
	send("sources/shop/change", "shop/change", "The change is stored", "tolerance", "1m")
	send("sources/shop/delete", "shop/delete", "The source is deleted")

	send("keys/new", "keys/create", "Copy it now", "name", "night", "scope", "publish")
	b.press(`main a.button`)
	key := strings.TrimPrefix(evaluate[string](b.ctx, t, `location.href`), b.base+"/ui/keys/")
	send("keys/"+key, key+"/change", "The key is changed", "name", "day")
	send("keys/"+key, key+"/rotate", "has another text")
	send("keys/"+key+"/revoke", key+"/revoke", "The key is revoked")
	send("", "logout", "Logged out")

	for _, route := range routes {
		if !sent[route] {
			t.Errorf("no form was sent to the route %q", route)
		}
	}
	b.tell("the forms")
}
