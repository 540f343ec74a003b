package pages

import (
	"cmp"
	"crypto/rand"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

const (
	// latestEvents is how many events the page of a topic shows.
	latestEvents = 20
	// latestLooked is how many events of the log are looked at for the latest ones of a topic, and how many one read returns that looks further back.
	latestLooked = 200
)

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
	var err error
	if shown.Events, shown.IsAll, err = v.latest(shown.Topic); err != nil {
		return view{}, err
	}
	slices.Reverse(shown.Events)
	return view{name: "topic", title: shown.Topic, nav: "subscriptions", isLive: true, body: shown}, nil
}

// latest returns the latest events of a topic, in order, and whether these are all that the log has. The API reads the log forwards, so they are looked for among the
// latest of all topics, then in the last ten minutes, six hours, and in all of the log: a topic with more than a few in the one is found before it comes to the next.
func (v *visit) latest(topic string) (events []client.PublishedEvent, isAll bool, err error) {
	filter := client.LogFilter{Topics: []string{topic}}
	last, err := v.api.Match(v.r.Context(), client.MatchParams{Filter: filter, Last: latestLooked})
	if err != nil && !isForbidden(err) { // the latest of all topics are not for keys that may use some
		return nil, false, err
	}
	var positions []int64
	for i, matched := range last.Matched {
		if matched {
			positions = append(positions, last.Positions[i])
		}
	}
	if len(positions) >= latestEvents {
		read, err := v.api.ReadLog(v.r.Context(), client.ReadParams{LogFilter: filter, From: client.After(positions[len(positions)-latestEvents] - 1), Limit: latestEvents})
		return read.Events, false, err
	}
	now := time.Now()
	for _, from := range []client.Place{client.Since(now.Add(-10 * time.Minute)), client.Since(now.Add(-6 * time.Hour)), client.Earliest} {
		read, err := v.api.ReadLog(v.r.Context(), client.ReadParams{LogFilter: filter, From: from, Limit: latestLooked})
		if err != nil {
			return nil, false, err
		}
		if read.Next < read.Head { // there are more than one read returns: those of a shorter time are the latest
			if len(events) == 0 && len(positions) > 0 {
				read, err = v.api.ReadLog(v.r.Context(), client.ReadParams{LogFilter: filter, From: client.After(positions[0] - 1), Limit: latestEvents})
				events = read.Events
			}
			return events, false, err
		}
		isAll = from == client.Earliest && len(read.Events) <= latestEvents
		events = read.Events[max(len(read.Events)-latestEvents, 0):]
		if len(events) == latestEvents {
			break
		}
	}
	return events, isAll, nil
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
