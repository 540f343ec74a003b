package http

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/pgtest"
)

// fail has n events of a queue fail with an error.
func (h *environment) fail(queue, payload, failure string, n int) {
	h.t.Helper()
	for range n {
		h.call("POST", "/events?type=t&queue="+queue, payload).want(201)
		claimed := h.claimOneBy(fmt.Sprintf(`{"queue":%q,"worker":"w"}`, queue))
		h.call("POST", fmt.Sprintf("/events/%d/nack", claimed.ID), fmt.Sprintf(`{"receipt":%q,"error":%q,"final":true}`, claimed.Receipt, failure)).want(200)
	}
}

// form returns what the fields of the form of a page have that nobody sees, and the value of one more for each pair.
func (p *pageSeen) form(namesAndValues ...string) url.Values {
	form := make(url.Values)
	for _, field := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)"`).FindAllStringSubmatch(p.body, -1) {
		form.Add(unescaped(field[1]), unescaped(field[2]))
	}
	for i := 0; i < len(namesAndValues); i += 2 {
		form.Set(namesAndValues[i], namesAndValues[i+1])
	}
	return form
}

func unescaped(text string) string {
	return strings.NewReplacer("&#34;", `"`, "&#39;", "'", "&amp;", "&", "&lt;", "<", "&gt;", ">", "&#43;", "+").Replace(text)
}

func TestHistoryPageFilters(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail", "work")
	h.browse(t).get("history").want(200).says("History is empty").saysNot("Requeue all", "Requeue selected")
	h.fail("mail", `{"user":{"id":4711}}`, "bounced", 1)
	h.fail("work", `{"user":{"id":4712}}`, "<b>broken", 1)
	b := h.browse(t).afresh()
	b.get("history").want(200).says("bounced", "&lt;b&gt;broken", "events/1", "events/2", "2 shown", `aria-label="Select the event 1"`, "format=csv").saysNot("<b>broken", "Requeue all", "style=")
	only := func(query string, want bool) {
		t.Helper()
		page := b.get("history?" + query).want(200)
		if got := strings.Contains(page.body, `href="./events/1"`); got != want || strings.Contains(page.body, `href="./events/2"`) {
			t.Errorf("%s: the event is shown: %t, want %t: %s", query, got, want, page.body)
		}
	}
	contains := url.QueryEscape(`{"user":{"id":4711}}`)
	only("queue=mail", true)
	only("contains="+contains, true)
	only("queue=mail&outcome=failed&type=t&worker=w&from=1h&contains="+contains, true)
	only("queue=mail&from=2020-01-01+00:00&to=2020-01-02", false)
	only("queue=mail&min_duration=1h", false)
	only("queue=mail&finished_from=1h&finished_to=2100-01-01", true)
	only("queue=mail&finished_to=1h", false)
	only("id=1", true)
	b.get("history?queue=mail&outcome=failed").want(200).says("Requeue all that match…", `redrives/new?outcome=failed&amp;queue=mail`, `value="mail"`, "<option selected>failed</option>")
	b.get("history?contains="+contains).want(200).says("looked for event by event", `value="{&#34;user&#34;:{&#34;id&#34;:4711}}"`)
	b.get("history?queue=none").want(200).says("No event in history matches")
	b.get("history?contains=%7B&meta=1&from=soon&to=x&min_duration=-1s&id=0").want(400).
		says("Validation failed", "<code>contains</code>", "<code>meta</code>", "<code>from</code>", "<code>to</code>", "<code>min_duration</code>", "<code>id</code>", `value="soon"`, "see above").
		saysNot("No event in history matches")
	b.get("history?from=2026-01-02&to=2026-01-01").want(400).says("must be before to", `value="2026-01-02"`)
	b.get("history?outcome=lost").want(400).says("must be one of")
	b.get("history?cursor=nonsense").want(400).says("see above")
	b.get("history?queue="+url.QueryEscape(`"><script>`)).want(400).saysNot("<script>\"", `"><script>`)
}

func TestHistoryPageGoesOnAtItsCursor(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setup(t)
	h.cellOf("mail").sql(`select agent.insert_event(_event => '{}', _queue => 'mail') from generate_series(1, 120)`)
	h.call("POST", "/queues/mail/purge", "").want(200)
	b := h.browse(t)
	seen := make(map[string]bool)
	link := regexp.MustCompile(`rel="next" href="(\?[^"]*)"`)
	for path, pages := "history?queue=mail&from=7d", 0; path != ""; pages++ {
		page := b.get(path).want(200)
		for _, id := range regexp.MustCompile(`href="\./events/(\d+)"`).FindAllStringSubmatch(page.body, -1) {
			seen[id[1]] = true
		}
		next := link.FindStringSubmatch(page.body)
		if path = ""; next != nil {
			path = "history" + unescaped(next[1])
			if !strings.Contains(path, "queue=mail") || strings.Contains(path, "7d") {
				t.Fatalf("the next page is %s", path)
			}
		}
		if pages > 0 {
			page.says("First page")
		}
	}
	if len(seen) != 120 {
		t.Errorf("%d events were shown, want 120", len(seen))
	}
}

func TestHistoryPageDownloads(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setup(t)
	h.fail("mail", `{"n":12345678901234567890}`, "bounced", 3)
	h.fail("work", `{}`, "broken", 1)
	b := h.browse(t)
	lines := b.get("history/download?format=ndjson&queue=mail&from=1d").want(200)
	if !strings.HasSuffix(lines.body, `{"end":{"rows":3}}`+"\n") || !strings.Contains(lines.body, "12345678901234567890") || !strings.HasPrefix(lines.header.Get("Content-Disposition"), "attachment") ||
		lines.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("the download is %s, %v", lines.body, lines.header)
	}
	if table := b.get("history/download?format=csv").want(200).body; !strings.Contains(table, "\r\n#end,4,") {
		t.Errorf("the download is %s", table)
	}
	b.get("history/download").want(400).says("must be csv or ndjson", "<title>")
	b.get("history/download?format=csv&outcome=lost").want(400).says("must be one of", "<title>")
	b.get("history/download?format=csv&from=soon").want(400).says("must be a time")
}

func TestHistoryPageHidesPayloads(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setupWith(t, settings{http: func(c *Config) { c.HidePayloads = true }})
	h.fail("mail", `{"p":"secret"}`, "bounced", 1)
	b := h.browse(t)
	b.get("history").want(200).says("bounced").saysNot("format=csv", "secret")
	b.get("history/download?format=csv").want(403).says("Payloads are hidden").saysNot("secret")
}

// TestPagesDoNotSearchWhatTheyHide asks each page that takes a filter whether an event carries something.
func TestPagesDoNotSearchWhatTheyHide(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setupWith(t, settings{http: func(c *Config) { c.HidePayloads = true }})
	h.placeOn(0, "mail")
	h.fail("mail", `{"pin":4711}`, "bounced", 1)
	h.call("POST", "/events?queue=mail", `{"pin":4711}`).want(201)
	b := h.browse(t)
	for _, field := range []string{"contains", "meta"} {
		for _, value := range []string{`{"pin":4711}`, `{"pin":4712}`, "{", " "} {
			filter := url.Values{field: {value}}
			status := 403
			if value == " " { // none
				status = 200
			}
			for _, path := range []string{"history?", "queues/mail/events?", "redrives/new?outcome=failed&", "redrives/new?dead_letters=mail&"} {
				page := b.get(path + filter.Encode()).want(status)
				if status == 403 {
					page.says("Payloads are hidden").saysNot("bounced", "1 event", `events/1"`, `name="contains"`, `name="meta"`)
				}
			}
			b.get("history/download?format=csv&" + filter.Encode()).want(403)
			if status == 403 {
				filter.Set("outcome", "failed")
				b.post("redrives", filter).want(403).says("Payloads are hidden")
			}
		}
	}
	if n := h.count(`select count(*) from agent.redrive`); n != 0 {
		t.Errorf("%d redrives were created by pages", n)
	}

	made := decode[redrive](h.call("POST", "/redrives", `{"filter":{"queue":"mail","contains":{"pin":4711},"meta":{"a":"4712"}},"rate":0.01}`).want(202))
	h.fail("mail", `{"pin":4711}`, "bounced", 1) // a second one, so that a redrive of both has not ended when it is to be cancelled
	running := decode[redrive](h.call("POST", "/redrives", `{"filter":{"queue":"mail","contains":{"pin":4711}},"rate":0.01}`).want(202))
	for _, path := range []string{"redrives", fmt.Sprintf("redrives/%d", made.ID), fmt.Sprintf("redrives/%d/cancel", running.ID)} {
		b.get(path).want(200).saysNot("4711", "4712", "pin")
	}
	b.get("redrives").says("of mail, that a hidden filter of payloads or metadata matches")
}

func TestSelectedEventsAreRequeuedOnce(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail")
	h.fail("mail", `{}`, "bounced", 3)
	b := h.browse(t)
	question := b.get("history/requeue?id=1&id=3&back="+url.QueryEscape("queue=mail&nonsense=1")).want(200).says("Requeue 2 events?", "1, 3", `href="../history?queue=mail"`)
	form := question.form()
	b.follow("history/requeue", form).want(200).says("Events requeued: 2.", `value="mail"`)
	b.follow("history/requeue", form).want(200).says("Events requeued: 0.")
	if got := h.count("select count(*) from agent.event where queue = 'mail'"); got != 2 {
		t.Errorf("%d events wait, want 2", got)
	}
	b.get("history/requeue").want(400).says("No event is selected")
	b.get("history/requeue?id=x").want(400)
	b.get("history/requeue?" + strings.Repeat("id=1&", 101)).want(400).says("101 are; at most 100")
	b.post("history/requeue", url.Values{"back": {"x"}}).want(400)
}

func TestRedriveIsAskedForWithItsNumber(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail")
	h.fail("mail", `{"user":{"id":4711}}`, "bounced", 3)
	b := h.browse(t)
	b.get("redrives").want(200).says("No redrive was made")
	query := "outcome=failed&queue=mail&finished_from=2h&from=1d&contains=" + url.QueryEscape(`{"user":{"id":4711}}`)
	question := b.get("redrives/new?"+query).want(200).says("Requeue 3 events?", "The events of mail, that ended as failed, whose payload contains {&#34;user&#34;:{&#34;id&#34;:4711}}, that ended from 2", "with an event time from 2",
		"They were counted just now", "The records in history stay")
	if got := h.count("select count(*) from agent.event"); got != 0 {
		t.Fatalf("the question has requeued %d events", got)
	}
	b.post("redrives", question.form("rate", "fast")).want(400).says("must be a number of events", `value="fast"`, "Requeue 3 events?")
	b.post("redrives", question.form("rate", "-1")).want(400)
	b.post("redrives", question.form("target", "origin")).want(422).says("must not be origin", `value="origin"`)
	form := question.form("rate", "0.01", "target", "other")
	b.follow("redrives", form).want(200).says("Redrive 1", "goes on in the background", "into other, at most 0.01 a second", `<progress id="done" max="3"`, `data-live="redrives/1"`)
	b.follow("redrives", form).want(200).says("Redrive 1")

	b.follow("redrives/1/pause", nil).want(200).says("The redrive is paused", `<span class="tag paused">`, "Resume").saysNot("redrives/1/pause")
	b.follow("redrives/1/resume", nil).want(200).says("The redrive goes on", `<span class="tag running">`)
	b.get("redrives/1/cancel").want(200).says("Cancel the redrive 1?", "of 3 events")
	b.follow("redrives/1/cancel", nil).want(200).says("The redrive is cancelled", "it has ended").saysNot("Pause<", "Resume<", "Cancel…")
	b.get("redrives/1/cancel").want(409).says("there is nothing to cancel")
	b.post("redrives/1/resume", nil).want(409)
	b.get("redrives").want(200).says(`href="./redrives/1"`, "cancelled", "of mail, that ended as failed")
	b.get("redrives?state=running").want(200).says("No redrive is running")
	b.get("redrives?state=lost").want(400)

	b.get("redrives/new").want(422).says("must have at least one of")
	b.get("redrives/new?id=1&queue=mail").want(400)
	b.get("redrives/new?queue=none").want(200).says("Nothing to requeue").saysNot("<form method=\"post\" action=\"../redrives\"")
	for _, path := range []string{"redrives/2", "redrives/x", "redrives/2/cancel"} {
		b.get(path).want(404)
	}
	b.post("redrives/2/pause", nil).want(404)
}

func TestRedriveOfAllThatMatchRequeuesThem(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail", "mail.dead")
	h.call("PUT", "/queues/mail", `{"dead_letter":{"queue":"mail.dead"}}`).want(200)
	h.fail("mail", `{}`, "bounced", 2)
	b := h.browse(t)
	b.get("queues/mail.dead").want(200).says("redrives/new?dead_letters=mail.dead")
	question := b.get("redrives/new?dead_letters=mail.dead").want(200).says("Requeue 2 events?", "that wait in mail.dead as dead letters", "the queue that each came from", `href="../queues/mail.dead"`)
	b.follow("redrives", question.form("target", "", "rate", "")).want(200).says("into the queue that each came from")
	ctx, cancel := context.WithTimeout(t.Context(), busyTimeout)
	defer cancel()
	for {
		if page := b.afresh().get("redrives/1").want(200); strings.Contains(page.body, `<span class="tag done">`) {
			page.says("100 %", "it has ended")
			break
		}
		select {
		case <-ctx.Done():
			t.Fatal("the redrive does not end")
		case <-time.After(50 * time.Millisecond):
		}
	}
	if got := h.count("select count(*) from agent.event where queue = 'mail'"); got != 2 {
		t.Errorf("%d events wait in mail, want 2", got)
	}
}

func TestWaitingEventsAreFiltered(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail")
	h.call("POST", "/events?queue=mail&type=a", `{"n":1}`).want(201)
	h.call("POST", "/events?queue=mail&type=b&delay=1h", `{"n":2}`).want(201)
	h.cellOf("mail").sql(`select agent.insert_event(_event => '{"n":3}', _queue => 'mail', _delay => interval '2 hours') from generate_series(1, 60)`)
	b := h.browse(t)
	b.get("queues/mail").want(200).says("queues/mail/events", "history?queue=mail")
	b.get("queues/mail/events").want(200).says("50 shown, there are more", `href="../../events/1"`, "Next page")
	b.get("queues/mail/events?state=ready").want(200).says("1 shown", `events/1"`).saysNot(`events/2"`, "Next page")
	page := b.get("queues/mail/events?state=scheduled&contains=" + url.QueryEscape(`{"n":3}`)).want(200).says("50 shown, there are more").saysNot(`events/2"`)
	next := regexp.MustCompile(`rel="next" href="(\?[^"]*)"`).FindStringSubmatch(page.body)
	if next == nil || !strings.Contains(next[1], "state=scheduled") || !strings.Contains(next[1], "contains=") {
		t.Fatalf("the next page is %q", next)
	}
	b.get("queues/mail/events"+unescaped(next[1])).want(200).says("10 shown", "First page").saysNot("Next page")
	b.get("queues/mail/events?state=leased").want(200).says("No event in the queue matches now")
	b.get("queues/none/events").want(200).says("No event is in the queue now")
	b.get("queues/mail/events?state=lost").want(400).says("must be one of", "see above")
	b.get("queues/mail/events?contains=x").want(400).says("must be a JSON object", `value="x"`)
}

func TestCausesOfFailuresAreGrouped(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	b.get("history/errors").want(200).says("No event has failed or expired")
	h.fail("mail", `{}`, "no mailbox <b>17", 2)
	h.fail("work", `{}`, "other", 1)
	b.afresh().get("history/errors").want(200).says("2 of 2, from all 3 failures that have an error", "no mailbox &lt;b&gt;", `href="../queues/mail"`, "../events/", "such as event").saysNot("<b>17")
	b.get("history/errors?queue=work&from=1d&finished_from=1h").want(200).says("1 of 1, from all 1 failure", "other").saysNot("mailbox")
	b.get("history/errors?from=soon").want(http.StatusBadRequest).says("must be a time", "see above")
}

func TestAllEventsWithACauseAreListedAndRequeued(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail")
	h.fail("mail", `{}`, "no mailbox A17x9B22", 2)
	h.fail("mail", `{}`, "no mailbox C18y8D33\n\tat <b>", 1)
	h.fail("mail", `{}`, "refused", 1)
	b := h.browse(t)
	const these = `cause=no&#43;mailbox&#43;%3Cid%3E&amp;queue=mail`
	for _, path := range []string{"history/errors?queue=mail", "queues/mail"} {
		b.get(path).want(200).says(`history?cause=no&#43;mailbox&#43;%3Cid%3E&amp;`, `redrives/new?cause=no&#43;mailbox&#43;%3Cid%3E&amp;`, "no mailbox &lt;id&gt;", "no mailbox C18y8D33\n\tat &lt;b&gt;")
	}
	b.get("").want(200).says(`history?cause=refused&amp;finished_from=1h`, `redrives/new?cause=refused&amp;finished_from=1h`)
	b.get("history?"+unescaped(these)).want(200).says("2 shown", "events/1", "events/2", `value="no mailbox &lt;id&gt;"`, `redrives/new?`+these).saysNot("events/3", "events/4")
	question := b.get("redrives/new?"+unescaped(these)).want(200).says("Requeue 2 events?", "that failed or expired with the error no mailbox &lt;id&gt;")
	b.follow("redrives", question.form("target", "again", "rate", "")).want(200).says("into again", "history?"+these)
	reader := h.browseAs(t, h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}}))
	reader.get("history/errors").want(200).says("no mailbox &lt;id&gt;").saysNot("Requeue all")
}

func TestNumbersOfAQueueLeadToWhatTheyCount(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail", "idle")
	h.fail("mail", `{}`, "refused", 1)
	h.call("PUT", "/queues/idle", `{}`).want(200)
	b := h.browse(t)
	b.get("queues/mail").want(200).inOrder(`history?finished_from=1h&amp;queue=mail&amp;outcome=failed">1 failed</a>`, "In the queue <small>", "No event is in this queue now").saysNot("events?state=ready")
	h.call("POST", "/events?queue=mail&group=a%2Fb%26c", `{}`).want(201)
	b.afresh().get("queues/mail").want(200).inOrder(`<strong><a href="../queues/mail/events?state=ready">1</a></strong>`, "<h2>Events", "In the queue <small>", "<h2>Policy")
	b.get("queues").want(200).says(`<td><a href="./queues/mail/events?state=ready">1</a></td>`, `<td class="b"><a href="./history?finished_from=1h&amp;queue=mail&amp;outcome=failed">1</a></td>`, `<td class="zero">0</td>`)
	b.get("queues/mail/events?state=ready").want(200).says("1 shown")
}
