package pages

import (
	"crypto/rand"
	"encoding/json"
	"net/url"
	"strconv"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// listQueues is the page of all queues, by name.
func listQueues(v *visit) (view, error) {
	var shown ui.Queues
	query := url.Values{"limit": {"100"}}
	setIf(query, "cursor", v.query("cursor"))
	var answer struct {
		Queues []client.QueueStats `json:"queues"`
		Next   *string             `json:"next"`
	}
	if _, err := v.api.Do(v.r.Context(), client.Request{Path: "/queues", Query: query}, &answer); err != nil {
		return view{}, err
	}
	shown.Queues, shown.Pager = answer.Queues, v.pager(answer.Next)
	return view{name: "queues", title: "Queues", nav: "queues", isLive: true, body: shown}, nil
}

// showQueue is the page of one queue.
func showQueue(v *visit) (view, error) {
	name := v.parameter("name")
	q, err := v.api.GetQueue(v.r.Context(), name)
	if err != nil {
		return view{}, err
	}
	shown := ui.Queue{Queue: q, PostKey: "ui-" + rand.Text()}
	var answer struct {
		Events []client.Event `json:"events"`
	}
	if _, err := v.api.Do(v.r.Context(), client.Request{Path: "/events", Query: url.Values{"queue": {name}, "limit": {"20"}}}, &answer); err != nil {
		return view{}, err
	}
	shown.Events = answer.Events
	return view{name: "queue", title: name, nav: "queues", isLive: true, body: shown}, nil
}

func pauseQueue(v *visit) (string, error) {
	_, err := v.api.PauseQueue(v.r.Context(), v.parameter("name"))
	return did(queuePath(v), "queue.paused", ""), err
}

func resumeQueue(v *visit) (string, error) {
	_, err := v.api.ResumeQueue(v.r.Context(), v.parameter("name"))
	return did(queuePath(v), "queue.resumed", ""), err
}

// queuePath is the path of the page of the queue that the visit is about.
func queuePath(v *visit) string { return "queues/" + url.PathEscape(v.parameter("name")) }

// confirmPurge asks before a queue is purged.
func confirmPurge(v *visit) (view, error) {
	name := v.parameter("name")
	q, err := v.api.GetQueue(v.r.Context(), name)
	if err != nil {
		return view{}, err
	}
	count := "the " + ui.Count(q.Ready+q.Scheduled, "event", "events")
	if q.Estimated {
		count += " (an estimate)"
	}
	return view{name: "confirm", title: "Purge " + name, nav: "queues", body: ui.Confirm{
		Question:    "Purge " + name + "?",
		Consequence: "This deletes " + count + " that wait in the queue, and cannot be undone: they do not go into history. The " + ui.Count(q.Leased, "event", "events") + " that workers hold stay.",
		Button:      "Purge", Action: queuePath(v) + "/purge", Back: queuePath(v),
	}}, nil
}

func purgeQueue(v *visit) (string, error) {
	n, err := v.api.PurgeQueue(v.r.Context(), v.parameter("name"))
	return did(queuePath(v), "queue.purged", strconv.Itoa(n)), err
}

func postEvent(v *visit) (string, error) {
	payload := []byte(v.form.Get("event"))
	if !json.Valid(payload) {
		return "", invalid("event", `must be JSON: an object such as {"order": 17}`)
	}
	event := client.NewEvent{Payload: json.RawMessage(payload), Queue: v.parameter("name"), Type: v.form.Get("type"), Key: v.form.Get("key")}
	delay, err := v.duration("delay")
	if err != nil {
		return "", err
	}
	event.Delay = delay
	posted, err := v.api.Insert(v.r.Context(), event)
	return did(queuePath(v), "event.posted", strconv.FormatInt(posted.ID, 10)), err
}
