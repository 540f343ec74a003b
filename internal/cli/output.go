package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/queued/queued/client"
)

// The values of --output.
const (
	formatAuto  = "auto"  // table on a terminal, else jsonl
	formatTable = "table" // for people
	formatJSON  = "json"  // one document: an object, or an array
	formatJSONL = "jsonl" // an object a line
)

// column is a column of a table.
type column struct {
	title string
	// When a table is wider than the terminal, columns are left out that have one value in all rows, which is said once. If that is not enough, wide columns are shortened. If that is
	// not either, optional ones are left out, the last first.
	wide, optional bool
	// isTime: a terminal shows how long ago the times are.
	isTime bool
}

// view tells how to show values of one kind as a table.
type view[T any] struct {
	columns []column
	row     func(T) []string // as many texts as there are columns
	empty   string           // written to standard error instead of a table without rows
}

// columns makes columns of their titles; those that end in "…" are wide, those that end in "?" optional, and those that end in "@" are times.
func columns(titles ...string) []column {
	made := make([]column, len(titles))
	for i, title := range titles {
		made[i] = column{
			title: strings.TrimRight(title, "…?@"), wide: strings.Contains(title, "…"), optional: strings.Contains(title, "?"), isTime: strings.Contains(title, "@"),
		}
	}
	return made
}

// list writes values in the format of --output, as they come for jsonl and json.
func list[T any](env *Env, output string, v view[T], values iter.Seq2[T, error]) error {
	var missing client.MissingCellsError
	err := listWhole(env, output, v, func(yield func(T, error) bool) {
		for value, err := range values {
			if part, ok := errors.AsType[*client.MissingCellsError](err); ok { // what the others have is listed
				missing.Cells = append(missing.Cells, part.Cells...)
			} else if !yield(value, err) {
				return
			}
		}
		slices.Sort(missing.Cells)
		missing.Cells = slices.Compact(missing.Cells)
		if len(missing.Cells) > 0 && env.format(output) == formatJSON { // an array that is not whole is not closed
			yield(*new(T), &missing)
		}
	})
	if err == nil && len(missing.Cells) > 0 {
		return &missing
	}
	return err
}

// listWhole is list for a listing that is whole or fails.
func listWhole[T any](env *Env, output string, v view[T], values iter.Seq2[T, error]) error {
	switch env.format(output) {
	case formatJSONL:
		return writeLines(env.Stdout, values)
	case formatJSON:
		return writeArray(env.Stdout, values)
	}
	var rows [][]string
	for value, err := range values {
		if err != nil {
			return err
		}
		row := v.row(value)
		for i, c := range v.columns {
			if c.isTime && IsTerminal(env.Stdout) {
				row[i] = ageOf(row[i], env.Now())
			}
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		_, err := fmt.Fprintln(env.Stderr, v.empty)
		return err
	}
	return writeTable(env.Stdout, v.columns, rows, env.width())
}

// all returns the values as a list writes them.
func all[T any](values []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, value := range values {
			if !yield(value, nil) {
				return
			}
		}
	}
}

// each returns the answer to a call about each of the events, as a list writes them, until one fails.
func each[T any](ids []int64, call func(id int64) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, n := range ids {
			answer, err := call(n)
			if err != nil {
				err = fmt.Errorf("event %d: %w", n, err)
			}
			if !yield(answer, err) || err != nil {
				return
			}
		}
	}
}

// show writes one value: as an object, or as a table of names and values. Names that end in "@" are of times: a terminal shows how long ago they are,
// too.
func show[T any](env *Env, output string, value T, fields func(T) [][2]string) error {
	switch env.format(output) {
	case formatJSONL:
		return newEncoder(env.Stdout).Encode(value)
	case formatJSON:
		encoder := newEncoder(env.Stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	}
	var rows [][]string
	for _, field := range fields(value) {
		name, isTime := strings.CutSuffix(field[0], "@")
		if field[1] == "" {
			continue
		}
		if isTime && IsTerminal(env.Stdout) {
			if age := ageOf(field[1], env.Now()); age != field[1] {
				field[1] += " (" + age + ")"
			}
		}
		rows = append(rows, []string{name + ":", field[1]})
	}
	return writeTable(env.Stdout, []column{{}, {wide: true}}, rows, env.width())
}

// writeLines writes each value on a line of its own.
func writeLines[T any](w io.Writer, values iter.Seq2[T, error]) error {
	encoder := newEncoder(w)
	for value, err := range values {
		if err != nil {
			return err
		}
		if err := encoder.Encode(value); err != nil {
			return err
		}
	}
	return nil
}

// writeArray writes the values as one array, an element a line. After an error the array is not closed, so nobody takes it for whole.
func writeArray[T any](w io.Writer, values iter.Seq2[T, error]) error {
	before := "["
	encoder := newEncoder(w)
	for value, err := range values {
		if err != nil {
			return err
		}
		if _, err := io.WriteString(w, before); err != nil {
			return err
		}
		if err := encoder.Encode(value); err != nil {
			return err
		}
		before = ","
	}
	after := "]\n"
	if before == "[" {
		after = "[]\n"
	}
	_, err := io.WriteString(w, after)
	return err
}

// newEncoder returns an encoder that leaves <, > and & in payloads as they are.
func newEncoder(w io.Writer) *json.Encoder {
	encoder := json.NewEncoder(&jsonWriter{w})
	encoder.SetEscapeHTML(false)
	return encoder
}

// jsonWriter escapes the control characters that JSON allows in its strings, DEL and those from U+0080 to U+009F: terminals obey them. The
// document stays the same. An encoder writes whole documents, so no character comes in two parts.
type jsonWriter struct{ w io.Writer }

func (j *jsonWriter) Write(document []byte) (int, error) {
	isControl := func(r rune) bool { return r >= 0x7f && r <= 0x9f }
	if !bytes.ContainsFunc(document, isControl) {
		return j.w.Write(document)
	}
	var safe bytes.Buffer
	for _, r := range string(document) {
		if isControl(r) {
			fmt.Fprintf(&safe, "\\u%04x", r)
		} else {
			safe.WriteRune(r)
		}
	}
	if _, err := j.w.Write(safe.Bytes()); err != nil {
		return 0, err
	}
	return len(document), nil
}

// minWide is the width below which no column is shortened, in characters.
const minWide = 8

// writeTable writes rows below the titles of their columns, at most width characters wide if width is more than zero and the columns that
// are neither wide nor optional leave room for that.
func writeTable(w io.Writer, columns []column, rows [][]string, width int) error {
	widest := make([]int, len(columns))
	for i, c := range columns {
		widest[i] = max(1, utf8.RuneCountInString(c.title))
	}
	for _, row := range rows {
		for i, text := range row {
			row[i] = printable(text)
			widest[i] = max(widest[i], utf8.RuneCountInString(row[i]))
		}
	}
	limits, constant := fitColumns(columns, widest, rows, width)
	var text bytes.Buffer
	text.WriteString(sayOnce(columns, rows, constant, width))
	table := tabwriter.NewWriter(&text, 0, 0, gap, ' ', 0)
	writeRow := func(cells []string) {
		between := ""
		for i, cell := range cells {
			if limits[i] > 0 {
				_, _ = io.WriteString(table, between+cut(cell, limits[i])) // to memory
				between = "\t"
			}
		}
		_, _ = io.WriteString(table, "\n")
	}
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	if strings.Join(titles, "") != "" {
		writeRow(titles)
	}
	for _, row := range rows {
		writeRow(row)
	}
	_ = table.Flush()
	for line := range strings.Lines(text.String()) {
		if _, err := io.WriteString(w, strings.TrimRight(line, " \n")+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// gap is the number of blanks between two columns.
const gap = 2

// fitColumns returns the greatest width of each column with which a table is width wide, and which columns to leave out because they are the same in all rows. The width of a column to
// leave out is 0.
func fitColumns(columns []column, widest []int, rows [][]string, width int) (limits []int, constant []bool) {
	limits, constant = slices.Clone(widest), make([]bool, len(columns))
	if width <= 0 {
		return limits, constant
	}
	excess, spare := gap*(len(limits)-1)-width, 0 // spare is what wide columns can give
	for i, n := range limits {
		excess += n
		if columns[i].wide {
			spare += max(0, n-minWide)
		}
	}
	leaveOut := func(i int) {
		excess -= limits[i] + gap
		if columns[i].wide {
			spare -= max(0, limits[i]-minWide)
		}
		limits[i] = 0
	}
	for _, isOptional := range []bool{true, false} {
		for i := len(columns) - 1; i >= 0 && excess > 0; i-- {
			if columns[i].optional == isOptional && isConstant(columns[i], rows, i) {
				leaveOut(i)
				constant[i] = true
			}
		}
	}
	for i := len(columns) - 1; i >= 0 && excess > spare; i-- {
		if columns[i].optional && limits[i] > 0 {
			leaveOut(i)
		}
	}
	for ; excess > 0; excess-- { // the widest gives way first
		at := -1
		for i, c := range columns {
			if c.wide && limits[i] > minWide && (at < 0 || limits[i] > limits[at]) {
				at = i
			}
		}
		if at < 0 {
			break
		}
		limits[at]--
	}
	return limits, constant
}

// isConstant reports whether a column has one value in several rows. That ages are alike is chance.
func isConstant(c column, rows [][]string, at int) bool {
	return len(rows) > 1 && c.title != "" && !c.isTime && !slices.ContainsFunc(rows, func(row []string) bool { return row[at] != rows[0][at] })
}

// sayOnce returns the values that are the same in all rows, in lines of the width; empty: there are none.
func sayOnce(columns []column, rows [][]string, constant []bool, width int) string {
	var parts []string
	for i, c := range columns {
		if constant[i] {
			parts = append(parts, c.title+" "+dash(rows[0][i]))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	var text strings.Builder
	line := "In every row:"
	for i, part := range parts {
		if i < len(parts)-1 {
			part += ","
		}
		if utf8.RuneCountInString(line+" "+part) > width {
			text.WriteString(line + "\n")
			line = cut(part, width)
		} else {
			line += " " + part
		}
	}
	return text.String() + line + "\n"
}

// cut returns the first characters of a text, the last of them an ellipsis if something was left out.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// Printable returns a text as it may be written on a terminal: on one line, with characters escaped that move the cursor or change the terminal. Names, events
// and errors come from anybody.
func Printable(text string) string { return printable(text) }

// printable replaces characters that move the cursor or change the terminal: events and errors come from anybody.
func printable(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	var safe strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			safe.WriteByte(' ')
		case unicode.IsPrint(r):
			safe.WriteRune(r)
		default:
			fmt.Fprintf(&safe, "\\u%04x", r)
		}
	}
	return safe.String()
}
