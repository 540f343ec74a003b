// Package problem has the error documents of the API (RFC 9457) and the one table from the errors of the services to them.
package problem

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A Type is a type of problem. Its code is part of the API and never changes: clients branch on it. Status and title belong to it.
type Type struct {
	Status int
	Code   string
	Title  string
}

// The types of problems that the API answers with. api/openapi.yaml lists the same codes.
var (
	InvalidJSON          = Type{400, "invalid_json", "Invalid JSON"}
	InvalidParameter     = Type{400, "invalid_parameter", "Invalid parameter"}
	UnknownParameter     = Type{400, "unknown_parameter", "Unknown parameter"}
	InvalidCursor        = Type{400, "invalid_cursor", "Invalid cursor"}
	InvalidCloudEvent    = Type{400, "invalid_cloudevent", "Invalid CloudEvent"}
	Unauthorized         = Type{401, "unauthorized", "Unauthorized"}
	ClientCertificate    = Type{401, "client_certificate_required", "Client certificate required"}
	KeyExpired           = Type{401, "key_expired", "Key expired"}
	KeyRevoked           = Type{401, "key_revoked", "Key revoked"}
	WebhookRejected      = Type{401, "webhook_rejected", "Webhook rejected"}
	CrossOrigin          = Type{403, "cross_origin", "Cross-origin request refused"}
	Forbidden            = Type{403, "forbidden", "Forbidden"}
	NotFound             = Type{404, "not_found", "Path not found"}
	EventNotFound        = Type{404, "event_not_found", "Event not found"}
	RawBodyNotFound      = Type{404, "raw_body_not_found", "Raw body not found"}
	ScheduleNotFound     = Type{404, "schedule_not_found", "Schedule not found"}
	OwnerNotFound        = Type{404, "owner_not_found", "Owner not found"}
	PositionNotFound     = Type{404, "position_not_found", "Position not found"}
	SubscriptionNotFound = Type{404, "subscription_not_found", "Subscription not found"}
	FilterNotFound       = Type{404, "filter_not_found", "Filter not found"}
	RedriveNotFound      = Type{404, "redrive_not_found", "Redrive not found"}
	QueueNotFound        = Type{404, "queue_not_found", "Queue not found"}
	QueueNotDeclared     = Type{404, "queue_not_declared", "Queue not declared"}
	CellNotFound         = Type{404, "cell_not_found", "Cell not found"}
	PlacementNotFound    = Type{404, "placement_not_found", "Placement not found"}
	PushNotFound         = Type{404, "push_not_found", "Push not found"}
	KeyNotFound          = Type{404, "key_not_found", "Key not found"}
	SourceNotFound       = Type{404, "source_not_found", "Source not found"}
	MethodNotAllowed     = Type{405, "method_not_allowed", "Method not allowed"}
	LeaseLost            = Type{409, "lease_lost", "Lease lost"}
	EventLeased          = Type{409, "event_leased", "Event leased"}
	EventEnded           = Type{409, "event_ended", "Event ended"}
	EventRequeued        = Type{409, "event_requeued", "Event requeued"}
	CursorLost           = Type{409, "cursor_lost", "Cursor lost"}
	WrongDelivery        = Type{409, "wrong_delivery", "Wrong delivery"}
	ScheduleEnded        = Type{409, "schedule_ended", "Schedule ended"}
	RedriveEnded         = Type{409, "redrive_ended", "Redrive ended"}
	TooManyRedrives      = Type{409, "too_many_redrives", "Too many redrives"}
	LastAdminKey         = Type{409, "last_admin_key", "Last admin key"}
	KeyEnded             = Type{409, "key_ended", "Key ended"}
	QueueNotEmpty        = Type{409, "queue_not_empty", "Queue not empty"}
	CellInUse            = Type{409, "cell_in_use", "Cell in use"}
	QueueInUse           = Type{409, "queue_in_use", "Queue in use"}
	QueueLeased          = Type{409, "queue_leased", "Queue has leased events"}
	NotHome              = Type{409, "not_home", "Not home"}
	PreconditionFailed   = Type{412, "precondition_failed", "Precondition failed"}
	BodyTooLarge         = Type{413, "body_too_large", "Body too large"}
	UnsupportedMediaType = Type{415, "unsupported_media_type", "Unsupported media type"}
	HostNotAllowed       = Type{421, "host_not_allowed", "Host not allowed"}
	ValidationFailed     = Type{422, "validation_failed", "Validation failed"}
	Unrepresentable      = Type{422, "unrepresentable", "Value not representable in PostgreSQL"}
	TooDeep              = Type{422, "too_deep", "JSON nested too deeply"}
	BatchTooLarge        = Type{422, "batch_too_large", "Batch too large"}
	KeyReused            = Type{422, "idempotency_key_reused", "Idempotency key reused"}
	DeadLetterChain      = Type{422, "dead_letter_chain", "Dead-letter chain"}
	FilterRefused        = Type{422, "filter_refused", "Filter refused"}
	RateLimited          = Type{429, "rate_limited", "Rate limited"}
	ClientGone           = Type{499, "client_gone", "Client gone"} // in the log only: the client has closed the connection
	Internal             = Type{500, "internal", "Internal error"}
	QueryTimeout         = Type{503, "query_timeout", "Query timeout"}
	DatabaseUnavailable  = Type{503, "database_unavailable", "Database unavailable"}
	Overloaded           = Type{503, "overloaded", "Server overloaded"}
	Locked               = Type{503, "locked", "Locked by another transaction"}
	IDsExhausted         = Type{503, "ids_exhausted", "Ids exhausted"}
	SourcePaused         = Type{503, "source_paused", "Source paused"}
	SealingUnavailable   = Type{503, "sealing_unavailable", "Sealing unavailable"}
	KeyLeft              = Type{503, "key_left", "Key left to another cell"}
	NotReady             = Type{503, "not_ready", "Server not ready"}
)

// MaxFieldErrors is how many bad fields one problem lists.
const MaxFieldErrors = 20

// A FieldError is one bad field. Pointer says where it is: "#/a/b" in the body, "?name" for a query parameter, "{name}" for a part of
// the path, and the name itself for a header field.
type FieldError struct {
	Pointer string `json:"pointer"`
	Detail  string `json:"detail"`
}

// Required is the right that a caller lacks for a call: a scope, or the use of a queue or of topics.
type Required struct {
	Scope string `json:"scope,omitempty"`
	Queue string `json:"queue,omitempty"` // "*": of all
	Topic string `json:"topic,omitempty"` // "**": of all
}

// A Problem is an answer other than success: the error of a caller that knows the text for the client.
type Problem struct {
	Type     Type
	Detail   string
	Errors   []FieldError
	Required *Required   // of Forbidden
	Header   http.Header // further header fields of the answer, usually nil
}

// New returns a problem whose detail is text.
func New(t Type, text string) *Problem { return &Problem{Type: t, Detail: text} }

// With adds a field to the header of the answer and returns p.
func (p *Problem) With(name string, values ...string) *Problem {
	if p.Header == nil {
		p.Header = make(http.Header)
	}
	p.Header[name] = values
	return p
}

// InFields returns the problem with the bad fields of a request, of which there is at least one; its detail is the first of them.
func InFields(t Type, bad ...FieldError) *Problem {
	detail := bad[0].Pointer + ": " + bad[0].Detail
	if more := len(bad) - 1; more > 0 {
		detail += fmt.Sprintf("; %d more in errors", more)
	}
	return &Problem{Type: t, Detail: detail + ".", Errors: bad}
}

// InField returns the problem with one bad field.
func InField(t Type, pointer, detail string) *Problem {
	return InFields(t, FieldError{Pointer: pointer, Detail: detail})
}

// Fields gathers the bad fields of a request, so that one answer names all of them, up to MaxFieldErrors.
type Fields []FieldError

// Add adds a field, unless detail is empty.
func (bad *Fields) Add(pointer, detail string) {
	if detail != "" && len(*bad) < MaxFieldErrors {
		*bad = append(*bad, FieldError{Pointer: pointer, Detail: detail})
	}
}

// Err returns the problem with the fields, or nil when there are none.
func (bad Fields) Err(t Type) error {
	if len(bad) == 0 {
		return nil
	}
	return InFields(t, bad...)
}

// Error implements error.
func (p *Problem) Error() string { return p.Type.Code + ": " + p.Detail }

// A Document is a problem as it goes over the wire.
type Document struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail"`
	Code      string       `json:"code"`
	RequestID string       `json:"request_id"`
	Errors    []FieldError `json:"errors,omitempty"`
	Required  *Required    `json:"required,omitempty"`
}

// Document returns p as it goes over the wire.
func (p *Problem) Document(requestID string) Document {
	return Document{
		Type:      "urn:queued:problem:" + p.Type.Code,
		Title:     p.Type.Title,
		Status:    p.Type.Status,
		Detail:    p.Detail,
		Code:      p.Type.Code,
		RequestID: requestID,
		Errors:    p.Errors[:min(len(p.Errors), MaxFieldErrors)],
		Required:  p.Required,
	}
}

// Write answers with p.
func (p *Problem) Write(w http.ResponseWriter, requestID string) {
	body, err := json.Marshal(p.Document(requestID), jsontext.AllowInvalidUTF8(true)) // details quote values of the request
	if err != nil {
		panic(err) // strings and an integer always encode
	}
	body = append(body, '\n')
	h := w.Header()
	for name, values := range p.Header {
		h[name] = values
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Type.Status)
	_, _ = w.Write(body) // a client that has gone misses an error only
}
