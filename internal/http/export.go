package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/request"
)

// maxExports is how many exports a process writes at a time. Each of them keeps a connection for listings busy while its reader is fast: further ones
// would take these from the listings.
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

// An export is what a listing answers with when it is asked for all of its rows.
type export struct {
	exportPaging
	name    string   // of the file, without the time and what the format adds
	columns []column // of CSV
	page    func(r *http.Request, limit int, cursor string) (exportedPage, error)
}

// An exportedPage is some rows of an export, each of which encode takes, and the cursor of those that follow; empty: none do.
type exportedPage struct {
	rows []any
	next string
}

// A column of CSV is a member of the JSON of a row.
type column struct {
	name   string
	isJSON bool // cells are JSON, strings in quotes; else strings are without quotes
}

// listing makes a route of a handler that returns a page, and of the export that it is the beginning of, for who asks for that.
func listing[Req any](s *Server, lim bind.Limits, handle func(*http.Request, Req) (reply, error), exportOf func(Req) export) boundHandler {
	answer := answering(s, handle)
	return handler(s, lim, func(w http.ResponseWriter, r *http.Request, req Req) error {
		ex := exportOf(req)
		if format := exportFormatFor(r, ex.Format); format != nil {
			return s.export(w, r, format(ex.columns), ex)
		}
		if ex.Limit > queue.MaxPage {
			return problem.InField(problem.InvalidParameter, "?limit", fmt.Sprintf("must be at most %d, unless format is csv or ndjson", queue.MaxPage))
		}
		return answer(w, r, req)
	})
}

var (
	errTooManyExports = problem.New(problem.Overloaded, fmt.Sprintf("This process writes %d exports already. Retry when one of them has ended.", maxExports)).With("Retry-After", "1")
	errExportStopped  = problem.New(problem.NotReady, "The server is stopping. Export again.")
)

// export answers with all rows of ex, a page at a time: each is a statement of its own, so that a long export holds no snapshot. It ends with the number of
// rows. A failure after the beginning breaks the connection off, so that the answer never looks whole.
func (s *Server) export(w http.ResponseWriter, r *http.Request, format exportFormat, ex export) error {
	select {
	case s.exports <- struct{}{}:
		defer func() { <-s.exports }()
	default:
		return errTooManyExports
	}
	ctx, stop := logOf(r).grant.Watch(r.Context())
	defer stop()
	rows := 0
	defer func() { logOf(r).add("rows", rows) }()
	page, err := s.exportPage(ctx, r, ex, rows, ex.Cursor)
	if err != nil {
		return exportFailure(ctx, r, err)
	}
	out := newChunkWriter(w, r, s.blockedLimit)
	beginExport(w.Header(), format, ex.name)
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	err = out.write(format.begin)
	for err == nil {
		if err = out.rows(format, page.rows); err != nil {
			break
		}
		rows += len(page.rows)
		if page.next == "" || ex.Limit > 0 && rows == ex.Limit {
			w.Header().Set(exportRows, strconv.Itoa(rows)) // the trailer
			if err = out.write(func(b []byte) []byte { return format.end(b, rows, page.next) }); err == nil {
				return nil
			}
			break
		}
		if page, err = s.exportPage(ctx, r, ex, rows, page.next); err != nil {
			err = exportFailure(ctx, r, err)
			p := problem.Of(err)
			logOf(r).add("ended", p.Type.Code)
			_ = out.write(func(b []byte) []byte { return format.fail(b, p.Document(logOf(r).id)) }) // who does not get it sees the connection break off
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
func (s *Server) exportPage(ctx context.Context, r *http.Request, ex export, rows int, cursor string) (exportedPage, error) {
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

// exportRows is the trailer of an export. It is there only when the export is whole.
const exportRows = "Export-Rows"

func beginExport(h http.Header, format exportFormat, name string) {
	h.Set("Content-Type", format.mediaType())
	h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s-%s.%s"`, name, time.Now().UTC().Format("20060102T150405Z"), format.extension()))
	h.Set("Trailer", exportRows)
	h.Set("X-Accel-Buffering", "no") // nginx would gather the answer otherwise
	h["Cache-Control"] = noStore
}

// rows writes rows, as many at once as a chunk has room for.
func (o *chunkWriter) rows(format exportFormat, rows []any) error {
	for len(rows) > 0 {
		n := 0
		var failed error
		err := o.write(func(b []byte) []byte {
			for ; n < len(rows) && len(b) < streamChunk && failed == nil; n++ {
				b, failed = format.row(b, rows[n])
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

// An exportFormat is how an export is written. Its methods append to b.
type exportFormat interface {
	mediaType() string
	extension() string
	begin(b []byte) []byte
	row(b []byte, row any) ([]byte, error)
	// end says that the export is whole: how many rows it has, and the cursor of those beyond its limit, if there are any.
	end(b []byte, rows int, next string) []byte
	// fail says why the export breaks off, where the format has a way to.
	fail(b []byte, why problem.Document) []byte
}

// exportFormatFor returns the maker of the format that a request asks for by name, or else by its Accept; nil: it asks for a page.
func exportFormatFor(r *http.Request, name string) func([]column) exportFormat {
	switch request.ExportFormat(r, name) {
	case "csv":
		return newCSVFormat
	case "ndjson":
		return func([]column) exportFormat { return lineFormat{} }
	}
	return nil
}

// lineFormat is one JSON object a line, as the listing has it. The last line is {"end": …} or {"error": …}.
type lineFormat struct{}

func (lineFormat) mediaType() string                     { return ndjson{}.mediaType() }
func (lineFormat) extension() string                     { return "ndjson" }
func (lineFormat) begin(b []byte) []byte                 { return b }
func (lineFormat) row(b []byte, row any) ([]byte, error) { return encode(b, row) }

func (lineFormat) end(b []byte, rows int, next string) []byte {
	o := object(append(b, `{"end":{`...))
	o.int("rows", int64(rows))
	o.text("next", next)
	return append(o, "}}\n"...)
}

func (lineFormat) fail(b []byte, why problem.Document) []byte {
	text, err := json.Marshal(why, jsontext.AllowInvalidUTF8(true)) // details quote values of the request
	if err != nil {
		return b
	}
	return append(append(append(b, `{"error":`...), text...), "}\n"...)
}

// csvFormat is CSV (RFC 4180) with the names of the columns in the first record. The last record begins with a cell that no row begins with, #end.
type csvFormat struct {
	columns []column
	index   map[string]int // of columns, by name
	cells   [][]byte       // of the row that is being written
	json    []byte         // the row
	text    []byte         // a cell
}

func newCSVFormat(columns []column) exportFormat {
	f := &csvFormat{columns: columns, index: make(map[string]int, len(columns)), cells: make([][]byte, len(columns))}
	for i, c := range columns {
		f.index[c.name] = i
	}
	return f
}

func (*csvFormat) mediaType() string { return "text/csv; charset=utf-8; header=present" }
func (*csvFormat) extension() string { return "csv" }

func (f *csvFormat) begin(b []byte) []byte {
	for i, c := range f.columns {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, c.name...)
	}
	return append(b, "\r\n"...)
}

func (f *csvFormat) row(b []byte, row any) (_ []byte, err error) {
	if f.json, err = encode(f.json[:0], row); err != nil {
		return b, err
	}
	clear(f.cells)
	for name, value := range members(f.json) {
		if i, ok := f.index[string(name)]; ok {
			f.cells[i] = value
		}
	}
	for i, value := range f.cells {
		if i > 0 {
			b = append(b, ',')
		}
		if !f.columns[i].isJSON && len(value) > 0 && value[0] == '"' {
			if f.text, err = jsontext.AppendUnquote(disarm(f.text[:0], value), value); err != nil {
				return b, err
			}
			value = f.text
		}
		b = appendCell(b, value)
	}
	return append(b, "\r\n"...), nil
}

func (f *csvFormat) end(b []byte, rows int, next string) []byte {
	b = strconv.AppendInt(append(b, "#end,"...), int64(rows), 10)
	b = append(append(b, ','), next...)
	b = append(b, bytes.Repeat([]byte(","), len(f.columns)-3)...)
	return append(b, "\r\n"...)
}

// fail appends nothing: who reads rows would take it for one. That the connection breaks off says enough.
func (*csvFormat) fail(b []byte, _ problem.Document) []byte { return b }

// formulaStarts are the characters that spreadsheets take for the beginning of a formula, or leave out before one
// (https://owasp.org/www-community/attacks/CSV_Injection).
const formulaStarts = "=+-@\t\r\n＝＋－＠"

// disarm appends an apostrophe if a JSON string begins as a formula does, so that spreadsheets take it for text.
func disarm(b, quoted []byte) []byte {
	first, _ := utf8.DecodeRune(quoted[1:])
	if first == '\\' {
		head, _ := jsontext.AppendUnquote(nil, quoted)
		first, _ = utf8.DecodeRune(head)
	}
	if strings.ContainsRune(formulaStarts, first) && first != '"' {
		b = append(b, '\'')
	}
	return b
}

// appendCell appends a cell, in quotes where that makes a difference to any reader: some take semicolons or tabs for commas.
func appendCell(b, value []byte) []byte {
	if !bytes.ContainsAny(value, "\",;\t\r\n ") {
		return append(b, value...)
	}
	b = append(b, '"')
	for {
		end := bytes.IndexByte(value, '"')
		if end < 0 {
			return append(append(b, value...), '"')
		}
		b = append(append(b, value[:end]...), `""`...)
		value = value[end+1:]
	}
}

// members are the names and values of a JSON object as encode writes it: without blanks between tokens, and without escapes in its names.
func members(object []byte) func(yield func(name, value []byte) bool) {
	return func(yield func(name, value []byte) bool) {
		for at := 1; at < len(object) && object[at] == '"'; {
			value := at + 1 + bytes.IndexByte(object[at+1:], '"') + len(`":`)
			end := value + valueLength(object[value:])
			if !yield(object[at+1:value-len(`":`)], object[value:end]) {
				return
			}
			at = end + len(",")
		}
	}
}

// valueLength is how long the JSON value at the beginning of rest is, which goes on to the end of its object or to a comma.
func valueLength(rest []byte) int {
	depth, inString := 0, false
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case depth == 0 && (c == ',' || c == '}'):
			return i
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
	return len(rest)
}

// historyColumns are the members of an event in history.
var historyColumns = append(columnsOf(
	"id", "queue", "outcome", "status", "type", "source", "priority", "key", "max_attempts", "expires_at", "event_ts", "enqueued_at", "attempts", "vt",
	"worker", "first_attempted_at", "last_attempted_at", "finished_at", "processing_ms", "last_error", "error_count", "retryable", "requeued_from",
	"requeued_as", "dead_letter_of", "dead_lettered_as", "unreadable"),
	column{"claimed", true}, column{"occurrence", true}, column{"publication", true}, column{"meta", true}, column{"result", true}, column{"event", true})

// statsColumns and auditColumns are the members of a bucket and of an action.
var (
	statsColumns = columnsOf("start", "done", "failed", "expired", "cancelled")
	auditColumns = append(columnsOf("id", "at", "actor", "role", "action", "target"), column{"detail", true})
)

func columnsOf(names ...string) []column {
	return slices.Clip(convert(names, func(name string) column { return column{name: name} }))
}

func (s *Server) exportHistory(req listHistoryRequest) export {
	return export{req.exportPaging, "history", historyColumns, func(r *http.Request, limit int, cursor string) (exportedPage, error) {
		if req.Cursors {
			return exportedPage{}, problem.InField(problem.InvalidParameter, "?cursors", "does not go with an export")
		}
		req.Limit, req.Cursor = limit, cursor
		page, err := s.historyPage(r, req)
		rows := make([]any, len(page.Events))
		for i := range page.Events {
			rows[i] = (*event)(&page.Events[i])
		}
		return exportedPage{rows, page.Next}, err
	}}
}

func (s *Server) exportHistoryStats(req historyStatsRequest) export {
	return export{exportPaging{exportable: req.exportable}, "history-stats", statsColumns, func(r *http.Request, _ int, _ string) (exportedPage, error) {
		buckets, err := s.countHistory(r, req)
		return exportedPage{rows: convert(buckets, func(b queue.StatsBucket) any { return bucket(b) })}, err
	}}
}

func (s *Server) exportAudit(req listAuditRequest) export {
	return export{req.exportPaging, "audit", auditColumns, func(r *http.Request, limit int, cursor string) (exportedPage, error) {
		req.Limit, req.Cursor = limit, cursor
		page, err := s.access.Audit(r.Context(), req.params())
		return exportedPage{convert(page.Actions, func(a access.Entry) any { return action(a) }), page.Next}, err
	}}
}
