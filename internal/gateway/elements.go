package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Bodies with a list of elements, each of which may be for another cell, and the answers to them, which have a result for each element.

// maxElements is how many elements a list has at most: the most that servers take. They refuse a longer one, which the gateway must not divide into shorter ones.
const maxElements = 1000

// Sizes of answers with a result for each element, in bytes.
const (
	resultSize    = 1 << 10  // that is set aside for a result, in cells' answers and in the gateway's
	maxResultSize = 4 << 10  // that a result may have on the average
	maxRestSize   = 64 << 10 // that an answer may have besides
)

// A listBody is a JSON object with a list in one of its members; cells get it in the member events.
type listBody struct {
	elements []jsontext.Value // as they came, in the body
	rest     []byte           // the other members as they came, each after a comma
}

// parseList reads the body of a request with a list in a member. It reports whether it could: what it cannot read, no cell takes, and any of them says what is wrong with it.
func parseList(body []byte, member string) (*listBody, bool) {
	list := new(listBody)
	in := jsontext.NewDecoder(bytes.NewBuffer(body)) // which it reads without a copy
	if token, err := in.ReadToken(); err != nil || token.Kind() != '{' {
		return nil, false
	}
	isThere := false
	for in.PeekKind() == '"' {
		token, err := in.ReadToken()
		if err != nil {
			return nil, false
		}
		if name := token.String(); name != member {
			quoted, _ := jsontext.AppendQuote(append(list.rest, ','), name) // it was valid when it was read
			value, err := in.ReadValue()
			if err != nil {
				return nil, false
			}
			list.rest = append(append(quoted, ':'), value...)
			continue
		}
		if isThere = list.read(in, body); !isThere {
			return nil, false
		}
	}
	if token, err := in.ReadToken(); err != nil || token.Kind() != '}' {
		return nil, false
	}
	_, err := in.ReadToken()
	return list, isThere && len(list.elements) > 0 && errors.Is(err, io.EOF)
}

// read reads the elements of the list that is next in body, and reports whether it could.
func (l *listBody) read(in *jsontext.Decoder, body []byte) bool {
	if token, err := in.ReadToken(); err != nil || token.Kind() != '[' {
		return false
	}
	for in.PeekKind() == '{' {
		value, err := in.ReadValue()
		if err != nil || len(l.elements) == maxElements {
			return false
		}
		end := in.InputOffset()
		l.elements = append(l.elements, jsontext.Value(body[end-int64(len(value)):end]))
	}
	token, err := in.ReadToken()
	return err == nil && token.Kind() == ']'
}

// size returns how long the body with some of the elements is.
func (l *listBody) size(elements []int) int {
	size := len(`{"events":[]}`) + len(l.rest)
	for _, i := range elements {
		size += len(l.elements[i]) + 1
	}
	return size
}

// with returns the body with some of the elements.
func (l *listBody) with(elements []int) []byte {
	body := l.appendTo(append(make([]byte, 0, l.size(elements)), `{"events":`...), elements)
	return append(append(body, l.rest...), '}')
}

// appendTo appends the list of some of the elements.
func (l *listBody) appendTo(body []byte, elements []int) []byte {
	body = append(body, '[')
	for n, i := range elements {
		if n > 0 {
			body = append(body, ',')
		}
		body = append(body, l.elements[i]...)
	}
	return append(body, ']')
}

// A share is the elements of a list that one cell gets, by their places in it.
type share struct {
	at        *cell
	elements  []int
	isMissing bool // the cell has not answered for some of them
}

// shares are those of a list, by their cells in the order in which they come first.
type shares []*share

// add adds an element to the share of a cell.
func (s *shares) add(at *cell, element int) {
	for _, one := range *s {
		if one.at == at {
			one.elements = append(one.elements, element)
			return
		}
	}
	*s = append(*s, &share{at: at, elements: []int{element}})
}

// of returns the share of a cell.
func (s shares) of(at *cell) *share {
	return s[slices.IndexFunc(s, func(one *share) bool { return one.at == at })]
}

// cells returns those that have a share.
func (s shares) cells() []*cell {
	cells := make([]*cell, len(s))
	for i, one := range s {
		cells[i] = one.at
	}
	return cells
}

// A failedResult is the result of an element that a cell, or the gateway, has not carried out.
type failedResult struct {
	ID     json.RawMessage `json:"id,omitempty"` // of the event that the element is about; empty: a new one
	Status int             `json:"status"`
	Code   string          `json:"code"`
	Detail string          `json:"detail,omitempty"`
	Cell   *int            `json:"cell,omitempty"`
}

// failureOf returns the result of an element whose call has failed with err, a *problem or an *answered, at a cell; nil: at none.
func failureOf(err error, at *cell) failedResult {
	if p, ok := errors.AsType[*problem](err); ok {
		return failedResult{Status: p.status, Code: p.code, Detail: p.detail, Cell: p.cell}
	}
	whole, ok := errors.AsType[*answered](err)
	if !ok {
		return failedResult{Status: internalError.status, Code: internalError.code, Detail: "The gateway's log has the cause."}
	}
	result := failedResult{Status: whole.status}
	var said struct{ Code, Detail string }
	if json.Unmarshal(whole.body, &said) == nil && said.Code != "" {
		result.Code, result.Detail = said.Code, said.Detail
	} else {
		result.Code = internalError.code
	}
	if at != nil && whole.status >= http.StatusInternalServerError {
		result.Cell = &at.number
	}
	return result
}

// results are those of a list, in its order.
type results []json.RawMessage

// set sets the results of elements to a failure. of returns what is of one of them; nil: nothing is.
func (rs results) set(elements []int, failed failedResult, of func(element int) json.RawMessage) {
	for _, i := range elements {
		if of != nil {
			failed.ID = of(i)
		}
		text, err := json.Marshal(failed)
		if err != nil {
			panic(err) // strings and numbers always encode, and ids were read
		}
		rs[i] = text
	}
}

// put sets the results of elements to those that their cell has answered.
func (rs results) put(elements []int, answer []json.RawMessage) {
	for n, i := range elements {
		rs[i] = answer[n]
	}
}

// answer answers a call with results, status 200.
func (rs results) answer(c *call) {
	writeOwn(c, c.id, http.StatusOK, "application/json", append(rs.inMember("results"), "}\n"...))
}

// inMember returns the beginning of a JSON object whose first member is the results.
func (rs results) inMember(name string) []byte {
	size := len(`{"":[]}`) + len(name) + 1
	for _, one := range rs {
		size += len(one) + 1
	}
	body := append(append(append(make([]byte, 0, size), `{"`...), name...), `":[`...)
	for i, one := range rs {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, one...)
	}
	return append(body, ']')
}

// readResults reads the results in the answer of a cell to n elements. It fails with a *problem, or with an *answered if the cell has refused the call or failed; for what
// it reads room was set aside.
func readResults(p *part, n int) ([]json.RawMessage, error) {
	if p.err != nil {
		return nil, p.err
	}
	defer p.close()
	limit := int64(maxRestSize + n*maxResultSize)
	body, err := io.ReadAll(io.LimitReader(p.resp.Body, limit+1))
	if err == nil && p.resp.StatusCode >= http.StatusBadRequest {
		return nil, &answered{p.resp.StatusCode, p.resp.Header, body}
	}
	var said struct {
		Results []json.RawMessage `json:"results"`
	}
	if err == nil && int64(len(body)) <= limit && json.Unmarshal(body, &said) == nil && len(said.Results) == n {
		return said.Results, nil
	}
	unknown := refuse(outcomeUnknown, "Cell %s has not answered in full. The call has most likely taken effect.", p.at.label)
	unknown.cell, unknown.cause = &p.at.number, err
	return nil, unknown
}

// pointerOf finds the place of an element in a pointer of a problem, "#/events/7/queue" or "#/7/source", and in its detail, which begins with one.
var pointerOf = regexp.MustCompile(`^(#/(?:events/)?)([0-9]+)\b`)

// pointTo has the problem with a share say where its elements are in the list that the caller has sent, in a member of the body.
func (s *share) pointTo(refused *answered, member string) *answered {
	var doc map[string]json.RawMessage
	var detail string
	var fields []struct {
		Pointer string `json:"pointer"`
		Detail  string `json:"detail"`
	}
	if json.Unmarshal(refused.body, &doc) != nil || json.Unmarshal(doc["detail"], &detail) != nil || json.Unmarshal(doc["errors"], &fields) != nil {
		return refused
	}
	for i := range fields {
		fields[i].Pointer = s.inList(fields[i].Pointer, member)
	}
	var err error
	if doc["errors"], err = json.Marshal(fields); err != nil {
		return refused
	}
	if doc["detail"], err = json.Marshal(s.inList(detail, member)); err != nil {
		return refused
	}
	body, err := json.Marshal(doc)
	if err != nil {
		return refused
	}
	return &answered{refused.status, refused.header, append(body, '\n')}
}

// inList returns a text that begins with the place of an element in the share, with its place in the list in a member.
func (s *share) inList(text, member string) string {
	if found := pointerOf.FindStringSubmatch(text); found != nil {
		if n, err := strconv.Atoi(found[2]); err == nil && n < len(s.elements) {
			text = found[1] + strconv.Itoa(s.elements[n]) + text[len(found[0]):]
		}
	}
	if rest, isOfList := strings.CutPrefix(text, "#/events"); isOfList && (rest == "" || rest[0] == '/' || rest[0] == ':') {
		return "#/" + member + rest
	}
	return text
}

// numbers returns those of the cells, in order.
func (s shares) numbers() []int {
	numbers := make([]int, len(s))
	for i, one := range s {
		numbers[i] = one.at.number
	}
	slices.Sort(numbers)
	return numbers
}

// missing returns the numbers of the cells that have not answered for some of their elements.
func (s shares) missing() []int {
	return slices.DeleteFunc(slices.Clone(s), func(one *share) bool { return !one.isMissing }).numbers()
}

// listNumbers writes numbers as a sentence has them: "0, 2 and 5".
func listNumbers(numbers []int) string {
	texts := textsOf(numbers)
	if len(texts) < 2 {
		return strings.Join(texts, "")
	}
	return strings.Join(texts[:len(texts)-1], ", ") + " and " + texts[len(texts)-1]
}

// textsOf writes numbers.
func textsOf(numbers []int) []string {
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.Itoa(n)
	}
	return texts
}
