package http

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// hidden returns the value of a hidden field of a form of a page.
func (p *pageSeen) hidden(name string) string {
	p.t.Helper()
	found := regexp.MustCompile(`name="` + name + `" value="([^"]*)"`).FindStringSubmatch(p.body)
	if found == nil {
		p.t.Fatalf("the page has no hidden field %s: %s", name, p.body)
	}
	return found[1]
}

// afresh returns the browser once the server has forgotten what pages have read in the last seconds: whatever was done meanwhile is seen.
func (b *browser) afresh() *browser {
	b.t.Helper()
	b.post("events/none/run", nil).want(http.StatusNotFound)
	return b
}

// answer sends the form of a page that asks a question, and returns the page that it leads to.
func (b *browser) answer(path string) *pageSeen {
	b.t.Helper()
	return b.follow(path, url.Values{"seen": {b.afresh().get(path).want(200).hidden("seen")}})
}

func TestEventPageShowsAWaitingEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail")
	h.call("POST", "/events?queue=mail&type=mail.new&source=shop&key=k1&delay=1h&keep_raw=1h&meta="+url.QueryEscape(`{"trace":"4bf9"}`), `{"n":12345678901234567890.10, "to":"ada"}`).want(201)
	b := h.browse(t)
	page := b.afresh().get("events/1").want(200).says("Event 1 · queued", `<span class="tag scheduled">`, "Waits until", "12345678901234567890.10", "4bf9", "mail.new", "shop", "k1",
		"No worker has claimed it yet", "Run now", "Cancel…", `data-live="events/1"`, "Raw body, 4").saysNot("Requeue…")
	if got := b.afresh().get("events/1/payload").want(200); got.body != `{"n": 12345678901234567890.10, "to": "ada"}` && !strings.Contains(got.body, "12345678901234567890.10") ||
		!strings.HasPrefix(got.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("the payload is %q, %v", got.body, got.header)
	}
	if got := b.afresh().get("events/1/raw").want(200); got.body != `{"n":12345678901234567890.10, "to":"ada"}` || !strings.HasPrefix(got.header.Get("Content-Disposition"), "attachment") {
		t.Errorf("the raw body is %q, %v", got.body, got.header)
	}
	if page.header.Get("Cache-Control") != "no-store" {
		t.Error("browsers may keep the page")
	}
	b.follow("events/1/run", nil).want(200).says("The event can be claimed now", "Ready since").saysNot("Run now")
	h.call("POST", "/queues/mail/pause", "").want(200)
	b.afresh().get("events/1").want(200).says("The queue is paused")
	b.answer("events/1/cancel").want(200).says("The event is in history", `<span class="tag cancelled">`, "No worker has claimed it.", "Requeue…").saysNot("Cancel…", "Run now")
	b.post("events/1/run", nil).want(409)
	b.afresh().get("events/1/cancel").want(409).says("is in history as cancelled")
}

func TestEventPageSaysWhatAnEventWaitsFor(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/queues/mail", `{"flow":{"concurrency":1}}`).want(200)
	ids := decode[struct{ IDs []int64 }](h.call("POST", "/events/batch", `{"events":[{"queue":"mail","group":"a<b","event":{}},{"queue":"mail","group":"a<b","event":{}}]}`).want(201)).IDs
	h.claimOneBy(`{"queue":"mail"}`)
	type waiting struct {
		State     string
		BlockedBy *struct {
			Reason string
			Limit  int
		} `json:"blocked_by"`
	}
	path := fmt.Sprintf("/events/%d", ids[1])
	if e := decode[waiting](h.call("GET", path, "").want(200)); e.State != "waiting" || e.BlockedBy == nil || e.BlockedBy.Reason != "concurrency" || e.BlockedBy.Limit != 1 {
		t.Errorf("the event is %+v", e)
	}
	if first := h.call("GET", fmt.Sprintf("/events/%d", ids[0]), "").want(200).body; strings.Contains(first, "blocked_by") {
		t.Errorf("the event that is leased is %s", first)
	}
	b := h.browse(t)
	b.afresh().get(path[1:]).want(200).says(`<span class="tag waiting">`, `Waits for its turn in the group <span class="mono">a&lt;b</span>: 1 of the group are leased`, `<dt>group</dt>`).saysNot("Ready since", "Run now")
	for settings, says := range map[string]string{`{"paused":true}`: "the group is paused", `{"hold":"1h"}`: "the group is held until <time"} {
		h.call("PUT", "/queues/mail/groups/a%3Cb", settings).want(200)
		b.afresh().get(path[1:]).want(200).says(says)
	}
	h.call("DELETE", "/queues/mail/groups/a%3Cb", "").want(204)
	h.call("PUT", "/queues/mail", `{"flow":{"order":true}}`).want(200)
	b.afresh().get(path[1:]).want(200).says(fmt.Sprintf(`events/%d">event %d</a> comes first`, ids[0], ids[0]))
}

func TestQueuePageListsItsGroupsAndChangesThem(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	h.insertWith("queue=mail")
	b.get("queues/mail").want(200).saysNot("<h2>Groups", "<dt>limits</dt>")
	h.call("PUT", "/queues/mail", `{"flow":{"concurrency":1,"total":7,"rate":{"limit":5,"period":"1m","burst":3}}}`).want(200)
	h.call("POST", "/events/batch", `{"events":[{"queue":"mail","group":"a<b/c","event":{}},{"queue":"mail","group":"a<b/c","event":{}},{"queue":"mail","group":"z","event":{}}]}`).want(201)
	h.claim(`{"queue":"mail","limit":10}`)
	b.afresh().get("queues/mail").want(200).says("<h2>Groups", "<small>blocked: 1 by concurrency; 1 event waits in the longest line</small>", `events?group=a%3Cb%2Fc">a&lt;b/c</a></td>`, "1 of the group are leased, as many as may be", `value="pause">Pause`, "<dt>limits</dt><dd>1 of a group leased at once, 7 of the queue, 5 of a group claimed each 1 min, 3 at once</dd>")
	group := url.Values{"group": {"a<b/c"}}
	b.post("queues/mail/groups", url.Values{"group": group["group"], "do": {"pause"}}).want(303)
	h.call("PUT", "/queues/mail/groups/z", `{"hold":"1h","concurrency":3}`).want(200)
	b.afresh().get("queues/mail").want(200).says("the group is paused", `value="resume">Resume`)
	for _, name := range []string{"a<b/c", "z"} {
		b.post("queues/mail/groups", url.Values{"group": {name}, "do": {"resume"}}).want(303)
	}
	b.afresh().get("queues/mail").want(200).saysNot("the group is paused", `value="resume">Resume`)
	if kept := h.call("GET", "/queues/mail/groups/z", "").want(200).body; !strings.Contains(kept, `"concurrency":3`) || !strings.Contains(kept, `"held_until":null`) {
		t.Errorf("after its hold the group is %s", kept)
	}
	b.post("queues/mail/groups", url.Values{"group": {"z"}, "do": {"explode"}}).want(400).says("must be pause, resume or unblock")
}

func TestEventPageShowsAttemptsOfAnEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "default")
	h.insert(`{"a":1}`)
	claimed := h.claimOneBy(`{"worker":"worker-7"}`)
	b := h.browse(t)
	b.afresh().get("events/1").want(200).says("Leased by", "worker-7", "Mark as done…", `<span class="tag leased">running</span>`).saysNot("Run now", "Raw body")
	long := strings.Repeat("no such mailbox <b>&", 50)
	h.call("POST", "/events/1/nack", fmt.Sprintf(`{"receipt":%q,"error":%q}`, claimed.Receipt, long)).want(200)
	b.afresh().get("events/1").want(200).says("nacked", "<details><summary>no such mailbox &lt;b&gt;", "Cancel…").saysNot("mailbox <b>")

	claimed = h.claimOneBy(`{"worker":"worker-8"}`)
	question := b.afresh().get("events/1/cancel").want(200).says("The worker worker-8 has it until", "its own ack is refused")
	h.call("POST", "/events/1/nack", fmt.Sprintf(`{"receipt":%q,"error":"again"}`, claimed.Receipt)).want(200)
	b.post("events/1/cancel", url.Values{"seen": {question.hidden("seen")}}).want(409).says("The event has changed", "into history as cancelled")
	b.answer("events/1/cancel").want(200).says(`<span class="tag cancelled">`, "worker-7", "worker-8")
}

func TestEventPageRequeuesOnce(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail", "mail.dead")
	h.call("PUT", "/queues/mail", `{"dead_letter":{"queue":"mail.dead"}}`).want(200)
	h.call("POST", "/events?queue=mail", `{"a":1}`).want(201)
	claimed := h.claimOneBy(`{"queue":"mail"}`)
	h.call("POST", "/events/1/nack", fmt.Sprintf(`{"receipt":%q,"error":"bounced","final":true}`, claimed.Receipt)).want(200)
	b := h.browse(t)
	b.afresh().get("events/1").want(200).says(`<span class="tag failed">`, "Failed: a worker has given it up", "bounced", `<dt>dead letter</dt><dd><a href="../events/2">2</a>`)
	b.afresh().get("events/2").want(200).says(`<a href="../events/1">1</a> in <a href="../queues/mail">mail</a>, failed after 1 attempt: bounced`)

	question := b.afresh().get("events/1/requeue").want(200).says("posts a new event into mail", "stays in history as failed").saysNot("requeued before")
	form := url.Values{"seen": {question.hidden("seen")}}
	b.follow("events/1/requeue", form).want(200).says("Event 3", "The record of the event 1", `<dt>requeued from</dt><dd><a href="../events/1">1</a>`)
	b.post("events/1/requeue", form).want(409).says("The event has changed")
	if got := h.count("select count(*) from agent.event where queue = 'mail'"); got != 1 {
		t.Errorf("%d events wait, want 1", got)
	}
	b.afresh().get("events/1").want(200).says(`<dt>requeued as</dt><dd><a href="../events/3">3</a>`)
	b.get("events/1/requeue").want(409).says("The event was requeued before", "the event 3, is ready")
	b.afresh().get("events/3/requeue").want(409).says("has not ended")
}

func TestEventPageOfNoEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	for _, path := range []string{"events/1", "events/0", "events/-1", "events/x", "events/9223372036854775808", "events/1/payload", "events/1/raw", "events/1/cancel", "events/1/requeue"} {
		b.get(path).want(404).says("To the overview").saysNot("%!")
	}
	for _, path := range []string{"events/1/run", "events/1/cancel", "events/x/requeue"} {
		b.post(path, nil).want(404)
	}
	for _, c := range []struct{ entered, location string }{{"1042", "./events/1042"}, {" #7 ", "./events/7"}, {"1,042", "./events/1042"}} {
		if got := b.get("find?id=" + url.QueryEscape(c.entered)).want(303).header.Get("Location"); got != c.location {
			t.Errorf("%q leads to %q, want %q", c.entered, got, c.location)
		}
	}
	b.get("find?id="+url.QueryEscape("<b>x")).want(400).says("Not an event id", "&lt;b&gt;x")
	b.get("find").want(400)
}

func TestEventPageRunsNothingOfOthers(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "default")
	const script = `<script>alert(1)</script>`
	quoted, entered := `"`+script+`"`, url.QueryEscape(script)
	h.call("POST", "/events?type="+entered+"&source="+entered+"&key="+entered+"&keep_raw=1h&meta="+url.QueryEscape(`{"`+script+`":1}`), `{"a":`+quoted+`}`).want(201)
	claimed := h.claimOneBy(`{"worker":` + quoted + `}`)
	h.call("POST", "/events/1/nack", fmt.Sprintf(`{"receipt":%q,"error":%s}`, claimed.Receipt, quoted)).want(200)
	b := h.browse(t)
	b.afresh().get("events/1").want(200).says("&lt;script&gt;").saysNot(script, "style=", "onclick=")
	claimed = h.claimOneBy(`{"worker":` + quoted + `}`)
	b.afresh().get("events/1/cancel").want(200).says("&lt;script&gt;").saysNot(script)
	h.call("POST", "/events/1/ack", fmt.Sprintf(`{"receipt":%q,"result":{"x":%s}}`, claimed.Receipt, quoted)).want(200)
	b.afresh().get("events/1").want(200).says("Result", "&lt;script&gt;").saysNot(script, "style=", "onclick=")
}

func TestLongPayloadsAreCut(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "default")
	text := strings.Repeat("long ", 150_000)
	h.insert(`{"a":"` + text + `"}`)
	b := h.browse(t)
	page := b.afresh().get("events/1").want(200).says("the first 64 KiB are shown", "…</div>").saysNot("data-copy")
	if len(page.body) > 100_000 {
		t.Errorf("the page has %d bytes", len(page.body))
	}
	if got := b.afresh().get("events/1/payload").want(200).body; !strings.Contains(got, text) {
		t.Errorf("the payload is cut in its download: %d bytes", len(got))
	}
}

func TestPayloadsCanBeHidden(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http: func(c *Config) { c.HidePayloads = true }})
	h.placeOn(0, "default")
	h.call("POST", "/events?keep_raw=1h&meta="+url.QueryEscape(`{"m":"secret"}`), `{"p":"secret"}`).want(201)
	b := h.browse(t)
	b.afresh().get("events/1").want(200).says("QUEUED_UI_PAYLOADS=hidden").saysNot("secret", "/payload", "/raw", "data-copy")
	claimed := h.claimOneBy(`{}`)
	h.call("POST", "/events/1/ack", fmt.Sprintf(`{"receipt":%q,"result":{"r":"secret"}}`, claimed.Receipt)).want(200)
	b.afresh().get("events/1").want(200).says("Done").saysNot("secret")
	b.afresh().get("events/1/payload").want(403).says("Payloads are hidden").saysNot("secret")
	b.afresh().get("events/1/raw").want(403).says("Payloads are hidden").saysNot("secret")
}

func TestPagesTellEventsThatWaitForTheirTurnFromOthers(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	h.call("POST", "/events?queue=mail", `{}`).want(201)
	b.get("queues/mail").want(200).saysNot("<span>waiting</span>")
	h.call("PUT", "/queues/mail", `{"flow":{"concurrency":1}}`).want(200)
	b.get("queues/mail").want(200).says("<span>waiting</span><strong>0</strong>")
	h.call("POST", "/events?queue=mail&group=a", `{}`).want(201)
	waits := decode[seenEvent](h.call("POST", "/events?queue=mail&group=a", `{}`).want(201)).ID
	b.get("queues/mail").want(200).says(`<span>ready now</span><strong><a href="../queues/mail/events?state=ready">2</a></strong>`, "<span>scheduled</span><strong>0</strong>", `<span>waiting</span><strong><a href="../queues/mail/events?state=waiting">1</a></strong>`, `<span class="tag waiting">`)
	b.get("queues/mail/events?state=waiting").want(200).says("1 shown", `<option selected>waiting</option>`, fmt.Sprintf(`events/%d"`, waits))
	b.get("queues").want(200).says(`<th scope="col">waiting</th>`)
	b.get("").want(200).says("0 scheduled for later · 1 waiting for their turn")
	b.get("queues/mail/purge").want(200).says("moves the 3 events that")
}
