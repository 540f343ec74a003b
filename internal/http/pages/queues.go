package pages

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// queuesPage is how many queues a page lists.
const queuesPage = 100

// listQueues is the page of all queues, or of those with some text in their names.
func listQueues(v *visit) (view, error) {
	window, err := v.window()
	if err != nil {
		return view{}, err
	}
	shown := &ui.Queues{Query: v.parameters(), Window: window, Order: cmp.Or(v.query("order"), "name")}
	if text := v.query("offset"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return view{}, invalid("offset", "must be a number, 0 or more")
		}
		shown.Offset = n
	}
	asked := v.h.overviewOf(shown.Window, shown.Order, queuesPage, shown.Offset)
	asked.NameContains = v.query("name_contains")
	shown.Stats, err = v.api.QueuesOverview(v.r.Context(), asked)
	if err != nil {
		return view{}, err
	}
	query := v.parameters()
	if shown.Offset > 0 {
		query.Del("offset")
		shown.Pager.First = "?" + query.Encode()
	}
	if shown.Last() < shown.Stats.Total {
		query.Set("offset", strconv.Itoa(shown.Last()))
		shown.Pager.Next = "?" + query.Encode()
	}
	return view{name: "queues", title: "Queues", nav: "queues", isLive: true, body: shown}, nil
}

// showQueue is the page of one queue.
func showQueue(v *visit) (view, error) {
	name := v.parameter("name")
	window, err := v.window()
	if err != nil {
		return view{}, err
	}
	q, err := v.api.GetQueue(v.r.Context(), name)
	if err != nil {
		return view{}, err
	}
	shown := &ui.Queue{Queue: q, Query: v.parameters(), Window: window, PostKey: rand.Text()}
	span := v.h.overviewOf(window, "", 0, 0)
	shown.Stats, err = v.api.QueueStats(v.r.Context(), name, client.SeriesParams{From: span.From, To: span.To, Bucket: span.Bucket})
	if err != nil {
		return view{}, err
	}
	if shown.Errors, err = v.api.HistoryErrors(v.r.Context(), client.CauseFilter{Queue: name, FinishedFrom: v.h.since(window), Limit: 5}); err != nil {
		return view{}, err
	}
	if q.Flow != nil && q.Flow.OnFailed == client.OnFailedBlock {
		holders, err := v.api.ListHolders(v.r.Context())
		if err != nil {
			return view{}, err
		}
		shown.Stopped = v.held(slices.DeleteFunc(holders.Holders, func(h client.Holder) bool { return h.Kind != "stopped_group" || h.Queue != name }))
	}
	if shown.Events, _, err = listOf[client.Event](v.r.Context(), v.api, "/events", "events", url.Values{"queue": {name}, "limit": {"20"}}); err != nil {
		return view{}, err
	}
	if shown.Groups, _, err = listOf[client.Group](v.r.Context(), v.api, "/queues/"+url.PathEscape(name)+"/groups", "groups", url.Values{"sort": {"waiting"}, "limit": {"20"}}); err != nil {
		return view{}, err
	}
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

// changeGroup pauses a group of the queue, or has it go on: that ends a hold, too. What else is set for it stays. Or it has one go on that stopped for a failed event.
func changeGroup(v *visit) (string, error) {
	back := queuePath(v)
	if v.form.Get("back") == "overview" {
		back = ""
	}
	if v.form.Get("do") == "unblock" {
		_, err := v.api.UnblockGroup(v.r.Context(), v.parameter("name"), v.form.Get("group"))
		return did(back, "group.unblocked", ""), err
	}
	var notice string
	_, err := v.api.ChangeGroup(v.r.Context(), v.parameter("name"), v.form.Get("group"), func(settings *client.GroupSettings) error {
		switch v.form.Get("do") {
		case "pause":
			settings.Paused, notice = true, "group.paused"
		case "resume":
			settings.Paused, settings.HeldUntil, notice = false, time.Time{}, "group.resumed"
		default:
			return invalid("do", "must be pause, resume or unblock")
		}
		return nil
	})
	return did(back, notice, ""), err
}

// queuePath is the path of the page of the queue that the visit is about.
func queuePath(v *visit) string { return pathOf(v.parameter("name")) }

// pathOf is the path of the page of a queue.
func pathOf(queue string) string { return "queues/" + url.PathEscape(queue) }

// confirmPurge asks before a queue is purged.
func confirmPurge(v *visit) (view, error) {
	name := v.parameter("name")
	q, err := v.api.GetQueue(v.r.Context(), name)
	if err != nil {
		return view{}, err
	}
	count := "the " + ui.Count(q.Ready+q.Scheduled+q.Waiting, "event", "events") + estimate(q.Estimated)
	return view{name: "confirm", title: "Purge " + name, nav: "queues", body: ui.Confirm{
		Question: "Purge " + name + "?",
		Consequence: "This moves " + count + " that wait in the queue into history as cancelled. They can be requeued from there, and are deleted with their history. The " +
			ui.Count(q.Leased, "event", "events") + " that workers hold stay.",
		Button: "Purge", Action: queuePath(v) + "/purge", Back: queuePath(v),
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
	event := client.NewEvent{Payload: json.RawMessage(payload), Queue: v.parameter("name"), Type: v.form.Get("type"), Key: v.idempotencyKey()}
	delay, err := v.duration("delay")
	if err != nil {
		return "", err
	}
	event.Delay = delay
	posted, err := v.api.Insert(v.r.Context(), event)
	return did(queuePath(v), "event.posted", strconv.FormatInt(posted.ID, 10)), err
}
