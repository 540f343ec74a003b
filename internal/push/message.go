package push

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/queued/queued/internal/cloudevents"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/trace"
)

// DefaultType is the type, in a body of the format Standard, of an event that has neither a type nor a topic.
const DefaultType = "event"

// webhookID returns the id of an event for its receiver: the same for all attempts at it and for its copies, whose first is the event of this id.
func webhookID(first int64) string { return "evt_" + strconv.FormatInt(first, 10) }

// messageOf returns the request that delivers an event, whose first is the event of this id: its body, and all of its header but the signature.
func (e *endpoint) messageOf(event *queue.Event, first int64) (header http.Header, body []byte, err error) {
	header = e.header.Clone()
	header["Content-Type"] = []string{"application/json"}
	switch e.format {
	case Standard:
		body, err = standardBody(event)
	case CloudEvents:
		header["Content-Type"] = []string{"application/cloudevents+json"}
		outgoing := cloudevents.OutgoingOf(first, event.Queue, event.Source, typeOf(event), event.EventTS, event.Payload, event.Meta)
		body = cloudevents.Append(nil, &outgoing)
	default:
		body = event.Payload
	}
	if err != nil {
		return nil, nil, err
	}
	trace.OfMeta(event.Meta).AddTo(header)
	return header, body, nil
}

// typeOf returns the type of an event, or else the topic that a subscription has delivered it from.
func typeOf(event *queue.Event) string {
	if event.Type != "" || len(event.Publication) == 0 {
		return event.Type
	}
	var publication struct{ Topic string }
	_ = json.Unmarshal(event.Publication, &publication) // which the database has made
	return publication.Topic
}

// standardBody returns the body that Standard Webhooks recommends, with the payload as it is.
func standardBody(event *queue.Event) ([]byte, error) {
	quoted, err := json.Marshal(cmp.Or(typeOf(event), DefaultType))
	if err != nil {
		return nil, err
	}
	body := make([]byte, 0, len(event.Payload)+len(quoted)+80)
	body = append(append(body, `{"type":`...), quoted...)
	body = append(event.EventTS.UTC().AppendFormat(append(body, `,"timestamp":"`...), time.RFC3339Nano), '"')
	if source := cloudevents.VerifiedSource(event.Meta); source != "" {
		name, err := json.Marshal(source)
		if err != nil {
			return nil, err
		}
		body = append(append(body, `,"verified_source":`...), name...)
	}
	body = append(body, `,"data":`...)
	return append(append(body, event.Payload...), '}'), nil
}
