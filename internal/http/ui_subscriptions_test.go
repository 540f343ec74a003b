package http

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// publishMany publishes events with the numbers from first to last.
func (h *environment) publishMany(t *testing.T, topic string, first, last int) {
	t.Helper()
	var events []string
	for n := first; n <= last; n++ {
		events = append(events, fmt.Sprintf(`{"topic":%q,"event":{"n":%d}}`, topic, n))
	}
	h.call("POST", "/publish", `{"events":[`+strings.Join(events, ",")+`]}`).want(201)
}

func TestSubscriptionsAreShownAndMoved(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	b.get("subscriptions").want(200).says("No subscription is here")
	h.publishMany(t, "order.placed", 1, 3)
	h.call("PUT", "/subscriptions/readers", `{"start":"earliest","filters":[{"name":"orders","topics":["order.*"],"match":{"n":[{"numeric":[">",12345678901234]}]}}]}`).want(201)
	b.get("subscriptions").want(200).says("subscriptions/readers", "its readers", ">3</td>")
	b.get("subscriptions/readers").want(200).says("<strong>3</strong>", "order.*", "12345678901234", "Seek…").saysNot("Replay…")

	b.follow("subscriptions/readers/pause", nil).want(200).says("The subscription is paused", `<span class="tag paused">`, "/resume")
	b.follow("subscriptions/readers/resume", nil).want(200).says("no longer paused", `<span class="tag active">`)

	b.post("subscriptions/readers/seek", url.Values{"to": {"latest"}}).want(200).says("Move readers to latest?", "3 places are after it", "gets none of those", `name="to" value="latest"`)
	b.follow("subscriptions/readers/seek/confirmed", url.Values{"to": {"latest"}}).want(200).says("goes on after position", "it has everything")
	b.post("subscriptions/readers/seek", url.Values{"to": {"soon"}}).want(400).says("must be earliest, latest", `value="soon"`)
	b.post("subscriptions/readers/seek/confirmed", url.Values{"to": {"-1"}}).want(400).says("must be earliest, latest")
	b.post("subscriptions/readers/seek", url.Values{"to": {"2026-11-24T09:00"}}).want(200)
	b.post("subscriptions/readers/replay", url.Values{"from": {"earliest"}}).want(400).says("delivered into a queue")

	b.get("subscriptions/readers/delete").want(200).says("Delete readers?", "1 filter", "0 places of the log are")
	b.post("subscriptions/readers/delete", url.Values{"version": {"77"}}).want(412).says("Precondition failed")
	version := regexp.MustCompile(`name="version" value="(\d+)"`).FindStringSubmatch(b.get("subscriptions/readers/delete").body)
	b.follow("subscriptions/readers/delete", url.Values{"version": {version[1]}}).want(200).says("The subscription is deleted", "No subscription is here")
	for _, nothing := range []string{"subscriptions/readers", "subscriptions/readers/delete"} {
		b.get(nothing).want(404)
	}
	b.post("subscriptions/readers/pause", nil).want(404)
	b.get("subscriptions?cursor=x").want(400).says(`role="alert"`)
}

func TestReplaysAskWithTheirNumber(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	h.publishMany(t, "order.placed", 1, 5)
	h.call("PUT", "/subscriptions/invoices", `{"filters":[{"topics":["order.placed"]}],"deliver":{"queue":"invoices"}}`).want(201)
	b.get("subscriptions/invoices").want(200).says("queues/invoices", "Replay…")
	asked := b.post("subscriptions/invoices/replay", url.Values{"from": {"earliest"}}).want(200).says("Replay 5 events to invoices?", "inserts 5 events", "into the queue invoices")
	to := regexp.MustCompile(`name="to" value="(\d+)"`).FindStringSubmatch(asked.body)
	if to == nil {
		t.Fatalf("the question has no end: %s", asked.body)
	}
	h.publishMany(t, "order.placed", 6, 6) // after the question
	b.follow("subscriptions/invoices/replay/confirmed", url.Values{"from": {"earliest"}, "to": {to[1]}}).want(200).says("delivered once more, in the background: 5.")
	b.post("subscriptions/invoices/replay", url.Values{"from": {"latest"}, "to": {"earliest"}}).want(422).says("must not be before from", `value="latest"`)
	b.post("subscriptions/invoices/replay", url.Values{"from": {""}}).want(400).says("must be earliest, latest")
	b.post("subscriptions/invoices/seek", url.Values{"to": {"earliest"}}).want(200).says("Move invoices to earliest?", "events again")
}

func TestTopicsShowTheirLatestEvents(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	h.publishMany(t, "rare", 1, 2)
	h.publishMany(t, "some", 100, 130)
	b.get("topics/some").want(200).says("20 shown", "the log has earlier ones", "{&#34;n&#34;:130}", "{&#34;n&#34;:111}").saysNot("{&#34;n&#34;:110}")
	h.publishMany(t, "busy", 1000, 1299)
	b.get("topics").want(200).says("topics/busy", ">300</td>", "topics/rare")
	b.get("topics/rare").want(200).says("2 shown", "{&#34;n&#34;:1}", "{&#34;n&#34;:2}").saysNot("earlier ones")
	b.get("topics/some").want(200).says("20 shown", "{&#34;n&#34;:130}", "{&#34;n&#34;:111}").saysNot("{&#34;n&#34;:110}")
	b.get("topics/busy").want(200).says("20 shown", "{&#34;n&#34;:1299}").saysNot("{&#34;n&#34;:1279}")
	h.publishMany(t, "twenty", 1, 20)
	b.get("topics/twenty").want(200).says("20 shown", "{&#34;n&#34;:1}").saysNot("earlier ones")
	b.get("topics/none").want(200).says("The log has no event of this topic")
	b.get("topics/a%20b").want(422).says(`role="alert"`)
	b.get("topics?cursor=x").want(400)
}

func TestPublishingTwicePublishesOnce(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	b.get("topics").want(200).says("No topic has events")
	form := url.Values{"key": {"nonce"}, "topic": {"order.placed"}, "event": {`{"n":12345678901234567890}`}, "record_key": {"o-17"}}
	first := b.follow("topics/publish", form).want(200).says("Published at position", "12345678901234567890", "o-17")
	if again := b.follow("topics/publish", form).want(200).says("1 shown"); again.body[:200] != first.body[:200] {
		t.Error("the second page is another one")
	}
	form.Set("event", `{"n":2}`)
	b.follow("topics/order.placed/publish", form).want(200).says("2 shown") // another event
	position := regexp.MustCompile(`log/(\d+)`).FindStringSubmatch(first.body)
	b.get("log/"+position[1]).want(200).says("12345678901234567890", "o-17", "topics/order.placed")
	for _, nothing := range []string{"log/1", "log/x", "log/0", "log/99999999999999999999"} {
		b.get(nothing).want(404)
	}
	for field, bad := range map[string]string{"event": "{", "topic": "", "record_key": strings.Repeat("x", 256)} {
		wrong := url.Values{"key": {"other"}, "topic": {"order.placed"}, "event": {"{}"}, "record_key": {"kept"}}
		wrong.Set(field, bad)
		page := b.post("topics/publish", wrong)
		if page.status != 400 && page.status != 422 {
			t.Errorf("%s: status %d", field, page.status)
		}
		page.says(`role="alert"`, `value="other"`)
	}
	b.post("topics/a%20b/publish", url.Values{"event": {"{}"}}).want(400)
}

func TestPagesOfTopicsShowWhatUsersEnterAsText(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	const evil = `<script>alert(1)</script>`
	h.call("POST", "/topics/order.placed?key="+url.QueryEscape(evil), `{"a":"`+evil+`"}`).want(201)
	h.call("PUT", "/subscriptions/s", `{"filters":[{"topics":["order.placed"],"match":{"a":["`+evil+`"]}}],"deliver":{"queue":"q","type":"`+evil+`"}}`).want(201)
	topic := b.get("topics/order.placed").want(200)
	position := regexp.MustCompile(`log/(\d+)`).FindStringSubmatch(topic.body)
	for _, page := range []string{"topics/order.placed", "log/" + position[1], "subscriptions/s"} {
		b.get(page).want(200).says("&lt;script&gt;").saysNot("<script>alert", "style=")
	}
	b.post("subscriptions/s/seek", url.Values{"to": {evil}}).want(400).saysNot("<script>alert")
}
