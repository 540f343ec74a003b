package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// A problemType is a type of problem, as in api/openapi.yaml.
type problemType struct {
	status int
	code   string
	title  string
}

// The problems that the gateway answers with by itself. Those of cells are passed on as they are.
var (
	unauthorizedCert = problemType{401, "client_certificate_required", "Client certificate required"}
	crossOrigin      = problemType{403, "cross_origin", "Cross-origin request refused"}
	forbidden        = problemType{403, "forbidden", "Forbidden"}
	bodyTooLarge     = problemType{413, "body_too_large", "Body too large"}
	hostNotAllowed   = problemType{421, "host_not_allowed", "Host not allowed"}
	batchNotAtomic   = problemType{422, "batch_not_atomic", "Batch not atomic"}
	invalidBody      = problemType{400, "invalid_json", "Invalid JSON"}
	internalError    = problemType{500, "internal", "Internal error"}
	queueNotEmpty    = problemType{409, "queue_not_empty", "Queue not empty"}
	queueLeased      = problemType{409, "queue_leased", "Queue has leased events"}
	cellInUse        = problemType{409, "cell_in_use", "Cell in use"}
	validationFailed = problemType{422, "validation_failed", "Validation failed"}
	cellNotFound     = problemType{404, "cell_not_found", "Cell not found"}
	severalCells     = problemType{409, "several_cells", "Several cells"}
	outcomeUnknown   = problemType{502, "outcome_unknown", "Outcome unknown"}
	cellUnavailable  = problemType{503, "cell_unavailable", "Cell unavailable"}
	overloaded       = problemType{503, "overloaded", "Server overloaded"}
	notReady         = problemType{503, "not_ready", "Server not ready"}
)

// statusClientGone is in the log and the metrics only: the client has closed the connection.
const statusClientGone = 499

// A problem is an answer of the gateway other than success.
type problem struct {
	problemType
	detail string
	cell   *int  // that it is about; nil: none
	cells  []int // of severalCells
	retry  int   // seconds after which to try again; 0: there is no Retry-After
	cause  error

	required *requirement // of forbidden
}

// Error implements error.
func (p *problem) Error() string {
	text := p.code + ": " + p.detail
	if p.cause != nil {
		text += " (" + p.cause.Error() + ")"
	}
	return text
}

// refuse returns a problem.
func refuse(t problemType, format string, args ...any) *problem {
	return &problem{problemType: t, detail: fmt.Sprintf(format, args...)}
}

// away returns the problem of a call that was not carried out because it needs a cell that cannot be used. detail is a sentence about the call.
func away(number int, detail string, cause error) *problem {
	return &problem{problemType: cellUnavailable, detail: detail, cell: &number, retry: 1, cause: cause}
}

// full returns the problem of a call for which there is no room.
func full(detail string) *problem {
	return &problem{problemType: overloaded, detail: detail, retry: 1}
}

// A document is a problem as it goes over the wire.
type document struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Code      string `json:"code"`
	RequestID string `json:"request_id"`
	Cell      *int   `json:"cell,omitempty"`
	Cells     []int  `json:"cells,omitempty"`

	Required *requirement `json:"required,omitempty"`
}

// A requirement is what a caller lacks.
type requirement struct {
	Scope string `json:"scope,omitempty"`
	Queue string `json:"queue,omitempty"`
	Topic string `json:"topic,omitempty"`
}

// document returns p as it goes over the wire.
func (p *problem) document(requestID string) []byte {
	body, err := json.Marshal(document{"urn:queued:problem:" + p.code, p.title, p.status, p.detail, p.code, requestID, p.cell, p.cells, p.required})
	if err != nil {
		panic(err) // strings and integers always encode
	}
	return body
}

// write answers with p.
func (p *problem) write(w http.ResponseWriter, requestID string) {
	body := p.document(requestID)
	h := w.Header()
	if p.retry > 0 {
		h["Retry-After"] = []string{strconv.Itoa(p.retry)}
	}
	if p.code == unauthorizedCert.code {
		h["Www-Authenticate"] = []string{"ClientCertificate"}
	}
	writeOwn(w, requestID, p.status, "application/problem+json", append(body, '\n'))
}

// writeOwn writes an answer of the gateway itself.
func writeOwn(w http.ResponseWriter, requestID string, status int, mediaType string, body []byte) {
	h := w.Header()
	setOwn(h, requestID, mediaType)
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // it has its media type; a client that has gone misses this only
}

// setOwn sets the header of an answer of the gateway itself.
func setOwn(h http.Header, requestID, mediaType string) {
	h["X-Request-Id"] = []string{requestID}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	h["Content-Security-Policy"] = []string{"default-src 'none'; frame-ancestors 'none'"}
	h["Content-Type"] = []string{mediaType}
	h["Cache-Control"] = []string{"no-store"}
}

// An answered is an answer of a cell that the gateway has asked something on behalf of a caller, which is the answer to the caller, too: home's refusal of a
// placement, for instance.
type answered struct {
	status int
	header http.Header
	body   []byte
}

// Error implements error.
func (a *answered) Error() string { return fmt.Sprintf("a cell answered %d", a.status) }

// write answers with a.
func (a *answered) write(w http.ResponseWriter) {
	h := w.Header()
	for _, name := range []string{"X-Request-Id", "X-Content-Type-Options", "Content-Security-Policy", "Content-Type", "Cache-Control", "Www-Authenticate", "Retry-After"} {
		if values := a.header[name]; len(values) > 0 {
			h[name] = values
		}
	}
	h["Content-Length"] = []string{strconv.Itoa(len(a.body))}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) //nolint:gosec // a cell's answer, with its media type
}
