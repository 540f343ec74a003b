package pages

import (
	"cmp"
	"crypto/rand"
	"net/url"
	"slices"
	"strconv"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// latestEvents is how many events the page of a topic shows.
const latestEvents = 20

// listTopics is the page of the topics that have events in the log, by name.
func listTopics(v *visit) (view, error) {
	topics, next, err := pageOf[client.Topic](v, "/topics", "topics", nil, pageSize)
	if err != nil {
		return view{}, err
	}
	shown := ui.Topics{Topics: topics, Key: rand.Text(), Pager: v.pager(next)}
	return view{name: "topics", title: "Topics", nav: "subscriptions", isLive: true, body: shown}, nil
}

// showTopic is the page of one topic, with its latest events.
func showTopic(v *visit) (view, error) {
	shown := ui.Topic{Topic: v.parameter("topic"), Hidden: v.h.cfg.HidePayloads, Key: rand.Text()}
	last, err := v.api.ReadLog(v.r.Context(), client.ReadParams{LogFilter: client.LogFilter{Topics: []string{shown.Topic}}, Last: latestEvents + 1})
	if err != nil {
		return view{}, err
	}
	slices.Reverse(last.Events)
	shown.Events = last.Events[:min(len(last.Events), latestEvents)]
	shown.IsAll = last.Complete && len(last.Events) <= latestEvents
	return view{name: "topic", title: shown.Topic, nav: "subscriptions", isLive: true, body: shown}, nil
}

// showPublished is the page of one event of the log.
func showPublished(v *visit) (view, error) {
	position, err := strconv.ParseInt(v.parameter("position"), 10, 64)
	if err != nil || position < 1 {
		return view{}, errNoPage
	}
	e, err := v.api.GetPublished(v.r.Context(), position)
	if err != nil {
		return view{}, err
	}
	return view{name: "published", title: "Position " + strconv.FormatInt(position, 10), nav: "subscriptions", body: &ui.Published{PublishedEvent: e, Hidden: v.h.cfg.HidePayloads}}, nil
}

// publish publishes one event, once however often the form is sent.
func publish(v *visit) (string, error) {
	topic := cmp.Or(v.parameter("topic"), v.form.Get("topic"))
	if topic == "" {
		return "", invalid("topic", "is missing: a dotted name of the kind of event, such as order.placed")
	}
	payload, err := v.json("event")
	if err != nil {
		return "", err
	}
	published, err := v.api.Publish(v.r.Context(), client.NewPublication{Topic: topic, Payload: payload, Key: v.form.Get("record_key"), IdempotencyKey: v.idempotencyKey()})
	return did("topics/"+url.PathEscape(topic), "topic.published", strconv.FormatInt(published.Position, 10)), err
}
