// Package export has the formats of exports: rows of JSON as CSV, or one a line. It knows nothing else.
package export

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Rows is the trailer of an export. It is there only when the export is whole.
const Rows = "Export-Rows"

// SetHeader sets the fields of the header of an export: of a file of a name and a time.
func SetHeader(h http.Header, format Format, name string, at time.Time) {
	h.Set("Content-Type", format.MediaType())
	h.Set("Content-Disposition", fmt.Sprintf(`attachment; filename="%s-%s.%s"`, name, at.UTC().Format("20060102T150405Z"), format.Extension()))
	h.Set("Trailer", Rows)
	h.Set("X-Accel-Buffering", "no") // nginx would gather the answer otherwise
	h.Set("Cache-Control", "no-store")
}

// A Column of CSV is a member of the JSON of a row.
type Column struct {
	Name   string
	IsJSON bool // cells are JSON, strings in quotes; else strings are without quotes
}

var newline = []byte("\n")

// A Format is how an export is written. Its methods append to b.
type Format interface {
	MediaType() string
	Extension() string
	Begin(b []byte) []byte
	// Row writes a row: a JSON object as servers write it, with or without a newline at its end.
	Row(b, row []byte) ([]byte, error)
	// End says that the export is whole: how many rows it has, and the cursor of those beyond its limit, if there are any.
	End(b []byte, rows int, next string) []byte
	// Fail says why the export breaks off, where the format has a way to: why is a problem document.
	Fail(b, why []byte) []byte
}

// New returns the format of a name, csv or ndjson; nil for any other. An export as CSV has the columns.
func New(name string, columns []Column) Format {
	switch name {
	case "csv":
		return newCSV(columns)
	case "ndjson":
		return lines{}
	}
	return nil
}

// lines is one JSON object a line, as the listing has it. The last line is {"end": …} or {"error": …}.
type lines struct{}

// MediaType implements Format.
func (lines) MediaType() string { return "application/x-ndjson" }

// Extension implements Format.
func (lines) Extension() string { return "ndjson" }

// Begin implements Format.
func (lines) Begin(b []byte) []byte { return b }

// Row implements Format.
func (lines) Row(b, row []byte) ([]byte, error) {
	return append(append(b, bytes.TrimSuffix(row, newline)...), '\n'), nil
}

// End implements Format.
func (lines) End(b []byte, rows int, next string) []byte {
	b = strconv.AppendInt(append(b, `{"end":{"rows":`...), int64(rows), 10)
	if next != "" {
		b, _ = jsontext.AppendQuote(append(b, `,"next":`...), next) // cursors are valid UTF-8
	}
	return append(b, "}}\n"...)
}

// Fail implements Format.
func (lines) Fail(b, why []byte) []byte {
	return append(append(append(b, `{"error":`...), why...), "}\n"...)
}

// csv is CSV (RFC 4180) with the names of the columns in the first record. The last record begins with a cell that no row begins with, #end.
type csv struct {
	columns []Column
	index   map[string]int // of columns, by name
	cells   [][]byte       // of the row that is being written
	text    []byte         // a cell
}

func newCSV(columns []Column) Format {
	f := &csv{columns: columns, index: make(map[string]int, len(columns)), cells: make([][]byte, len(columns))}
	for i, c := range columns {
		f.index[c.Name] = i
	}
	return f
}

// MediaType implements Format.
func (*csv) MediaType() string { return "text/csv; charset=utf-8; header=present" }

// Extension implements Format.
func (*csv) Extension() string { return "csv" }

// Begin implements Format.
func (f *csv) Begin(b []byte) []byte {
	for i, c := range f.columns {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, c.Name...)
	}
	return append(b, "\r\n"...)
}

// Row implements Format.
func (f *csv) Row(b, row []byte) (_ []byte, err error) {
	clear(f.cells)
	for name, value := range members(bytes.TrimSuffix(row, newline)) {
		if i, ok := f.index[string(name)]; ok {
			f.cells[i] = value
		}
	}
	for i, value := range f.cells {
		if i > 0 {
			b = append(b, ',')
		}
		if !f.columns[i].IsJSON && len(value) > 0 && value[0] == '"' {
			if f.text, err = jsontext.AppendUnquote(disarm(f.text[:0], value), value); err != nil {
				return b, err
			}
			value = f.text
		}
		b = appendCell(b, value)
	}
	return append(b, "\r\n"...), nil
}

// End implements Format.
func (f *csv) End(b []byte, rows int, next string) []byte {
	b = strconv.AppendInt(append(b, "#end,"...), int64(rows), 10)
	b = append(append(b, ','), next...)
	b = append(b, bytes.Repeat([]byte(","), len(f.columns)-3)...)
	return append(b, "\r\n"...)
}

// Fail implements Format. It appends nothing: who reads rows would take it for one. That the connection breaks off says enough.
func (*csv) Fail(b, _ []byte) []byte { return b }

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

// members are the names and values of a JSON object as servers write it: without blanks between tokens, and without escapes in its names.
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

// HistoryColumns are the members of an event in history.
var HistoryColumns = append(columnsOf(
	"id", "queue", "outcome", "status", "type", "source", "priority", "key", "group", "max_attempts", "expires_at", "event_ts", "enqueued_at", "attempts", "vt",
	"worker", "first_attempted_at", "last_attempted_at", "finished_at", "processing_ms", "last_error", "error_count", "retryable", "requeued_from",
	"requeued_as", "dead_letter_of", "dead_lettered_as", "unreadable"),
	Column{"claimed", true}, Column{"occurrence", true}, Column{"publication", true}, Column{"meta", true}, Column{"result", true}, Column{"event", true})

// StatsColumns and AuditColumns are the members of a bucket and of an action.
var (
	StatsColumns = columnsOf("start", "done", "failed", "expired", "cancelled")
	AuditColumns = append(columnsOf("id", "at", "actor", "role", "action", "target"), Column{"detail", true})
)

func columnsOf(names ...string) []Column {
	columns := make([]Column, len(names))
	for i, name := range names {
		columns[i].Name = name
	}
	return slices.Clip(columns)
}
