package gateway

import (
	"bytes"
	"errors"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/body"
)

// Every body is read before its call takes a place at a cell, so that nobody holds places with bodies that come slowly. How long they may be, in bytes, besides Config.MaxBody.
const (
	maxClaimBody = 128 << 10 // of a claim: a thousand ids to leave out, and a hundred types
	maxPeekBody  = 1 << 20   // of calls whose cell the body says, and of a claim with its acks, as servers take it unless they are set otherwise
	freeAnswer   = 4 << 10   // of an answer to a claim that is remembered, which does not count
)

// peek reads the body of r, which is passed on later as it is. It fails beyond limit. Bodies that come slowly give way to others, as at a server, and those of callers whom home does not know do so sooner.
func (g *Gateway) peek(c *call, r *http.Request, limit int64) ([]byte, error) {
	if c.isRead && int64(len(c.body)) > limit {
		return nil, tooLarge(limit)
	}
	if c.isRead || r.Body == nil || r.ContentLength == 0 {
		return c.body, nil
	}
	read := c.hold.ReadUnverified
	if c.isKnown {
		read = c.hold.Read
	}
	text, err := read(g.budget, c, r, limit)
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, tooLarge(limit)
	case errors.Is(err, body.ErrFull), errors.Is(err, body.ErrTooSlow):
		return nil, noMemory()
	case err != nil:
		return nil, cutOff(err)
	}
	if !g.shares.take(c.holder, int64(len(text))) {
		return nil, noMemory()
	}
	c.shared = int64(len(text))
	r.Body, r.ContentLength, r.TransferEncoding = newBody(text), int64(len(text)), nil
	r.Header.Del("Expect") // it was answered
	c.body, c.isRead = text, true
	return text, nil
}

// A wholeBody is a body that was read. It can be read again.
type wholeBody struct {
	*bytes.Reader
	text []byte
}

func newBody(text []byte) *wholeBody { return &wholeBody{bytes.NewReader(text), text} }

// Close implements io.Closer.
func (*wholeBody) Close() error { return nil }

// forgetBody says that nothing uses the body of the request of c any more.
func (g *Gateway) forgetBody(c *call) {
	if c.shared > 0 {
		g.shares.give(c.holder, c.shared)
		c.shared = 0
	}
	c.hold.Release() // after the share, so that shares never come to more than the budget
}

// takeMemory takes n more bytes for answers of cells to parts of c.
func (g *Gateway) takeMemory(c *call, n int64) bool {
	if !g.answers.take(c.holder, n) {
		return false
	}
	c.held.Add(n)
	return true
}

// shrinkMemory gives back what c has taken beyond n. Nothing else takes for c meanwhile.
func (g *Gateway) shrinkMemory(c *call, n int64) {
	if more := c.held.Load() - max(n, 0); more > 0 {
		c.held.Add(-more)
		g.answers.give(c.holder, more)
	}
}

// releaseMemory gives back what c has taken.
func (g *Gateway) releaseMemory(c *call) {
	g.forgetBody(c)
	if n := c.held.Swap(0); n > 0 {
		g.answers.give(c.holder, n)
	}
}

// tooLarge returns the problem with a body of more bytes than the gateway reads.
func tooLarge(limit int64) error {
	return refuse(bodyTooLarge, "The body must be at most %d bytes long: the gateway reads it before the call takes a place at its cell. Calls of any kind are bounded by QUEUED_MAX_BODY of the gateway.", limit)
}

// noMemory returns the problem of a call that there is no room for.
func noMemory() error {
	return full("Bodies take all the memory that they may in the gateway, in all or of this caller, and those that come slowly give way. Nothing was done; retry.")
}

// cutOff returns the problem with a body that did not arrive.
func cutOff(err error) error {
	return &problem{problemType: invalidBody, detail: "The body did not arrive in full: it was cut off, or took too long.", cause: err}
}

// withBody returns r with another body.
func withBody(r *http.Request, body []byte) *http.Request {
	other := new(http.Request)
	*other = *r
	other.Body, other.ContentLength = newBody(body), int64(len(body))
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
