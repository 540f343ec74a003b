package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An exportRecord is a record of an export of history, with what it is in the order of.
type exportRecord struct {
	eventTS time.Time
	id      int64
	text    []byte // with its line break
	isNames bool   // the first record of CSV
	width   int    // of that, in cells
}

// byExport has the names come first, once, and then the newest.
var byExport = order[exportRecord]{
	compare: func(a, b *exportRecord) int {
		switch {
		case a.isNames || b.isNames:
			return cmp.Compare(boolInt(b.isNames), boolInt(a.isNames))
		default:
			return cmp.Or(b.eventTS.Compare(a.eventTS), cmp.Compare(b.id, a.id))
		}
	},
	join:    func(*exportRecord, exportRecord) {}, // ids of cells are not the same: only names are
	isWhole: true,
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// errExportOfCells is why an export of several cells has no cursor.
var errExportOfCells = errors.New("client: an export of several cells cannot go on at a cursor: export each of them, see Client.Cell")

// exportCells writes the exports of history of several cells as one.
func (c *Client) exportCells(ctx context.Context, w io.Writer, numbers []int, filter HistoryFilter, p ExportParams) (Exported, error) {
	if p.Cursor != "" {
		return Exported{}, errExportOfCells
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	limit, all, width := p.Limit, Exported{}, 0
	if limit > 0 {
		p.Limit++ // of each cell one more, to see whether there are more
	}
	records := merge(numbers, byExport, func(number int) iter.Seq2[exportRecord, error] { return c.part(number).exported(ctx, filter, p) })
	for record, err := range records {
		switch {
		case err != nil && all.Rows == 0 && width == 0:
			return Exported{}, err
		case err != nil:
			return Exported{}, fmt.Errorf("%w after %d rows: %w", ErrExportCutShort, all.Rows, err)
		case record.isNames:
			width = record.width
		case limit > 0 && all.Rows == limit:
			all.More = true
		default:
			all.Rows++
		}
		if all.More {
			break
		}
		if _, err := w.Write(record.text); err != nil {
			return Exported{}, err
		}
	}
	end := fmt.Sprintf("{\"end\":{\"rows\":%d}}\n", all.Rows)
	if p.Format == ExportCSV {
		end = fmt.Sprintf("#end,%d%s\r\n", all.Rows, strings.Repeat(",", max(0, width-2)))
	}
	_, err := io.WriteString(w, end)
	return all, err
}

// exported returns the records of an export of history, without its end. It fails if that is missing.
func (c *Client) exported(ctx context.Context, filter HistoryFilter, p ExportParams) iter.Seq2[exportRecord, error] {
	return func(yield func(exportRecord, error) bool) {
		reader, writer := io.Pipe()
		go func() {
			_, err := c.export(ctx, writer, "/history", filter, p)
			writer.CloseWithError(err) // nil: it was whole
		}()
		defer func() { _ = reader.Close() }()
		read := readExport(reader, p.Format == ExportCSV)
		for {
			record, isEnd, err := read()
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(record, err)
				return
			case !isEnd && !yield(record, nil):
				return
			}
		}
	}
}

// readExport returns a function that reads the next record of an export as it is, with its line break.
func readExport(from io.Reader, isCSV bool) func() (record exportRecord, isEnd bool, err error) {
	lines := bufio.NewReaderSize(from, 64<<10)
	idAt, timeAt := -1, -1
	return func() (record exportRecord, isEnd bool, err error) {
		for isFirst := true; isFirst || isCSV && bytes.Count(record.text, []byte{'"'})%2 == 1; isFirst = false { // a cell in quotes may have line breaks
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return record, false, err
			}
			record.text = append(record.text, line...)
		}
		if !isCSV {
			if bytes.HasPrefix(record.text, []byte(`{"end":`)) || bytes.HasPrefix(record.text, []byte(`{"error":`)) { // which export finds
				return record, true, nil
			}
			var members struct {
				ID      int64     `json:"id"`
				EventTS time.Time `json:"event_ts"`
			}
			err = json.Unmarshal(record.text, &members)
			record.id, record.eventTS = members.ID, members.EventTS
			return record, false, err
		}
		cells, err := csv.NewReader(bytes.NewReader(record.text)).Read()
		switch {
		case err != nil:
			return record, false, err
		case idAt < 0:
			idAt, timeAt, record.width, record.isNames = slices.Index(cells, "id"), slices.Index(cells, "event_ts"), len(cells), true
			if idAt < 0 || timeAt < 0 {
				return record, false, errNotJSON
			}
			return record, false, nil
		case strings.HasPrefix(cells[0], "#"): // its end, or why it has none, which export finds
			return record, true, nil
		case len(cells) <= max(idAt, timeAt):
			return record, false, errNotJSON
		}
		record.id, err = strconv.ParseInt(cells[idAt], 10, 64)
		if err == nil {
			record.eventTS, err = time.Parse(time.RFC3339Nano, cells[timeAt])
		}
		return record, false, err
	}
}

// writeBuckets writes an export of statistics of history.
func writeBuckets(w io.Writer, buckets []HistoryBucket, format ExportFormat) (Exported, error) {
	all := Exported{Rows: len(buckets)}
	if format != ExportCSV {
		lines := json.NewEncoder(w)
		for _, b := range buckets {
			if err := lines.Encode(b); err != nil {
				return Exported{}, err
			}
		}
		_, err := fmt.Fprintf(w, "{\"end\":{\"rows\":%d}}\n", all.Rows)
		return all, err
	}
	table := csv.NewWriter(w)
	table.UseCRLF = true
	_ = table.Write([]string{"start", "done", "failed", "expired", "cancelled"}) // the last error counts
	for _, b := range buckets {
		_ = table.Write([]string{timeText(b.Start), strconv.Itoa(b.Done), strconv.Itoa(b.Failed), strconv.Itoa(b.Expired), strconv.Itoa(b.Cancelled)})
	}
	_ = table.Write([]string{"#end", strconv.Itoa(all.Rows), "", "", ""})
	table.Flush()
	return all, table.Error()
}
