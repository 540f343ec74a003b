package http

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/queued/queued/internal/http/problem"
)

// A markedPage is a page of any listing whose elements have cursors.
type markedPage struct {
	Events, Queues, Schedules, Redrives []struct {
		ID     int64
		Queue  string
		Cursor string
	}
	Next *string
}

// names returns what stands for each element of a page, and their cursors.
func (p *markedPage) names() (names, cursors []string) {
	for _, e := range slices.Concat(p.Events, p.Queues, p.Schedules, p.Redrives) {
		names, cursors = append(names, fmt.Sprintf("%s %d", e.Queue, e.ID)), append(cursors, e.Cursor)
	}
	return names, cursors
}

func TestListingsGoOnAfterEachElementThatHasACursor(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for n := range 4 {
		waits := fmt.Sprintf("w%d", n%2)
		h.call("POST", "/events?queue="+waits+"&vt=2031-01-01T00:00:00Z", "{}").want(201) // all the same time
		ended := decode[seenEvent](h.call("POST", "/events?queue=h&event_ts=2021-01-01T00:00:00.5Z", "{}").want(201)).ID
		h.call("DELETE", fmt.Sprintf("/events/%d", ended), "").want(204)
		h.createSchedule(fmt.Sprintf(`{"event":{},"at":"2040-01-01T00:00:00Z","queue":%q}`, waits))
		h.call("POST", "/redrives", fmt.Sprintf(`{"filter":{"queue":%q}}`, waits)).want(202)
	}
	for path, elements := range map[string]int{
		"/events?": 4, "/events?queue=w1&": 2, "/history?": 4, "/queues?": 3, "/schedules?": 4, "/schedules?due_before=2041-01-01T00:00:00Z&": 4, "/redrives?": 4,
	} {
		all := decode[markedPage](h.call("GET", path+"cursors=true", "").want(200))
		names, cursors := all.names()
		if len(names) != elements || all.Next != nil {
			t.Fatalf("%s has %v", path, names)
		}
		for i, cursor := range cursors {
			rest := decode[markedPage](h.call("GET", path+"cursors=true&cursor="+cursor, "").want(200))
			if left, _ := rest.names(); !slices.Equal(left, names[i+1:]) {
				t.Errorf("%s after %q has %v, want %v", path, names[i], left, names[i+1:])
			}
		}
		if plain := h.call("GET", path+"limit=2", "").want(200); strings.Contains(plain.body, `"cursor"`) {
			t.Errorf("%s has cursors that nobody asked for: %s", path, plain.body)
		}
		cut := decode[markedPage](h.call("GET", path+"cursors=true&limit=1", "").want(200))
		_, first := cut.names()
		if len(first) != 1 || cut.Next == nil || *cut.Next != first[0] && len(h.others) == 0 { // those of several cells may say the same in several ways
			t.Fatalf("%s: the cursor of the last element is %v, and next %v", path, first, cut.Next)
		}
		rest := decode[markedPage](h.call("GET", path+"cursors=true&cursor="+*cut.Next, "").want(200))
		if left, _ := rest.names(); !slices.Equal(left, names[1:]) {
			t.Errorf("%s after the first page has %v, want %v", path, left, names[1:])
		}
	}
	h.call("GET", "/history?cursors=true&format=csv", "").wantProblem(problem.InvalidParameter)
}

func TestCloudEventsOfAListingHaveCursors(t *testing.T) {
	t.Parallel()
	h := setup(t)
	many := h.with("Accept", batched)
	for n := range 3 {
		id := decode[seenEvent](h.call("POST", fmt.Sprintf("/events?queue=q&event_ts=2021-01-01T00:00:0%dZ", n), "{}").want(201)).ID
		h.call("DELETE", fmt.Sprintf("/events/%d", id), "").want(204)
	}
	all := many.call("GET", "/history?queue=q&cursors=true", "").want(200).cloudEvents(batched)
	var marked markedPage
	if err := json.Unmarshal([]byte(h.call("GET", "/history?queue=q&cursors=true", "").want(200).body), &marked); err != nil {
		t.Fatal(err)
	}
	_, cursors := marked.names()
	for i, e := range all {
		if e.Attributes["queuedcursor"] != cursors[i] || e.Attributes["queuedeventts"] != fmt.Sprintf("2021-01-01T00:00:0%dZ", 2-i) {
			t.Errorf("event %d has %v, want the cursor %s", i, e.Attributes, cursors[i])
		}
	}
	if plain := many.call("GET", "/history?queue=q", "").want(200); strings.Contains(plain.body, "queuedcursor") {
		t.Errorf("a cursor that nobody asked for: %s", plain.body)
	}
}
