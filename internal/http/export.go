package http

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/export"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/request"
)

// maxExports is how many exports a process writes at a time, at most one of them for each key. Each keeps a connection for listings busy while its reader is
// fast: further ones would take these from the listings.
const maxExports = 2

// exportable is the parameter of what can be exported.
type exportable struct {
	Format string `query:"format" validate:"oneof=csv ndjson"`
}

// exportPaging is the parameters of a listing that can be exported. A page has MaxPage rows at most; an export as many as it is asked for.
type exportPaging struct {
	exportable
	Limit  int    `query:"limit" validate:"min=1"`
	Cursor string `query:"cursor" validate:"min=1,max=65536"`
}

// An exported is what a listing answers with when it is asked for all of its rows.
type exported struct {
	exportPaging
	name    string          // of the file, without the time and what the format adds
	columns []export.Column // of CSV
	page    func(r *http.Request, limit int, cursor string) (exportedPage, error)
}

// An exportedPage is some rows of an export, each of which encode takes, and the cursor of those that follow; empty: none do.
type exportedPage struct {
	rows []any
	next string
}

// listing makes a route of a handler that returns a page, and of the export that it is the beginning of, for who asks for that.
func listing[Req any](s *Server, lim bind.Limits, handle func(*http.Request, Req) (reply, error), exportOf func(Req) exported) boundHandler {
	answer := answering(s, handle)
	return handler(s, lim, func(w http.ResponseWriter, r *http.Request, req Req) error {
		ex := exportOf(req)
		if format := export.New(request.ExportFormat(r, ex.Format), ex.columns); format != nil {
			return s.export(w, r, format, ex)
		}
		if ex.Limit > queue.MaxPage {
			return problem.InField(problem.InvalidParameter, "?limit", fmt.Sprintf("must be at most %d, unless format is csv or ndjson", queue.MaxPage))
		}
		return answer(w, r, req)
	})
}

var (
	errExportOfKey    = problem.New(problem.RateLimited, "This process writes an export for the key already, and one at a time. Retry when that has ended.").With("Retry-After", "1")
	errTooManyExports = problem.New(problem.Overloaded, fmt.Sprintf("This process writes %d exports already. Retry when one of them has ended.", maxExports)).With("Retry-After", "1")
	errExportStopped  = problem.New(problem.NotReady, "The server is stopping. Export again.")
)

// exports are the exports that a process writes.
type exports struct {
	mu     sync.Mutex
	n      int
	actors map[string]bool // whom they are for; callers without a key are not among them
}

// begin takes the place of an export for a caller, who calls end when it has ended. It fails if the caller has one, or if there are too many.
func (e *exports) begin(grant *access.Grant) (end func(), err error) {
	actor := grant.Actor()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.actors[actor]:
		return nil, errExportOfKey
	case e.n >= maxExports:
		return nil, errTooManyExports
	}
	e.n++
	if actor != "" {
		e.actors[actor] = true
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.n--
		delete(e.actors, actor)
	}, nil
}

// export answers with all rows of ex, a page at a time: each is a statement of its own, so that a long export holds no snapshot. It ends with the number of
// rows. A failure after the beginning breaks the connection off, so that the answer never looks whole.
func (s *Server) export(w http.ResponseWriter, r *http.Request, format export.Format, ex exported) error {
	end, err := s.exports.begin(logOf(r).grant)
	if err != nil {
		return err
	}
	defer end()
	ctx, stop := logOf(r).grant.Watch(r.Context())
	defer stop()
	rows := 0
	defer func() { logOf(r).add("rows", rows) }()
	page, err := s.exportPage(ctx, r, ex, rows, ex.Cursor)
	if err != nil {
		return exportFailure(ctx, r, err)
	}
	out := newChunkWriter(w, r, s.blockedLimit)
	export.SetHeader(w.Header(), format, ex.name, time.Now())
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	err = out.write(format.Begin)
	for err == nil {
		if err = out.rows(format, page.rows); err != nil {
			break
		}
		rows += len(page.rows)
		if page.next == "" || ex.Limit > 0 && rows == ex.Limit {
			w.Header().Set(export.Rows, strconv.Itoa(rows)) // the trailer
			if err = out.write(func(b []byte) []byte { return format.End(b, rows, page.next) }); err == nil {
				return nil
			}
			break
		}
		if page, err = s.exportPage(ctx, r, ex, rows, page.next); err != nil {
			err = exportFailure(ctx, r, err)
			p := problem.Of(err)
			logOf(r).add("ended", p.Type.Code)
			_ = out.write(func(b []byte) []byte { return failExport(format, b, p.Document(logOf(r).id)) }) // who does not get it sees the connection break off
			return err
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.metrics.blocked.Inc()
		logOf(r).add("ended", "blocked")
	}
	panic(http.ErrAbortHandler) // the client takes nothing any more
}

// exportPage reads the rows that follow, within the time of a request.
func (s *Server) exportPage(ctx context.Context, r *http.Request, ex exported, rows int, cursor string) (exportedPage, error) {
	if s.draining.Load() {
		return exportedPage{}, errExportStopped
	}
	limit := queue.MaxPage
	if ex.Limit > 0 {
		limit = min(limit, ex.Limit-rows)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	return ex.page(r.WithContext(ctx), limit, cursor)
}

// exportFailure is the error of an export whose page failed with err: why the caller may not go on, if that is the reason.
func exportFailure(ctx context.Context, r *http.Request, err error) error {
	if cause := context.Cause(ctx); cause != nil && r.Context().Err() == nil {
		return challenge(r, cause)
	}
	return err
}

// rows writes rows, as many at once as a chunk has room for.
func (o *chunkWriter) rows(format export.Format, rows []any) error {
	var encoded []byte
	for len(rows) > 0 {
		n := 0
		var failed error
		err := o.write(func(b []byte) []byte {
			for ; n < len(rows) && len(b) < streamChunk && failed == nil; n++ {
				if encoded, failed = encode(encoded[:0], rows[n]); failed == nil {
					b, failed = format.Row(b, encoded)
				}
			}
			return b
		})
		if err := errors.Join(failed, err); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// failExport appends why an export breaks off.
func failExport(format export.Format, b []byte, why problem.Document) []byte {
	text, err := json.Marshal(why, jsontext.AllowInvalidUTF8(true)) // details quote values of the request
	if err != nil {
		return b
	}
	return format.Fail(b, text)
}

func (s *Server) exportHistory(req listHistoryRequest) exported {
	return exported{req.exportPaging, "history", export.HistoryColumns, func(r *http.Request, limit int, cursor string) (exportedPage, error) {
		req.Limit, req.Cursor = limit, cursor
		page, err := s.historyPage(r, req)
		rows := make([]any, len(page.Events))
		for i := range page.Events {
			rows[i] = (*event)(&page.Events[i])
		}
		return exportedPage{rows, page.Next}, err
	}}
}

func (s *Server) exportHistoryStats(req historyStatsRequest) exported {
	return exported{exportPaging{exportable: req.exportable}, "history-stats", export.StatsColumns, func(r *http.Request, _ int, _ string) (exportedPage, error) {
		buckets, err := s.countHistory(r, req)
		return exportedPage{rows: convert(buckets, func(b queue.StatsBucket) any { return bucket(b) })}, err
	}}
}

func (s *Server) exportAudit(req listAuditRequest) exported {
	return exported{req.exportPaging, "audit", export.AuditColumns, func(r *http.Request, limit int, cursor string) (exportedPage, error) {
		req.Limit, req.Cursor = limit, cursor
		page, err := s.access.Audit(r.Context(), req.params())
		return exportedPage{convert(page.Actions, func(a access.Entry) any { return action(a) }), page.Next}, err
	}}
}
