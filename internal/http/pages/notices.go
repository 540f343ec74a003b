package pages

import (
	"net/url"
	"strconv"
	"strings"
)

// notices say what an action has done, by the parameter did of the page that it leads to. They are texts of the program, so that nobody can make a link that
// says something else; {n} stands for the number in the parameter n.
var notices = map[string]string{
	"logout":        "Logged out.",
	"session.ended": "The log-in has ended: its time was over, it was ended elsewhere, or its key was revoked, or has another text.",
	"key.expired":   "The log-in has ended: its key has expired.",

	"key.changed": "The key is changed.",
	"key.revoked": "The key is revoked.",

	"queue.paused":    "The queue is paused: events come in, and none can be claimed.",
	"queue.resumed":   "The queue is no longer paused.",
	"queue.purged":    "Events purged: {n}.",
	"queue.changed":   "The policy is stored.",
	"queue.moved":     "Events moved: {n}.",
	"queue.deleted":   "The queue is deleted. Events that went into history as cancelled: {n}.",
	"group.paused":    "The group is paused: events come in, and none can be claimed.",
	"group.resumed":   "The group is no longer paused or held.",
	"group.unblocked": "The group goes on: its next event has its turn.",
	"event.posted":    "Posted the event {n}.",

	"subscription.paused":   "The subscription is paused: it gets nothing until it is resumed.",
	"subscription.resumed":  "The subscription is no longer paused.",
	"subscription.sought":   "The subscription goes on after position {n}.",
	"subscription.replayed": "Events that are delivered once more, in the background: {n}.",
	"subscription.deleted":  "The subscription is deleted.",
	"topic.published":       "Published at position {n}.",

	"history.requeued":  "Events requeued: {n}. Those that were requeued before were left out.",
	"redrive.created":   "The redrive goes on in the background.",
	"redrive.paused":    "The redrive is paused: no more events go until it is resumed.",
	"redrive.resumed":   "The redrive goes on.",
	"redrive.cancelled": "The redrive is cancelled. What it has requeued stays so.",

	"event.run":      "The event can be claimed now.",
	"event.ended":    "The event is in history.",
	"event.requeued": "This is the new event. The record of the event {n}, which it is a copy of, stays.",

	"schedule.created":   "The schedule is stored.",
	"schedule.changed":   "The change is stored.",
	"schedule.unchanged": "Nothing was entered that is not so already.",
	"schedule.paused":    "The schedule is paused: it does not run until it is resumed.",
	"schedule.resumed":   "The schedule is no longer paused. Runs that it missed are treated as its misfire policy says.",
	"schedule.run":       "The schedule has made the event {n} now.",
	"schedule.published": "The schedule has published now.",
	"schedule.deleted":   "The schedule is deleted: it does not run again.",

	"push.changed":  "The change is stored.",
	"push.enabled":  "The push begins anew: its events are sent at once.",
	"push.deleted":  "The push is deleted. Its events are still in the queue.",
	"push.run":      "The event {n} is due now, and is sent again.",
	"push.requeued": "A copy of the event is in the queue, the event {n}, and is sent.",

	"source.created": "The source is stored: its sender can post to its address.",
	"source.changed": "The change is stored.",
	"source.paused":  "The source is paused: deliveries get 503, and their sender tries again.",
	"source.resumed": "The source is no longer paused.",
	"source.deleted": "The source is deleted: its sender gets 404.",
}

// notice returns the notice that the parameters of a page ask for; empty: none.
func notice(query url.Values) string {
	text := notices[query.Get("did")]
	if !strings.Contains(text, "{n}") {
		return text
	}
	n, err := strconv.ParseInt(query.Get("n"), 10, 64)
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(text, "{n}", strconv.FormatInt(n, 10))
}
