package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
)

// maxPart is the length of a part of an answer that is no listing, in bytes.
const maxPart = 16 << 20

// A statedPart is what one cell says.
type statedPart struct {
	at     *cell
	header http.Header
	body   *object
}

// statements are what cells say to a call.
type statements struct {
	parts []statedPart
	away  []int // numbers of the cells whose part is missing
}

// statementsOf asks cells for JSON objects, with another query than the caller's. It fails as answersOf does.
func (g *Gateway) statementsOf(c *call, r *http.Request, cells []*cell, query url.Values) (*statements, error) {
	parts := g.askEach(r.Context(), c, cells, func(*cell) *http.Request {
		req := c.partOf(r, http.MethodGet, r.URL.EscapedPath(), query, nil)
		req.Header["Accept"] = []string{"application/json"}
		return req
	})
	found, err := g.answersOf(c, r, parts)
	if err != nil {
		return nil, err
	}
	said := &statements{away: found.away}
	var failed error
	for _, p := range found.parts {
		if failed != nil {
			p.close()
			continue
		}
		text, err := g.read(c, p, maxPart)
		if err != nil {
			if refused, ok := errors.AsType[*problem](err); !ok || refused.code != cellUnavailable.code {
				failed = err
			}
			said.away = append(said.away, p.at.number)
			continue
		}
		body, err := parseObject(text)
		if err != nil {
			failed = fmt.Errorf("cell %s answered %s %s: %w", p.at.label, r.Method, r.URL.Path, err)
			continue
		}
		said.parts = append(said.parts, statedPart{p.at, p.resp.Header, body})
	}
	if failed == nil && len(said.parts) == 0 && len(said.away) > 0 {
		failed = away(said.away[0], "The cells that have a part of this went away while they answered. Retry.", nil)
	}
	slices.Sort(said.away)
	return said, failed
}

// answerJoined answers with one object that join makes of those that cells say.
func (g *Gateway) answerJoined(c *call, r *http.Request, cells []*cell, query url.Values, join func(parts []statedPart) (*object, error)) error {
	said, err := g.statementsOf(c, r, cells, query)
	if err != nil {
		return err
	}
	joined, err := join(said.parts)
	if err != nil {
		return err
	}
	g.answerObject(c, said.away, joined)
	return nil
}

// answerObject answers with an object, in which the parts of cells are missing.
func (g *Gateway) answerObject(c *call, away []int, body *object) {
	g.metrics.merged.WithLabelValues(c.pattern()).Inc()
	g.metrics.noteMissing(away)
	c.missing(away)
	if len(away) > 0 && body.get("complete") != nil {
		body.set("complete", []byte("false"))
	}
	body.set(unavailableMember, []byte(numbersText(away)))
	writeOwn(c, c.id, http.StatusOK, "application/json", append(body.appendTo(nil), '\n'))
}
