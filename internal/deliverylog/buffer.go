// Package deliverylog keeps rows of delivery logs in memory until they are written, within bounds: what is beyond them is dropped and counted. It knows no SQL.
package deliverylog

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// MaxBody is how many bytes of a body a row has.
const MaxBody = 1 << 10

// A Limit bounds the rows of a class that wait to be written.
type Limit struct {
	Name int // of one queue or source
	All  int // of all of them
}

// An Entry is a row of the log of a queue or source.
type Entry[R any] struct {
	Name  string
	Class int
	Row   R
}

// A Dropped is how many rows of a class were dropped of the log of a queue or source.
type Dropped struct {
	Name  string `json:"name"`
	Class int    `json:"class"`
	Count int64  `json:"count"`
}

// A Batch is what a Buffer has gathered.
type Batch[R any] struct {
	Entries []Entry[R] // by class, each in the order in which they were added
	Dropped []Dropped  // not nil
}

// IsEmpty reports whether there is nothing to write.
func (b *Batch[R]) IsEmpty() bool { return len(b.Entries) == 0 && len(b.Dropped) == 0 }

// A Buffer gathers rows. It is safe for concurrent use.
type Buffer[R any] struct {
	limits []Limit // by class

	mu      sync.Mutex
	entries [][]Entry[R]
	held    []map[string]int // how many of each name entries has, by class
	dropped map[place]int64
}

type place struct {
	name  string
	class int
}

// New returns a Buffer of as many classes as there are limits.
func New[R any](limits ...Limit) *Buffer[R] {
	b := &Buffer[R]{limits: limits}
	b.reset()
	return b
}

// reset empties the buffer. The caller holds mu, or is the only one who knows it.
func (b *Buffer[R]) reset() {
	b.entries, b.held = make([][]Entry[R], len(b.limits)), make([]map[string]int, len(b.limits))
	for i := range b.held {
		b.held[i] = make(map[string]int)
	}
	b.dropped = make(map[place]int64)
}

// Add adds the row that row returns, which is called only if there is room for it; else a row counts as dropped.
func (b *Buffer[R]) Add(name string, class int, row func() R) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.hasRoom(name, class) {
		b.dropped[place{name, class}]++
		return
	}
	b.add(Entry[R]{name, class, row()})
}

func (b *Buffer[R]) hasRoom(name string, class int) bool {
	limit := b.limits[class]
	return len(b.entries[class]) < limit.All && b.held[class][name] < limit.Name
}

func (b *Buffer[R]) add(e Entry[R]) {
	b.entries[e.Class] = append(b.entries[e.Class], e)
	b.held[e.Class][e.Name]++
}

// Take returns all that was gathered, and begins anew.
func (b *Buffer[R]) Take() (batch Batch[R]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch.Entries, batch.Dropped = slices.Concat(b.entries...), []Dropped{}
	for at, n := range b.dropped {
		batch.Dropped = append(batch.Dropped, Dropped{at.name, at.class, n})
	}
	if batch.IsEmpty() {
		return batch
	}
	slices.SortFunc(batch.Dropped, func(x, y Dropped) int { return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Class, y.Class)) })
	b.reset()
	return batch
}

// Restore puts back the part of a batch that was not written, of the names that isLeft says, before what was added since. Rows without room are dropped.
func (b *Buffer[R]) Restore(batch *Batch[R], isLeft func(name string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	newer, dropped := slices.Concat(b.entries...), b.dropped
	b.reset()
	b.dropped = dropped
	for i, e := range slices.Concat(batch.Entries, newer) {
		switch {
		case i < len(batch.Entries) && !isLeft(e.Name):
		case b.hasRoom(e.Name, e.Class):
			b.add(e)
		default:
			b.dropped[place{e.Name, e.Class}]++
		}
	}
	for _, d := range batch.Dropped {
		if isLeft(d.Name) {
			b.dropped[place{d.Name, d.Class}] += d.Count
		}
	}
}

// Flush takes all that was gathered and has it written, as two arrays of JSON: of the rows, and of Dropped. When write fails all of it is put back, else what write has left,
// by the names.
func (b *Buffer[R]) Flush(write func(rows, dropped string) (left []string, err error)) error {
	batch := b.Take()
	if batch.IsEmpty() {
		return nil
	}
	rows := make([]R, len(batch.Entries))
	for i := range batch.Entries {
		rows[i] = batch.Entries[i].Row
	}
	rowsText, err := json.Marshal(rows)
	if err != nil {
		return err // it would fail again
	}
	droppedText, err := json.Marshal(batch.Dropped)
	if err != nil {
		return err
	}
	left, err := write(string(rowsText), string(droppedText))
	if err != nil || len(left) > 0 {
		b.Restore(&batch, func(name string) bool { return err != nil || slices.Contains(left, name) })
	}
	return err
}

// Text returns the beginning of a text, at most limit bytes, as the database can store it: in UTF-8 and without NUL, in whose place a blank is.
func Text[T ~string | ~[]byte](text T, limit int) string {
	s := string(text[:min(len(text), limit)])
	if len(s) < len(text) { // maybe within a letter
		for i := 1; i < utf8.UTFMax && i <= len(s); i++ {
			if utf8.RuneStart(s[len(s)-i]) {
				if !utf8.FullRuneInString(s[len(s)-i:]) {
					s = s[:len(s)-i]
				}
				break
			}
		}
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", " ")
}
