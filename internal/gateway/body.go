package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Bodies that have to be read before it is known which cell they are for.
const (
	maxClaimBody = 128 << 10 // of a claim: a thousand ids to leave out, and a hundred types
	maxPeekBody  = 1 << 20   // of other calls, and of a claim with its acks, as servers take it unless they are set otherwise
	freeBody     = 4 << 10   // of a body that does not count for the budget: that of nearly every claim
)

// bodyBudget bounds the memory of bodies that are read.
type bodyBudget struct {
	limit int64
	used  atomic.Int64
}

// take takes n more bytes for c.
func (b *bodyBudget) take(c *call, n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	c.held.Add(n)
	return true
}

// shrink gives back what c has taken beyond n. Nothing else takes for c meanwhile.
func (b *bodyBudget) shrink(c *call, n int64) {
	if more := c.held.Load() - n; more > 0 {
		c.held.Add(-more)
		b.used.Add(-more)
	}
}

// release gives back what c has taken.
func (b *bodyBudget) release(c *call) {
	b.used.Add(-c.held.Swap(0))
}

// peek reads the body of r, which is passed on later as it is. It fails beyond limit.
func (g *Gateway) peek(c *call, r *http.Request, limit int64) ([]byte, error) {
	if r.Body == nil || r.ContentLength == 0 {
		return nil, nil
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	first := int64(512)
	if r.ContentLength > 0 {
		first = min(r.ContentLength+1, freeBody) // one more, so that the end is seen
	}
	longest := limit + 1
	if r.ContentLength > 0 {
		longest = r.ContentLength + 1
	}
	body := make([]byte, 0, first)
	for {
		if len(body) == cap(body) {
			grown := min(max(2*int64(cap(body)), 512), longest)
			if grown > freeBody && !g.bodies.take(c, grown-max(int64(cap(body)), freeBody)) {
				return nil, full("Bodies of requests take all the memory that they may in the gateway. Nothing was done; retry.")
			}
			body = append(make([]byte, 0, grown), body...)
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > limit:
			return nil, tooLarge(limit)
		case errors.Is(err, io.EOF):
			r.Body, r.ContentLength, r.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
			r.Header.Del("Expect") // it was answered
			return body, nil
		case err != nil:
			return nil, cutOff(err)
		}
	}
}

// tooLarge returns the problem with a body of more bytes than the gateway reads.
func tooLarge(limit int64) error {
	return refuse(bodyTooLarge, "The body must be at most %d bytes long: the gateway reads it to find the cell that it is for.", limit)
}

// cutOff returns the problem with a body that did not arrive.
func cutOff(err error) error {
	return &problem{problemType: invalidBody, detail: "The body did not arrive in full: it was cut off, or took too long.", cause: err}
}

// withBody returns r with another body.
func withBody(r *http.Request, body []byte) *http.Request {
	other := new(http.Request)
	*other = *r
	other.Body, other.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return other
}

// decode reads members of the JSON object that a body is into the fields of out, and leaves the others alone. It reports whether it could: what it cannot read, no cell
// can, and any of them says what is wrong with it.
func decode(body []byte, out any) bool {
	body = bytes.TrimSpace(body)
	return len(body) == 0 || body[0] == '{' && json.Unmarshal(body, out) == nil
}

// textOf returns the string that a JSON value is, absent if there is no value. isText is false for anything else.
func textOf(value jsontext.Value, absent string) (text string, isText bool) {
	if len(value) == 0 {
		return absent, true
	}
	if value.Kind() != '"' {
		return "", false
	}
	return text, json.Unmarshal(value, &text) == nil
}

// withMember returns the JSON object body with a member set to a value.
func withMember(body []byte, name string, value jsontext.Value) ([]byte, error) {
	members := map[string]jsontext.Value{}
	if body = bytes.TrimSpace(body); len(body) > 0 {
		if err := json.Unmarshal(body, &members); err != nil {
			return nil, err
		}
	}
	members[name] = value
	return json.Marshal(members)
}

// defaultQueue is the queue of calls that name none.
const defaultQueue = "default"

// isQueue reports whether name can be that of a queue which something goes into. Cells say what is wrong with others.
func isQueue(name string) bool {
	for _, c := range []byte(name) {
		isAllowed := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._:-", c) >= 0
		if !isAllowed {
			return false
		}
	}
	return name != "" && len(name) <= 128 && !strings.HasPrefix(name, "queued.")
}
