package ui

import "github.com/queued/queued/client"

// Subscriptions is the page of all subscriptions.
type Subscriptions struct {
	Subscriptions []client.Subscription
	Pager         Pager
}

// Subscription is the page of one subscription. Filters are the first ones, FilterCount says of how many.
type Subscription struct {
	client.Subscription
}

// Topics is the page of all topics that have events in the log.
type Topics struct {
	Topics []client.Topic
	Key    string // the nonce of the form, so that sending it twice publishes one event
	Pager  Pager
}

// Topic is the page of one topic.
type Topic struct {
	Topic  string
	Events []client.PublishedEvent // the latest first
	IsAll  bool                    // there are no earlier ones in the log
	Hidden bool                    // payloads are not to be shown
	Key    string                  // the nonce of the form, so that sending it twice publishes one event
}

// Published is the page of one event of the log.
type Published struct {
	client.PublishedEvent
	Hidden bool // the payload and the metadata are not to be shown
}

// Data is the payload as the page shows it.
func (p *Published) Data() *JSONText { return NewJSONText(p.Payload) }
