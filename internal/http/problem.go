package http

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/queue"
)

// maxFieldErrors bounds how many bad fields one problem lists.
const maxFieldErrors = 20

// A fieldError is one bad field. Pointer says where it is: "#/a/b" in the body, "?name" for
// a query parameter, "{name}" for a part of the path, and the name itself for a header field.
type fieldError struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

// A problem is an answer other than success. It is the error that decoding and handlers
// return when they know what the client should read.
type problem struct {
	kind   kind
	detail string
	errors []fieldError
	header http.Header // further header fields of the answer, usually nil
}

// inFields is the problem that the bad fields of a request are; its detail is the first of them.
func inFields(k kind, bad ...fieldError) *problem {
	detail := bad[0].Pointer + " " + bad[0].Detail
	if more := len(bad) - 1; more > 0 {
		detail += fmt.Sprintf("; and %d more, see errors", more)
	}
	return &problem{kind: k, detail: detail + ".", errors: bad}
}

func (p *problem) Error() string { return p.kind.code + ": " + p.detail }

// problemOf turns any error into what the client is told. What it does not know is an internal
// error, whose text stays in the log.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	for _, s := range sentinels {
		if !errors.Is(err, s.err) {
			continue
		}
		p := &problem{kind: s.kind, detail: s.detail}
		if field, detail := refused(err); field != "" {
			return inFields(s.kind, fieldError{"#/" + field, detail})
		} else if detail != "" {
			p.detail = detail
		}
		if s.kind.status == http.StatusServiceUnavailable && s.kind != queryTimeout {
			p.header = http.Header{"Retry-After": {"1"}}
		}
		return p
	}
	return &problem{kind: internalError, detail: "The log has what happened, under this request_id."}
}

// refused says which field a service refused, if it knows, and why.
func refused(err error) (field, detail string) {
	var invalid *queue.InvalidError
	if errors.As(err, &invalid) {
		return invalid.Field, invalid.Detail
	}
	return "", ""
}

// A document is a problem as it goes over the wire (RFC 9457).
type document struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail"`
	Code      string       `json:"code"`
	RequestID string       `json:"request_id"`
	Errors    []fieldError `json:"errors,omitempty"`
}

// fail answers r with the problem that err is. When the client has gone it ends the request
// without an answer.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	rec := recordOf(r)
	if r.Context().Err() != nil { // whatever failed, nobody is there to read of it
		rec.status = clientGone.status
		panic(http.ErrAbortHandler)
	}
	p := problemOf(err)
	rec.note("code", p.kind.code)
	if p.kind.status >= http.StatusInternalServerError {
		rec.err = err
	}
	body, err := json.Marshal(document{
		Type:      "urn:queued:problem:" + p.kind.code,
		Title:     p.kind.title,
		Status:    p.kind.status,
		Detail:    p.detail,
		Code:      p.kind.code,
		RequestID: rec.id,
		Errors:    p.errors[:min(len(p.errors), maxFieldErrors)],
	}, jsontext.AllowInvalidUTF8(true)) // details quote what was sent
	if err != nil {
		panic(err) // strings and an integer always encode
	}
	body = append(body, '\n')
	h := w.Header()
	for name, values := range p.header {
		h[name] = values
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.kind.status)
	_, _ = w.Write(body) // a client that has gone misses an error only
}
