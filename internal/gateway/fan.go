package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/go-json-experiment/json"
)

// Calls about a whole queue, of which several cells may hold a part. The leading cell decides: it is asked first, with the conditions of the caller, and what it refuses
// is refused. The others follow.

// leadingCell returns the cell of a placement that has the say in what the queue is set to: the first one; home, of a queue that is on all.
func (g *Gateway) leadingCell(p *placement) (*cell, error) {
	if p.Cells == nil {
		return g.home(), nil
	}
	if at := g.cell(p.Cells[0]); at != nil {
		return at, nil
	}
	return nil, g.unknownCell(p.Cells[0])
}

// holdersOf returns the cells that hold a part of a queue, the leading one first: those that it is placed on, its former ones, and those with stray events. isEver: and
// those with its history.
func (g *Gateway) holdersOf(queue string, isEver bool) ([]*cell, error) {
	find := g.cellsOf
	if isEver {
		find = g.cellsEver
	}
	found, err := find(queue)
	if err != nil {
		return nil, err
	}
	lead := g.home()
	if isQueue(queue) {
		p, err := g.placed(queue)
		if p != nil {
			lead, err = g.leadingCell(p)
		}
		if err != nil {
			return nil, err
		}
	}
	cells := []*cell{lead}
	for _, at := range found {
		if !slices.Contains(cells, at) {
			cells = append(cells, at)
		}
	}
	return cells, nil
}

// partWith returns a request to one of several cells with another body, and the conditions of the caller.
func (c *call) partWith(r *http.Request, body []byte) *http.Request {
	part := c.partOf(r, r.Method, r.URL.EscapedPath(), nil, body)
	part.URL.RawQuery = r.URL.RawQuery // cells refuse what is malformed
	if values := r.Header["If-None-Match"]; len(values) > 0 {
		part.Header["If-None-Match"] = values
	}
	return part
}

// withoutConditions removes those of a request.
func withoutConditions(r *http.Request) *http.Request {
	r.Header.Del("If-Match")
	r.Header.Del("If-None-Match")
	return r
}

// setQueue is for calls that change what the queue in the path is set to, its policy or its push.
func setQueue(g *Gateway, c *call, r *http.Request) error { return g.chooseSetting(c, r, false) }

// useAndSetQueue is setQueue for calls that make something of the queue: they place it.
func useAndSetQueue(g *Gateway, c *call, r *http.Request) error { return g.chooseSetting(c, r, true) }

func (g *Gateway) chooseSetting(c *call, r *http.Request, isUse bool) error {
	queue := pathValue(r, "name")
	if c.target = g.home(); !isQueue(queue) {
		return nil
	}
	c.queue = queue
	if isUse {
		if _, err := g.place(c, r, queue); err != nil {
			return err
		}
	}
	cells, err := g.holdersOf(queue, false)
	if err != nil {
		return err
	}
	if c.target = cells[0]; len(cells) == 1 {
		return nil
	}
	body, err := g.peek(c, r, maxPeekBody)
	if err != nil {
		return err
	}
	c.answer = func(r *http.Request) error {
		lead := g.ask(r.Context(), c, cells[0], c.partWith(r, bodyOf(r, body)))
		text, err := g.success(c, lead)
		if err != nil {
			return err
		}
		c.missing(g.setLike(context.WithoutCancel(r.Context()), queue, cells[0], cells[1:]))
		writeAs(c, lead.resp, text)
		return nil
	}
	return nil
}

// bodyOf returns the body of a part of r: nil if r has none.
func bodyOf(r *http.Request, body []byte) []byte {
	if len(body) == 0 && len(r.Header["Content-Type"]) == 0 {
		return nil
	}
	return append([]byte{}, body...)
}

// writeAs answers a call with the answer of a cell, whose body was read or made anew.
func writeAs(c *call, resp *http.Response, body []byte) {
	for _, name := range []string{"Etag", "Location", "Idempotency-Replayed"} {
		if values := resp.Header[name]; len(values) > 0 {
			c.Header()[name] = values
		}
	}
	(&answered{resp.StatusCode, resp.Header, body}).write(c)
}

// chooseAmong sets the target of a call that cells have a part of, the leading one first; if these are several, its answer.
func (g *Gateway) chooseAmong(c *call, r *http.Request, cells []*cell, answer func(*Gateway, *call, *http.Request, []*cell, []byte) error) error {
	if c.target = cells[0]; len(cells) == 1 {
		return nil
	}
	body, err := g.peek(c, r, maxPeekBody)
	if err != nil {
		return err
	}
	c.answer = func(r *http.Request) error { return answer(g, c, r, cells, bodyOf(r, body)) }
	return nil
}

// answerSums answers with the sums of what the cells have done, as numbers in an object.
func (g *Gateway) answerSums(c *call, r *http.Request, cells []*cell, body []byte) error {
	s := sums{c: c}
	if err := g.addSums(&s, g.ask(r.Context(), c, cells[0], c.partWith(r, body))); err != nil {
		return err
	}
	for _, part := range g.askEach(r.Context(), c, cells[1:], func(*cell) *http.Request { return withoutConditions(c.partWith(r, body)) }) {
		if err := g.addSums(&s, part); err != nil && s.err == nil {
			s.err = err
		}
	}
	switch {
	case s.err != nil:
		return s.err
	case s.lead == nil:
		return s.absent // all say so
	}
	text, err := json.Marshal(s.numbers, json.Deterministic(true))
	if err != nil {
		return err
	}
	c.missing(s.missing)
	writeAs(c, s.lead, append(text, '\n'))
	return nil
}

// sums are what cells have done.
type sums struct {
	c       *call
	numbers map[string]int64
	lead    *http.Response // the first success
	absent  error          // that there is no such thing, of the first cell that says so
	missing []int
	err     error // that a cell has refused the call for another reason
}

// addSums adds the answer of a cell. It fails if the cell has refused the call; the leading one, too, if it has not answered.
func (g *Gateway) addSums(s *sums, part *part) error {
	isLead := s.lead == nil && s.absent == nil && len(s.missing) == 0
	text, err := g.success(s.c, part)
	switch {
	case isAnswer(err, http.StatusNotFound):
		if s.absent == nil {
			s.absent = err
		}
		return nil
	case err != nil && isLead:
		return err
	case err != nil:
		if refusalOf(err) != nil {
			return err
		}
		s.missing = append(s.missing, part.at.number)
		return nil
	}
	var numbers map[string]int64
	if err := json.Unmarshal(text, &numbers); err != nil {
		return errors.New("cell " + part.at.label + " has answered something else than numbers")
	}
	if s.lead == nil {
		s.lead, s.numbers = part.resp, map[string]int64{}
	}
	for name, n := range numbers {
		s.numbers[name] += n
	}
	return nil
}

// settingCells bounds how many cells are set at once.
const settingCells = 16

// setLike sets a queue on cells as it is set on the leading one, and returns the numbers of those where that failed: they follow when they can, see keepSet.
func (g *Gateway) setLike(ctx context.Context, queue string, lead *cell, others []*cell) (missing []int) {
	ctx, cancel := context.WithTimeout(ctx, placeTime)
	defer cancel()
	failed := func(at *cell, err error) {
		at.log.Error().Str("queue", queue).Err(err).Msg("the queue could not be set on the cell as it is on others; it is when the cell can be used")
		at.behind.add(queue, true)
		missing = append(missing, at.number)
	}
	err := g.eachCopy(ctx, lead, queue, func(now []byte) error {
		missing = nil
		var mu sync.Mutex
		var setting sync.WaitGroup
		slots := make(chan struct{}, settingCells)
		for _, at := range others {
			slots <- struct{}{}
			setting.Go(func() {
				defer func() { <-slots }()
				err := errAway
				if at.isUp() {
					err = g.setEach(ctx, []*cell{at}, queue, now)
				}
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed(at, err)
				}
			})
		}
		setting.Wait()
		return nil
	})
	if err != nil { // it is not known how the leading one is set
		missing = nil
		for _, at := range others {
			failed(at, err)
		}
	}
	return missing
}
