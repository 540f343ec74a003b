package pages

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/queued/queued/client"
)

// maxDownloadProblem is how much is read of why a download was refused, in bytes.
const maxDownloadProblem = 64 << 10

// A source is the call of the API that a download is the answer of: its path and its query.
type source func(v *visit) (path string, query url.Values, err error)

// answer serves something that is no page. An error of it is a page that says why. parameters are as those of page.
func (h *Handler) answer(serve func(v *visit, w http.ResponseWriter) error, parameters ...string) http.HandlerFunc {
	return exceptLive(func(w http.ResponseWriter, r *http.Request) {
		v, ok := h.visit(w, r)
		if !ok {
			return
		}
		err := v.checkQuery(parameters)
		if err == nil {
			err = serve(v, w)
		}
		if err != nil {
			h.show(w, v, func(*visit) (view, error) { return view{}, err }, nil)
		}
	})
}

// download serves the answer of a call as it comes, with the rights of the viewer. parameters are as those of page.
func (h *Handler) download(from source, parameters ...string) http.HandlerFunc {
	return h.answer(func(v *visit, w http.ResponseWriter) error {
		path, query, err := from(v)
		if err != nil {
			return err
		}
		call := &http.Request{Method: v.r.Method, URL: &url.URL{Path: path, RawQuery: query.Encode()}, Header: http.Header{"Accept": {"*/*"}, "User-Agent": {userAgent}}}
		call = within(call.WithContext(v.r.Context()), v.r)
		answer := &downloadWriter{w: w, header: make(http.Header)}
		h.cfg.Call(answer, call, v.viewer)
		if answer.refused != nil {
			return answer.problem()
		}
		return nil
	}, parameters...)
}

// A downloadWriter passes on an answer that succeeds, and keeps one that does not.
type downloadWriter struct {
	w       http.ResponseWriter
	header  http.Header // before the status is known
	isSent  bool
	refused *recorder // nil: the answer is passed on
}

// Unwrap lets http.ResponseController reach the connection.
func (d *downloadWriter) Unwrap() http.ResponseWriter { return d.w }

// FlushError implements what http.ResponseController looks for. What is refused is not sent, nor is a status before it is known.
func (d *downloadWriter) FlushError() error {
	if !d.isSent || d.refused != nil {
		return nil
	}
	return http.NewResponseController(d.w).Flush()
}

// Header implements http.ResponseWriter.
func (d *downloadWriter) Header() http.Header {
	if d.isSent && d.refused == nil {
		return d.w.Header() // trailers
	}
	return d.header
}

// WriteHeader implements http.ResponseWriter.
func (d *downloadWriter) WriteHeader(status int) {
	if d.isSent {
		return
	}
	d.isSent = true
	if status >= http.StatusBadRequest {
		d.refused = &recorder{header: d.header, status: status}
		return
	}
	header := d.w.Header()
	for name, values := range d.header {
		header[name] = values
	}
	header.Set("X-Content-Type-Options", "nosniff")
	d.w.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (d *downloadWriter) Write(b []byte) (int, error) {
	d.WriteHeader(http.StatusOK)
	if d.refused == nil {
		return d.w.Write(b)
	}
	if d.refused.body.Len() < maxDownloadProblem {
		d.refused.body.Write(b)
	}
	return len(b), nil
}

// problem returns why the answer was refused.
func (d *downloadWriter) problem() error {
	var e client.Error
	_ = json.Unmarshal(d.refused.body.Bytes(), &e) // what is not a problem document has no more than its status
	e.Status = d.refused.status
	e.Title = cmp.Or(e.Title, http.StatusText(e.Status))
	return &e
}
