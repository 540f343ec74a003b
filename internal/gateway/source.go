package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxDrained is how much of an answer that is not needed is read all the same, in bytes, so that its connection can be used again.
const maxDrained = 64 << 10

// A source is the part of a listing that one cell has. Its page is read as it comes, one element at a time.
type source struct {
	at     *cell
	place  place // after the elements that were written
	isAway bool  // the cell does not answer, or has broken off
	err    error // why it is away

	body    io.ReadCloser
	dec     *jsontext.Decoder
	elems   elementReader
	head    element // the next one to write, if hasHead
	hasHead bool
	isOpen  bool   // there may be more elements in body
	more    bool   // body has ended, and the cell has more than was asked for
	link    string // the field Link of the answer
	next    string // where the cell goes on after it, as the answer says
	read    int    // elements of body
	again   bool   // it was asked again because it had broken off, and has sent nothing since
	stop    func()
}

// A reading is a listing that is being read.
type reading struct {
	g     *Gateway
	c     *call
	r     *http.Request // the caller's
	list  *listing
	query url.Values // without limit and cursor
	isCE  bool       // as CloudEvents
	names *members
}

// request returns the request for a part of the listing: limit elements from a place on.
func (m *reading) request(from place, limit int) *http.Request {
	query := url.Values{}
	for name, values := range m.query {
		query[name] = values
	}
	query.Set("limit", strconv.Itoa(limit))
	query.Set("cursors", "true")
	if from.cursor != "" {
		query.Set("cursor", from.cursor)
	}
	req := m.c.partOf(m.r, http.MethodGet, m.r.URL.EscapedPath(), query, nil)
	req.Header["Accept"] = []string{"application/json"}
	if m.isCE {
		req.Header["Accept"] = []string{cloudEventBatch}
	}
	return req
}

// open begins to read an answer of the cell: up to its first element.
func (m *reading) open(s *source, p *part) {
	life := s.at.state.Load().life
	body := p.resp.Body
	stop := context.AfterFunc(life, func() { _ = body.Close() }) // a cell that is frozen ends its answer so
	s.body, s.stop = body, func() { stop() }
	s.isOpen, s.more, s.hasHead, s.read, s.link, s.next = true, false, false, 0, p.resp.Header.Get("Link"), ""
	s.dec = jsontext.NewDecoder(body, jsonOptions...)
	if err := m.toList(s); err != nil {
		m.broken(s, err)
		return
	}
	m.advance(s)
}

// toList reads up to the elements.
func (m *reading) toList(s *source) error {
	if m.isCE {
		return expect(s.dec, '[')
	}
	if err := expect(s.dec, '{'); err != nil {
		return err
	}
	for {
		name, err := s.dec.ReadToken()
		switch {
		case err != nil:
			return err
		case name.Kind() != '"':
			return fmt.Errorf("the answer has no %s", m.list.list)
		case name.String() == m.list.list:
			return expect(s.dec, '[')
		}
		if err := s.dec.SkipValue(); err != nil {
			return err
		}
	}
}

func expect(dec *jsontext.Decoder, kind jsontext.Kind) error {
	token, err := dec.ReadToken()
	if err == nil && token.Kind() != kind {
		err = fmt.Errorf("the answer has %s where %s should be", token.Kind(), kind)
	}
	return err
}

// advance reads the next element of a source, which becomes its head. At the end of what the cell has sent there is none: more says whether the cell has some.
func (m *reading) advance(s *source) {
	s.hasHead = false
	if !s.isOpen {
		return
	}
	if s.dec.PeekKind() == ']' {
		more, err := m.end(s)
		if err == nil && more && s.read == 0 && s.next == "" {
			err = errors.New("a page without elements that has another one")
		}
		if err != nil {
			m.broken(s, err)
			return
		}
		if more && s.read == 0 { // it has looked at some that are not listed
			s.place.cursor = s.next
		}
		s.isOpen, s.more = false, more
		s.place.ended = !more
		m.close(s)
		return
	}
	raw, err := s.dec.ReadValue()
	if err == nil {
		s.head, err = s.elems.read(raw, m.names)
	}
	if err == nil && s.head.cursor == "" {
		err = errors.New("an element without a cursor: the cell is of another version")
	}
	if err != nil {
		m.broken(s, err)
		return
	}
	s.read++
	s.hasHead, s.again = true, false
}

// end reads the rest of an answer, and reports whether the cell has more.
func (m *reading) end(s *source) (more bool, err error) {
	if err := expect(s.dec, ']'); err != nil {
		return false, err
	}
	if m.isCE {
		return strings.Contains(s.link, `rel="next"`), atEnd(s.dec)
	}
	for s.dec.PeekKind() == '"' {
		name, err := s.dec.ReadToken()
		if err != nil {
			return false, err
		}
		isNext := name.String() == "next"
		value, err := s.dec.ReadValue()
		if err != nil {
			return false, err
		}
		if isNext {
			var next *string
			if err := json.Unmarshal(value, &next); err != nil {
				return false, err
			}
			if more = next != nil; more {
				s.next = *next
			}
		}
	}
	if err := expect(s.dec, '}'); err != nil {
		return false, err
	}
	return more, atEnd(s.dec)
}

// atEnd makes sure that an answer ends here.
func atEnd(dec *jsontext.Decoder) error {
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.Join(errors.New("the answer goes on after its end"), err)
	}
	return nil
}

// broken notes that an answer has broken off. The cell is asked once more for what was not written, unless it has sent nothing since that was done: while others were
// written, it may have given up one who read nothing.
func (m *reading) broken(s *source, err error) {
	s.isOpen, s.hasHead, s.more = false, false, false
	m.close(s)
	if !s.again && s.at.isUp() && m.r.Context().Err() == nil {
		s.again, s.more = true, true
		return
	}
	s.isAway, s.err = true, err
}

// ask asks the cell for limit elements more.
func (m *reading) ask(s *source, limit int) {
	p := m.g.ask(m.r.Context(), m.c, s.at, m.request(s.place, limit))
	if p.err != nil || p.resp.StatusCode != http.StatusOK {
		s.isAway, s.more, s.err = true, false, p.err
		if p.err == nil {
			s.err = fmt.Errorf("cell %s answered %d in the middle of a listing", s.at.label, p.resp.StatusCode)
		}
		p.close()
		return
	}
	m.open(s, p)
}

// close ends the answer of a source.
func (m *reading) close(s *source) {
	if s.body == nil {
		return
	}
	if s.isOpen {
		_, _ = io.CopyN(io.Discard, s.body, maxDrained)
	}
	s.stop()
	_ = s.body.Close()
	s.body = nil
}
