package gateway

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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

// enablePush is for a push of the queue in the path, which each cell has switched off by itself.
func enablePush(g *Gateway, c *call, r *http.Request) error {
	return g.chooseOfQueue(c, r, (*Gateway).answerEach)
}

// countQueue is for calls that change events of the queue in the path and say how many that was.
func countQueue(g *Gateway, c *call, r *http.Request) error {
	return g.chooseOfQueue(c, r, (*Gateway).answerSums)
}

// chooseOfQueue sets the target of a call about the queue in the path; if several cells hold a part of it, its answer.
func (g *Gateway) chooseOfQueue(c *call, r *http.Request, answer func(*Gateway, *call, *http.Request, []*cell, []byte) error) error {
	queue := pathValue(r, "name")
	if c.target = g.home(); !isQueue(queue) {
		return nil
	}
	c.queue = queue
	cells, err := g.holdersOf(queue, false)
	if err != nil {
		return err
	}
	return g.chooseAmong(c, r, cells, answer)
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

// answerEach answers as the leading cell does, and makes the call of the others, too.
func (g *Gateway) answerEach(c *call, r *http.Request, cells []*cell, body []byte) error {
	lead := g.ask(r.Context(), c, cells[0], c.partWith(r, body))
	text, err := g.success(c, lead)
	if err != nil {
		return err
	}
	var missing []int
	for _, part := range g.askEach(r.Context(), c, cells[1:], func(*cell) *http.Request { return withoutConditions(c.partWith(r, body)) }) {
		if part.isAway() {
			missing = append(missing, part.at.number)
		}
		part.close()
	}
	c.missing(missing)
	writeAs(c, lead.resp, text)
	return nil
}

// answerSums answers with the sums of what the cells have done, as numbers in an object. A limit in the body, of how much that is, holds for all of them.
func (g *Gateway) answerSums(c *call, r *http.Request, cells []*cell, body []byte) error {
	s := sums{c: c, limit: bodyLimit(body)}
	lead := g.ask(r.Context(), c, cells[0], c.partWith(r, body))
	if err := g.addSums(&s, lead); err != nil {
		return err
	}
	rest := cells[1:]
	if s.limit < 0 {
		for _, part := range g.askEach(r.Context(), c, rest, func(*cell) *http.Request { return withoutConditions(c.partWith(r, body)) }) {
			if err := g.addSums(&s, part); err != nil && s.err == nil {
				s.err = err
			}
		}
		rest = nil
	}
	for _, at := range rest {
		left := s.limit - s.most()
		if left <= 0 || s.err != nil {
			break
		}
		limited, err := withMember(body, "limit", jsontext.Value(strconv.FormatInt(left, 10)))
		if err != nil {
			return err // the leading cell has read it
		}
		s.err = g.addSums(&s, g.ask(r.Context(), c, at, withoutConditions(c.partWith(r, limited))))
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
	limit   int64 // negative: there is none
	numbers map[string]int64
	lead    *http.Response // the first success
	absent  error          // that there is no such thing, of the first cell that says so
	missing []int
	err     error // that a cell has refused the call for another reason
}

// most returns the greatest of the numbers.
func (s *sums) most() int64 {
	var most int64
	for _, n := range s.numbers {
		most = max(most, n)
	}
	return most
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

// bodyLimit returns the limit in a body; negative if there is none.
func bodyLimit(body []byte) int64 {
	var members struct {
		Limit *int64 `json:"limit"`
	}
	if !decode(body, &members) || members.Limit == nil {
		return -1
	}
	return *members.Limit
}

// chooseMove is for events of a queue that go to another one, which has to be on the same cells.
func chooseMove(g *Gateway, c *call, r *http.Request) error {
	body, err := g.peek(c, r, maxPeekBody)
	if err != nil {
		return err
	}
	if err := countQueue(g, c, r); err != nil || c.queue == "" {
		return err
	}
	var members struct {
		To jsontext.Value `json:"to"`
	}
	if !decode(body, &members) {
		return nil // the leading cell says what is wrong
	}
	to, _ := textOf(members.To, "")
	cells, err := g.holdersOf(c.queue, false)
	if err != nil {
		return err
	}
	return g.checkBeside(c, r, to, cells)
}

// checkBeside makes sure that events can go to a queue on each of cells: it is placed there, too, now if it was not before. To go to another cell they would have to be inserted
// there and removed here at once.
func (g *Gateway) checkBeside(c *call, r *http.Request, queue string, cells []*cell) error {
	if !isQueue(queue) {
		return nil
	}
	if err := g.checkKnownCaller(c, r); err != nil { // strangers are not told where queues are
		return err
	}
	p, err := g.placed(queue)
	if err == nil && p == nil && len(cells) == 1 {
		p, err = g.placeOn(c, r, queue, cells[0].number)
		if c.target = cells[0]; isAnswer(err, http.StatusForbidden) {
			return nil // the cell says so, too, and of which member of the body
		}
	}
	if err != nil {
		return err
	}
	for _, at := range cells {
		if p == nil || !p.Cells.has(at.number) {
			c.answer = nil
			return refuse(notOverCells, "The queue %q is not on cell %d, from which events would go there, and gateways move no events from cell to cell: claim them, insert them there, and ack them; "+
				"or place the queue on cell %[2]d, too.", queue, at.number)
		}
	}
	return nil
}

// inBody is for calls about what the body says: a queue, or all of them.
type inBody struct {
	Queue  jsontext.Value `json:"queue"`
	ID     jsontext.Value `json:"id"`
	To     jsontext.Value `json:"to"`
	Filter struct {
		Queue jsontext.Value `json:"queue"`
	} `json:"filter"`
}

// bodyQueue returns a chooser for calls with a queue in the body, or none, which is for all cells. isEver: it is about history. hasTarget: "to" is another queue, which events
// go to.
func bodyQueue(isEver, hasTarget bool, answer func(*Gateway, *call, *http.Request, []*cell, []byte) error) chooser {
	return func(g *Gateway, c *call, r *http.Request) error {
		body, err := g.peek(c, r, maxPeekBody)
		if err != nil {
			return err
		}
		var members inBody
		if !decode(body, &members) {
			return toHome(g, c, r) // which says what is wrong
		}
		if len(members.ID) > 0 {
			return g.toCellOf(c, string(members.ID))
		}
		queue, isText := textOf(members.Queue, "")
		if queue == "" && isText {
			queue, isText = textOf(members.Filter.Queue, "")
		}
		if !isText || queue != "" && !isQueue(queue) {
			return toHome(g, c, r)
		}
		c.queue = queue
		cells, err := g.holdersOf(queue, isEver)
		if err != nil {
			return err
		}
		if err := g.chooseAmong(c, r, cells, answer); err != nil {
			return err
		}
		to, _ := textOf(members.To, "")
		if !hasTarget || to == originQueue || to == queue { // the last is refused by the cell
			return nil
		}
		return g.checkBeside(c, r, to, cells)
	}
}

// originQueue stands for the queue that each dead letter came from, as the target of a redrive.
const originQueue = "origin"

// requeueLimit is how many events a call requeues that does not say how many, as servers have it.
const requeueLimit = 1000

// answerRequeue is answerSums with the limit of calls that have none.
func (g *Gateway) answerRequeue(c *call, r *http.Request, cells []*cell, body []byte) error {
	var members struct {
		Limit jsontext.Value `json:"limit"`
	}
	if decode(body, &members) && len(members.Limit) == 0 { // what is no limit the leading cell refuses
		limited, err := withMember(body, "limit", jsontext.Value(strconv.Itoa(requeueLimit)))
		if err == nil {
			body = limited
		}
	}
	return g.answerSums(c, r, cells, body)
}

// The lowest and the highest rate of a redrive, in events a second, as servers have them.
const (
	minRedriveRate = 0.01
	maxRedriveRate = 1_000_000
)

// answerRedrive creates a redrive on each cell, and answers with that of the leading one, which has the ids of the others. A rate is divided among them. Under an idempotency
// key the call can be repeated, where a cell was away.
func (g *Gateway) answerRedrive(c *call, r *http.Request, cells []*cell, body []byte) error {
	var members struct {
		Rate   *float64 `json:"rate"`
		DryRun bool     `json:"dry_run"`
	}
	if decode(body, &members) && members.Rate != nil && *members.Rate >= minRedriveRate && *members.Rate <= maxRedriveRate { // another one the leading cell refuses
		rate := *members.Rate / float64(len(cells))
		if rate < minRedriveRate {
			return refuse(validationFailed, "#/rate: is divided among the %d cells that have a part of the queue, each of which makes %v events a second at least: want %v or more. Nothing was done.",
				len(cells), minRedriveRate, float64(len(cells))*minRedriveRate)
		}
		share, err := json.Marshal(rate)
		if err != nil {
			return err
		}
		if body, err = withMember(body, "rate", share); err != nil {
			return err
		}
	}
	first := g.ask(r.Context(), c, cells[0], c.partWith(r, body))
	text, err := g.success(c, first)
	if err != nil {
		return err
	}
	whole, err := parseObject(bytes.TrimSpace(text))
	if err != nil {
		return err
	}
	matched := whole.int("matched")
	isEstimate := string(whole.get("estimate")) == "true"
	others, missing := []int64{}, []int(nil)
	for _, part := range g.askEach(r.Context(), c, cells[1:], func(*cell) *http.Request { return c.partWith(r, body) }) {
		said, err := g.success(c, part)
		other := new(object)
		if err == nil {
			other, err = parseObject(bytes.TrimSpace(said))
		}
		if err != nil {
			part.at.log.Error().Str("queue", c.queue).Err(err).Msg("the redrive could not be created on the cell")
			missing = append(missing, part.at.number)
			continue
		}
		matched += other.int("matched")
		isEstimate = isEstimate || string(other.get("estimate")) == "true"
		others = append(others, other.int("id"))
	}
	if members.DryRun {
		whole.set("matched", jsontext.Value(strconv.FormatInt(matched, 10)))
		whole.set("estimate", jsontext.Value(strconv.FormatBool(isEstimate)))
	} else {
		ids, err := json.Marshal(others)
		if err != nil {
			return err
		}
		whole.set("others", ids)
	}
	c.missing(missing)
	writeAs(c, first.resp, append(whole.appendTo(nil), '\n'))
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
