package gateway

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/queued/queued/internal/export"
	"github.com/queued/queued/internal/request"
)

// maxExports is how many exports a gateway makes of those of several cells at a time: as many as one process of a cell.
const maxExports = 2

// answerHistory answers with a page of history, of which cells have a part, or with an export of all of it.
func (g *Gateway) answerHistory(c *call, r *http.Request, cells []*cell) error {
	format := export.New(request.ExportFormat(r, queryOf(r, "format", "")), export.HistoryColumns)
	if format == nil {
		return g.answerListing(c, r, historyListing, cells)
	}
	query := r.URL.Query()
	most, isLimit := limitOf(query, 0, 1<<31-1) // 0: all
	at, err := parsePlaces(query.Get("cursor"))
	isOne := len(query["cursor"]) <= 1 && (!query.Has("cursor") || query.Get("cursor") != "") && len(query["format"]) <= 1 && !query.Has("cursors")
	if !isLimit || !isOne {
		return g.answerFromHome(c, r) // which says what is wrong
	}
	if err != nil {
		return err
	}
	select {
	case g.exports <- struct{}{}:
		defer func() { <-g.exports }()
	default:
		return full(fmt.Sprintf("This gateway makes %d exports already. Retry when one of them has ended.", maxExports))
	}
	for _, name := range []string{"limit", "cursor", "format"} {
		query.Del(name)
	}
	m := &reading{g: g, c: c, r: r, list: historyListing, query: query, names: &historyListing.names}
	merged, err := m.begin(cells, at, func(int) int { return exportPart(most) })
	if err != nil {
		return err
	}
	defer merged.close()
	if err := merged.firstAway(); err != nil {
		return err
	}
	export.SetHeader(c.Header(), format, "history", time.Now())
	c.begin(format.MediaType())
	if r.Method == http.MethodHead {
		return nil
	}
	return merged.export(format, most)
}

// exportPart returns how many rows a cell is asked for at a time when an export still has rest; 0: all.
func exportPart(rest int) int {
	if rest == 0 {
		return maxPage
	}
	return min(rest, maxPage)
}

// firstAway returns why an export cannot be whole, if a cell does not answer.
func (m *merge) firstAway() error {
	for _, s := range m.sources {
		if s.isAway {
			return away(s.at.number, "Cell "+s.at.label+" has a part of the export and does not answer. Retry.", s.err)
		}
	}
	return nil
}

// export writes up to most rows, 0: all. When a cell goes away it breaks off, so that the answer never looks whole.
func (m *merge) export(format export.Format, most int) error {
	w := bufio.NewWriterSize(m.c, writeBuffer)
	var row, line []byte
	rows := 0
	_, err := w.Write(format.Begin(nil))
	for err == nil && (most == 0 || rows < most) {
		rest := 0
		if most > 0 {
			rest = most - rows
		}
		if m.g.drain.Err() != nil {
			return m.breakOff(w, format, &problem{problemType: notReady, detail: "The gateway is shutting down. Export again.", retry: 1, cause: errDraining})
		}
		sources := m.next(exportPart(rest))
		if failed := m.firstAway(); failed != nil {
			return m.breakOff(w, format, failed)
		}
		if len(sources) == 0 {
			break
		}
		row = sources[0].head.appendTo(row[:0])
		if line, err = format.Row(line[:0], row); err != nil {
			return fmt.Errorf("a row of an export: %w", err)
		}
		if _, err = w.Write(line); err == nil {
			m.take(sources)
			rows++
		}
	}
	switch failed := m.firstAway(); {
	case err != nil:
		return errClientGone
	case m.r.Context().Err() != nil:
		return m.r.Context().Err()
	case failed != nil:
		return m.breakOff(w, format, failed)
	}
	m.c.Header().Set(export.Rows, strconv.Itoa(rows)) // the trailer
	_, _ = w.Write(format.End(nil, rows, m.cursor(nil)))
	if w.Flush() != nil {
		return errClientGone
	}
	m.g.metrics.merged.WithLabelValues(m.c.pattern()).Inc()
	return nil
}

// breakOff writes why an export ends, where the format has a way to, and returns that.
func (m *merge) breakOff(w *bufio.Writer, format export.Format, failed error) error {
	if p, ok := failed.(*problem); ok { //nolint:errorlint // it is one of the gateway's own
		_, _ = w.Write(format.Fail(nil, p.document(m.c.id)))
		_ = w.Flush()
	}
	return failed
}

// historyStats is for counts of what has ended, or an export of them.
func historyStats(g *Gateway, c *call, r *http.Request) error {
	cells, err := pastCells(g, r)
	if err != nil {
		return err
	}
	c.queue = queryOf(r, "queue", "")
	g.answerFrom(c, cells, r, func(r *http.Request) error { return g.answerHistoryStats(c, r, cells) })
	return nil
}

func (g *Gateway) answerHistoryStats(c *call, r *http.Request, cells []*cell) error {
	query := r.URL.Query()
	name := query.Get("format")
	format := export.New(request.ExportFormat(r, name), export.StatsColumns)
	if name != "" && format == nil || len(query["format"]) > 1 {
		return g.answerFromHome(c, r) // which says what is wrong
	}
	query.Del("format")
	untilNow(query)
	said, err := g.statementsOf(c, r, cells, query)
	if err != nil {
		return err
	}
	joined, err := joinHistoryStats(query, said.parts)
	if err != nil {
		return err
	}
	if format == nil {
		g.answerObject(c, said.away, joined)
		return nil
	}
	if len(said.away) > 0 {
		return away(said.away[0], "Cells have a part of the export and do not answer: "+numbersText(said.away)+". Retry.", nil)
	}
	rows, err := joined.list("buckets")
	if err != nil {
		return err
	}
	text := format.Begin(nil)
	for _, row := range rows {
		if text, err = format.Row(text, row.appendTo(nil)); err != nil {
			return err
		}
	}
	export.SetHeader(c.Header(), format, "history-stats", time.Now())
	c.begin(format.MediaType())
	c.Header().Set(export.Rows, strconv.Itoa(len(rows))) // the trailer
	_, _ = c.Write(format.End(text, len(rows), ""))      // a client that has gone misses this only
	return nil
}
