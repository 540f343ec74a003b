package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"time"

	"github.com/queued/queued/internal/failure"
)

// The answer to a claim that does not reach its client has leases that nobody knows of. A server that cannot write such an answer releases them, and so does the gateway: it keeps
// the ids and the receipts of the answer as that goes by, and releases them on their cell when the client has not got all of it.

// How leases are given back.
const (
	releaseTime  = 10 * time.Second // that it may take, and that the rest of an answer may take to come
	releasePause = 100 * time.Millisecond
	releaseSize  = 100 // events of a call
	maxReceipt   = 256 // of a receipt, or an id, as servers take them
)

// leases are those in the answer of a cell to a claim.
type leases struct {
	at   *cell
	from http.Header // who has claimed, and gives back
	scan leaseScanner
	kept []byte // {"id":…,"receipt":…} of each, a line each
	held int    // bytes of kept that count for the memory of bodies
	call *call
	g    *Gateway

	isForgotten bool // there was no room for more: these leases end by themselves
}

// add keeps a lease.
func (l *leases) add(id, receipt []byte) {
	size := len(l.kept) + len(`{"id":,"receipt":""}`) + len(id) + len(receipt) + 1
	if size > cap(l.kept) && !l.isForgotten {
		grown := max(2*cap(l.kept), size, 256)
		if more := grown - freeAnswer - l.held; more > 0 {
			l.isForgotten = !l.g.takeMemory(l.call, int64(more))
			l.held += more
		}
		if !l.isForgotten {
			l.kept = append(make([]byte, 0, grown), l.kept...)
		}
	}
	if l.isForgotten {
		return
	}
	l.kept = append(append(l.kept, `{"id":`...), id...)
	l.kept = append(append(l.kept, `,"receipt":"`...), receipt...)
	l.kept = append(l.kept, "\"}\n"...)
}

// A claimBody is the answer to a claim on its way: it keeps the leases in it.
type claimBody struct {
	io.ReadCloser
	leases *leases
	isRead bool // to its end
}

// Read implements io.Reader.
func (b *claimBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.leases.scan.scan(p[:n], b.leases.add)
	b.isRead = b.isRead || err != nil
	return n, err
}

// Close implements io.Closer. It reads what is left first, as its leases have to be known when the client takes no more.
func (b *claimBody) Close() error {
	if !b.isRead {
		late := time.AfterFunc(releaseTime, func() { _ = b.ReadCloser.Close() })
		_, _ = io.Copy(io.Discard, struct{ io.Reader }{b})
		late.Stop()
	}
	return b.ReadCloser.Close()
}

// watchLeases has the leases in the answer to a claim be kept.
func (g *Gateway) watchLeases(c *call, at *cell, resp *http.Response) {
	if resp.StatusCode != http.StatusOK {
		c.leases = nil
		return
	}
	c.leases = &leases{at: at, from: callerHeader(resp.Request), call: c, g: g}
	resp.Body = &claimBody{ReadCloser: resp.Body, leases: c.leases}
}

// pass has a request answered by a cell. The leases of a claim whose answer has not reached its client are given back.
func (g *Gateway) pass(c *call, r *http.Request) {
	if c.route == nil || !c.route.claims {
		g.proxy.ServeHTTP(c, r)
		return
	}
	isPassed := false
	defer g.settleLeases(c, r, &isPassed)
	g.proxy.ServeHTTP(c, r)
	isPassed = true
}

// settleLeases gives back the leases of a claim unless its client has got the answer.
func (g *Gateway) settleLeases(c *call, r *http.Request, isPassed *bool) {
	if !*isPassed && c.writeErr == nil && c.status == http.StatusOK {
		c.writeErr = errBrokenOff
	}
	if l := c.leases; l != nil && (!*isPassed || c.writeErr != nil) {
		g.giveBack(r.Context(), l)
	}
}

// errBrokenOff is why a client has not got an answer that it could have taken.
var errBrokenOff = errors.New("the cell broke its answer off")

// giveBack releases leases on their cell, of events that nobody got: their attempts do not count.
func (g *Gateway) giveBack(ctx context.Context, l *leases) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	lines := bytes.Split(bytes.TrimSuffix(l.kept, []byte("\n")), []byte("\n"))
	var err error
	for len(lines) > 0 && len(l.kept) > 0 {
		n := min(len(lines), releaseSize)
		err = errors.Join(err, g.release(ctx, l, lines[:n]))
		lines = lines[n:]
	}
	if l.isForgotten {
		err = errors.Join(err, errors.New("bodies take all the memory that they may"))
	}
	if err != nil {
		l.at.log.Error().Func(failure.Of(err)).Str("request_id", l.call.id).Msg("leases of a claim that its client never received could not be released; they end by themselves")
	}
}

// release releases leases with one call, or with several if the cell takes fewer at a time.
func (g *Gateway) release(ctx context.Context, l *leases, lines [][]byte) error {
	body := append(append([]byte(`{"events":[`), bytes.Join(lines, []byte(","))...), "]}"...)
	for {
		header := maps.Clone(l.from)
		header["Content-Type"] = []string{"application/json"}
		err := l.at.do(ctx, http.MethodPost, "/release", header, bytes.NewReader(body), nil)
		refused, isAnswered := errors.AsType[*answered](err)
		switch {
		case err == nil:
			l.call.released += len(lines)
			return nil
		case isAnswered && refused.status == http.StatusUnprocessableEntity && len(lines) > 1:
			half := len(lines) / 2
			return errors.Join(g.release(ctx, l, lines[:half]), g.release(ctx, l, lines[half:]))
		case isAnswered && refused.status < http.StatusInternalServerError && refused.status != http.StatusTooManyRequests:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(releasePause):
		}
	}
}

// A leaseScanner finds the leases in the answer to a claim, which comes in pieces: {"events":[{"id":1,"receipt":"…"}]}, or as CloudEvents [{"queuedid":"1","queuedreceipt":"…"}].
type leaseScanner struct {
	depth, events int // of objects and lists around the next byte, and of the members of an event; 0: it is not known yet
	state         scanState
	isName        bool // the next string at the depth of members is the name of one
	member        memberOf
	text          []byte // of the name or value that is being read; empty and not nil
	isTaken       bool   // text is wanted
	id, receipt   []byte
}

type scanState uint8

const (
	outside scanState = iota
	inString
	inEscape
)

// How deep the members of events are.
const (
	eventsInList   = 2
	eventsInMember = 3
)

type memberOf uint8

const (
	otherMember memberOf = iota
	idMember
	receiptMember
)

// scan goes on with the next piece, and calls found with each lease, whose texts are changed later.
func (s *leaseScanner) scan(piece []byte, found func(id, receipt []byte)) {
	for len(piece) > 0 {
		switch s.state {
		case inEscape:
			s.state, s.isTaken = inString, false // no name, id or receipt has one
			piece = piece[1:]
		case inString:
			n := 0
			for n < len(piece) && piece[n] != '"' && piece[n] != '\\' {
				n++
			}
			s.take(piece[:n]...)
			if piece = piece[n:]; len(piece) == 0 {
				return
			}
			if piece[0] == '\\' {
				s.state = inEscape
			} else {
				s.state = outside
				s.endText()
			}
			piece = piece[1:]
		default:
			s.token(piece[0], found)
			piece = piece[1:]
		}
	}
}

// take adds a part of a text that is wanted.
func (s *leaseScanner) take(part ...byte) {
	switch {
	case !s.isTaken:
	case len(s.text)+len(part) > maxReceipt:
		s.isTaken = false
	default:
		s.text = append(s.text, part...)
	}
}

// token goes on with a byte that is in no string.
func (s *leaseScanner) token(c byte, found func(id, receipt []byte)) {
	isAtMember := s.depth == s.events && s.events > 0
	switch c {
	case '"':
		s.state = inString
		s.text, s.isTaken = s.text[:0], isAtMember && (s.isName || s.member != otherMember)
	case '{', '[':
		if s.depth++; s.depth == 1 {
			if s.events = eventsInList; c == '{' {
				s.events = eventsInMember
			}
		}
		if s.depth == s.events {
			s.isName, s.member, s.id, s.receipt = c == '{', otherMember, s.id[:0], s.receipt[:0]
		} else if isAtMember {
			s.member, s.isTaken = otherMember, false // it is neither a text nor a number
		}
	case '}', ']':
		if isAtMember {
			s.endNumber()
			if len(s.id) > 0 && len(s.receipt) > 0 {
				found(s.id, s.receipt)
			}
			s.id, s.receipt = s.id[:0], s.receipt[:0]
		}
		s.depth--
	case ':':
		s.isName = s.isName && !isAtMember
		s.text, s.isTaken = s.text[:0], isAtMember && s.member == idMember
	case ',':
		if isAtMember {
			s.endNumber()
			s.isName = true
		}
	case ' ', '\n', '\r', '\t':
	default: // of a number, or of true, false and null
		s.take(c)
	}
}

// endText is called at the end of a string.
func (s *leaseScanner) endText() {
	isTaken := s.isTaken
	s.isTaken = false
	switch {
	case !isTaken || s.depth != s.events:
	case s.isName:
		id, receipt := "id", "receipt"
		if s.events == eventsInList { // CloudEvents may have such attributes of their own
			id, receipt = "queuedid", "queuedreceipt"
		}
		switch s.member = otherMember; string(s.text) {
		case id:
			s.member = idMember
		case receipt:
			s.member = receiptMember
		}
	case s.member == idMember:
		s.setID()
	case s.member == receiptMember:
		s.receipt = append(s.receipt[:0], s.text...)
	}
}

// endNumber is called where a number may have ended.
func (s *leaseScanner) endNumber() {
	if s.isTaken && s.member == idMember && !s.isName {
		s.setID()
	}
	s.isTaken, s.member = false, otherMember
}

// setID sets the id to the text, if it is a number.
func (s *leaseScanner) setID() {
	for _, c := range s.text {
		if c < '0' || c > '9' {
			return
		}
	}
	s.id = append(s.id[:0], s.text...)
}
