package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// An ExportFormat is how an export is written.
type ExportFormat string

// The formats of exports.
const (
	// ExportCSV is CSV with the names of the columns in the first record, and "#end" with the number of rows in the last.
	ExportCSV ExportFormat = "csv"
	// ExportLines is a JSON object a line, the last of which is {"end":{"rows":…}}.
	ExportLines ExportFormat = "ndjson"
)

// ExportParams say how to export, and how much.
type ExportParams struct {
	// Format is [ExportCSV] or [ExportLines]; empty: ExportLines.
	Format ExportFormat `query:"format"`
	// Limit is how many rows to export at most; 0: all.
	Limit int `query:"limit"`
	// Cursor is where to go on: the Next of an export before, with the same filter.
	Cursor string `query:"cursor"`
}

// Exported describes an export that is whole.
type Exported struct {
	Rows int `json:"rows"`
	// Next is the cursor of the rows beyond the limit; empty: there are none.
	Next string `json:"next,omitzero"`
	// More says that there are rows beyond the limit. Those of several cells have no Next.
	More bool `json:"-"`
}

// ErrExportCutShort is in the error of an export whose beginning has been written, and whose end is missing or is that of another number of rows.
var ErrExportCutShort = errors.New("client: the export has been cut short")

// ExportHistory writes the events of history that the filter takes to w, newest EventTS first, whatever its PageSize. It looks for the end of the export: without
// an error, what was written is whole. It goes on as long as the server sends something every 45 s and ctx lasts. Only its beginning is
// retried: with [ErrExportCutShort], export again into another place. Exports of several cells are merged; none is written without one of them.
func (c *Client) ExportHistory(ctx context.Context, w io.Writer, filter HistoryFilter, p ExportParams) (Exported, error) {
	filter.PageSize = 0
	p.Format = cmp.Or(p.Format, ExportLines)
	exported, err := c.export(ctx, w, "/history", filter, p)
	if numbers := partsOf(err); numbers != nil {
		return c.exportCells(ctx, w, numbers, filter, p)
	}
	return exported, err
}

// ExportHistoryStats writes what [Client.HistoryStats] returns to w, as ExportHistory does.
func (c *Client) ExportHistoryStats(ctx context.Context, w io.Writer, p HistoryStatsParams, format ExportFormat) (Exported, error) {
	exported, err := c.export(ctx, w, "/history/stats", p, ExportParams{Format: format})
	if partsOf(err) == nil {
		return exported, err
	}
	buckets, err := c.HistoryStats(ctx, p)
	if err != nil {
		return Exported{}, err
	}
	return writeBuckets(w, buckets, format)
}

// ExportAudit writes the audited actions that the filter takes to w, latest first, as ExportHistory does.
func (c *Client) ExportAudit(ctx context.Context, w io.Writer, filter AuditFilter, p ExportParams) (Exported, error) {
	filter.PageSize = 0
	return c.export(ctx, w, "/audit", filter, p)
}

func (c *Client) export(ctx context.Context, w io.Writer, path string, filter any, p ExportParams) (Exported, error) {
	if p.Format == "" {
		p.Format = ExportLines
	}
	req := Request{Path: path, Query: queryOf(filter)}
	maps.Copy(req.Query, queryOf(p))
	opened, err := repeat(ctx, c, req, func() (*openedExport, error) { return c.openExport(ctx, req) })
	if err != nil {
		return Exported{}, err
	}
	defer opened.close(nil)
	seen := exportEnd{isCSV: p.Format == ExportCSV}
	read, err := opened.copyTo(w, &seen)
	if err != nil {
		return Exported{}, err
	}
	end, err := seen.find(path)
	if end.More = end.Next != ""; err == nil {
		err = read
	}
	if err != nil {
		return Exported{}, fmt.Errorf("%w after %d rows: %w", ErrExportCutShort, seen.rows(), err)
	}
	return end, nil
}

// An openedExport is an export that the server has begun.
type openedExport struct {
	ctx      context.Context
	close    context.CancelCauseFunc
	watchdog *time.Timer
	body     io.ReadCloser
}

// openExport tries once to begin an export.
func (c *Client) openExport(ctx context.Context, req Request) (_ *openedExport, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer func() {
		if err != nil {
			cancel(nil)
		}
	}()
	limit := silence
	if c.limits.timeout > 0 {
		limit = c.limits.timeout
	}
	watchdog := time.AfterFunc(limit, func() { cancel(errNoAnswer) })
	defer watchdog.Stop()
	r, err := c.newRequest(ctx, req, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(r) //nolint:bodyclose // by openedExport.close
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	opened := &openedExport{ctx: ctx, watchdog: watchdog, body: resp.Body}
	opened.close = func(cause error) {
		watchdog.Stop()
		cancel(cause)
		_ = resp.Body.Close()
	}
	if resp.StatusCode == http.StatusOK {
		return opened, nil
	}
	defer opened.close(nil)
	text, err := c.readAll(resp.Body)
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	return nil, errorOf(req.method(), req.Path, resp, text)
}

// copyTo writes the export to w, and returns the error with which it ended, nil after its last byte, or that of w.
func (o *openedExport) copyTo(w io.Writer, seen *exportEnd) (read, written error) {
	buffer := make([]byte, 64<<10)
	for {
		o.watchdog.Reset(silence)
		n, err := o.body.Read(buffer)
		o.watchdog.Stop() // w may take as long as it wants
		seen.add(buffer[:n])
		if _, err := w.Write(buffer[:n]); err != nil {
			return nil, err
		}
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return causeOf(o.ctx, err), nil
		}
	}
}

// An exportEnd looks at an export as it goes by, for its last record.
type exportEnd struct {
	isCSV    bool
	isQuoted bool   // within a cell in quotes, where line breaks and whatever looks like an end are text
	records  int    // that are complete
	record   []byte // the beginning of the one that is not
	last     []byte // the beginning of the one before
}

// maxEnd is how much of a record is looked at: more than the longest end or error.
const maxEnd = 64 << 10

func (e *exportEnd) add(b []byte) {
	for len(b) > 0 {
		n, isComplete := e.recordIn(b)
		e.record = append(e.record, b[:min(n, max(0, maxEnd-len(e.record)))]...)
		if isComplete {
			e.records++
			e.last, e.record = e.record, e.last[:0]
		}
		b = b[n:]
	}
}

// recordIn returns how much of b is of the current record, and whether that is complete then.
func (e *exportEnd) recordIn(b []byte) (int, bool) {
	if !e.isCSV {
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			return len(b), false
		}
		return n, true
	}
	for i, c := range b {
		if c == '"' {
			e.isQuoted = !e.isQuoted
		} else if c == '\n' && !e.isQuoted {
			return i + 1, true
		}
	}
	return len(b), false
}

// rows is how many rows there were, as long as no end is among the records.
func (e *exportEnd) rows() int {
	if e.isCSV {
		return max(0, e.records-1) // without the names
	}
	return e.records
}

var errNoEnd = errors.New("its end is missing")

// find returns what the end says, or the error in its place.
func (e *exportEnd) find(path string) (Exported, error) {
	var end struct {
		End   *Exported
		Error *Error
	}
	last := bytes.TrimRight(e.last, "\r\n")
	switch {
	case len(e.record) > 0:
		return Exported{}, errNoEnd
	case e.isCSV && bytes.HasPrefix(last, []byte("#end,")):
		cells := bytes.Split(last, []byte(","))
		rows, err := strconv.Atoi(string(cells[1]))
		if err != nil || len(cells) < 3 {
			return Exported{}, errNoEnd
		}
		end.End = &Exported{Rows: rows, Next: string(cells[2])}
	case !e.isCSV && (bytes.HasPrefix(last, []byte(`{"end":`)) || bytes.HasPrefix(last, []byte(`{"error":`))):
		if err := json.Unmarshal(last, &end); err != nil {
			return Exported{}, errNoEnd
		}
	}
	if end.Error != nil {
		e.records--
		end.Error.Method, end.Error.Path = http.MethodGet, path
		return Exported{}, end.Error
	}
	if end.End == nil {
		return Exported{}, errNoEnd
	}
	if e.records--; e.rows() != end.End.Rows {
		return Exported{}, fmt.Errorf("its end says %d rows", end.End.Rows)
	}
	return *end.End, nil
}
