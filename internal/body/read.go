package body

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// The first part of a body that memory is taken for, in bytes. Few bodies are longer, and those that have not begun take no more.
const (
	firstKnown   = 8 << 10
	firstUnknown = 512 // of a body whose length is not said
)

// A Hold is the share of a budget that the body of one request takes. The zero value takes nothing. One goroutine uses it; Release it when nothing uses the body any more.
type Hold struct {
	budget       *Budget
	bytes        int64 // that the budget counts for it; guarded by the budget while isArriving or isUnverified
	isUnverified bool
	isArriving   bool // the budget knows of it, and may have it give way
	gaveWay      bool // guarded by the budget
	isCutOff     bool
	started      time.Time
	response     http.ResponseWriter
}

// Read reads the body of r, of at most limit bytes, nil if it is empty. It fails with ErrFull and ErrTooSlow, with an *http.MaxBytesError, and as the
// connection does.
func (h *Hold) Read(b *Budget, w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	return h.read(b, w, r, limit, false)
}

// ReadUnverified is Read for a body whose sender may be anybody until it has been read: see Verified. It has to arrive within Config.UnverifiedTime.
func (h *Hold) ReadUnverified(b *Budget, w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	return h.read(b, w, r, limit, true)
}

func (h *Hold) read(b *Budget, w http.ResponseWriter, r *http.Request, limit int64, isUnverified bool) ([]byte, error) {
	length := r.ContentLength
	switch {
	case length == 0:
		return nil, nil
	case length > limit:
		return nil, &http.MaxBytesError{Limit: limit}
	}
	h.budget, h.response, h.isUnverified = b, w, isUnverified
	size := min(length, firstKnown)
	if length < 0 {
		size = min(firstUnknown, limit+1)
	}
	if isUnverified {
		if err := b.take(h, perUnverified); err != nil {
			return nil, err
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(b.unverifiedTime)) // lifted by net/http at the end of the body
		h.arrive()
	}
	if err := b.take(h, size); err != nil {
		return nil, h.end(err)
	}
	body := make([]byte, 0, size)
	for {
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) == length, length < 0 && errors.Is(err, io.EOF) && int64(len(body)) <= limit:
			return body, h.end(nil)
		case int64(len(body)) > limit:
			return nil, h.end(&http.MaxBytesError{Limit: limit})
		case errors.Is(err, io.EOF):
			return nil, h.end(io.ErrUnexpectedEOF)
		case err != nil:
			h.isCutOff = errors.Is(err, os.ErrDeadlineExceeded)
			return nil, h.end(err)
		}
		h.arrive()
		if len(body) == cap(body) {
			if body, err = h.grow(body, length, limit); err != nil {
				return nil, h.end(err)
			}
		}
	}
}

// grow returns body with twice the capacity, or with that of its length.
func (h *Hold) grow(body []byte, length, limit int64) ([]byte, error) {
	before := int64(cap(body))
	after := min(2*before, limit+1) // one more, to see that it is longer
	if length >= 0 {
		after = min(2*before, length)
	}
	if err := h.budget.take(h, after); err != nil {
		return nil, err
	}
	body = append(make([]byte, 0, after), body...)
	h.give(before)
	return body, nil
}

// arrive has the budget know of a body that does not come at once.
func (h *Hold) arrive() {
	if h.isArriving {
		return
	}
	b := h.budget
	h.started, h.isArriving = b.now(), true
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arriving[h] = struct{}{}
}

// end has the budget know that no more of the body will be read. It returns err, or ErrTooSlow if the body had to give way meanwhile.
func (h *Hold) end(err error) error {
	if !h.isArriving {
		return err
	}
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	h.isArriving = false
	delete(b.arriving, h)
	if h.gaveWay {
		h.isCutOff = true
		return ErrTooSlow
	}
	return err
}

// interrupt ends the reading of a body. The budget calls it, for one that is being read.
func (h *Hold) interrupt() {
	_ = http.NewResponseController(h.response).SetReadDeadline(time.Unix(1, 0))
}

// give gives back n bytes.
func (h *Hold) give(n int64) {
	b := h.budget
	if h.isArriving || h.isUnverified {
		b.mu.Lock()
		defer b.mu.Unlock()
		if h.gaveWay {
			return // all was given back
		}
	}
	b.forget(h, n)
}

// IsCutOff reports whether the body was not read to its end because its time was over: the client is still there, though net/http ends the context of its request.
func (h *Hold) IsCutOff() bool { return h.isCutOff }

// Verified says that the sender of a body that was read is known: it takes no part any more of the share of unverified ones.
func (h *Hold) Verified() {
	if !h.isUnverified {
		return
	}
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unverified -= h.bytes
	h.isUnverified = false
}

// perValue is about how much memory a value takes that is decoded from JSON or a form, in bytes.
const perValue = 64

// TakeDecoded counts the memory to decode a body into values. It fails with ErrFull.
func (h *Hold) TakeDecoded(body []byte) error {
	if h.budget == nil {
		return nil
	}
	n := int64(len(body))
	for _, mark := range []string{",", ":", "{", "[", "&"} {
		n += int64(bytes.Count(body, []byte(mark))) * perValue
	}
	return h.budget.take(h, min(n, h.budget.limit/4)) // so that any body can be decoded while there are no others
}

// Release gives back all that the body takes.
func (h *Hold) Release() {
	if h.bytes != 0 {
		h.give(h.bytes)
	}
}
