package http

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
)

// inOrder fails the test unless the page has all these texts, one after the other.
func (p *pageSeen) inOrder(texts ...string) *pageSeen {
	p.t.Helper()
	rest := p.body
	for _, text := range texts {
		_, after, found := strings.Cut(rest, text)
		if !found {
			p.t.Fatalf("the page does not say %q after what comes before it: %s", text, p.body)
		}
		rest = after
	}
	return p
}

func TestOverviewFoldsProblemsAfterFive(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for i := range 7 {
		queue := "queue-" + string(rune('a'+i))
		h.fail(queue, `{}`, "the cause of "+queue, 7-i)
	}
	b := h.browse(t)
	page := b.get("").want(200).inOrder(`aria-label="Figures"`, "7 problems", "has 7 failures among 7 events", `<span class="when">last <time data-ago`, `<svg class="spark bad"`, "<details", "2 more problems",
		"has 2 failures", "has 1 failure", "</details>", "<h2>Queues")
	for i := range 7 { // also of queues whose cause is not among the five with most failures
		page.says("the cause of queue-" + string(rune('a'+i)) + " (")
	}
	b.afresh()
	h.sql(`update agent.event_hist set last_error = null where queue = 'queue-a'`)
	b.get("").want(200).says("no worker has given an error")
}

func TestOverviewHasAStoppedGroupGoOn(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "accounts")
	h.call("PUT", "/queues/accounts", `{"flow":{"order":true,"on_failed":"block"}}`).want(200)
	group := "ada/<b>"
	for range 2 {
		h.call("POST", "/events?queue=accounts&group="+url.QueryEscape(group), `{}`).want(201)
	}
	failed := h.claimOneBy(`{"queue":"accounts"}`)
	h.call("POST", fmt.Sprintf("/events/%d/nack", failed.ID), fmt.Sprintf(`{"receipt":%q,"error":"no such account","final":true}`, failed.Receipt)).want(200)

	admin := h.adminKey()
	reader := h.browseAs(t, h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}}))
	reader.get("").want(200).says("the group ada/&lt;b&gt; of accounts has stopped", "no such account").saysNot("Unblock")
	b := h.browseAs(t, h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read, access.Manage}}))
	page := b.get("").want(200).inOrder("the group ada/&lt;b&gt; of accounts has stopped, since the event 1 failed: no such account", `<span class="when">stopped <time data-ago`, "Unblock")
	b.get("queues/accounts").want(200).inOrder("the group ada/&lt;b&gt; of accounts has stopped", "Unblock").saysNot(`name="back"`)
	form := page.form("do", "unblock", "group", group, "back", "overview")
	b.follow("queues/accounts/groups", form).want(200).says("<title>Overview", "The group goes on").saysNot("has stopped", "Unblock")
	if got := h.key(admin).call("POST", "/claim", `{"queue":"accounts"}`).want(200).body; !strings.Contains(got, `"id":2`) {
		t.Errorf("the next event of the group cannot be claimed: %s", got)
	}
	b.get("queues/accounts").want(200).saysNot("has stopped")
	b.post("queues/accounts/groups", url.Values{"do": {"explode"}, "group": {group}}).want(400).says("must be pause, resume or unblock")
	reader.post("queues/accounts/groups", form).want(http.StatusForbidden)
}

func TestOverviewOffersToRedriveDeadLetters(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail", "mail.dead")
	h.call("PUT", "/queues/mail", `{"dead_letter":{"queue":"mail.dead"}}`).want(200)
	h.fail("mail", `{}`, "bounced", 7)
	h.sql(`update agent.event set vt = now() - interval '3 days' where queue = 'mail.dead'`)
	key := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read, access.Manage}})
	h.browseAs(t, key).get("").want(200).says("7 dead letters of mail", "the oldest has been there for 3 d", "redrives/new?dead_letters=mail.dead", "Redrive…").saysNot("workers may be too few", "ready events has waited")
	reader := h.browseAs(t, h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}, Queues: []string{"mail.dead"}}))
	reader.get("").want(200).says("the oldest of 7 ready events has waited").saysNot("Redrive…") // whose dead letters they are is not its to know
}

func TestOverviewSaysWhyAPushHasStopped(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail")
	h.call("PUT", "/queues/mail", `{}`).want(200)
	h.call("PUT", "/queues/mail/push", fmt.Sprintf(`{"url":%q}`, endpointOf(t, http.StatusOK, "").URL)).want(201)
	h.sql(`update agent.push_state set opened_at = now(), failing_since = now() - interval '2 hours', failures = 9, last_error = 'status 503: <b>down', retry_at = now() + interval '5 minutes 30 seconds' where queue = 'mail'`)
	b := h.browse(t)
	b.get("").want(200).inOrder("does not push: its endpoint fails", "failed first <time", "2 h ago", "next try <time", "in 5 min", "status 503: &lt;b&gt;down · 0 events wait, none is lost", `<svg class="spark`).saysNot("<b>down")
	h.sql(`update agent.push_state set disabled_at = now() - interval '3 minutes', disabled_reason = 'failed for 3 days' where queue = 'mail'`)
	b.afresh().get("").want(200).inOrder("and the push is disabled", "disabled <time", "3 min ago", "status 503")
}

func TestRedrivesThatRunAreOnTheOverview(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.fail("mail", `{}`, "bounced", 2)
	b := h.browse(t)
	b.get("").want(200).says(`<a href="./redrives" data-key="r">Redrives</a>`).saysNot("Redrives that run")
	h.call("POST", "/redrives", `{"filter":{"queue":"mail","outcome":"failed"},"rate":0.01}`).want(http.StatusAccepted)
	b.afresh().get("").want(200).says("Redrives that run", `href="./redrives/1"`, "of mail, that ended as failed")
	b.get("redrives/1").want(200).says(`data-key="r" aria-current="page">Redrives`)
	h.call("POST", "/redrives/1/cancel", "").want(200)
	b.afresh().get("").want(200).saysNot("Redrives that run")
}

func TestTimesSayHowLongAgoTheyWere(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail")
	h.fail("mail", `{}`, "bounced", 1)
	h.sql(`update agent.event_hist set finished_at = finished_at - interval '5 minutes 5 seconds'`)
	b := h.browse(t)
	row := regexp.MustCompile(`<time data-ago datetime="(\d{4}-[^"]*Z)" title="\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC">5 min ago</time>`).FindStringSubmatch(b.get("history").want(200).body)
	if row == nil {
		t.Fatal("the list does not say how long ago the event ended, with the time as a title")
	}
	if at, err := time.Parse(time.RFC3339Nano, row[1]); err != nil || time.Since(at) < 5*time.Minute {
		t.Errorf("the time is %q", row[1])
	}
	b.get("events/1").want(200).says(`UTC</span><span class="muted" data-ago> (5 min ago)</span></time>`)
}
