package body

import (
	"cmp"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// LargeAnswer is the size of the smallest body of an answer that counts for a budget, in bytes. Buffers of the system have room for smaller ones.
const LargeAnswer = 64 << 10

// The errors of answers that are refused or broken off for want of memory.
var (
	// ErrAnswersFull: the answers to other requests take all of the budget, or those to the same caller its share.
	ErrAnswersFull = errors.New("answers that are not read yet take all the memory that there is for them")
	// ErrReadSlowly: the client reads the answer slowly, while others needed its memory.
	ErrReadSlowly = errors.New("the client read its answer slowly, and others needed the memory")
)

// Answers bounds the bytes that large answers take until their clients have read them. It is safe for concurrent use.
type Answers struct {
	limit int64
	now   func() time.Time

	full, gaveWay atomic.Int64

	mu      sync.Mutex
	used    int64
	held    map[string]int64 // by caller
	written map[*Answer]struct{}
}

// NewAnswers returns a budget of limit bytes; zero: DefaultLimit.
func NewAnswers(limit int64) *Answers {
	return &Answers{limit: cmp.Or(limit, DefaultLimit), now: time.Now, held: make(map[string]int64), written: make(map[*Answer]struct{})}
}

// AnswerStats are the counts of an Answers.
type AnswerStats struct {
	Limit, Bytes  int64 // bytes that there may be, and that there are
	Full, TooSlow int64 // answers that were refused, and that gave way to others
}

// Stats returns the counts of the budget.
func (a *Answers) Stats() AnswerStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return AnswerStats{Limit: a.limit, Bytes: a.used, Full: a.full.Load(), TooSlow: a.gaveWay.Load()}
}

// An Answer is a large answer that is being written. One goroutine uses it.
type Answer struct {
	budget   *Answers
	response http.ResponseWriter
	caller   string
	size     int64

	// Guarded by the budget.
	begun, progressed time.Time
	sent              int64
	gaveWay           bool
}

// Begin takes the memory of an answer of size bytes to a caller; an empty caller is anybody. One caller may have three quarters of the budget, and any answer
// fits while there are no others. End gives the memory back. Begin fails with ErrAnswersFull.
func (a *Answers) Begin(w http.ResponseWriter, caller string, size int64) (*Answer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	share := a.limit
	if caller != "" {
		share = a.limit * 3 / 4
	}
	size = min(size, share)
	for a.held[caller]+size > share {
		if !a.evict(func(other *Answer) bool { return other.caller == caller }) {
			a.full.Add(1)
			return nil, ErrAnswersFull
		}
	}
	for a.used+size > a.limit {
		if !a.evict(func(*Answer) bool { return true }) {
			a.full.Add(1)
			return nil, ErrAnswersFull
		}
	}
	now := a.now()
	answer := &Answer{budget: a, response: w, caller: caller, size: size, begun: now, progressed: now}
	a.used += size
	a.held[caller] += size
	a.written[answer] = struct{}{}
	return answer, nil
}

// evict has the answer that is read the slowest give way, of those that may, and reports whether there was one.
func (a *Answers) evict(may func(*Answer) bool) bool {
	var slowestAnswer *Answer
	var most time.Duration
	now := a.now()
	for answer := range a.written {
		if !may(answer) {
			continue
		}
		sinceProgress := now.Sub(answer.progressed) - grace
		behind := now.Sub(answer.begun) - grace - time.Duration(answer.sent)*time.Second/slowest
		if late := max(sinceProgress, behind); late > most {
			slowestAnswer, most = answer, late
		}
	}
	if slowestAnswer == nil {
		return false
	}
	slowestAnswer.gaveWay = true
	a.gaveWay.Add(1)
	a.remove(slowestAnswer) // its memory is free as soon as its goroutine has seen that
	_ = http.NewResponseController(slowestAnswer.response).SetWriteDeadline(time.Unix(1, 0))
	return true
}

// remove gives back the memory of an answer. It is called with mu held.
func (a *Answers) remove(answer *Answer) {
	if _, isHeld := a.written[answer]; !isHeld {
		return
	}
	delete(a.written, answer)
	a.used -= answer.size
	if a.held[answer.caller] -= answer.size; a.held[answer.caller] == 0 {
		delete(a.held, answer.caller)
	}
}

// Write writes a part of the answer. It fails with ErrReadSlowly if the answer had to give way.
func (w *Answer) Write(text []byte) (int, error) {
	written := 0
	for {
		n, err := w.response.Write(text[written:min(len(text), written+LargeAnswer)])
		written += n
		if gaveWay := w.progress(n); gaveWay && err != nil {
			err = ErrReadSlowly
		}
		if err != nil || written == len(text) {
			return written, err
		}
	}
}

// progress notes that the client has taken n bytes more, and reports whether the answer had to give way.
func (w *Answer) progress(n int) bool {
	w.budget.mu.Lock()
	defer w.budget.mu.Unlock()
	w.sent += int64(n)
	w.progressed = w.budget.now()
	return w.gaveWay
}

// End gives back the memory. It may be called more than once.
func (w *Answer) End() {
	w.budget.mu.Lock()
	defer w.budget.mu.Unlock()
	w.budget.remove(w)
}
