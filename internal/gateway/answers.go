package gateway

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strconv"
)

// answers are those of several cells to their parts of a call that only reads.
type answers struct {
	parts   []*part // that are there, by the numbers of their cells
	unknown []*cell // that say that they have nothing of what is asked for
	away    []int   // numbers of the cells that did not answer
}

// answersOf returns the answers of cells. It fails if one of them refuses the call, with its answer; if all say that there is no such thing; and if none answers.
func (g *Gateway) answersOf(c *call, r *http.Request, parts []*part) (*answers, error) {
	found := new(answers)
	var refused, unknown *part
	for _, p := range parts {
		switch {
		case p.isAway():
			found.away = append(found.away, p.at.number)
		case p.resp.StatusCode == http.StatusNotFound:
			found.unknown = append(found.unknown, p.at)
			unknown = p
		case p.resp.StatusCode != http.StatusOK:
			refused = p
		default:
			found.parts = append(found.parts, p)
		}
	}
	if refused == nil && unknown != nil && len(found.unknown) == len(parts) {
		refused = unknown
	}
	var err error
	switch {
	case r.Context().Err() != nil:
		err = r.Context().Err()
	case refused != nil:
		_, err = g.success(c, refused)
	case len(parts) > 0 && len(found.away) == len(parts):
		err = g.allAway(c, parts)
	}
	for _, p := range parts {
		if err != nil || !slices.Contains(found.parts, p) {
			p.close()
		}
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// allAway returns the problem of a call that no cell answers. That of a single one is the cell's own.
func (g *Gateway) allAway(c *call, parts []*part) error {
	if len(parts) == 1 {
		_, err := g.success(c, parts[0])
		return err
	}
	text := ""
	for i, p := range parts {
		if own, ok := errors.AsType[*problem](p.err); ok && own.code == notReady.code {
			return own
		}
		if i > 0 {
			text += ", "
		}
		text += strconv.Itoa(p.at.number)
	}
	return away(parts[0].at.number, "None of the cells that have a part of this answers: "+text+". Retry.", parts[0].err)
}

// of returns the answer of a cell, nil if there is none.
func (a *answers) of(at *cell) *part {
	for _, p := range a.parts {
		if p.at == at {
			return p
		}
	}
	return nil
}

// isUnknownTo reports whether a cell has said that it has nothing of what is asked for.
func (a *answers) isUnknownTo(at *cell) bool { return slices.Contains(a.unknown, at) }

// begin begins an answer of the gateway that is written as it comes.
func (c *call) begin(mediaType string) {
	setOwn(c.Header(), c.id, mediaType)
	c.WriteHeader(http.StatusOK)
}

// errClientGone is why an answer ends before its end: its client takes nothing any more.
var errClientGone = errors.New("the client takes nothing of its answer any more")

// clientError returns the error of writing an answer: a *problem that says why it cannot be made, or that the client has gone.
func clientError(err error) error {
	if _, ok := errors.AsType[*problem](err); ok {
		return err
	}
	return errClientGone
}

// A budgetBuffer is an answer that is written once it is whole. It counts for the memory of bodies; Write fails with a *problem when that is full.
type budgetBuffer struct {
	bytes.Buffer
	bodies *bodyBudget
	call   *call
	taken  int
}

// Write implements io.Writer.
func (b *budgetBuffer) Write(text []byte) (int, error) {
	if needed := b.Len() + len(text); needed > b.taken {
		grown := max(2*b.taken, needed, 4<<10)
		if !b.bodies.take(b.call, int64(grown-b.taken)) {
			return 0, full("Answers of cells take all the memory that they may in the gateway. Retry.")
		}
		b.taken = grown
		b.Grow(grown - b.Len())
	}
	return b.Buffer.Write(text)
}
