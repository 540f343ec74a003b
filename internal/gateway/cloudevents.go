package gateway

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/cloudevents"
)

// A CloudEvent has a key, which its source and its id are: in the header, or in a body that is read only where the key decides about the cell.

// chooseCloudEvents is for CloudEvents, with the queue or the topic in the query. It places the queue.
func chooseCloudEvents(g *Gateway, c *call, r *http.Request) error {
	queue := queryOf(r, "queue", defaultQueue)
	if queryOf(r, "topic", "") != "" || !isQueue(queue) { // home says what is wrong
		return toHome(g, c, r)
	}
	c.queue, c.target = queue, g.home()
	p, err := g.place(c, r, queue)
	if err != nil {
		return err
	}
	if now := time.Now(); len(p.keyed(now)) == 1 && len(p.askedAt(now)) == 0 { // whatever the keys are
		return g.toKeyed(c, r, p, insertKey{})
	}
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if media != cloudevents.MediaType && media != cloudevents.BatchMediaType {
		events, _, err := cloudevents.Decode(r.Header, nil, 1)
		if err != nil {
			return toHome(g, c, r) // which says what is wrong
		}
		return g.toKeyed(c, r, p, insertKey{events[0].Key(), events[0].Group()})
	}
	body, err := g.peek(c, r, g.cfg.MaxBody)
	if err != nil {
		return err
	}
	list, keys := readCloudEvents(body, media == cloudevents.BatchMediaType)
	query, err := url.ParseQuery(r.URL.RawQuery)
	if keys == nil || err != nil || len(r.Header["Content-Encoding"]) > 0 {
		return toHome(g, c, r) // which says what is wrong
	}
	if list == nil {
		return g.toKeyed(c, r, p, keys[0])
	}
	cells, errs := g.keyCells(c, r, p, keys)
	var parts shares
	for i, at := range cells {
		if errs[i] != nil {
			return errs[i]
		}
		parts.add(at, i)
	}
	if c.target = parts[0].at; len(parts) > 1 {
		c.target, c.answer = nil, func(r *http.Request) error { return g.answerCloudEvents(c, r, list, query, parts) }
	}
	return nil
}

// toKeyed sets the target to the cell that an insert into a placed queue under a key goes to.
func (g *Gateway) toKeyed(c *call, r *http.Request, p *placement, key insertKey) error {
	cells, errs := g.keyCells(c, r, p, []insertKey{key})
	c.target = cells[0]
	return errs[0]
}

// readCloudEvents returns the keys of the CloudEvents in a body, and if it is a batch the list of them. There are no keys if it cannot be read: then no cell takes it.
func readCloudEvents(body []byte, isBatch bool) (list *listBody, keys []insertKey) {
	if !isBatch {
		key, ok := cloudEventKey(body)
		if !ok {
			return nil, nil
		}
		return nil, []insertKey{key}
	}
	list = new(listBody)
	in := jsontext.NewDecoder(bytes.NewBuffer(body), inData) // which it reads without a copy
	if !list.read(in, body) || len(list.elements) == 0 {
		return nil, nil
	}
	if _, err := in.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, nil
	}
	for _, element := range list.elements {
		key, ok := cloudEventKey(element)
		if !ok {
			return nil, nil
		}
		keys = append(keys, key)
	}
	return list, keys
}

// inData says that objects may have a name twice, as those in data may. Cells refuse attributes that are given twice.
var inData = jsontext.AllowDuplicateNames(true)

// cloudEventKey returns the key of a CloudEvent in JSON.
func cloudEventKey(text []byte) (key insertKey, ok bool) {
	var members struct {
		ID     jsontext.Value `json:"id"`
		Source jsontext.Value `json:"source"`
		Group  jsontext.Value `json:"partitionkey"`
	}
	if json.Unmarshal(text, &members, inData) != nil {
		return key, false
	}
	id, isID := textOf(members.ID, "")
	source, isSource := textOf(members.Source, "")
	return insertKey{cloudevents.KeyOf(source, id), cloudevents.GroupOf(partitionKeyOf(members.Group))}, isID && isSource && id != "" && source != ""
}

// partitionKeyOf returns the text of a partitionkey as cells read it; empty: it has none.
func partitionKeyOf(value jsontext.Value) string {
	switch value.Kind() {
	case '"':
		text, _ := textOf(value, "")
		return text
	case '0', 't', 'f':
		return string(value)
	}
	return ""
}

// answerCloudEvents has each cell insert its share of a batch, and answers with the ids of all events, in their order. Each share is all or nothing. If one fails, that is the answer: what the
// others have inserted is known by its keys when the call is repeated.
func (g *Gateway) answerCloudEvents(c *call, r *http.Request, list *listBody, query url.Values, parts shares) error {
	size := int64(len(list.elements)) * resultSize
	for _, one := range parts {
		size += int64(list.size(one.elements))
	}
	if !g.takeMemory(c, size) { // before anything is done, as what is done has to be answered
		return noMemory()
	}
	answers := g.askEach(r.Context(), c, parts.cells(), func(at *cell) *http.Request {
		return c.partOf(r, http.MethodPost, "/cloudevents", query, list.appendTo(nil, parts.of(at).elements))
	})
	ids := make([]int64, len(list.elements))
	status := http.StatusOK
	var refusal, failure error // the first of each
	for n, one := range parts {
		text, err := g.success(c, answers[n])
		var said struct {
			IDs []int64 `json:"ids"`
		}
		if err == nil && (json.Unmarshal(text, &said) != nil || len(said.IDs) != len(one.elements)) {
			err = errors.New("the answer to a batch of CloudEvents has not an id for each")
		}
		switch whole, isAnswer := errors.AsType[*answered](err); {
		case err == nil:
			for i, element := range one.elements {
				ids[element] = said.IDs[i]
			}
			status = max(status, answers[n].resp.StatusCode)
			continue
		case isAnswer && whole.status < http.StatusInternalServerError:
			if refusal == nil {
				refusal = one.pointTo(whole, "events")
			}
		case failure == nil && isAnswer:
			failure = whole
		case failure == nil:
			failure = away(one.at.number, "Cell "+one.at.label+" has not answered for its events of the batch. What other cells have inserted is known by its sources and ids; repeat the call.", err)
		}
		one.isMissing = refusalOf(err) == nil
	}
	switch {
	case r.Context().Err() != nil:
		return r.Context().Err()
	case refusal != nil:
		return refusal
	case failure != nil:
		c.missing(parts.missing())
		return failure
	}
	body := append(make([]byte, 0, 32+20*len(ids)), `{"ids":[`...)
	for i, id := range ids {
		if i > 0 {
			body = append(body, ',')
		}
		body = strconv.AppendInt(body, id, 10)
	}
	if status == http.StatusOK {
		c.Header().Set("Idempotency-Replayed", "true")
	}
	writeOwn(c, c.id, status, "application/json", append(body, "]}\n"...))
	return nil
}
