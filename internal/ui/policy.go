package ui

import (
	"cmp"

	"github.com/queued/queued/client"
)

// PolicyForm is the form of the policy of a queue.
type PolicyForm struct{ client.Policy }

// Delays are the fields of its backoff; zero: it has none.
func (f *PolicyForm) Delays() client.Backoff {
	if f.Backoff == nil {
		return client.Backoff{}
	}
	return *f.Backoff
}

// Limits are its limits of groups; zero: it has none.
func (f *PolicyForm) Limits() client.Flow {
	if f.Flow == nil {
		return client.Flow{}
	}
	return *f.Flow
}

// Claims is the rate of each group; zero: there is none.
func (f *PolicyForm) Claims() client.Rate {
	if rate := f.Limits().Rate; rate != nil {
		return *rate
	}
	return client.Rate{}
}

// InOrder says whether groups are in order, and what becomes of one then when one of its events fails; empty: they are not.
func (f *PolicyForm) InOrder() string {
	limits := f.Limits()
	if !limits.Order {
		return ""
	}
	return cmp.Or(limits.OnFailed, client.OnFailedContinue)
}

// InTurns says whether groups take turns; empty: they do not.
func (f *PolicyForm) InTurns() string {
	if f.Limits().Fair {
		return "true"
	}
	return ""
}

// DeadLetters is the queue of its dead letters; empty: none.
func (f *PolicyForm) DeadLetters() string {
	if f.DeadLetter == nil {
		return ""
	}
	return f.DeadLetter.Queue
}

// MoveForm is the form that moves the events of a queue into another one.
type MoveForm struct{ client.Queue }
