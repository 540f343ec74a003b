package push

import (
	"cmp"
	"fmt"
	"time"
)

// A verdict is what an answer of an endpoint means for its event, and for the endpoint.
type verdict string

// The verdicts, which are the results of the metric queued_pushes_total, too.
const (
	delivered verdict = "delivered" // 2xx: the event is acked
	failed    verdict = "failed"    // the event is nacked: tried again as the policy of its queue says
	final     verdict = "final"     // a final status: the event is nacked for good. The endpoint works
	throttled verdict = "held"      // not now: the event is released, and nothing is pushed for a time
	gone      verdict = "gone"      // 410: the event is released, and the push disabled
)

// An outcome is what came of one request.
type outcome struct {
	verdict    verdict
	isUnsent   bool          // there was no request
	isFailure  bool          // of the endpoint: a throttled one may be or not
	retryIn    time.Duration // of a throttled one: how long the endpoint asked for; zero: it did not say
	detail     string        // of what is not delivered, as the event and the push keep it
	status     int           // zero: there was no answer
	holdsGroup bool          // of a throttled one: the group of the event is held, and no other events are
	excerpt    string        // the beginning of the body of the answer
	at         time.Time     // by the clock of the database, when the request began
	took       time.Duration
}

// times are the durations of a state.
type times struct {
	threshold    int           // failures in a row that open the breaker
	breakerPause time.Duration // before the first probe; each further pause is twice as long
	holdPause    time.Duration // of the first hold whose length the endpoint does not say; each further one is twice as long
	maxPause     time.Duration // the longest of all of these
	disableAfter time.Duration // of failing
}

// A state is how an endpoint does. Its methods are told the time, and call nothing. A change is what all processes and the subscribers of queued.push.*
// have to learn of; round counts changes, so that what comes of requests that began before the latest one is told apart.
type state struct {
	epoch          int64 // of the change that the database knows of
	round          int
	failures       int       // in a row
	failingSince   time.Time // the first of them
	lastFailure    time.Time
	lastError      string
	lastSuccess    time.Time
	isOpen         bool
	pause          time.Duration // while it is open: between the latest probe and the next
	nextHold       time.Duration // the length of a hold that the endpoint says nothing of; zero: it is the first
	until          time.Time     // nothing is pushed before
	disabledReason string        // not empty: it is disabled
}

// mayPush reports whether anything may be pushed at a time.
func (s *state) mayPush(now time.Time) bool { return s.disabledReason == "" && !now.Before(s.until) }

// note takes the outcome of a request that began in a round, and reports whether the state has changed.
func (s *state) note(now time.Time, round int, o outcome, t times) (changed bool) {
	switch {
	case s.disabledReason != "":
		return false // what comes now was under way
	case o.verdict == delivered || o.verdict == final:
		if o.verdict == delivered {
			s.lastSuccess = now
		}
		s.failures, s.failingSince, s.nextHold = 0, time.Time{}, 0
		if s.isOpen {
			s.isOpen, s.pause, s.until = false, 0, time.Time{}
			changed = true
		}
	default:
		s.lastError = o.detail
		if o.isFailure {
			changed = s.fail(now, round, o, t)
		}
		if o.verdict == throttled && s.disabledReason == "" {
			changed = s.hold(now, round, o, t) || changed
		}
	}
	if changed {
		s.round++
	}
	return changed
}

// fail notes a failure of the endpoint.
func (s *state) fail(now time.Time, round int, o outcome, t times) (changed bool) {
	s.failures++
	s.lastFailure = now
	if s.failingSince.IsZero() {
		s.failingSince = now
	}
	switch {
	case o.verdict == gone:
		s.disabledReason = "the endpoint answered " + o.detail
	case s.isOpen && now.Sub(s.failingSince) >= t.disableAfter:
		s.disabledReason = fmt.Sprintf("the endpoint failed for %s: %s", t.disableAfter, o.detail)
	case s.isOpen && round == s.round: // a probe
		s.pause = min(2*s.pause, t.maxPause)
		s.until = now.Add(s.pause)
		return true
	case !s.isOpen && s.failures >= t.threshold:
		s.isOpen, s.pause = true, t.breakerPause
		s.until = now.Add(s.pause)
		return true
	default:
		return false
	}
	s.until = time.Time{}
	return true
}

// hold has nothing pushed for as long as the endpoint has asked for, or for a time that doubles.
func (s *state) hold(now time.Time, round int, o outcome, t times) (changed bool) {
	length := o.retryIn
	if length <= 0 {
		if round != s.round {
			return false // it began before the hold that there is
		}
		length = cmp.Or(s.nextHold, t.holdPause)
		s.nextHold = min(2*length, t.maxPause)
	}
	until := now.Add(min(length, t.maxPause))
	// Several requests that were under way are told about the same, give or take what they took.
	if !until.After(s.until.Add(time.Second)) && now.Before(s.until) {
		return false
	}
	if until.After(s.until) {
		s.until = until
	}
	return true
}
