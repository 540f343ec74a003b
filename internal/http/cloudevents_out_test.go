package http

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/queued/queued/internal/cloudevents"
)

// cloudEvents returns the CloudEvents of an answer, decoded as those that come in.
func (a answer) cloudEvents(mediaType string) []cloudevents.Event {
	a.t.Helper()
	if got := a.header.Get("Content-Type"); got != mediaType {
		a.t.Fatalf("got %s, want %s: %s", got, mediaType, a.body)
	}
	events, _, err := cloudevents.Decode(http.Header{"Content-Type": {mediaType}}, []byte(a.body), 1000)
	if err != nil {
		a.t.Fatalf("%v: %s", err, a.body)
	}
	return events
}

func TestEventsComeAsCloudEventsToThoseWhoAcceptThem(t *testing.T) {
	t.Parallel()
	h := setup(t)
	one, many := h.with("Accept", structured), h.with("Accept", batched)
	h.call("POST", "/cloudevents?queue=q", ce("1", `,"n":-7,"subject":"s","data":[1.50]`)).want(201)
	other := decode[seenEvent](h.call("POST", "/events?queue=q", `{"a": {"b": 1}}`).want(201)).ID

	claimed := many.call("POST", "/claim", `{"queue":"q","limit":2,"worker":"w"}`).want(200).cloudEvents(batched)
	if len(claimed) != 2 {
		t.Fatalf("claimed %+v", claimed)
	}
	for i, want := range []string{
		`{"id":"1","n":-7,"queuedattempts":1,"queuedkey":"/shop 1","queuedpriority":0,"queuedqueue":"q","queuedworker":"w","source":"/shop","specversion":"1.0","subject":"s","type":"order.paid"}`,
		fmt.Sprintf(`{"datacontenttype":"application/json","id":"%d","queuedattempts":1,"queuedpriority":0,"queuedqueue":"q","queuedworker":"w","source":"/queues/q","specversion":"1.0","type":"queued.event"}`, other),
	} {
		e := claimed[i]
		id, receipt := e.Attributes["queuedid"], e.Attributes["queuedreceipt"]
		for _, name := range []string{"time", "queuedid", "queuedreceipt", "queuedvt"} {
			if text, _ := e.Attributes[name].(string); text == "" {
				t.Errorf("event %d has no %s: %v", i, name, e.Attributes)
			}
			delete(e.Attributes, name)
		}
		if got, _ := json.Marshal(e.Attributes); string(got) != want {
			t.Errorf("event %d: got %s, want %s", i, got, want)
		}
		if i == 1 {
			h.call("POST", fmt.Sprintf("/events/%s/ack", id), fmt.Sprintf(`{"receipt":%q,"result":{"ok": true}}`, receipt)).want(200)
		}
	}
	if string(claimed[0].Event) != `{"data":[1.50]}` || string(claimed[1].Event) != `{"a":{"b":1}}` {
		t.Errorf("got %s and %s", claimed[0].Event, claimed[1].Event)
	}
	e := one.call("GET", fmt.Sprintf("/events/%d", other), "").want(200).cloudEvents(structured)[0]
	if e.Attributes["queuedoutcome"] != "done" || e.Attributes["queuedresult"] != `{"ok":true}` || e.Attributes["queuedfinishedat"] == nil {
		t.Errorf("in history: %v", e.Attributes)
	}
	listed := many.call("GET", "/events?queue=q", "").want(200).cloudEvents(batched)
	if len(listed) != 1 || listed[0].ID != "1" || listed[0].Attributes["queuedstate"] != "leased" || listed[0].Attributes["queuedreceipt"] != nil {
		t.Errorf("got %+v", listed)
	}
}

func TestPagesOfCloudEventsLinkToTheNext(t *testing.T) {
	t.Parallel()
	h := setup(t)
	many := h.with("Accept", batched)
	for n := range 3 {
		id := decode[seenEvent](h.call("POST", "/events?queue=a-b", fmt.Sprintf(`{"n":%d}`, n)).want(201)).ID
		h.call("DELETE", fmt.Sprintf("/events/%d", id), "").want(204)
		h.call("POST", "/cloudevents?topic=t", ce(fmt.Sprint(n), "")).want(201)
	}
	for path, pages := range map[string]int{"/history?queue=a-b&limit=2": 2, "/log?topic=t&limit=2&at=2000-01-01T00:00:00Z": 3} {
		seen, calls := make(map[string]bool), 0
		for next := path; next != ""; calls++ {
			got := many.call("GET", next, "").want(200)
			events := got.cloudEvents(batched)
			for _, e := range events {
				seen[e.ID] = true
			}
			link := got.header.Get("Link")
			if next = ""; link != "" && (len(events) > 0 || !strings.HasPrefix(path, "/log")) {
				reference, isNext := strings.CutSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`)
				if !isNext {
					t.Fatalf("the link %s", link)
				}
				place, _, _ := strings.Cut(path, "?")
				next = place + reference
			}
		}
		if len(seen) != 3 || calls != pages {
			t.Errorf("%s: %d calls found %v", path, calls, seen)
		}
	}
}

func TestEventsOfTheLogComeAsCloudEvents(t *testing.T) {
	t.Parallel()
	h := setup(t)
	position := decode[publishResponse](h.call("POST", "/topics/order.paid?key=k", `{"n":1}`).want(201)).Position
	e := h.with("Accept", structured).call("GET", fmt.Sprintf("/log/%d", position), "").want(200).cloudEvents(structured)[0]
	if e.Type != "order.paid" || e.Source != "/topics/order.paid" || e.ID != fmt.Sprint(position) || e.Attributes["queuedtopic"] != "order.paid" ||
		e.Attributes["queuedposition"] != fmt.Sprint(position) || e.Attributes["queuedkey"] != "k" || string(e.Event) != `{"n":1}` || e.Time.IsZero() {
		t.Errorf("got %+v", e)
	}
}
