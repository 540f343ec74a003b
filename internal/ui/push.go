package ui

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/queued/queued/client"
)

// Push is the page of the push of a queue, with its delivery log.
type Push struct {
	client.Push
	IsAbsent bool // the queue is not pushed: only Queue is set
	Filter   url.Values
	Log      client.PushDeliveryPage
	Tested   *client.PushTest // the result of a test; nil: none was made
	Pager    Pager
}

// IsFiltered reports whether the log is not shown in full.
func (p *Push) IsFiltered() bool {
	for _, name := range []string{"status", "outcome", "event", "from", "to"} {
		if p.Filter.Get(name) != "" {
			return true
		}
	}
	return false
}

// PushForm is the form of a push: a new one, or a change to one, which has a Version.
type PushForm struct {
	client.Push
	Nonce string // of a new one, so that sending it twice creates one
}

// Limit is the rate limit of the push; 0 a second: it has none.
func (f *PushForm) Limit() (none client.RateLimit) {
	if f.Rate == nil {
		return none
	}
	return *f.Rate
}

// Statuses are the final statuses as they are entered.
func (f *PushForm) Statuses() string { return strings.Trim(fmt.Sprint(f.FinalStatuses), "[]") }

// PushRotation is the question before the secret of a push is rotated.
type PushRotation struct {
	client.Push
	Nonce string // so that sending it twice rotates once
}

// PushSecret is the page that shows a new secret, once.
type PushSecret struct {
	client.Push
	IsNew bool // the push is new, too; else the secret was rotated
}
