package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A call that several cells have a part of is answered by the gateway: its chooser sets call.answer, which asks each cell for its part, on behalf of the caller, and makes
// one answer of theirs.

// unavailableHeader names cells whose part is missing from an answer.
const unavailableHeader = "Queued-Unavailable-Cells"

// A part is what one cell answers to its part of a call: resp, whose body is to be closed, or err, which is a *problem, or that of a client that has gone.
type part struct {
	at   *cell
	resp *http.Response
	err  error
}

// notPassed are the fields of a request that are not part of what cells are asked, besides those for one connection: they are for the body that the caller has sent, or for the
// answer as a whole.
var notPassed = []string{
	"Accept-Encoding", "Content-Length", "Content-Encoding", "Expect", "Forwarded", "If-Modified-Since", "If-None-Match", "If-Range", "Range", "X-Forwarded-For",
	"X-Forwarded-Host", "X-Forwarded-Proto",
}

// partOf returns a request that is a part of r: of the same caller, with the same header but for notPassed. The path is as it is escaped in a URL; a body that is nil is
// none.
func (c *call) partOf(r *http.Request, method, path string, query url.Values, body []byte) *http.Request {
	header := r.Header.Clone()
	dropConnectionFields(header)
	for _, name := range notPassed {
		header.Del(name)
	}
	header["X-Request-Id"] = []string{c.id}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		header["X-Forwarded-For"] = []string{host}
	}
	header["X-Forwarded-Host"], header["X-Forwarded-Proto"] = []string{r.Host}, []string{"http"}
	if r.TLS != nil {
		header["X-Forwarded-Proto"] = []string{"https"}
	}
	unescaped, err := url.PathUnescape(path)
	if err != nil {
		unescaped = path // the gateway's own; it is valid
	}
	out := &http.Request{
		Method: method, URL: &url.URL{Path: unescaped, RawPath: path, RawQuery: query.Encode()},
		Header: header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: r.RemoteAddr,
	}
	if body != nil {
		out.Body, out.ContentLength = newBody(body), int64(len(body))
	} else {
		header.Del("Content-Type")
	}
	return out.WithContext(r.Context())
}

// ask sends a part of a call to a cell and returns its answer, whatever the status. No part is a claim.
func (g *Gateway) ask(ctx context.Context, c *call, at *cell, req *http.Request) *part {
	resp, err := g.sendCall(c, at, req.WithContext(ctx)) //nolint:bodyclose // part.close does
	return &part{at, resp, err}
}

// askEach sends parts of a call to cells at once, and returns their answers in the order of the cells, once all have begun to answer. Answers that have come when the
// caller goes are closed.
func (g *Gateway) askEach(ctx context.Context, c *call, cells []*cell, request func(at *cell) *http.Request) []*part {
	parts := make([]*part, len(cells))
	var asking sync.WaitGroup
	for i, at := range cells {
		asking.Go(func() { parts[i] = g.ask(ctx, c, at, request(at)) })
	}
	asking.Wait()
	return parts
}

// close closes the body of the answer, if there is one.
func (p *part) close() {
	if p.resp != nil {
		_ = p.resp.Body.Close()
	}
}

// read reads the answer, of at most limit bytes, which count for the memory of bodies as long as the call goes on, and closes it. It fails with a *problem.
func (g *Gateway) read(c *call, p *part, limit int64) ([]byte, error) {
	defer p.close()
	var body []byte
	for {
		if len(body) == cap(body) {
			grown := min(max(2*int64(cap(body)), 4<<10), limit+1)
			if !g.takeMemory(c, grown-int64(cap(body))) {
				return nil, full("Answers of cells take all the memory that they may in the gateway. Retry.")
			}
			body = append(make([]byte, 0, grown), body...)
		}
		n, err := p.resp.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > limit:
			return nil, &problem{problemType: internalError, detail: "The answer of cell " + p.at.label + " is longer than the gateway takes, which is " + strconv.FormatInt(limit, 10) + " bytes."}
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			return nil, away(p.at.number, "Cell "+p.at.label+" went away while it answered.", err)
		}
	}
}

// success reads the answer of a cell that must be one. Any other is an *answered: the answer to the caller.
func (g *Gateway) success(c *call, p *part) ([]byte, error) {
	if p.err != nil {
		return nil, p.err
	}
	body, err := g.read(c, p, maxOwnAnswer)
	if err == nil && p.resp.StatusCode >= http.StatusMultipleChoices {
		err = &answered{p.resp.StatusCode, p.resp.Header, body}
	}
	return body, err
}

// missing notes that the parts of cells are missing from the answer: in its header. Bodies have unavailable_cells.
func (c *call) missing(numbers []int) {
	if len(numbers) == 0 {
		return
	}
	c.Header().Set(unavailableHeader, strings.Join(textsOf(slices.Compact(slices.Sorted(slices.Values(numbers)))), ", "))
}
