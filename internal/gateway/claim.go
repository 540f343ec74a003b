package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/duration"
	"github.com/queued/queued/internal/rounds"
)

// How long a claim waits at the cell of a queue before the cells that may hold events of it from before are asked again.
const (
	formerEvery   = 2 * time.Second
	unplacedEvery = 15 * time.Second // of a queue that is placed nowhere, whose events from before would be at home
)

// maxWait is for how long a claim may wait, as servers have it.
const maxWait = time.Minute

// maxEmpty is the size of the largest answer that says that there is no event.
const maxEmpty = 64

// A claim is a claim whose queue the gateway has read.
type claim struct {
	queue   string
	body    []byte
	wait    time.Duration
	hasWait bool // else the policy of the queue says how long the claim waits
	begun   time.Time
	rounds  int // that the cells were asked

	acks        *idList       // in body, that are to be done before; nil: there are none, or they are done
	acksRequest *http.Request // the request as it came, of which the acks are parts
	withoutAcks []byte        // the body without them
	acked       []byte        // what the answer begins with, the results of acks that were done: {"acks":[…]; nil: the cell's answer is the whole
	acksMissing []int         // numbers of the cells that have not answered for some of the acks
}

// rest returns for how long the claim still waits.
func (m *claim) rest() time.Duration { return max(0, m.wait-time.Since(m.begun)) }

// chooseClaim reads the queue of a claim. Where it goes is looked at as it is sent, and again when that changes while it waits.
func chooseClaim(g *Gateway, c *call, r *http.Request) error {
	body, err := g.peek(c, r, maxPeekBody)
	if err != nil {
		return err
	}
	var members struct {
		Queue jsontext.Value `json:"queue"`
		Wait  jsontext.Value `json:"wait"`
		Acks  hasElements    `json:"acks"`
	}
	made := &claim{body: body, begun: c.start}
	isReadable := decode(body, &members)
	isText := false
	if isReadable {
		if made.queue, isText = textOf(members.Queue, defaultQueue); isText {
			isReadable = isQueue(made.queue)
		}
	}
	if !isReadable || !isText {
		c.target = g.home() // which says what is wrong
		return nil
	}
	if len(members.Wait) > 0 && members.Wait.Kind() != 'n' {
		text, _ := textOf(members.Wait, "")
		wait, err := duration.Parse(text)
		if err != nil || wait < 0 || wait > maxWait {
			c.target = g.home() // which says what is wrong
			return nil
		}
		made.wait, made.hasWait = wait, true
	}
	claims := body
	if members.Acks {
		if !g.readAcks(r, made) {
			c.target = g.home() // which says what is wrong, before a cell does something with its share
			return nil
		}
		claims = made.withoutAcks
	}
	if len(claims) > maxClaimBody {
		return tooLarge(maxClaimBody)
	}
	c.queue, c.claim = made.queue, made
	c.mayWait = !made.hasWait || made.wait > 0
	return nil
}

// hasElements reports of a member of a JSON object whether it is anything else than an empty list.
type hasElements bool

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (has *hasElements) UnmarshalJSONFrom(in *jsontext.Decoder) error {
	value, err := in.ReadValue()
	*has = err == nil && (value.Kind() != '[' || len(bytes.TrimSpace(value[1:len(value)-1])) > 0)
	return err
}

// readAcks reads the acks in the body of a claim, and reports whether it could.
func (g *Gateway) readAcks(r *http.Request, made *claim) bool {
	acks, isReadable := g.readIDs(r, made.body, "acks", "/ack")
	if !isReadable {
		return false
	}
	made.withoutAcks = append(append([]byte{'{'}, bytes.TrimPrefix(acks.rest, []byte(","))...), '}')
	acks.rest = nil
	made.acks, made.acksRequest = acks, r
	r.Body, r.ContentLength = http.NoBody, 0 // the claim has it, until the acks are done
	return true
}

// answerClaim has a claim answered: by the cell that its queue is placed on; and before, without a wait, by those that may hold events of it from before.
func (g *Gateway) answerClaim(c *call, r *http.Request) (*http.Response, error) {
	limiter := g.claims.Limiter()
	for {
		began := time.Now()
		ctx, cancel := context.WithCancelCause(r.Context())
		end := func() { cancel(nil) }
		stop := g.placements.watch(c.claim.queue, func() { cancel(errMoved) }) // before it is looked up
		resp, again, err := g.claimOnce(c, r.WithContext(ctx))
		stop() // what has begun is not broken off
		if err == nil && !again {
			resp.Body = &endBody{resp.Body, end}
			return resp, nil
		}
		isMoved := errors.Is(context.Cause(ctx), errMoved)
		end()
		if !again && (!isMoved || r.Context().Err() != nil) {
			return nil, err
		}
		if err := limiter.Pause(r.Context(), time.Since(began) < rounds.MinWait); err != nil {
			return nil, err
		}
	}
}

// claimOnce asks the cells once. They are to be asked again if their answers say that there is nothing yet.
//
// It is on the stack while the claim waits, and what it calls before is not: a stack of the next size would be 8 KiB more for each claim.
func (g *Gateway) claimOnce(c *call, r *http.Request) (resp *http.Response, again bool, err error) {
	wait, resp, err := g.claimNow(c, r)
	if resp != nil || err != nil {
		return resp, false, err
	}
	resp, err = g.send(c, c.target, wait.request)
	wait.leave()
	if err == nil && wait.isPart {
		again = isEmptied(resp)
	}
	return resp, again, err
}

// A claimWait is how a claim waits at the target of its call.
type claimWait struct {
	request *http.Request
	isPart  bool   // of the time that the claim waits: then all are asked again
	leave   func() // is to be called once it waits no more
}

// claimNow asks the cells that need no wait, and returns their answer; if they have no event, how the claim waits.
//
//go:noinline
func (g *Gateway) claimNow(c *call, r *http.Request) (*claimWait, *http.Response, error) {
	from, err := g.planClaim(c, r)
	if err != nil {
		return nil, nil, err
	}
	ask := from.before
	if c.claim.rounds++; c.claim.rounds == 1 {
		ask = slices.Concat(ask, from.others)
	} else {
		ask = slices.Concat(ask, from.alone)
	}
	var resp *http.Response
	if len(ask) > 0 {
		resp, err = g.askFormer(c, r, ask)
	}
	var body []byte
	isPart := false
	if resp == nil && err == nil {
		body, isPart, err = c.claim.bodyFor(len(ask) > 0 || len(from.others) > 0, from.every)
	}
	if resp != nil || err != nil {
		from.leave()
		return nil, resp, err
	}
	c.target = from.current
	return &claimWait{withBody(r, body), isPart, from.leave}, nil, nil
}

// isEmptied reports whether the answer to a claim says that there is no event, and closes it then.
func isEmptied(resp *http.Response) bool {
	isEmpty, err := emptyClaim(resp)
	if err != nil || !isEmpty {
		return false
	}
	_ = resp.Body.Close()
	return true
}

// bodyFor returns the body of a claim for the rest of its wait; for a part of that, if there are former cells to be asked again.
func (m *claim) bodyFor(hasFormer bool, every time.Duration) (body []byte, isPart bool, err error) {
	rest := m.rest()
	switch {
	case !m.hasWait: // the policy of the queue says how long
		return m.body, false, nil
	case hasFormer && rest > every:
		rest, isPart = every, true
	case m.wait-rest < time.Second: // it was not asked before
		return m.body, false, nil
	}
	body, err = withMember(m.body, "wait", jsontext.Value(`"`+rest.Round(time.Millisecond).String()+`"`))
	return body, isPart, err
}

// askFormer asks the cells that may hold events from before, without a wait. It returns no answer if they have none.
func (g *Gateway) askFormer(c *call, r *http.Request, before []*cell) (*http.Response, error) {
	body, err := withMember(c.claim.body, "wait", jsontext.Value(`"0s"`))
	if err != nil {
		return nil, err
	}
	for _, at := range before {
		c.target = at
		resp, err := g.send(c, at, withBody(r, body))
		switch {
		case err != nil && r.Context().Err() != nil:
			return nil, err
		case err != nil:
			continue // its events come later; those of the others need not wait for them
		case resp.StatusCode >= http.StatusInternalServerError, resp.StatusCode == http.StatusNotFound:
			_ = resp.Body.Close()
			continue
		}
		isEmpty, err := emptyClaim(resp)
		if err == nil && !isEmpty {
			return resp, nil
		}
		_ = resp.Body.Close()
		if err != nil {
			return nil, away(at.number, "Cell "+at.label+" went away while it answered. The call can be repeated.", err)
		}
	}
	return nil, nil //nolint:nilnil // there is none
}

// planClaim returns where a claim looks now. Its acks are done before, unless its cell alone is asked, once, and all acks are for that cell: then it gets all of the claim. While that waits it
// holds its acks, and they are repeated if the queue is placed elsewhere meanwhile, so acks that are long or cannot be repeated are done before, too.
func (g *Gateway) planClaim(c *call, r *http.Request) (*claimPlan, error) {
	m := c.claim
	if m.acks == nil {
		return g.claimFrom(m.queue)
	}
	if p, _ := g.placements.get(m.queue); p == nil || len(p.Cells) == 1 { // else the cells of a spread queue would have had their turn
		plan, err := g.claimFrom(m.queue)
		if err == nil && plan.isOf(m.acks.only()) && (!c.mayWait || m.acks.isRepeatable && len(m.body) <= maxClaimBody) {
			return plan, nil
		}
		if err == nil {
			plan.leave()
		}
	}
	if err := g.ackBefore(c, r); err != nil {
		return nil, err
	}
	return g.claimFrom(m.queue)
}

// ackBefore does the acks of a claim, as POST /ack does them. What becomes of each is in the answer to the claim, which goes on; unless a cell refuses its share.
func (g *Gateway) ackBefore(c *call, r *http.Request) error {
	m, mayWait := c.claim, c.mayWait
	c.mayWait = false // the acks are calls like others
	all, err := g.askIDs(c, m.acksRequest, m.acks)
	c.mayWait = mayWait
	if err != nil {
		return err
	}
	m.acked, m.acksMissing = all.inMember("acks"), m.acks.shares.missing()
	m.body, m.acks, m.acksRequest = m.withoutAcks, nil, nil
	g.forgetBody(c)
	g.shrinkMemory(c, int64(len(m.acked)-freeAnswer))
	r.Header["Accept"] = []string{"application/json"} // so is an answer with acks, which are put in
	delete(r.Header, "Accept-Encoding")
	return nil
}

// putAcked puts the results of the acks that were done into the answer to the claim, before its events.
func (m *claim) putAcked(c *call, resp *http.Response) {
	if resp.StatusCode != http.StatusOK || m.acked == nil {
		return
	}
	c.missing(m.acksMissing)
	resp.Body = &ackedBody{ReadCloser: resp.Body, front: append(m.acked, ',')}
	if resp.ContentLength >= 0 {
		resp.ContentLength += int64(len(m.acked))
		resp.Header["Content-Length"] = []string{strconv.FormatInt(resp.ContentLength, 10)}
	}
}

// An ackedBody is the answer of a cell to a claim, with the results of acks in front of its members.
type ackedBody struct {
	io.ReadCloser
	front  []byte // what is left of {"acks":[…],
	isOpen bool   // the { of the cell was read
}

var errNotClaimed = errors.New("the answer to a claim is no JSON object")

// Read implements io.Reader.
func (b *ackedBody) Read(p []byte) (int, error) {
	if !b.isOpen {
		var first [1]byte
		if _, err := io.ReadFull(b.ReadCloser, first[:]); err != nil {
			return 0, errors.Join(errNotClaimed, err)
		}
		if first[0] != '{' {
			return 0, errNotClaimed
		}
		b.isOpen = true
	}
	if len(b.front) > 0 {
		n := copy(p, b.front)
		b.front = b.front[n:]
		return n, nil
	}
	return b.ReadCloser.Read(p)
}

// A claimPlan says where a claim looks.
type claimPlan struct {
	before  []*cell // that may hold events from before: they are asked first, each time
	others  []*cell // of a queue that is spread: asked the first time
	alone   []*cell // of these, those that no claim waits at: asked each time
	current *cell   // where it waits
	every   time.Duration
	leave   func() // is to be called once it waits no more
}

// isOf reports whether a claim asks one cell alone, and once.
func (p *claimPlan) isOf(at *cell) bool {
	return p.current == at && len(p.before)+len(p.others) == 0
}

// claimFrom returns where claims of a queue look now: also on cells that hold stray events.
func (g *Gateway) claimFrom(queue string) (*claimPlan, error) {
	plan, err := g.claimPlaced(queue)
	if err != nil {
		return nil, err
	}
	if others := g.straysOf(queue, plan.current, plan.before); len(others) > 0 {
		plan.before, plan.every = append(others, plan.before...), min(plan.every, formerEvery)
	}
	return plan, nil
}

// inserted returns the cells that new events go to, those with an idempotency key included, which stay after a move.
func (p *placement) inserted(now time.Time) cellSet {
	if p.Keys == nil || !p.Keys.Until.After(now) || p.Cells == nil || p.Keys.Cells == nil {
		return p.Cells
	}
	all := append(slices.Clone(p.Cells), p.Keys.Cells...)
	slices.Sort(all)
	return slices.Compact(all)
}

// claimPlaced returns where claims of a queue look because of its placement.
func (g *Gateway) claimPlaced(queue string) (*claimPlan, error) {
	plan := &claimPlan{every: formerEvery, leave: func() {}}
	p, err := g.placed(queue)
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		plan.current, plan.every = g.chooseFor(queue), unplacedEvery // which it will be placed on, most likely
		if plan.current == nil {
			return nil, away(home, "The queue is placed nowhere yet, and no cell can be used. Retry.", nil)
		}
		if plan.current.number != home {
			plan.before = []*cell{g.home()}
		}
		return plan, nil
	}
	set := p.inserted(time.Now())
	if len(set) == 1 {
		plan.before = g.formerOf(p)
		plan.current, err = g.turnCell(queue, p.Cells)
		return plan, err
	}
	cells := g.inTurn(turnOf{queue, false}, set)
	if len(cells) == 0 {
		return nil, g.noneUsable(queue, set)
	}
	plan.before = slices.DeleteFunc(g.formerOf(p), func(at *cell) bool { return slices.Contains(cells, at) })
	var around time.Duration
	plan.current, around, plan.alone = g.waits.enter(queue, cells)
	if plan.every = around; len(plan.before) > 0 {
		plan.every = min(around, formerEvery)
	}
	plan.others = slices.DeleteFunc(cells, func(at *cell) bool { return at == plan.current })
	plan.leave = func() { g.waits.leave(queue, plan.current) }
	return plan, nil
}

// emptyClaim reports whether the answer to a claim says that there is no event. The answer can be read as before.
func emptyClaim(resp *http.Response) (bool, error) {
	if resp.StatusCode != http.StatusOK || resp.ContentLength < 0 || resp.ContentLength > maxEmpty {
		return false, nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxEmpty+1))
	if err != nil {
		return false, err
	}
	resp.Body = &endBody{readCloser{bytes.NewReader(body), resp.Body}, func() {}}
	text := string(bytes.TrimSpace(body))
	return text == `{"events":[]}` || text == `[]`, nil // as CloudEvents
}

// A readCloser reads from one and closes another.
type readCloser struct {
	io.Reader
	io.Closer
}

// An endBody is a body that calls end once it is closed.
type endBody struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (b *endBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
