package ui

import "github.com/queued/queued/client"

// PolicyForm is the form of the policy of a queue.
type PolicyForm struct{ client.Policy }

// Delays are the fields of its backoff; zero: it has none.
func (f *PolicyForm) Delays() client.Backoff {
	if f.Backoff == nil {
		return client.Backoff{}
	}
	return *f.Backoff
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
